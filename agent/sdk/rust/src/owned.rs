//! The leases that this process owns: name, token, end and status of each.
//!
//! Invariant: a lease that is lost stays lost.

use std::fmt;
use std::sync::Arc;

use leasehold_proto::worker::v1 as wire;
use leasehold_types::{Moment, Token};
use tokio::sync::watch;

use crate::route::Next;

/// The kind of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A stream.
    Stream,
    /// A share of a pipeline's node.
    Binding,
}

/// The name of a stream or binding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    /// The stream set, or the pipeline.
    pub(crate) of: String,
    /// The stream, or the node.
    pub(crate) name: String,
    /// The number of the share among the node's; 0 for a stream.
    pub(crate) index: u32,
}

/// The status of a lease.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaseStatus {
    pub(crate) revoked: bool,
    /// The lease permits no more writes.
    pub(crate) lost: bool,
    /// Of a binding: where documents go from here.
    pub(crate) next: Arc<[Next]>,
}

/// A lease as the state keeps it while the worker owns it.
#[derive(Debug)]
pub(crate) struct OwnedLease {
    pub(crate) token: Token,
    pub(crate) end: Option<Moment>,
    pub(crate) release_by: Option<Moment>,
    name: String,
    status: watch::Sender<LeaseStatus>,
}

impl OwnedLease {
    pub(crate) fn new(
        key: &Key,
        token: Token,
        end: Option<Moment>,
        next: Arc<[Next]>,
    ) -> (Self, watch::Receiver<LeaseStatus>) {
        let (status, seen) = watch::channel(LeaseStatus { next, ..LeaseStatus::default() });
        (Self { token, end, release_by: None, name: key.to_string(), status }, seen)
    }

    /// Applies the newest lease. A lost lease stays lost.
    pub(crate) fn renew(&mut self, held: bool, end: Option<Moment>, release_by: Option<Moment>) {
        let LeaseStatus { revoked, lost, .. } = *self.status.borrow();
        if lost {
            return;
        }
        self.end = end;
        if held == revoked {
            // Revoked, or no longer revoked: a new leader may decide otherwise.
            self.release_by = release_by.filter(|_| !held);
            self.status.send_modify(|status| status.revoked = !held);
        }
    }

    /// Sets where documents go from here.
    pub(crate) fn set_routes(&self, next: &Arc<[Next]>) {
        self.status.send_if_modified(|status| {
            let changed = status.next != *next;
            if changed {
                status.next = next.clone();
            }
            changed
        });
    }

    /// Marks the lease as lost.
    pub(crate) fn mark_lost(&mut self, why: &str) {
        if !self.status.borrow().lost {
            tracing::warn!(lease = self.name, token = %self.token, why, "a lease is lost");
            self.status.send_modify(|status| status.lost = true);
        }
    }

    /// Marks the lease as lost if its time is over; otherwise returns when it will be.
    pub(crate) fn expire(&mut self, now: Moment) -> Option<Moment> {
        let end = self.end.filter(|_| !self.status.borrow().lost)?;
        if end <= now {
            self.mark_lost("it was not renewed");
            return None;
        }
        Some(end)
    }
}

impl From<&wire::StreamLease> for Key {
    fn from(lease: &wire::StreamLease) -> Self {
        let (of, name) = (lease.set.clone(), lease.stream.clone());
        Self { kind: Kind::Stream, of, name, index: 0 }
    }
}

impl From<&wire::Binding> for Key {
    fn from(binding: &wire::Binding) -> Self {
        let (of, name) = (binding.pipeline.clone(), binding.node.clone());
        Self { kind: Kind::Binding, of, name, index: binding.index }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, of, name, index } = self;
        match kind {
            Kind::Stream => write!(f, "{of}/{name}"),
            Kind::Binding => write!(f, "{of}/{name}/{index}"),
        }
    }
}
