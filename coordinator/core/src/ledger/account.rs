//! One worker's account: the slots that it may be using, and the streams that it may own.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_types::message::{Beat, HeldPool, Jobs, PoolGrant, Report};
use leasehold_types::{AgentId, GrantNumber, Incarnation, Load, Moment, SetName, Token};

use super::{StoredExposure, faults};
use crate::exposure::AccountId;

/// What is known of one worker.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    /// The agent that acts for it; none before the first report of this term.
    pub(super) incarnation: Option<Incarnation>,
    /// Nothing was outstanding for it before this incarnation.
    pub(super) fresh_since: Option<Incarnation>,
    /// When its newest report or beat came.
    pub(super) heard: Moment,
    /// Until when its agent is known to have run, though it may not have reported: it said hello,
    /// or waited for its welcome. This renews no lease.
    present_until: Moment,
    /// Distinguishes the worker's successive accounts.
    id: AccountId,
    /// A report of its agent is being adopted.
    pub(super) adopting: bool,
    entry: StoredExposure,
    /// The longest lease that it may have been granted.
    pub(super) ttl: Duration,
    /// The newest grant's number.
    pub(super) number: GrantNumber,
    /// The pool lease last granted or reported.
    pool: Option<PoolGrant>,
    /// The size of `pool` was reported as in effect, and may be more than was granted.
    pub(super) size_unsure: bool,
    /// Sizes that were sent and not acknowledged yet.
    in_flight: Vec<(GrantNumber, u32)>,
    /// The pool size in effect, as reported.
    in_effect: u32,
    /// The jobs, as reported.
    pub(super) jobs: Jobs,
    /// Slots that an earlier agent of the worker may have left in use.
    pub(super) unaccounted: Option<UnaccountedSlots>,
    /// The streams that it has a claim on: their slots among all claims, in the order of the
    /// streams' names. See [`super::Ledger::streams_of`].
    pub(super) streams: Vec<u32>,
    /// The place behind the stream that was entered last, which the next one often gets.
    entered: usize,
    /// Of each set that it has claims on streams of: how many, and whether any is timeless.
    sets: BTreeMap<SetName, (usize, bool)>,
    /// The sum of the loads of all its claims.
    pub(super) load: Load,
    /// The newest grant that named streams.
    pub(super) streams_sent_in: GrantNumber,
    /// The newest grant that its agent has acknowledged.
    acknowledged: GrantNumber,
}

/// Slots that an agent does not know of, since it lost its memory or has not reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnaccountedSlots {
    /// At most this many.
    pub(crate) slots: u32,
    /// A pool lease of the earlier agent may last until then.
    pub(crate) until: Moment,
    /// They are from before this term: the most that the worker's entry allows.
    pub(crate) unreported: bool,
}

impl Account {
    /// An account whose next grant has the number after `number`.
    pub(super) fn new(id: AccountId, number: GrantNumber, now: Moment) -> Self {
        Self {
            incarnation: None,
            fresh_since: None,
            heard: now,
            present_until: Moment::EARLIEST,
            id,
            adopting: false,
            entry: StoredExposure::default(),
            ttl: Duration::ZERO,
            number,
            pool: None,
            size_unsure: false,
            in_flight: Vec::new(),
            in_effect: 0,
            jobs: Jobs::Running(0),
            unaccounted: None,
            streams: Vec::new(),
            entered: 0,
            sets: BTreeMap::new(),
            load: Load::ZERO,
            streams_sent_in: GrantNumber(0),
            acknowledged: GrantNumber(0),
        }
    }

    /// The agent that acts for it; none before the first report of this term.
    pub(crate) fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation
    }

    /// Whether nothing was outstanding for it before this incarnation.
    pub(crate) fn is_fresh(&self, incarnation: Incarnation) -> bool {
        self.fresh_since == Some(incarnation)
    }

    /// When its newest report or beat came.
    pub(crate) fn heard(&self) -> Moment {
        self.heard
    }

    /// Until when its agent is known to have run, though it may not have reported.
    pub(crate) fn present_until(&self) -> Moment {
        self.present_until
    }

    /// Distinguishes the worker's successive accounts.
    pub(crate) fn id(&self) -> AccountId {
        self.id
    }

    /// Whether a report of its agent is being adopted.
    pub(crate) fn is_adopting(&self) -> bool {
        self.adopting
    }

    /// Its entry in the store.
    pub(crate) fn entry(&self) -> &StoredExposure {
        &self.entry
    }

    /// Its entry in the store, to be changed.
    pub(crate) fn entry_mut(&mut self) -> &mut StoredExposure {
        &mut self.entry
    }

    /// The longest lease that it may have been granted.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The newest grant's number.
    pub(crate) fn number(&self) -> GrantNumber {
        self.number
    }

    /// The pool lease last granted or reported.
    pub(crate) fn pool(&self) -> Option<PoolGrant> {
        self.pool
    }

    /// Whether the size of its pool was reported as in effect, and may be more than was granted.
    pub(crate) fn is_size_unsure(&self) -> bool {
        self.size_unsure
    }

    /// The pool size in effect, as reported.
    pub(crate) fn in_effect(&self) -> u32 {
        self.in_effect
    }

    /// The jobs, as reported.
    pub(crate) fn jobs(&self) -> Jobs {
        self.jobs
    }

    /// Slots that an earlier agent of the worker may have left in use.
    pub(crate) fn unaccounted(&self) -> Option<UnaccountedSlots> {
        self.unaccounted
    }

    /// How many streams it has a claim on.
    pub(crate) fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// The sets that it has claims on streams of, and whether any of these is timeless.
    pub(crate) fn sets(&self) -> impl Iterator<Item = (&SetName, bool)> {
        self.sets.iter().map(|(set, (_, timeless))| (set, *timeless))
    }

    /// The sum of the loads of all its claims.
    pub(crate) fn load(&self) -> Load {
        self.load
    }

    /// Whether its agent has acknowledged this grant.
    pub(crate) fn has_acknowledged(&self, number: GrantNumber) -> bool {
        self.acknowledged >= number
    }

    /// Whether its agent has acknowledged every grant that named streams.
    pub(crate) fn has_acknowledged_streams(&self) -> bool {
        self.has_acknowledged(self.streams_sent_in)
    }

    /// Upper bound of the jobs that the worker runs.
    pub(crate) fn committed(&self) -> u32 {
        self.known().max(self.unaccounted.map_or(0, |unaccounted| unaccounted.slots))
    }

    /// The most jobs that it may be running under what was reported and granted in this term.
    fn known(&self) -> u32 {
        let in_flight = self.in_flight.iter().map(|sent| sent.1).max().unwrap_or(0);
        if faults::frees_on_send() {
            self.size()
        } else {
            self.in_effect.max(in_flight).max(self.running())
        }
    }

    /// The slots of [`Self::committed`] that no report to this leader confirms.
    pub(crate) fn unreported_slots(&self) -> u32 {
        match self.unaccounted {
            Some(UnaccountedSlots { unreported: true, .. }) => self.committed() - self.known(),
            Some(_) | None => 0,
        }
    }

    /// The pool size last granted.
    pub(crate) fn size(&self) -> u32 {
        self.pool.map_or(0, |pool| pool.size)
    }

    /// The pool size that it may keep without a free slot: the size last granted; if that is
    /// unsure, at most what the worker may be using. A reported size may have fallen since, and
    /// another worker may have its slots.
    pub(crate) fn size_kept(&self) -> u32 {
        if self.size_unsure && !faults::keeps_unsure_size() {
            self.size().min(self.committed())
        } else {
            self.size()
        }
    }

    fn running(&self) -> u32 {
        match self.jobs {
            Jobs::Unknown => 0,
            Jobs::Running(running) => running,
        }
    }

    /// Whether it may hold anything, as far as this leader has heard.
    pub(crate) fn holds_any(&self) -> bool {
        self.committed() > 0 || self.size() > 0 || !self.streams.is_empty()
    }

    /// Whether a share of this load fits beside all that the worker may hold.
    pub(crate) fn has_room(&self, load: Load, capacity: Load) -> bool {
        self.load + load <= capacity || faults::ignores_capacity()
    }

    /// Records a pool lease that is sent in the grant with this number.
    pub(crate) fn granted(&mut self, number: GrantNumber, pool: PoolGrant) {
        self.in_flight.push((number, pool.size));
        self.pool = Some(pool);
    }

    /// Records a new pool lease. Its size is the granted one, so it is unsure no longer.
    pub(crate) fn granted_anew(&mut self, number: GrantNumber, pool: PoolGrant) {
        self.granted(number, pool);
        self.size_unsure = false;
    }

    /// A grant with this number is sent; `names_streams` if it names any.
    pub(crate) fn sent(&mut self, number: GrantNumber, names_streams: bool) {
        self.number = number;
        if names_streams {
            self.streams_sent_in = number;
        }
    }

    /// From now on it counts as silent after leases of this length.
    pub(crate) fn set_ttl(&mut self, ttl: Duration) {
        self.ttl = ttl;
    }

    /// Its agent has run until this moment, though it may not have reported: it said hello, or
    /// waited for its welcome. This renews no lease.
    pub(crate) fn record_present(&mut self, at: Moment) {
        self.present_until = self.present_until.max(at);
    }

    /// The adoption of its agent's report has ended.
    pub(crate) fn end_adoption(&mut self) {
        self.adopting = false;
    }

    /// Takes in a beat that has just come.
    pub(crate) fn record_beat(&mut self, beat: &Beat, now: Moment) {
        self.heard = self.heard.max(now);
        let is_fresh = self.fresh_since == self.incarnation && beat.jobs == Jobs::Unknown;
        let jobs = if is_fresh { Jobs::Running(0) } else { beat.jobs };
        self.applied(beat.applied, beat.pool, jobs);
        self.settle_unknown(now);
    }

    /// Takes in the whole report of an agent, which has this incarnation and, if named, identity.
    pub(crate) fn adopt_report(
        &mut self,
        incarnation: Incarnation,
        agent: Option<AgentId>,
        report: &Report,
    ) {
        self.end_adoption();
        self.incarnation = Some(incarnation);
        if self.entry.exposure().is_fresh_for(incarnation, agent) {
            self.fresh_since = Some(incarnation);
        }
        self.reported(report.pool, report.jobs);
        // A worker without anything outstanding runs no job, since none begins without a lease.
        if self.is_fresh(incarnation) && self.jobs == Jobs::Unknown {
            self.jobs = Jobs::Running(0);
        }
    }

    /// An earlier agent may have left this many slots in use until then.
    pub(crate) fn leave_unaccounted(&mut self, slots: u32, until: Moment, now: Moment) {
        let unreported = self.unaccounted.is_some_and(|unaccounted| unaccounted.unreported);
        let unaccounted = UnaccountedSlots { slots, until, unreported };
        self.unaccounted = (slots > 0).then_some(unaccounted);
        self.settle_unknown(now);
    }

    /// Takes in a beat; its agent has applied all grants up to `applied`.
    fn applied(&mut self, applied: GrantNumber, pool: Option<HeldPool>, jobs: Jobs) {
        if faults::beat_frees_later_grants() {
            self.in_flight.clear();
        } else {
            self.in_flight.retain(|sent| sent.0 > applied);
        }
        self.acknowledged = self.acknowledged.max(applied);
        self.in_effect = pool.map_or(0, |pool| pool.size);
        self.jobs = jobs;
    }

    /// Takes in a report. It covers everything, because nothing sent on an older link can still
    /// arrive.
    fn reported(&mut self, pool: Option<HeldPool>, jobs: Jobs) {
        self.in_flight.clear();
        self.in_effect = pool.map_or(0, |pool| pool.size);
        self.jobs = jobs;
        // A draining holder reports size 0 with its token; the next grant has a new token anyway.
        let keep = self.pool.filter(|mine| pool.is_some_and(|held| held.token == mine.token));
        let is_whole = pool.is_some_and(|held| held.granted == held.size);
        let adopted = |held: HeldPool| PoolGrant {
            token: held.token,
            size: held.size,
            floor: if is_whole { held.floor } else { 0 },
        };
        // The size stays unsure until the pool is granted again, however often it is reported.
        self.size_unsure = match keep {
            Some(_) => self.size_unsure,
            None => pool.is_some() && !is_whole,
        };
        self.pool = keep.or(pool.map(adopted));
    }

    /// The worker is silent: its slots stay committed.
    pub(crate) fn silent(&mut self) {
        if faults::frees_silent_slots() {
            self.in_flight.clear();
            (self.in_effect, self.jobs) = (0, Jobs::Running(0));
        }
    }

    /// Drops the unaccounted slots once they are known or have ended.
    pub(crate) fn settle_unknown(&mut self, now: Moment) {
        let jobs_reported = self.jobs != Jobs::Unknown;
        let lasts = |until| until > now && !faults::forgets_unknown_jobs();
        self.unaccounted =
            self.unaccounted.filter(|unaccounted| !jobs_reported || lasts(unaccounted.until));
    }

    /// A claim on a stream of this set begins.
    pub(super) fn claims(&mut self, set: &SetName, timeless: bool, load: Option<Load>) {
        self.load += load.unwrap_or_default();
        match self.sets.get_mut(set) {
            Some((claims, any_timeless)) => {
                *claims += 1;
                *any_timeless |= timeless;
            }
            None => _ = self.sets.insert(set.clone(), (1, timeless)),
        }
    }

    /// It has a claim on the stream in this slot. `compare` compares the stream in another slot
    /// with it.
    pub(super) fn enter_stream(&mut self, slot: u32, compare: impl Fn(u32) -> Ordering) {
        let (before, after) = self.streams.split_at(self.entered.min(self.streams.len()));
        let is_between = before.last().is_none_or(|other| compare(*other).is_lt())
            && after.first().is_none_or(|other| compare(*other).is_gt());
        let place = if is_between {
            Err(before.len())
        } else {
            self.streams.binary_search_by(|other| compare(*other))
        };
        if let Err(place) = place {
            self.streams.insert(place, slot);
            self.entered = place + 1;
        }
    }

    /// It has no claim on a stream any longer. `compare` compares the stream in a slot with it.
    pub(super) fn remove_stream(&mut self, compare: impl Fn(u32) -> Ordering) {
        if let Ok(place) = self.streams.binary_search_by(|other| compare(*other)) {
            self.streams.remove(place);
        }
    }

    /// A claim on a stream of a set turns out to be timeless.
    pub(super) fn claims_timeless(&mut self, set: &SetName, timeless: bool) {
        if let Some((_, any_timeless)) = self.sets.get_mut(set) {
            *any_timeless |= timeless;
        }
    }

    /// How many claims it has.
    pub(crate) fn claim_count(&self) -> usize {
        self.sets.values().map(|(claims, _)| claims).sum()
    }

    /// Claims on streams of a set have ended.
    pub(super) fn claims_less(&mut self, set: &SetName, ended: usize) {
        if let Some((claims, _)) = self.sets.get_mut(set) {
            *claims = claims.saturating_sub(ended);
            if *claims == 0 {
                self.sets.remove(set);
            }
        }
    }

    /// The highest token that the holder is known to have had.
    pub(crate) fn pool_token(&self) -> Option<Token> {
        self.pool.map(|pool| pool.token)
    }
}

#[cfg(test)]
mod tests {
    use leasehold_types::Epoch;

    use super::*;

    #[test]
    fn a_size_that_was_only_reported_is_kept_only_while_it_is_in_effect() {
        let mut account = Account::new(AccountId(1), GrantNumber(0), Moment::EARLIEST);
        let token = Token { epoch: Epoch(1), seq: 7 };
        let held = |size| Some(HeldPool { token, size, granted: 0, floor: 0 });
        // A worker that counts its jobs itself may keep a size above the granted one.
        account.reported(held(3), Jobs::Running(3));
        assert_eq!(account.size_kept(), 3);
        account.applied(GrantNumber(0), held(2), Jobs::Running(1));
        assert_eq!((account.size(), account.size_kept()), (3, 2), "the third slot is free");
        account.granted(GrantNumber(1), PoolGrant { token, size: 4, floor: 0 });
        account.size_unsure = false;
        account.applied(GrantNumber(1), held(0), Jobs::Running(0));
        assert_eq!(account.size_kept(), 4, "a grant is a claim");
    }

    #[test]
    fn streams_are_in_order_however_they_come_and_go() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..200 {
            let mut account = Account::new(AccountId(1), GrantNumber(0), Moment::EARLIEST);
            // The name of the stream in each slot.
            let mut names: Vec<u32> = (0..40).collect();
            rng.shuffle(&mut names);
            let mut entered = BTreeMap::new();
            for _ in 0..100 {
                let slot = rng.u32(0..40);
                let name = names[slot as usize];
                let compare = |other: u32| names[other as usize].cmp(&name);
                if rng.u8(0..3) > 0 {
                    account.enter_stream(slot, compare);
                    entered.insert(name, slot);
                } else {
                    account.remove_stream(compare);
                    entered.remove(&name);
                }
                let slots: Vec<u32> = entered.values().copied().collect();
                assert_eq!(account.streams, slots);
            }
        }
    }
}
