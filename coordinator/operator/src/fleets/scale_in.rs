//! Scale-in: which pods to remove, and when the replicas may fall. A pod is removed when it holds
//! nothing, and the replicas never fall below the pods that stay.
//!
//! Each decision starts from the present state. The pods' marks are the only memory, so a new
//! leader continues where its predecessor stopped.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use leasehold_coordinator_core::view::{Presence, WorkerView};
use leasehold_manifest::manifest::WorkloadKind;
use leasehold_platform_kube::pods::Phase;
use leasehold_types::{Load, WorkerName};

use super::scaling::DesiredScale;
use super::worker_pod::{DRAINED_POD_COST, DrainReason, WorkerPod};
use super::workload::WorkloadFacts;

/// The decision; indices refer to the pods given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ScaleInDecision {
    /// Pods to mark.
    pub(super) mark: Vec<usize>,
    /// Drained pods to write [`DRAINED_POD_COST`] to.
    pub(super) cost: Vec<usize>,
    /// Pods that a scale-in waits for or is about to remove: they must not be replaced.
    pub(super) victims: BTreeSet<usize>,
    /// The replicas that the workload should have; none where it is not for the coordinator.
    pub(super) replicas: Option<u32>,
    /// What it waits for, besides drains.
    pub(super) waits: Option<String>,
    /// Surplus pods that stay: the others have no room for their shares.
    pub(super) kept: u32,
}

/// Decides for a workload with this scale. `own_pods` are all of its pods.
pub(super) fn decide(
    facts: &WorkloadFacts,
    scale: &DesiredScale,
    own_pods: &[WorkerPod],
) -> ScaleInDecision {
    let (desired, removable) = (scale.replicas, scale.removable.as_deref());
    let current = facts.replicas;
    let active: Vec<usize> =
        (0..own_pods.len()).filter(|index| own_pods[*index].pod.is_active()).collect();
    let unchanged =
        ScaleInDecision { replicas: Some(current.max(desired)), ..ScaleInDecision::default() };
    // A Deployment counts none of its pods that terminate or are over.
    let seen = match facts.kind {
        WorkloadKind::Deployment => count(active.len()),
        WorkloadKind::StatefulSet => count(own_pods.len()),
    };
    if seen < facts.pods && current > desired {
        // Pods that are on their way out may still be counted for a moment.
        let unseen = facts.pods.saturating_sub(count(own_pods.len()));
        let waits = (unseen > 0).then(|| {
            format!("{unseen} of {} pods are not known as workers of this cluster", facts.pods)
        });
        return ScaleInDecision { waits, ..unchanged };
    }
    match facts.kind {
        WorkloadKind::StatefulSet => {
            decide_stateful_set(facts, desired, removable, own_pods, &active)
        }
        WorkloadKind::Deployment if is_rolling(facts, own_pods, &active) => ScaleInDecision {
            // Pods are chosen when only one template is left.
            victims: active.iter().copied().filter(|index| is_marked(&own_pods[*index])).collect(),
            waits: (current > desired).then(|| match facts.stuck {
                None => "a rollout is in progress".to_owned(),
                Some(_) => "there are pods of more than one template, and a scale-in would end \
                            pods of each, drained or not"
                    .to_owned(),
            }),
            ..unchanged
        },
        WorkloadKind::Deployment => decide_deployment(facts, desired, removable, own_pods, &active),
    }
}

/// A Deployment: the pods with the least to lose; their deletion cost makes the ReplicaSet remove
/// them.
fn decide_deployment(
    facts: &WorkloadFacts,
    desired: u32,
    removable: Option<&[WorkerName]>,
    own_pods: &[WorkerPod],
    active: &[usize],
) -> ScaleInDecision {
    let current = facts.replicas;
    let surplus = count(active.len()).saturating_sub(desired);
    let mut marked: Vec<usize> =
        active.iter().copied().filter(|index| is_marked(&own_pods[*index])).collect();
    marked.sort_by_key(|index| rank(&own_pods[*index]));
    let mut decision = ScaleInDecision::default();
    if current > desired {
        let mut others: Vec<usize> =
            active.iter().copied().filter(|index| !is_marked(&own_pods[*index])).collect();
        others.sort_by_key(|index| rank(&own_pods[*index]));
        let wanted = (surplus as usize).saturating_sub(marked.len());
        let others = match removable {
            Some(removable) => removable_pods(others, removable, own_pods, &marked),
            None => others,
        };
        decision.mark = others.into_iter().take(wanted).collect();
        decision.kept = count(wanted - decision.mark.len());
    }
    marked.truncate(surplus as usize);
    let drained: Vec<usize> =
        marked.iter().copied().filter(|index| own_pods[*index].is_drained()).collect();
    decision.victims = marked.into_iter().chain(decision.mark.iter().copied()).collect();
    if current <= desired {
        decision.replicas = Some(desired);
        return decision;
    }
    let missing = |index: &usize| {
        own_pods[*index].pod.deletion_cost.is_none_or(|cost| cost > DRAINED_POD_COST)
    };
    decision.cost = drained.iter().copied().filter(missing).collect();
    let ready = drained.len() - decision.cost.len();
    let stay = count(active.len() - ready);
    decision.replicas = Some(current.min(stay).max(desired));
    if stay < current
        && let Some(first) = active.iter().find(|index| is_removed_first(&own_pods[**index]))
    {
        let first = &own_pods[*first];
        let does = if first.is_busy() { "runs jobs" } else { "serves pipelines" };
        decision.waits = Some(format!(
            "pod {} is not Ready and {does}: its ReplicaSet would remove it first",
            first.pod.pod.name
        ));
        decision.replicas = Some(current);
    }
    decision
}

/// A StatefulSet: it always removes its highest ordinals.
fn decide_stateful_set(
    facts: &WorkloadFacts,
    desired: u32,
    removable: Option<&[WorkerName]>,
    own_pods: &[WorkerPod],
    active: &[usize],
) -> ScaleInDecision {
    let (first, current) = (facts.first_ordinal, facts.replicas);
    let end = first.saturating_add(desired);
    let beyond = |index: &usize| own_pods[*index].pod.ordinal.is_some_and(|ordinal| ordinal >= end);
    let beyond: Vec<usize> = active.iter().copied().filter(beyond).collect();
    let mut decision =
        ScaleInDecision { victims: beyond.iter().copied().collect(), ..ScaleInDecision::default() };
    if current <= desired {
        decision.replicas = Some(desired);
        return decision;
    }
    let (marked, mut others): (Vec<usize>, Vec<usize>) =
        beyond.iter().copied().partition(|index| is_marked(&own_pods[*index]));
    decision.mark = match removable {
        None => others,
        Some(removable) => {
            // Which pods may be removed together is not known: one after the other.
            others.sort_by_key(|index| Reverse(own_pods[*index].pod.ordinal));
            let top = others.first().copied();
            let removable_pods = removable_pods(others.clone(), removable, own_pods, &marked);
            let mark: Vec<usize> =
                top.filter(|top| removable_pods.contains(top)).into_iter().collect();
            decision.kept = count(others.len() - mark.len());
            decision.victims = marked.into_iter().chain(mark.iter().copied()).collect();
            mark
        }
    };
    let stays: BTreeSet<u32> = beyond
        .iter()
        .filter(|index| !(is_marked(&own_pods[**index]) && own_pods[**index].is_drained()))
        .filter_map(|index| own_pods[*index].pod.ordinal)
        .collect();
    let top = stays.last().map_or(desired, |ordinal| ordinal - first + 1);
    decision.replicas = Some(current.min(top).max(desired));
    decision
}

/// The worker that a StatefulSet gives next: the highest of those that are not marked. None where
/// the core does not know it.
pub(super) fn next_stateful_set_pod(own_pods: &[WorkerPod]) -> Option<&WorkerView> {
    let stays =
        own_pods.iter().filter(|worker_pod| worker_pod.pod.is_active() && !is_marked(worker_pod));
    stays.max_by_key(|worker_pod| worker_pod.pod.ordinal)?.view.as_ref()
}

/// The order of removal: marked pods, drained before draining; pods that are not Ready and idle,
/// which the ReplicaSet would remove first; then those with the fewest jobs, the least load and the
/// fewest streams; the newest first.
fn rank(worker: &WorkerPod) -> impl Ord + use<> {
    let (load, streams) =
        worker.view.as_ref().map_or_else(Default::default, |view| (view.load, view.streams));
    let unready = worker.pod.phase == Phase::Pending || !worker.pod.ready;
    (
        !worker.is_drained(),
        worker.drain_reason.is_none(),
        worker.is_busy(),
        !unready,
        worker.jobs(),
        load,
        streams,
        Reverse(worker.pod.created_at),
        worker.pod.pod.name.clone(),
    )
}

/// Those of the pods that may be removed: first those that hold nothing and are not workers, then
/// those that the core can spare, in its order. None while the core has not received every drain
/// order.
fn removable_pods(
    of: Vec<usize>,
    removable: &[WorkerName],
    own_pods: &[WorkerPod],
    marked: &[usize],
) -> Vec<usize> {
    if marked.iter().any(|index| own_pods[*index].needs_drain_order()) {
        return Vec::new();
    }
    let order = |index: &usize| {
        let worker_pod = &own_pods[*index];
        match &worker_pod.view {
            None => Some(0),
            Some(_) if worker_pod.is_drained() => Some(0),
            Some(view) if view.presence != Presence::Connected && worker_pod.is_empty() => Some(0),
            Some(view) => {
                removable.iter().position(|name| *name == view.key.worker).map(|index| index + 1)
            }
        }
    };
    let mut removable_pods: Vec<(usize, usize)> =
        of.into_iter().filter_map(|index| Some((order(&index)?, index))).collect();
    // Pods that are not workers keep the order of their ranks.
    removable_pods.sort_by_key(|(order, _)| *order);
    removable_pods.into_iter().map(|(_, pod)| pod).collect()
}

/// Whether a ReplicaSet would remove it before drained pods, although it runs jobs or serves
/// pipelines.
fn is_removed_first(worker: &WorkerPod) -> bool {
    let serves = worker.view.as_ref().is_some_and(|view| view.load > Load::ZERO);
    !is_marked(worker) && !worker.pod.ready && (worker.is_busy() || serves)
}

/// Whether it is unknown which pods a scale-in would remove: the Deployment scales each of its
/// ReplicaSets in proportion. A stuck rollout with only old pods is not waited for.
fn is_rolling(facts: &WorkloadFacts, own_pods: &[WorkerPod], active: &[usize]) -> bool {
    let templates: BTreeSet<_> =
        active.iter().map(|index| &own_pods[*index].pod.template_hash).collect();
    let is_unread = facts.observed_generation < facts.generation;
    templates.len() > 1 || is_unread || (facts.stuck.is_none() && facts.is_rolling_out())
}

fn is_marked(worker: &WorkerPod) -> bool {
    worker.drain_reason == Some(DrainReason::ScaleIn)
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[path = "scale_in_tests.rs"]
mod tests;
