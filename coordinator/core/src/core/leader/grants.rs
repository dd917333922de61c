//! Grants: the newest wanted state of each agent, composed when its connection can take a message.
//! A lease counts as granted from here on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_types::limits::STREAMS_PER_WORKER_MAX;
use leasehold_types::message::{CoordinatorMessage, Grant, PoolGrant, StreamGrant, StreamState};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{GrantNumber, Moment, Share, StreamKey, WorkerKey};

use super::pipelines::{RouteBudget, SnapshotShare};
use super::{Leader, Timer};
use crate::effect::{Effect, Notice};
use crate::ledger::Phase;

/// The most streams that one message asks back, and the most that it grants: the others follow in
/// the next one. A snapshot lists all that is held.
const STREAMS_PER_GRANT_MAX: usize = 1_024;

/// The content of a message.
enum GrantContent<'a> {
    /// All changes. The cluster may grow by this many slots; none while it may not grow.
    All(Option<&'a mut u32>),
    /// A renewal only. Changes follow when the worker's turn comes.
    Renewal,
}

impl Leader {
    /// Sends every agent whose connection can take a message the changes for it.
    pub(super) fn flush(&mut self, now: Moment) {
        if mutation::on(Mutation::WaitForSlowest) && self.any_session_is_slow() {
            return;
        }
        let mut free = BTreeMap::new();
        while self.replica.budget.is_left()
            && let Some(key) = self.next_recipient()
        {
            self.replica.budget.spend(1);
            let free = free
                .entry(key.cluster.clone())
                .or_insert_with(|| self.grant_rules().free_slots(&key.cluster));
            self.send_grant(&key, GrantContent::All(free.as_mut()), now);
        }
    }

    /// The worker whose message is composed next.
    fn next_recipient(&mut self) -> Option<WorkerKey> {
        let clusters = &self.clusters;
        let generation =
            |key: &WorkerKey| clusters.worker(key).map_or(0, |worker| worker.generation);
        // Free slots go to the newest generation first.
        self.outgoing.next(self.replica.budget.left(), generation)
    }

    /// Answers beats of agents whose turn has not come, so that no lease ends because others are
    /// sent long messages.
    pub(super) fn renew(&mut self, now: Moment) {
        for key in self.outgoing.renewals(self.replica.budget.left()) {
            self.replica.budget.spend(1);
            self.send_grant(&key, GrantContent::Renewal, now);
        }
    }

    /// See the mutation.
    fn any_session_is_slow(&self) -> bool {
        let sessions =
            self.sessions.workers().filter_map(|key| self.observed(key)?.session.as_ref());
        sessions.into_iter().any(|session| session.reported && !session.writable)
    }

    fn send_grant(&mut self, key: &WorkerKey, content: GrantContent<'_>, now: Moment) {
        let Some(worker) = self.observed(key) else { return };
        let Some(session) = worker.session.as_ref().filter(|it| it.reported && it.writable) else {
            return;
        };
        if !self.grant_rules().is_confirmed(worker) {
            self.renewal.delay_grants(key.clone());
            return;
        }
        let Some(terms) = self.grant_rules().terms_for(key) else { return };
        let ledger = &self.ledger;
        let Some(account) = ledger.account(key) else { return };
        let number = account.number.next();
        let (conn, nonce) = (session.conn, session.nonce);
        let (snapshot, renews) = (session.snapshot_due, session.nonce > session.echoed);
        let drain = worker.drain_order.filter(|order| session.drain_sent != Some(*order));
        if matches!(content, GrantContent::Renewal) && (snapshot || !renews) {
            return;
        }
        let fresh = snapshot && account.fresh_since == Some(worker.incarnation);
        let epoch = ledger.epoch();

        // The leases that this grant renews last as long as it says.
        let before = account.ttl;
        let renewed = if mutation::on(Mutation::ShorterTtlAtOnce) {
            terms.ttl
        } else {
            before.max(terms.ttl)
        };
        self.set_ttl_in_use(key, renewed);
        let mut pool = None;
        let mut streams = Vec::new();
        if let GrantContent::All(free) = content {
            streams = self.revocations(key, now);
            let mut budget = RouteBudget::default();
            streams.extend(self.route_updates(key, &mut budget, now));
            if let Some(free) = free {
                pool = self.pool_change(key, number, free);
                streams.extend(self.stream_grants(key, &mut budget, now));
            }
        }
        if snapshot {
            pool = pool.or(self.pool_for_snapshot(key, number));
            streams = self.streams_for_snapshot(key, now);
        }
        if !(snapshot || renews || drain.is_some() || pool.is_some() || !streams.is_empty()) {
            // Nothing is sent, so nothing is renewed.
            self.set_ttl_in_use(key, before);
            return;
        }
        if !streams.is_empty()
            && let Some(mut account) = self.ledger.account_mut(key)
        {
            account.streams_sent_in = number;
        }
        self.replica.budget.count(1 + streams.len());
        let newer_generation = self.clusters.newer_generation(key);
        let grant = Grant {
            epoch,
            number,
            nonce,
            terms,
            snapshot,
            pool,
            streams,
            drain,
            fresh,
            newer_generation,
        };
        self.replica.budget.spend(grant.streams.len());
        let message = CoordinatorMessage::Grant(grant);
        self.replica.effects.push_back(Effect::Send { conn, message });
        self.note_sent(key, number);
    }

    /// From now on a worker counts as silent after leases of this length.
    fn set_ttl_in_use(&mut self, key: &WorkerKey, ttl: Duration) {
        if let Some(mut account) = self.ledger.account_mut(key) {
            account.ttl = ttl;
        }
    }

    fn note_sent(&mut self, key: &WorkerKey, number: GrantNumber) {
        if let Some(mut account) = self.ledger.account_mut(key) {
            account.number = number;
        }
        let Some(worker) = self.worker_mut(key) else { return };
        let drain_order = worker.drain_order;
        let Some(session) = worker.session.as_mut() else { return };
        session.echoed = session.nonce;
        session.writable = false;
        session.snapshot_due = false;
        session.drain_sent = drain_order;
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
        let target = if worker.is_working() { worker.target.or(unplanned)? } else { 0 };
        let floor_wanted = cluster.spec().floor;
        let account = self.ledger.account(key)?;
        let (size, committed) = (account.size_kept(), account.committed());
        let known = account.unknown.is_none()
            && (account.is_registered(|exposure| exposure.jobs_max >= target)
                || mutation::on(Mutation::PoolUnregistered));
        let most = if known { committed.saturating_add(*free) } else { size };
        let wanted = target.min(most.max(size));
        let floor = floor_wanted.min(wanted);
        if known && wanted < target {
            let avoided = self.replica.avoided.contains(key);
            self.clusters.wait_for_slots(key, avoided);
        }
        let account = self.ledger.account(key)?;
        let same = account.pool.map_or(wanted == 0, |it| it.size == wanted && it.floor == floor);
        if same && !account.size_unsure {
            return None;
        }
        *free -= wanted.saturating_sub(committed).min(*free);
        let token = self.ledger.next_token();
        let pool = PoolGrant { token, size: wanted, floor };
        let mut account = self.ledger.account_mut(key)?;
        account.granted(number, pool);
        account.size_unsure = false;
        let worker = key.clone();
        let notice = Notice::PoolGranted { worker, size: wanted, token };
        self.replica.notice(notice);
        Some(pool)
    }

    /// The pool lease as it is, for a snapshot.
    fn pool_for_snapshot(&mut self, key: &WorkerKey, number: GrantNumber) -> Option<PoolGrant> {
        let mut account = self.ledger.account_mut(key)?;
        let pool = account.pool?;
        account.granted(number, pool);
        Some(pool)
    }

    /// Streams that are asked back, and those that are no longer renewed.
    fn revocations(&mut self, key: &WorkerKey, now: Moment) -> Vec<StreamGrant> {
        let Some(worker) = self.worker_mut(key) else { return Vec::new() };
        let mut news = std::mem::take(&mut worker.revoking);
        if let Some(later) = news.iter().nth(STREAMS_PER_GRANT_MAX).cloned() {
            worker.revoking = news.split_off(&later);
        }
        news.into_iter().filter_map(|stream| self.revocation(key, &stream, now)).collect()
    }

    fn revocation(
        &mut self,
        key: &WorkerKey,
        stream: &StreamKey,
        now: Moment,
    ) -> Option<StreamGrant> {
        let wanted = self.planned_lease(stream);
        let handover = self.handover(stream, key);
        let claim = self.ledger.claim(stream, key)?;
        let is_met = wanted.is_some_and(|wanted| wanted.is_met_by(claim));
        // Its pipeline may have broken since the stream was marked to be asked back.
        let working = self.observed(key).is_some_and(|worker| worker.is_working());
        let waits = stream.set.is_shares() && wanted.is_some_and(|it| it.on.is_none() && it.stays);
        let kept = is_met || (waits && working);
        let free_at =
            if mutation::on(Mutation::LapseFreesAtOnce) { now } else { self.ledger.free_at(key) };
        let claim = self.ledger.claim_mut(stream, key)?;
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
        claim.phase = phase;
        self.pipelines.leases_changed(stream);
        self.timers.set(at, Timer::Claim(stream.clone()));
        if first {
            let (worker, stream) = (key.clone(), stream.clone());
            let notice = Notice::StreamRevoked { worker, stream, token };
            self.replica.notice(notice);
        }
        Some(StreamGrant {
            stream: stream.clone(),
            token,
            state,
            share: self.changed_route(stream, key),
        })
    }

    /// Streams that the plan wants on this worker and that no other worker can have.
    fn stream_grants(
        &mut self,
        key: &WorkerKey,
        budget: &mut RouteBudget,
        now: Moment,
    ) -> Vec<StreamGrant> {
        let Some(worker) = self.observed(key).filter(|worker| worker.owns_streams()) else {
            return Vec::new();
        };
        let incarnation = worker.incarnation;
        let stops_worker = worker.stops_worker || mutation::on(Mutation::UnstoppableFreed);
        let mut grants = Vec::new();
        // A worker's shares are few: all of them are checked.
        let most = match self.replica.class(&key.cluster) {
            Some(_) => usize::MAX,
            None => STREAMS_PER_GRANT_MAX,
        };
        let more = worker.wants.len() > most;
        let wants: Vec<_> = worker.wants.iter().take(most).cloned().collect();
        for stream in wants {
            let wanted = self.planned_lease(&stream).filter(|wanted| wanted.is_for(key));
            let wanted = wanted.map(|wanted| (wanted.pinned || !stops_worker, wanted.load));
            let Some((timeless, load)) = wanted else {
                self.forget_want(key, &stream);
                continue;
            };
            // A share that does not fit in this message is granted by the next one.
            if !budget.is_left() {
                continue;
            }
            if !self.grant_rules().may_be_granted(key, &stream, timeless, load) {
                self.block(key, &stream);
                continue;
            }
            let token = self.ledger.grant_stream(&stream, key, incarnation, timeless, load);
            self.forget_want(key, &stream);
            self.await_acknowledgement(&stream, key);
            self.note_moved(&stream, key, now);
            let notice =
                Notice::StreamGranted { worker: key.clone(), stream: stream.clone(), token };
            self.replica.notice(notice);
            let share = load.and_then(|load| self.pipelines.share_for_grant(&stream, load));
            share.iter().for_each(|share| budget.take(share));
            let state = StreamState::Held { pinned: timeless };
            grants.push(StreamGrant { stream, token, state, share });
        }
        let account = self.ledger.account(key);
        if more && account.is_some_and(|it| it.streams.len() < STREAMS_PER_WORKER_MAX) {
            self.outgoing.mark(key.clone());
        }
        grants
    }

    /// The shares of a worker whose routes have changed, as far as they fit into one message.
    /// Shares that are asked back are included: the worker works on them until it lets go.
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
            && let Some(stream) = worker.reroutes.pop_first()
        {
            updates.extend(pipelines.route_update(stream, key, budget, ledger, now));
        }
        updates
    }

    /// The route of a share that is asked back, if the route has changed.
    fn changed_route(&mut self, stream: &StreamKey, key: &WorkerKey) -> Option<Arc<Share>> {
        self.worker_mut(key)?.reroutes.take(stream)?;
        let load = self.ledger.claim(stream, key)?.load?;
        self.pipelines.share_for_grant(stream, load)
    }

    /// A share is served once its worker's agent has acknowledged the grant.
    fn await_acknowledgement(&mut self, stream: &StreamKey, key: &WorkerKey) {
        if !stream.set.is_shares() {
            return;
        }
        let claim = self.ledger.claim(stream, key);
        let number = claim.map_or(GrantNumber(0), |claim| claim.sent_in);
        if let Some(worker) = self.worker_mut(key) {
            worker.unacknowledged.insert((number, stream.clone()));
        }
        self.pipelines.leases_changed(stream);
    }

    fn forget_want(&mut self, key: &WorkerKey, stream: &StreamKey) {
        if let Some(worker) = self.worker_mut(key) {
            worker.wants.remove(stream);
        }
    }

    /// The stream is not free: it is checked again when something has changed.
    fn block(&mut self, key: &WorkerKey, stream: &StreamKey) {
        let account = self.ledger.account(key);
        let is_full = account.is_none_or(|it| it.streams.len() >= STREAMS_PER_WORKER_MAX);
        // A share is not blocked: whether the capacity and the node's other shares allow it may
        // change with every beat.
        if is_full || stream.set.is_shares() {
            return;
        }
        if let Some(worker) = self.worker_mut(key)
            && worker.wants.remove(stream)
        {
            worker.blocked.insert(stream.clone());
            self.outgoing.block(key.clone());
        }
    }

    /// A move has ended: where moves are limited, the next may begin.
    pub(super) fn note_moved(&mut self, stream: &StreamKey, key: &WorkerKey, now: Moment) {
        if self.replica.sets.get(&stream.set).is_some_and(|set| set.limited) {
            self.plan_now(&key.cluster, now);
        }
    }

    /// Everything that the agent has, for a snapshot.
    fn streams_for_snapshot(&mut self, key: &WorkerKey, now: Moment) -> Vec<StreamGrant> {
        let claims = self.ledger.claims_for_snapshot(key);
        let mut budget = RouteBudget::default();
        let mut follow = Vec::new();
        let streams = claims.into_iter().filter_map(|(stream, claim)| {
            let state = match claim.state(now)? {
                // A lease that its agent takes anew may be timeless only if the entry says so.
                StreamState::Held { pinned } => {
                    let pinned = pinned && self.grant_rules().is_listed(key, &stream, true);
                    StreamState::Held { pinned }
                }
                state @ StreamState::Revoked { .. } => state,
            };
            let SnapshotShare { share, follows } =
                self.pipelines.share_for_snapshot(&stream, &claim, &mut budget, self.facts());
            follow.extend(follows.then(|| stream.clone()));
            Some(StreamGrant { stream, token: claim.token, state, share })
        });
        let streams = streams.collect();
        if let Some(worker) = self.worker_mut(key) {
            worker.reroutes.extend(follow);
        }
        streams
    }
}
