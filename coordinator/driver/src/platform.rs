//! A platform: the source of the desired state, of leadership and of the news that workers are
//! gone. Every platform returns the same channels; no other part knows which platform it is.

use std::sync::Arc;

use leasehold_coordinator_core::effect::Order;
use leasehold_coordinator_core::event::Event;
use leasehold_manifest::Problem;
use leasehold_types::{Epoch, WorkerKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::{mpsc, oneshot, watch};

use crate::access::Access;
use crate::cell::KnownCell;
use crate::freshness::Freshness;
use crate::health::Progress;
use crate::port::Handle;
use crate::replicas::KnownReplicas;

/// Events that may wait for the driver. A platform keeps leading while it waits for room.
pub const EVENTS_MAX: usize = 16;
/// Commands that may wait for the platform. While a driver waits for room it must keep taking
/// events, because the platform may be waiting for it.
pub const COMMANDS_MAX: usize = 1_024;

/// A running platform. It stops when its channels are dropped.
#[derive(Debug)]
pub struct Platform {
    /// Facts for the core: `Desired`, `Elected`, `Renewed`, `Deposed`, `Registered`, `Gone`,
    /// `Removed` and `Avoid`.
    pub events: mpsc::Receiver<Event>,
    /// Commands for the platform.
    pub commands: mpsc::Sender<Command>,
    /// The present problems of the manifests, in the order of files and lines.
    pub problems: watch::Receiver<Arc<Vec<Problem>>>,
    /// How current the desired state is.
    pub freshness: watch::Receiver<Freshness>,
    /// The cell that this replica belongs to, once its store has been read.
    pub cell: KnownCell,
    /// The replicas that the platform knows of, for people.
    pub replicas: KnownReplicas,
    /// How access is decided.
    pub access: Access,
    /// Whether the driver makes progress: a leader whose driver hangs does not renew.
    pub progress: Arc<Progress>,
    /// Receives the driver's handle, for a platform that publishes what the core knows.
    pub handle_sender: Option<oneshot::Sender<Handle>>,
}

/// The newest certificate that a platform has issued for this replica's ports; absent until the
/// first one.
pub type ServingCertificates = watch::Receiver<Option<Arc<ServingCertificate>>>;

/// A certificate that a platform has issued, and its private key.
#[derive(Debug)]
pub struct ServingCertificate {
    /// The certificate first, then its intermediates.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its private key.
    pub key: PrivateKeyDer<'static>,
}

/// A command of the driver to its platform. Commands run in order.
#[derive(Debug)]
pub enum Command {
    /// An order of the core as the leader of `epoch`. A platform that does not lead that term only
    /// notes the epoch that its next term must be above.
    Order {
        /// The term.
        epoch: Epoch,
        /// The order.
        order: Order,
    },
    /// Answer when the entries of these workers are written as earlier commands order, and the term
    /// stood after that: no later leader has read older entries then. The sender is dropped if the
    /// platform does not lead this term, or the term ends first.
    ConfirmEntries {
        /// The term.
        epoch: Epoch,
        /// The workers.
        workers: Vec<WorkerKey>,
        /// The answer.
        done: oneshot::Sender<()>,
    },
    /// The process shuts down: release leadership, stop campaigning, then answer. A leader must
    /// have stopped granting before it sends this.
    Resign(oneshot::Sender<()>),
}
