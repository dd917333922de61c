//! The connection of one agent to a coordinator, with the settings that agents have.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use leasehold_agent::leader_watch::{Connect, Connection};
use leasehold_agent::silence::{next_response, unless_silent};
use leasehold_proto::coordinator::v1::OpenSessionRequest;
use leasehold_proto::coordinator::v1::session_service_client::SessionServiceClient;
use leasehold_proto::{WAITING_METADATA, WAITING_WANTED, map};
use leasehold_types::LinkNumber;
use leasehold_types::limits::MESSAGE_BYTES_MAX;
use leasehold_types::message::{AgentMessage, CoordinatorMessage};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{ClientTlsConfig, Endpoint};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may be silent before it is pinged, and how long the answer may take.
const KEEPALIVE: Duration = Duration::from_secs(2);
/// Bytes that a coordinator may send ahead.
const WINDOW_BYTES: u32 = 1024 * 1024;

/// What happened to a link.
pub(super) enum LinkEvent {
    Opened,
    Message(Box<CoordinatorMessage>),
    Closed(String),
}

/// How one agent reaches the coordinators.
#[derive(Clone)]
pub(super) struct Port {
    pub(super) tls: Option<ClientTlsConfig>,
    pub(super) from: IpAddr,
    pub(super) token: Option<String>,
}

impl Port {
    fn endpoint(&self, address: &str) -> anyhow::Result<Endpoint> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let mut endpoint = plain_endpoint(&format!("{scheme}://{address}"), self.from)?;
        if let Some(tls) = &self.tls {
            endpoint = endpoint.tls_config(tls.clone())?;
        }
        Ok(endpoint)
    }

    fn authorization(&self) -> anyhow::Result<Option<MetadataValue<Ascii>>> {
        let token = self.token.as_ref();
        Ok(token.map(|token| format!("Bearer {token}").parse()).transpose()?)
    }
}

impl Connect for Port {
    async fn connect(&self, address: &str) -> anyhow::Result<Connection> {
        let channel = self.endpoint(address)?.connect().await?;
        Ok(Connection { channel, authorization: self.authorization()? })
    }
}

/// Opens the session with an agent's own settings, and passes messages on until it ends.
pub(super) async fn run_link(
    port: &Port,
    address: &str,
    number: LinkNumber,
    messages: mpsc::Receiver<AgentMessage>,
    events: &mpsc::Sender<(LinkNumber, LinkEvent)>,
) -> anyhow::Result<()> {
    let endpoint = for_session(port.endpoint(address)?);
    let channel = tokio::time::timeout(CONNECT_TIMEOUT, endpoint.connect()).await??;
    let mut client = SessionServiceClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let _ = events.send((number, LinkEvent::Opened)).await;
    let mut request = Request::new(ReceiverStream::new(messages).map(OpenSessionRequest::from));
    if let Some(authorization) = port.authorization()? {
        request.metadata_mut().insert("authorization", authorization);
    }
    request.metadata_mut().insert(WAITING_METADATA, MetadataValue::from_static(WAITING_WANTED));
    let mut responses = unless_silent(client.open_session(request)).await??.into_inner();
    let mut is_served = false;
    loop {
        let response = next_response(&mut responses, is_served).await??;
        let Some(response) = response else { return Ok(()) };
        if map::waits_behind(&response).is_some() {
            continue;
        }
        let message = CoordinatorMessage::try_from(response)?;
        is_served |= matches!(message, CoordinatorMessage::Grant(_));
        let _ = events.send((number, LinkEvent::Message(Box::new(message)))).await;
    }
}

/// A coordinator's endpoint with an agent's settings of a session, which comes from `from`.
pub(crate) fn endpoint(url: &str, from: IpAddr) -> anyhow::Result<Endpoint> {
    plain_endpoint(url, from).map(for_session)
}

/// An endpoint whose connections come from `from`, without keepalives.
pub(crate) fn plain_endpoint(url: &str, from: IpAddr) -> anyhow::Result<Endpoint> {
    let endpoint = Endpoint::from_shared(url.to_owned())?.local_address(Some(from));
    Ok(endpoint.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true))
}

fn for_session(endpoint: Endpoint) -> Endpoint {
    endpoint
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
}

/// An address of the loopback network for each agent, as pods have: where thousands share one, the
/// kernel takes longer to find a free port than for all the rest of a connection.
pub(crate) fn own_address(number: usize) -> IpAddr {
    let [_, high, middle, low] = u32::try_from(number).expect("fleets are smaller").to_be_bytes();
    Ipv4Addr::new(127, high + 1, middle, low).into()
}
