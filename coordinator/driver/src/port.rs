//! The ways to a driver: what sessions put in, and what people ask. Nothing here holds a core.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_manifest::Problem;
use leasehold_types::message::{AgentMessage, CoordinatorMessage, Hello};
use leasehold_types::{Moment, WorkerKey};
use tokio::sync::{OwnedSemaphorePermit, broadcast, mpsc, oneshot, watch};

use crate::access::Access;
use crate::clock;
use crate::gate::Gate;
use crate::health::{Health, Progress};
use crate::history::{Change, History, Replay};
use crate::metrics::Metrics;
use crate::view::View;

/// Sessions that have not said hello, or have not proven it.
pub const UNPROVEN_MAX: usize = 4_096;
/// Messages of one session that may wait for the driver.
pub const WAITING_MAX: usize = 4;

/// Something that happened to a session, on its way to the driver.
#[derive(Debug)]
pub struct Envelope {
    /// The session.
    pub conn: ConnId,
    /// When it was read from the connection: leases are counted from there.
    pub arrived: Moment,
    /// What happened.
    pub what: SessionEvent,
    /// What the event holds of a limit, until it is handled.
    pub place: Option<OwnedSemaphorePermit>,
}

/// What happened to a session.
#[derive(Debug)]
pub enum SessionEvent {
    /// It is there; its messages go here.
    Opened(mpsc::Sender<Box<CoordinatorMessage>>),
    /// Somebody said hello while this replica did not lead, and was not asked for proof: it is
    /// told where the leader is, and nothing else.
    Unproven,
    /// The agent said hello, and where it says so from.
    Hello(Hello, Option<SocketAddr>),
    /// The agent said something.
    Agent(AgentMessage),
    /// The last message is on its way.
    Sent,
    /// It has ended.
    Closed,
}

impl Envelope {
    /// An event of a session that arrived at `arrived`.
    pub fn new(conn: ConnId, what: SessionEvent, arrived: Moment) -> Self {
        Self { conn, arrived, what, place: None }
    }

    /// The same event, which holds `place` of a limit until it is handled.
    pub fn with_place(self, place: OwnedSemaphorePermit) -> Self {
        Self { place: Some(place), ..self }
    }
}

/// What sessions need of their cell.
#[derive(Clone, Debug)]
pub struct SessionPort {
    /// Never full: sessions are counted, and each one's events are.
    pub events: mpsc::Sender<Envelope>,
    /// Whether a grant may still be written.
    pub gate: Arc<Gate>,
    /// What probes are answered.
    pub health: Arc<Health>,
    /// Whether the driver goes on.
    pub progress: Arc<Progress>,
    /// Where events are counted.
    pub metrics: Arc<Metrics>,
    /// Who may speak for which worker.
    pub access: Access,
    /// The most agents that may be connected.
    pub sessions_max: usize,
}

/// A question about the core. It reads the core and cannot change it.
pub(crate) type Query = Box<dyn FnOnce(&Core, Moment) + Send>;

/// Checks an order against the core. Returns the events to take, and the answer to send once they
/// are taken.
pub(crate) type OrderCheck = Box<dyn FnOnce(&Core, Moment) -> (Vec<WorkerOrder>, Answer) + Send>;

/// Sends the answer to the caller.
pub(crate) type Answer = Box<dyn FnOnce() + Send>;

/// What callers put into the driver's queue of requests.
pub(crate) enum Request {
    Query(Query),
    Order(OrderCheck),
}

/// An order about one worker, from a person or the operator. The core takes it as an event.
#[derive(Clone, Debug)]
pub enum WorkerOrder {
    /// Drain the worker.
    Drain(WorkerKey),
    /// Nothing of the worker runs any longer: free all that it has.
    DeclareGone(WorkerKey),
}

impl From<WorkerOrder> for Event {
    fn from(order: WorkerOrder) -> Self {
        match order {
            WorkerOrder::Drain(worker) => Self::Drain(worker),
            WorkerOrder::DeclareGone(worker) => Self::Gone(vec![worker]),
        }
    }
}

/// The driver has ended and no longer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the coordinator shuts down")]
pub struct Stopped;

/// The way of people, and of the platform, to a driver.
#[derive(Clone, Debug)]
pub struct Handle {
    requests: mpsc::Sender<Request>,
    changes: broadcast::WeakSender<Change>,
    history: Arc<History>,
    problems: watch::Receiver<Arc<Vec<Problem>>>,
    /// What this replica knows without its core.
    pub view: Arc<View>,
    /// Where events are counted.
    pub metrics: Arc<Metrics>,
}

impl Handle {
    pub(crate) fn new(
        requests: mpsc::Sender<Request>,
        changes: broadcast::WeakSender<Change>,
        history: Arc<History>,
        problems: watch::Receiver<Arc<Vec<Problem>>>,
        view: Arc<View>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { requests, changes, history, problems, view, metrics }
    }

    /// The answer of the driver's core to `question`; waits where many others ask.
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

    /// Has the driver take the orders that `check` returns, and returns its answer once they are
    /// taken. The core does not change between the check and the orders.
    pub async fn order<T: Send + 'static>(
        &self,
        check: impl FnOnce(&Core, Moment) -> (Vec<WorkerOrder>, T) + Send + 'static,
    ) -> Result<T, Stopped> {
        let (answer, answered) = oneshot::channel();
        let check: OrderCheck = Box::new(move |core, now| {
            let (orders, result) = check(core, now);
            // The caller may have gone meanwhile.
            (orders, Box::new(move || _ = answer.send(result)))
        });
        self.requests.send(Request::Order(check)).await.map_err(|_| Stopped)?;
        answered.await.map_err(|_| Stopped)
    }

    /// Every change from now on.
    pub fn watch(&self) -> Result<broadcast::Receiver<Change>, Stopped> {
        self.changes.upgrade().map(|changes| changes.subscribe()).ok_or(Stopped)
    }

    /// What happened within `span`, and every change from now on.
    pub fn replay(&self, span: Duration) -> Result<Replay, Stopped> {
        self.history.watch(span, clock::now()).ok_or(Stopped)
    }

    /// What is wrong with the manifests at present.
    pub fn problems(&self) -> Arc<Vec<Problem>> {
        Arc::clone(&self.problems.borrow())
    }
}
