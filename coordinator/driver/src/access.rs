//! Authorization of agents and people: the platform decides each request, or the names in the
//! client's certificate do.

pub mod certificate;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold_types::{ClusterName, PipelineName, SetName, WorkerKey};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use self::certificate::CertificateNames;

/// Requests that may wait for the platform; more are refused as [`Denied::Unavailable`].
pub const ACCESS_MAX: usize = 1_024;
/// How long a platform may take to decide one.
pub const ACCESS_TIMEOUT: Duration = Duration::from_secs(5);

/// How access is decided.
#[derive(Clone, Debug)]
pub enum Access {
    /// Every peer that reaches the port may do everything.
    Open,
    /// The names in the peer's certificate decide.
    Certificates,
    /// The platform decides, by the peer's bearer token or its certificate.
    Asked(mpsc::Sender<AccessRequest>),
}

/// What a peer shows of itself.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The bearer token of the call's `authorization` header, if it has one.
    pub token: Option<String>,
    /// The peer's address.
    pub peer: Option<SocketAddr>,
    /// The names in its certificate, if an authority that clients are checked by has signed one.
    pub certificate: Option<Arc<CertificateNames>>,
}

impl Access {
    /// Checks that the peer may have what it wants, and returns who it is.
    ///
    /// # Errors
    /// Why it may not; [`Denied::Unavailable`] if the platform does not answer in time.
    pub async fn ask(&self, shown: Credentials, permission: Permission) -> Result<Caller, Denied> {
        let questions = match self {
            Self::Open => return Ok(Caller::at(shown.peer)),
            Self::Certificates => {
                let certificate = shown.certificate.ok_or_else(|| {
                    Denied::Unauthenticated(
                        "no client certificate: connect with one over TLS".into(),
                    )
                })?;
                return certificate.authorize(&permission);
            }
            Self::Asked(questions) => questions,
        };
        let (answer, answered) = oneshot::channel();
        if questions.try_send(AccessRequest { shown, permission, answer }).is_err() {
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
    /// What the peer shows of itself.
    pub shown: Credentials,
    /// What it asks to do.
    pub permission: Permission,
    /// Takes the answer.
    pub answer: oneshot::Sender<Result<Caller, Denied>>,
}

/// Who asks, for logs, metrics and events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// An authenticated user.
    User(String),
    /// A peer that need not say who it is, at this address.
    Address(SocketAddr),
    /// A peer of which nothing is known.
    Unknown,
    /// The operator in this process.
    Operator,
}

impl Caller {
    fn at(address: Option<SocketAddr>) -> Self {
        address.map_or(Self::Unknown, Self::Address)
    }

    /// Whose limits its calls count in: a user's own, or those of a namespace, which may have as
    /// many service accounts as it likes, by the name of their group. None for a caller without a
    /// name.
    #[must_use]
    pub fn tenant(&self) -> Option<String> {
        let Self::User(name) = self else { return None };
        let account = name.strip_prefix("system:serviceaccount:");
        Some(match account.and_then(|account| account.split_once(':')) {
            Some((namespace, _)) => format!("system:serviceaccounts:{namespace}"),
            None => name.clone(),
        })
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => f.write_str(name),
            Self::Address(address) => write!(f, "a client at {address}"),
            Self::Unknown => f.write_str("an unknown client"),
            Self::Operator => f.write_str("the operator"),
        }
    }
}

/// What a peer asks to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permission {
    /// To be this worker's agent. Once this is granted, the platform sends no more events about
    /// earlier pods of this name.
    ActAsAgent(WorkerKey),
    /// To read about this.
    Read(Subject),
    /// To change this: to drain a worker, or to declare it gone.
    Change(Subject),
    /// To know the load of this class, to scale it.
    Demand(ClusterName),
    /// To follow this replica as a standby does.
    Follow,
}

/// What a person asks about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
    /// The token or the certificate is missing or not valid.
    #[error("{0}")]
    Unauthenticated(String),
    /// The caller is authenticated but not allowed to do this.
    #[error("{0}")]
    Forbidden(String),
    /// The platform cannot decide now.
    #[error("{0}")]
    Unavailable(String),
}

impl Denied {
    /// Every reason, as metrics name it.
    pub const REASONS: [&'static str; 3] = ["unauthenticated", "forbidden", "unavailable"];

    /// The reason, as metrics name it.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unauthenticated(_) => "unauthenticated",
            Self::Forbidden(_) => "forbidden",
            Self::Unavailable(_) => "unavailable",
        }
    }
}
