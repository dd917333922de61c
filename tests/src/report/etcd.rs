//! The peer that is built for it: a real etcd, and many watchers of one key on a connection each.
//! Of etcd's protos here is what a put and a watch need, with etcd's field numbers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use super::push::{Arrivals, Push, now};
use crate::agents::{endpoint, own_address};
use crate::kube::{etcd_command, find_binary};
use crate::process::{Process, free_address, soon_ok};
use crate::toolbox::{self, Missing};

const PUT: &str = "/etcdserverpb.KV/Put";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
/// The key that all watch.
const KEY: &[u8] = b"leasehold/report";

/// The server's process and a connection for each watcher.
#[derive(Debug)]
pub(super) struct Etcd {
    writer: Grpc<Channel>,
    /// The value of each put: as large as the message of the broadcast.
    value: Vec<u8>,
    arrivals: Arc<Arrivals>,
    /// Ends the watchers when it is dropped.
    _watchers: JoinSet<()>,
    _process: Process,
    _folder: tempfile::TempDir,
}

impl Etcd {
    /// Starts an etcd and its watchers, whose connections have an agent's settings; `None` if it is
    /// not installed, which is then noted for the end of `make test`.
    ///
    /// # Errors
    /// If a watch cannot be opened.
    pub(super) async fn start(watchers: usize, value_bytes: usize) -> Result<Option<Self>> {
        if find_binary("etcd").is_none() {
            let why = "`make tools TOOLS=kubernetes` builds it";
            toolbox::leave_out("etcd in the report of benchmarks", why, Missing::Installable);
            return Ok(None);
        }
        let folder = tempfile::tempdir()?;
        let address = free_address();
        let process = start_server(folder.path(), address);
        soon_ok("etcd", || TcpStream::connect(address).map(drop)).await;
        let mut writer = connect(address, Ipv4Addr::LOCALHOST.into()).await?;
        let value = vec![b'v'; value_bytes];
        put(&mut writer, &value).await?;
        let arrivals = Arc::new(Arrivals::new(watchers));
        let mut tasks = JoinSet::new();
        for watcher in 0..watchers {
            let (client, mut events) = watch(address, own_address(watcher)).await?;
            let arrivals = Arc::clone(&arrivals);
            tasks.spawn(async move {
                let _client = client;
                while let Ok(Some(response)) = events.message().await {
                    if !response.events.is_empty() {
                        arrivals.arrived(watcher);
                    }
                }
            });
        }
        let server =
            Self { writer, value, arrivals, _watchers: tasks, _process: process, _folder: folder };
        Ok(Some(server))
    }

    /// Puts the key once.
    ///
    /// # Errors
    /// If a watcher does not see it.
    pub(super) async fn push(&mut self) -> Result<Push> {
        let begun = now();
        put(&mut self.writer, &self.value).await?;
        self.arrivals.all_since(begun).await.context("etcd's watch")
    }
}

fn start_server(folder: &Path, address: SocketAddr) -> Process {
    let mut command = etcd_command(&folder.join("data"), [address, free_address()]);
    // An agent pings a silent connection every 5 s, the least that etcd allows by itself.
    command.arg("--grpc-keepalive-min-time=1s");
    Process::start(&mut command, &folder.join("etcd.log"))
}

async fn connect(address: SocketAddr, from: IpAddr) -> Result<Grpc<Channel>> {
    let endpoint = endpoint(&format!("http://{address}"), from)?;
    Ok(Grpc::new(endpoint.connect().await.context("etcd")?))
}

async fn put(client: &mut Grpc<Channel>, value: &[u8]) -> Result<()> {
    client.ready().await.context("etcd")?;
    let request = PutRequest { key: KEY.to_vec(), value: value.to_vec() };
    let codec: ProstCodec<PutRequest, PutResponse> = ProstCodec::default();
    client.unary(Request::new(request), PathAndQuery::from_static(PUT), codec).await?;
    Ok(())
}

/// Watches the key on a connection of its own; the watch has begun when it returns.
async fn watch(
    address: SocketAddr,
    from: IpAddr,
) -> Result<(Grpc<Channel>, Streaming<WatchResponse>)> {
    let mut client = connect(address, from).await?;
    client.ready().await.context("etcd")?;
    let create = WatchRequest { create: Some(WatchCreateRequest { key: KEY.to_vec() }) };
    // A watch ends with its requests.
    let requests = tokio_stream::once(create).chain(tokio_stream::pending());
    let codec: ProstCodec<WatchRequest, WatchResponse> = ProstCodec::default();
    let path = PathAndQuery::from_static(WATCH);
    let mut events = client.streaming(Request::new(requests), path, codec).await?.into_inner();
    let first = events.message().await?;
    ensure!(first.is_some_and(|response| response.created), "etcd does not create a watch");
    Ok((client, events))
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutResponse {}

/// One kind of the requests of a watch, which are a `oneof` of messages in etcd's proto.
#[derive(Clone, PartialEq, prost::Message)]
struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    create: Option<WatchCreateRequest>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct WatchResponse {
    #[prost(bool, tag = "3")]
    created: bool,
    #[prost(message, repeated, tag = "11")]
    events: Vec<Event>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Event {
    #[prost(message, optional, tag = "2")]
    pair: Option<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    value: Vec<u8>,
}
