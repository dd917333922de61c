//! Peers that mean harm: thousands of connections that send half of a request, too much of one, or
//! one byte at a time. The coordinator's memory stays small, agents keep their leases, and who has
//! a valid request gets an answer.

#[path = "hostile/attack.rs"]
mod attack;
#[path = "hostile/flood.rs"]
mod flood;
#[path = "hostile/half_message.rs"]
mod half_message;
#[path = "hostile/kept.rs"]
mod kept;

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use leasehold_proto::admin::v1::admin_service_client::AdminServiceClient;
use leasehold_proto::admin::v1::{DrainWorkerRequest, GetStatusRequest, GetStatusResponse};
use serde_json::Value;
use tests::answers::{lease, metric, shows};
use tests::process::{
    Agent, Coordinator, PEAK_MEMORY, Process, Replica, eventually, free_address, get, memory_kib,
    soon, until_ok,
};
use tokio::task::JoinSet;
use tonic::transport::Endpoint;

use self::attack::{Attack, Attackers};

/// Attackers of one test: twice as many files are within the usual limit of 20,000.
const ATTACKERS: usize = 9_000;
/// The memory that the coordinator may use.
const MEMORY_MAX_KIB: u64 = 256 * 1024;
/// More connections than a port for HTTP serves.
const SLOW_PEERS: usize = 600;
/// The files that a coordinator may open where the limit is low, and more idle connections to each
/// of its ports.
const FILES_MAX: usize = 1_024;
const IDLE_PEERS: usize = 1_100;
/// Connections with an allowed call, one after the other: more than its port for gRPC may have.
const KEPT: usize = 600;
/// Renewals of leadership that a test waits for.
const RENEWALS: f64 = 3.0;
/// Agents that send beats as fast as they can, and how many of their beats a test waits for: all
/// that they may send at once, and more than a lease's time of what they may send after that.
const NOISY: usize = 4;
const NOISY_BEATS: f64 = 65_000.0;

const MANIFESTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 40, maxJobsPerWorker: 2, lease: {ttl: 20s}}
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {name: cars}
spec:
  cluster: builds
  streams: [{name: 'cars:new'}, {name: 'cars:updated'}, {name: 'cars:sold'}, {name: 'cars:old'}]
---
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: noisy}
spec: {maxJobs: 40, maxJobsPerWorker: 2}
";

/// Every way to begin a request and not to end it.
const ATTACKS: [Attack; 8] = [
    Attack::Silence,
    Attack::Slow(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    Attack::Half("/leasehold.admin.v1.AdminService/Plan"),
    Attack::Half("/leasehold.coordinator.v1.SessionService/OpenSession"),
    Attack::Half("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"),
    Attack::Half("/grpc.health.v1.Health/Check"),
    Attack::HalfStreams("/leasehold.coordinator.v1.SessionService/OpenSession", 128),
    Attack::HalfStreams("/leasehold.admin.v1.AdminService/GetWorker", 128),
];

/// A coordinator whose agents hold all streams.
struct Fleet {
    coordinator: Coordinator,
    agents: Vec<Agent>,
}

impl Fleet {
    fn start() -> Self {
        let coordinator = Coordinator::start(&[("cars.yaml", MANIFESTS)]);
        let agents: Vec<_> =
            (0..20).map(|index| coordinator.agent("builds", &format!("w-{index}"), &[])).collect();
        let fleet = Self { coordinator, agents };
        eventually("all leases", || {
            let leases: Vec<_> = fleet.agents.iter().filter_map(|agent| lease(agent.api)).collect();
            let streams: usize = leases.iter().map(|lease| streams(lease).len()).sum();
            let sizes: Vec<_> = leases.iter().map(|lease| lease["pool"]["size"].as_u64()).collect();
            (streams == 4 && sizes == [Some(2); 20]).then_some(())
        });
        fleet
    }

    /// The tokens of every lease: a lease that was not renewed in time ends, and the next one has
    /// another token. An agent may lose its connection for a moment, but not its leases.
    fn tokens(&self) -> Vec<Vec<String>> {
        let of = |agent: &Agent| {
            let lease = until_ok("a connected agent", || {
                let lease = lease(agent.api).ok_or_else(|| "no answer".to_owned())?;
                if lease["connected"] == true {
                    Ok(lease)
                } else {
                    Err(format!("{lease}\n{}", agent.process.log()))
                }
            });
            let mut tokens = streams(&lease);
            tokens.push(lease["pool"]["token"].to_string());
            tokens
        };
        self.agents.iter().map(of).collect()
    }

    /// The most memory that the coordinator has used, in KiB.
    fn memory(&self) -> u64 {
        memory_kib(self.coordinator.process.id(), PEAK_MEMORY).expect("it runs")
    }

    fn metric(&self, name: &str) -> Option<f64> {
        metric(self.coordinator.http, name)
    }
}

fn streams(lease: &Value) -> Vec<String> {
    let streams = lease["streams"].as_array().map(Vec::as_slice).unwrap_or_default();
    streams.iter().map(|stream| stream["token"].to_string()).collect()
}

/// Calls of the admin API that may fail while thousands of others connect.
const CALLS_MAX: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_sent_requests_cost_little_memory_and_no_lease() {
    let fleet = Fleet::start();
    let before = fleet.tokens();
    let attackers = Attackers::start(fleet.coordinator.grpc, ATTACKERS, &ATTACKS);
    // The attack lasts until every agent has sent beats over more than its lease's time.
    let beats = || fleet.metric("leasehold_messages_received_total{kind=\"beat\"}");
    let begun = soon("the number of beats", beats).await;
    let enough = begun + 20.0 * 4.0;
    soon("beats over a lease's time", || beats().filter(|now| *now >= enough)).await;
    assert_eq!(fleet.tokens(), before);
    assert_eq!(attackers.len(), ATTACKERS);
    let memory = fleet.memory();
    println!("the coordinator used up to {memory} KiB");
    assert!(memory < MEMORY_MAX_KIB, "{memory} KiB: at most {MEMORY_MAX_KIB}");

    // Somebody new gets in meanwhile.
    let late = fleet.coordinator.agent("builds", "late", &[]);
    soon("a lease for a new agent", || lease(late.api).filter(|lease| lease["connected"] == true))
        .await;
    let address = format!("http://{}", fleet.coordinator.grpc);
    let endpoint = Endpoint::from_shared(address).expect("an address");
    // A caller that has not proved itself yet may have to give its place to the next one.
    let mut last = String::new();
    for _ in 0..CALLS_MAX {
        match status(&endpoint).await {
            Ok(status) => return assert!(status.leads, "{status:?}"),
            Err(error) => last = format!("{error:#}"),
        }
    }
    panic!("no answer to {CALLS_MAX} calls; the last one: {last}");
}

async fn status(endpoint: &Endpoint) -> anyhow::Result<GetStatusResponse> {
    let mut admin = AdminServiceClient::new(endpoint.connect().await?);
    Ok(admin.get_status(GetStatusRequest {}).await?.into_inner())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_are_answered_while_slow_peers_fill_the_port() {
    const SLOW: &[u8] =
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Long: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    let coordinator = Coordinator::start(&[("cars.yaml", MANIFESTS)]);
    let ready = || get(coordinator.http, "/readyz").filter(|(status, _)| *status == 200);
    soon("a ready coordinator", ready).await;
    let attackers = Attackers::start(coordinator.http, SLOW_PEERS, &[Attack::Slow(SLOW)]);
    soon("the slow peers", || (attackers.connected() >= SLOW_PEERS).then_some(())).await;
    for _ in 0..10 {
        assert!(ready().is_some(), "no answer to a probe");
    }
    assert_eq!(attackers.len(), SLOW_PEERS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_with_many_connections_take_places_of_their_own() {
    let coordinator = Coordinator::start(&[("cars.yaml", MANIFESTS)]);
    let ready = || get(coordinator.http, "/readyz").filter(|(status, _)| *status == 200);
    soon("a ready coordinator", ready).await;
    let mut kept = kept::after_a_request(coordinator.http).await.expect("an answer");
    // Each attacker connects again when its connection has ended for another one's.
    let attackers = Attackers::start(coordinator.http, IDLE_PEERS, &[Attack::Silence]);
    soon("more connections", || (attackers.connected() >= 3 * IDLE_PEERS).then_some(())).await;
    kept::ask(&mut kept).await.expect("an answer over the connection that was there before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_that_flood_beats_wait_and_no_other_agent_misses_a_renewal() {
    let fleet = Fleet::start();
    let before = fleet.tokens();
    let mut noisy = JoinSet::new();
    for index in 0..NOISY {
        noisy.spawn(flood::forever(fleet.coordinator.grpc, format!("noisy-{index}")));
    }
    soon("the flood", || {
        let beats = fleet.metric("leasehold_messages_received_total{kind=\"beat\"}");
        beats.filter(|beats| *beats >= NOISY_BEATS)
    })
    .await;
    assert_eq!(fleet.tokens(), before);
    assert_eq!(noisy.len(), NOISY);
    // The log says who is slowed, and no honest agent is.
    let log = fleet.coordinator.process.log();
    let slowed = log.lines().filter(|line| line.contains("sends faster than it may"));
    let slowed: Vec<_> = slowed.collect();
    assert!(!slowed.is_empty(), "{log}");
    assert!(slowed.iter().all(|line| line.contains("noisy/noisy-")), "{slowed:#?}");
    let late = fleet.coordinator.agent("builds", "late", &[]);
    soon("a lease for a new agent", || lease(late.api).filter(|lease| lease["connected"] == true))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_message_does_not_go_on_ends() {
    let coordinator = Coordinator::start(&[("cars.yaml", MANIFESTS)]);
    let leads = || shows(coordinator.http, "leasehold_leader 1");
    soon("a leader", leads).await;
    let answer = half_message::answer_to_half_a_message(coordinator.grpc, "half").await;
    assert!(answer.contains("the rest of a message did not come in 10s"), "{answer:?}");
}

/// A coordinator in a process with these limits of open files.
struct LimitedCoordinator {
    process: Process,
    grpc: SocketAddr,
    http: SocketAddr,
    _folder: tempfile::TempDir,
}

impl LimitedCoordinator {
    fn start(soft: usize, hard: usize) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("manifests")).expect("a folder for the manifests");
        let manifest = folder.path().join("manifests/cars.yaml");
        std::fs::write(manifest, MANIFESTS).expect("a manifest");
        let [grpc, http] = [(); 2].map(|()| free_address());
        let command = Replica::command(folder.path(), [grpc, http]);
        let mut limited = Command::new("sh");
        let limits = format!("ulimit -Sn {soft} && ulimit -Hn {hard}");
        limited.args(["-c", &format!("{limits} && exec \"$0\" \"$@\"")]);
        limited.arg(command.get_program()).args(command.get_args());
        limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let process = Process::start(&mut limited, &folder.path().join("coordinator.log"));
        Self { process, grpc, http, _folder: folder }
    }

    fn metric(&self, name: &str) -> Option<f64> {
        metric(self.http, name)
    }

    async fn leads(&self) {
        let leads = || shows(self.http, "leasehold_leader 1");
        soon("a leader", leads).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_take_no_file_that_probes_and_leadership_need() {
    let coordinator = LimitedCoordinator::start(FILES_MAX, FILES_MAX);
    coordinator.leads().await;
    let ports = [coordinator.grpc, coordinator.http];
    let attackers = ports.map(|port| Attackers::start(port, IDLE_PEERS, &[Attack::Silence]));
    let connected = || attackers.iter().all(|all| all.connected() >= IDLE_PEERS);
    soon("the idle connections", || connected().then_some(())).await;
    let renewals = || coordinator.metric("leasehold_renewals_total");
    let enough = soon("the number of renewals", renewals).await + RENEWALS;
    soon("more renewals", || renewals().filter(|now| *now >= enough)).await;
    for path in ["/livez", "/readyz"] {
        assert_eq!(get(coordinator.http, path).map(|(status, _)| status), Some(200), "{path}");
    }
    assert_eq!(coordinator.metric("leasehold_depositions_total"), Some(0.0));
    let log = coordinator.process.log();
    assert!(!log.contains("Too many open files"), "{log}");
    let fewer = "the limit of open files allows fewer agents than --sessions-max";
    assert_eq!(log.matches(fewer).count(), 1, "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_whose_calls_have_ended_keep_nobody_out() {
    let coordinator = LimitedCoordinator::start(FILES_MAX, FILES_MAX);
    coordinator.leads().await;
    let mut connections = Vec::new();
    for number in 0..KEPT {
        let kept = if number % 2 == 0 {
            kept::after_a_call(coordinator.grpc).await
        } else {
            kept::after_a_session(coordinator.grpc, format!("kept-{number}")).await
        };
        connections.push(kept.unwrap_or_else(|error| panic!("connection {number}: {error:#}")));
    }
    assert_eq!(connections.len(), KEPT);
}

/// Orders of somebody who has proved nothing, and lines about them in the log of each replica.
const ORDERS: usize = 200;
const LINES_MAX: u64 = 10;
const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_are_refused_write_few_lines() {
    let leader = Coordinator::start(&[("cars.yaml", MANIFESTS)]);
    let leads = || shows(leader.http, "leasehold_leader 1");
    soon("a leader", leads).await;
    let standby = leader.standby();
    soon("a standby", || get(standby.http, "/readyz").filter(|(status, _)| *status == 200)).await;
    let begun = Instant::now();
    let endpoint = Endpoint::from_shared(format!("http://{}", standby.grpc)).expect("an address");
    let mut admin = AdminServiceClient::new(endpoint.connect().await.expect("a connection"));
    for number in 0..ORDERS {
        let (cluster, worker) = ("builds".to_owned(), format!("w-{number}"));
        admin.drain_worker(DrainWorkerRequest { cluster, worker }).await.expect_err("no worker");
    }
    let most = LINES_MAX * (1 + begun.elapsed().as_secs() / MINUTE.as_secs());
    for (process, words) in
        [(&standby.process, "is forwarded to the leader"), (&leader.process, "DrainWorker refused")]
    {
        let log = process.log();
        let lines = log.lines().filter(|line| line.contains(words)).count() as u64;
        assert!((1..=most).contains(&lines), "{lines} lines with {words:?}:\n{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_may_open_as_many_files_as_its_hard_limit_allows() {
    let coordinator = LimitedCoordinator::start(FILES_MAX / 2, FILES_MAX);
    coordinator.leads().await;
    let path = format!("/proc/{}/limits", coordinator.process.id());
    let limits = std::fs::read_to_string(path).expect("the process runs");
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let files: Vec<_> = files.expect("a line of it").split_whitespace().take(2).collect();
    assert_eq!(files, [FILES_MAX.to_string(), FILES_MAX.to_string()]);
}
