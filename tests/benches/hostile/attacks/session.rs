//! A session as a hostile agent opens it, and what is answered, in a word.

use std::time::Duration;

use leasehold_proto::coordinator::v1::open_session_request::Message as Said;
use leasehold_proto::coordinator::v1::open_session_response::Message as Heard;
use leasehold_proto::coordinator::v1::session_service_client::SessionServiceClient;
use leasehold_proto::coordinator::v1::{
    DrainPhase, Hello, OpenSessionRequest, OpenSessionResponse, Report,
};
use leasehold_types::limits::{MESSAGE_BYTES_MAX, PROTOCOL_VERSION};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

/// Messages that wait for the connection.
const WAITING_MAX: usize = 64;
/// How long an answer may take until the client gives up.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

pub(super) struct Session {
    pub(super) to: mpsc::Sender<OpenSessionRequest>,
    pub(super) from: Streaming<OpenSessionResponse>,
}

impl Session {
    /// Opens one; the epoch of its welcome, or another answer.
    pub(super) async fn welcomed(
        channel: Channel,
        token: &str,
        hello: Hello,
    ) -> Result<(Self, u64), &'static str> {
        let mut session = Self::open(channel, token, hello).await?;
        let epoch = session.welcome().await?;
        Ok((session, epoch))
    }

    /// Opens one with this hello and token.
    async fn open(channel: Channel, token: &str, hello: Hello) -> Result<Self, &'static str> {
        let (to, messages) = mpsc::channel(WAITING_MAX);
        // There is room: nothing was sent.
        let _ = to.send(message(Said::Hello(hello))).await;
        let mut client =
            SessionServiceClient::new(channel).max_encoding_message_size(MESSAGE_BYTES_MAX);
        let request = with_token(ReceiverStream::new(messages), token);
        let answer = timeout(ANSWER_WITHIN, client.open_session(request)).await;
        let answer = answer.map_err(|_| "no answer in 20 s")?;
        Ok(Self { to, from: answer.map_err(|status| status_kind(&status))?.into_inner() })
    }

    /// What it is told first that is not to wait: the epoch of a welcome, or another answer.
    async fn welcome(&mut self) -> Result<u64, &'static str> {
        let answer = async {
            loop {
                match self.from.message().await.map(|heard| heard.and_then(|answer| answer.message))
                {
                    Ok(Some(Heard::Welcome(welcome))) => return Ok(welcome.epoch),
                    Ok(Some(Heard::Refusal(refusal))) => return Err(reason(refusal.reason())),
                    Ok(Some(Heard::Waiting(_) | Heard::Grant(_))) => {}
                    Ok(None) => return Err("closed"),
                    Err(status) => return Err(status_kind(&status)),
                }
            }
        };
        timeout(ANSWER_WITHIN, answer).await.unwrap_or(Err("told to wait for 20 s"))
    }

    /// Sends a message; whether the session goes on.
    pub(super) async fn say(&self, said: Said) -> bool {
        self.to.send(message(said)).await.is_ok()
    }

    /// What ends the session; grants are passed over.
    pub(super) async fn end(&mut self) -> &'static str {
        loop {
            match self.from.message().await.map(|heard| heard.and_then(|answer| answer.message)) {
                Ok(Some(Heard::Refusal(refusal))) => return reason(refusal.reason()),
                Ok(Some(_)) => {}
                Ok(None) => return "closed",
                Err(status) => return status_kind(&status),
            }
        }
    }
}

pub(super) fn message(said: Said) -> OpenSessionRequest {
    OpenSessionRequest { message: Some(said) }
}

pub(super) fn hello(cluster: &str, worker: &str, link: u64) -> Hello {
    Hello {
        protocol: PROTOCOL_VERSION,
        protocol_max: PROTOCOL_VERSION,
        cluster: cluster.to_owned(),
        worker: worker.to_owned(),
        incarnation: 1,
        link,
        stops_worker: true,
        ..Hello::default()
    }
}

/// A report of a worker that holds nothing.
pub(super) fn report(epoch: u64, nonce: u64) -> Report {
    let drain = DrainPhase::Working.into();
    Report { epoch, nonce, running: Some(0), drain, ..Report::default() }
}

pub(super) fn with_token<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    let value = format!("Bearer {token}").parse().expect("a token has no line breaks");
    request.metadata_mut().insert("authorization", value);
    request
}

pub(super) fn status_kind(status: &Status) -> &'static str {
    use tonic::Code;
    match status.code() {
        Code::Unauthenticated => "UNAUTHENTICATED",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::OutOfRange => "OUT_OF_RANGE",
        // Transports report broken connections with several codes.
        Code::Unavailable | Code::Cancelled | Code::Unknown | Code::Internal => {
            "closed or UNAVAILABLE"
        }
        _ => "another status",
    }
}

fn reason(reason: leasehold_proto::coordinator::v1::RefusalReason) -> &'static str {
    use leasehold_proto::coordinator::v1::RefusalReason as Reason;
    match reason {
        Reason::NotLeader => "refused: NOT_LEADER",
        Reason::UnknownCluster => "refused: UNKNOWN_CLUSTER",
        Reason::NewerIncarnation => "refused: NEWER_INCARNATION",
        Reason::NewerLink => "refused: NEWER_LINK",
        Reason::Limit => "refused: LIMIT",
        Reason::Invalid => "refused: INVALID",
        Reason::Unauthorized => "refused: UNAUTHORIZED",
        Reason::GoAway => "refused: GO_AWAY",
        Reason::NameTaken => "refused: NAME_TAKEN",
        Reason::Unspecified
        | Reason::Protocol
        | Reason::EpochAhead
        | Reason::OtherCell
        | Reason::Left => "refused for another reason",
    }
}
