//! Agents that remember a later epoch than this leader's. An agent's word deposes nobody: the core
//! asks the store of leadership, and gives a notice for each such agent if the term stands there.
//! These agents obey no lower epoch, so only a later term can serve them.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_types::message::RefusalReason;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{Epoch, Moment, WorkerKey};

use super::{Leader, Timer};
use crate::effect::{Notice, Order};

/// How far above a leader's epoch another's can be. Stores count their writes, and no store comes
/// near that; an agent that says so would use the epochs up.
const EPOCH_LEAP_MAX: u64 = 1 << 40;
/// The least time between two questions to the store.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The least time between two notices of one worker.
const NOTICE_EVERY: Duration = Duration::from_secs(60);
/// Workers that are remembered; more are refused all the same, and not named.
const AHEAD_MAX: usize = 1_024;

/// What agents have said of later terms.
#[derive(Clone, Debug, Default)]
pub(super) struct EpochAhead {
    workers: BTreeMap<WorkerKey, SeenEpoch>,
    asked_at: Option<Moment>,
}

/// One worker's agent.
#[derive(Clone, Copy, Debug)]
struct SeenEpoch {
    seen: Epoch,
    /// When it said so; none once the store was asked after that.
    unchecked_since: Option<Moment>,
    noticed_at: Option<Moment>,
}

impl Leader {
    /// Refuses an agent that remembers a later term than this one, and has the store asked.
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
            self.deposed_by = Some(seen);
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

    /// Asks the store whether this term stands, where an agent's word waits for that; once in a
    /// while.
    pub(super) fn ask_term(&mut self, now: Moment) {
        let waiting = self
            .epoch_ahead
            .workers
            .values()
            .filter(|seen_epoch| seen_epoch.unchecked_since.is_some());
        let Some(seen) = waiting.map(|seen_epoch| seen_epoch.seen).max() else { return };
        match self.epoch_ahead.asked_at {
            Some(asked) if now.since(asked) < ASK_EVERY => {
                self.timers.insert((asked + ASK_EVERY, Timer::AskTerm));
            }
            Some(_) | None => {
                self.epoch_ahead.asked_at = Some(now);
                self.order(Order::AskTerm { seen });
            }
        }
    }

    /// The term stood in the store at that moment: agents that said otherwise before it are named.
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

    /// The worker's agent knows no later term, or the worker is gone.
    pub(super) fn forget_epoch_ahead(&mut self, key: &WorkerKey) {
        self.epoch_ahead.workers.remove(key);
    }
}
