//! The next message of one agent, composed from its worker's present state. A lease counts as
//! granted from here on.

use std::sync::Arc;
use std::time::Duration;

use leasehold_types::limits::STREAMS_PER_WORKER_MAX;
use leasehold_types::message::{Grant, PoolGrant, StreamGrant, StreamState, Terms};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::share::TableGrant;
use leasehold_types::{GrantNumber, Moment, Share, StreamKey, WorkerKey};

use super::clusters::Clusters;
use super::facts::Facts;
use super::grant_rules::GrantRules;
use super::pipelines::{Pipelines, RouteBudget, SnapshotShare};
use super::planned_lease::handover;
use crate::core::replica::ReplicaState;
use crate::effect::Notice;
use crate::event::ConnId;
use crate::ledger::{Ledger, Phase};

/// The most streams that one message revokes, and the most that it grants: the others follow in
/// the next one. A snapshot lists all that is held.
const STREAMS_PER_GRANT_MAX: usize = 1_024;

/// The content of a message.
pub(super) enum GrantContent<'a> {
    /// All changes. The cluster may grow by this many slots; none while it may not grow.
    All(Option<&'a mut u32>),
    /// A renewal only. Changes follow when the worker's turn comes.
    Renewal,
}

/// Composes one message. What it grants and revokes is written into the ledger.
#[derive(Debug)]
pub(super) struct GrantComposer<'a> {
    replica: &'a ReplicaState,
    ledger: &'a mut Ledger,
    clusters: &'a mut Clusters,
    pipelines: &'a mut Pipelines,
    composed: Composed,
}

/// What follows from a message that is composed.
#[derive(Debug, Default)]
pub(super) struct Composed {
    /// The message, and the connection that it is for; none where nothing is to be sent.
    pub(super) message: Option<(ConnId, Grant)>,
    /// In their order.
    pub(super) notices: Vec<Notice>,
    /// When the claims on these streams are due for a check.
    pub(super) due: Vec<(Moment, StreamKey)>,
    /// Streams that the worker is to have were not free.
    pub(super) is_blocked: bool,
    /// The worker has another message to get.
    pub(super) has_more: bool,
    /// A move has ended where moves are limited: the next may begin.
    pub(super) ends_move: bool,
}

/// The content of a message besides the renewal.
#[derive(Debug, Default)]
struct Changes {
    pool: Option<PoolGrant>,
    streams: Vec<StreamGrant>,
    tables: Vec<TableGrant>,
}

impl<'a> GrantComposer<'a> {
    /// A message that nothing is written into yet.
    pub(super) fn new(
        replica: &'a ReplicaState,
        ledger: &'a mut Ledger,
        clusters: &'a mut Clusters,
        pipelines: &'a mut Pipelines,
    ) -> Self {
        Self { replica, ledger, clusters, pipelines, composed: Composed::default() }
    }

    /// Composes the message for a worker's agent.
    pub(super) fn compose(
        mut self,
        key: &WorkerKey,
        content: GrantContent<'_>,
        terms: Terms,
        now: Moment,
    ) -> Composed {
        self.composed.message = self.message(key, content, terms, now);
        self.composed
    }

    fn message(
        &mut self,
        key: &WorkerKey,
        content: GrantContent<'_>,
        terms: Terms,
        now: Moment,
    ) -> Option<(ConnId, Grant)> {
        let account = self.ledger.account(key)?;
        let worker = self.clusters.worker(key)?;
        let session = worker.session()?;
        let number = account.number().next();
        let (conn, nonce) = (session.conn(), session.nonce());
        let (snapshot, renews) = (session.is_snapshot_due(), session.is_renewal_due());
        let drain = worker.drain().order().filter(|order| !session.has_sent(*order));
        if matches!(content, GrantContent::Renewal) && (snapshot || !renews) {
            return None;
        }
        let fresh = snapshot && account.is_fresh(worker.incarnation());
        let epoch = self.ledger.epoch();

        // The leases that this grant renews last as long as it says.
        let before = account.ttl();
        let renewed = if mutation::on(Mutation::ShorterTtlAtOnce) {
            terms.ttl
        } else {
            before.max(terms.ttl)
        };
        self.set_ttl_in_use(key, renewed);
        let Changes { pool, streams, tables } = match content {
            GrantContent::All(free) => self.changes(key, number, snapshot, free, now),
            GrantContent::Renewal => Changes::default(),
        };
        let any = drain.is_some() || pool.is_some() || !(streams.is_empty() && tables.is_empty());
        if !(snapshot || renews || any) {
            // Nothing is sent, so nothing is renewed.
            self.set_ttl_in_use(key, before);
            return None;
        }
        let newer_generation = self.clusters.newer_generation(key);
        let names_streams = !streams.is_empty();
        let grant = Grant {
            epoch,
            number,
            nonce,
            terms,
            snapshot,
            pool,
            streams,
            tables,
            drain,
            fresh,
            newer_generation,
        };
        self.count_as_sent(key, number, names_streams);
        Some((conn, grant))
    }

    /// What changes for the agent; in a snapshot, all that it has. The cluster may grow by `free`
    /// slots.
    fn changes(
        &mut self,
        key: &WorkerKey,
        number: GrantNumber,
        snapshot: bool,
        free: Option<&mut u32>,
        now: Moment,
    ) -> Changes {
        let session = self.clusters.worker(key).and_then(|worker| worker.session());
        let by_table = session.is_some_and(|session| session.takes_tables());
        let mut budget = RouteBudget::new(by_table);
        let mut pool = None;
        let mut streams = self.revocations(key, &mut budget, now);
        streams.extend(self.route_updates(key, &mut budget, now));
        if let Some(free) = free {
            pool = self.pool_change(key, number, free);
            streams.extend(self.stream_grants(key, &mut budget));
        }
        if snapshot {
            pool = pool.or(self.pool_for_snapshot(key, number));
            budget = RouteBudget::new(by_table);
            streams = self.streams_for_snapshot(key, &mut budget, now);
        }
        let Self { ledger, clusters, pipelines, .. } = self;
        let tables = match clusters.worker_mut(key).and_then(|worker| worker.session_mut()) {
            Some(session) if by_table => {
                let (sent, budget) = (session.tables_mut(), &mut budget);
                pipelines.table_grants(sent, key, snapshot, &streams, budget, ledger)
            }
            _ => Vec::new(),
        };
        Changes { pool, streams, tables }
    }

    /// From now on a worker counts as silent after leases of this length.
    fn set_ttl_in_use(&mut self, key: &WorkerKey, ttl: Duration) {
        if let Some(mut account) = self.ledger.account_mut(key) {
            account.set_ttl(ttl);
        }
    }

    fn count_as_sent(&mut self, key: &WorkerKey, number: GrantNumber, names_streams: bool) {
        if let Some(mut account) = self.ledger.account_mut(key) {
            account.sent(number, names_streams);
        }
        let Some(worker) = self.clusters.worker_mut(key) else { return };
        let drain_order = worker.drain().order();
        if let Some(session) = worker.session_mut() {
            session.grant_sent(drain_order);
        }
    }

    /// A new pool lease, where the plan wants another size: a smaller one at once, a larger one
    /// as far as slots are free.
    fn pool_change(
        &mut self,
        key: &WorkerKey,
        number: GrantNumber,
        free: &mut u32,
    ) -> Option<PoolGrant> {
        let cluster = self.clusters.get(&key.cluster)?;
        let worker = cluster.workers().get(&key.worker)?;
        let unplanned = mutation::on(Mutation::UnplannedPoolIsEmpty).then_some(0);
        // A draining worker takes no job, even if the plan wants some for it.
        let target = if worker.is_working() { worker.target().or(unplanned)? } else { 0 };
        let floor_wanted = cluster.spec().floor;
        let account = self.ledger.account(key)?;
        let (size, committed) = (account.size_kept(), account.committed());
        let known = account.unaccounted().is_none()
            && (account.entry().allows(|exposure| exposure.jobs_max >= target)
                || mutation::on(Mutation::PoolUnregistered));
        let most = if known { committed.saturating_add(*free) } else { size };
        let wanted = target.min(most.max(size));
        let floor = floor_wanted.min(wanted);
        if known && wanted < target {
            let avoided = self.replica.avoided().contains(key);
            self.clusters.wait_for_slots(key, avoided);
        }
        let account = self.ledger.account(key)?;
        let pool = account.pool();
        let same = pool.map_or(wanted == 0, |pool| pool.size == wanted && pool.floor == floor);
        if same && !account.is_size_unsure() {
            return None;
        }
        *free -= wanted.saturating_sub(committed).min(*free);
        let before = pool.map_or(0, |pool| pool.size);
        let token = self.ledger.next_token();
        let pool = PoolGrant { token, size: wanted, floor };
        let mut account = self.ledger.account_mut(key)?;
        account.granted_anew(number, pool);
        let worker = key.clone();
        let notice = Notice::PoolGranted { worker, before, size: wanted, token };
        self.composed.notices.push(notice);
        Some(pool)
    }

    /// The pool lease as it is, for a snapshot.
    fn pool_for_snapshot(&mut self, key: &WorkerKey, number: GrantNumber) -> Option<PoolGrant> {
        let mut account = self.ledger.account_mut(key)?;
        let pool = account.pool()?;
        account.granted(number, pool);
        Some(pool)
    }

    /// Streams that are revoked, and those that are no longer renewed.
    fn revocations(
        &mut self,
        key: &WorkerKey,
        budget: &mut RouteBudget,
        now: Moment,
    ) -> Vec<StreamGrant> {
        let Some(worker) = self.clusters.worker_mut(key) else { return Vec::new() };
        let revoked = worker.streams_mut().take_revoked(STREAMS_PER_GRANT_MAX);
        let revoked = revoked.into_iter();
        revoked.filter_map(|stream| self.revocation(key, &stream, budget, now)).collect()
    }

    fn revocation(
        &mut self,
        key: &WorkerKey,
        stream: &StreamKey,
        budget: &mut RouteBudget,
        now: Moment,
    ) -> Option<StreamGrant> {
        let wanted = self.rules().planned_lease(stream);
        let handover = handover(stream, key, self.replica);
        let claim = self.ledger.claim(stream, key)?;
        let is_met = wanted.is_some_and(|wanted| wanted.is_met_by(claim));
        // Its pipeline may have broken since the stream was marked to be revoked.
        let working = self.clusters.worker(key).is_some_and(|worker| worker.is_working());
        let waits = stream.set.is_shares()
            && wanted.is_some_and(|wanted| wanted.on.is_none() && wanted.stays);
        let kept = is_met || (waits && working);
        let free_at =
            if mutation::on(Mutation::LapseFreesAtOnce) { now } else { self.ledger.free_at(key) };
        let claim = self.ledger.claim(stream, key)?;
        let token = claim.token;
        let (phase, at, state) = match claim.phase {
            Phase::Held if !kept => {
                let deadline = now + handover;
                let state = StreamState::Revoked { deadline: handover, renewed: true };
                (Phase::Revoking { deadline }, deadline, state)
            }
            Phase::Revoking { deadline } if deadline <= now => {
                let state = StreamState::Revoked { deadline: Duration::ZERO, renewed: false };
                (Phase::Lapsing { free_at }, free_at, state)
            }
            Phase::Held | Phase::Revoking { .. } => return None,
            Phase::Lapsing { .. } | Phase::Orphaned { .. } => return None,
        };
        let first = claim.phase == Phase::Held;
        self.ledger.set_phase(stream, key, phase);
        self.pipelines.leases_changed(stream);
        self.composed.due.push((at, stream.clone()));
        if first {
            let (worker, stream) = (key.clone(), stream.clone());
            let notice = Notice::StreamRevoked { worker, stream, token };
            self.composed.notices.push(notice);
        }
        Some(StreamGrant {
            stream: stream.clone(),
            token,
            state,
            share: self.changed_route(stream, key, budget),
        })
    }

    /// Streams that the plan wants on this worker and that no other worker can have.
    fn stream_grants(&mut self, key: &WorkerKey, budget: &mut RouteBudget) -> Vec<StreamGrant> {
        let Some(worker) = self.clusters.worker(key).filter(|worker| worker.owns_streams()) else {
            return Vec::new();
        };
        let incarnation = worker.incarnation();
        let stops_worker = worker.stops_worker() || mutation::on(Mutation::UnstoppableFreed);
        let mut grants = Vec::new();
        // A worker's shares are few: all of them are checked.
        let most = match self.replica.class(&key.cluster) {
            Some(_) => usize::MAX,
            None => STREAMS_PER_GRANT_MAX,
        };
        let (wanted, more) = worker.streams().wanted(most);
        for stream in wanted {
            let wanted = self.rules().planned_lease(&stream).filter(|wanted| wanted.is_for(key));
            let wanted = wanted.map(|wanted| (wanted.pinned || !stops_worker, wanted.load));
            let Some((timeless, load)) = wanted else {
                self.forget_want(key, &stream);
                continue;
            };
            // A share that does not fit in this message is granted by the next one.
            if !budget.is_left() {
                continue;
            }
            if !self.rules().may_be_granted(key, &stream, timeless, load) {
                self.block(key, &stream);
                continue;
            }
            let token = self.ledger.grant_stream(&stream, key, incarnation, timeless, load);
            self.forget_want(key, &stream);
            self.await_acknowledgement(&stream, key);
            let set = self.replica.sets().get(&stream.set);
            self.composed.ends_move |= set.is_some_and(|set| set.is_limited());
            let notice =
                Notice::StreamGranted { worker: key.clone(), stream: stream.clone(), token };
            self.composed.notices.push(notice);
            let share = load.and_then(|load| self.pipelines.share_for_grant(&stream, load, budget));
            let state = StreamState::Held { pinned: timeless };
            grants.push(StreamGrant { stream, token, state, share });
        }
        let account = self.ledger.account(key);
        if more && account.is_some_and(|account| account.stream_count() < STREAMS_PER_WORKER_MAX) {
            self.composed.has_more = true;
        }
        grants
    }

    /// The shares of a worker whose routes have changed, as far as they fit into one message.
    /// Shares that are revoked are included: the worker works on them until it releases them.
    fn route_updates(
        &mut self,
        key: &WorkerKey,
        budget: &mut RouteBudget,
        now: Moment,
    ) -> Vec<StreamGrant> {
        let Self { clusters, pipelines, ledger, .. } = self;
        let Some(worker) = clusters.worker_mut(key) else { return Vec::new() };
        let mut updates = Vec::new();
        while budget.is_left()
            && let Some(stream) = worker.streams_mut().take_rerouted()
        {
            updates.extend(pipelines.route_update(stream, key, budget, ledger, now));
        }
        updates
    }

    /// The route of a share that is revoked, if the route has changed. Where this message is full,
    /// the next one has it.
    fn changed_route(
        &mut self,
        stream: &StreamKey,
        key: &WorkerKey,
        budget: &mut RouteBudget,
    ) -> Option<Arc<Share>> {
        if !budget.is_left() {
            return None;
        }
        let has_changed = self.clusters.worker_mut(key)?.streams_mut().route_sent(stream);
        if !has_changed {
            return None;
        }
        let load = self.ledger.claim(stream, key)?.load?;
        self.pipelines.share_for_grant(stream, load, budget)
    }

    /// A share is served once its worker's agent has acknowledged the grant.
    fn await_acknowledgement(&mut self, stream: &StreamKey, key: &WorkerKey) {
        if !stream.set.is_shares() {
            return;
        }
        let claim = self.ledger.claim(stream, key);
        let number = claim.map_or(GrantNumber(0), |claim| claim.sent_in);
        if let Some(worker) = self.clusters.worker_mut(key) {
            worker.streams_mut().await_acknowledgement(number, stream.clone());
        }
        self.pipelines.leases_changed(stream);
    }

    fn forget_want(&mut self, key: &WorkerKey, stream: &StreamKey) {
        if let Some(worker) = self.clusters.worker_mut(key) {
            worker.streams_mut().drop_want(stream);
        }
    }

    /// The stream is not free: it is checked again when something has changed.
    fn block(&mut self, key: &WorkerKey, stream: &StreamKey) {
        let account = self.ledger.account(key);
        let is_full =
            account.is_none_or(|account| account.stream_count() >= STREAMS_PER_WORKER_MAX);
        // A share is not blocked: whether the capacity and the node's other shares allow it may
        // change with every beat.
        if is_full || stream.set.is_shares() {
            return;
        }
        if let Some(worker) = self.clusters.worker_mut(key)
            && worker.streams_mut().block(stream)
        {
            self.composed.is_blocked = true;
        }
    }

    /// Everything that the agent has, for a snapshot.
    fn streams_for_snapshot(
        &mut self,
        key: &WorkerKey,
        budget: &mut RouteBudget,
        now: Moment,
    ) -> Vec<StreamGrant> {
        let claims = self.ledger.claims_for_snapshot(key);
        let mut follow = Vec::new();
        let streams = claims.into_iter().filter_map(|(stream, claim)| {
            let state = match claim.state(now)? {
                // A lease that its agent takes anew may be timeless only if the entry says so.
                StreamState::Held { pinned } => {
                    let pinned = pinned && self.rules().is_listed(key, &stream, true);
                    StreamState::Held { pinned }
                }
                state @ StreamState::Revoked { .. } => state,
            };
            let SnapshotShare { share, follows } =
                self.pipelines.share_for_snapshot(&stream, &claim, budget, self.facts());
            follow.extend(follows.then(|| stream.clone()));
            Some(StreamGrant { stream, token: claim.token, state, share })
        });
        let streams = streams.collect();
        if let Some(worker) = self.clusters.worker_mut(key) {
            follow.into_iter().for_each(|share| worker.streams_mut().reroute(share));
        }
        streams
    }

    fn facts(&self) -> Facts<'_> {
        Facts { replica: self.replica, ledger: self.ledger, clusters: self.clusters }
    }

    fn rules(&self) -> GrantRules<'_> {
        GrantRules::new(self.facts(), self.pipelines)
    }
}
