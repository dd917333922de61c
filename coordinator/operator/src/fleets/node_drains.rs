//! Drains because of nodes: which workers to drain, how many at once, and which drains to take back
//! because the node takes pods again.
//!
//! Workers on a node that goes soon are drained. Those on a node that is only cordoned are drained
//! if their fleet says `onCordon: Drain`. In both cases no more workers are away at once than the
//! workload's strategy allows, whatever the others are away for.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use leasehold_manifest::manifest::OnCordon;
use leasehold_platform_kube::pods::PodFacts;

use super::worker_pod::{DrainReason, WorkerPod};
use super::workload::{self, WorkloadFacts};
use crate::nodes::ClosedNodes;

/// What is decided, as indices of the pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeDrains {
    /// Pods to mark.
    pub(super) mark: BTreeSet<usize>,
    /// Marked pods whose worker works on.
    pub(super) take_back: BTreeSet<usize>,
}

/// Decides for the pods of a fleet, of which the first `own` are those of its workload.
pub(super) fn decide(
    worker_pods: &[WorkerPod],
    own: usize,
    workload: Option<&WorkloadFacts>,
    on_cordon: OnCordon,
    nodes: &ClosedNodes,
) -> NodeDrains {
    let mut decided = NodeDrains::default();
    let mut candidates = Vec::new();
    for (index, worker) in
        worker_pods.iter().enumerate().filter(|(_, worker)| worker.pod.is_active())
    {
        let Some(node) = &worker.pod.node else { continue };
        let (is_leaving, is_cordoned) =
            (nodes.leaving.contains(node), nodes.cordoned.contains(node));
        let drains = is_leaving || (is_cordoned && on_cordon == OnCordon::Drain);
        match worker.drain_reason {
            None if drains && !is_daemon(worker) => {
                candidates.push((
                    !is_leaving,
                    Reverse(!is_available(worker)),
                    worker.jobs(),
                    index,
                ));
            }
            // The node is being emptied. So the drain ends with the cordon, if that is undone.
            Some(DrainReason::Eviction) if is_leaving || is_cordoned => {
                decided.mark.insert(index);
            }
            // Who has left cannot be taken back.
            Some(reason) if is_taken_back(&worker.pod, reason, nodes) && worker.view.is_some() => {
                decided.take_back.insert(index);
            }
            None
            | Some(
                DrainReason::Node
                | DrainReason::Eviction
                | DrainReason::ScaleIn
                | DrainReason::Restart,
            ) => {}
        }
    }
    candidates.sort();
    let mut room = room(worker_pods, own, workload);
    for (_, _, _, index) in candidates {
        if is_available(&worker_pods[index]) {
            if room == 0 {
                continue;
            }
            room -= 1;
        }
        decided.mark.insert(index);
    }
    decided
}

/// Whether the drain of a marked pod is to end, because its node takes pods again.
pub(super) fn is_taken_back(pod: &PodFacts, reason: DrainReason, nodes: &ClosedNodes) -> bool {
    reason == DrainReason::Node && pod.node.as_ref().is_some_and(|node| nodes.is_open(node))
}

/// How many more workers may leave now.
fn room(worker_pods: &[WorkerPod], own: usize, workload: Option<&WorkloadFacts>) -> u32 {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let available = |pods: &[WorkerPod]| {
        number(pods.iter().filter(|worker_pod| is_available(worker_pod)).count())
    };
    let Some(workload) = workload else {
        let all =
            number(worker_pods.iter().filter(|worker_pod| worker_pod.pod.is_active()).count());
        let away = all - available(worker_pods);
        return workload::unavailable_max(None, all).saturating_sub(away);
    };
    let away = workload.replicas.saturating_sub(available(&worker_pods[..own]));
    workload.unavailable_max.saturating_sub(away)
}

/// Whether a worker serves, and nothing has asked it to go.
fn is_available(worker: &WorkerPod) -> bool {
    worker.pod.is_active()
        && worker.pod.ready
        && worker.drain_reason.is_none()
        && !worker.is_draining()
}

/// Whether the next pod would come to the same node.
fn is_daemon(worker: &WorkerPod) -> bool {
    worker.pod.owner.as_ref().is_some_and(|owner| owner.kind == "DaemonSet")
}

#[cfg(test)]
mod tests {
    use leasehold_manifest::manifest::WorkloadKind;

    use super::*;
    use crate::fleets::fixtures::{facts, pod};

    /// The pods that are marked, and those that are taken back, of a Deployment of `replicas`.
    fn decided(on_cordon: OnCordon, replicas: u32, pods: &[&str]) -> (Vec<String>, Vec<String>) {
        let nodes = ClosedNodes {
            cordoned: BTreeSet::from(["cordoned".to_owned()]),
            leaving: BTreeSet::from(["leaving".to_owned()]),
            are_all_known: true,
        };
        let pods: Vec<WorkerPod> = pods.iter().map(|words| pod(words)).collect();
        let workload = facts(WorkloadKind::Deployment, replicas);
        let decided = decide(&pods, pods.len(), Some(&workload), on_cordon, &nodes);
        let names = |at: BTreeSet<usize>| {
            at.into_iter().map(|index| pods[index].pod.pod.name.clone()).collect()
        };
        (names(decided.mark), names(decided.take_back))
    }

    fn marked(on_cordon: OnCordon, replicas: u32, pods: &[&str]) -> Vec<String> {
        decided(on_cordon, replicas, pods).0
    }

    #[test]
    fn a_cordon_drains_only_under_drain_and_a_node_that_goes_always() {
        let (on_cordoned, on_leaving) = ("a on=cordoned", "b on=leaving");
        for on_cordon in [OnCordon::Prefer, OnCordon::Ignore] {
            assert_eq!(marked(on_cordon, 1, &[on_cordoned]), [""; 0], "{on_cordon:?}");
            assert_eq!(marked(on_cordon, 1, &[on_leaving]), ["b"], "{on_cordon:?}");
        }
        assert_eq!(marked(OnCordon::Drain, 1, &[on_cordoned]), ["a"]);
        assert_eq!(marked(OnCordon::Drain, 1, &["a on=cordoned of=DaemonSet"]), [""; 0]);
        assert_eq!(marked(OnCordon::Drain, 1, &["a on=cordoned going"]), [""; 0]);
    }

    #[test]
    fn no_more_are_away_at_once_than_the_strategy_allows() {
        let three = ["a on=cordoned jobs=2", "b on=cordoned jobs=1", "c on=cordoned jobs=3"];
        assert_eq!(marked(OnCordon::Drain, 3, &three), ["b"], "the least busy one");
        for away in
            ["node drains", "restart", "scale-in", "eviction", "ordered", "going", "unready"]
        {
            let one_away = [three[0], three[1], &format!("c {away}")];
            assert_eq!(marked(OnCordon::Drain, 3, &one_away), [""; 0], "{away}");
        }
        assert_eq!(marked(OnCordon::Drain, 4, &three), [""; 0], "a pod is missing");
        let eight: Vec<String> = (0..8).map(|at| format!("w{at} on=cordoned")).collect();
        let eight: Vec<&str> = eight.iter().map(String::as_str).collect();
        assert_eq!(marked(OnCordon::Drain, 8, &eight), ["w0", "w1"]);
    }

    #[test]
    fn nodes_that_go_come_first_and_who_serves_nothing_does_not_wait() {
        let pods = ["a on=cordoned", "b on=leaving jobs=9", "c"];
        assert_eq!(marked(OnCordon::Drain, 3, &pods), ["b"]);
        let unready = ["a on=cordoned unready", "b on=leaving", "c"];
        assert_eq!(marked(OnCordon::Drain, 3, &unready), ["a"]);
    }

    #[test]
    fn a_fleet_without_a_workload_has_a_quarter_of_its_pods_away() {
        let pods: Vec<WorkerPod> = (0..8).map(|at| pod(&format!("w{at} on=leaving"))).collect();
        let nodes = ClosedNodes {
            leaving: BTreeSet::from(["leaving".to_owned()]),
            are_all_known: true,
            ..ClosedNodes::default()
        };
        let decided = decide(&pods, 0, None, OnCordon::Prefer, &nodes);
        assert_eq!(decided.mark.len(), 2);
    }

    #[test]
    fn a_drain_is_taken_back_when_the_node_takes_pods_again() {
        let taken_back = |pod: &str| decided(OnCordon::Prefer, 1, &[pod]).1;
        assert_eq!(taken_back("a node drains"), ["a"]);
        assert_eq!(taken_back("a node"), ["a"]);
        assert_eq!(taken_back("a node drains on=cordoned"), [""; 0]);
        assert_eq!(taken_back("a node drains on=leaving"), [""; 0]);
        assert_eq!(taken_back("a node absent"), [""; 0], "it has left");
        for mark in ["eviction", "restart", "scale-in"] {
            assert_eq!(taken_back(&format!("a {mark} drains")), [""; 0], "{mark}");
        }
        let pods = [pod("a node drains")];
        let unread = decide(&pods, 1, None, OnCordon::Drain, &ClosedNodes::default());
        assert_eq!(unread, NodeDrains::default(), "the nodes are not read yet");
    }

    #[test]
    fn an_eviction_on_a_cordoned_node_counts_as_its_node() {
        assert_eq!(marked(OnCordon::Prefer, 3, &["a eviction on=cordoned"]), ["a"]);
        assert_eq!(marked(OnCordon::Prefer, 3, &["a eviction"]), [""; 0]);
    }
}
