//! Sessions of agents without a program: a test says what an agent would.

use std::net::SocketAddr;

use leasehold_proto::coordinator::v1::open_session_request::Message as Said;
use leasehold_proto::coordinator::v1::open_session_response::Message as Heard;
use leasehold_proto::coordinator::v1::session_service_client::SessionServiceClient;
use leasehold_proto::coordinator::v1::{DrainPhase, Hello, OpenSessionRequest, Report};
use leasehold_types::limits::PROTOCOL_VERSION;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

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
    let (to, messages) = mpsc::channel(4);
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let channel = endpoint.expect("an address").connect().await.expect("a connection");
    let hello = Hello {
        protocol: PROTOCOL_VERSION,
        cluster: cluster.into(),
        worker: worker.into(),
        incarnation: 1,
        link: 1,
        stops_worker: true,
        version: version.into(),
        ..Hello::default()
    };
    let say = async |said| {
        let sent = to.send(OpenSessionRequest { message: Some(said) }).await;
        sent.expect("the coordinator listens");
    };
    say(Said::Hello(hello)).await;
    let mut client = SessionServiceClient::new(channel);
    let answers = client.open_session(ReceiverStream::new(messages)).await;
    let mut answers = answers.expect("a session").into_inner();
    let epoch = loop {
        let heard = answers.message().await.expect("an answer").expect("no end yet");
        match heard.message {
            Some(Heard::Welcome(welcome)) => break welcome.epoch,
            Some(Heard::Refusal(refusal)) => panic!("{cluster}/{worker}: {}", refusal.message),
            _ => {}
        }
    };
    let drain = DrainPhase::Working.into();
    say(Said::Report(Report { epoch, nonce: 1, running: Some(0), drain, ..Report::default() }))
        .await;
    // The session lasts as long as its answers are read.
    tokio::spawn(async move { while let Ok(Some(_)) = answers.message().await {} });
    to
}
