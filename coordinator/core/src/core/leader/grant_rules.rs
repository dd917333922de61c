//! What may be granted. These rules read the ledger, the clusters and the plan, and change nothing.
//!
//! Invariant: a grant that they allow is within the budget, the worker's stored entry and its
//! capacity, and no other worker can have the stream.

use std::time::Duration;

use leasehold_types::limits::STREAMS_PER_WORKER_MAX;
use leasehold_types::message::Terms;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, Load, StreamKey, WorkerKey};

use super::Leader;
use super::clusters::Clusters;
use super::pipelines::Pipelines;
use crate::core::replica::Replica;
use crate::desired::Cluster;
use crate::exposure::Exposure;
use crate::ledger::Ledger;
use crate::observed::Worker;

/// What the rules read.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrantRules<'a> {
    replica: &'a Replica,
    ledger: &'a Ledger,
    clusters: &'a Clusters,
    pipelines: &'a Pipelines,
}

impl Leader {
    /// The rules for what may be granted now.
    pub(super) fn grant_rules(&self) -> GrantRules<'_> {
        GrantRules {
            replica: &self.replica,
            ledger: &self.ledger,
            clusters: &self.clusters,
            pipelines: &self.pipelines,
        }
    }
}

impl GrantRules<'_> {
    /// Whether no other leader can have granted, or can still grant, this agent anything.
    pub(super) fn is_confirmed(&self, worker: &Worker) -> bool {
        let confirmed = |at| self.ledger.confirmed_since(at);
        worker.no_epoch_since.is_none_or(confirmed) || mutation::on(Mutation::SkipConfirm)
    }

    /// The terms for one agent; none before its exposure is written down.
    pub(super) fn terms_for(&self, key: &WorkerKey) -> Option<Terms> {
        let cluster = self.clusters.get(&key.cluster)?;
        let account = self.ledger.account(key)?;
        let exposure = &account.exposure;
        let worker = self.clusters.worker(key)?;
        // A successor learns of this agent only from an entry for it, and not from one for an older
        // agent.
        let written =
            exposure.incarnation >= worker.incarnation || mutation::on(Mutation::SkipConfirm);
        let exposed = if written { exposure.ttl } else { Duration::ZERO };
        // The exposure that is being written in its place may allow less.
        let next = account.registering.as_ref().map_or(exposed, |next| next.ttl);
        // A message to a lost worker may still arrive, and must not put off the end of its leases.
        let known = if worker.lost { account.ttl } else { Duration::MAX };
        let ttl = cluster.spec().ttl.min(exposed).min(next).min(known);
        (!ttl.is_zero()).then(|| {
            let spec = Cluster { ttl, ..(**cluster.spec()).clone() };
            Terms { reserve: self.reserve(key, exposed), ..self.replica.terms(&spec) }
        })
    }

    /// Minimum age of a journal after which all older leases have expired.
    pub(super) fn reserve(&self, key: &WorkerKey, ttl: Duration) -> Duration {
        let account = self.ledger.account(key);
        let exposed = account.map_or(Duration::ZERO, |account| account.exposure.ttl);
        self.replica.config.bounds.outlast(ttl.max(exposed))
    }

    /// The slots of a cluster that no worker can be using; none while the cluster may not grow.
    pub(super) fn free_slots(&self, cluster: &ClusterName) -> Option<u32> {
        let jobs_max = self.clusters.get(cluster)?.spec().jobs_max;
        let held = self.ledger.held_by(cluster, self.replica.heard).is_some();
        (!held).then(|| jobs_max.saturating_sub(self.used(cluster)))
    }

    /// Slots of a cluster's budget that are taken.
    fn used(&self, cluster: &ClusterName) -> u32 {
        if !mutation::on(Mutation::GrowOverBudget) {
            return self.ledger.committed(cluster);
        }
        let working = |key: &WorkerKey| self.clusters.worker(key).is_some_and(Worker::is_working);
        let accounts = self.ledger.accounts_of(cluster).filter(|(key, _)| working(key));
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
        let Some(account) = self.ledger.account(key) else { return false };
        let has_room = |load| {
            let class = self.replica.class(&key.cluster);
            let former = self.ledger.former_load(key, self.replica.heard);
            class
                .zip(former)
                .is_some_and(|(class, former)| account.has_room(load + former, class.capacity))
                && self.pipelines.is_within_node(self.ledger, stream, load, self.replica.heard)
        };
        (self.is_listed(key, stream, timeless) || mutation::on(Mutation::GrantUnregisteredSet))
            && load.is_none_or(has_room)
            && account.streams.len() < STREAMS_PER_WORKER_MAX
            && self.ledger.is_free(stream, self.replica.heard)
    }

    /// Whether the worker's entry allows a lease on this stream.
    pub(super) fn is_listed(&self, key: &WorkerKey, stream: &StreamKey, timeless: bool) -> bool {
        let allows = |exposure: &Exposure| {
            self.replica.lists.allow(&key.cluster, exposure.sets, &stream.set, timeless)
        };
        self.ledger.account(key).is_some_and(|account| account.is_registered(allows))
    }
}
