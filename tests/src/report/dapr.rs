//! The peer whose hosts compute for themselves who owns what: Dapr's placement service, and as many
//! hosts, each with the stream of one of Dapr's sidecars. Of Dapr's protos here is what a host
//! needs, with Dapr's field numbers.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Error, Result, anyhow, bail};
use leasehold_demo::clock::{self, POLL};
use leasehold_types::Moment;
use prost::Message as _;
use prost::bytes::Bytes;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use super::json_lines::json_lines;
use super::push::{Push, now, until};
use super::shares::Shares;
use crate::agents::{own_address, plain_endpoint};
use crate::kube::local;
use crate::process::{HANG, Process, free_address};
use crate::toolbox::{self, Missing};

const REPORT_STATUS: &str = "/dapr.proto.placement.v1.Placement/ReportDaprStatus";
/// The folder of the programs that `make tools TOOLS=dapr` builds, below the root.
const PROGRAMS: &str = ".cache/dapr";
/// The server's name among its peers of Raft; it has no other one.
const ID: &str = "report";
const NAMESPACE: &str = "bench";
const APP: &str = "feeds";
const ACTOR_TYPE: &str = "feed";
/// The port at which Dapr's sidecars reach each other.
const SIDECAR_PORT: u16 = 50_002;
/// The places of each host on the ring: Dapr's default.
const REPLICAS: u32 = 100;
/// Answers on their way to the server, which waits for each before it asks for another one.
const OUTBOX_MAX: usize = 4;

/// The server's process, and its hosts.
#[derive(Debug)]
pub(super) struct Placement {
    address: SocketAddr,
    /// The hosts before the first join that is measured.
    settled: usize,
    /// Those that have begun to dial.
    hosts: usize,
    record: Arc<TableRecord>,
    /// The task of each host, which returns why it has ended. All end when it is dropped.
    streams: JoinSet<Error>,
    /// The program that computes where keys are.
    ring: PathBuf,
    _process: Process,
    folder: tempfile::TempDir,
}

impl Placement {
    /// Starts the server with this many hosts, all at once, and waits until all have a table with
    /// all; `joins` more may join. `None` if it is not built, which is then noted for the end of
    /// `make test`.
    ///
    /// # Errors
    /// If the stream of a host ends, or one has no table.
    pub(super) async fn start(hosts: usize, joins: usize) -> Result<Option<Self>> {
        let programs = toolbox::root().join(PROGRAMS);
        let [server, ring] = ["placement", "ring"].map(|name| programs.join(name));
        if !(server.is_file() && ring.is_file()) {
            let what = "Dapr's placement in the report of benchmarks";
            let why = "`make tools TOOLS=dapr` builds it";
            toolbox::leave_out(what, why, Missing::Installable);
            return Ok(None);
        }
        let folder = tempfile::tempdir()?;
        let address = free_address();
        let mut process = start_server(&server, folder.path(), address);
        let begun = now();
        let first = open_first(&mut process, address).await.with_context(|| process.log())?;
        let mut placement = Self {
            address,
            settled: hosts,
            hosts: 1,
            record: Arc::new(TableRecord::new(hosts + joins)),
            streams: JoinSet::new(),
            ring,
            _process: process,
            folder,
        };
        placement.streams.spawn(first.run(Arc::clone(&placement.record)));
        (1..hosts).for_each(|_| placement.start_host());
        placement.all_have_table(begun).await?;
        Ok(Some(placement))
    }

    /// One more host joins: when each host had the table with all of them and might use it, from
    /// when the new one began to dial.
    ///
    /// # Errors
    /// If the stream of a host ends, or one has no table.
    pub(super) async fn join(&mut self) -> Result<Push> {
        let begun = now();
        self.start_host();
        self.all_have_table(begun).await
    }

    /// What each join up to now changes in the owners of this many keys, as Dapr's own package
    /// computes them.
    ///
    /// # Errors
    /// If the program fails.
    pub(super) async fn shares(&self, keys: usize) -> Result<Vec<Shares>> {
        let file = self.folder.path().join("hosts.txt");
        let names: String = (0..self.hosts).map(|number| host_name(number) + "\n").collect();
        std::fs::write(&file, names)?;
        let mut command = Command::new(&self.ring);
        command.arg(format!("--settled={}", self.settled));
        command.args([format!("--keys={keys}"), format!("--replicas={REPLICAS}")]).arg(&file);
        json_lines("the ring of Dapr's placement", &mut command).await
    }

    fn start_host(&mut self) {
        let (address, number, record) = (self.address, self.hosts, Arc::clone(&self.record));
        self.hosts += 1;
        self.streams.spawn(async move {
            match Host::open(address, number).await {
                Ok(host) => host.run(record).await,
                Err(error) => error,
            }
        });
    }

    async fn all_have_table(&mut self, begun: Moment) -> Result<Push> {
        let arrived = || match self.streams.try_join_next() {
            Some(ended) => Some(Err(ended.unwrap_or_else(Error::from))),
            None => self.record.arrivals(self.hosts, begun).map(Ok),
        };
        until("a new table of Dapr's placement at all hosts", arrived).await?
    }
}

/// Without TLS, Kubernetes and metrics, and alone in its cluster, whose log is in memory. Its
/// healthz server listens at every address: this version ignores its option for another one.
fn start_server(program: &Path, folder: &Path, address: SocketAddr) -> Process {
    let [raft, healthz] = [free_address(), free_address()];
    let mut command = local(program);
    command.args(["--mode=standalone", "--tls-enabled=false", "--enable-metrics=false"]);
    command.args([format!("--id={ID}"), format!("--initial-cluster={ID}={raft}")]);
    command.arg(format!("--listen-address={}", address.ip()));
    command.arg(format!("--port={}", address.port()));
    command.arg(format!("--healthz-port={}", healthz.port()));
    command.arg(format!("--replicationFactor={REPLICAS}"));
    // A new table is sent as soon as a host joins, which is the default.
    command.arg("--disseminate-coalesce-window=0s");
    // Thousands of hosts share the processors of one machine, for which the default of 8 s could be
    // too short.
    command.arg("--disseminate-timeout=60s");
    // Longer than by default, so that fewer pings disturb what is measured in turn.
    command.args(["--keepalive-time=10s", "--keepalive-timeout=10s", "--log-level=warn"]);
    Process::start(&mut command, &folder.join("placement.log"))
}

/// Opens the stream of the first host: the server refuses all until it leads its cluster.
async fn open_first(process: &mut Process, address: SocketAddr) -> Result<Host> {
    let opened = async {
        loop {
            let error = match Host::open(address, 0).await {
                Ok(host) => return Ok(host),
                Err(error) => error,
            };
            if let Some(status) = process.ended() {
                return Err(error.context(format!("it has ended: {status}")));
            }
            sleep(POLL).await;
        }
    };
    timeout(HANG, opened).await.context("Dapr's placement opens no stream")?
}

/// A host with an open stream.
#[derive(Debug)]
struct Host {
    number: usize,
    /// Its connection lasts as long.
    _client: Grpc<Channel>,
    answers: mpsc::Sender<HostStatus>,
    orders: Streaming<Order>,
}

impl Host {
    /// Reports the host; the server has added it when this returns. The connection has no
    /// keepalives: the server closes one that pings often, as gRPC's for Go does by default.
    async fn open(address: SocketAddr, number: usize) -> Result<Self> {
        let endpoint = plain_endpoint(&format!("http://{address}"), own_address(number))?;
        let mut client = Grpc::new(endpoint.connect().await.context("Dapr's placement")?);
        client.ready().await.context("Dapr's placement")?;
        let (answers, answered) = mpsc::channel(OUTBOX_MAX);
        let reported = tokio_stream::once(HostStatus::report(number));
        let requests = Request::new(reported.chain(ReceiverStream::new(answered)));
        let codec: ProstCodec<HostStatus, Order> = ProstCodec::default();
        let path = PathAndQuery::from_static(REPORT_STATUS);
        let opened = client.streaming(requests, path, codec).await.context("Dapr's placement")?;
        Ok(Self { number, _client: client, answers, orders: opened.into_inner() })
    }

    /// Obeys the server until the stream ends; why it has ended.
    async fn run(mut self, record: Arc<TableRecord>) -> Error {
        let ended = self.obey(&record).await;
        let why = ended.err().unwrap_or_else(|| anyhow!("the server has ended its stream"));
        why.context(format!("host {} of Dapr's placement", self.number))
    }

    async fn obey(&mut self, record: &TableRecord) -> Result<()> {
        while let Some(order) = self.orders.message().await? {
            let Order { tables, operation, version } = order;
            let step = Step::named(&operation)?;
            match step {
                Step::Lock => {}
                Step::Update => record.received(version, &tables)?,
                Step::Unlock => record.unlocked(self.number, version),
            }
            self.answers.send(HostStatus::answer(step, version)).await?;
        }
        Ok(())
    }
}

/// The name of a host: the address at which other sidecars would reach it.
fn host_name(number: usize) -> String {
    format!("{}:{SIDECAR_PORT}", own_address(number))
}

/// The tables that hosts have.
#[derive(Debug)]
struct TableRecord {
    hosts: Vec<HostRecord>,
    /// How many hosts are in the table of each version.
    sizes: Mutex<BTreeMap<u64, usize>>,
}

#[derive(Debug, Default)]
struct HostRecord {
    /// The version of the last table that it may use; 0 before the first one.
    version: AtomicU64,
    /// Since when it may, in nanoseconds of the clock of [`Moment`].
    unlocked_ns: AtomicU64,
}

impl TableRecord {
    fn new(hosts_max: usize) -> Self {
        let hosts = std::iter::repeat_with(HostRecord::default).take(hosts_max).collect();
        Self { hosts, sizes: Mutex::default() }
    }

    /// A host has this table. The first one of each version is decoded: all hosts get the same one.
    fn received(&self, version: u64, tables: &[u8]) -> Result<()> {
        let mut sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Vacant(size) = sizes.entry(version) {
            let tables = Tables::decode(tables).context("a table")?;
            size.insert(tables.entries.get(ACTOR_TYPE).map_or(0, |table| table.hosts.len()));
        }
        Ok(())
    }

    /// A host may use the table of this version from now on.
    fn unlocked(&self, host: usize, version: u64) {
        let host = &self.hosts[host];
        host.unlocked_ns.store(clock::now_ns(), SeqCst);
        host.version.store(version, SeqCst);
    }

    /// When each of the first hosts might use a table with all of them; `None` while one may not.
    fn arrivals(&self, hosts: usize, begun: Moment) -> Option<Push> {
        let sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        let with_all = sizes.iter().find(|(_, size)| **size == hosts);
        let needed = with_all.map(|(version, _)| *version)?;
        let arrival = |host: &HostRecord| {
            let may_use = host.version.load(SeqCst) >= needed;
            may_use.then(|| Moment(host.unlocked_ns.load(SeqCst)))
        };
        Push::of(begun, self.hosts.iter().take(hosts).map(arrival))
    }
}

/// A step by which all hosts get a new table: none takes the next one before all have answered. The
/// number is that of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The answer says that calls wait from now on.
    Lock = 2,
    /// The answer says that the table has been taken, and all that it gives to others stopped.
    Update = 3,
    Unlock = 4,
}

impl Step {
    fn named(operation: &str) -> Result<Self> {
        match operation {
            "lock" => Ok(Self::Lock),
            "update" => Ok(Self::Update),
            "unlock" => Ok(Self::Unlock),
            other => bail!("unknown operation \"{other}\": expected lock, update or unlock"),
        }
    }
}

/// What a host sends: first that it is there, and then the answer to each order.
#[derive(Clone, PartialEq, prost::Message)]
struct HostStatus {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, repeated, tag = "4")]
    actor_types: Vec<String>,
    #[prost(string, tag = "5")]
    app: String,
    #[prost(string, tag = "8")]
    namespace: String,
    #[prost(int32, tag = "9")]
    operation: i32,
    /// That of the answered order: the first table has version 1. A 0, in a report, is not sent.
    #[prost(uint64, tag = "10")]
    version: u64,
}

impl HostStatus {
    /// The number of the report in `operation`.
    const REPORT: i32 = 1;

    fn report(number: usize) -> Self {
        Self {
            name: host_name(number),
            actor_types: vec![ACTOR_TYPE.to_owned()],
            operation: Self::REPORT,
            ..Self::of_app()
        }
    }

    fn answer(step: Step, version: u64) -> Self {
        Self { operation: step as i32, version, ..Self::of_app() }
    }

    fn of_app() -> Self {
        Self { app: APP.to_owned(), namespace: NAMESPACE.to_owned(), ..Self::default() }
    }
}

/// What the server asks of a host.
#[derive(Clone, PartialEq, prost::Message)]
struct Order {
    /// The [`Tables`] of an update, encoded: a real host decodes them with a machine of its own.
    #[prost(bytes = "bytes", tag = "1")]
    tables: Bytes,
    #[prost(string, tag = "2")]
    operation: String,
    #[prost(uint64, tag = "3")]
    version: u64,
}

/// The hosts of each type of actors.
#[derive(Clone, PartialEq, prost::Message)]
struct Tables {
    #[prost(btree_map = "string, message", tag = "1")]
    entries: BTreeMap<String, Table>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Table {
    #[prost(btree_map = "string, message", tag = "3")]
    hosts: BTreeMap<String, TableHost>,
}

/// A host in a table, of which only the name is read: the key of its entry.
#[derive(Clone, PartialEq, prost::Message)]
struct TableHost {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table with this many hosts.
    fn tables(hosts: usize) -> Vec<u8> {
        let hosts = (0..hosts).map(|number| (host_name(number), TableHost {})).collect();
        let entries = BTreeMap::from([(ACTOR_TYPE.to_owned(), Table { hosts })]);
        Tables { entries }.encode_to_vec()
    }

    #[test]
    fn a_table_has_arrived_once_every_host_in_it_may_use_it() {
        let record = TableRecord::new(3);
        let begun = now();
        let arrivals = |hosts| record.arrivals(hosts, begun).map(|push| push.times().len());
        record.received(1, &tables(1)).expect("a table");
        record.unlocked(0, 1);
        assert_eq!([arrivals(1), arrivals(2)], [Some(1), None]);
        record.received(2, &tables(2)).expect("a table");
        record.unlocked(1, 2);
        assert_eq!(arrivals(2), None, "the first host has only the table without the second");
        record.unlocked(0, 2);
        assert_eq!(arrivals(2), Some(2));
        assert!(record.received(3, b"no table").is_err());
    }
}
