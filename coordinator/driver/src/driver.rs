//! One task owns a core, reads the clock, and moves events in and effects out. Everything else
//! reaches the core through the bounded channels here; a full one slows its sender, never the
//! driver.

mod change_trace;
mod cluster_changes;
mod effects;
mod notices;
mod orders;
mod outbox;
mod read_watermark;
mod requests;
mod sessions;
#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use leasehold_coordinator_core::core::{Config, Core};
use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_coordinator_core::turn::{PLATFORM_BATCH_MAX, Turn, Watermark};
use leasehold_coordinator_core::view::Leadership;
use leasehold_types::limits::{NamespaceShare, WORKERS_MAX};
use leasehold_types::message::{CoordinatorMessage, Refusal, RefusalReason};
use leasehold_types::{ClusterName, Epoch, Moment, TimeBounds};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};
use tracing::Span;

use self::change_trace::ChangeTrace;
use self::cluster_changes::ClusterChanges;
use self::orders::PendingOrders;
use self::outbox::Outbox;
use self::read_watermark::WatermarkTask;
use self::requests::{Asker, RequestSenders, Requests};
use crate::access::Access;
use crate::clock;
use crate::health::{Health, Progress};
use crate::history::{FleetChange, History, RecordedChange};
use crate::metrics::{FleetSnapshot, Metrics, SampledSpan};
use crate::platform::{Command, Platform};
use crate::port::{
    Envelope, Handle, Request, SESSION_QUEUE_MAX, SessionPort, SessionSlot, UNAUTHENTICATED_MAX,
};
use crate::sent_queue::SentQueue;
use crate::term_guard::{Term, TermGuard};
use crate::view::{PublishedState, PublishedView};

/// A driver takes a turn at least this often; the liveness probe relies on it.
pub const TICK: Duration = Duration::from_millis(500);
/// The shortest sleep, so that repeated wake-ups of the core do not spin.
const SLEEP_MIN: Duration = Duration::from_millis(1);
/// Requests of a queue that are taken in one turn.
const REQUEST_BATCH_MAX: usize = 16;
/// How long a turn takes requests of a queue; the others wait for a later turn.
const REQUEST_TIME_MAX: Duration = Duration::from_millis(10);
/// A turn that takes longer is logged.
const TURN_LONG: Duration = Duration::from_millis(50);
/// The time between two log lines about long turns.
const TURN_LONG_LOG_INTERVAL: Duration = Duration::from_secs(10);
/// The changes by which a watcher may lag behind.
const CHANGES_MAX: usize = 8_192;
/// The other events that a session may have in the channel: opened, closed.
const EVENTS_BESIDE_MESSAGES: usize = 2;
/// How often the metrics of clusters are refreshed for exporters that push.
const FLEET_METRICS_INTERVAL: Duration = Duration::from_secs(10);
/// How often the workers that cannot be spared are counted, for autoscalers.
const REQUIRED_INTERVAL: Duration = Duration::from_secs(1);
/// How long a platform may take to release leadership at shutdown.
const RESIGN_TIMEOUT: Duration = Duration::from_millis(1_000);

/// A driver's settings.
#[derive(Debug)]
pub struct Settings {
    /// How far clocks may drift apart.
    pub bounds: TimeBounds,
    /// The most agents that may be connected.
    pub sessions_max: usize,
    /// The part of the limits that one namespace may use.
    pub namespace_share: NamespaceShare,
}

/// The task that owns a core.
#[derive(Debug)]
pub struct Driver {
    core: Core,
    sessions: HashMap<ConnId, SessionSlot>,
    events: mpsc::Receiver<Envelope>,
    sent: Arc<SentQueue>,
    requests: Requests,
    platform: Platform,
    problems_seen: watch::Receiver<Arc<Vec<leasehold_manifest::Problem>>>,
    outbox: Outbox,
    changes: broadcast::Sender<Arc<RecordedChange>>,
    cluster_changes: ClusterChanges,
    change_trace: ChangeTrace,
    history: Arc<History>,
    term_guard: Arc<TermGuard>,
    health: Arc<Health>,
    progress: Arc<Progress>,
    metrics: Arc<Metrics>,
    published: watch::Sender<PublishedState>,
    leadership: watch::Sender<Leadership>,
    /// Orders whose effect queries do not show yet.
    pending_orders: Vec<PendingOrders>,
    /// The moment up to which all messages of sessions were taken.
    taken: Watermark,
    log: notices::LeaseLog,
    fleet_metrics_at: Moment,
    required_at: Moment,
    long_turn_logged_at: Moment,
}

/// On Kubernetes the API server authenticates agents, a pod's uid identifies its agent, and only
/// the newest pod of a name is authorized. Elsewhere the core reserves each name for the agent that
/// has it: two agents may have a copy of one certificate.
fn core_config(settings: &Settings, access: &Access) -> Config {
    let keeps_names = match access {
        Access::Open | Access::Certificates => true,
        Access::Asked(_) => false,
    };
    let workers_per_namespace_max = settings.namespace_share.of(WORKERS_MAX);
    let bounds = settings.bounds;
    Config { bounds, keeps_names, workers_per_namespace_max, ..Config::default() }
}

/// Why a driver took a turn.
enum WakeReason {
    Session(Envelope),
    Platform(Option<Event>),
    Request(Request),
    Commands(bool),
    Sent,
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
        // The channel is never full: sessions are limited, and so are the events of each. The rest
        // is for sessions that have just ended, whose last message is written.
        let events_max =
            sessions_max * (SESSION_QUEUE_MAX + EVENTS_BESIDE_MESSAGES) + UNAUTHENTICATED_MAX;
        let (events_in, events) = mpsc::channel(events_max);
        let sent = Arc::<SentQueue>::default();
        let (requests_in, requests) = Requests::new();
        let (changes, _) = broadcast::channel(CHANGES_MAX);
        let cluster_changes = ClusterChanges::new();
        let term_guard = Arc::new(TermGuard::default());
        let health = Arc::new(Health::new(clock::now(), Arc::clone(&platform.progress)));
        let progress = Arc::clone(&platform.progress);
        let problems = platform.problems.clone();
        let (published, published_watch) = watch::channel(PublishedState::default());
        let (leadership, leadership_watch) = watch::channel(Leadership::Standby(None));
        let view = Arc::new(PublishedView::new(
            published_watch,
            leadership_watch,
            platform.freshness.clone(),
            Arc::clone(&term_guard),
            Arc::clone(&health),
        ));
        metrics.show_view(&view);
        metrics.set_sessions_max(sessions_max);
        let port = SessionPort {
            events: events_in,
            sent: Arc::clone(&sent),
            term_guard: Arc::clone(&term_guard),
            view: Arc::clone(&view),
            health: Arc::clone(&health),
            progress: Arc::clone(&platform.progress),
            metrics: Arc::clone(&metrics),
            access: platform.access.clone(),
            sessions_max,
            namespace_share: settings.namespace_share,
        };
        let history = Arc::new(History::new(changes.downgrade()));
        let RequestSenders { of_operator, of_people } = requests_in;
        let handle = Handle {
            requests: of_operator,
            of_people,
            changes: changes.downgrade(),
            changed_clusters: cluster_changes.sender(),
            history: Arc::clone(&history),
            problems,
            view,
            metrics: Arc::clone(&metrics),
        };
        if let Some(handle_sender) = platform.handle_sender.take() {
            // If the platform has already ended, its closed channels show it.
            let _ = handle_sender.send(handle.clone());
        }
        let driver = Self {
            core: Core::new(core_config(settings, &port.access)),
            sessions: HashMap::new(),
            events,
            sent,
            requests,
            problems_seen: platform.problems.clone(),
            platform,
            outbox: Outbox::default(),
            changes,
            cluster_changes,
            change_trace: ChangeTrace::default(),
            history,
            term_guard,
            health,
            progress,
            metrics,
            published,
            leadership,
            pending_orders: Vec::new(),
            taken: Watermark::default(),
            log: notices::LeaseLog::default(),
            fleet_metrics_at: Moment::EARLIEST,
            required_at: Moment::EARLIEST,
            long_turn_logged_at: Moment::EARLIEST,
        };
        (driver, port, handle)
    }

    /// Drives the core until `stop` is true, then releases leadership. The driver has a thread of
    /// its own, so that a long turn does not keep the sessions' tasks from reading. Returns a
    /// channel that resolves when the driver ends.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        self,
        stop: watch::Receiver<bool>,
    ) -> anyhow::Result<oneshot::Receiver<anyhow::Result<()>>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let watermark = WatermarkTask::start(Arc::clone(&self.progress));
        let (ended, end) = oneshot::channel();
        std::thread::Builder::new().name("driver".into()).spawn(move || {
            // The process is about to exit: nothing waits for this task.
            let _ = ended.send(runtime.block_on(self.run(stop, watermark)));
        })?;
        Ok(end)
    }

    /// Runs turns until `stop` is true; fails if the platform ends first.
    async fn run(
        mut self,
        mut stop: watch::Receiver<bool>,
        watermark: WatermarkTask,
    ) -> anyhow::Result<()> {
        self.count_problems();
        loop {
            let woken = self.next_turn(&mut stop).await;
            let begun = clock::now();
            let mut turn = Turn::begin(begun);
            // Sampled before the queue is drained: every message that was read before it is queued
            // or handled.
            let read = watermark.read();
            let mut events = 0;
            match woken {
                WakeReason::Session(envelope) => events += self.take_envelope(envelope, &turn),
                WakeReason::Platform(Some(event)) => events += self.take(event, clock::now()),
                WakeReason::Platform(None) | WakeReason::Commands(false) => {
                    bail!("the platform has stopped; the log lines above say why")
                }
                WakeReason::Request(request) => events += self.take_request(request),
                WakeReason::Problems => self.count_problems(),
                WakeReason::Commands(true) | WakeReason::Sent | WakeReason::Time => {}
                WakeReason::Stop => break,
            }
            events += self.take_queued(&mut turn);
            let settled = self.settle(events, self.taken.heard(read));
            self.run_effects();
            self.cluster_changes.publish(&self.core, clock::now());
            self.answer_orders();
            self.record_turn(begun, settled);
        }
        self.stop().await;
        Ok(())
    }

    fn record_turn(&mut self, begun: Moment, settled: Option<SampledSpan>) {
        let now = clock::now();
        let took = now.since(begun);
        self.health.record_turn(now);
        self.progress.record();
        self.metrics.record_turn(took, settled);
        // Long turns are normal in a debug build.
        let is_long = took > TURN_LONG && !cfg!(debug_assertions);
        if is_long && now.since(self.long_turn_logged_at) >= TURN_LONG_LOG_INTERVAL {
            self.long_turn_logged_at = now;
            tracing::warn!(took_ms = took.as_millis(), "slow turn of the driver");
        }
    }

    async fn next_turn(&mut self, stop: &mut watch::Receiver<bool>) -> WakeReason {
        let now = clock::now();
        // Work that is due and was not done waits until all messages have been read.
        let wake = self
            .core
            .poll_timeout()
            .map_or(TICK, |wakeup| if wakeup.at > now { wakeup.at.since(now) } else { TICK });
        // Remaining slices run at once, after the events that have arrived meanwhile.
        let more = self.core.has_more();
        let commands = &self.platform.commands;
        // The platform first: its events about a pod must be taken before messages of a later pod
        // of the same name. It has few events and commands, so the sessions do not starve; behind
        // the sessions its commands would.
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => WakeReason::Stop,
            event = self.platform.events.recv() => WakeReason::Platform(event),
            sent = self.outbox.send_one(commands), if !self.outbox.is_empty() => {
                WakeReason::Commands(sent)
            }
            Some(envelope) = self.events.recv() => WakeReason::Session(envelope),
            () = self.sent.awaited(self.core.holds_back()) => WakeReason::Sent,
            Some(request) = self.requests.next() => WakeReason::Request(request),
            Ok(()) = self.problems_seen.changed() => WakeReason::Problems,
            () = std::future::ready(()), if more => WakeReason::Time,
            () = sleep(wake.clamp(SLEEP_MIN, TICK)) => WakeReason::Time,
        }
    }

    /// Takes everything that is queued, so that it is planned together.
    fn take_queued(&mut self, turn: &mut Turn) -> usize {
        let mut events = self.take_sent();
        for _ in 0..PLATFORM_BATCH_MAX {
            let Ok(event) = self.platform.events.try_recv() else { break };
            events += self.take(event, clock::now());
        }
        loop {
            let checked_at = clock::now();
            if !turn.takes(checked_at) {
                break;
            }
            let Ok(envelope) = self.events.try_recv() else {
                self.taken.emptied(checked_at);
                break;
            };
            events += self.take_envelope(envelope, turn);
        }
        events += Asker::ALL.map(|asker| self.take_requests(asker)).iter().sum::<usize>();
        let now = clock::now();
        if self.core.poll_timeout().is_some_and(|wakeup| wakeup.at <= now) {
            events += self.take(Event::Wake, now);
        }
        events
    }

    /// Takes requests of one queue, as many as a turn has time for.
    fn take_requests(&mut self, asker: Asker) -> usize {
        let mut events = 0;
        let begun = clock::now();
        for _ in 0..REQUEST_BATCH_MAX {
            if clock::now().since(begun) > REQUEST_TIME_MAX {
                break;
            }
            let Some(request) = self.requests.take(asker) else { break };
            events += self.take_request(request);
            self.progress.record();
        }
        events
    }

    /// The epoch in which this replica leads.
    fn term(&self) -> Option<Epoch> {
        match self.core.leadership() {
            Leadership::Leader(epoch) => Some(epoch),
            Leadership::Standby(_) => None,
        }
    }

    fn take(&mut self, event: Event, at: Moment) -> usize {
        let mut span = Span::none();
        match &event {
            Event::Elected(elected) => {
                self.term_guard.set(Some(Term { epoch: elected.epoch, until: elected.until }));
                self.health.set_role_known();
            }
            Event::Renewed(renewed) => {
                if self.term_guard.term().is_some_and(|term| term.epoch == renewed.epoch) {
                    self.term_guard.set(Some(Term { epoch: renewed.epoch, until: renewed.until }));
                }
            }
            Event::Deposed { .. } => {
                self.term_guard.set(None);
                self.health.set_role_known();
            }
            Event::Desired(desired) => {
                span = self.change_trace.begin(at);
                self.health.set_manifests_read();
                self.published
                    .send_modify(|published| published.desired = Some(Arc::clone(desired)));
            }
            Event::Hello(..)
            | Event::Report(..)
            | Event::Beat(..)
            | Event::Closed(_)
            | Event::Sent(_)
            | Event::NamespacesRead(_)
            | Event::Registered(_)
            | Event::Unregistered(_)
            | Event::Gone(_)
            | Event::Removed(_)
            | Event::Drain(_)
            | Event::Undrain(_)
            | Event::Avoid(_)
            | Event::TermStands { .. }
            | Event::Wake => {}
        }
        self.metrics.count_event(&event, at);
        self.cluster_changes.record_event(&event);
        span.in_scope(|| self.core.handle(event, at));
        self.progress.record();
        1
    }

    /// Plans and grants. Returns the span of that, if it is sampled.
    fn settle(&mut self, events: usize, heard: Moment) -> Option<SampledSpan> {
        let now = clock::now();
        let span = self.change_trace.settle(events, now);
        let _entered = (events > 0).then(|| span.enter());
        let start = Instant::now();
        self.core.settle(now, heard);
        let (took, sampled) = (start.elapsed(), SampledSpan::of(&span));
        self.metrics.record_settle(took, sampled);
        self.progress.record();
        let leadership = self.core.leadership();
        match leadership {
            Leadership::Leader(epoch) => self.metrics.set_leadership(Some(epoch)),
            Leadership::Standby(_) => self.metrics.set_leadership(None),
        }
        let required = self.workers_required(&leadership, now);
        self.published.send_if_modified(|published| {
            let required = required.filter(|required| *required != *published.required);
            let Some(required) = required else { return false };
            published.required = Arc::new(required);
            true
        });
        self.leadership
            .send_if_modified(|known| std::mem::replace(known, leadership.clone()) != leadership);
        if self.metrics.is_pushed() && now.since(self.fleet_metrics_at) >= FLEET_METRICS_INTERVAL {
            self.fleet_metrics_at = now;
            self.metrics.set_fleet(FleetSnapshot::of(&self.core, now));
        }
        sampled
    }

    /// The number of workers that each class cannot spare; `None` if they were counted less than
    /// [`REQUIRED_INTERVAL`] ago. The map is empty if this replica does not lead.
    fn workers_required(
        &mut self,
        leadership: &Leadership,
        now: Moment,
    ) -> Option<BTreeMap<ClusterName, u32>> {
        match leadership {
            Leadership::Standby(_) => Some(BTreeMap::new()),
            Leadership::Leader(_) if now.since(self.required_at) < REQUIRED_INTERVAL => None,
            Leadership::Leader(_) => {
                self.required_at = now;
                Some(self.core.workers_required(now))
            }
        }
    }

    fn count_problems(&mut self) {
        let problems = self.problems_seen.borrow_and_update().len();
        self.metrics.set_problems(problems);
        let change = FleetChange::Manifests { problems };
        self.history.note(change, &self.changes, clock::now());
    }

    /// Stops granting, ends every session, and releases leadership.
    async fn stop(&mut self) {
        self.health.set_stopping();
        self.take(Event::Deposed { leader: None }, clock::now());
        self.settle(1, Moment::EARLIEST);
        self.run_effects();
        for (_, slot) in self.sessions.drain() {
            let reason = RefusalReason::GoAway;
            let refusal =
                Refusal { reason, message: "the coordinator is shutting down: dial again".into() };
            // If there is no room, the end of the stream shows it to the agent.
            let _ = slot.try_send(CoordinatorMessage::Refusal(refusal));
        }
        self.metrics.set_sessions(0);
        let (resigned, answer) = oneshot::channel();
        self.outbox.push(Command::Resign(resigned));
        let resign = async {
            while !self.outbox.is_empty() && self.outbox.send_one(&self.platform.commands).await {}
            // A platform that ended before it answered holds no leadership either.
            let _ = answer.await;
        };
        if timeout(RESIGN_TIMEOUT, resign).await.is_err() {
            tracing::warn!("the platform did not release leadership in time; it will expire");
        }
    }
}
