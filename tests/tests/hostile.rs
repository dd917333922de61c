//! Peers that mean harm: thousands of connections that send half of a request, too much of one, or
//! one byte at a time. The coordinator's memory stays small, agents keep their leases, and who has
//! a valid request gets an answer.

mod attack {
    //! Connections that never send a whole request.

    use std::net::{IpAddr, SocketAddr};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpSocket;
    use tokio::task::JoinSet;

    /// The pause before a closed connection is opened again.
    const PAUSE: Duration = Duration::from_secs(2);
    /// The pause between two bytes of a slow request.
    const BYTE_PAUSE: Duration = Duration::from_secs(1);
    /// The addresses that the attackers have: those of loopback from 127.0.1.0 on.
    const SOURCES: usize = 16;
    /// What an HTTP/2 client may send before it has heard anything (RFC 9113, 6.9.2).
    const WINDOW_BYTES: usize = 65_535;
    /// The largest payload of a frame (RFC 9113, 4.2).
    const FRAME_BYTES: usize = 16_384;

    /// What a connection sends.
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Attack {
        /// Nothing.
        Silence,
        /// This, one byte at a time, again and again.
        Slow(&'static [u8]),
        /// The beginning of one long request each to this method, as much as a client may send.
        Half(&'static str),
        /// The same over this many streams.
        HalfStreams(&'static str, u32),
    }

    /// Runs these attacks, each over a connection of its own, until it is dropped.
    #[derive(Debug)]
    pub(crate) struct Attackers {
        tasks: JoinSet<()>,
        connected: Arc<AtomicUsize>,
    }

    impl Attackers {
        pub(crate) fn start(address: SocketAddr, count: usize, attacks: &[Attack]) -> Self {
            let (mut tasks, connected) = (JoinSet::new(), Arc::<AtomicUsize>::default());
            for (index, attack) in attacks.iter().copied().cycle().take(count).enumerate() {
                let from = IpAddr::from([127, 0, 1, u8::try_from(index % SOURCES).expect("few")]);
                let connected = Arc::clone(&connected);
                tasks.spawn(async move {
                    loop {
                        // The peer may end the connection at any time.
                        let _ = run(from, address, attack, &connected).await;
                        tokio::time::sleep(PAUSE).await;
                    }
                });
            }
            Self { tasks, connected }
        }

        /// How many run.
        pub(crate) fn len(&self) -> usize {
            self.tasks.len()
        }

        /// How often they have connected.
        pub(crate) fn connected(&self) -> usize {
            self.connected.load(Ordering::Relaxed)
        }
    }

    async fn run(
        from: IpAddr,
        address: SocketAddr,
        attack: Attack,
        connected: &AtomicUsize,
    ) -> std::io::Result<()> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((from, 0)))?;
        let mut stream = socket.connect(address).await?;
        connected.fetch_add(1, Ordering::Relaxed);
        match attack {
            Attack::Silence => {}
            Attack::Slow(bytes) => {
                for byte in bytes.iter().cycle() {
                    stream.write_all(&[*byte]).await?;
                    tokio::time::sleep(BYTE_PAUSE).await;
                }
            }
            Attack::Half(path) => stream.write_all(&half_requests(path, 1)).await?,
            Attack::HalfStreams(path, streams) => {
                stream.write_all(&half_requests(path, streams)).await?;
            }
        }
        let mut answer = [0; 4096];
        while stream.read(&mut answer).await? > 0 {}
        Ok(())
    }

    /// The preface and the beginning of one gRPC call on each stream. Each message says that it has
    /// 16 MiB.
    fn half_requests(path: &str, streams: u32) -> Vec<u8> {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        frame(&mut bytes, 0x4, 0, 0, &[]);
        let share = WINDOW_BYTES / usize::try_from(streams).expect("few streams");
        for stream in (0..streams).map(|index| 2 * index + 1) {
            frame(&mut bytes, 0x1, 0x4, stream, &headers(path));
            let mut body = vec![0, 1, 0, 0, 0];
            body.resize(share, 0);
            for part in body.chunks(FRAME_BYTES) {
                frame(&mut bytes, 0x0, 0, stream, part);
            }
        }
        bytes
    }

    fn frame(into: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("a small payload").to_be_bytes();
        into.extend_from_slice(&length[1..]);
        into.extend_from_slice(&[kind, flags]);
        into.extend_from_slice(&stream.to_be_bytes());
        into.extend_from_slice(payload);
    }

    /// The headers of a call, encoded without a table of their own (RFC 7541, 6.2.2).
    fn headers(path: &str) -> Vec<u8> {
        // :method POST and :scheme http, from the static table.
        let mut block = vec![0x83, 0x86];
        let text = |block: &mut Vec<u8>, text: &str| {
            block.push(u8::try_from(text.len()).expect("a short text"));
            block.extend_from_slice(text.as_bytes());
        };
        for (name, value) in
            [(":path", path), (":authority", "x"), ("content-type", "application/grpc")]
        {
            block.push(0);
            text(&mut block, name);
            text(&mut block, value);
        }
        block.push(0);
        text(&mut block, "te");
        text(&mut block, "trailers");
        block
    }
}

mod flood {
    //! An agent that sends beats as fast as it can.

    use std::net::SocketAddr;

    use leasehold_proto::coordinator::v1::open_session_request::Message as Said;
    use leasehold_proto::coordinator::v1::open_session_response::Message as Heard;
    use leasehold_proto::coordinator::v1::session_service_client::SessionServiceClient;
    use leasehold_proto::coordinator::v1::{
        Beat, DrainPhase, Hello, OpenSessionRequest, OpenSessionResponse, Report,
    };
    use leasehold_types::limits::{MESSAGE_BYTES_MAX, PROTOCOL_VERSION};
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::ReceiverStream;
    use tonic::Streaming;
    use tonic::transport::{Channel, Endpoint};

    /// Messages that wait for the connection.
    const WAITING_MAX: usize = 256;

    /// One session of a worker's agent.
    struct Session {
        to: mpsc::Sender<OpenSessionRequest>,
        from: Streaming<OpenSessionResponse>,
        epoch: u64,
        nonce: u64,
    }

    impl Session {
        /// Says hello, and reports that it holds nothing.
        async fn open(address: SocketAddr, worker: &str, link: u64) -> Self {
            let (to, messages) = mpsc::channel(WAITING_MAX);
            let endpoint = Endpoint::from_shared(format!("http://{address}"));
            let channel: Channel =
                endpoint.expect("an address").connect().await.expect("a connection");
            let mut client = SessionServiceClient::new(channel)
                .max_encoding_message_size(MESSAGE_BYTES_MAX)
                .max_decoding_message_size(MESSAGE_BYTES_MAX);
            let hello = Hello {
                protocol: PROTOCOL_VERSION,
                cluster: "noisy".into(),
                worker: worker.into(),
                incarnation: 1,
                link,
                stops_worker: true,
                ..Hello::default()
            };
            send(&to, Said::Hello(hello)).await.expect("room");
            let from = client.open_session(ReceiverStream::new(messages)).await;
            let from = from.expect("a session").into_inner();
            let mut session = Self { to, from, epoch: 0, nonce: 1 };
            match session.next().await {
                Some(Heard::Welcome(welcome)) => session.epoch = welcome.epoch,
                other => panic!("no welcome: {other:?}"),
            }
            let drain = DrainPhase::Working.into();
            let (epoch, nonce, running) = (session.epoch, session.nonce, Some(0));
            let report = Report { epoch, nonce, running, drain, ..Report::default() };
            send(&session.to, Said::Report(report)).await.expect("room");
            session
        }

        /// The next message; none at the end.
        async fn next(&mut self) -> Option<Heard> {
            self.from.message().await.ok().flatten().and_then(|response| response.message)
        }
    }

    fn beat(epoch: u64, nonce: u64) -> Beat {
        let drain = DrainPhase::Working.into();
        Beat { epoch, nonce, running: Some(0), drain, ..Beat::default() }
    }

    async fn send(
        to: &mpsc::Sender<OpenSessionRequest>,
        message: Said,
    ) -> Result<(), mpsc::error::SendError<OpenSessionRequest>> {
        to.send(OpenSessionRequest { message: Some(message) }).await
    }

    /// Sends beats until the task is aborted, and reads the answers, as an agent does.
    pub(crate) async fn forever(address: SocketAddr, worker: String) {
        for link in 1.. {
            let Session { to, mut from, epoch, nonce } =
                Session::open(address, &worker, link).await;
            let read = async { while let Ok(Some(_)) = from.message().await {} };
            let write = async {
                for nonce in nonce + 1.. {
                    if send(&to, Said::Beat(beat(epoch, nonce))).await.is_err() {
                        break;
                    }
                }
            };
            tokio::select! {
                () = read => {}
                () = write => {}
            }
        }
    }
}

use std::net::SocketAddr;
use std::path::Path;

use leasehold_proto::admin::v1::admin_service_client::AdminServiceClient;
use leasehold_proto::admin::v1::{GetStatusRequest, GetStatusResponse};
use serde_json::Value;
use tests::process::{Agent, Coordinator, eventually, get, soon, until_ok};
use tokio::task::JoinSet;
use tonic::transport::Endpoint;

use self::attack::{Attack, Attackers};

/// Attackers of one test: twice as many files are within the usual limit of 20,000.
const ATTACKERS: usize = 9_000;
/// The memory that the coordinator may use.
const MEMORY_MAX_KIB: u64 = 256 * 1024;
/// More connections than a port for HTTP serves.
const SLOW_PEERS: usize = 600;
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
            let leases: Vec<_> = fleet.agents.iter().filter_map(|it| lease(it.api)).collect();
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
                match lease["connected"] == true {
                    true => Ok(lease),
                    false => Err(format!("{lease}\n{}", agent.process.log())),
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
        let path = format!("/proc/{}/status", self.coordinator.process.id());
        let status = std::fs::read_to_string(Path::new(&path)).expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let size = line.expect("a line of it").trim().trim_end_matches(" kB");
        size.parse().expect("a number")
    }

    fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = get(self.coordinator.http, "/metrics")?;
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }
}

fn lease(api: SocketAddr) -> Option<Value> {
    let (_, body) = get(api, "/v1/lease")?;
    serde_json::from_str(&body).ok()
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
