//! Writes events, one after the other. What the API server refuses is dropped; what it does not
//! answer is tried again for a while.

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
use tokio::time::{sleep, timeout};

use super::repeats::{Count, Repeats};
use super::{Record, cut};

/// Who reports, whichever replica it is.
const CONTROLLER: &str = "leasehold.dev/coordinator";
/// How long the API server may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long to wait after the first failure, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);
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
            tracing::warn!("events are dropped: the API server takes them too slowly, or not");
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What became of a write.
enum Written {
    Done,
    /// The API server refuses it, and will again.
    Refused(Box<kube::core::Status>),
    /// It did not answer for too long.
    GivenUp,
}

/// The task that writes.
pub(super) struct Posting {
    client: Client,
    instance: String,
    dropped: Dropped,
    repeats: Repeats,
}

impl Posting {
    pub(super) fn new(client: Client, instance: String, dropped: Dropped) -> Self {
        Self { client, instance, dropped, repeats: Repeats::default() }
    }

    /// Writes until nobody can record any more.
    pub(super) async fn run(mut self, mut records: mpsc::Receiver<Record>) {
        loop {
            let due_in = self.repeats.due_in(clock::now()).unwrap_or(SLEEP_MAX);
            tokio::select! {
                record = records.recv() => match record {
                    Some(record) => self.take(&record).await,
                    None => break,
                },
                () = sleep(due_in.min(SLEEP_MAX)) => {
                    while let Some(count) = self.repeats.due(clock::now()) {
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

    async fn take(&mut self, record: &Record) {
        if self.repeats.counts(record, clock::now()) {
            return;
        }
        let event = self.event(record);
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let name = event.metadata.name.clone().unwrap_or_default();
        let events: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let params = PostParams::default();
        match persist(|| events.create(&params, &event)).await {
            Written::Done => self.repeats.wrote(record, &namespace, &name, clock::now()),
            // An answer that was lost: the name is this event's own.
            Written::Refused(status) if status.is_already_exists() => {
                self.repeats.wrote(record, &namespace, &name, clock::now());
            }
            Written::Refused(status) => {
                tracing::debug!(%namespace, name, why = status.message, "event refused");
                self.dropped.count();
            }
            Written::GivenUp => self.dropped.count(),
        }
    }

    async fn count(&mut self, count: Count) {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &count.namespace);
        let last_observed_time = MicroTime(count.last_at);
        let series = EventSeries { count: count.count, last_observed_time };
        let patch = Patch::Merge(json!({ "series": series }));
        let params = PatchParams::default();
        match persist(|| events.patch(&count.name, &params, &patch)).await {
            Written::Done => {}
            Written::Refused(_) | Written::GivenUp => self.repeats.forget(&count.same),
        }
    }

    fn event(&self, record: &Record) -> Event {
        let what = &record.what;
        let object = what.regarding.name.as_deref().unwrap_or("leasehold");
        let number = record.at.as_nanosecond().unsigned_abs();
        let name = format!("{}.{number:x}{:08x}", cut(object, NAME_BYTES_MAX), fastrand::u32(..));
        Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(what.regarding.namespace.clone().unwrap_or("default".into())),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(record.at)),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            action: Some(what.reason.action().to_owned()),
            reason: Some(what.reason.text().to_owned()),
            regarding: Some(what.regarding.clone()),
            related: what.related.clone(),
            note: Some(what.note.clone()),
            type_: Some(if what.reason.is_warning() { "Warning" } else { "Normal" }.to_owned()),
            ..Event::default()
        }
    }
}

/// Tries until the API server has answered.
async fn persist<T, F>(mut call: impl FnMut() -> F) -> Written
where
    F: Future<Output = kube::Result<T>>,
{
    let start = clock::now();
    let mut pause = PAUSE_MIN;
    loop {
        match timeout(ANSWER_WITHIN, call()).await {
            Ok(Ok(_)) => return Written::Done,
            Ok(Err(kube::Error::Api(status))) if (400..500).contains(&status.code) => {
                let is_busy = status.code == 429;
                if !is_busy {
                    return Written::Refused(status);
                }
            }
            Ok(Err(error)) => tracing::debug!(%error, "an event is not written yet"),
            Err(_) => tracing::debug!("an event is not written yet: no answer"),
        }
        if clock::now().since(start) >= TRIES_LAST {
            return Written::GivenUp;
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;
    use k8s_openapi::jiff::Timestamp;

    use super::super::{Happening, Reason};
    use super::*;

    #[tokio::test]
    async fn an_event_says_all_that_the_api_server_insists_on() {
        let config = kube::Config::new("http://127.0.0.1:1".parse().expect("an address"));
        let client = Client::try_from(config).expect("a client");
        let posting = Posting::new(client, "replica-0".into(), Dropped::default());
        let regarding = ObjectReference {
            name: Some("p".repeat(253)),
            namespace: Some("fleet".into()),
            ..ObjectReference::default()
        };
        let reason = Reason::DrainDeadlineExceeded;
        let what = Happening { regarding, related: None, reason, note: "why".into() };
        let event = posting.event(&Record { what, at: Timestamp::now() });
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
