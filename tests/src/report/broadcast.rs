//! The peer that does the least: a bare tonic server in a process of its own that sends one message
//! to every open stream, the size of a grant, once it gets a signal.

use std::net::{SocketAddr, TcpStream};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use leasehold_proto::coordinator::v1::open_session_response::Message;
use leasehold_proto::coordinator::v1::session_service_client::SessionServiceClient;
use leasehold_proto::coordinator::v1::session_service_server::{
    SessionService, SessionServiceServer,
};
use leasehold_proto::coordinator::v1::{
    Grant, OpenSessionRequest, OpenSessionResponse, PoolGrant, Terms, Token,
};
use prost::Message as _;
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::net::TcpSocket;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status, Streaming};

use super::push::{Arrivals, Push, now};
use crate::agents::{endpoint, own_address};
use crate::process::{Process, free_address, soon_ok};

/// Messages on their way to a receiver: one push ends before the next one begins.
const OUTBOX_MAX: usize = 4;

/// Connections that may wait to be accepted: all come at once.
const BACKLOG: u32 = 16_384;

/// The length of the message that is pushed.
pub(super) fn message_bytes() -> usize {
    message().encoded_len()
}

/// The message: a grant of a pool of another size.
fn message() -> OpenSessionResponse {
    let terms =
        Terms { ttl_ms: 10_000, beat_ms: 2_500, reserve_ms: 20_000, drain_deadline_ms: 3_600_000 };
    let token = Token { epoch: 1, seq: 10_000 };
    let pool = PoolGrant { token: Some(token), size: 3, floor: 0 };
    let grant = Grant {
        epoch: 1,
        number: 10,
        nonce: 10,
        terms: Some(terms),
        pool: Some(pool),
        ..Grant::default()
    };
    OpenSessionResponse { message: Some(Message::Grant(grant)) }
}

/// The server's process and a connection for each receiver.
#[derive(Debug)]
pub(super) struct Broadcast {
    process: Process,
    arrivals: Arc<Arrivals>,
    /// How long it took until all streams were open.
    opened_in: Duration,
    /// Ends the receivers when it is dropped.
    _receivers: JoinSet<()>,
    _folder: tempfile::TempDir,
}

impl Broadcast {
    /// Starts the server, and opens a stream for each receiver, all at once and with an agent's
    /// settings.
    ///
    /// # Errors
    /// If one cannot be opened.
    pub(super) async fn start(receivers: usize) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let address = free_address();
        let mut command = std::process::Command::new(std::env::current_exe()?);
        command.arg("--broadcast").arg(address.to_string());
        let process = Process::start(&mut command, &folder.path().join("broadcast.log"));
        soon_ok("the broadcast's server", || TcpStream::connect(address).map(drop)).await;
        let arrivals = Arc::new(Arrivals::new(receivers));
        let begun = Instant::now();
        let mut opening = JoinSet::new();
        for receiver in 0..receivers {
            opening.spawn(open(address, receiver));
        }
        let mut tasks = JoinSet::new();
        while let Some(opened) = opening.join_next().await {
            let Opened { receiver, client, mut messages } = opened??;
            let arrivals = Arc::clone(&arrivals);
            tasks.spawn(async move {
                let _client = client;
                while let Ok(Some(_)) = messages.message().await {
                    arrivals.arrived(receiver);
                }
            });
        }
        let opened_in = begun.elapsed();
        Ok(Self { process, arrivals, opened_in, _receivers: tasks, _folder: folder })
    }

    /// How long it took until all streams were open.
    pub(super) fn opened_in(&self) -> Duration {
        self.opened_in
    }

    /// Pushes one message to all receivers.
    ///
    /// # Errors
    /// If it does not arrive at one of them.
    pub(super) async fn push(&self) -> Result<Push> {
        let begun = now();
        self.process.signal(Signal::USR1);
        self.arrivals.all_since(begun).await.context("the broadcast")
    }
}

/// An open stream, as its receiver has it.
struct Opened {
    receiver: usize,
    client: SessionServiceClient<Channel>,
    messages: Streaming<OpenSessionResponse>,
}

async fn open(address: SocketAddr, receiver: usize) -> Result<Opened> {
    let endpoint = endpoint(&format!("http://{address}"), own_address(receiver))?;
    let channel = endpoint.connect().await.context("the broadcast's server")?;
    let mut client = SessionServiceClient::new(channel);
    let requests = tokio_stream::pending::<OpenSessionRequest>();
    let messages = client.open_session(requests).await?.into_inner();
    Ok(Opened { receiver, client, messages })
}

/// Serves the broadcast until its parent ends: one message to every stream at each SIGUSR1.
///
/// # Errors
/// If the address cannot be bound.
pub async fn serve(address: SocketAddr) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut orders = signal(SignalKind::user_defined1())?;
    let service = BroadcastService::default();
    let server = Server::builder().add_service(SessionServiceServer::new(service.clone()));
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let incoming = TcpIncoming::from(socket.listen(BACKLOG)?).with_nodelay(Some(true));
    let mut server = pin!(server.serve_with_incoming(incoming));
    loop {
        tokio::select! {
            ended = &mut server => return Ok(ended?),
            _ = orders.recv() => service.send_to_all(),
        }
    }
}

/// An open stream.
struct Receiver {
    messages: mpsc::Sender<Result<OpenSessionResponse, Status>>,
    /// What the receiver sends, which is nothing: without it the stream ends.
    _requests: Streaming<OpenSessionRequest>,
}

#[derive(Clone, Default)]
struct BroadcastService {
    receivers: Arc<Mutex<Vec<Receiver>>>,
}

impl BroadcastService {
    fn send_to_all(&self) {
        let message = message();
        let receivers = self.receivers.lock().unwrap_or_else(PoisonError::into_inner);
        for receiver in receivers.iter() {
            // One that has gone is missed by the process that waits for all.
            let _ = receiver.messages.try_send(Ok(message.clone()));
        }
    }
}

#[tonic::async_trait]
impl SessionService for BroadcastService {
    type OpenSessionStream = ReceiverStream<Result<OpenSessionResponse, Status>>;

    async fn open_session(
        &self,
        request: Request<Streaming<OpenSessionRequest>>,
    ) -> Result<Response<Self::OpenSessionStream>, Status> {
        let (messages, sent) = mpsc::channel(OUTBOX_MAX);
        let receiver = Receiver { messages, _requests: request.into_inner() };
        self.receivers.lock().unwrap_or_else(PoisonError::into_inner).push(receiver);
        Ok(Response::new(ReceiverStream::new(sent)))
    }
}
