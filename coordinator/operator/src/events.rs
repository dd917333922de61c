//! Events of the Events API, which `kubectl describe` shows. Recording never blocks: if the API
//! server is slow or unreachable, the newest events are dropped and counted. A namespace has one of
//! several queues, so that its events stay in order, and only those of its queue wait for them.

mod series;
mod writer;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use tokio::sync::mpsc;

use self::writer::EventWriter;

/// The queues, each with a writer of its own.
const QUEUES: usize = 8;
/// The most events in a queue.
const QUEUE_MAX: usize = 128;
/// The most bytes of a note and of a reporting instance, which the API server limits.
const NOTE_BYTES_MAX: usize = 1_024;
const INSTANCE_BYTES_MAX: usize = 128;

/// The reason of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EventReason {
    /// A person ordered a drain.
    DrainOrdered,
    /// A person took an order to drain back.
    DrainTakenBack,
    /// A person declared that a worker no longer runs.
    WorkerDeclaredGone,
    /// A worker accepts no new jobs and finishes its running ones.
    DrainStarted,
    /// A drained worker holds no leases.
    DrainCompleted,
    /// A worker drains for longer than its cluster's `drain.deadline`.
    DrainDeadlineExceeded,
    /// A drained worker's pod cannot be evicted: a budget does not allow it, or two select the pod.
    EvictionRefused,
    /// A rollout is blocked.
    RolloutBlocked,
    /// Another replica became the leader.
    LeaderChanged,
    /// A worker has been silent for longer than its leases last.
    WorkerLost,
    /// A worker was lost for as long as its manifest allows, and counts as gone.
    WorkerGivenUp,
    /// A worker that was lost reports again.
    WorkerFound,
    /// A worker fails the check that its agent makes.
    WorkerFailing,
    /// A worker passes its check again.
    WorkerRecovered,
    /// An agent broke the protocol's rules and was disconnected.
    AgentMisbehaved,
    /// An agent has seen a higher epoch than the leader's.
    EpochAhead,
    /// Workers are drained because fewer are needed.
    ScaleInStarted,
    /// The workload has fewer replicas now.
    ScaleInCompleted,
    /// The workload has more replicas now.
    ScaledOut,
    /// A pod is deleted so that another takes its place.
    PodReplaced,
    /// The workload cannot be written, or does not fit its cluster.
    WorkloadRejected,
    /// A pod asked for an agent and has none.
    InjectionSkipped,
    /// A pipeline waits for workers.
    PipelinePending,
    /// A pipeline's workers are chosen.
    PipelinePlotted,
    /// All bindings of a pipeline are Ready.
    PipelineReady,
    /// A worker of a pipeline was lost.
    PipelineBroken,
    /// A change of a pipeline that runs waits for workers.
    PipelineChangeWaits,
    /// An object of another owner has the name that an object of a pipeline needs.
    NameTaken,
    /// The API server refuses an object of a pipeline.
    ObjectRejected,
}

impl EventReason {
    /// The reason's text.
    fn text(self) -> &'static str {
        match self {
            Self::DrainOrdered => "DrainOrdered",
            Self::DrainTakenBack => "DrainTakenBack",
            Self::WorkerDeclaredGone => "WorkerDeclaredGone",
            Self::DrainStarted => "DrainStarted",
            Self::DrainCompleted => "DrainCompleted",
            Self::DrainDeadlineExceeded => "DrainDeadlineExceeded",
            Self::EvictionRefused => "EvictionRefused",
            Self::RolloutBlocked => "RolloutBlocked",
            Self::LeaderChanged => "LeaderChanged",
            Self::WorkerLost => "WorkerLost",
            Self::WorkerGivenUp => "WorkerGivenUp",
            Self::WorkerFound => "WorkerFound",
            Self::WorkerFailing => "WorkerFailing",
            Self::WorkerRecovered => "WorkerRecovered",
            Self::AgentMisbehaved => "AgentMisbehaved",
            Self::EpochAhead => "EpochAhead",
            Self::ScaleInStarted => "ScaleInStarted",
            Self::ScaleInCompleted => "ScaleInCompleted",
            Self::ScaledOut => "ScaledOut",
            Self::PodReplaced => "PodReplaced",
            Self::WorkloadRejected => "WorkloadRejected",
            Self::InjectionSkipped => "InjectionSkipped",
            Self::PipelinePending => "PipelinePending",
            Self::PipelinePlotted => "PipelinePlotted",
            Self::PipelineReady => "PipelineReady",
            Self::PipelineBroken => "PipelineBroken",
            Self::PipelineChangeWaits => "PipelineChangeWaits",
            Self::NameTaken => "NameTaken",
            Self::ObjectRejected => "ObjectRejected",
        }
    }

    /// The action on the object, as the Events API requires it.
    fn action(self) -> &'static str {
        match self {
            Self::DrainOrdered
            | Self::DrainTakenBack
            | Self::DrainStarted
            | Self::DrainCompleted
            | Self::DrainDeadlineExceeded => "Drain",
            Self::EvictionRefused => "Evict",
            Self::WorkerDeclaredGone => "Declare",
            Self::RolloutBlocked => "Rollout",
            Self::LeaderChanged => "Elect",
            Self::WorkerLost
            | Self::WorkerGivenUp
            | Self::WorkerFound
            | Self::WorkerFailing
            | Self::WorkerRecovered
            | Self::AgentMisbehaved
            | Self::EpochAhead => "Watch",
            Self::ScaleInStarted | Self::ScaleInCompleted | Self::ScaledOut => "Scale",
            Self::PodReplaced => "Replace",
            Self::WorkloadRejected | Self::NameTaken | Self::ObjectRejected => "Apply",
            Self::InjectionSkipped => "Inject",
            Self::PipelinePending
            | Self::PipelinePlotted
            | Self::PipelineReady
            | Self::PipelineBroken
            | Self::PipelineChangeWaits => "Bind",
        }
    }

    /// Whether it is a warning.
    fn is_warning(self) -> bool {
        match self {
            Self::DrainDeadlineExceeded
            | Self::EvictionRefused
            | Self::RolloutBlocked
            | Self::WorkerLost
            | Self::WorkerGivenUp
            | Self::WorkerFailing
            | Self::AgentMisbehaved
            | Self::EpochAhead
            | Self::WorkloadRejected
            | Self::InjectionSkipped
            | Self::PipelineBroken
            | Self::NameTaken
            | Self::ObjectRejected => true,
            Self::DrainOrdered
            | Self::DrainTakenBack
            | Self::WorkerDeclaredGone
            | Self::DrainStarted
            | Self::DrainCompleted
            | Self::LeaderChanged
            | Self::WorkerFound
            | Self::WorkerRecovered
            | Self::ScaleInStarted
            | Self::ScaleInCompleted
            | Self::ScaledOut
            | Self::PodReplaced
            | Self::PipelinePending
            | Self::PipelinePlotted
            | Self::PipelineReady
            | Self::PipelineChangeWaits => false,
        }
    }
}

/// An event to record.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NewEvent {
    /// The object; the event is written in its namespace. `kubectl describe` shows the event only
    /// where the UID is given too.
    pub(crate) regarding: ObjectReference,
    /// A related object.
    pub(crate) related: Option<ObjectReference>,
    /// The reason.
    pub(crate) reason: EventReason,
    /// The note for users.
    pub(crate) note: String,
}

/// Records events; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct EventRecorder(Arc<[EventQueue]>);

/// The queue of some namespaces.
#[derive(Debug)]
struct EventQueue {
    sender: mpsc::Sender<QueuedEvent>,
    dropped: writer::Dropped,
}

/// A queued event, and when it happened.
#[derive(Clone, Debug)]
struct QueuedEvent {
    event: NewEvent,
    at: Timestamp,
}

impl EventRecorder {
    /// Starts to write events in the name of the replica `identity`, until the last clone of it is
    /// dropped.
    pub(crate) fn start(client: Client, identity: &str) -> Self {
        let instance = truncate(identity, INSTANCE_BYTES_MAX);
        let queue = |_| {
            let (sender, records) = mpsc::channel(QUEUE_MAX);
            let dropped = writer::Dropped::default();
            let writer = EventWriter::new(client.clone(), instance.to_owned(), dropped.clone());
            tokio::spawn(writer.run(records));
            EventQueue { sender, dropped }
        };
        Self((0..QUEUES).map(queue).collect())
    }

    /// Records an event; those of one namespace in the order of the calls. Events of one object
    /// with the same reason within five minutes become a series, with the note of the first one.
    pub(crate) fn record(&self, mut event: NewEvent) {
        event.note.truncate(truncate(&event.note, NOTE_BYTES_MAX).len());
        let queue = &self.0[queue_of(event.regarding.namespace.as_deref(), self.0.len())];
        if queue.sender.try_send(QueuedEvent { event, at: Timestamp::now() }).is_err() {
            queue.dropped.count();
        }
    }
}

/// The place of a namespace's queue among so many.
fn queue_of(namespace: Option<&str>, queues: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    namespace.hash(&mut hasher);
    usize::try_from(hasher.finish() % queues as u64).unwrap_or_default()
}

/// The beginning of a text, in whole characters.
fn truncate(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use kube::client::Body;
    use tonic::codegen::http::{Request, Response};

    use super::*;

    #[test]
    fn truncates_between_characters() {
        assert_eq!(truncate("short", 10), "short");
        assert_eq!(truncate("größe", 3), "gr");
        assert_eq!(truncate("größe", 4), "grö");
    }

    #[tokio::test]
    async fn never_waits_and_counts_events_dropped_at_the_limit() {
        let (sender, mut records) = mpsc::channel(2);
        let dropped = writer::Dropped::default();
        let recorder = EventRecorder([EventQueue { sender, dropped: dropped.clone() }].into());
        for number in 0..5 {
            recorder.record(event("ns", format!("{number}{}", "n".repeat(2 * NOTE_BYTES_MAX))));
        }
        assert_eq!(dropped.total(), 3);
        let first = records.recv().await.expect("the first event").event.note;
        assert!(first.starts_with('0'));
        assert_eq!(first.len(), NOTE_BYTES_MAX);
    }

    fn event(namespace: &str, note: String) -> NewEvent {
        let namespace = Some(namespace.to_owned());
        let regarding = ObjectReference { namespace, ..ObjectReference::default() };
        NewEvent { regarding, related: None, reason: EventReason::LeaderChanged, note }
    }

    #[tokio::test]
    async fn a_namespace_whose_events_cannot_be_written_holds_up_no_other_queue() {
        let (written, mut writes) = mpsc::channel(8);
        let answer = move |request: Request<Body>| {
            let written = written.clone();
            async move {
                let path = request.uri().path().to_owned();
                if path.contains("/namespaces/stuck/") {
                    std::future::pending::<()>().await;
                }
                written.send(path).await.expect("a receiver");
                let body = Body::from(br#"{"metadata":{}}"#.to_vec());
                Ok::<_, Infallible>(Response::new(body))
            }
        };
        let recorder = EventRecorder::start(Client::new(tower::service_fn(answer), "ns"), "a");
        let stuck = queue_of(Some("stuck"), QUEUES);
        let mut names = (0..).map(|number| format!("ns-{number}"));
        let other =
            names.find(|name| queue_of(Some(name.as_str()), QUEUES) != stuck).expect("a name");
        for _ in 0..2 * QUEUE_MAX {
            recorder.record(event("stuck", "first".into()));
        }
        recorder.record(event(&other, "second".into()));
        let path = writes.recv().await.expect("a write");
        assert!(path.contains(&format!("/namespaces/{other}/")), "{path}");
    }
}
