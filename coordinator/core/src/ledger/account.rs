//! One worker's account: the slots that it may be using, and the streams that it may own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold_types::message::{HeldPool, Jobs, PoolGrant};
use leasehold_types::{GrantNumber, Incarnation, Load, Moment, SetName, StreamKey, Token};

use super::faults;
use crate::exposure::{AccountId, Exposure};

/// What is known of one worker.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    /// The agent that acts for it; none before the first report of this term.
    pub(crate) incarnation: Option<Incarnation>,
    /// Nothing was outstanding for it before this incarnation.
    pub(crate) fresh_since: Option<Incarnation>,
    /// When its newest report or beat came.
    pub(crate) heard: Moment,
    /// Until when its agent is known to have run, though it may not have reported: it said hello,
    /// or waited for its welcome. This renews no lease.
    pub(crate) present_until: Moment,
    /// Distinguishes the worker's successive accounts.
    pub(crate) id: AccountId,
    /// A report of its agent is being adopted.
    pub(crate) adopting: bool,
    /// The most that it may hold, as stored.
    pub(crate) exposure: Exposure,
    /// `exposure` carries this leader's epoch, so a delayed removal by a predecessor cannot end it.
    pub(crate) adopted: bool,
    /// The exposure that is being written in its place.
    pub(crate) registering: Option<Exposure>,
    /// It has another name than before, and no entry under that yet.
    pub(crate) unwritten: bool,
    /// The longest lease that it may have been granted.
    pub(crate) ttl: Duration,
    /// The newest grant's number.
    pub(crate) number: GrantNumber,
    /// The pool lease last granted or reported.
    pub(crate) pool: Option<PoolGrant>,
    /// The size of `pool` was reported as in effect, and may be more than was granted.
    pub(crate) size_unsure: bool,
    /// Sizes that were sent and not acknowledged yet.
    in_flight: Vec<(GrantNumber, u32)>,
    /// The pool size in effect, as reported.
    pub(crate) in_effect: u32,
    /// The jobs, as reported.
    pub(crate) jobs: Jobs,
    /// Slots that an earlier agent of the worker may have left in use.
    pub(crate) unaccounted: Option<UnaccountedSlots>,
    /// The streams that it has a claim on.
    pub(crate) streams: BTreeSet<StreamKey>,
    /// Of each set that it has claims on streams of: how many, and whether any is timeless.
    pub(crate) sets: BTreeMap<SetName, (usize, bool)>,
    /// The sum of the loads of all its claims.
    pub(crate) load: Load,
    /// The newest grant that named streams.
    pub(crate) streams_sent_in: GrantNumber,
    /// The newest grant that its agent has acknowledged.
    pub(crate) acknowledged: GrantNumber,
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
    pub(crate) fn new(id: AccountId, number: GrantNumber, now: Moment) -> Self {
        Self {
            incarnation: None,
            fresh_since: None,
            heard: now,
            present_until: Moment::EARLIEST,
            id,
            adopting: false,
            exposure: Exposure::default(),
            adopted: false,
            registering: None,
            unwritten: false,
            ttl: Duration::ZERO,
            number,
            pool: None,
            size_unsure: false,
            in_flight: Vec::new(),
            in_effect: 0,
            jobs: Jobs::Running(0),
            unaccounted: None,
            streams: BTreeSet::new(),
            sets: BTreeMap::new(),
            load: Load::ZERO,
            streams_sent_in: GrantNumber(0),
            acknowledged: GrantNumber(0),
        }
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

    pub(crate) fn running(&self) -> u32 {
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

    /// Takes in a beat; its agent has applied all grants up to `applied`.
    pub(crate) fn applied(&mut self, applied: GrantNumber, pool: Option<HeldPool>, jobs: Jobs) {
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
    pub(crate) fn reported(&mut self, pool: Option<HeldPool>, jobs: Jobs) {
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

    /// A claim on a stream begins.
    pub(crate) fn claims(&mut self, stream: &StreamKey, timeless: bool, load: Option<Load>) {
        self.streams.insert(stream.clone());
        self.load += load.unwrap_or_default();
        match self.sets.get_mut(&stream.set) {
            Some((claims, any_timeless)) => {
                *claims += 1;
                *any_timeless |= timeless;
            }
            None => _ = self.sets.insert(stream.set.clone(), (1, timeless)),
        }
    }

    /// A claim on a stream of a set turns out to be timeless.
    pub(crate) fn claims_timeless(&mut self, set: &SetName, timeless: bool) {
        if let Some((_, any_timeless)) = self.sets.get_mut(set) {
            *any_timeless |= timeless;
        }
    }

    /// How many claims it has.
    pub(crate) fn claim_count(&self) -> usize {
        self.sets.values().map(|(claims, _)| claims).sum()
    }

    /// Claims on streams of a set have ended.
    pub(crate) fn claims_less(&mut self, set: &SetName, ended: usize) {
        if let Some((claims, _)) = self.sets.get_mut(set) {
            *claims = claims.saturating_sub(ended);
            if *claims == 0 {
                self.sets.remove(set);
            }
        }
    }

    /// Whether the written exposure, and the one that is being written in its place, allow a new
    /// grant. An exposure that a predecessor wrote counts only once this leader has adopted it.
    pub(crate) fn is_registered(&self, allows: impl Fn(&Exposure) -> bool) -> bool {
        let all = allows(&self.exposure) && self.registering.as_ref().is_none_or(allows);
        all && (self.adopted || faults::grants_under_foreign_entry())
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
}
