//! One task owns a core, reads the clock, and moves events in and effects out. Everything else
//! reaches the core through the bounded channels here; a full one slows its sender, never the
//! driver.

mod effects;
mod notices;
mod outbox;
mod pulse;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use leasehold_coordinator_core::core::{Config, Core};
use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_coordinator_core::turn::{PLATFORM_BATCH_MAX, PULSE, Turn, Watermark};
use leasehold_coordinator_core::view::Leadership;
use leasehold_types::message::{
    AgentMessage, CoordinatorMessage, DrainPhase, Refusal, RefusalReason,
};
use leasehold_types::{ClusterName, Moment, TimeBounds};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

pub use self::notices::freed;
use self::outbox::Outbox;
use self::pulse::PulseGuard;
use crate::access::Access;
use crate::clock;
use crate::gate::{Gate, Term};
use crate::health::{Health, Progress};
use crate::history::{Change, History};
use crate::metrics::{Fleet, Metrics};
use crate::platform::{Command, Platform};
use crate::port::{
    Envelope, Handle, Request, SessionEvent, SessionPort, UNPROVEN_MAX, WAITING_MAX,
};
use crate::view::{PublishedState, View};

/// A driver takes a turn at least this often, which is its sign of life.
pub const TICK: Duration = Duration::from_millis(500);
/// The shortest sleep: a wake-up that the core asks for again and again must not spin.
const SLEEP_MIN: Duration = Duration::from_millis(1);
/// Requests of people that are taken in one turn.
const REQUEST_BATCH_MAX: usize = 16;
/// Requests that come after so long are taken in a later turn.
const REQUESTS_WITHIN: Duration = Duration::from_millis(10);
/// A turn that takes longer is reported.
const TURN_LONG: Duration = Duration::from_millis(50);
/// Between two such reports.
const LONG_TURN_EVERY: Duration = Duration::from_secs(10);
/// Requests of people that may wait.
const REQUESTS_MAX: usize = 64;
/// Changes that a watcher may be behind.
const CHANGES_MAX: usize = 8_192;
/// Events that a session may have in the channel beside its messages: opened, sent, closed.
const EVENTS_BESIDE_MESSAGES: usize = 3;
/// How often the metrics of clusters are refreshed for exporters that push.
const FIGURES_EVERY: Duration = Duration::from_secs(10);
/// Between two looks at which workers cannot be spared, for autoscalers.
const HELD_EVERY: Duration = Duration::from_secs(1);
/// How long a platform may take to give leadership up at the end.
const RESIGN_WITHIN: Duration = Duration::from_millis(1_000);

/// What a driver needs from outside.
#[derive(Debug)]
pub struct Settings {
    /// How far clocks may be apart.
    pub bounds: TimeBounds,
    /// The most agents that may be connected.
    pub sessions_max: usize,
}

/// The task that owns a core.
#[derive(Debug)]
pub struct Driver {
    core: Core,
    sessions: HashMap<ConnId, mpsc::Sender<Box<CoordinatorMessage>>>,
    events: mpsc::Receiver<Envelope>,
    requests: mpsc::Receiver<Request>,
    platform: Platform,
    problems_seen: watch::Receiver<Arc<Vec<leasehold_manifest::Problem>>>,
    outbox: Outbox,
    changes: broadcast::Sender<Change>,
    history: Arc<History>,
    gate: Arc<Gate>,
    health: Arc<Health>,
    progress: Arc<Progress>,
    metrics: Arc<Metrics>,
    outlook: watch::Sender<PublishedState>,
    /// Up to when the sessions' messages were taken.
    taken: Watermark,
    log: notices::LeaseLog,
    figures_at: Moment,
    held_at: Moment,
    long_turn_at: Moment,
}

/// Where somebody is asked who may speak for a worker, which is the API server of Kubernetes, the
/// uid of a pod says who an agent is, and only the newest pod of a name speaks. Elsewhere the core
/// keeps a name for the agent that has it.
fn core_config(settings: &Settings, access: &Access) -> Config {
    let keeps_names = match access {
        Access::Open => true,
        Access::Asked(_) => false,
    };
    Config { bounds: settings.bounds, keeps_names, ..Config::default() }
}

/// Why a driver took a turn.
enum WakeReason {
    Session(Envelope),
    Platform(Option<Event>),
    Request(Request),
    Commands(bool),
    Problems,
    Time,
    Stop,
}

impl Driver {
    /// A driver over a new core, and the two ways to reach it.
    pub fn new(
        settings: &Settings,
        mut platform: Platform,
        metrics: Arc<Metrics>,
    ) -> (Self, SessionPort, Handle) {
        let sessions_max = settings.sessions_max;
        // So large that it is never full: a session's events are counted, and so are sessions;
        // one that has no place says at most that its refusal is on its way.
        let events_max = sessions_max * (WAITING_MAX + EVENTS_BESIDE_MESSAGES) + UNPROVEN_MAX;
        let (events_in, events) = mpsc::channel(events_max);
        let (requests_in, requests) = mpsc::channel(REQUESTS_MAX);
        let (changes, _) = broadcast::channel(CHANGES_MAX);
        let gate = Arc::new(Gate::default());
        let health = Arc::new(Health::new(clock::now(), Arc::clone(&platform.progress)));
        let port = SessionPort {
            events: events_in,
            gate: Arc::clone(&gate),
            health: Arc::clone(&health),
            progress: Arc::clone(&platform.progress),
            metrics: Arc::clone(&metrics),
            access: platform.access.clone(),
            sessions_max,
        };
        let progress = Arc::clone(&platform.progress);
        let problems = platform.problems.clone();
        let (outlook, outlook_seen) = watch::channel(PublishedState::default());
        let (seen_from, seen_by) = (Arc::clone(&gate), Arc::clone(&health));
        let view =
            Arc::new(View::new(outlook_seen, platform.freshness.clone(), seen_from, seen_by));
        metrics.show_demands(&view);
        let counted = Arc::clone(&metrics);
        let history = Arc::new(History::new(changes.downgrade()));
        let past = Arc::clone(&history);
        let handle = Handle::new(requests_in, changes.downgrade(), past, problems, view, counted);
        if let Some(attend) = platform.attend.take() {
            // A platform that has ended already is found out by its channels.
            let _ = attend.send(handle.clone());
        }
        let driver = Self {
            core: Core::new(core_config(settings, &port.access)),
            sessions: HashMap::new(),
            events,
            requests,
            problems_seen: platform.problems.clone(),
            platform,
            outbox: Outbox::default(),
            changes,
            history,
            gate,
            health,
            progress,
            metrics,
            outlook,
            taken: Watermark::default(),
            log: notices::LeaseLog::default(),
            figures_at: Moment(0),
            held_at: Moment(0),
            long_turn_at: Moment(0),
        };
        (driver, port, handle)
    }

    /// Drives the core until `stop` says so, and then gives leadership up. It has a thread of its
    /// own, so that a long turn keeps no session's task from reading; gives the end back.
    ///
    /// # Errors
    /// Where there can be no thread.
    pub fn start(
        self,
        stop: watch::Receiver<bool>,
    ) -> anyhow::Result<oneshot::Receiver<anyhow::Result<()>>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let reading = PulseGuard::start(Arc::clone(&self.progress));
        let (ended, end) = oneshot::channel();
        std::thread::Builder::new().name("driver".into()).spawn(move || {
            // The process is about to exit: nothing waits for this task.
            let _ = ended.send(runtime.block_on(self.run(stop, reading)));
        })?;
        Ok(end)
    }

    /// An error where the platform has ended by itself.
    async fn run(
        mut self,
        mut stop: watch::Receiver<bool>,
        reading: PulseGuard,
    ) -> anyhow::Result<()> {
        self.count_problems();
        loop {
            let woken = self.next_turn(&mut stop).await;
            let begun = clock::now();
            let mut turn = Turn::begin(begun);
            // Looked at before the queue: what was read by then is in it, or was taken.
            let read = reading.read();
            let mut events = 0;
            match woken {
                WakeReason::Session(envelope) => events += self.take_envelope(envelope, &turn),
                WakeReason::Platform(Some(event)) => events += self.take(event, clock::now()),
                WakeReason::Platform(None) | WakeReason::Commands(false) => {
                    bail!("the platform has ended: see the log above")
                }
                WakeReason::Request(request) => events += self.take_request(request),
                WakeReason::Problems => self.count_problems(),
                WakeReason::Commands(true) | WakeReason::Time => {}
                WakeReason::Stop => break,
            }
            events += self.take_what_waits(&mut turn);
            self.settle(events, self.taken.heard(read));
            self.carry_out();
            self.turned(begun);
        }
        self.stop().await;
        Ok(())
    }

    fn turned(&mut self, begun: Moment) {
        let now = clock::now();
        let took = now.since(begun);
        self.health.turned(now);
        self.progress.made();
        self.metrics.turned(took);
        // What is built for tests makes long turns that mean nothing.
        let is_long = took > TURN_LONG && !cfg!(debug_assertions);
        if is_long && now.since(self.long_turn_at) >= LONG_TURN_EVERY {
            self.long_turn_at = now;
            tracing::warn!(took_ms = took.as_millis(), "a turn of the driver took long");
        }
    }

    async fn next_turn(&mut self, stop: &mut watch::Receiver<bool>) -> WakeReason {
        let now = clock::now();
        // What is due and was not done waits for what has not been read yet.
        let wake = self.core.poll_timeout().map_or(TICK, |wakeup| match wakeup.at > now {
            true => wakeup.at.since(now),
            false => PULSE,
        });
        // What was left goes on at once, behind whatever has come meanwhile.
        let more = self.core.has_more();
        let commands = &self.platform.commands;
        // The platform first: what it says of a pod is taken before anything that a later pod of
        // the same name says. It says little, and takes little, so nobody starves behind it; behind
        // sessions its commands would.
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => WakeReason::Stop,
            event = self.platform.events.recv() => WakeReason::Platform(event),
            sent = self.outbox.send_one(commands), if !self.outbox.is_empty() => {
                WakeReason::Commands(sent)
            }
            Some(envelope) = self.events.recv() => WakeReason::Session(envelope),
            Some(request) = self.requests.recv() => WakeReason::Request(request),
            Ok(()) = self.problems_seen.changed() => WakeReason::Problems,
            () = std::future::ready(()), if more => WakeReason::Time,
            () = sleep(wake.clamp(SLEEP_MIN, TICK)) => WakeReason::Time,
        }
    }

    /// Takes what is there already, so that it is planned together.
    fn take_what_waits(&mut self, turn: &mut Turn) -> usize {
        let mut events = 0;
        for _ in 0..PLATFORM_BATCH_MAX {
            let Ok(event) = self.platform.events.try_recv() else { break };
            events += self.take(event, clock::now());
        }
        loop {
            let looked = clock::now();
            if !turn.takes(looked) {
                break;
            }
            let Ok(envelope) = self.events.try_recv() else {
                self.taken.emptied(looked);
                break;
            };
            events += self.take_envelope(envelope, turn);
        }
        let asked = clock::now();
        for _ in 0..REQUEST_BATCH_MAX {
            let now = clock::now();
            if now.since(asked) > REQUESTS_WITHIN {
                break;
            }
            let Ok(request) = self.requests.try_recv() else { break };
            events += self.take_request(request);
            self.progress.made();
        }
        let now = clock::now();
        if self.core.poll_timeout().is_some_and(|wakeup| wakeup.at <= now) {
            events += self.take(Event::Wake, now);
        }
        events
    }

    fn take_envelope(&mut self, envelope: Envelope, turn: &Turn) -> usize {
        let Envelope { conn, arrived, what, place } = envelope;
        self.taken.took(arrived);
        let at = turn.stamp(arrived);
        let taken = match what {
            SessionEvent::Opened(slot) => {
                self.sessions.insert(conn, slot);
                0
            }
            SessionEvent::Closed => {
                self.sessions.remove(&conn);
                self.take(Event::Closed(conn), at)
            }
            // The core has closed the session: its later events are dropped.
            SessionEvent::Hello(..) | SessionEvent::Agent(_) | SessionEvent::Sent
                if !self.sessions.contains_key(&conn) =>
            {
                0
            }
            SessionEvent::Unproven => {
                self.send_away(conn);
                0
            }
            SessionEvent::Sent => self.take(Event::Sent(conn), at),
            SessionEvent::Hello(..) if self.has_hung_up(conn) => self.end_in_vain(conn, at),
            SessionEvent::Agent(message) if self.is_in_vain(conn, &message) => {
                self.end_in_vain(conn, at)
            }
            SessionEvent::Hello(hello, peer) => {
                let peer = peer.map(|peer| peer.to_string().into());
                self.take(Event::Hello(conn, hello, peer), at)
            }
            // Sessions say hello by an event of its own.
            SessionEvent::Agent(AgentMessage::Hello(hello)) => {
                self.take(Event::Hello(conn, hello, None), at)
            }
            SessionEvent::Agent(AgentMessage::Report(report)) => {
                self.take(Event::Report(conn, report), at)
            }
            SessionEvent::Agent(AgentMessage::Beat(beat)) => self.take(Event::Beat(conn, beat), at),
        };
        self.metrics.set_sessions(self.sessions.len());
        drop(place);
        taken
    }

    /// Whether the other end has gone since it said this, and will say it all again when it comes
    /// back. A goodbye is for good.
    fn is_in_vain(&self, conn: ConnId, message: &AgentMessage) -> bool {
        let again = match message {
            AgentMessage::Hello(_) => true,
            AgentMessage::Report(report) => report.drain != DrainPhase::Leaving,
            AgentMessage::Beat(_) => false,
        };
        again && self.has_hung_up(conn)
    }

    fn has_hung_up(&self, conn: ConnId) -> bool {
        self.sessions.get(&conn).is_some_and(mpsc::Sender::is_closed)
    }

    fn end_in_vain(&mut self, conn: ConnId, at: Moment) -> usize {
        self.sessions.remove(&conn);
        self.take(Event::Closed(conn), at)
    }

    /// Answers a query, or checks an order and takes its events; the number of events.
    fn take_request(&mut self, request: Request) -> usize {
        let now = clock::now();
        match request {
            Request::Query(query) => {
                query(&self.core, now);
                0
            }
            Request::Order(check) => {
                let (orders, answer) = check(&self.core, now);
                let events = orders.into_iter().map(|order| self.take(order.into(), now)).sum();
                answer();
                events
            }
        }
    }

    fn take(&mut self, event: Event, at: Moment) -> usize {
        match &event {
            Event::Elected(elected) => {
                self.gate.set(Some(Term { epoch: elected.epoch, until: elected.until }));
                self.health.role_known();
            }
            Event::Renewed(renewed) => {
                if self.gate.term().is_some_and(|term| term.epoch == renewed.epoch) {
                    self.gate.set(Some(Term { epoch: renewed.epoch, until: renewed.until }));
                }
            }
            Event::Deposed { .. } => {
                self.gate.set(None);
                self.health.role_known();
            }
            Event::Desired(desired) => {
                self.health.manifests_read();
                self.outlook.send_modify(|it| it.desired = Some(Arc::clone(desired)));
            }
            Event::Hello(..)
            | Event::Report(..)
            | Event::Beat(..)
            | Event::Closed(_)
            | Event::Sent(_)
            | Event::Registered(_)
            | Event::Gone(_)
            | Event::Drain(_)
            | Event::TermStands { .. }
            | Event::Wake => {}
        }
        self.metrics.count_event(&event);
        self.core.handle(event, at);
        self.progress.made();
        1
    }

    fn settle(&mut self, events: usize, heard: Moment) {
        let now = clock::now();
        let span = tracing::debug_span!("settle", events);
        let _entered = (events > 0).then(|| span.enter());
        let start = Instant::now();
        self.core.settle(now, heard);
        self.metrics.settled(start.elapsed());
        self.progress.made();
        let leadership = self.core.leadership();
        match leadership {
            Leadership::Leads(epoch) => self.metrics.set_leadership(Some(epoch)),
            Leadership::StandsBy(_) => self.metrics.set_leadership(None),
        }
        let held = self.workers_held(&leadership, now);
        self.outlook.send_if_modified(|outlook| {
            let held = held.filter(|held| *held != *outlook.held);
            let is_new = outlook.leadership != leadership || held.is_some();
            outlook.leadership = leadership;
            if let Some(held) = held {
                outlook.held = Arc::new(held);
            }
            is_new
        });
        if self.metrics.is_pushed() && now.since(self.figures_at) >= FIGURES_EVERY {
            self.figures_at = now;
            self.metrics.set_fleet(Fleet::of(&self.core, now));
        }
    }

    /// The workers that classes hold, where it is time to look; none where this replica does not
    /// lead.
    fn workers_held(
        &mut self,
        leadership: &Leadership,
        now: Moment,
    ) -> Option<BTreeMap<ClusterName, u32>> {
        match leadership {
            Leadership::StandsBy(_) => Some(BTreeMap::new()),
            Leadership::Leads(_) if now.since(self.held_at) < HELD_EVERY => None,
            Leadership::Leads(_) => {
                self.held_at = now;
                Some(self.core.workers_held(now))
            }
        }
    }

    fn count_problems(&mut self) {
        let problems = self.problems_seen.borrow_and_update().len();
        self.metrics.set_problems(problems);
        let change = Change::Manifests { problems };
        self.history.note(change, &self.changes, clock::now());
    }

    /// Stops granting, sends every agent away, and gives up leadership.
    async fn stop(&mut self) {
        self.health.stops();
        self.take(Event::Deposed { leader: None }, clock::now());
        self.settle(1, Moment(0));
        self.carry_out();
        for (_, slot) in self.sessions.drain() {
            let reason = RefusalReason::GoAway;
            let refusal = Refusal { reason, message: "the coordinator shuts down".into() };
            // Where there is no room the agent finds out by the end of the stream.
            let _ = slot.try_send(Box::new(CoordinatorMessage::Refusal(refusal)));
        }
        self.metrics.set_sessions(0);
        let (resigned, answer) = oneshot::channel();
        self.outbox.push(Command::Resign(resigned));
        let resigns = async {
            while !self.outbox.is_empty() && self.outbox.send_one(&self.platform.commands).await {}
            // A platform that ended before it answered holds no leadership either.
            let _ = answer.await;
        };
        if timeout(RESIGN_WITHIN, resigns).await.is_err() {
            tracing::warn!("the platform did not give leadership up in time; it runs out");
        }
    }
}
