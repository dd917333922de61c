//! Who may say and ask what, as the platform decides.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_types::{ClusterName, PipelineName, SetName, WorkerKey};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Questions of access that wait for the platform; more are refused as [`Denied::Unavailable`].
pub const ACCESS_MAX: usize = 1_024;
/// How long a platform may take to answer one.
pub const ACCESS_WITHIN: Duration = Duration::from_secs(5);

/// Who may say and ask what.
#[derive(Clone, Debug)]
pub enum Access {
    /// Everybody who reaches the port may do everything.
    Open,
    /// The platform decides, from the token that the peer shows.
    Asked(mpsc::Sender<AccessRequest>),
}

impl Access {
    /// Whether the peer may have what it wants.
    ///
    /// # Errors
    /// Why it may not; [`Denied::Unavailable`] where the platform does not answer in time.
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
                "access cannot be checked at present: more than {ACCESS_MAX} others wait for it"
            )));
        }
        match timeout(ACCESS_WITHIN, answered).await {
            Ok(Ok(decided)) => decided,
            Ok(Err(_)) | Err(_) => {
                Err(Denied::Unavailable("access cannot be checked at present".into()))
            }
        }
    }
}

/// A question of access. A question that is dropped counts as [`Denied::Unavailable`].
#[derive(Debug)]
pub struct AccessRequest {
    /// The bearer token of the call's `authorization` header; none where it shows none.
    pub token: Option<String>,
    /// Where the peer is.
    pub peer: Option<SocketAddr>,
    /// What it wants.
    pub wants: Wants,
    /// Takes the answer.
    pub answer: oneshot::Sender<Result<(), Denied>>,
}

/// What a peer wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wants {
    /// To speak for this worker. Once it is granted, the platform has said all that it will ever
    /// say of earlier pods of this name.
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

/// Why access is denied; the text is for people, and says what to fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The token is missing or proves nothing.
    #[error("{0}")]
    Unproven(String),
    /// It is known who asks, and that may not.
    #[error("{0}")]
    Forbidden(String),
    /// The platform cannot decide at present.
    #[error("{0}")]
    Unavailable(String),
}
