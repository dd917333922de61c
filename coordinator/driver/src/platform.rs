//! A platform: where the desired state, leadership and the word on workers that are gone come
//! from. Every platform starts and hands back the same channels; nothing else knows which it is.

use std::sync::Arc;

use leasehold_coordinator_core::effect::Order;
use leasehold_coordinator_core::event::Event;
use leasehold_manifest::Problem;
use leasehold_types::Epoch;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::{mpsc, oneshot, watch};

use crate::access::Access;
pub use crate::freshness::Freshness;
use crate::health::Progress;
use crate::port::Handle;

/// Events that wait for the driver. A platform that finds no room goes on leading meanwhile.
pub const EVENTS_MAX: usize = 16;
/// Commands that wait for the platform. A driver must never wait for room without taking events in
/// meanwhile: the platform may be waiting for it.
pub const COMMANDS_MAX: usize = 1_024;

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
    /// The process ends: give up leadership, stop campaigning, then answer. A leader must have
    /// stopped granting before it sends this.
    Resign(oneshot::Sender<()>),
}
