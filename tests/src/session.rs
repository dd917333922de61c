//! Sessions of agents without a program: a test says what an agent would.

mod workers;

use std::net::SocketAddr;

use leasehold_proto::coordinator::v1::open_session_request::Message as Said;
use leasehold_proto::coordinator::v1::open_session_response::Message as Heard;
use leasehold_proto::coordinator::v1::session_service_client::SessionServiceClient;
use leasehold_proto::coordinator::v1::{
    DrainPhase, Hello, OpenSessionRequest, OpenSessionResponse, Report,
};
use leasehold_types::limits::PROTOCOL_VERSION;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

pub use self::workers::Workers;

/// Joins as the agent of a worker, of this version, and reports that it holds nothing. Sends no
/// beat. The session lasts as long as what is returned.
///
/// # Panics
/// If the coordinator refuses it.
pub async fn join(
    address: SocketAddr,
    cluster: &str,
    worker: &str,
    version: &str,
) -> mpsc::Sender<OpenSessionRequest> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let channel = endpoint.expect("an address").connect().await.expect("a connection");
    let mut session = Session::open(channel, cluster, worker, version).await;
    let to = session.to.clone();
    // The session lasts as long as its answers are read.
    tokio::spawn(async move { while session.hear().await.is_some() {} });
    to
}

/// A session that has reported a worker without jobs.
struct Session {
    to: mpsc::Sender<OpenSessionRequest>,
    answers: Streaming<OpenSessionResponse>,
    epoch: u64,
}

impl Session {
    async fn open(channel: Channel, cluster: &str, worker: &str, version: &str) -> Self {
        let (to, messages) = mpsc::channel(8);
        let hello = Hello {
            protocol: PROTOCOL_VERSION,
            protocol_max: PROTOCOL_VERSION,
            cluster: cluster.into(),
            worker: worker.into(),
            incarnation: 1,
            link: 1,
            stops_worker: true,
            version: version.into(),
            ..Hello::default()
        };
        let hello = OpenSessionRequest { message: Some(Said::Hello(hello)) };
        to.send(hello).await.expect("it waits for the call");
        let mut client = SessionServiceClient::new(channel);
        let answers = client.open_session(ReceiverStream::new(messages)).await;
        let answers = answers.expect("a session").into_inner();
        let mut session = Self { to, answers, epoch: 0 };
        session.epoch = loop {
            match session.hear().await {
                Some(Heard::Welcome(welcome)) => break welcome.epoch,
                Some(Heard::Waiting(_)) => {}
                other => panic!("{cluster}/{worker} is not welcome: {other:?}"),
            }
        };
        let (epoch, drain) = (session.epoch, DrainPhase::Working.into());
        let report = Report { epoch, nonce: 1, running: Some(0), drain, ..Report::default() };
        assert!(session.say(Said::Report(report)).await, "{cluster}/{worker}: the session ended");
        session
    }

    /// Whether the session goes on.
    async fn say(&self, said: Said) -> bool {
        self.to.send(OpenSessionRequest { message: Some(said) }).await.is_ok()
    }

    /// The next message, until the session ends.
    async fn hear(&mut self) -> Option<Heard> {
        self.answers.message().await.ok().flatten().and_then(|response| response.message)
    }
}
