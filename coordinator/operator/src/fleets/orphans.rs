//! Pods that a deleted fleet has left behind, with marks on them. The marks keep node autoscalers
//! and evictions from a pod, and nobody else removes them.
//!
//! **Invariant**: a worker that may run jobs keeps its marks.

use std::collections::BTreeMap;

use leasehold_coordinator_core::view::{Presence, WorkerView};
use leasehold_driver::order::OrderKind;
use leasehold_driver::port::Stopped;
use leasehold_platform_kube::desired::Objects;
use leasehold_types::{ClusterName, Moment, WorkerKey};

use super::Context;
use super::action::{Action, ActionKind};
use super::state::ReconcilerState;
use super::worker_pod::WorkerPod;

/// What to do for pods of deleted fleets.
#[derive(Debug, Default)]
pub(super) struct OrphanPlan {
    /// Drains to take back.
    pub(super) orders: Vec<(OrderKind, WorkerKey)>,
    /// The calls to make.
    pub(super) actions: Vec<Action>,
    /// When to plan again although nothing changes.
    pub(super) due: Option<Moment>,
}

/// A marked pod of a deleted fleet.
#[derive(Debug)]
pub(super) struct Orphan {
    pub(super) pod: WorkerPod,
    /// When the leases of its silent worker have ended.
    silent_until: Option<Moment>,
}

/// The marked pods among these whose fleet does not exist.
pub(super) fn find(
    objects: &Objects,
    pods: BTreeMap<ClusterName, Vec<WorkerPod>>,
    is_readable: impl Fn(&ClusterName) -> bool,
) -> Vec<(WorkerKey, WorkerPod)> {
    // Before all objects are listed, a fleet that is missing may exist.
    if !objects.is_whole {
        return Vec::new();
    }
    let left = pods.into_iter().filter(|(name, _)| !objects.has_fleet(name));
    let left = left.filter(|(name, _)| is_readable(name));
    let marked = left.flat_map(|(name, pods)| {
        let marked = pods.into_iter().filter(|pod| pod.pod.busy || pod.has_marks());
        marked.filter_map(move |pod| Some((pod.pod.pod.key_in(&name)?, pod)))
    });
    marked.collect()
}

/// Reads the workers of these pods.
pub(super) async fn read_workers(
    context: &Context,
    orphans: Vec<(WorkerKey, WorkerPod)>,
) -> Result<Vec<Orphan>, Stopped> {
    if orphans.is_empty() {
        return Ok(Vec::new());
    }
    let (keys, pods): (Vec<WorkerKey>, Vec<WorkerPod>) = orphans.into_iter().unzip();
    let views = context.handle.ask(move |core, now| {
        let view = |key: WorkerKey| {
            let silent_until = core.lost_from(&key).max(core.unreported_until(&key));
            let view = core.worker(&key, now);
            (view.filter(|view| is_awaited(view, silent_until, now)), silent_until)
        };
        keys.into_iter().map(view).collect::<Vec<_>>()
    });
    let with_view =
        |(pod, (view, silent_until))| Orphan { pod: WorkerPod { view, ..pod }, silent_until };
    Ok(pods.into_iter().zip(views.await?).map(with_view).collect())
}

/// Whether a worker is waited for. The coordinator refuses agents of a cluster that does not exist,
/// so one that has lost its connection never reports again, and its leases end at `silent_until`.
fn is_awaited(view: &WorkerView, silent_until: Option<Moment>, now: Moment) -> bool {
    view.presence == Presence::Connected || silent_until.is_some_and(|until| now < until)
}

/// Decides what to do for these pods.
pub(super) fn plan(orphans: &[Orphan], state: &mut ReconcilerState, now: Moment) -> OrphanPlan {
    let mut plan = OrphanPlan::default();
    for Orphan { pod: orphan, silent_until } in orphans {
        if !orphan.pod.is_active() {
            continue;
        }
        plan.is_due_at(silent_until.filter(|_| orphan.view.is_some()), now);
        let act = |kind| Action::on_pod(&orphan.pod, kind);
        if let Some(busy) = state.idle.label_change(orphan, now) {
            plan.actions.push(act(ActionKind::SetBusyLabel(orphan.pod.clone(), busy)));
        }
        plan.is_due_at(state.idle.due(&orphan.pod.uid), now);
        if orphan.is_busy() {
            continue;
        }
        match &orphan.view {
            // A later fleet of this name would find a worker that takes nothing.
            Some(view) if orphan.drain_reason.is_some() && orphan.is_draining() => {
                if orphan.needs_undrain_order(state.taken_back.contains(&orphan.pod.uid)) {
                    state.taken_back.insert(orphan.pod.uid.clone());
                    plan.orders.push((OrderKind::Undrain, view.key.clone()));
                }
            }
            Some(_) | None if orphan.has_marks() => {
                plan.actions.push(act(ActionKind::RemoveMarks(orphan.pod.clone())));
            }
            Some(_) | None => {}
        }
    }
    plan
}

impl OrphanPlan {
    fn is_due_at(&mut self, at: Option<Moment>, now: Moment) {
        let at = at.filter(|at| *at > now);
        self.due = self.due.into_iter().chain(at).min();
    }
}

#[cfg(test)]
#[path = "orphans_tests.rs"]
mod tests;
