//! A connection to the leader's port, on which it sends heartbeats. It only lets a standby react
//! faster; safety does not depend on it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use hyper_util::rt::TokioIo;
use leasehold_driver::replicas::KnownReplica;
use leasehold_driver::trust::Trust;
use leasehold_proto::coordinator::v1::peer_service_client::PeerServiceClient;
use leasehold_proto::coordinator::v1::{FollowRequest, FollowResponse, Peer};
use leasehold_types::Epoch;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri};
use tonic::{Status, Streaming};

use super::leader_failure_detector::LeaderSignal;

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The time without a heartbeat after which the connection is reopened.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(3);
/// The first delay of a reconnection; it doubles with each failure.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest delay.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The most signals in the queue.
const SIGNALS_MAX: usize = 4;
/// The most bytes of one heartbeat.
const HEARTBEAT_BYTES_MAX: usize = 64 * 1024;

/// A connection to one leader, reopened until this is dropped.
#[derive(Debug)]
pub(crate) struct LeaderConnection {
    signals: mpsc::Receiver<LeaderSignal>,
    known: KnownReplicasSender,
    _task: JoinSet<()>,
}

/// Where the replicas that a leader knows of are published.
pub(crate) type KnownReplicasSender = Arc<watch::Sender<Arc<Vec<KnownReplica>>>>;

impl Drop for LeaderConnection {
    fn drop(&mut self) {
        self.known.send_replace(Arc::default());
    }
}

/// Why the connection to the leader failed.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("connection refused: {0}")]
    Refused(io::Error),
    #[error("cannot connect: {0}")]
    Unreachable(io::Error),
    #[error("no connection within {} s", CONNECT_TIMEOUT.as_secs())]
    Slow,
    #[error("cannot load the trusted certificates: {0:#}")]
    Untrusted(anyhow::Error),
    #[error("gRPC connection failed: {}", describe_error(.0))]
    Transport(tonic::transport::Error),
    #[error("{}", .0.message())]
    Status(Status),
    #[error("no heartbeat for {} s", HEARTBEAT_TIMEOUT.as_secs())]
    Silent,
    #[error("the leader closed the stream")]
    Ended,
}

impl LeaderConnection {
    /// Connects to the leader at `address`, with TLS if `trust` is given.
    /// Publishes the replicas that the leader knows of in `known`.
    pub(crate) fn start(
        address: String,
        own: KnownReplica,
        trust: Option<Trust>,
        known: KnownReplicasSender,
    ) -> Self {
        let (sender, signals) = mpsc::channel(SIGNALS_MAX);
        let mut task = JoinSet::new();
        let publisher = Arc::clone(&known);
        task.spawn(async move { follow(&address, &own, trust, &sender, &publisher).await });
        Self { signals, known, _task: task }
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> LeaderSignal {
        match self.signals.recv().await {
            Some(signals) => signals,
            None => std::future::pending().await,
        }
    }
}

/// Connects again after each failure, until the receiver is dropped.
async fn follow(
    address: &str,
    own: &KnownReplica,
    trust: Option<Trust>,
    signals: &mpsc::Sender<LeaderSignal>,
    known: &KnownReplicasSender,
) {
    let mut last_error = None;
    let mut delays = backoff();
    while !signals.is_closed() {
        let error = match dial(address, own, trust.as_ref()).await {
            Ok(heartbeats) => {
                last_error = None;
                delays = backoff();
                let error = listen(heartbeats, signals, known).await;
                tracing::debug!(address, %error, "lost the connection to the leader");
                known.send_replace(Arc::default());
                if signals.send(LeaderSignal::Disconnected).await.is_err() {
                    return;
                }
                // Reconnect at once: a refused connection shows that the leader's process has
                // ended.
                continue;
            }
            Err(error) => error,
        };
        if matches!(error, ConnectionError::Refused(_))
            && signals.send(LeaderSignal::ConnectionRefused).await.is_err()
        {
            return;
        }
        let text = error.to_string();
        if last_error.as_ref() != Some(&text) {
            tracing::info!(address, why = text, "cannot connect to the leader");
            last_error = Some(text);
        }
        sleep(delays.next().unwrap_or(PAUSE_MAX)).await;
    }
}

fn backoff() -> ExponentialBackoff {
    let builder = ExponentialBuilder::new().with_min_delay(PAUSE_MIN).with_max_delay(PAUSE_MAX);
    builder.without_max_times().build()
}

/// Sends heartbeats as signals until the stream ends.
async fn listen(
    mut heartbeats: Streaming<FollowResponse>,
    signals: &mpsc::Sender<LeaderSignal>,
    known: &KnownReplicasSender,
) -> ConnectionError {
    loop {
        match timeout(HEARTBEAT_TIMEOUT, heartbeats.message()).await {
            Ok(Ok(Some(heartbeat))) => {
                publish(heartbeat.replicas, known);
                if signals.send(LeaderSignal::Heartbeat(Epoch(heartbeat.epoch))).await.is_err() {
                    return ConnectionError::Ended;
                }
            }
            Ok(Ok(None)) => return ConnectionError::Ended,
            Ok(Err(status)) => return ConnectionError::Status(status),
            Err(_) => return ConnectionError::Silent,
        }
    }
}

fn publish(replicas: Vec<Peer>, known: &KnownReplicasSender) {
    let replicas = replicas.into_iter();
    let replicas: Vec<_> = replicas
        .map(|Peer { identity, address, version }| KnownReplica {
            address,
            identity,
            version,
            ..KnownReplica::default()
        })
        .collect();
    known.send_if_modified(|last| {
        let is_new = **last != replicas;
        *last = Arc::new(replicas);
        is_new
    });
}

async fn dial(
    address: &str,
    own: &KnownReplica,
    trust: Option<&Trust>,
) -> Result<Streaming<FollowResponse>, ConnectionError> {
    let dialled = timeout(CONNECT_TIMEOUT, connect(address, trust)).await;
    let channel = dialled.map_err(|_| ConnectionError::Slow)??;
    let client = PeerServiceClient::new(channel);
    let mut client = client.max_decoding_message_size(HEARTBEAT_BYTES_MAX);
    let KnownReplica { address, identity, version, .. } = own.clone();
    let request = FollowRequest { identity, address, version };
    let answer = timeout(CONNECT_TIMEOUT, client.follow(request))
        .await
        .map_err(|_| ConnectionError::Slow)?;
    answer.map(tonic::Response::into_inner).map_err(ConnectionError::Status)
}

/// A channel over one TCP connection. It is opened here to distinguish a refused connection from
/// other errors.
async fn connect(address: &str, trust: Option<&Trust>) -> Result<Channel, ConnectionError> {
    let stream = TcpStream::connect(address).await.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => ConnectionError::Refused(error),
        _ => ConnectionError::Unreachable(error),
    })?;
    // A heartbeat is one small frame.
    stream.set_nodelay(true).map_err(ConnectionError::Unreachable)?;
    // Only a name for the headers: the connection exists already.
    let endpoint = match trust {
        None => Endpoint::from(Uri::from_static("http://leader")),
        Some(trust) => Endpoint::from(Uri::from_static("https://leader"))
            .tls_config(tls(trust).await.map_err(ConnectionError::Untrusted)?)
            .map_err(ConnectionError::Transport)?,
    };
    let mut stream = Some(stream);
    let connector = tower::service_fn(move |_: Uri| {
        let stream = stream.take().map(TokioIo::new);
        std::future::ready(stream.ok_or_else(|| io::Error::other("the connection has ended")))
    });
    endpoint.connect_with_connector(connector).await.map_err(ConnectionError::Transport)
}

/// TLS that trusts only these authorities, and shows this replica's certificate.
async fn tls(trust: &Trust) -> anyhow::Result<ClientTlsConfig> {
    let authorities = Certificate::from_pem(trust.authorities().await?);
    let tls = ClientTlsConfig::new().ca_certificate(authorities).domain_name(trust.server_name());
    Ok(match trust.identity().await? {
        Some((certificate, key)) => tls.identity(Identity::from_pem(certificate, key)),
        None => tls,
    })
}

/// An error with its causes: the transport's own text is only "transport error".
fn describe_error(error: &tonic::transport::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
