//! The ports of a driver: sessions put events in, people ask queries and give orders. Nothing here
//! holds a core.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::event::ConnId;
use leasehold_manifest::Problem;
use leasehold_types::limits::NamespaceShare;
use leasehold_types::message::{AgentMessage, Beat, CoordinatorMessage, Grant, Hello};
use leasehold_types::{ClusterName, GrantNumber, Moment, WorkerKey};
use tokio::sync::{OwnedSemaphorePermit, broadcast, mpsc, oneshot, watch};
use tracing::Span;

use crate::access::Access;
use crate::clock;
use crate::health::{Health, Progress};
use crate::history::{History, RecordedChange, Replay};
use crate::metrics::{Metrics, SampledSpan};
use crate::order::WorkerOrder;
use crate::sent_queue::SentQueue;
use crate::term_guard::TermGuard;
use crate::view::PublishedView;

/// The most connections, and the most sessions, whose hello or whose token is still missing. Each
/// may hold about 100 KiB of memory.
pub const UNAUTHENTICATED_MAX: usize = 512;
/// Messages of one session that may wait for the driver.
pub const SESSION_QUEUE_MAX: usize = 4;

/// An event of a session on its way to the driver.
#[derive(Debug)]
pub struct Envelope {
    /// The session.
    pub conn: ConnId,
    /// When it was read from the connection: leases are counted from there.
    pub arrived: Moment,
    /// What happened.
    pub event: SessionEvent,
    /// The permit that the event holds until it is handled.
    pub permit: Option<OwnedSemaphorePermit>,
    /// The permits of its bytes, if it is a long message; held as long.
    pub bytes: Vec<OwnedSemaphorePermit>,
}

/// What happened to a session.
#[derive(Debug)]
pub enum SessionEvent {
    /// It has begun; messages to its agent go here.
    Opened(SessionSlot),
    /// The agent said hello, from this address.
    Hello(Hello, Option<Arc<str>>),
    /// The agent sent another message.
    Agent(AgentMessage),
    /// It has ended.
    Closed,
}

/// The driver's end of a session. When the driver drops it, no message follows, and the session's
/// reader ends.
#[derive(Debug)]
pub struct SessionSlot {
    messages: mpsc::Sender<Box<CoordinatorMessage>>,
    /// The worker of its agent, once that has said hello.
    worker: Option<WorkerKey>,
    unapplied: Option<UnappliedGrant>,
    /// Nothing is sent here: its end is what the reader waits for.
    _kept: oneshot::Sender<Infallible>,
}

/// A grant of leases that the agent has not said to have applied.
#[derive(Debug)]
struct UnappliedGrant {
    number: GrantNumber,
    decided: Moment,
    /// It ends with this.
    push: Span,
}

/// Resolves when the driver has dropped the session.
pub type SessionDropped = oneshot::Receiver<Infallible>;

impl SessionSlot {
    /// A slot for messages to the agent.
    #[must_use]
    pub fn new(messages: mpsc::Sender<Box<CoordinatorMessage>>) -> (Self, SessionDropped) {
        let (kept, dropped) = oneshot::channel();
        (Self { messages, worker: None, unapplied: None, _kept: kept }, dropped)
    }

    /// Puts a message in, unless there is no room or the stream to the agent has ended.
    pub(crate) fn try_send(
        &self,
        message: CoordinatorMessage,
    ) -> Result<(), mpsc::error::TrySendError<Box<CoordinatorMessage>>> {
        self.messages.try_send(Box::new(message))
    }

    /// Notes whose agent it is.
    pub(crate) fn set_worker(&mut self, worker: WorkerKey) {
        self.worker = Some(worker);
    }

    /// Notes a grant that changes what the agent holds, unless an earlier one is not applied yet.
    /// `push` makes its span, for the worker if that is known.
    pub(crate) fn note_grant(
        &mut self,
        grant: &Grant,
        now: Moment,
        push: impl FnOnce(Option<&WorkerKey>) -> Span,
    ) {
        let changes = grant.pool.is_some() || !grant.streams.is_empty();
        if changes && self.unapplied.is_none() {
            let number = grant.number;
            self.unapplied =
                Some(UnappliedGrant { number, decided: now, push: push(self.worker.as_ref()) });
        }
    }

    /// The time from the decision of the noted grant, and its span if that is sampled, once a beat
    /// that came at `arrived` says that it is applied.
    pub(crate) fn take_applied(
        &mut self,
        beat: &Beat,
        arrived: Moment,
    ) -> Option<(Duration, Option<SampledSpan>)> {
        let grant = self.unapplied.take_if(|grant| grant.number <= beat.applied)?;
        grant.push.record("applied", true);
        let took = arrived.since(grant.decided).saturating_sub(beat.changed_ago);
        Some((took, SampledSpan::of(&grant.push)))
    }

    /// Whether the stream to the agent has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.messages.is_closed()
    }
}

impl Envelope {
    /// An event of a session that arrived at `arrived`.
    pub fn new(conn: ConnId, event: SessionEvent, arrived: Moment) -> Self {
        Self { conn, arrived, event, permit: None, bytes: Vec::new() }
    }

    /// The same event; it holds `permit` until it is handled.
    pub fn with_permit(self, permit: OwnedSemaphorePermit) -> Self {
        Self { permit: Some(permit), ..self }
    }

    /// The same event; it holds the permits of its bytes until it is handled.
    pub fn with_bytes(self, bytes: Vec<OwnedSemaphorePermit>) -> Self {
        Self { bytes, ..self }
    }
}

/// The driver's port for sessions.
#[derive(Clone, Debug)]
pub struct SessionPort {
    /// Never full: the sessions are limited, and so are the events of each.
    pub events: mpsc::Sender<Envelope>,
    /// The sessions whose last message is written.
    pub sent: Arc<SentQueue>,
    /// Whether a grant may still be written.
    pub term_guard: Arc<TermGuard>,
    /// Names the leader to peers of a standby.
    pub view: Arc<PublishedView>,
    /// Answers the probes.
    pub health: Arc<Health>,
    /// Whether the driver makes progress.
    pub progress: Arc<Progress>,
    /// Where events are counted.
    pub metrics: Arc<Metrics>,
    /// Decides who may be which worker's agent.
    pub access: Access,
    /// The most agents that may be connected.
    pub sessions_max: usize,
    /// The part of them that one namespace may use.
    pub namespace_share: NamespaceShare,
}

/// A question about the core. It reads the core and cannot change it.
pub(crate) type Query = Box<dyn FnOnce(&Core, Moment) + Send>;

/// Checks an order against the core. Returns the orders to carry out, and the answer to send once
/// every later query shows their effect.
pub(crate) type OrderCheck = Box<dyn FnOnce(&Core, Moment) -> (Vec<WorkerOrder>, Answer) + Send>;

/// Sends the answer to the caller, or the reason why the orders have no effect.
pub(crate) type Answer = Box<dyn FnOnce(Result<(), TermEnded>) + Send>;

/// A request in the driver's queue.
pub(crate) enum Request {
    Query(Query),
    Order(OrderCheck),
}

/// The clusters that one turn has changed: their definition, their sets or pipelines, or what one
/// of their workers holds and does.
pub type ChangedClusters = Arc<BTreeSet<ClusterName>>;

/// The driver has ended and no longer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the coordinator is shutting down")]
pub struct Stopped;

/// The term ended before an order had its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TermEnded;

/// Why an order has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// The driver has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The order may have had no effect.
    #[error("leadership has changed meanwhile: give the order again")]
    TermEnded,
}

/// The driver's port for people and for the platform.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(crate) requests: mpsc::Sender<Request>,
    /// The queue of people's requests.
    pub(crate) of_people: mpsc::Sender<Request>,
    pub(crate) changes: broadcast::WeakSender<Arc<RecordedChange>>,
    pub(crate) changed_clusters: broadcast::WeakSender<ChangedClusters>,
    pub(crate) history: Arc<History>,
    pub(crate) problems: watch::Receiver<Arc<Vec<Problem>>>,
    /// This replica's view of the desired state.
    pub view: Arc<PublishedView>,
    /// Where events are counted.
    pub metrics: Arc<Metrics>,
}

impl Handle {
    /// The handle for what people ask. It has a queue of its own, so that they delay neither the
    /// operator nor probes.
    #[must_use]
    pub fn for_people(&self) -> Self {
        Self { requests: self.of_people.clone(), ..self.clone() }
    }

    /// Returns the answer of `question` about the driver's core; waits while the queue is full.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Core, Moment) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let (answer, answered) = oneshot::channel();
        let query: Query = Box::new(move |core, now| {
            // The caller may have gone meanwhile.
            let _ = answer.send(question(core, now));
        });
        self.requests.send(Request::Query(query)).await.map_err(|_| Stopped)?;
        answered.await.map_err(|_| Stopped)
    }

    /// Has the driver carry out the orders that `check` returns. Returns its answer once every
    /// later query shows their effect. The core does not change between the check and the orders.
    pub async fn order<T: Send + 'static>(
        &self,
        check: impl FnOnce(&Core, Moment) -> (Vec<WorkerOrder>, T) + Send + 'static,
    ) -> Result<T, OrderError> {
        let (answer, answered) = oneshot::channel();
        let check: OrderCheck = Box::new(move |core, now| {
            let (orders, result) = check(core, now);
            let answer = move |ended: Result<(), TermEnded>| {
                // The caller may have gone meanwhile.
                let _ = answer.send(ended.map(|()| result));
            };
            (orders, Box::new(answer))
        });
        self.requests.send(Request::Order(check)).await.map_err(|_| Stopped)?;
        let result = answered.await.map_err(|_| Stopped)?;
        result.map_err(|TermEnded| OrderError::TermEnded)
    }

    /// Every change from now on.
    pub fn watch(&self) -> Result<broadcast::Receiver<Arc<RecordedChange>>, Stopped> {
        self.changes.upgrade().map(|changes| changes.subscribe()).ok_or(Stopped)
    }

    /// The clusters that change from now on. Each is sent once the core's answers show its change.
    pub fn watch_clusters(&self) -> Result<broadcast::Receiver<ChangedClusters>, Stopped> {
        self.changed_clusters.upgrade().map(|changes| changes.subscribe()).ok_or(Stopped)
    }

    /// The changes within `span` until now, and every change from now on.
    pub fn replay(&self, span: Duration) -> Result<Replay, Stopped> {
        self.history.watch(span, clock::now()).ok_or(Stopped)
    }

    /// The present problems of the manifests.
    pub fn problems(&self) -> Arc<Vec<Problem>> {
        Arc::clone(&self.problems.borrow())
    }
}

#[cfg(test)]
mod tests {
    use leasehold_types::message::{PoolGrant, Terms};
    use leasehold_types::{Epoch, Nonce, Token};

    use super::*;

    #[test]
    fn a_push_takes_until_the_grant_was_applied_and_not_until_that_was_acknowledged() {
        let (mut slot, _dropped) = SessionSlot::new(mpsc::channel(1).0);
        let decided = Moment(1_000_000_000);
        let terms = Terms {
            ttl: Duration::from_secs(10),
            beat: Duration::from_secs(2),
            reserve: Duration::from_secs(11),
            drain_deadline: Duration::from_secs(60),
        };
        let token = Token { epoch: Epoch(1), seq: 1 };
        let grant = Grant {
            pool: Some(PoolGrant { token, size: 1, floor: 0 }),
            ..Grant::renewal(Epoch(1), GrantNumber(3), Nonce(1), terms)
        };
        slot.note_grant(&grant, decided, |_| Span::none());
        let arrived = decided + Duration::from_millis(255);
        let beat = |applied| {
            let changed_ago = Duration::from_millis(250);
            Beat { applied: GrantNumber(applied), changed_ago, ..Beat::example() }
        };
        assert!(slot.take_applied(&beat(2), arrived).is_none(), "an earlier one");
        let (took, _) = slot.take_applied(&beat(3), arrived).expect("it is applied");
        assert_eq!(took, Duration::from_millis(5));
        assert!(slot.take_applied(&beat(3), arrived).is_none(), "measured once");
    }
}
