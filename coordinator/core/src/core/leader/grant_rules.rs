//! What the plan wants granted, and what may be granted. These rules read the ledger, the clusters
//! and the plan, and change nothing.
//!
//! Invariant: a grant that they allow is within the budget, the worker's stored entry and its
//! capacity, and no other worker can have the stream.

use std::time::Duration;

use leasehold_types::limits::STREAMS_PER_WORKER_MAX;
use leasehold_types::message::Terms;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, Load, ShareKey, StreamKey, WorkerKey};

use super::Leader;
use super::facts::Facts;
use super::pipelines::Pipelines;
use super::planned_lease::PlannedLease;
use crate::desired::{Cluster, Mode};
use crate::exposure::Exposure;
use crate::observed::Worker;
use crate::planner::streams::Unplaced;

/// What the rules read.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrantRules<'a> {
    facts: Facts<'a>,
    pipelines: &'a Pipelines,
}

impl Leader {
    /// The rules for what may be granted now.
    pub(super) fn grant_rules(&self) -> GrantRules<'_> {
        GrantRules::new(self.facts(), &self.pipelines)
    }
}

impl<'a> GrantRules<'a> {
    /// The rules for these facts.
    pub(super) fn new(facts: Facts<'a>, pipelines: &'a Pipelines) -> Self {
        Self { facts, pipelines }
    }

    /// The planned lease of a stream; none if the stream is not desired.
    pub(super) fn planned_lease(&self, stream: &StreamKey) -> Option<PlannedLease<'a>> {
        if let Some(share) = ShareKey::of(stream) {
            return self.pipelines.planned_lease(&share);
        }
        let Facts { replica, ledger, .. } = self.facts;
        let (set, planned) = replica.planned(stream)?;
        Some(PlannedLease {
            cluster: &set.spec().cluster,
            on: planned.planned_on(&set.spec().cluster, ledger).map(|on| &on.name),
            load: None,
            // No other worker can take it.
            stays: matches!(planned.unplaced(), None | Some(Unplaced::NoWorker)),
            pinned: set.spec().mode == Mode::Pinned,
        })
    }

    /// Whether no other leader can have granted, or can still grant, this agent anything.
    pub(super) fn is_confirmed(&self, worker: &Worker) -> bool {
        let confirmed = |at| self.facts.ledger.confirmed_since(at);
        worker.no_epoch_since().is_none_or(confirmed) || mutation::on(Mutation::SkipConfirm)
    }

    /// The terms for one agent; none before its exposure is stored.
    pub(super) fn terms_for(&self, key: &WorkerKey) -> Option<Terms> {
        let cluster = self.facts.clusters.get(&key.cluster)?;
        let account = self.facts.ledger.account(key)?;
        let exposure = account.entry().exposure();
        let worker = self.facts.clusters.worker(key)?;
        // A successor learns of this agent only from an entry for it, and not from one for an older
        // agent.
        let written =
            exposure.incarnation >= worker.incarnation() || mutation::on(Mutation::SkipConfirm);
        let exposed = if written { exposure.ttl } else { Duration::ZERO };
        // The exposure that is being written in its place may allow less.
        let next = account.entry().next().map_or(exposed, |next| next.ttl);
        // A message to a lost worker may still arrive, and must not put off the end of its leases.
        let known = if worker.is_lost() { account.ttl() } else { Duration::MAX };
        let ttl = cluster.spec().ttl.min(exposed).min(next).min(known);
        (!ttl.is_zero()).then(|| {
            let spec = Cluster { ttl, ..(**cluster.spec()).clone() };
            Terms { reserve: self.reserve(key, exposed), ..self.facts.replica.terms(&spec) }
        })
    }

    /// Minimum age of a journal after which all older leases have expired.
    pub(super) fn reserve(&self, key: &WorkerKey, ttl: Duration) -> Duration {
        let account = self.facts.ledger.account(key);
        let exposed = account.map_or(Duration::ZERO, |account| account.entry().exposure().ttl);
        self.facts.replica.config().bounds.outlast(ttl.max(exposed))
    }

    /// The slots of a cluster that no worker can be using; none while the cluster may not grow.
    pub(super) fn free_slots(&self, cluster: &ClusterName) -> Option<u32> {
        let jobs_max = self.facts.clusters.get(cluster)?.spec().jobs_max;
        let on_hold =
            self.facts.ledger.unreported().hold_of(cluster, self.facts.replica.heard()).is_some();
        (!on_hold).then(|| jobs_max.saturating_sub(self.used(cluster)))
    }

    /// Slots of a cluster's budget that are taken.
    fn used(&self, cluster: &ClusterName) -> u32 {
        if !mutation::on(Mutation::GrowOverBudget) {
            return self.facts.ledger.accounts().committed(cluster);
        }
        let working =
            |key: &WorkerKey| self.facts.clusters.worker(key).is_some_and(Worker::is_working);
        let accounts = self.facts.ledger.accounts().of(cluster).filter(|(key, _)| working(key));
        accounts.map(|(_, account)| account.committed()).sum()
    }

    /// Whether a stream or share may be granted to a worker now.
    pub(super) fn may_be_granted(
        &self,
        key: &WorkerKey,
        stream: &StreamKey,
        timeless: bool,
        load: Option<Load>,
    ) -> bool {
        let Some(account) = self.facts.ledger.account(key) else { return false };
        let has_room = |load| {
            let class = self.facts.replica.class(&key.cluster);
            let former =
                self.facts.ledger.unreported().former_load(key, self.facts.replica.heard());
            class
                .zip(former)
                .is_some_and(|(class, former)| account.has_room(load + former, class.capacity))
                && self.pipelines.is_within_node(
                    self.facts.ledger,
                    stream,
                    load,
                    self.facts.replica.heard(),
                )
        };
        (self.is_listed(key, stream, timeless) || mutation::on(Mutation::GrantUnregisteredSet))
            && load.is_none_or(has_room)
            && account.stream_count() < STREAMS_PER_WORKER_MAX
            && self.facts.ledger.is_free(stream, self.facts.replica.heard())
    }

    /// Whether the worker's entry allows a lease on this stream.
    pub(super) fn is_listed(&self, key: &WorkerKey, stream: &StreamKey, timeless: bool) -> bool {
        let allows = |exposure: &Exposure| {
            self.facts.replica.lists().allow(&key.cluster, exposure.sets, &stream.set, timeless)
        };
        self.facts.ledger.account(key).is_some_and(|account| account.entry().allows(allows))
    }
}
