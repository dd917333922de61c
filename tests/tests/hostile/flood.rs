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
        let channel: Channel = endpoint.expect("an address").connect().await.expect("a connection");
        let mut client = SessionServiceClient::new(channel)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        let hello = Hello {
            protocol: PROTOCOL_VERSION,
            protocol_max: PROTOCOL_VERSION,
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
        let Session { to, mut from, epoch, nonce } = Session::open(address, &worker, link).await;
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
