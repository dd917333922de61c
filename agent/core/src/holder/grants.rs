//! Applies grants to the held leases, and expires them.

use leasehold_types::message::{DrainOrder, Grant, PoolGrant, Release, StreamGrant, StreamState};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::share::{NodeKey, TableChange};
use leasehold_types::{Moment, StreamKey, Token};

use super::{Held, HeldShare, Holder, Pool};
use crate::effect::{Effect, Notice, SNAPSHOT_NOT_ABOVE, Target};
use crate::journal::{Journal, JournalError, Record};

/// What a grant changes besides the end of the leases: the more, the sooner it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum GrantImpact {
    Nothing,
    /// It only adds leases, none of which is a share.
    Added,
    /// It changes routes, and may add such leases.
    Routes,
    /// It changes the held leases in another way: some are taken away, or shares are added.
    Leases,
}

impl<J: Journal> Holder<J> {
    pub(super) fn grant(&mut self, grant: &Grant, now: Moment) {
        if self.epoch != Some(grant.epoch) && !mutation::on(Mutation::ObeyLowerEpoch) {
            self.protocol_violation("a grant of another epoch", now);
            return;
        }
        if !self.link.has_reported() {
            self.protocol_violation("a grant before the report", now);
            return;
        }
        self.link.answered(grant.nonce);
        if self.link.is_goodbye_sent() && !mutation::on(Mutation::TakesAfterGoodbye) {
            self.ignore_after_goodbye(grant, now);
            return;
        }
        let repeated = grant.number <= self.link.applied;
        if repeated && !mutation::on(Mutation::ObeyLowerNumber) {
            if grant.snapshot && !self.link.is_live() {
                self.protocol_violation(SNAPSHOT_NOT_ABOVE, now);
            }
            return;
        }
        let follows = self.link.is_live() && grant.number == self.link.applied.next();
        if !(grant.snapshot || follows || repeated || mutation::on(Mutation::GapUnnoticed)) {
            if !self.link.gap {
                self.link.gap = true;
                self.beat(now);
            }
            return;
        }
        if !self.tables.can_apply(&grant.tables, grant.snapshot) {
            self.protocol_violation("a change of a version of a table that was not sent", now);
            return;
        }
        match self.apply(grant, now) {
            Ok(changed) => self.applied(grant, changed, now),
            // The grant has no effect: the coordinator learns it from the next report.
            Err(_) => self.redial(Target::Next, now),
        }
    }

    /// A grant that was sent before the coordinator had the report of leaving, or for that report.
    /// The coordinator frees what it grants to an agent that leaves: nothing of it is taken.
    fn ignore_after_goodbye(&mut self, grant: &Grant, now: Moment) {
        if grant.snapshot && !self.link.is_live() {
            self.link.set_live();
            self.reset_attempts();
            self.beat(now);
        }
    }

    /// Ends the leases whose time has passed.
    pub(super) fn expire(&mut self, now: Moment) {
        if mutation::on(Mutation::KeepAfterExpiry) {
            return;
        }
        let renewed_until = self.renewed_until;
        let ended = self.streams.iter().filter(|(_, held)| held.has_ended(renewed_until, now));
        let ended: Vec<_> = ended.map(|(stream, held)| (stream.clone(), held.token)).collect();
        let pool = self.pool_end().is_some_and(|end| end <= now);
        if ended.is_empty() && !pool {
            return;
        }
        for (stream, token) in ended {
            self.notice(Notice::StreamExpired(stream.clone(), token));
            self.streams.remove(&stream);
            if self.write_or_defer(stream_ended(&stream, token)).is_ok() {
                self.released.push(Release { stream, token });
            }
        }
        if pool {
            let floor = self.pool.map_or(0, |pool| pool.floor);
            self.notice(Notice::PoolExpired(floor));
            self.pool_expired = true;
        }
        self.changed();
        self.beat(now);
        self.check_drain(now);
    }

    /// When the next lease ends, unless it is renewed.
    pub(super) fn next_end(&self) -> Option<Moment> {
        let streams = self.streams.values().filter_map(|held| held.until(self.renewed_until));
        streams.chain(self.pool_end()).min()
    }

    /// Releases a stream: records it first, then reports it.
    pub(super) fn release(&mut self, stream: &StreamKey, token: Token) -> Result<(), JournalError> {
        if !mutation::on(Mutation::ReleaseUnwritten) {
            self.write(&stream_ended(stream, token))?;
        }
        self.streams.remove(stream);
        self.notice(Notice::StreamReleased(stream.clone(), token));
        self.released.push(Release { stream: stream.clone(), token });
        Ok(())
    }

    /// When the pool expires to its floor; none if it has expired or does not expire.
    fn pool_end(&self) -> Option<Moment> {
        let falls = self.pool.is_some_and(|pool| pool.size > pool.floor) && !self.pool_expired;
        falls.then_some(self.renewed_until)
    }

    fn apply(&mut self, grant: &Grant, now: Moment) -> Result<GrantImpact, JournalError> {
        let before = self.token_max;
        let until = self.renewal(grant, now);
        let mut changed = GrantImpact::Nothing;
        if grant.fresh && !self.complete {
            self.write(&Record::Fresh)?;
            (self.jobs_known, self.complete) = (true, true);
        }
        if let Some(pool) = grant.pool {
            changed = changed.max(self.apply_pool(pool)?);
        }
        if grant.snapshot {
            self.tables.start_over();
        }
        for stream in &grant.streams {
            changed = changed.max(self.apply_stream(stream, grant.snapshot, before, until, now)?);
        }
        for table in &grant.tables {
            changed = changed.max(GrantImpact::of_routes(self.tables.apply(table)));
        }
        if grant.snapshot {
            changed = changed.max(self.revoke_unlisted(grant, until, now)?);
        }
        // Endpoints of before are of no use to a share that is granted later.
        let has_ended = grant.tables.iter().any(|table| table.change == TableChange::Ended);
        if grant.snapshot || has_ended || self.tables.is_overfull() {
            self.forget_unneeded_tables();
        }
        if until > self.renewed_until {
            // Without this record a successor would release what the worker still uses. Without the
            // deferred records it would claim what has ended.
            if !mutation::on(Mutation::RenewedBeforeOwed) {
                self.write_deferred()?;
            }
            if !mutation::on(Mutation::RenewalUnwritten) {
                self.write(&Record::Renewed { until })?;
            }
            self.effects.push_back(Effect::LeaseRenewed);
            changed = changed.max(GrantImpact::of(self.pool_expired));
            // A grant of another size has a notice of its own.
            let renewed = self.pool.filter(|_| self.pool_expired && grant.pool.is_none());
            if let Some(Pool { token, size, .. }) = renewed {
                self.notice(Notice::PoolRenewed(token, size));
            }
            (self.renewed_until, self.pool_expired) = (until, false);
        }
        Ok(changed)
    }

    /// The end of all leases after this grant: counted from when the beat that it answers was sent,
    /// however long the grant was in flight.
    fn renewal(&self, grant: &Grant, now: Moment) -> Moment {
        let sent = match mutation::on(Mutation::CountFromReceive) {
            true => Some(now),
            false if mutation::on(Mutation::CountFromNewest) => self.link.sent_last(),
            false => self.link.sent_at(grant.nonce),
        };
        sent.map_or(self.renewed_until, |sent| self.renewed_until.max(sent + grant.terms.ttl))
    }

    fn apply_pool(&mut self, pool: PoolGrant) -> Result<GrantImpact, JournalError> {
        let PoolGrant { token, size, floor } = pool;
        if self.pool.is_some_and(|held| held.token >= token) {
            return Ok(GrantImpact::Nothing);
        }
        self.write(&Record::Pool { token, size, floor })?;
        let takes = self.pool.is_some_and(|held| size < held.size || floor < held.floor);
        self.pool = Some(Pool { token, size, floor });
        self.token_max = self.token_max.max(token);
        self.notice(Notice::PoolGranted(token, size));
        Ok(if takes { GrantImpact::Leases } else { GrantImpact::Added })
    }

    fn apply_stream(
        &mut self,
        grant: &StreamGrant,
        snapshot: bool,
        token_before: Token,
        until: Moment,
        now: Moment,
    ) -> Result<GrantImpact, JournalError> {
        let StreamGrant { stream, token, state, .. } = grant;
        let is_held = self.streams.get(stream).is_some_and(|held| held.token == *token);
        match *state {
            StreamState::Held { .. } if is_held => {
                let routes_changed = self.update_routes(grant);
                if snapshot && self.cancel_revocation(stream)? {
                    return Ok(GrantImpact::Leases);
                }
                Ok(GrantImpact::of_routes(routes_changed))
            }
            StreamState::Held { pinned } => {
                // A token that is not above all earlier ones was released or has expired: the
                // coordinator lists it only because it does not know that yet.
                let stale = *token <= token_before
                    && !mutation::on(Mutation::ObeyLowerNumber)
                    && !mutation::on(Mutation::StaleTokenTaken);
                if stale || (!pinned && until <= now) {
                    // A grant in flight may list it again.
                    self.token_max = self.token_max.max(*token);
                    self.report_not_held(stream, *token);
                    return Ok(GrantImpact::Leases);
                }
                self.add_stream(grant, pinned)?;
                // Other workers send documents to a share once its grant is acknowledged.
                let is_share = grant.share.is_some();
                Ok(if is_share { GrantImpact::Leases } else { GrantImpact::Added })
            }
            StreamState::Revoked { deadline, renewed } if is_held => {
                self.update_routes(grant);
                self.revoke(stream, now + deadline, (!renewed).then_some(until))?;
                Ok(GrantImpact::Leases)
            }
            StreamState::Revoked { .. } => {
                self.report_not_held(stream, *token);
                Ok(GrantImpact::Leases)
            }
        }
    }

    /// Updates the routes of a held share; returns whether they changed.
    fn update_routes(&mut self, grant: &StreamGrant) -> bool {
        let Some(held) = self.streams.get_mut(&grant.stream) else { return false };
        let before = held.record(&grant.stream);
        let mut routes_changed = held.update_next(grant.share.as_deref());
        if let Some((binding, share)) = held.binding.as_ref().zip(grant.share.as_deref()) {
            routes_changed |= self.tables.take_routes(&binding.key, share);
        }
        let after = held.record(&grant.stream);
        if before != after {
            // Without this record a successor uses the older nodes until a coordinator sends newer
            // ones.
            self.write_if_possible(&after);
        }
        routes_changed
    }

    /// Forgets the tables of nodes that no held share leads to.
    fn forget_unneeded_tables(&mut self) {
        let bindings = self.streams.values().filter_map(|held| held.binding.as_ref());
        let after = bindings.flat_map(|binding| {
            let next = binding.share.iter().flat_map(|share| &share.next);
            let pipeline = &binding.key.pipeline;
            next.map(move |node| NodeKey { pipeline: pipeline.clone(), node: node.clone() })
        });
        let needed = after.collect();
        self.tables.keep(&needed);
    }

    /// Reports that a lease is not held, unless the record of its end is still deferred.
    fn report_not_held(&mut self, stream: &StreamKey, token: Token) {
        if !self.deferred.contains(&stream_ended(stream, token)) {
            self.released.push(Release { stream: stream.clone(), token });
        }
    }

    fn add_stream(&mut self, grant: &StreamGrant, pinned: bool) -> Result<(), JournalError> {
        let (stream, token) = (&grant.stream, grant.token);
        let mut held = Held::new(stream, token, pinned, grant.share.as_deref().map(HeldShare::of));
        let record = held.record(stream);
        if !mutation::on(Mutation::UseUnwritten) {
            self.write(&record)?;
        }
        // The stream of a worker that takes nothing is revoked at once.
        held.revoked = self.takes_nothing().then_some(Moment::EARLIEST);
        if let Some((binding, share)) = held.binding.as_ref().zip(grant.share.as_deref()) {
            self.tables.take_routes(&binding.key, share);
        }
        self.streams.insert(stream.clone(), held);
        self.token_max = self.token_max.max(token);
        self.notice(Notice::StreamGranted(stream.clone(), token));
        if self.takes_nothing() {
            self.release(stream, token)?;
        }
        Ok(())
    }

    /// Revokes a stream. With an `end`, it is no longer renewed.
    fn revoke(
        &mut self,
        stream: &StreamKey,
        deadline: Moment,
        end: Option<Moment>,
    ) -> Result<(), JournalError> {
        let Some(held) = self.streams.get_mut(stream) else { return Ok(()) };
        let token = held.token;
        if !held.shown {
            return self.release(stream, token);
        }
        let first = held.revoked.is_none();
        held.revoked.get_or_insert(deadline);
        let end = end.filter(|_| !mutation::on(Mutation::LapseUnheeded));
        let lapses = held.lapses.into_iter().chain(end).min();
        let lapsing = lapses != held.lapses;
        held.lapses = lapses;
        if first {
            self.notice(Notice::StreamRevoked(stream.clone(), token));
        }
        let written = !mutation::on(Mutation::LapseUnwritten);
        if let (true, Some(until)) = (lapsing && written, lapses) {
            let _ = self.write_or_defer(Record::Lapsing { stream: stream.clone(), until });
        }
        Ok(())
    }

    /// Cancels the revocation of a stream that a snapshot lists as held, unless the worker takes
    /// nothing. Returns whether that is a change.
    fn cancel_revocation(&mut self, stream: &StreamKey) -> Result<bool, JournalError> {
        let Some(held) = self.streams.get(stream) else { return Ok(false) };
        let (token, lapses) = (held.token, held.lapses.is_some());
        let asked = held.revoked.is_some() || lapses;
        if !asked || self.takes_nothing() || mutation::on(Mutation::KeepRevoked) {
            return Ok(false);
        }
        if lapses {
            self.write(&Record::LapseOver { stream: stream.clone() })?;
            let lapsing =
                |owed: &Record| matches!(owed, Record::Lapsing { stream: of, .. } if of == stream);
            self.deferred.retain(|owed| !lapsing(owed));
        }
        if let Some(held) = self.streams.get_mut(stream) {
            (held.revoked, held.lapses) = (None, None);
        }
        self.notice(Notice::StreamKept(stream.clone(), token));
        Ok(true)
    }

    /// Revokes the streams that a snapshot does not list.
    fn revoke_unlisted(
        &mut self,
        grant: &Grant,
        until: Moment,
        now: Moment,
    ) -> Result<GrantImpact, JournalError> {
        let listed: std::collections::BTreeSet<_> =
            grant.streams.iter().map(|lease| (&lease.stream, lease.token)).collect();
        let absent = self.streams.iter().filter(|(stream, held)| {
            !listed.contains(&(*stream, held.token)) && held.lapses.is_none()
        });
        let absent: Vec<_> = absent.map(|(stream, _)| stream.clone()).collect();
        for stream in &absent {
            self.revoke(stream, now, Some(until))?;
        }
        Ok(GrantImpact::of(!absent.is_empty()))
    }

    fn applied(&mut self, grant: &Grant, changed: GrantImpact, now: Moment) {
        let joined = grant.snapshot && !self.link.is_live();
        self.link.applied = self.link.applied.max(grant.number);
        if grant.pool.is_some() || !grant.streams.is_empty() {
            self.link.changed_at = now;
        }
        if grant.snapshot {
            self.link.set_live();
            self.reset_attempts();
        }
        self.terms = Some(grant.terms);
        let newer_before = std::mem::replace(&mut self.newer_generation, grant.newer_generation);
        if let Some(newer) = grant.newer_generation
            && newer_before != Some(newer)
        {
            let own = self.config.generation;
            self.notice(Notice::NewerGeneration { own, newer });
        }
        match grant.drain {
            Some(DrainOrder::Drain) => self.drain_by_order(now),
            Some(DrainOrder::Undrain) => self.take_drain_back(now),
            None => {}
        }
        if joined {
            self.schedule_beat(now + grant.terms.beat);
        }
        if changed > GrantImpact::Nothing || joined {
            self.changed();
        }
        match changed {
            GrantImpact::Leases => self.beat(now),
            // No other worker waits for this.
            GrantImpact::Routes => self.beat_soon(now),
            GrantImpact::Added => self.acknowledge_added(now),
            GrantImpact::Nothing => {}
        }
        self.report_released(now);
        self.check_drain(now);
    }
}

impl GrantImpact {
    fn of(leases: bool) -> Self {
        if leases { Self::Leases } else { Self::Nothing }
    }

    fn of_routes(changed: bool) -> Self {
        if changed { Self::Routes } else { Self::Nothing }
    }
}

fn stream_ended(stream: &StreamKey, token: Token) -> Record {
    Record::StreamEnded { stream: stream.clone(), token }
}
