//! The timers of a leader. A timer is only a reminder: its handler checks the present state again,
//! so one that is set twice or too early does no harm.
//!
//! Invariant: a timer that depends on a worker's silence runs only after every message that had
//! arrived before its moment is handled.

use std::collections::BTreeSet;

use leasehold_types::{ClusterName, Moment, StreamKey, WorkerKey};

use crate::core::turn_budget::TurnBudget;
use crate::effect::{WakeReason, Wakeup};
use crate::event::ConnId;

/// A reminder to check something at a moment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::core) enum Timer {
    /// Leadership ends.
    Term,
    /// The unreported leases of a worker may have ended.
    Unreported(WorkerKey),
    /// A worker may have been silent for too long.
    Silence(WorkerKey),
    /// A worker may have been lost for so long that it counts as gone.
    GiveUp(WorkerKey),
    /// A claim's handover or time may be over.
    Claim(StreamKey),
    /// Streams are to be planned, or planned again.
    Plan(ClusterName),
    /// More pipelines are to be healed.
    Heal,
    /// The credit of a welcomed agent ends, so others may be welcomed.
    Credit,
    /// The store may be asked again whether the term stands.
    AskTerm,
    /// The agent on this connection has waited for the store for too long.
    Unserved(ConnId),
}

impl Timer {
    /// Whether it depends on a worker's silence. Such a timer runs only up to the moment before
    /// which every message has been handled.
    fn awaits_silence(&self) -> bool {
        match self {
            Self::Unreported(_) | Self::Silence(_) | Self::GiveUp(_) => true,
            Self::Claim(_) | Self::Credit => true,
            Self::Term | Self::Plan(_) | Self::Heal => false,
            Self::AskTerm | Self::Unserved(_) => false,
        }
    }

    fn reason(&self) -> WakeReason {
        match self {
            Self::Term => WakeReason::TermEnd,
            Self::Unreported(_) => WakeReason::HoldEnd,
            Self::Silence(_) | Self::GiveUp(_) => WakeReason::Silence,
            Self::Claim(_) => WakeReason::LeaseEnd,
            Self::Plan(_) | Self::Heal => WakeReason::Settle,
            Self::Credit | Self::AskTerm | Self::Unserved(_) => WakeReason::Session,
        }
    }
}

/// The timers that are set.
#[derive(Clone, Debug, Default)]
pub(in crate::core) struct Timers {
    by_moment: BTreeSet<(Moment, Timer)>,
    /// Timers that are due and wait for messages that may still be queued. They are set again when
    /// all others have run.
    early: Vec<(Moment, Timer)>,
    /// The budget of the last turn was spent before all due timers had run.
    is_cut_short: bool,
}

impl Timers {
    /// Sets a timer, beside any earlier one of the same kind.
    pub(in crate::core) fn set(&mut self, at: Moment, timer: Timer) {
        self.by_moment.insert((at, timer));
    }

    /// Removes a timer that is set for this moment.
    pub(super) fn cancel(&mut self, at: Moment, timer: Timer) {
        self.by_moment.remove(&(at, timer));
    }

    /// The next timer that is due, as far as the budget goes. Call it until it returns `None`:
    /// timers that are set meanwhile and are due are among those that it returns.
    pub(super) fn next_due(
        &mut self,
        now: Moment,
        heard: Moment,
        budget: &mut TurnBudget,
    ) -> Option<Timer> {
        self.is_cut_short = false;
        while self.by_moment.first().is_some_and(|(at, _)| *at <= now) {
            if !budget.is_left() {
                self.is_cut_short = true;
                break;
            }
            let (at, timer) = self.by_moment.pop_first()?;
            if timer.awaits_silence() && at > heard {
                self.early.push((at, timer));
                continue;
            }
            budget.spend(1);
            return Some(timer);
        }
        self.by_moment.extend(self.early.drain(..));
        None
    }

    /// Whether timers that are due wait for the next turn.
    pub(super) fn has_more(&self) -> bool {
        self.is_cut_short
    }

    /// When the first timer is due.
    pub(super) fn next_wakeup(&self) -> Option<Wakeup> {
        let (at, timer) = self.by_moment.first()?;
        Some(Wakeup { at: *at, reason: timer.reason() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(units: u32) -> TurnBudget {
        let mut budget = TurnBudget::default();
        budget.allow(units);
        budget
    }

    #[test]
    fn a_timer_of_silence_waits_until_earlier_messages_are_handled_and_delays_no_other() {
        let mut timers = Timers::default();
        timers.set(Moment(5), Timer::Credit);
        timers.set(Moment(6), Timer::Heal);
        let mut budget = budget(9);
        assert_eq!(timers.next_due(Moment(8), Moment(4), &mut budget), Some(Timer::Heal));
        assert_eq!(timers.next_due(Moment(8), Moment(4), &mut budget), None);
        assert!(!timers.has_more(), "it waits for messages and not for a turn");
        assert_eq!(timers.next_wakeup().map(|wakeup| wakeup.at), Some(Moment(5)));
        assert_eq!(timers.next_due(Moment(8), Moment(5), &mut budget), Some(Timer::Credit));
        assert_eq!(timers.next_wakeup(), None);
    }

    #[test]
    fn timers_beyond_the_budget_run_in_the_next_turn() {
        let mut timers = Timers::default();
        timers.set(Moment(5), Timer::AskTerm);
        timers.set(Moment(6), Timer::Heal);
        let mut short = budget(1);
        assert_eq!(timers.next_due(Moment(8), Moment(8), &mut short), Some(Timer::AskTerm));
        assert_eq!(timers.next_due(Moment(8), Moment(8), &mut short), None);
        assert!(timers.has_more());
        assert_eq!(timers.next_due(Moment(8), Moment(8), &mut budget(1)), Some(Timer::Heal));
        assert!(!timers.has_more());
    }
}
