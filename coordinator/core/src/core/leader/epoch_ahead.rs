//! Agents that remember a later epoch than this leader's, or another term of the same number. They
//! obey no lower epoch, so only a later term can serve them.
//!
//! A hello alone never deposes a leader: the core asks the store of leadership, and gives a notice
//! for each such agent if the term stands there. Another term of the same number shows that the
//! store was put back from a copy. The term is then given up for a number far above it, but rarely:
//! an agent could otherwise stop all others.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_types::message::RefusalReason;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{Epoch, Moment, WorkerKey};

use super::{Leader, Timer};
use crate::effect::{Notice, Order};

/// The most by which an agent's epoch may exceed the leader's. Stores count their writes, and no
/// store counts this far; accepting such an epoch would use up the range of epochs.
const EPOCH_LEAP_MAX: u64 = 1 << 40;
/// The least time between two queries to the store.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The least time between two notices of one worker.
const NOTICE_EVERY: Duration = Duration::from_secs(60);
/// How far above a repeated number the next term's is, at least: above all numbers that were given
/// out since the copy, so that they are not repeated as well. On Kubernetes numbers follow the
/// revision of the store, which passes this one within days.
const REPEATED_LEAP: u64 = 1 << 20;
/// The least time between two terms that this replica gives up because of their number.
const STEP_DOWN_EVERY: Duration = Duration::from_secs(60);
/// The most workers that are remembered; agents of further ones are refused without a notice.
const AHEAD_MAX: usize = 1_024;

/// The later terms that agents remember.
#[derive(Clone, Debug, Default)]
pub(super) struct EpochAhead {
    workers: BTreeMap<WorkerKey, SeenEpoch>,
    asked_at: Option<Moment>,
}

/// One worker's agent.
#[derive(Clone, Copy, Debug)]
struct SeenEpoch {
    seen: Epoch,
    /// When its agent said so; none once the store was asked after that.
    unchecked_since: Option<Moment>,
    noticed_at: Option<Moment>,
}

impl Leader {
    /// Refuses an agent that remembers a later term, and asks the store.
    pub(super) fn refuse_epoch_ahead(
        &mut self,
        key: &WorkerKey,
        seen: Epoch,
        now: Moment,
    ) -> (RefusalReason, String) {
        let epoch = self.ledger.epoch();
        if seen.0.saturating_sub(epoch.0) > EPOCH_LEAP_MAX {
            let message = format!("{key} remembers an epoch that no coordinator can have had");
            return (RefusalReason::Invalid, message);
        }
        if mutation::on(Mutation::HelloDeposes) {
            self.term_wanted_above = Some(seen);
            return (RefusalReason::NotLeader(None), "a later leader is known".into());
        }
        let known = self.epoch_ahead.workers.len();
        let mut seen_epoch = self.epoch_ahead.workers.get(key).copied();
        if seen_epoch.is_none() && known < AHEAD_MAX {
            seen_epoch = Some(SeenEpoch { seen, unchecked_since: None, noticed_at: None });
        }
        if let Some(seen_epoch) = seen_epoch {
            let seen_epoch = SeenEpoch {
                seen: seen_epoch.seen.max(seen),
                unchecked_since: Some(now),
                ..seen_epoch
            };
            self.epoch_ahead.workers.insert(key.clone(), seen_epoch);
        }
        self.ask_term(now);
        let message = format!(
            "{key} remembers epoch {seen}, this leader has {epoch}: an agent obeys no lower epoch, \
             so a later term must serve it"
        );
        (RefusalReason::EpochAhead, message)
    }

    /// Refuses an agent that has obeyed another leader of this number, and gives the term up for
    /// one with a number far above.
    pub(super) fn refuse_epoch_repeated(
        &mut self,
        key: &WorkerKey,
        now: Moment,
    ) -> (RefusalReason, String) {
        let epoch = self.ledger.epoch();
        let last = self.replica.stepped_down_at;
        if last.is_none_or(|last| now.since(last) >= STEP_DOWN_EVERY) {
            self.replica.stepped_down_at = Some(now);
            self.term_wanted_above = Some(self.above_repeated(epoch));
            self.replica.notice(Notice::EpochRepeated { worker: key.clone(), epoch });
        }
        let message = format!(
            "{key} has obeyed another leader of epoch {epoch}: the store of leadership was put \
             back from a copy, so only a later term can serve it"
        );
        (RefusalReason::EpochAhead, message)
    }

    /// The next term's number is above this. If the same copy is put back again, another term of
    /// this number chooses again: each adds bits of its identity, so that the two numbers differ.
    fn above_repeated(&self, epoch: Epoch) -> Epoch {
        let spread =
            if mutation::on(Mutation::RaisedAlike) { 0 } else { self.term.0 % REPEATED_LEAP };
        Epoch(epoch.0.saturating_add(REPEATED_LEAP + spread))
    }

    /// Asks the store whether this term stands, if an agent has remembered a later one since; at
    /// most once per `ASK_EVERY`.
    pub(super) fn ask_term(&mut self, now: Moment) {
        let waiting = self
            .epoch_ahead
            .workers
            .values()
            .filter(|seen_epoch| seen_epoch.unchecked_since.is_some());
        let Some(seen) = waiting.map(|seen_epoch| seen_epoch.seen).max() else { return };
        match self.epoch_ahead.asked_at {
            Some(asked) if now.since(asked) < ASK_EVERY => {
                self.timers.set(asked + ASK_EVERY, Timer::AskTerm);
            }
            Some(_) | None => {
                self.epoch_ahead.asked_at = Some(now);
                self.order(Order::AskTerm { seen });
            }
        }
    }

    /// The term stood in the store at that moment: gives a notice for each agent that remembered a
    /// later one before it.
    pub(in crate::core) fn term_stands(&mut self, epoch: Epoch, asked_at: Moment) {
        if self.ledger.epoch() != epoch {
            return;
        }
        for (key, seen_epoch) in &mut self.epoch_ahead.workers {
            if seen_epoch.unchecked_since.is_none_or(|since| since > asked_at) {
                continue;
            }
            seen_epoch.unchecked_since = None;
            if seen_epoch
                .noticed_at
                .is_none_or(|noticed_at| asked_at.since(noticed_at) >= NOTICE_EVERY)
            {
                seen_epoch.noticed_at = Some(asked_at);
                let notice = Notice::EpochAhead { worker: key.clone(), seen: seen_epoch.seen };
                self.replica.notice(notice);
            }
        }
    }

    /// The worker's agent remembers no later term, or the worker is gone.
    pub(super) fn forget_epoch_ahead(&mut self, key: &WorkerKey) {
        self.epoch_ahead.workers.remove(key);
    }
}
