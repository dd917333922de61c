//! Writes the events of some namespaces one after the other. An event that the API server refuses
//! is dropped; while the API server is away, writing is retried for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use leasehold_driver::clock;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::series::{EventSeriesCache, SeriesUpdate};
use super::{QueuedEvent, truncate};
use crate::applier::{ApplyError, answer};
use crate::workqueue::{Backoff, Delays};

/// The reporting controller, the same for every replica.
const CONTROLLER: &str = "leasehold.dev/coordinator";
/// How long to wait after a failure.
const RETRY_DELAYS: Delays =
    Delays { first: Duration::from_millis(500), longest: Duration::from_secs(10) };
/// For how long one event is tried.
const TRIES_LAST: Duration = Duration::from_secs(300);
/// How long the writer sleeps at most.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// Bytes of an event's name before the dot: a name has 253, and the number behind it at most 33.
const NAME_BYTES_MAX: usize = 220;

/// How many events were dropped.
#[derive(Clone, Debug, Default)]
pub(super) struct Dropped(Arc<AtomicU64>);

impl Dropped {
    /// Counts one; the first is logged.
    pub(super) fn count(&self) {
        if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!("dropping events: the API server is slow or unavailable");
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What became of a write.
enum WriteOutcome {
    Done,
    /// One of this name exists, or the object has changed.
    AlreadyThere,
    /// The API server refuses it, and will again.
    Refused(String),
    /// It did not answer for too long.
    GivenUp,
}

/// The task that writes.
pub(super) struct EventWriter {
    client: Client,
    instance: String,
    dropped: Dropped,
    series: EventSeriesCache,
}

impl EventWriter {
    pub(super) fn new(client: Client, instance: String, dropped: Dropped) -> Self {
        Self { client, instance, dropped, series: EventSeriesCache::default() }
    }

    /// Writes until the last recorder is dropped.
    pub(super) async fn run(mut self, mut records: mpsc::Receiver<QueuedEvent>) {
        loop {
            let due_in = self.series.due_in(clock::now()).unwrap_or(SLEEP_MAX);
            tokio::select! {
                record = records.recv() => match record {
                    Some(record) => self.write(&record).await,
                    None => break,
                },
                () = sleep(due_in.min(SLEEP_MAX)) => {
                    while let Some(count) = self.series.due(clock::now()) {
                        self.count(count).await;
                    }
                }
            }
        }
        match self.dropped.total() {
            0 => {}
            dropped => tracing::warn!(dropped, "events were dropped"),
        }
    }

    async fn write(&mut self, record: &QueuedEvent) {
        if self.series.counts_as_repeat(record, clock::now()) {
            return;
        }
        let event = self.event(record);
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let name = event.metadata.name.clone().unwrap_or_default();
        let events: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let params = PostParams::default();
        match write_with_retries(|| events.create(&params, &event)).await {
            WriteOutcome::Done | WriteOutcome::AlreadyThere => {
                self.series.insert(record, &namespace, &name, clock::now());
            }
            WriteOutcome::Refused(why) => {
                tracing::debug!(%namespace, name, why, "event refused");
                self.dropped.count();
            }
            WriteOutcome::GivenUp => self.dropped.count(),
        }
    }

    async fn count(&mut self, update: SeriesUpdate) {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &update.namespace);
        let last_observed_time = MicroTime(update.last_at);
        let series = EventSeries { count: update.count, last_observed_time };
        let patch = Patch::Merge(json!({ "series": series }));
        let params = PatchParams::default();
        match write_with_retries(|| events.patch(&update.name, &params, &patch)).await {
            WriteOutcome::Done => {}
            WriteOutcome::AlreadyThere | WriteOutcome::Refused(_) | WriteOutcome::GivenUp => {
                self.series.forget(&update.key);
            }
        }
    }

    fn event(&self, record: &QueuedEvent) -> Event {
        let event = &record.event;
        let object = event.regarding.name.as_deref().unwrap_or("leasehold");
        let number = record.at.as_nanosecond().unsigned_abs();
        let name =
            format!("{}.{number:x}{:08x}", truncate(object, NAME_BYTES_MAX), fastrand::u32(..));
        Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(event.regarding.namespace.clone().unwrap_or("default".into())),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(record.at)),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            action: Some(event.reason.action().to_owned()),
            reason: Some(event.reason.text().to_owned()),
            regarding: Some(event.regarding.clone()),
            related: event.related.clone(),
            note: Some(event.note.clone()),
            type_: Some(if event.reason.is_warning() { "Warning" } else { "Normal" }.to_owned()),
            ..Event::default()
        }
    }
}

/// Tries until the API server has answered.
async fn write_with_retries<T, F>(mut request: impl FnMut() -> F) -> WriteOutcome
where
    F: Future<Output = kube::Result<T>>,
{
    let start = clock::now();
    let mut backoff = Backoff::new(RETRY_DELAYS);
    loop {
        match answer(request()).await {
            Ok(_) => return WriteOutcome::Done,
            // A new name can only exist because the answer to an earlier attempt was lost.
            Err(ApplyError::Conflict(_)) => return WriteOutcome::AlreadyThere,
            Err(ApplyError::Refused(why) | ApplyError::Gone(why)) => {
                return WriteOutcome::Refused(why);
            }
            Err(ApplyError::Retry(error) | ApplyError::Internal(error)) => {
                tracing::debug!(error, "cannot write an event yet");
            }
        }
        if clock::now().since(start) >= TRIES_LAST {
            return WriteOutcome::GivenUp;
        }
        sleep(backoff.next_delay()).await;
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;
    use k8s_openapi::jiff::Timestamp;

    use super::super::{EventReason, NewEvent};
    use super::*;

    #[tokio::test]
    async fn an_event_has_all_fields_that_the_api_server_requires() {
        let config = kube::Config::new("http://127.0.0.1:1".parse().expect("an address"));
        let client = Client::try_from(config).expect("a client");
        let writer = EventWriter::new(client, "replica-0".into(), Dropped::default());
        let regarding = ObjectReference {
            name: Some("p".repeat(253)),
            namespace: Some("fleet".into()),
            ..ObjectReference::default()
        };
        let reason = EventReason::DrainDeadlineExceeded;
        let event = NewEvent { regarding, related: None, reason, note: "why".into() };
        let event = writer.event(&QueuedEvent { event, at: Timestamp::now() });
        assert!(event.metadata.name.expect("a name").len() <= 253);
        assert_eq!(event.metadata.namespace.as_deref(), Some("fleet"));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert_eq!(event.reason.as_deref(), Some("DrainDeadlineExceeded"));
        assert_eq!(event.action.as_deref(), Some("Drain"));
        assert_eq!(event.reporting_controller.as_deref(), Some(CONTROLLER));
        assert_eq!(event.reporting_instance.as_deref(), Some("replica-0"));
        assert!(event.event_time.is_some());
    }
}
