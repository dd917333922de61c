//! Finds events that repeat one already written. The number of remembered events and their time are
//! limited.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use leasehold_types::Moment;

use super::{EventReason, NewEvent, QueuedEvent};

/// A repeat after this time is a new event.
pub(super) const SERIES_LASTS: Duration = Duration::from_secs(300);
/// How often the count of one event is written.
const WRITE_EVERY: Duration = Duration::from_secs(10);
/// Events that one writer remembers; beyond, the one that was quiet for the longest is forgotten.
const REMEMBERED_MAX: usize = 256;

/// Events with the same key are repeats.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SeriesKey {
    reason: EventReason,
    regarding: Identity,
    related: Option<Identity>,
}

type Identity = (Option<String>, Option<String>, Option<String>, Option<String>);

/// An event that was written.
#[derive(Clone, Debug)]
struct WrittenEvent {
    namespace: String,
    name: String,
    count: i32,
    last_at: Timestamp,
    /// When it was last recorded or written, by the monotonic clock.
    seen_at: Moment,
    written_at: Moment,
    /// Whether the count that was written is the newest.
    is_current: bool,
}

/// A count to write into an event.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SeriesUpdate {
    pub(super) key: SeriesKey,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) count: i32,
    pub(super) last_at: Timestamp,
}

/// The events of the last minutes.
#[derive(Debug, Default)]
pub(super) struct EventSeriesCache(BTreeMap<SeriesKey, WrittenEvent>);

impl SeriesKey {
    pub(super) fn of(event: &NewEvent) -> Self {
        let identity = |object: &ObjectReference| {
            let ObjectReference { kind, namespace, name, uid, .. } = object.clone();
            (kind, namespace, name, uid)
        };
        Self {
            reason: event.reason,
            regarding: identity(&event.regarding),
            related: event.related.as_ref().map(identity),
        }
    }
}

impl EventSeriesCache {
    /// Whether it repeats an event that is written: then it is counted.
    pub(super) fn counts_as_repeat(&mut self, record: &QueuedEvent, now: Moment) -> bool {
        self.0.retain(|_, event| !event.is_current || now.since(event.seen_at) < SERIES_LASTS);
        let key = SeriesKey::of(&record.event);
        let Some(written) = self.0.get_mut(&key) else { return false };
        if now.since(written.seen_at) >= SERIES_LASTS {
            return false;
        }
        written.count = written.count.saturating_add(1);
        written.last_at = record.at;
        written.seen_at = now;
        written.is_current = false;
        true
    }

    /// An event was written under this name.
    pub(super) fn insert(
        &mut self,
        record: &QueuedEvent,
        namespace: &str,
        name: &str,
        now: Moment,
    ) {
        if self.0.len() >= REMEMBERED_MAX {
            let quiet =
                self.0.iter().min_by_key(|(_, event)| event.seen_at).map(|(key, _)| key.clone());
            quiet.and_then(|key| self.0.remove(&key));
        }
        let written = WrittenEvent {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            count: 1,
            last_at: record.at,
            seen_at: now,
            written_at: now,
            is_current: true,
        };
        self.0.insert(SeriesKey::of(&record.event), written);
    }

    /// The next count that is to be written at `now`; it counts as written.
    pub(super) fn due(&mut self, now: Moment) -> Option<SeriesUpdate> {
        let mut waiting = self.0.iter_mut().filter(|(_, event)| !event.is_current);
        let (key, written) =
            waiting.find(|(_, event)| now.since(event.written_at) >= WRITE_EVERY)?;
        written.written_at = now;
        written.is_current = true;
        Some(SeriesUpdate {
            key: key.clone(),
            namespace: written.namespace.clone(),
            name: written.name.clone(),
            count: written.count,
            last_at: written.last_at,
        })
    }

    /// How long until [`Self::due`] may have something.
    pub(super) fn due_in(&self, now: Moment) -> Option<Duration> {
        let waiting = self.0.values().filter(|event| !event.is_current);
        waiting.map(|event| WRITE_EVERY.saturating_sub(now.since(event.written_at))).min()
    }

    /// The event no longer exists: the next repeat is written as a new one.
    pub(super) fn forget(&mut self, key: &SeriesKey) {
        self.0.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(reason: EventReason, name: &str) -> QueuedEvent {
        let regarding = ObjectReference { name: Some(name.to_owned()), ..Default::default() };
        let event = NewEvent { regarding, related: None, reason, note: "note".into() };
        QueuedEvent { event, at: Timestamp::UNIX_EPOCH }
    }

    fn at(seconds: u64) -> Moment {
        Moment(seconds * 1_000_000_000)
    }

    #[test]
    fn counts_repeats_within_minutes_and_writes_the_count_at_intervals() {
        let mut series = EventSeriesCache::default();
        let lost = record(EventReason::WorkerLost, "a");
        assert!(!series.counts_as_repeat(&lost, at(0)));
        series.insert(&lost, "ns", "a.1", at(0));
        assert!(!series.counts_as_repeat(&record(EventReason::WorkerFound, "a"), at(1)));
        assert!(!series.counts_as_repeat(&record(EventReason::WorkerLost, "b"), at(1)));
        assert_eq!(series.due_in(at(1)), None);
        for second in 1..=5 {
            assert!(series.counts_as_repeat(&lost, at(second)));
        }
        assert_eq!(series.due(at(5)), None);
        assert_eq!(series.due_in(at(5)), Some(Duration::from_secs(5)));
        let count = series.due(at(10)).expect("a count");
        assert_eq!((count.name.as_str(), count.count), ("a.1", 6));
        assert_eq!(series.due(at(30)), None);
        assert!(!series.counts_as_repeat(&lost, at(6) + SERIES_LASTS), "a new event");
    }

    #[test]
    fn keeps_an_unwritten_series_until_it_is_written() {
        let mut series = EventSeriesCache::default();
        let lost = record(EventReason::WorkerLost, "a");
        series.insert(&lost, "ns", "a.1", at(0));
        assert!(series.counts_as_repeat(&lost, at(1)));
        assert!(!series.counts_as_repeat(&record(EventReason::WorkerLost, "b"), at(1_000)));
        assert_eq!(series.due(at(1_000)).expect("a count").count, 2);
    }

    #[test]
    fn rewrites_a_deleted_event_and_bounds_the_cache() {
        let mut series = EventSeriesCache::default();
        let lost = record(EventReason::WorkerLost, "a");
        series.insert(&lost, "ns", "a.1", at(0));
        series.forget(&SeriesKey::of(&lost.event));
        assert!(!series.counts_as_repeat(&lost, at(1)));
        for number in 0..2 * REMEMBERED_MAX as u64 {
            series.insert(
                &record(EventReason::WorkerLost, &number.to_string()),
                "ns",
                "x",
                at(number),
            );
        }
        assert_eq!(series.0.len(), REMEMBERED_MAX);
        let newest = (2 * REMEMBERED_MAX - 1).to_string();
        assert!(series.counts_as_repeat(
            &record(EventReason::WorkerLost, &newest),
            at(2 * REMEMBERED_MAX as u64)
        ));
    }
}
