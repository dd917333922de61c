//! The receiving side of a session: decodes messages and queues them for the driver. The queue of
//! each session is small, so that a peer that floods delays only itself.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::event::ConnId;
use leasehold_coordinator_core::view::Leadership;
use leasehold_driver::access::{ACCESS_TIMEOUT, Access, Credentials, Denied, Permission};
use leasehold_driver::clock;
use leasehold_driver::keyed_limit::KeyedPermit;
use leasehold_driver::port::{Envelope, SESSION_QUEUE_MAX, SessionEvent, SessionPort, SessionSlot};
use leasehold_proto::coordinator::v1::OpenSessionRequest;
use leasehold_proto::map;
use leasehold_types::message::{
    AgentMessage, AgentProcess, CoordinatorMessage, Hello, JobTimes, OtherCell, Refusal,
    RefusalReason, Report,
};
use leasehold_types::{ClusterName, Moment, SetName, WorkerKey};
use prost::Message;
use prost::bytes::Bytes;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Status, Streaming};

use super::agent_rate::{AgentRate, AgentRates};
use super::message_budget::SessionBudget;
use super::session_limits::{SessionLimits, SessionPermit};
use crate::connections::Peer;
use crate::job_history::JobHistory;
use crate::other_cells::OtherCells;

/// How long a peer may take to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// The receiving side of one session.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) conn: ConnId,
    pub(crate) peer: Option<Peer>,
    /// What the peer shows of itself.
    pub(crate) shown: Credentials,
    pub(crate) port: SessionPort,
    /// The limits of sessions.
    pub(super) limits: Arc<SessionLimits>,
    /// Where the bytes of its long messages count.
    pub(super) bytes: SessionBudget,
    /// How fast agents may send.
    pub(crate) rates: Arc<AgentRates>,
    /// The run times of jobs.
    pub(crate) jobs: Arc<JobHistory>,
    /// The coordinators of other cells that agents have found.
    pub(crate) other_cells: Arc<OtherCells>,
}

/// A message as it was read.
struct Received {
    message: AgentMessage,
    /// The run times of jobs that it carries.
    job_times: Option<JobTimes>,
    /// The coordinator of another cell that it names.
    other_cell: Option<OtherCell>,
    /// The process that sent it, as a hello says it.
    process: Option<AgentProcess>,
    /// Its length, in bytes.
    length: usize,
}

/// A peer that may be the agent of the worker in its hello.
struct Agent {
    hello: Box<Hello>,
    /// Where a person finds it.
    found_at: Option<Arc<str>>,
    /// Its place among the sessions.
    permit: SessionPermit,
}

/// Where a refusal goes.
type Slot = mpsc::Sender<Box<CoordinatorMessage>>;

impl Inbound {
    /// Receives until either side ends the session, then notifies the driver. Releases
    /// `unauthenticated` once the peer is authenticated. `gone` resolves when the stream to the
    /// peer has ended.
    pub(crate) async fn run(
        self,
        slot: Slot,
        unauthenticated: KeyedPermit<Option<IpAddr>>,
        mut messages: Streaming<Bytes>,
        mut gone: oneshot::Receiver<()>,
    ) {
        let greeted = tokio::select! {
            greeted = self.greet(&mut messages) => greeted,
            _ = &mut gone => return,
            () = self.port.events.closed() => Err(shutting_down()),
            () = self.port.progress.stalled() => Err(stalled()),
        };
        let Agent { hello, found_at, permit } = match greeted {
            Ok(Some(agent)) => agent,
            Ok(None) => return,
            Err(refusal) => return self.refuse(Some(slot), refusal),
        };
        drop(unauthenticated);
        let SessionPermit { of_all, of_worker: _of_worker, of_namespace: _of_namespace } = permit;
        // The slot is reached only as long as the driver keeps the session.
        let weak = slot.downgrade();
        let (slot, dropped) = SessionSlot::new(slot);
        let opened = Envelope::new(self.conn, SessionEvent::Opened(slot), clock::now());
        // The channel has room by construction, unless the driver has ended.
        if self.port.events.try_send(opened).is_ok() {
            let outcome = tokio::select! {
                outcome = self.receive(hello, found_at, &mut messages) => outcome,
                // The session has ended, whether or not the peer takes the last message.
                _ = dropped => Ok(()),
                _ = gone => Ok(()),
                () = self.port.progress.stalled() => Err(stalled()),
            };
            if let Err(refusal) = outcome {
                self.refuse(weak.upgrade(), refusal);
            }
        }
        // The permit is released when the driver has handled the end of the session.
        let closed = Envelope::new(self.conn, SessionEvent::Closed, clock::now());
        let closed = closed.with_permit(of_all);
        let _ = self.port.events.try_send(closed);
    }

    /// Receives and authorizes the hello; `None` if the peer disconnects.
    async fn greet(&self, messages: &mut Streaming<Bytes>) -> Result<Option<Agent>, Refusal> {
        let first = timeout(HELLO_TIMEOUT, next(messages)).await;
        let first = first.map_err(|_| {
            invalid(format!("no hello within {HELLO_TIMEOUT:?}: send it as the first message"))
        })??;
        let Some(Received { message, process, .. }) = first else { return Ok(None) };
        let hello = match message {
            AgentMessage::Hello(hello) => hello,
            AgentMessage::Report(_) => {
                return Err(invalid("got a report before hello: send hello first".into()));
            }
            AgentMessage::Beat(_) => {
                return Err(invalid("got a beat before hello: send hello first".into()));
            }
        };
        tracing::debug!(
            conn = self.conn.0, cluster = %hello.cluster, worker = %hello.worker,
            incarnation = %hello.incarnation, link = %hello.link, "hello"
        );
        // The platform may be slow; that must not cost the connection its place.
        self.peer.iter().for_each(|peer| peer.keep_place(ACCESS_TIMEOUT));
        let authorized = self.authorize(&hello).await;
        self.peer.iter().for_each(|peer| peer.keep_place(Duration::ZERO));
        authorized?;
        let permit = self.limits.take(&worker_in(&hello))?;
        if let Some(namespace) = hello.cluster.parts().0 {
            self.bytes.set_namespace(namespace);
        }
        Ok(Some(Agent { hello: Box::new(hello), found_at: self.found_at(process), permit }))
    }

    /// Checks that the peer may be the agent of the worker in its hello.
    async fn authorize(&self, hello: &Hello) -> Result<(), Refusal> {
        let SessionPort { access, term_guard, view, .. } = &self.port;
        // A standby only returns the leader's address, which is not a secret, so it does not check
        // the token. Agents are redirected even while the API server is away, and it gets no review
        // for those that dial a standby. The core does not get its messages: an unauthenticated
        // peer must not even raise an epoch.
        if matches!(access, Access::Asked(_)) && term_guard.term().is_none() {
            return Err(redirect(view.leadership()));
        }
        match access.ask(self.shown.clone(), Permission::ActAsAgent(worker_in(hello))).await {
            Ok(_) => Ok(()),
            Err(Denied::Unauthenticated(message) | Denied::Forbidden(message)) => {
                Err(Refusal { reason: RefusalReason::Unauthorized, message })
            }
            // The agent dials again, and keeps its leases meanwhile.
            Err(Denied::Unavailable(message)) => {
                Err(Refusal { reason: RefusalReason::GoAway, message })
            }
        }
    }

    async fn receive(
        &self,
        hello: Box<Hello>,
        found_at: Option<Arc<str>>,
        messages: &mut Streaming<Bytes>,
    ) -> Result<(), Refusal> {
        let budget = Arc::new(Semaphore::new(SESSION_QUEUE_MAX));
        let (worker, incarnation) = (worker_in(&hello), hello.incarnation);
        let rate = self.rates.open(&worker, Instant::now());
        let _connection = self.peer.as_ref().map(Peer::begin_session);
        self.wait(rate.session(Instant::now()), &rate, &worker).await;
        let hello = SessionEvent::Hello(*hello, found_at);
        self.forward(hello, clock::now(), &budget).await?;
        let found = self.other_cells.found_by(worker.clone());
        while let Some(received) = next(messages).await? {
            let Received { message, job_times, other_cell, length, .. } = received;
            // The message counts from now, however long it waits after this.
            let arrived = clock::now();
            let releases = match &message {
                AgentMessage::Hello(_) => {
                    return Err(invalid("got a second hello: send it once per session".into()));
                }
                AgentMessage::Report(report) => {
                    check_namespace(report, &worker.cluster)?;
                    0
                }
                AgentMessage::Beat(beat) => {
                    found.note(other_cell);
                    beat.released.len()
                }
            };
            if let Some(times) = job_times {
                let running = message.running().unwrap_or_default();
                self.jobs.record(&worker, incarnation, times, running, arrived);
            }
            self.forward(SessionEvent::Agent(message), arrived, &budget).await?;
            // The next message stays in the connection until the agent has earned it.
            let until = rate.message(length, releases, Instant::now());
            self.wait(until, &rate, &worker).await;
        }
        Ok(())
    }

    /// Waits until the agent may send more.
    async fn wait(&self, until: Option<Instant>, rate: &AgentRate, worker: &WorkerKey) {
        let Some(until) = until else { return };
        self.port.metrics.session_stalled();
        if rate.should_warn(Instant::now()) {
            tracing::warn!(
                %worker, peer = ?self.address(),
                "an agent sends faster than it may: its messages wait"
            );
        }
        sleep_until(until).await;
    }

    async fn forward(
        &self,
        what: SessionEvent,
        arrived: Moment,
        budget: &Arc<Semaphore>,
    ) -> Result<(), Refusal> {
        if self.bytes.has_waited() {
            self.port.metrics.session_stalled();
        }
        let permit = match Arc::clone(budget).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                self.port.metrics.session_stalled();
                Arc::clone(budget).acquire_owned().await.expect("a budget is never closed")
            }
        };
        let envelope = Envelope::new(self.conn, what, arrived).with_permit(permit);
        let envelope = envelope.with_bytes(self.bytes.take());
        self.port.events.try_send(envelope).map_err(|_| shutting_down())
    }

    /// Where a person finds the agent: the address of its connection, and its process.
    fn found_at(&self, process: Option<AgentProcess>) -> Option<Arc<str>> {
        let address = self.address()?;
        let process = process.map(|process| format!(" ({process})")).unwrap_or_default();
        Some(format!("{address}{process}").into())
    }

    fn address(&self) -> Option<SocketAddr> {
        self.peer.as_ref().map(Peer::address)
    }

    fn refuse(&self, slot: Option<Slot>, refusal: Refusal) {
        tracing::debug!(conn = self.conn.0, reason = ?refusal.reason, why = refusal.message,
            "session refused");
        self.port.metrics.refused(&refusal.reason);
        if let Some(slot) = slot {
            // The slot keeps room for this one message.
            let _ = slot.try_send(Box::new(CoordinatorMessage::Refusal(refusal)));
        }
    }
}

/// The next message; `None` if the peer has ended the session or its connection broke.
async fn next(messages: &mut Streaming<Bytes>) -> Result<Option<Received>, Refusal> {
    let bytes = match messages.message().await {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(None),
        Err(status) => return broken(&status),
    };
    let length = bytes.len();
    map::check_field_count(&bytes).map_err(|error| invalid(error.to_string()))?;
    let mut request = OpenSessionRequest::decode(bytes).map_err(|error| {
        invalid(format!("cannot decode the message as OpenSessionRequest: {error}"))
    })?;
    let job_times =
        map::take_job_times(&mut request).map_err(|error| invalid(error.to_string()))?;
    let other_cell = map::take_other_cell(&mut request);
    let process = map::take_agent_process(&mut request);
    let message = AgentMessage::try_from(request).map_err(|error| invalid(error.to_string()))?;
    Ok(Some(Received { message, job_times, other_cell, process, length }))
}

/// A message that could not be read is refused; a connection that broke just ends.
fn broken(status: &Status) -> Result<Option<Received>, Refusal> {
    match status.code() {
        tonic::Code::OutOfRange
        | tonic::Code::ResourceExhausted
        | tonic::Code::DeadlineExceeded => Err(Refusal {
            reason: RefusalReason::Limit,
            message: format!("message: {}", status.message()),
        }),
        tonic::Code::Internal | tonic::Code::Unimplemented => {
            Err(invalid(format!("message: {}", status.message())))
        }
        _ => Ok(None),
    }
}

/// Rejects a report of streams that its sender can never have been granted. Sets and pipelines run
/// on clusters of their own namespace. The class is not checked, because a node may have moved to
/// another class.
fn check_namespace(report: &Report, cluster: &ClusterName) -> Result<(), Refusal> {
    let (home, _) = cluster.parts();
    let is_foreign = |set: &&SetName| set.namespace() != home;
    let mut sets = report.streams.iter().map(|held| &held.stream.set);
    match sets.find(is_foreign) {
        None => Ok(()),
        Some(set) => Err(invalid(format!(
            "the report claims a stream of set {:?}, which is not in the namespace of cluster {:?}",
            set.as_str(),
            cluster.as_str()
        ))),
    }
}

fn worker_in(hello: &Hello) -> WorkerKey {
    WorkerKey { cluster: hello.cluster.clone(), worker: hello.worker.clone() }
}

/// Sends a peer whose token was not checked to the leader.
fn redirect(leadership: Leadership) -> Refusal {
    let (reason, message) = match leadership {
        Leadership::Standby(leader) => {
            let address = leader.map(|leader| leader.address);
            (RefusalReason::NotLeader(address), "this replica is not the leader")
        }
        Leadership::Leader(_) => (RefusalReason::GoAway, "leadership is changing: dial again"),
    };
    Refusal { reason, message: message.into() }
}

fn shutting_down() -> Refusal {
    Refusal {
        reason: RefusalReason::GoAway,
        message: "the coordinator is shutting down: dial again".into(),
    }
}

/// The agent dials again, and then finds the leader's successor.
fn stalled() -> Refusal {
    let message = "the coordinator's driver makes no progress: dial again".into();
    Refusal { reason: RefusalReason::GoAway, message }
}

fn invalid(message: String) -> Refusal {
    Refusal { reason: RefusalReason::Invalid, message }
}

#[cfg(test)]
mod tests {
    use leasehold_types::message::HeldStream;
    use leasehold_types::{Epoch, StreamKey, StreamName, Token};

    use super::*;

    #[test]
    fn rejects_reports_of_streams_in_another_namespace() {
        let report = |set: &str| {
            let set = SetName::new(set).expect("a name");
            let stream = StreamKey { set, stream: StreamName::first() };
            let token = Token { epoch: Epoch(1), seq: 1 };
            let held = HeldStream { stream, token, pinned: false, revoked: false, load: None };
            Report { streams: vec![held], ..Report::example() }
        };
        let claims = |set, cluster: &str| {
            let cluster = ClusterName::new(cluster).expect("a name");
            check_namespace(&report(set), &cluster)
        };
        assert_eq!(claims("feeds", "crawl"), Ok(()));
        assert_eq!(claims("ci/feeds", "ci/crawl"), Ok(()));
        assert_eq!(claims("shares:", "blue"), Ok(()));
        assert_eq!(claims("shares:ci", "ci/blue"), Ok(()));
        for (set, cluster) in [
            ("cd/feeds", "ci/crawl"),
            ("feeds", "ci/crawl"),
            ("shares:cd", "ci/blue"),
            ("shares:", "ci/blue"),
            ("shares:ci", "blue"),
        ] {
            let refusal = claims(set, cluster).expect_err(set);
            assert_eq!(refusal.reason, RefusalReason::Invalid);
            assert!(refusal.message.contains(set), "{refusal:?}");
        }
    }
}
