//! The views of the core that people see: copies, page by page if asked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_types::message::{DrainPhase, Jobs};
use leasehold_types::{
    ClusterName, Incarnation, Moment, SetName, StreamKey, StreamName, WorkerKey, WorkerName,
};

use super::Query;
use super::agent_rules::identity_of_occupant;
use crate::core::Core;
use crate::core::replica::{ReplicaState, SetState, StreamSlot};
use crate::desired::{Cluster, Desired};
use crate::ledger::{Account, Claim, Phase};
use crate::observed::Worker;
use crate::planner::streams::Unplaced;
use crate::view::{
    ClaimPhase, ClaimView, ClusterView, Presence, RefusedAgentView, SetSummary, SetView,
    StreamView, WorkerView,
};

/// The offset basis of FNV-1a.
const DIGEST_START: u64 = 0xcbf2_9ce4_8422_2325;

impl Core {
    /// All clusters that a manifest defines, by name.
    #[must_use]
    pub fn clusters(&self, now: Moment) -> Vec<ClusterView> {
        let clusters = self.desired().clusters.iter();
        clusters.map(|(name, spec)| self.cluster_view(name, spec, now)).collect()
    }

    /// One cluster; none where no manifest defines it.
    #[must_use]
    pub fn cluster(&self, name: &ClusterName, now: Moment) -> Option<ClusterView> {
        let (name, spec) = self.desired().clusters.get_key_value(name)?;
        Some(self.cluster_view(name, spec, now))
    }

    fn cluster_view(&self, name: &ClusterName, spec: &Arc<Cluster>, now: Moment) -> ClusterView {
        match self.query() {
            Some(query) => query.cluster_view(name, spec, now),
            None => self.replica().cluster_view(name, spec),
        }
    }

    /// The workers of a cluster, by name; none where no manifest defines it.
    #[must_use]
    pub fn workers(&self, cluster: &ClusterName, now: Moment) -> Option<Vec<WorkerView>> {
        Some(self.workers_after(cluster, None, now)?.collect())
    }

    /// The workers of a cluster, by name, all or those after `after`; lazy. None where no manifest
    /// defines the cluster.
    #[must_use]
    pub fn workers_after<'a>(
        &'a self,
        cluster: &'a ClusterName,
        after: Option<&'a WorkerName>,
        now: Moment,
    ) -> Option<impl Iterator<Item = WorkerView> + 'a> {
        self.desired().clusters.get(cluster)?;
        let of_leader = move |query: Query<'a>| {
            let accounts = query.ledger.accounts().of_after(cluster, after);
            accounts.map(move |(key, account)| query.worker_view(key, account, now))
        };
        Some(self.query().into_iter().flat_map(of_leader))
    }

    /// One worker.
    #[must_use]
    pub fn worker(&self, key: &WorkerKey, now: Moment) -> Option<WorkerView> {
        self.query()?.worker(key, now)
    }

    /// Since when a worker's agent that remembered no epoch waits for a later confirmation of
    /// leadership; none if it does not wait, or has another incarnation.
    #[must_use]
    pub fn waits_since(&self, key: &WorkerKey, incarnation: Incarnation) -> Option<Moment> {
        let leader = self.leader()?;
        let worker = leader.observed(key).filter(|worker| worker.incarnation() == incarnation)?;
        worker.no_epoch_since().filter(|_| !leader.grant_rules().is_confirmed(worker))
    }

    /// When a worker counts as lost if its agent stays silent.
    #[must_use]
    pub fn lost_from(&self, key: &WorkerKey) -> Option<Moment> {
        let ledger = self.query()?.ledger;
        ledger.account(key)?;
        Some(ledger.free_at(key))
    }

    /// When every lease of a worker on a stream has surely ended if its agent stays silent;
    /// [`Moment::NEVER`] for leases that never end by time, and none where it can have no lease.
    #[must_use]
    pub fn outstanding_until(&self, key: &WorkerKey, stream: &StreamKey) -> Option<Moment> {
        self.query()?.ledger.outstanding_until(key, stream)
    }

    /// Until when the unreported leases of a worker may last that end by time: leases from before
    /// this term that no agent with a memory has reported. None if it can hold none.
    #[must_use]
    pub fn unreported_until(&self, key: &WorkerKey) -> Option<Moment> {
        self.query()?.ledger.unreported().until(key)
    }

    /// The desired state that is in force. A large manifest is read in several turns and is in
    /// force after that.
    #[must_use]
    pub fn desired(&self) -> &Arc<Desired> {
        self.replica().desired()
    }

    /// The streams of a set, in the manifest's order, all or those after `after`; lazy. None if no
    /// manifest defines the set; empty if the set has no such stream.
    #[must_use]
    pub fn streams<'a>(
        &'a self,
        set: &'a SetName,
        after: Option<&StreamName>,
    ) -> Option<impl Iterator<Item = StreamView> + 'a> {
        let state = self.replica().sets().get(set)?;
        let all = state.len();
        let start = match after {
            None => 0,
            Some(after) => state.position(after).map_or(all, |at| at + 1),
        };
        Some((start..all).map(move |at| self.stream_view(set, state, at)))
    }

    /// One stream.
    #[must_use]
    pub fn stream(&self, key: &StreamKey) -> Option<StreamView> {
        let state = self.replica().sets().get(&key.set)?;
        let at = state.position(&key.stream)?;
        Some(self.stream_view(&key.set, state, at))
    }

    fn stream_view(&self, name: &SetName, set: &SetState, at: usize) -> StreamView {
        let key = StreamKey { set: name.clone(), stream: set.spec().streams[at].name.clone() };
        let claims = self.query().map_or(&[][..], |query| query.ledger.claims(&key));
        stream_view(key, set, at, self.planned_on(set, set.slot(at)), claims)
    }

    /// The worker that a stream is planned on. A replica that no longer leads shows its last plan.
    fn planned_on<'a>(&self, set: &SetState, planned: &'a StreamSlot) -> Option<&'a WorkerName> {
        let on = match self.query() {
            Some(query) => planned.planned_on(&set.spec().cluster, query.ledger),
            None => planned.on(),
        };
        on.map(|on| &on.name)
    }

    /// All stream sets, by name. A replica that does not lead knows of no owner.
    #[must_use]
    pub fn set_summaries(&self) -> Vec<SetSummary> {
        let sets = self.replica().sets().iter();
        let summary = |(name, state): (&SetName, &SetState)| SetSummary {
            name: name.clone(),
            cluster: state.spec().cluster.clone(),
            streams: state.len(),
            owned: self.query().map_or(0, |query| query.owned_streams(name)),
        };
        sets.map(summary).collect()
    }

    /// A stream set in figures; none if no manifest defines it. Reads every stream.
    #[must_use]
    pub fn set(&self, name: &SetName) -> Option<SetView> {
        let (query, set) = (self.query(), self.replica().sets().get(name)?);
        let cluster = &set.spec().cluster;
        let held = query.is_some_and(|query| query.is_cluster_held(cluster));
        let mut view = SetView {
            name: name.clone(),
            cluster: set.spec().cluster.clone(),
            streams: set.len(),
            owned: 0,
            moving: 0,
            unplaced: 0,
            workers: 0,
            workers_current: 0,
            digest: DIGEST_START,
            held,
        };
        // Each worker with streams of the set, and whether it has exactly the planned ones.
        let mut workers: BTreeMap<&WorkerName, bool> = BTreeMap::new();
        for (stream, planned) in set.spec().streams.iter().zip(set.slots()) {
            let key = StreamKey { set: name.clone(), stream: stream.name.clone() };
            let claims = query.map_or(&[][..], |query| query.ledger.claims(&key));
            let on = self.planned_on(set, planned);
            let in_place = |claim: &Claim| {
                claim.worker.cluster == set.spec().cluster
                    && Some(&claim.worker.worker) == on
                    && claim.phase == Phase::Held
            };
            let placed = matches!(claims, [claim] if in_place(claim));
            view.owned += usize::from(!claims.is_empty());
            view.moving += usize::from(!placed && (on.is_some() || !claims.is_empty()));
            view.unplaced += usize::from(on.is_none());
            for worker in on.into_iter().chain(claims.iter().map(|claim| &claim.worker.worker)) {
                *workers.entry(worker).or_insert(true) &= placed;
            }
            view.digest = digest(view.digest, stream.name.as_str());
            view.digest = digest(view.digest, on.map_or("", WorkerName::as_str));
        }
        view.workers = workers.len();
        let current = workers.iter().filter(|(worker, in_place)| {
            let worker = (**worker).clone();
            let worker = WorkerKey { cluster: view.cluster.clone(), worker };
            **in_place && query.is_some_and(|query| query.has_applied(&worker))
        });
        view.workers_current = current.count();
        Some(view)
    }
}

impl ReplicaState {
    /// A cluster, with the facts that every replica knows.
    fn cluster_view(&self, name: &ClusterName, spec: &Cluster) -> ClusterView {
        let sets = self.sets_of(name).filter_map(|set| self.sets().get(set));
        ClusterView {
            name: name.clone(),
            jobs_max: spec.jobs_max,
            jobs_per_worker_max: spec.jobs_per_worker_max,
            committed: 0,
            running: 0,
            granted: 0,
            workers: 0,
            connected: 0,
            draining: 0,
            failing: 0,
            names_wanted: 0,
            lost: 0,
            unreported: 0,
            streams: sets.map(|set| set.len()).sum(),
            streams_owned: 0,
            held: None,
            is_class: spec.class.is_some(),
        }
    }
}

impl Query<'_> {
    pub(super) fn worker(&self, key: &WorkerKey, now: Moment) -> Option<WorkerView> {
        let account = self.ledger.account(key)?;
        Some(self.worker_view(key, account, now))
    }

    /// Whether nothing may be freed, grown or planned in a cluster yet.
    fn is_cluster_held(&self, name: &ClusterName) -> bool {
        self.ledger.unreported().hold_of(name, self.replica.heard()).is_some()
    }

    /// The other agent that wants a worker's name, if it was refused lately.
    fn refused_agent(&self, key: &WorkerKey, now: Moment) -> Option<RefusedAgentView> {
        let refused = self.observed(key)?.occupant().refused()?;
        let view = RefusedAgentView { peer: refused.peer(), ago: refused.ago(now) };
        refused.is_shown(now).then_some(view)
    }

    /// Whether a worker's agent is connected and has acknowledged its newest streams.
    fn has_applied(&self, key: &WorkerKey) -> bool {
        let connected = self.observed(key).is_some_and(|worker| worker.is_connected());
        let account = self.ledger.account(key);
        connected && account.is_some_and(Account::has_acknowledged_streams)
    }

    /// How many streams of a set have an owner.
    fn owned_streams(&self, set: &SetName) -> usize {
        // Streams that are no longer desired may still be claimed.
        let streams = self.replica.sets().get(set).map_or(0, |set| set.len());
        self.ledger.claim_table().count(set).min(streams)
    }

    pub(super) fn cluster_view(
        &self,
        name: &ClusterName,
        spec: &Cluster,
        now: Moment,
    ) -> ClusterView {
        let mut view = self.replica.cluster_view(name, spec);
        if spec.class.is_some() {
            // The workers of a class own shares of pipelines.
            let (planned, owned) = self.share_counts(name);
            view.streams += planned;
            view.streams_owned += owned;
        }
        for set_name in self.replica.sets_of(name) {
            view.streams_owned += self.owned_streams(set_name);
        }
        let ledger = self.ledger;
        view.held =
            ledger.unreported().hold_of(name, self.replica.heard()).map(|(until, worker)| {
                let left = until.since(now).as_secs_f64();
                format!(
                    "waits at most {left:.1} s for {worker}, which has not reported to this leader"
                )
            });
        for (key, account) in ledger.accounts().of(name) {
            let worker = self.worker_view(key, account, now);
            view.committed = view.committed.saturating_add(worker.committed);
            view.running = view.running.saturating_add(worker.running.unwrap_or(0));
            view.workers += 1;
            view.connected += usize::from(worker.presence == Presence::Connected);
            view.lost += usize::from(worker.presence == Presence::Lost);
            view.unreported += usize::from(worker.presence == Presence::Unreported);
            view.draining += usize::from(worker.drains());
            view.failing += usize::from(worker.is_failing());
            view.names_wanted += usize::from(worker.refused_agent.is_some());
            if !worker.drains() && worker.presence == Presence::Connected {
                view.granted = view.granted.saturating_add(worker.granted);
            }
        }
        view
    }

    /// The deadline of a worker's drain, if it has passed.
    fn overdue(&self, key: &WorkerKey, now: Moment) -> Option<Duration> {
        let cluster = self.clusters.get(&key.cluster)?;
        let since = cluster.workers().get(&key.worker)?.drain().since()?;
        let deadline = cluster.spec().drain_deadline;
        (now.since(since) > deadline).then_some(deadline)
    }

    pub(super) fn worker_view(
        &self,
        key: &WorkerKey,
        account: &Account,
        now: Moment,
    ) -> WorkerView {
        let worker = self.observed(key);
        let presence = match worker {
            Some(worker) if worker.is_lost() => Presence::Lost,
            Some(worker) if worker.is_connected() => Presence::Connected,
            Some(worker) if worker.has_reported() => Presence::Silent,
            Some(_) | None => Presence::Unreported,
        };
        let reported = presence != Presence::Unreported;
        WorkerView {
            key: key.clone(),
            presence,
            drain: worker.map_or(DrainPhase::Working, |worker| worker.drain().phase()),
            failure: worker.and_then(|worker| worker.drain().failure().cloned()),
            drain_ordered: worker.is_some_and(|worker| worker.drain().is_ordered()),
            drain_overdue: self.overdue(key, now),
            agent: identity_of_occupant(key, self.facts()),
            incarnation: account.incarnation(),
            generation: worker.map_or(0, Worker::generation),
            silent_for: reported.then(|| now.since(account.heard())),
            granted: account.size(),
            in_effect: account.in_effect(),
            running: match account.jobs() {
                Jobs::Unknown => None,
                Jobs::Running(running) => Some(running),
            },
            committed: account.committed(),
            wanted: worker.and_then(Worker::target).unwrap_or(account.size()),
            pool_token: account.pool_token(),
            streams: account.stream_count(),
            load: account.load(),
            address: worker.and_then(|worker| worker.address().cloned()),
            agent_version: worker.and_then(Worker::version),
            refused_agent: self.refused_agent(key, now),
        }
    }
}

pub(super) fn stream_view(
    key: StreamKey,
    set: &SetState,
    at: usize,
    planned: Option<&WorkerName>,
    claims: &[Claim],
) -> StreamView {
    let stream = &set.spec().streams[at];
    StreamView {
        cluster: set.spec().cluster.clone(),
        weight: stream.weight,
        dedicated: stream.dedicated,
        planned: planned.cloned(),
        unplaced: set.slot(at).unplaced().filter(|_| planned.is_none()).map(reason),
        claims: claims.iter().map(claim_view).collect(),
        key,
    }
}

/// FNV-1a over the bytes of a text and its end.
fn digest(sum: u64, text: &str) -> u64 {
    let step = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    step(text.bytes().fold(sum, step), 0)
}

/// The rule that keeps a stream from every worker, for people.
pub(super) fn reason(why: Unplaced) -> &'static str {
    match why {
        Unplaced::NoWorker => "no worker of the cluster can own streams now",
        Unplaced::NoWorkerOfItsOwn => {
            "it is dedicated, and no worker is left to be its own: add workers"
        }
        Unplaced::WorkersFull => "every worker owns as many streams as one may: add workers",
    }
}

fn claim_view(claim: &Claim) -> ClaimView {
    ClaimView {
        worker: WorkerKey::clone(&claim.worker),
        token: claim.token,
        phase: match claim.phase {
            Phase::Held => ClaimPhase::Held,
            Phase::Revoking { .. } => ClaimPhase::Revoking,
            Phase::Lapsing { .. } | Phase::Orphaned { .. } => ClaimPhase::Lapsing,
        },
        timeless: claim.timeless,
    }
}
