//! The changes of the last hour, for people who ask what happened. Their number is limited.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_coordinator_core::effect::Notice;
use leasehold_types::Moment;
use leasehold_types::limits::HISTORY_RETENTION;
use tokio::sync::broadcast;

use crate::clock::Timestamp;
use crate::order::WorkerOrder;

/// The most changes that are kept, about 15 MB; beyond it the oldest is dropped.
const HISTORY_MAX: usize = 65_536;

/// A change that watchers get.
#[derive(Clone, Debug)]
pub enum FleetChange {
    /// A notice of the core.
    Notice(Notice),
    /// Somebody gave an order.
    Ordered(WorkerOrder),
    /// The problems of the manifests have changed.
    Manifests {
        /// How many problems there are now.
        problems: usize,
    },
}

/// A change that has happened.
#[derive(Debug)]
pub struct RecordedChange {
    /// When, by the monotonic clock.
    moment: Moment,
    /// When, for people.
    pub at: Timestamp,
    /// What changed.
    pub change: FleetChange,
}

/// The changes that are kept, and the channel to the watchers. Between the replay and the live
/// changes a new watcher misses none and gets none twice.
#[derive(Debug)]
pub(crate) struct History {
    watchers: broadcast::WeakSender<Arc<RecordedChange>>,
    kept: Mutex<HistoryBuffer>,
}

#[derive(Debug, Default)]
struct HistoryBuffer {
    changes: VecDeque<Arc<RecordedChange>>,
    /// How many were dropped because of the limit.
    dropped: u64,
    /// When the newest dropped change happened.
    dropped_to: Moment,
}

/// What a new watcher gets first.
#[derive(Debug)]
pub struct Replay {
    /// The number of requested changes that are no longer kept.
    pub missing: u64,
    /// Oldest first.
    pub changes: Vec<Arc<RecordedChange>>,
    /// Every change from now on.
    pub live: broadcast::Receiver<Arc<RecordedChange>>,
}

impl RecordedChange {
    /// A change that happens now; `moment` says so, too.
    #[must_use]
    pub fn new(change: FleetChange, moment: Moment) -> Self {
        Self { moment, at: Timestamp::now(), change }
    }
}

impl History {
    pub(crate) fn new(watchers: broadcast::WeakSender<Arc<RecordedChange>>) -> Self {
        Self { watchers, kept: Mutex::default() }
    }

    /// Keeps a change, and sends it to the watchers.
    pub(crate) fn note(
        &self,
        change: FleetChange,
        watchers: &broadcast::Sender<Arc<RecordedChange>>,
        moment: Moment,
    ) {
        let recorded = Arc::new(RecordedChange::new(change, moment));
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.add(Arc::clone(&recorded), moment);
        // There may be no watcher.
        let _ = watchers.send(recorded);
    }

    /// The changes within `span` before `now`, and all later ones; `None` if the driver has ended.
    pub(crate) fn watch(&self, span: Duration, now: Moment) -> Option<Replay> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let live = self.watchers.upgrade()?.subscribe();
        let span = span.min(HISTORY_RETENTION);
        let within = |moment: Moment| now.since(moment) < span;
        let newest = kept.changes.iter().rev().take_while(|recorded| within(recorded.moment));
        let mut changes: Vec<_> = newest.cloned().collect();
        changes.reverse();
        let missing = if kept.dropped > 0 && within(kept.dropped_to) { kept.dropped } else { 0 };
        Some(Replay { missing, changes, live })
    }
}

impl HistoryBuffer {
    fn add(&mut self, recorded: Arc<RecordedChange>, now: Moment) {
        self.changes.push_back(recorded);
        while self
            .changes
            .front()
            .is_some_and(|recorded| now.since(recorded.moment) >= HISTORY_RETENTION)
        {
            self.changes.pop_front();
        }
        if now.since(self.dropped_to) >= HISTORY_RETENTION {
            self.dropped = 0;
        }
        while self.changes.len() > HISTORY_MAX {
            let Some(oldest) = self.changes.pop_front() else { break };
            (self.dropped, self.dropped_to) = (self.dropped + 1, oldest.moment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_hour_up_to_a_limit_and_counts_dropped_changes() {
        let (sender, _) = broadcast::channel(4);
        let history = History::new(sender.downgrade());
        let at = |secs: u64| Moment(0) + Duration::from_secs(10_000 + secs);
        let note =
            |problems, secs| history.note(FleetChange::Manifests { problems }, &sender, at(secs));
        let replayed = |span, secs| {
            let replay = history.watch(Duration::from_secs(span), at(secs)).expect("a driver");
            let problems = replay.changes.iter().map(|recorded| match recorded.change {
                FleetChange::Manifests { problems } => problems,
                FleetChange::Notice(_) | FleetChange::Ordered(_) => {
                    unreachable!("the test notes none")
                }
            });
            (replay.missing, problems.collect::<Vec<_>>())
        };
        note(1, 0);
        note(2, 3_000);
        assert_eq!(replayed(3_600, 3_001), (0, vec![1, 2]));
        assert_eq!(replayed(60, 3_001), (0, vec![2]));
        assert_eq!(replayed(0, 3_001), (0, vec![]));
        assert_eq!(
            replayed(1_000_000, 3_600),
            (0, vec![2]),
            "the first change is older than an hour"
        );
        for problems in 0..HISTORY_MAX {
            note(problems, 4_000);
        }
        let (missing, changes) = replayed(3_600, 4_001);
        assert_eq!((missing, changes.len()), (1, HISTORY_MAX));
        assert_eq!(replayed(600, 4_001).0, 0, "no change of the last ten minutes is missing");
        drop(sender);
        assert!(history.watch(HISTORY_RETENTION, at(4_001)).is_none(), "the driver has ended");
    }
}
