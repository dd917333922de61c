//! A complete replica in this process, over a platform that the test controls.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator::run::{Options, Sockets, serve};
use leasehold_coordinator_core::desired::{
    Cluster, Desired, Mode, Moves, Policy, Stream, StreamSet,
};
use leasehold_coordinator_core::effect::Order;
use leasehold_coordinator_core::event::{Elected, Event, KnownLeader, Renewed};
use leasehold_driver::access::Access;
use leasehold_driver::clock;
use leasehold_driver::freshness::Freshness;
use leasehold_driver::platform::{Command, Platform};
use leasehold_manifest::Problem;
use leasehold_types::{ClusterName, Epoch, Moment, SetName, StreamName, TermId};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// How long a test waits before it fails; no test asserts a duration with it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// The interval between two polls.
const POLL: Duration = Duration::from_millis(20);

/// The output of `work`, which must come in time.
pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    timeout(PATIENCE, work).await.expect("it did not come to that in time")
}

/// Polls `ask` until it returns a value, which must come in time.
pub(crate) async fn until<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    soon(async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            sleep(POLL).await;
        }
    })
    .await
}

pub(crate) struct Replica {
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) problems: watch::Sender<Arc<Vec<Problem>>>,
    pub(crate) freshness: watch::Sender<Freshness>,
    resigned: watch::Receiver<bool>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Replica {
    /// A replica that has read no manifests and has no role yet.
    pub(crate) async fn start(options: Options) -> Self {
        Self::start_with(options, Access::Open).await
    }

    /// The same, with `access`.
    pub(crate) async fn start_with(options: Options, access: Access) -> Self {
        Self::start_on(options, access, Store::Answers).await
    }

    async fn start_on(options: Options, access: Access, store: Store) -> Self {
        let any = "127.0.0.1:0".parse().expect("an address");
        let sockets = Sockets::bind(any, any).expect("sockets");
        let (grpc, http) = (sockets.grpc_addr(), sockets.http_addr());
        let (events, events_out) = mpsc::channel(64);
        let (commands, commands_out) = mpsc::channel(64);
        let (problems, problems_out) = watch::channel(Arc::default());
        let (resigned_in, resigned) = watch::channel(false);
        tokio::spawn(run_platform(commands_out, events.clone(), resigned_in, store));
        let (freshness, freshness_out) = watch::channel(Freshness::confirmed(Moment::NEVER));
        let platform = Platform {
            events: events_out,
            commands,
            problems: problems_out,
            freshness: freshness_out,
            cell: watch::channel(None).1,
            replicas: watch::channel(Arc::default()).1,
            access,
            progress: Arc::default(),
            handle_sender: None,
        };
        let (stop, stops) = oneshot::channel();
        let stops = async move {
            let _ = stops.await;
        };
        let task = tokio::spawn(serve(options, sockets, platform, stops));
        let (grpc, http) = (grpc.expect("an address"), http.expect("an address"));
        Self { grpc, http, events, problems, freshness, resigned, stop, task }
    }

    /// A replica that leads epoch 1 over [`desired`].
    pub(crate) async fn leading() -> Self {
        Self::leading_on(Store::Answers).await
    }

    /// The same, over this store of leadership.
    pub(crate) async fn leading_on(store: Store) -> Self {
        Self::lead(Self::start_on(options(), Access::Open, store).await).await
    }

    /// The same, with other options.
    pub(crate) async fn leading_with(options: Options) -> Self {
        Self::lead(Self::start(options).await).await
    }

    async fn lead(replica: Self) -> Self {
        replica.send(Event::Desired(Arc::new(desired()))).await;
        replica.elect(1, LONG).await;
        replica
    }

    pub(crate) async fn send(&self, event: Event) {
        self.events.send(event).await.expect("a driver");
    }

    pub(crate) async fn elect(&self, epoch: u64, leadership: Duration) {
        let now = clock::now();
        let elected = Elected {
            epoch: Epoch(epoch),
            term: TermId(0),
            cell: None,
            until: now + leadership,
            predecessor_end: now,
            exposed: BTreeMap::new(),
            unreadable: Default::default(),
        };
        self.send(Event::Elected(elected)).await;
    }

    /// Another replica leads, in an epoch that the platform does not know.
    pub(crate) async fn depose(&self, leader: &str) {
        let leader = KnownLeader { address: leader.into(), epoch: None };
        self.send(Event::Deposed { leader: Some(leader) }).await;
    }

    /// Stops the replica as a signal would. Returns whether it released leadership.
    pub(crate) async fn stop(self) -> bool {
        self.stop.send(()).expect("a replica that runs");
        let ended =
            timeout(PATIENCE, self.task).await.expect("an end").expect("the task has not panicked");
        ended.expect("a clean end");
        *self.resigned.borrow()
    }
}

pub(crate) fn options() -> Options {
    Options { sessions_max: 100, ..Options::default() }
}

/// One cluster `crawl` of 8 slots, 3 a worker, and the streams a, b, c, d of the set `feeds`.
pub(crate) fn desired() -> Desired {
    let crawl = ClusterName::new("crawl").expect("a name");
    let cluster = Cluster {
        jobs_max: 8,
        jobs_per_worker_max: 3,
        drain_deadline: LONG,
        ttl: Duration::from_secs(60),
        ..Cluster::example()
    };
    let stream = |name: &str| Stream {
        name: StreamName::new(name).expect("a name"),
        weight: 1,
        dedicated: false,
    };
    let set = StreamSet {
        cluster: crawl.clone(),
        streams: Arc::new(["a", "b", "c", "d"].map(stream).into()),
        policy: Policy::Sticky,
        mode: Mode::Expiring,
        handover_deadline: Duration::from_secs(30),
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

/// Whether the store of leadership answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Answers,
    Hangs,
}

/// A platform that runs every command at once, unless its store hangs.
async fn run_platform(
    mut commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<Event>,
    resigned: watch::Sender<bool>,
    store: Store,
) {
    while let Some(command) = commands.recv().await {
        let event = match command {
            Command::Order { .. } if store == Store::Hangs => continue,
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
                if store != Store::Hangs {
                    let _ = done.send(());
                }
                continue;
            }
            Command::Resign(answer) => {
                resigned.send_replace(true);
                let _ = answer.send(());
                continue;
            }
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}
