//! A minimal agent whose messages the test controls.

use std::net::SocketAddr;

use leasehold_proto::coordinator::v1::session_service_client::SessionServiceClient;
use leasehold_proto::coordinator::v1::{
    Beat, DrainPhase, Grant, HeldPool, Hello, OpenSessionRequest, OpenSessionResponse, Refusal,
    RefusalReason, Report, Welcome, open_session_request, open_session_response,
};
use leasehold_proto::{WAITING_METADATA, WAITING_WANTED};
use leasehold_types::limits::{MESSAGE_BYTES_MAX, PROTOCOL_VERSION};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

use crate::replica::PATIENCE;

pub(crate) struct Agent {
    to: mpsc::Sender<OpenSessionRequest>,
    from: Streaming<OpenSessionResponse>,
    nonce: u64,
    /// The newest pool that was granted.
    pool: Option<HeldPool>,
}

impl Agent {
    pub(crate) async fn dial(address: SocketAddr) -> Self {
        Self::over(connect(address).await).await.expect("a session")
    }

    /// Dials, and asks to be sent that it must wait.
    pub(crate) async fn dial_to_wait(address: SocketAddr) -> Self {
        let metadata = (WAITING_METADATA, WAITING_WANTED.to_owned());
        Self::over_with(connect(address).await, Some(metadata)).await.expect("a session")
    }

    /// Dials, with a token if given.
    pub(crate) async fn dial_with(address: SocketAddr, token: Option<&str>) -> Self {
        let metadata = token.map(|token| ("authorization", format!("Bearer {token}")));
        Self::over_with(connect(address).await, metadata).await.expect("a session")
    }

    pub(crate) async fn over(channel: Channel) -> Result<Self, Status> {
        Self::over_with(channel, None).await
    }

    async fn over_with(
        channel: Channel,
        metadata: Option<(&'static str, String)>,
    ) -> Result<Self, Status> {
        let (to, messages) = mpsc::channel(16);
        let mut client = SessionServiceClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(usize::MAX);
        let mut request = Request::new(ReceiverStream::new(messages));
        if let Some((name, value)) = metadata {
            request.metadata_mut().insert(name, value.parse().expect("a value"));
        }
        let from = client.open_session(request).await?.into_inner();
        Ok(Self { to, from, nonce: 0, pool: None })
    }

    /// An agent that has said hello and reported that it holds nothing.
    pub(crate) async fn join(address: SocketAddr, worker: &str) -> Self {
        let mut agent = Self::dial(address).await;
        agent.say_hello("crawl", worker).await;
        let welcome = agent.welcome().await;
        agent.report(welcome.epoch).await;
        agent
    }

    /// An agent that dials until it is welcome.
    pub(crate) async fn welcomed(address: SocketAddr, worker: &str) -> Self {
        loop {
            let mut agent = Self::dial(address).await;
            agent.say_hello("crawl", worker).await;
            match agent.next().await {
                Ok(Some(open_session_response::Message::Welcome(_))) => return agent,
                // The coordinator has not yet noticed the end of an earlier session.
                Ok(Some(open_session_response::Message::Refusal(_))) => {}
                other => panic!("neither welcome nor refusal: {other:?}"),
            }
        }
    }

    pub(crate) async fn say(&self, message: open_session_request::Message) {
        self.say_raw(OpenSessionRequest { message: Some(message) }).await;
    }

    /// The number of the last report or beat.
    pub(crate) fn sent(&self) -> u64 {
        self.nonce
    }

    pub(crate) async fn say_raw(&self, request: OpenSessionRequest) {
        // If the coordinator has ended the session, the test sees it in what it receives.
        let _ = self.to.send(request).await;
    }

    pub(crate) async fn say_hello(&self, cluster: &str, worker: &str) {
        self.say(open_session_request::Message::Hello(hello(cluster, worker))).await;
    }

    pub(crate) async fn report(&mut self, epoch: u64) {
        self.nonce += 1;
        let report = Report {
            epoch,
            nonce: self.nonce,
            running: Some(0),
            drain: DrainPhase::Working.into(),
            ..Report::default()
        };
        self.say(open_session_request::Message::Report(report)).await;
    }

    pub(crate) async fn beat(&mut self, grant: &Grant) {
        self.nonce += 1;
        if let Some(pool) = grant.pool {
            self.pool = Some(HeldPool {
                token: pool.token,
                size: pool.size,
                granted_size: pool.size,
                floor: pool.floor,
            });
        }
        let beat = Beat {
            epoch: grant.epoch,
            nonce: self.nonce,
            applied: grant.number,
            pool: self.pool,
            running: Some(0),
            drain: DrainPhase::Working.into(),
            ..Beat::default()
        };
        self.say(open_session_request::Message::Beat(beat)).await;
    }

    /// The next message; `None` at the end of the session.
    pub(crate) async fn next(&mut self) -> Result<Option<open_session_response::Message>, Status> {
        let message = timeout(PATIENCE, self.from.message()).await.expect("a message in time")?;
        Ok(message.map(|response| response.message.expect("a message in the response")))
    }

    pub(crate) async fn welcome(&mut self) -> Welcome {
        match self.next().await {
            Ok(Some(open_session_response::Message::Welcome(welcome))) => welcome,
            other => panic!("expected a welcome: {other:?}"),
        }
    }

    pub(crate) async fn grant(&mut self) -> Grant {
        match self.next().await {
            Ok(Some(open_session_response::Message::Grant(grant))) => grant,
            other => panic!("expected a grant: {other:?}"),
        }
    }

    /// Skips grants until the end of a session whose leader has lost its term: the session ends
    /// with a refusal for one of these reasons, or with an error if a grant was stopped.
    pub(crate) async fn end_of_term(&mut self, reasons: &[RefusalReason]) {
        loop {
            match self.next().await {
                Ok(Some(open_session_response::Message::Grant(_))) => {}
                Ok(Some(open_session_response::Message::Refusal(refusal))) => {
                    assert!(reasons.contains(&refusal.reason()), "{refusal:?}");
                    return;
                }
                Err(status) => {
                    assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
                    return;
                }
                other => panic!("expected the end of the session: {other:?}"),
            }
        }
    }

    /// Skips grants, and returns the refusal that ends the session.
    pub(crate) async fn refusal(&mut self) -> (RefusalReason, Refusal) {
        loop {
            match self.next().await {
                Ok(Some(open_session_response::Message::Refusal(refusal))) => {
                    assert!(matches!(self.next().await, Ok(None)), "a refusal ends the session");
                    return (refusal.reason(), refusal);
                }
                Ok(Some(open_session_response::Message::Grant(_))) => {}
                other => panic!("expected a refusal: {other:?}"),
            }
        }
    }
}

pub(crate) async fn connect(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    endpoint.connect().await.expect("a connection")
}

/// A peer that opens no HTTP/2 window answers pings, and is sent nothing.
pub(crate) async fn connect_without_window(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    endpoint.initial_stream_window_size(0).connect().await.expect("a connection")
}

pub(crate) fn hello(cluster: &str, worker: &str) -> Hello {
    Hello {
        protocol: PROTOCOL_VERSION,
        protocol_max: PROTOCOL_VERSION,
        cluster: cluster.into(),
        worker: worker.into(),
        incarnation: 1,
        link: 1,
        stops_worker: true,
        ..Hello::default()
    }
}
