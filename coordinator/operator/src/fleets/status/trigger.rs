//! When to compute statuses again: after a change, or after an interval. Changes are gathered, with
//! the stream sets that they are about.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::effect::Notice;
use leasehold_driver::history::{FleetChange, RecordedChange};
use leasehold_driver::port::{ChangedClusters, Stopped};
use leasehold_platform_kube::desired::Objects;
use leasehold_types::SetName;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::super::{Context, InjectionByCluster, Workloads};

/// Statuses are computed this often without a change while some are not written yet.
pub(super) const REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// While all are written, they are computed less often the more objects there are: only figures
/// change without a trigger, and those of many objects are written seldom.
const REFRESH_INTERVAL_PER_OBJECT: Duration = Duration::from_millis(200);
/// The longest interval.
const REFRESH_INTERVAL_MAX: Duration = Duration::from_secs(60);
/// How long changes are gathered.
const GATHER_FOR: Duration = Duration::from_millis(250);

/// The changes since the last call.
pub(super) struct StatusTrigger {
    changes: broadcast::Receiver<Arc<RecordedChange>>,
    objects: watch::Receiver<Arc<Objects>>,
    pods: watch::Receiver<u64>,
    clusters: broadcast::Receiver<ChangedClusters>,
    of_fleets: Option<FleetReceivers>,
    sets: BTreeSet<SetName>,
    missed: bool,
}

/// What else the statuses of fleets show.
#[derive(Clone)]
pub(super) struct FleetReceivers {
    pub(super) workloads: watch::Receiver<Workloads>,
    pub(super) agents: watch::Receiver<InjectionByCluster>,
}

/// How long to wait for a change after so many statuses were computed; `are_written` if all of them
/// are as they should be.
pub(super) fn refresh_interval(objects: usize, are_written: bool) -> Duration {
    if !are_written {
        return REFRESH_INTERVAL;
    }
    let objects = u32::try_from(objects).unwrap_or(u32::MAX);
    let interval = REFRESH_INTERVAL_PER_OBJECT.saturating_mul(objects);
    interval.clamp(REFRESH_INTERVAL, REFRESH_INTERVAL_MAX)
}

impl StatusTrigger {
    pub(super) fn new(
        context: &Context,
        of_fleets: Option<FleetReceivers>,
    ) -> Result<Self, Stopped> {
        Ok(Self {
            changes: context.handle.watch()?,
            objects: context.objects.clone(),
            pods: context.pods.changed(),
            clusters: context.handle.watch_clusters()?,
            of_fleets,
            sets: BTreeSet::new(),
            missed: false,
        })
    }

    /// Waits for a change, at most for `interval`, which is [`REFRESH_INTERVAL`] or longer.
    pub(super) async fn wait(&mut self, interval: Duration) -> Result<(), Stopped> {
        self.sets.clear();
        self.missed = false;
        let begun = Instant::now();
        let mut until = begun + interval;
        let change = loop {
            let of_fleets = async {
                match &mut self.of_fleets {
                    Some(FleetReceivers { workloads, agents }) => tokio::select! {
                        changed = workloads.changed() => changed,
                        changed = agents.changed() => changed,
                    },
                    None => pending().await,
                }
            };
            tokio::select! {
                change = self.changes.recv() => break Some(change),
                Ok(()) = self.objects.changed() => break None,
                Ok(()) = self.pods.changed() => break None,
                Ok(()) = of_fleets => break None,
                changed = self.clusters.recv() => match changed {
                    // Jobs begin and end all the time.
                    Ok(_) | Err(RecvError::Lagged(_)) => {
                        until = until.min(begun + REFRESH_INTERVAL);
                    }
                    Err(RecvError::Closed) => return Err(Stopped),
                },
                () = sleep_until(until) => break None,
            }
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
        if let Some(FleetReceivers { workloads, agents }) = &mut self.of_fleets {
            workloads.mark_unchanged();
            agents.mark_unchanged();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_that_are_written_are_computed_less_often_the_more_there_are() {
        let seconds = |objects, are_written| refresh_interval(objects, are_written).as_secs();
        for (objects, written) in [(0, 2), (10, 2), (200, 40), (10_000, 60)] {
            assert_eq!(
                (seconds(objects, true), seconds(objects, false)),
                (written, 2),
                "{objects}"
            );
        }
    }
}
