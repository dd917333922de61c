//! A coordinator that leads: a driver with a desired state, the services for people and
//! autoscalers over it, and its HTTP port, without sockets. No input changes it: no worker is
//! connected that an order could reach.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use leasehold_coordinator_core::desired::Desired;
use leasehold_coordinator_core::event::{Elected, Event};
use leasehold_coordinator_core::view::Leadership;
use leasehold_driver::access::Access;
use leasehold_driver::clock;
use leasehold_driver::driver::{Driver, Settings};
use leasehold_driver::freshness::Freshness;
use leasehold_driver::metrics::{Exposition, Metrics};
use leasehold_driver::platform::Platform;
use leasehold_driver::port::Handle;
use leasehold_driver::replicas::{KnownReplica, Replicas};
use leasehold_manifest::proposal::{Scope, propose};
use leasehold_server::admin::Admin;
use leasehold_server::cluster_history::ClusterHistories;
use leasehold_server::grpc::{AdminCalls, PeerTransport};
use leasehold_server::http::{self, HttpState};
use leasehold_server::job_history::JobHistory;
use leasehold_server::other_cells::OtherCells;
use leasehold_server::scaler::Scaler;
use leasehold_types::limits::NamespaceShare;
use leasehold_types::{Epoch, Moment, TermId, TimeBounds};
use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tonic::service::Routes;

use crate::manifest;

/// The manifests in force.
const MANIFESTS: &str = include_str!("fleet.yaml");
/// How long the coordinator leads: longer than a fuzzer runs.
const LEADERSHIP: Duration = Duration::from_secs(365 * 24 * 3600);
/// Events and commands that wait.
const QUEUE_MAX: usize = 64;

/// The coordinator of all inputs.
pub(crate) static FLEET: LazyLock<Fleet> = LazyLock::new(Fleet::start);

/// A coordinator that leads.
pub(crate) struct Fleet {
    pub(crate) runtime: Runtime,
    pub(crate) grpc: Router,
    pub(crate) http: Router,
    /// The driver ends if one of them is dropped.
    _alive: (mpsc::Sender<Event>, watch::Sender<bool>),
}

/// What is in force.
pub(crate) fn desired() -> Arc<Desired> {
    let files = manifest::files(MANIFESTS);
    let reading = propose(&Arc::default(), &files, Scope::Objects);
    assert_eq!(reading.problems, []);
    reading.desired.expect("what is in force")
}

/// Metrics that nobody reads.
pub(crate) fn metrics() -> Arc<Metrics> {
    let meter = SdkMeterProvider::default().meter("fuzz");
    Arc::new(Metrics::new(meter, &mut Exposition::default(), false))
}

impl Fleet {
    fn start() -> Self {
        // A thread of its own: the driver watches that the runtime makes progress between inputs.
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let inside = runtime.enter();
        let (events, events_out) = mpsc::channel(QUEUE_MAX);
        let (commands, mut commands_out) = mpsc::channel(QUEUE_MAX);
        let platform = Platform {
            events: events_out,
            commands,
            problems: watch::channel(Arc::default()).1,
            freshness: watch::channel(Freshness::confirmed(Moment::NEVER)).1,
            cell: watch::channel(None).1,
            replicas: watch::channel(Arc::default()).1,
            access: Access::Open,
            progress: Arc::default(),
            handle_sender: None,
        };
        std::thread::spawn(move || while commands_out.blocking_recv().is_some() {});
        let settings = Settings {
            bounds: TimeBounds { drift_ppm: 0, margin: Duration::from_millis(2) },
            sessions_max: 10,
            namespace_share: NamespaceShare::WHOLE,
        };
        let known = platform.replicas.clone();
        let cell = platform.cell.clone();
        let (driver, port, handle) = Driver::new(&settings, platform, metrics());
        let (stop, stops) = watch::channel(false);
        driver.start(stops).expect("a driver");
        runtime.block_on(lead(&events, &handle));
        let own = KnownReplica::of_this_build("fuzz".into(), "127.0.0.1:7400".into());
        let replicas = Arc::new(Replicas::new(own, cell, known));
        let admin = Admin::new(
            handle.for_people(),
            Access::Open,
            NamespaceShare::WHOLE,
            Arc::clone(&replicas),
            Arc::<JobHistory>::default(),
            Arc::<OtherCells>::default(),
            Arc::<ClusterHistories>::default(),
        );
        let gate = Arc::clone(&port.term_guard);
        let admin = AdminCalls::new(admin, handle.for_people(), gate, PeerTransport::Not);
        let (view, access) = (Arc::clone(&handle.view), Access::Open);
        let scaler = Scaler::service(view, access, Arc::clone(&port.metrics));
        let grpc = Routes::new(admin.clone()).add_service(scaler).into_axum_router();
        let state = HttpState {
            health: port.health,
            handle: handle.for_people(),
            grpc: SocketAddr::from((Ipv4Addr::LOCALHOST, 7400)),
            exposition: Arc::default(),
            admin,
            access: Access::Open,
            replicas,
        };
        drop(inside);
        Self { runtime, grpc, http: http::router(state), _alive: (events, stop) }
    }
}

/// Waits until the driver leads with the desired state.
async fn lead(events: &mpsc::Sender<Event>, handle: &Handle) {
    events.send(Event::Desired(desired())).await.expect("a driver");
    let now = clock::now();
    let elected = Elected {
        epoch: Epoch(1),
        term: TermId(0),
        cell: None,
        until: now + LEADERSHIP,
        predecessor_end: now,
        exposed: BTreeMap::new(),
        unreadable: Default::default(),
    };
    events.send(Event::Elected(elected)).await.expect("a driver");
    loop {
        let leadership = handle.ask(|core, _| core.leadership()).await.expect("a driver");
        if matches!(leadership, Leadership::Leader(_)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
