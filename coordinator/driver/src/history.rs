//! The changes of the last hour, for people who ask what was: so many at the most, and none for
//! longer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_coordinator_core::effect::Notice;
use leasehold_types::Moment;
use tokio::sync::broadcast;

use crate::clock::Timestamp;

/// How long a change is kept.
pub const KEPT_FOR: Duration = Duration::from_secs(3_600);
/// Changes that are kept: some 15 MB. Beyond them the oldest goes.
const KEPT_MAX: usize = 65_536;

/// A change that watchers get.
#[derive(Clone, Debug)]
pub enum Change {
    /// The core's.
    Notice(Notice),
    /// The manifests' problems have changed; with the number that there are now.
    Manifests {
        /// How many.
        problems: usize,
    },
}

/// A change that has happened.
#[derive(Debug)]
pub struct RecordedChange {
    /// When, by the clock that never jumps.
    moment: Moment,
    /// When, for people.
    pub at: Timestamp,
    /// What changed.
    pub change: Change,
}

/// The changes that are kept, and the way to those who watch. A new watcher misses none
/// in between, and gets none twice.
#[derive(Debug)]
pub(crate) struct History {
    watchers: broadcast::WeakSender<Change>,
    kept: Mutex<HistoryBuffer>,
}

#[derive(Debug, Default)]
struct HistoryBuffer {
    changes: VecDeque<Arc<RecordedChange>>,
    /// How many have gone for the limit's sake, and when the newest of them had happened.
    dropped: u64,
    dropped_to: Moment,
}

/// What a new watcher gets first.
#[derive(Debug)]
pub struct Replay {
    /// Changes that had happened since then and are no longer kept; 0 if none is missing.
    pub missing: u64,
    /// Oldest first.
    pub changes: Vec<Arc<RecordedChange>>,
    /// Every change from now on.
    pub live: broadcast::Receiver<Change>,
}

impl History {
    pub(crate) fn new(watchers: broadcast::WeakSender<Change>) -> Self {
        Self { watchers, kept: Mutex::default() }
    }

    /// Keeps a change, and sends it to the watchers.
    pub(crate) fn note(
        &self,
        change: Change,
        watchers: &broadcast::Sender<Change>,
        moment: Moment,
    ) {
        let past = RecordedChange { moment, at: Timestamp::now(), change: change.clone() };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.add(Arc::new(past), moment);
        // There may be no watcher.
        let _ = watchers.send(change);
    }

    /// What happened within `span` before `now`, and what will; none once the driver has ended.
    pub(crate) fn watch(&self, span: Duration, now: Moment) -> Option<Replay> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let live = self.watchers.upgrade()?.subscribe();
        let span = span.min(KEPT_FOR);
        let within = |moment: Moment| now.since(moment) < span;
        let newest = kept.changes.iter().rev().take_while(|past| within(past.moment));
        let mut changes: Vec<_> = newest.cloned().collect();
        changes.reverse();
        let missing = if kept.dropped > 0 && within(kept.dropped_to) { kept.dropped } else { 0 };
        Some(Replay { missing, changes, live })
    }
}

impl HistoryBuffer {
    fn add(&mut self, past: Arc<RecordedChange>, now: Moment) {
        self.changes.push_back(past);
        while self.changes.front().is_some_and(|past| now.since(past.moment) >= KEPT_FOR) {
            self.changes.pop_front();
        }
        if now.since(self.dropped_to) >= KEPT_FOR {
            self.dropped = 0;
        }
        while self.changes.len() > KEPT_MAX {
            let Some(oldest) = self.changes.pop_front() else { break };
            (self.dropped, self.dropped_to) = (self.dropped + 1, oldest.moment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_hour_is_kept_up_to_a_limit_and_what_is_missing_is_counted() {
        let (sender, _) = broadcast::channel(4);
        let history = History::new(sender.downgrade());
        let at = |secs: u64| Moment(0) + Duration::from_secs(10_000 + secs);
        let note = |problems, secs| history.note(Change::Manifests { problems }, &sender, at(secs));
        let told = |span, secs| {
            let replay = history.watch(Duration::from_secs(span), at(secs)).expect("a driver");
            let problems = replay.changes.iter().map(|past| match past.change {
                Change::Manifests { problems } => problems,
                Change::Notice(_) => unreachable!("none was noted"),
            });
            (replay.missing, problems.collect::<Vec<_>>())
        };
        note(1, 0);
        note(2, 3_000);
        assert_eq!(told(3_600, 3_001), (0, vec![1, 2]));
        assert_eq!(told(60, 3_001), (0, vec![2]));
        assert_eq!(told(0, 3_001), (0, vec![]));
        assert_eq!(told(1_000_000, 3_600), (0, vec![2]), "an hour is over");
        for problems in 0..KEPT_MAX {
            note(problems, 4_000);
        }
        let (missing, changes) = told(3_600, 4_001);
        assert_eq!((missing, changes.len()), (1, KEPT_MAX));
        assert_eq!(told(600, 4_001).0, 0, "nothing of those minutes is missing");
        drop(sender);
        assert!(history.watch(KEPT_FOR, at(4_001)).is_none(), "the driver has ended");
    }
}
