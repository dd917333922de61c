//! One agent without its worker: the agent's real core with a gRPC connection of its own, and a
//! journal that is written nowhere. All of a fleet's run in this process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use leasehold_agent::leader_watch::{LeaderWatch, Successor, WelcomedLink};
use leasehold_agent_core::{Config, Effect, Holder, Memory, Notice, Target, UnwrittenJournal};
use leasehold_demo::clock;
use leasehold_types::message::{AgentMessage, CoordinatorMessage, Grant};
use leasehold_types::{
    Epoch, Incarnation, JobId, LinkNumber, Moment, Nonce, StartId, StreamKey, WorkerKey,
};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinHandle};
use tonic::transport::ClientTlsConfig;

use super::fleet_record::FleetRecord;
use super::link::{LinkEvent, Port, own_address, run_link};

/// Messages on their way to a coordinator that reads slowly; one more ends the link.
const OUTBOX_MAX: usize = 64;
/// What a link may say ahead of the holder.
const EVENTS_MAX: usize = 64;
/// The bound of the wait before a second dial; it doubles with each attempt.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// The bound that no attempt exceeds.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Beats whose sending is remembered until they are echoed.
const SENT_MAX: usize = 1_024;

/// Where agents dial.
#[derive(Clone, Debug)]
pub struct Coordinators {
    /// All replicas: `HOST:PORT`.
    pub addresses: Vec<String>,
    /// What to expect of their certificates; plain text without it.
    pub tls: Option<ClientTlsConfig>,
    /// Whether agents follow at a standby who leads, by a second connection.
    pub agents_follow: bool,
}

/// Which worker's agent it is.
#[derive(Clone, Debug)]
pub struct AgentIdentity {
    /// Its number in the fleet's record.
    pub number: usize,
    /// The cluster, as a hello names it.
    pub cluster: String,
    /// The worker.
    pub worker: String,
    /// What it proves itself by, where that is a token.
    pub token: Option<String>,
}

impl AgentIdentity {
    /// The agent of the worker with this number, which proves nothing.
    #[must_use]
    pub fn numbered(number: usize, cluster: &str) -> Self {
        Self { number, cluster: cluster.to_owned(), worker: format!("w-{number}"), token: None }
    }
}

/// What an agent is told to do.
enum Order {
    Begin(JobId, oneshot::Sender<bool>),
    End(JobId),
    Redial,
}

/// An agent that runs.
#[derive(Debug)]
pub struct Agent {
    task: JoinHandle<()>,
    orders: mpsc::Sender<Order>,
}

impl Agent {
    /// Starts an agent of the fleet.
    ///
    /// # Panics
    /// If the identity has an invalid name.
    #[must_use]
    pub fn start(
        identity: AgentIdentity,
        coordinators: Arc<Coordinators>,
        record: Arc<FleetRecord>,
    ) -> Self {
        let (orders, orders_seen) = mpsc::channel(1);
        let driver = Driver::new(identity, coordinators, record);
        Self { task: tokio::spawn(driver.run(orders_seen)), orders }
    }

    /// Begins a job; whether the lease allows it.
    pub async fn begin_job(&self, job: JobId) -> bool {
        let (reply, answer) = oneshot::channel();
        let asked = self.orders.send(Order::Begin(job, reply)).await;
        asked.is_ok() && answer.await.unwrap_or(false)
    }

    /// Ends a job; nothing happens where it does not run.
    pub async fn end_job(&self, job: JobId) {
        // An agent that is dead runs no job.
        let _ = self.orders.send(Order::End(job)).await;
    }

    /// Has it drop its connection and dial again, as after a cut of the network.
    pub async fn redial(&self) {
        let _ = self.orders.send(Order::Redial).await;
    }

    /// Ends it without a word, as kill -9 does, and waits until it is dead.
    pub async fn kill(self) {
        self.task.abort();
        // The abort ends it: nothing to report.
        let _ = self.task.await;
    }
}

/// A link from its dial on; dropping it ends it.
struct Link {
    number: LinkNumber,
    address: String,
    outbox: mpsc::Sender<AgentMessage>,
    task: AbortHandle,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Driver {
    number: usize,
    port: Port,
    holder: Holder<UnwrittenJournal>,
    record: Arc<FleetRecord>,
    coordinators: Arc<Coordinators>,
    /// The coordinator to dial next.
    next: usize,
    link: Option<Link>,
    events: mpsc::Sender<(LinkNumber, LinkEvent)>,
    events_seen: mpsc::Receiver<(LinkNumber, LinkEvent)>,
    leader_watch: LeaderWatch,
    successors: mpsc::Receiver<Successor>,
    /// The epoch of the welcome, until the link is live.
    welcomed: Option<Epoch>,
    /// Reports and beats that were sent and not yet echoed.
    sent: VecDeque<(Nonce, Moment)>,
    /// When the newest beat that was echoed had been sent.
    echoed: Option<Moment>,
}

impl Driver {
    fn new(
        identity: AgentIdentity,
        coordinators: Arc<Coordinators>,
        record: Arc<FleetRecord>,
    ) -> Self {
        let AgentIdentity { number, cluster, worker, token } = identity;
        let (events, events_seen) = mpsc::channel(EVENTS_MAX);
        let key = WorkerKey {
            cluster: cluster.parse().expect("a cluster's name"),
            worker: worker.parse().expect("a worker's name"),
        };
        let incarnation = Incarnation(clock::wall_us() / 1_000);
        let port = Port { tls: coordinators.tls.clone(), from: own_address(number), token };
        let (leader_watch, successors) =
            LeaderWatch::start(key.clone(), coordinators.addresses.clone(), port.clone());
        let config = Config { incarnation, ..Config::example(key) };
        let now = now();
        let mut holder = Holder::new(config, Memory::default(), UnwrittenJournal, now);
        let start: StartId = format!("start-{number}").parse().expect("a start's id");
        holder.start_worker(start, 0, now).expect("nothing runs yet");
        Self {
            number,
            port,
            holder,
            record,
            next: number,
            coordinators,
            link: None,
            events,
            events_seen,
            leader_watch,
            successors,
            welcomed: None,
            sent: VecDeque::new(),
            echoed: None,
        }
    }

    async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        self.carry_out(now());
        loop {
            let wakeup = self.holder.poll_timeout().map(|wakeup| wakeup.at.since(now()));
            tokio::select! {
                Some((link, event)) = self.events_seen.recv() => self.handle_link(link, event),
                Some(Successor { over, leader, .. }) = self.successors.recv() => {
                    let dialled = self.link.as_ref().map(|link| link.address.as_str());
                    self.holder.handle_successor(over, leader, dialled, now());
                }
                Some(order) = orders.recv() => self.obey(order),
                () = tokio::time::sleep(wakeup.unwrap_or(Duration::MAX)) => {}
            }
            let now = now();
            if self.holder.poll_timeout().is_some_and(|wakeup| wakeup.at <= now) {
                self.holder.handle_wake(now);
            }
            self.carry_out(now);
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Begin(job, reply) => {
                // Who asked may have given up meanwhile.
                let _ = reply.send(self.holder.begin_job(job, now()).is_ok());
            }
            Order::End(job) => self.holder.end_job(&job, now()).expect("a journal that succeeds"),
            Order::Redial => {
                if let Some(link) = self.link.take() {
                    self.holder.handle_closed(link.number, "told to dial again", now());
                }
            }
        }
    }

    fn handle_link(&mut self, link: LinkNumber, event: LinkEvent) {
        if self.link.as_ref().is_none_or(|current| current.number != link) {
            return;
        }
        let now = now();
        match event {
            LinkEvent::Opened => self.holder.handle_open(link, now),
            LinkEvent::Closed(why) => {
                self.link = None;
                self.holder.handle_closed(link, &why, now);
            }
            LinkEvent::Message(message) => {
                if let CoordinatorMessage::Grant(grant) = &*message {
                    self.note_echo(grant, now);
                }
                self.holder.handle_message(link, *message, now);
                self.carry_out(now);
                self.note_live(now);
            }
        }
    }

    /// How old the lease had become when this renewal came.
    fn note_echo(&mut self, grant: &Grant, now: Moment) {
        let Some(at) = self.sent.iter().position(|(nonce, _)| *nonce == grant.nonce) else {
            return;
        };
        let (_, sent) = self.sent[at];
        // The echoed one stays: a change carries the same nonce again.
        self.sent.drain(..at);
        if let Some(before) = self.echoed.replace(sent) {
            self.record.renewed(self.number, now.since(before));
        }
    }

    fn note_live(&mut self, now: Moment) {
        if let Some(epoch) = self.welcomed
            && self.holder.peek(now).connected
        {
            self.welcomed = None;
            self.record.live(self.number, epoch);
        }
    }

    fn carry_out(&mut self, now: Moment) {
        while let Some(effect) = self.holder.poll_effect() {
            match effect {
                Effect::Dial { link, target, attempt } => {
                    self.link = Some(self.dial(link, target, attempt));
                }
                Effect::Hangup(link) => {
                    self.link.take_if(|current| current.number == link);
                    self.welcomed = None;
                    self.record.unlinked(self.number);
                }
                Effect::Send(link, message) => self.send(link, message, now),
                Effect::Notice(notice) => self.note(notice),
                Effect::Superseded => {
                    self.record.fault(format!("w-{} was superseded", self.number))
                }
                Effect::LeaseChanged
                | Effect::LeaseRenewed
                | Effect::DrainEnded { .. }
                | Effect::DrainOverdue { .. }
                | Effect::Resumed => {}
            }
        }
    }

    fn send(&mut self, number: LinkNumber, message: AgentMessage, now: Moment) {
        let nonce = match &message {
            AgentMessage::Hello(_) => None,
            AgentMessage::Report(report) => Some(report.nonce),
            AgentMessage::Beat(beat) => Some(beat.nonce),
        };
        if let Some(nonce) = nonce {
            self.sent.push_back((nonce, now));
            if self.sent.len() > SENT_MAX {
                self.sent.pop_front();
            }
        }
        let Some(link) = self.link.as_ref().filter(|link| link.number == number) else { return };
        if link.outbox.try_send(message).is_err() {
            self.link = None;
            self.holder.handle_closed(number, "the coordinator reads too slowly", now);
        }
    }

    fn note(&mut self, notice: Notice) {
        match notice {
            Notice::Welcomed(epoch) => {
                let link = self.link.as_ref().filter(|_| self.coordinators.agents_follow);
                if let Some(Link { number, address, .. }) = link {
                    let (number, address, cell) = (*number, address.clone(), self.holder.cell());
                    self.leader_watch.set_welcomed(WelcomedLink { number, address, epoch, cell });
                }
                self.welcomed = Some(epoch);
                self.record.welcomed(epoch);
            }
            Notice::StreamGranted(stream, _) => self.record.granted(number(&stream), self.number),
            Notice::StreamReleased(stream, _) => self.record.ended(number(&stream), self.number),
            Notice::StreamExpired(stream, _) => {
                self.record.ended(number(&stream), self.number);
                self.record.expired();
            }
            Notice::PoolGranted(_, size) => self.record.pool_granted(self.number, size),
            Notice::PoolExpired(_) => self.record.expired(),
            Notice::ProtocolViolation(rule) => {
                self.record
                    .fault(format!("w-{} reports a protocol violation: {rule}", self.number));
            }
            _ => {}
        }
    }

    fn dial(&mut self, number: LinkNumber, target: Target, attempt: u32) -> Link {
        let address = match target {
            Target::Leader(address) => address,
            Target::Next => {
                self.next += 1;
                let addresses = &self.coordinators.addresses;
                addresses[self.next % addresses.len()].clone()
            }
        };
        let (outbox, messages) = mpsc::channel(OUTBOX_MAX);
        let events = self.events.clone();
        let (port, dialled) = (self.port.clone(), address.clone());
        let task = tokio::spawn(async move {
            tokio::time::sleep(backoff(attempt)).await;
            let why = match run_link(&port, &dialled, number, messages, &events).await {
                Ok(()) => "the coordinator has ended the session".to_owned(),
                Err(error) => error.to_string(),
            };
            let _ = events.send((number, LinkEvent::Closed(why))).await;
        });
        Link { number, address, outbox, task: task.abort_handle() }
    }
}

/// The agent's own: the first dial at once, then full jitter below a bound that doubles.
fn backoff(attempt: u32) -> Duration {
    let Some(doublings) = attempt.checked_sub(1) else { return Duration::ZERO };
    let bound = BACKOFF_MIN.saturating_mul(1 << doublings.min(16)).min(BACKOFF_MAX);
    bound.mul_f64(fastrand::f64())
}

fn now() -> Moment {
    Moment(clock::now_ns())
}

/// The number at the end of a stream's name.
fn number(stream: &StreamKey) -> usize {
    let name = stream.stream.to_string();
    let digits = name.rsplit('-').next().and_then(|digits| digits.parse().ok());
    digits.expect("the benchmark's streams are numbered")
}
