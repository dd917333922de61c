//! When the streams of one cluster are planned. Joins and drains that follow each other closely are
//! planned together, and nothing moves for balance while a worker is disconnected.
//!
//! Invariant: a plan that is due stays due until a plan begins, however often it is put off.

use std::time::Duration;

use leasehold_types::Moment;

/// Continuous joins and drains delay a plan for at most this many settle times.
const SETTLE_TIMES_MAX: u32 = 5;
/// Moves for balance wait for missing workers at most this many lease times.
const BALANCE_PAUSE_TTLS: u32 = 2;

/// When a cluster's streams are planned.
#[derive(Clone, Debug, Default)]
pub(super) struct PlanSchedule {
    due: Option<PlanDue>,
    /// The next plan without a change: a cooldown or a wait for a missing worker ends then.
    again_at: Option<Moment>,
    /// Since when nothing moves for balance, because a worker is missing.
    balance_paused_since: Option<Moment>,
    /// The cluster waits in the queue of plans.
    is_queued: bool,
}

/// A plan that is due.
#[derive(Clone, Copy, Debug)]
struct PlanDue {
    at: Moment,
    /// When it was first due, or settling began.
    first: Moment,
}

/// What a timer to plan has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlanTimer {
    /// The streams are planned, even if nothing has changed.
    PlanNow,
    /// A plan is due.
    Due,
    /// Later joins have put the plan off until then.
    PutOff(Moment),
    /// The plan has begun already.
    NotNeeded,
}

impl PlanSchedule {
    /// The streams are due for a plan now.
    pub(super) fn plan_now(&mut self, now: Moment) {
        let due = self.due.get_or_insert(PlanDue { at: now, first: now });
        due.at = due.at.min(now);
    }

    /// The streams are due for a plan once nothing has changed for as long as `settle`. Returns
    /// when that is.
    pub(super) fn plan_soon(&mut self, settle: Duration, now: Moment) -> Moment {
        let at = match self.due {
            None => now + settle,
            Some(due) if due.at <= now => due.at,
            Some(due) => (now + settle).min(due.first + settle * SETTLE_TIMES_MAX).max(due.at),
        };
        let first = self.due.map_or(now, |due| due.first);
        self.due = Some(PlanDue { at, first });
        at
    }

    /// The streams are planned at `at`, unless they are planned before that. Other changes are
    /// planned without waiting for it.
    pub(super) fn plan_again_at(&mut self, at: Moment) {
        self.again_at = self.again_at.into_iter().chain([at]).min();
    }

    /// A timer to plan has run.
    pub(super) fn timer_due(&self, now: Moment) -> PlanTimer {
        if self.again_at.is_some_and(|at| at <= now) {
            return PlanTimer::PlanNow;
        }
        match self.due {
            Some(due) if due.at > now => PlanTimer::PutOff(due.at),
            Some(_) => PlanTimer::Due,
            None => PlanTimer::NotNeeded,
        }
    }

    /// Whether the cluster is to be put into the queue of plans now.
    pub(super) fn begin_waiting(&mut self, now: Moment) -> bool {
        let begins = !self.is_queued && self.due.is_some_and(|due| due.at <= now);
        self.is_queued |= begins;
        begins
    }

    /// A plan begins, and covers all changes so far.
    pub(super) fn begin_plan(&mut self) {
        (self.due, self.again_at, self.is_queued) = (None, None, false);
    }

    /// Until when a plan made now moves nothing for balance, if at all. A worker that `is_missing`
    /// is disconnected and may turn out lost. Then its streams need workers, and earlier moves to a
    /// worker that has joined were in vain. So moves wait while its leases last, and for workers
    /// that disconnect meanwhile as long again.
    pub(super) fn pause_balance(
        &mut self,
        is_missing: bool,
        ttl: Duration,
        now: Moment,
    ) -> Option<Moment> {
        if !is_missing {
            self.balance_paused_since = None;
            return None;
        }
        let since = *self.balance_paused_since.get_or_insert(now);
        let until = since + ttl * BALANCE_PAUSE_TTLS;
        (now < until).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLE: Duration = Duration::from_secs(1);

    fn at(ms: u64) -> Moment {
        Moment(ms * 1_000_000)
    }

    #[test]
    fn continuous_joins_delay_a_plan_for_a_few_settle_times_only() {
        let mut schedule = PlanSchedule::default();
        let due = (0..20).map(|join| schedule.plan_soon(SETTLE, at(join * 500)));
        assert_eq!(due.max(), Some(at(5_000)), "five settle times after the first join");
        assert!(!schedule.begin_waiting(at(4_999)));
        assert!(schedule.begin_waiting(at(5_000)));
        assert!(!schedule.begin_waiting(at(5_000)), "it waits already");
    }

    #[test]
    fn a_plan_that_begins_covers_what_was_due_and_a_plan_without_a_change_comes_again() {
        let mut schedule = PlanSchedule::default();
        schedule.plan_now(at(10));
        schedule.begin_plan();
        assert_eq!(schedule.timer_due(at(20)), PlanTimer::NotNeeded);
        schedule.plan_again_at(at(90));
        schedule.plan_again_at(at(70));
        assert_eq!(schedule.timer_due(at(69)), PlanTimer::NotNeeded);
        assert_eq!(schedule.timer_due(at(70)), PlanTimer::PlanNow);
    }

    #[test]
    fn balance_pauses_for_two_lease_times_however_many_workers_disconnect() {
        let ttl = Duration::from_secs(3);
        let mut schedule = PlanSchedule::default();
        assert_eq!(schedule.pause_balance(true, ttl, at(1_000)), Some(at(7_000)));
        assert_eq!(schedule.pause_balance(true, ttl, at(6_999)), Some(at(7_000)));
        assert_eq!(schedule.pause_balance(true, ttl, at(7_000)), None);
        assert_eq!(schedule.pause_balance(false, ttl, at(8_000)), None);
        assert_eq!(schedule.pause_balance(true, ttl, at(9_000)), Some(at(15_000)), "a new one");
    }
}
