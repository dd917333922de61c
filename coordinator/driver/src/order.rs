//! What a caller may order a worker to do.

use std::fmt;

use leasehold_coordinator_core::event::Event;
use leasehold_types::WorkerKey;

use crate::access::Caller;

/// An order about one worker, from a person or the operator. The core takes it as an event.
#[derive(Clone, Debug)]
pub struct WorkerOrder {
    /// What to do.
    pub kind: OrderKind,
    /// With which worker.
    pub worker: WorkerKey,
    /// Who says so.
    pub by: Caller,
}

/// What to do with a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderKind {
    /// Drain it.
    Drain,
    /// Take an order to drain back.
    Undrain,
    /// Free everything that it holds: it no longer runs.
    DeclareGone,
}

impl OrderKind {
    /// Every kind.
    pub(crate) const ALL: [Self; 3] = [Self::Drain, Self::Undrain, Self::DeclareGone];
}

impl fmt::Display for OrderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Drain => "drain",
            Self::Undrain => "end of its drain",
            Self::DeclareGone => "declaration that it is gone",
        })
    }
}

impl From<WorkerOrder> for Event {
    fn from(order: WorkerOrder) -> Self {
        match order.kind {
            OrderKind::Drain => Self::Drain(order.worker),
            OrderKind::Undrain => Self::Undrain(order.worker),
            OrderKind::DeclareGone => Self::Gone(vec![order.worker]),
        }
    }
}
