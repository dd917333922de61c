//! Authorization of agents and people. The platform decides each request.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_types::{ClusterName, PipelineName, SetName, WorkerKey};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Requests that may wait for the platform; more are refused as [`Denied::Unavailable`].
pub const ACCESS_MAX: usize = 1_024;
/// How long a platform may take to decide one.
const ACCESS_TIMEOUT: Duration = Duration::from_secs(5);

/// How access is decided.
#[derive(Clone, Debug)]
pub enum Access {
    /// Every peer that reaches the port may do everything.
    Open,
    /// The platform decides, by the peer's bearer token.
    Asked(mpsc::Sender<AccessRequest>),
}

impl Access {
    /// Checks that the peer may have what it wants.
    ///
    /// # Errors
    /// Why it may not; [`Denied::Unavailable`] if the platform does not answer in time.
    pub async fn ask(
        &self,
        token: Option<String>,
        peer: Option<SocketAddr>,
        wants: Wants,
    ) -> Result<(), Denied> {
        let Self::Asked(questions) = self else { return Ok(()) };
        let (answer, answered) = oneshot::channel();
        if questions.try_send(AccessRequest { token, peer, wants, answer }).is_err() {
            return Err(Denied::Unavailable(format!(
                "cannot check access now: {ACCESS_MAX} other requests are waiting; try again"
            )));
        }
        match timeout(ACCESS_TIMEOUT, answered).await {
            Ok(Ok(decided)) => decided,
            Ok(Err(_)) | Err(_) => Err(Denied::Unavailable(
                "cannot check access now: no answer in time; try again".into(),
            )),
        }
    }
}

/// A request for access. If the platform drops it, the peer gets [`Denied::Unavailable`].
#[derive(Debug)]
pub struct AccessRequest {
    /// The bearer token of the call's `authorization` header, if it has one.
    pub token: Option<String>,
    /// The peer's address.
    pub peer: Option<SocketAddr>,
    /// What it wants.
    pub wants: Wants,
    /// Takes the answer.
    pub answer: oneshot::Sender<Result<(), Denied>>,
}

/// What a peer wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wants {
    /// To be this worker's agent. Once this is granted, the platform sends no more events about
    /// earlier pods of this name.
    Speak(WorkerKey),
    /// To read about this.
    Read(Subject),
    /// To change this: to drain a worker, or to declare it gone.
    Change(Subject),
}

/// What a person asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Everything.
    All,
    /// A cluster and its workers.
    Cluster(ClusterName),
    /// A stream set and its streams.
    Set(SetName),
    /// A pipeline and its bindings.
    Pipeline(PipelineName),
}

/// Why access is denied; the text is shown to people and says what to fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The token is missing or not valid.
    #[error("{0}")]
    Unproven(String),
    /// The caller is authenticated but not allowed to do this.
    #[error("{0}")]
    Forbidden(String),
    /// The platform cannot decide now.
    #[error("{0}")]
    Unavailable(String),
}
