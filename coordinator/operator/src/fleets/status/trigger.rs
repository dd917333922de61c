//! When to compute statuses again: after a change, or after an interval. Changes are gathered, with
//! the stream sets that they are about.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::effect::Notice;
use leasehold_driver::history::{FleetChange, RecordedChange};
use leasehold_driver::port::Stopped;
use leasehold_platform_kube::desired::Objects;
use leasehold_types::SetName;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, watch};
use tokio::time::sleep;

use super::super::{Context, Workloads};

/// Statuses are computed at least this often, also without a change.
pub(super) const REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// How long changes are gathered.
const GATHER_FOR: Duration = Duration::from_millis(250);

/// The changes since the last call.
pub(super) struct StatusTrigger {
    changes: broadcast::Receiver<Arc<RecordedChange>>,
    objects: watch::Receiver<Arc<Objects>>,
    pods: watch::Receiver<u64>,
    workloads: Option<watch::Receiver<Workloads>>,
    sets: BTreeSet<SetName>,
    missed: bool,
}

impl StatusTrigger {
    pub(super) fn new(
        context: &Context,
        workloads: Option<watch::Receiver<Workloads>>,
    ) -> Result<Self, Stopped> {
        Ok(Self {
            changes: context.handle.watch()?,
            objects: context.objects.clone(),
            pods: context.pods.changed(),
            workloads,
            sets: BTreeSet::new(),
            missed: false,
        })
    }

    /// Waits for a change or the end of the interval.
    pub(super) async fn wait(&mut self) -> Result<(), Stopped> {
        self.sets.clear();
        self.missed = false;
        let of_workloads = async {
            match &mut self.workloads {
                Some(workloads) => workloads.changed().await,
                None => pending().await,
            }
        };
        let change = tokio::select! {
            change = self.changes.recv() => Some(change),
            Ok(()) = self.objects.changed() => None,
            Ok(()) = self.pods.changed() => None,
            Ok(()) = of_workloads => None,
            () = sleep(REFRESH_INTERVAL) => None,
        };
        match change {
            Some(Ok(change)) => self.note(&change.change),
            Some(Err(RecvError::Lagged(_))) => self.missed = true,
            Some(Err(RecvError::Closed)) => return Err(Stopped),
            None => {}
        }
        sleep(GATHER_FOR).await;
        loop {
            match self.changes.try_recv() {
                Ok(change) => self.note(&change.change),
                Err(TryRecvError::Lagged(_)) => self.missed = true,
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        self.objects.mark_unchanged();
        self.pods.mark_unchanged();
        if let Some(workloads) = &mut self.workloads {
            workloads.mark_unchanged();
        }
        Ok(())
    }

    /// Whether this set may have changed.
    pub(super) fn has_changed(&self, set: &SetName) -> bool {
        self.missed || self.sets.contains(set)
    }

    fn note(&mut self, change: &FleetChange) {
        let FleetChange::Notice(notice) = change else { return };
        match notice {
            Notice::StreamGranted { stream, .. }
            | Notice::StreamRevoked { stream, .. }
            | Notice::StreamFreed { stream, .. } => {
                self.sets.insert(stream.set.clone());
            }
            // These may change every set of a cluster, or all of them.
            Notice::Elected(_)
            | Notice::Deposed(_)
            | Notice::HoldEnded(_)
            | Notice::Lost(_)
            | Notice::GivenUp { .. }
            | Notice::DrainStarted(_)
            | Notice::Failing { .. }
            | Notice::Recovered(_)
            | Notice::Gone(_) => self.missed = true,
            Notice::Joined(_)
            | Notice::Disconnected(_)
            | Notice::PoolGranted { .. }
            | Notice::Pipeline { .. }
            | Notice::Binding { .. }
            | Notice::Endpoints { .. }
            | Notice::EpochAhead { .. }
            | Notice::EpochRepeated { .. }
            | Notice::NameRefused { .. }
            | Notice::ProtocolViolation { .. } => {}
        }
    }
}
