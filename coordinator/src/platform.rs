//! A platform: where the desired state, leadership and the word on workers that are gone come
//! from. Every platform starts and hands back the same channels; nothing else knows which it is.

pub mod file;

use std::sync::Arc;

use leasehold_coordinator_core::event::{Event, Exposure};
use leasehold_types::{Epoch, WorkerKey};
use tokio::sync::{mpsc, oneshot, watch};

use crate::spec::Problem;

/// Events that wait for the driver. A platform waits when so many do, so that the sign of life of
/// a leader whose driver is stuck stops, and a standby takes over.
pub const EVENTS_MAX: usize = 16;
/// Commands that wait for the platform. A driver must never wait for room without taking events in
/// meanwhile: the platform may be waiting for it.
pub const COMMANDS_MAX: usize = 1_024;

/// A platform that runs. It stops when both its channels are dropped.
#[derive(Debug)]
pub struct Platform {
    /// Facts for the core: `Desired`, `Elected`, `Renewed`, `Deposed`, `Registered` and `Gone`.
    pub events: mpsc::Receiver<Event>,
    /// What the core asks of the platform.
    pub commands: mpsc::Sender<Command>,
    /// What is wrong with the manifests at present, in the order of files and lines.
    pub problems: watch::Receiver<Arc<Vec<Problem>>>,
}

/// What a driver asks of its platform; carried out in this order.
#[derive(Debug)]
pub enum Command {
    /// Write down what these workers may hold, then send [`Event::Registered`].
    Register(Vec<(WorkerKey, Exposure)>),
    /// Strike these workers from what is written down.
    Unregister(Vec<WorkerKey>),
    /// Renew leadership now: something waits for a renewal sent from now on.
    Confirm,
    /// Give leadership up, and campaign again with an epoch above this one.
    StepDown {
        /// The highest epoch that anyone remembers.
        above: Option<Epoch>,
    },
    /// The process ends: give leadership up, campaign no more, then answer. A leader must have
    /// stopped granting before it sends this.
    Resign(oneshot::Sender<()>),
}
