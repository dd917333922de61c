//! A platform: where the desired state, leadership and the word on workers that are gone come
//! from. Every platform starts and hands back the same channels; nothing else knows which it is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::effect::Order;
use leasehold_coordinator_core::event::Event;
use leasehold_manifest::Problem;
use leasehold_types::{ClusterName, Epoch, PipelineName, SetName, WorkerKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::driver::Handle;
pub use crate::freshness::Freshness;
use crate::health::Progress;

/// Events that wait for the driver. A platform that finds no room goes on leading meanwhile.
pub const EVENTS_MAX: usize = 16;
/// Commands that wait for the platform. A driver must never wait for room without taking events in
/// meanwhile: the platform may be waiting for it.
pub const COMMANDS_MAX: usize = 1_024;
/// Questions of access that wait for the platform; more are refused as [`Denied::Unavailable`].
pub const ACCESS_MAX: usize = 1_024;
/// How long a platform may take to answer one.
pub const ACCESS_WITHIN: Duration = Duration::from_secs(5);

/// A platform that runs. It stops when its channels are dropped.
#[derive(Debug)]
pub struct Platform {
    /// Facts for the core: `Desired`, `Elected`, `Renewed`, `Deposed`, `Registered` and `Gone`.
    pub events: mpsc::Receiver<Event>,
    /// What the core asks of the platform.
    pub commands: mpsc::Sender<Command>,
    /// What is wrong with the manifests at present, in the order of files and lines.
    pub problems: watch::Receiver<Arc<Vec<Problem>>>,
    /// How current the desired state is.
    pub freshness: watch::Receiver<Freshness>,
    /// Who may say and ask what.
    pub access: Access,
    /// How the driver goes on: a leader whose driver hangs renews nothing.
    pub progress: Arc<Progress>,
    /// Takes the way to the driver, for a platform that shows the world what the core knows.
    pub attend: Option<oneshot::Sender<Handle>>,
}

/// The newest certificate that a platform has made for this replica's ports; absent until the
/// first one.
pub type ServingCertificates = watch::Receiver<Option<Arc<ServingCertificate>>>;

/// A certificate that a platform has made, and its private key.
#[derive(Debug)]
pub struct ServingCertificate {
    /// The certificate itself first, then those that lead to its authority.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its private key.
    pub key: PrivateKeyDer<'static>,
}

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

/// Why a peer may not have what it wants; the text is for people, and names what to mend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The token is missing or proves nothing.
    #[error("{0}")]
    Unproven(String),
    /// It is known who asks, and that may not.
    #[error("{0}")]
    Forbidden(String),
    /// Nobody can tell at present.
    #[error("{0}")]
    Unavailable(String),
}

/// What a driver asks of its platform; carried out in this order.
#[derive(Debug)]
pub enum Command {
    /// What the core ordered as the leader of `epoch`. A platform that does not lead that term only
    /// notes what its next one is to be above.
    Order {
        /// The term.
        epoch: Epoch,
        /// What is to be done.
        order: Order,
    },
    /// The process ends: give leadership up, campaign no more, then answer. A leader must have
    /// stopped granting before it sends this.
    Resign(oneshot::Sender<()>),
}
