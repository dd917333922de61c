//! A driver over channels, with turns that take long.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc as threads};
use std::time::Duration;

use futures_util::poll;
use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::desired::{
    Cluster, Desired, Mode, Moves, Policy, Stream, StreamSet,
};
use leasehold_coordinator_core::effect::{Notice, Order};
use leasehold_coordinator_core::event::{ConnId, Elected, Event, Renewed};
use leasehold_types::limits::NamespaceShare;
use leasehold_types::message::{
    AgentMessage, Beat, CoordinatorMessage, Grant, HeldPool, Hello, Report,
};
use leasehold_types::{
    ClusterName, Epoch, Moment, Nonce, SetName, StreamName, TermId, TimeBounds, WorkerKey,
    WorkerName,
};
use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use super::{Driver, Envelope, FleetChange, Handle, SessionPort, Settings};
use crate::access::{Access, Caller};
use crate::clock;
use crate::freshness::Freshness;
use crate::metrics::{Exposition, Metrics};
use crate::order::{OrderKind, WorkerOrder};
use crate::platform::{Command, Platform};
use crate::port::{SessionEvent, SessionSlot};

const LONG: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(1);
const CONN: ConnId = ConnId(1);
/// Queries that people ask at once, and how long each takes.
const SLOW_QUERIES: usize = 60;
const SLOW_QUERY: Duration = Duration::from_millis(20);

/// A leading driver with one agent.
struct LeadingDriver {
    port: SessionPort,
    handle: Handle,
    slot: mpsc::Receiver<Box<CoordinatorMessage>>,
    nonce: Nonce,
    pool: Option<HeldPool>,
    _stop: watch::Sender<bool>,
}

impl LeadingDriver {
    async fn start() -> Self {
        let (events, events_out) = mpsc::channel(64);
        let (commands, commands_out) = mpsc::channel(64);
        let (_, problems) = watch::channel(Arc::default());
        let (_, freshness) = watch::channel(Freshness::confirmed(Moment::NEVER));
        let platform = Platform {
            events: events_out,
            commands,
            problems,
            freshness,
            cell: watch::channel(None).1,
            replicas: watch::channel(Arc::default()).1,
            access: Access::Open,
            progress: Arc::default(),
            handle_sender: None,
        };
        let bounds = TimeBounds { drift_ppm: 0, margin: Duration::from_millis(2) };
        let namespace_share = NamespaceShare::WHOLE;
        let settings = Settings { bounds, sessions_max: 10, namespace_share };
        let meter = SdkMeterProvider::default().meter("test");
        let metrics = Metrics::new(meter, &mut Exposition::default(), false);
        let (driver, port, handle) = Driver::new(&settings, platform, Arc::new(metrics));
        let (stop, stops) = watch::channel(false);
        driver.start(stops).expect("a driver");
        events.send(Event::Desired(Arc::new(desired()))).await.expect("a driver");
        let now = clock::now();
        let elected = Elected {
            epoch: Epoch(1),
            term: TermId(0),
            cell: None,
            until: now + LONG,
            predecessor_end: now,
            exposed: BTreeMap::new(),
            unreadable: Default::default(),
        };
        events.send(Event::Elected(elected)).await.expect("a driver");
        tokio::spawn(run_platform(commands_out, events));
        let (slot_in, slot) = mpsc::channel(3);
        let driver = Self { port, handle, slot, nonce: Nonce(0), pool: None, _stop: stop };
        driver.put(SessionEvent::Opened(SessionSlot::new(slot_in).0));
        driver
    }

    fn put(&self, event: SessionEvent) {
        self.port.events.try_send(Envelope::new(CONN, event, clock::now())).expect("room");
    }

    async fn next(&mut self) -> CoordinatorMessage {
        let message = timeout(LONG, self.slot.recv()).await.expect("in time").expect("a message");
        self.port.sent.push(CONN);
        *message
    }

    async fn grant(&mut self) -> Grant {
        match self.next().await {
            CoordinatorMessage::Grant(grant) => grant,
            other => panic!("expected a grant: {other:?}"),
        }
    }

    /// Says hello and reports nothing held.
    async fn join(&mut self) {
        let worker = WorkerKey {
            cluster: ClusterName::new("crawl").expect("a name"),
            worker: WorkerName::new("w-0").expect("a name"),
        };
        self.put(SessionEvent::Agent(AgentMessage::Hello(Hello {
            epoch_seen: Some(Epoch(1)),
            ..Hello::example(worker)
        })));
        let welcome = self.next().await;
        assert!(matches!(welcome, CoordinatorMessage::Welcome(_)), "{welcome:?}");
        self.nonce = self.nonce.next();
        let report = Report { nonce: self.nonce, ..Report::example() };
        self.put(SessionEvent::Agent(AgentMessage::Report(report)));
    }

    fn beat(&mut self, grant: &Grant) {
        self.nonce = self.nonce.next();
        if let Some(pool) = grant.pool {
            self.pool = Some(HeldPool {
                token: pool.token,
                size: pool.size,
                granted: pool.size,
                floor: pool.floor,
            });
        }
        self.put(SessionEvent::Agent(AgentMessage::Beat(Beat {
            nonce: self.nonce,
            applied: grant.number,
            pool: self.pool,
            ..Beat::example()
        })));
    }

    /// Blocks the driver in a query until the returned sender is dropped.
    async fn occupy(&self) -> threads::Sender<()> {
        let (end, ended) = threads::channel::<()>();
        let (begin, mut begun) = mpsc::channel(1);
        let handle = self.handle.clone();
        tokio::spawn(async move {
            let question = move |_: &Core, _: Moment| {
                let _ = begin.try_send(());
                let _ = ended.recv();
            };
            handle.ask(question).await
        });
        begun.recv().await.expect("the query has begun");
        end
    }
}

#[tokio::test]
async fn a_slow_turn_frees_no_stream_before_its_holder_stops() {
    let mut driver = LeadingDriver::start().await;
    driver.join().await;
    let mut grant = driver.grant().await;
    while grant.streams.is_empty() {
        driver.beat(&grant);
        grant = driver.grant().await;
    }
    let mut changes = driver.handle.watch().expect("a driver");
    let occupied = driver.occupy().await;
    // The turn that takes the beat begins long before the beat is sent.
    sleep(TTL / 2).await;
    let sent_at = clock::now();
    driver.beat(&grant);
    drop(occupied);
    while grant.nonce != driver.nonce {
        grant = driver.grant().await;
    }
    // The holder may use the stream until then. It sends nothing more.
    let holder_end = sent_at + TTL;
    loop {
        let change = timeout(LONG, changes.recv()).await.expect("in time").expect("a change");
        if let FleetChange::Notice(Notice::StreamFreed { stream, .. }) = &change.change {
            let early = holder_end.since(clock::now());
            assert!(early.is_zero(), "{stream} was freed {early:?} before its holder stops");
            return;
        }
    }
}

#[tokio::test]
async fn an_order_is_answered_once_every_later_query_shows_its_effect() {
    let mut driver = LeadingDriver::start().await;
    driver.join().await;
    driver.grant().await;
    driver.put(SessionEvent::Closed);
    let worker = WorkerKey {
        cluster: ClusterName::new("crawl").expect("a name"),
        worker: WorkerName::new("w-0").expect("a name"),
    };
    let occupied = driver.occupy().await;
    // The driver takes the order and then a query that blocks it, both in one turn.
    let order =
        WorkerOrder { kind: OrderKind::DeclareGone, worker: worker.clone(), by: Caller::Unknown };
    let mut answer = pin!(driver.handle.order(move |_, _| (vec![order], ())));
    assert!(poll!(&mut answer).is_pending());
    let mut occupied_again = pin!(driver.occupy());
    assert!(poll!(&mut occupied_again).is_pending());
    yield_now().await;
    drop(occupied);
    let occupied_again = occupied_again.await;
    assert!(poll!(&mut answer).is_pending(), "the worker's account has not ended yet");
    drop(occupied_again);
    assert_eq!(timeout(LONG, answer).await.expect("in time"), Ok(()));
    let known = driver.handle.ask(move |core, now| core.worker(&worker, now).is_some()).await;
    assert_eq!(known, Ok(false));
}

#[tokio::test]
async fn what_people_ask_does_not_delay_the_operator() {
    let driver = LeadingDriver::start().await;
    let (people, answered) = (driver.handle.for_people(), Arc::<AtomicUsize>::default());
    let mut asked = JoinSet::new();
    for _ in 0..SLOW_QUERIES {
        let (people, answered) = (people.clone(), Arc::clone(&answered));
        asked.spawn(async move {
            let slow = move |_: &Core, _| {
                std::thread::sleep(SLOW_QUERY);
                answered.fetch_add(1, Ordering::Relaxed);
            };
            people.ask(slow).await
        });
    }
    while answered.load(Ordering::Relaxed) == 0 {
        yield_now().await;
    }
    let before = driver.handle.ask(move |_, _| answered.load(Ordering::Relaxed)).await;
    let before = before.expect("a driver");
    assert!(before < SLOW_QUERIES / 2, "{before} of {SLOW_QUERIES} were answered before");
}

#[tokio::test]
async fn a_hanging_driver_is_stalled_until_it_makes_progress_again() {
    let driver = LeadingDriver::start().await;
    assert!(!driver.port.progress.is_stalled());
    let occupied = driver.occupy().await;
    timeout(LONG, driver.port.progress.stalled()).await.expect("the watchdog notices it");
    assert!(driver.port.progress.is_stalled());
    drop(occupied);
    let recovered = async {
        while driver.port.progress.is_stalled() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, recovered).await.expect("the driver makes progress again");
}

/// One cluster with one stream, whose lease ends by time.
fn desired() -> Desired {
    let crawl = ClusterName::new("crawl").expect("a name");
    let cluster = Cluster {
        jobs_max: 8,
        jobs_per_worker_max: 3,
        drain_deadline: LONG,
        ttl: TTL,
        ..Cluster::example()
    };
    let stream =
        Stream { name: StreamName::new("a").expect("a name"), weight: 1, dedicated: false };
    let set = StreamSet {
        cluster: crawl.clone(),
        streams: Arc::new(vec![stream]),
        policy: Policy::Sticky,
        mode: Mode::Expiring,
        handover_deadline: LONG,
        moves: Moves {
            per_round_max: 100,
            cooldown: Duration::ZERO,
            settle: Duration::from_millis(1),
        },
    };
    Desired {
        clusters: BTreeMap::from([(crawl, Arc::new(cluster))]),
        sets: BTreeMap::from([(SetName::new("feeds").expect("a name"), Arc::new(set))]),
        ..Desired::default()
    }
}

/// A platform that runs every command at once.
async fn run_platform(mut commands: mpsc::Receiver<Command>, events: mpsc::Sender<Event>) {
    while let Some(command) = commands.recv().await {
        let event = match command {
            Command::Order { order: Order::Register(workers), .. } => Event::Registered(workers),
            Command::Order { order: Order::Unregister(workers), .. } => {
                Event::Unregistered(workers)
            }
            Command::Order { epoch, order: Order::Confirm } => {
                let now = clock::now();
                Event::Renewed(Renewed { epoch, sent_at: now, until: now + LONG })
            }
            Command::Order { .. } => continue,
            Command::ConfirmEntries { done, .. } => {
                let _ = done.send(());
                continue;
            }
            Command::Resign(answer) => {
                let _ = answer.send(());
                continue;
            }
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}
