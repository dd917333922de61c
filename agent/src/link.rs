//! The link to a coordinator: one task per dial, which opens one gRPC stream and passes messages
//! both ways. It decides nothing. Every event carries the number of its link, so that the driver
//! drops events of an older link.

pub(crate) mod token;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use hyper::Method;
use leasehold_agent_core::Target;
use leasehold_proto::coordinator::v1::OpenSessionRequest;
use leasehold_proto::coordinator::v1::session_service_client::SessionServiceClient;
use leasehold_proto::{
    HTTP_PORT_MESSAGE, TOKEN_IGNORED, TOKEN_METADATA, WAITING_METADATA, WAITING_WANTED, map,
};
use leasehold_types::LinkNumber;
use leasehold_types::limits::MESSAGE_BYTES_MAX;
use leasehold_types::message::CoordinatorMessage;
use leasehold_types::pem::PemContent;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request};

use crate::backoff;
use crate::config::{Address, Tls};
use crate::http_client::{ANSWER_BYTES_MAX, Call, Url, is_refused};
use crate::leader_watch::{Connect, Connection};
use crate::silence::{next_response, unless_silent};

/// How long connecting may take, with the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval and the timeout of HTTP/2 keepalives: a fifth of a lease each, so that three fifths
/// are left to find another leader, within these bounds. A link that waits for its welcome or its
/// snapshot ends as well if the coordinator is silent for too long.
const KEEPALIVE_MAX: Duration = Duration::from_secs(2);
/// See [`KEEPALIVE_MAX`].
const KEEPALIVE_MIN: Duration = Duration::from_millis(400);
/// See [`KEEPALIVE_MAX`].
const KEEPALIVES_PER_TTL: u32 = 5;
/// After how long without traffic the kernel asks whether the other end of a connection is there
/// still, where no keepalive of HTTP/2 does.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);
/// Queued messages to a coordinator that reads slowly; one more ends the link.
const OUTBOX_MAX: usize = 64;
/// Texts in the error of a server that is no coordinator.
const NOT_GRPC: [&str; 2] = ["invalid compression flag", HTTP_PORT_MESSAGE];
/// What to do about one.
const NOT_A_COORDINATOR: &str = "this is not a coordinator's gRPC port: set --coordinator to the \
    address of a coordinator's --listen (port 7400 by default)";
/// A text in the client's error if the name cannot be looked up.
const NO_ADDRESS: &str = "dns error";
/// How long the server may take to say what it is.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes that a coordinator may send before this agent has read them.
const WINDOW_BYTES: u32 = 1024 * 1024;

/// An event of a link.
#[derive(Debug)]
pub(crate) struct LinkEvent {
    /// Which link.
    pub(crate) link: LinkNumber,
    /// What happened.
    pub(crate) change: LinkChange,
}

/// What happened to a link.
#[derive(Debug)]
pub(crate) enum LinkChange {
    /// It is connected.
    Opened,
    /// A message arrived.
    Message(Box<CoordinatorMessage>),
    /// The coordinator cannot serve the agent yet; about how many agents are before it.
    Waiting(u64),
    /// The agent sent a token, and the coordinator ignores tokens.
    TokenIgnored,
    /// It has ended or could not be opened; the reason.
    Closed(String),
}

/// A link from its dial on; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) number: LinkNumber,
    pub(crate) address: String,
    /// It is connected.
    pub(crate) opened: bool,
    outbox: Option<mpsc::Sender<OpenSessionRequest>>,
    task: JoinHandle<()>,
}

impl Link {
    /// Queues a message; returns false if the link takes no more.
    pub(crate) fn send(&self, message: OpenSessionRequest) -> bool {
        self.outbox.as_ref().is_some_and(|outbox| outbox.try_send(message).is_ok())
    }

    /// Sends the queued messages and waits until the coordinator ends the stream.
    pub(crate) async fn finish(mut self, timeout: Duration) {
        self.outbox = None;
        let _ = tokio::time::timeout(timeout, &mut self.task).await;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Knows which coordinators to dial, and how.
#[derive(Debug)]
pub(crate) struct Dialer {
    coordinators: Vec<Address>,
    next: usize,
    tls: Option<Tls>,
    events: mpsc::Sender<LinkEvent>,
}

impl Dialer {
    /// A dialer whose links report on `events`.
    pub(crate) fn new(
        coordinators: Vec<Address>,
        tls: Option<Tls>,
        events: mpsc::Sender<LinkEvent>,
    ) -> Self {
        assert!(!coordinators.is_empty(), "the command line requires at least one");
        Self { coordinators, next: 0, tls, events }
    }

    /// Dials, after a wait unless `attempt` is 0. `ttl` sets the keepalive interval if it is known.
    pub(crate) fn dial(
        &mut self,
        number: LinkNumber,
        target: Target,
        attempt: u32,
        ttl: Option<Duration>,
    ) -> Link {
        let address = match target {
            Target::Leader(address) => address,
            Target::Next => {
                let address = self.coordinators[self.next % self.coordinators.len()].to_string();
                self.next += 1;
                address
            }
        };
        let (outbox, messages) = mpsc::channel(OUTBOX_MAX);
        let dial = Dial {
            number,
            address: address.clone(),
            keepalive: keepalive(ttl),
            tls: self.tls.clone(),
            events: self.events.clone(),
        };
        let task = tokio::spawn(async move {
            if let Some(failures_before) = attempt.checked_sub(1) {
                tokio::time::sleep(backoff::DIAL.wait(failures_before)).await;
            }
            let why = match dial.run(messages).await {
                Ok(()) => "the coordinator has ended the session".into(),
                Err(error) => cause(error.as_ref()),
            };
            dial.send_event(LinkChange::Closed(why)).await;
        });
        Link { number, address, opened: false, outbox: Some(outbox), task }
    }
}

struct Dial {
    number: LinkNumber,
    address: String,
    keepalive: Duration,
    tls: Option<Tls>,
    events: mpsc::Sender<LinkEvent>,
}

impl Dial {
    async fn run(&self, messages: mpsc::Receiver<OpenSessionRequest>) -> anyhow::Result<()> {
        let connect = async {
            let endpoint = endpoint(&self.address, self.tls.as_ref(), Some(self.keepalive));
            let connected = endpoint.await?.connect().await;
            connected.map_err(|error| self.explain_connect_error(error))
        };
        let channel: anyhow::Result<Channel> = tokio::time::timeout(CONNECT_TIMEOUT, connect)
            .await
            .with_context(|| format!("no connection within {CONNECT_TIMEOUT:?}"))?;
        let mut client = SessionServiceClient::new(channel?)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        self.send_event(LinkChange::Opened).await;
        let mut request = Request::new(ReceiverStream::new(messages));
        if let Some(path) = self.tls.as_ref().and_then(|tls| tls.token.as_deref()) {
            request.metadata_mut().insert("authorization", token::bearer(path).await?);
        }
        request.metadata_mut().insert(WAITING_METADATA, MetadataValue::from_static(WAITING_WANTED));
        let session = unless_silent(client.open_session(request)).await?;
        let session = match session {
            Ok(session) => session,
            Err(status) => return Err(self.explain_no_session(status).await),
        };
        let token_note = session.metadata().get(TOKEN_METADATA);
        if token_note.is_some_and(|note| note.as_bytes() == TOKEN_IGNORED.as_bytes()) {
            self.send_event(LinkChange::TokenIgnored).await;
        }
        let mut responses = session.into_inner();
        let mut is_served = false;
        loop {
            let response = next_response(&mut responses, is_served).await?;
            let response = response.map_err(|status| self.explain_status(status))?;
            let Some(response) = response else { return Ok(()) };
            if let Some(ahead) = map::waits_behind(&response) {
                self.send_event(LinkChange::Waiting(ahead)).await;
                continue;
            }
            let message = CoordinatorMessage::try_from(response)
                .context("cannot decode the coordinator's message")?;
            is_served |= matches!(message, CoordinatorMessage::Grant(_));
            self.send_event(LinkChange::Message(Box::new(message))).await;
        }
    }

    /// Adds the likely cause to a connection error, and what to do.
    fn explain_connect_error(&self, error: tonic::transport::Error) -> anyhow::Error {
        let (address, texts) = (&self.address, cause(&error));
        let refused = is_refused(&error);
        let plain = self.tls.is_some() && texts.contains("InvalidContentType");
        let error = anyhow::Error::from(error);
        if refused {
            error.context(format!(
                "nothing listens at {address}: start a coordinator there, with this --listen \
                 (port 7400 by default), or correct --coordinator"
            ))
        } else if texts.contains(NO_ADDRESS) {
            error.context(format!(
                "cannot look up the name in {address}: correct --coordinator (port 7400 by \
                 default), or this host's DNS"
            ))
        } else if plain {
            error.context(
                "this port does not use TLS: set --coordinator to the gRPC port (--listen) of a \
             coordinator with a certificate, or remove --tls-ca",
            )
        } else {
            error
        }
    }

    /// As [`Self::explain_status`], where no session has begun: if the server does not speak gRPC,
    /// it may be one of HTTP/1.1, as an agent's port for health is.
    async fn explain_no_session(&self, status: tonic::Status) -> anyhow::Error {
        if self.tls.is_some() || status.source().is_none() {
            return self.explain_status(status);
        }
        match http_answer(&self.address).await {
            None => self.explain_status(status),
            Some(answer) => {
                anyhow::anyhow!("{NOT_A_COORDINATOR}: a server of HTTP/1.1 answers here: {answer}")
            }
        }
    }

    /// Adds the likely cause to a status: a TLS port closes a plain connection without an answer,
    /// and an HTTP port does not answer with gRPC.
    fn explain_status(&self, status: tonic::Status) -> anyhow::Error {
        let broke = status.source().is_some();
        let not_grpc = status.code() == Code::Unimplemented
            || NOT_GRPC.iter().any(|words| status.message().contains(words));
        let error = anyhow::Error::from(status);
        match self.tls {
            _ if not_grpc => error.context(NOT_A_COORDINATOR),
            None if broke => error.context(
                "the connection ended before an answer (if the coordinator requires TLS, set \
                 --tls-ca; if another server answers here, set --coordinator to the address of a \
                 coordinator's --listen, port 7400 by default)",
            ),
            Some(Tls { identity: None, .. }) if broke => error.context(
                "the connection ended before an answer (if the coordinator requires client \
                 certificates, set --tls-cert and --tls-key)",
            ),
            None | Some(_) => error,
        }
    }

    async fn send_event(&self, change: LinkChange) {
        // Without a driver the event has no receiver.
        let _ = self.events.send(LinkEvent { link: self.number, change }).await;
    }
}

/// The gRPC ports of coordinators, for calls beside the session.
#[derive(Clone, Debug)]
pub(crate) struct CoordinatorPorts {
    pub(crate) tls: Option<Tls>,
}

impl Connect for CoordinatorPorts {
    async fn connect(&self, address: &str) -> anyhow::Result<Connection> {
        let endpoint = endpoint(address, self.tls.as_ref(), None).await?;
        let channel = endpoint.tcp_keepalive(Some(TCP_KEEPALIVE)).connect().await?;
        let token = self.tls.as_ref().and_then(|tls| tls.token.as_deref());
        let authorization = match token {
            Some(path) => Some(token::bearer(path).await?),
            None => None,
        };
        Ok(Connection { channel, authorization })
    }
}

/// How to connect to a coordinator; with an interval, keepalives end a dead connection.
pub(crate) async fn endpoint(
    address: &str,
    tls: Option<&Tls>,
    keepalive: Option<Duration>,
) -> anyhow::Result<Endpoint> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
        .context("invalid coordinator address")?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    if let Some(keepalive) = keepalive {
        endpoint = endpoint
            .http2_keep_alive_interval(keepalive)
            .keep_alive_timeout(keepalive)
            .keep_alive_while_idle(true);
    }
    match tls {
        None => Ok(endpoint),
        Some(tls) => Ok(endpoint.tls_config(client_tls(tls).await?)?),
    }
}

/// What a server of HTTP/1.1 answers at this address; none if there is no such server.
async fn http_answer(address: &str) -> Option<String> {
    let url: Url = format!("http://{address}/").parse().ok()?;
    let call = Call {
        method: Method::GET,
        url: &url,
        authorization: None,
        json: None,
        timeout: Some(PROBE_TIMEOUT),
        answer_bytes_max: ANSWER_BYTES_MAX,
    };
    Some(call.send().await.ok()?.summary())
}

fn keepalive(ttl: Option<Duration>) -> Duration {
    let part = ttl.map_or(KEEPALIVE_MAX, |ttl| ttl / KEEPALIVES_PER_TTL);
    part.clamp(KEEPALIVE_MIN, KEEPALIVE_MAX)
}

/// Reads the TLS settings from their files.
pub(crate) async fn client_tls(tls: &Tls) -> anyhow::Result<ClientTlsConfig> {
    let read = async |flag: &str, path: &Path, content: PemContent| {
        let file = format!("{flag} {}", path.display());
        let bytes = tokio::fs::read(path).await.with_context(|| format!("cannot read {file}"))?;
        content.check(&file, &bytes).map_err(anyhow::Error::msg)?;
        Ok::<_, anyhow::Error>(bytes)
    };
    let ca = Certificate::from_pem(read("--tls-ca", &tls.ca, PemContent::Certificate).await?);
    let mut config = ClientTlsConfig::new().ca_certificate(ca);
    if let Some((cert, key)) = &tls.identity {
        let cert = read("--tls-cert", cert, PemContent::Certificate).await?;
        let key = read("--tls-key", key, PemContent::Key).await?;
        config = config.identity(Identity::from_pem(cert, key));
    }
    if let Some(name) = &tls.server_name {
        config = config.domain_name(name);
    }
    Ok(config)
}

/// The error and its causes, each text once: tonic's own texts hide the cause.
fn cause(error: &(dyn Error + 'static)) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let part = match error.downcast_ref::<tonic::Status>() {
            Some(status) => format!("{:?}: {}", status.code(), status.message()),
            None => error.to_string(),
        };
        if !part.is_empty() && !parts.iter().any(|other| other.contains(&part)) {
            parts.push(part);
        }
        next = error.source();
    }
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn dials_the_addresses_in_turn_and_the_named_leader_next() {
        let (events, _kept) = mpsc::channel(8);
        let addresses = ["a:1", "b:2"].map(|text| text.parse().expect("an address"));
        let mut dialer = Dialer::new(addresses.into(), None, events);
        let mut dial =
            |number, target| dialer.dial(LinkNumber(number), target, 0, None).address.clone();
        assert_eq!(dial(1, Target::Next), "a:1");
        assert_eq!(dial(2, Target::Leader("c:3".into())), "c:3");
        assert_eq!(dial(3, Target::Next), "b:2");
        assert_eq!(dial(4, Target::Next), "a:1");
    }

    #[tokio::test]
    async fn reports_a_refused_connection_with_its_cause() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("it is bound").to_string();
        drop(free);
        let (events, mut received) = mpsc::channel(8);
        let mut dialer = Dialer::new(vec![address.parse().expect("ok")], None, events);
        let _link = dialer.dial(LinkNumber(9), Target::Next, 0, None);
        let event = received.recv().await.expect("a closed event");
        assert_eq!(event.link, LinkNumber(9));
        let LinkChange::Closed(why) = event.change else { panic!("{event:?}") };
        assert!(why.contains("refused"), "{why}");
        assert!(why.starts_with(&format!("nothing listens at {address}: ")), "{why}");
    }

    #[tokio::test]
    async fn reports_a_name_that_cannot_be_looked_up() {
        let (events, mut received) = mpsc::channel(8);
        // No query can ask for an empty label, so this needs no network.
        let address = "a..b:7400";
        let mut dialer = Dialer::new(vec![address.parse().expect("ok")], None, events);
        let _link = dialer.dial(LinkNumber(9), Target::Next, 0, None);
        let event = received.recv().await.expect("a closed event");
        let LinkChange::Closed(why) = event.change else { panic!("{event:?}") };
        assert!(why.starts_with(&format!("cannot look up the name in {address}: ")), "{why}");
    }
}
