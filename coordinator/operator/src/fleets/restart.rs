//! Restarts of pods for reasons other than scale and node: their drain was ordered, or their
//! streams have changed and they cannot reload.
//!
//! An annotation of each pod has a digest of its streams at its start. It is compared only while no
//! stream moves and every worker is present: streams that others own while a pod is absent do not
//! count as a change. So restarts end where the plan for all workers is stable, as with the policy
//! `Contiguous` on a StatefulSet; elsewhere they stop after one restart per pod.

use std::collections::BTreeMap;

use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::view::Presence;
use leasehold_types::{SetName, WorkerName};

use super::worker_pod::WorkerPod;
use crate::digest::sum;

/// The owners of the streams of a cluster whose workers cannot reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StreamOwnership {
    /// Whether every worker has acknowledged its planned streams.
    pub(super) is_settled: bool,
    /// A digest of the streams of each worker that has any.
    pub(super) by_worker: BTreeMap<WorkerName, u64>,
    /// A digest of the sets.
    pub(super) cause: u64,
}

/// Restarts since the sets or the number of workers last changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RestartRound {
    cause: (u64, usize),
    restarts: usize,
}

/// The decision for workers that cannot reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RestartDecision {
    /// Pods to annotate with this digest of their streams.
    pub(super) record: Vec<(usize, String)>,
    /// The pod to restart.
    pub(super) restart: Option<usize>,
    /// Why restarts have stopped although streams have changed.
    pub(super) waits: Option<String>,
}

/// Whether to mark a pod because the drain of its worker was ordered through the admin API.
pub(super) fn is_restart_requested(worker: &WorkerPod) -> bool {
    // Drains of marked pods are ordered by the operator itself.
    let ordered = worker.view.as_ref().is_some_and(|view| view.drain_ordered);
    ordered && worker.drain_reason.is_none() && worker.pod.is_active() && worker.has_controller()
}

impl StreamOwnership {
    /// The core's view of these sets.
    pub(super) fn of(core: &Core, sets: &[SetName]) -> Self {
        let mut ownership = Self { is_settled: true, ..Self::default() };
        for name in sets {
            let Some(set) = core.set(name) else { continue };
            ownership.is_settled &=
                set.moving == 0 && !set.held && set.workers == set.workers_current;
            for stream in core.streams(name, None).into_iter().flatten() {
                let sum = sum(stream.key.to_string().as_bytes());
                ownership.cause = ownership.cause.wrapping_add(sum);
                for claim in stream.claims {
                    let streams_digest =
                        ownership.by_worker.entry(claim.worker.worker).or_default();
                    *streams_digest = streams_digest.wrapping_add(sum);
                }
            }
        }
        ownership
    }
}

/// Decides for the pods of a cluster that should have `wanted` pods.
pub(super) fn decide(
    ownership: &StreamOwnership,
    wanted: u32,
    worker_pods: &[WorkerPod],
    round: &mut RestartRound,
) -> RestartDecision {
    let mut decided = RestartDecision::default();
    let active: Vec<usize> =
        (0..worker_pods.len()).filter(|index| worker_pods[*index].pod.is_active()).collect();
    let is_there = |worker_pod: &WorkerPod| {
        let is_heard =
            worker_pod.view.as_ref().is_some_and(|view| view.presence == Presence::Connected);
        is_heard && worker_pod.drain_reason.is_none() && !worker_pod.is_draining()
    };
    let is_whole = wanted as usize == active.len();
    if !ownership.is_settled
        || !is_whole
        || !active.iter().all(|index| is_there(&worker_pods[*index]))
    {
        return decided;
    }
    let cause = (ownership.cause, active.len());
    if round.cause != cause {
        *round = RestartRound { cause, restarts: 0 };
    }
    let mut changed = Vec::new();
    for index in active.iter().copied() {
        let worker = &worker_pods[index];
        let streams_digest = WorkerName::present_name(&worker.pod.pod.name).ok();
        let streams_digest = streams_digest
            .and_then(|worker| ownership.by_worker.get(&worker))
            .copied()
            .unwrap_or(0);
        let streams_digest = format!("{streams_digest:016x}");
        match &worker.pod.streams {
            None => decided.record.push((index, streams_digest)),
            Some(began) if *began != streams_digest && worker.has_controller() => {
                changed.push(index)
            }
            Some(_) => {}
        }
    }
    changed.sort_by_key(|index| {
        (worker_pods[*index].pod.ordinal, worker_pods[*index].pod.pod.name.clone())
    });
    let Some(first) = changed.first().filter(|_| decided.record.is_empty()) else { return decided };
    if round.restarts >= active.len() {
        decided.waits = Some(format!(
            "refresh: Restart has restarted {} pods, and the streams of {} still differ from \
             those at their start: restarts stop here; use the policy Contiguous with a \
             StatefulSet, whose plan is stable",
            round.restarts,
            changed.len()
        ));
        return decided;
    }
    round.restarts += 1;
    decided.restart = Some(*first);
    decided
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleets::fixtures::pod;

    fn ownership(of: &[(&str, u64)]) -> StreamOwnership {
        let by_worker = of.iter().map(|(name, streams_digest)| {
            (WorkerName::present_name(name).unwrap(), *streams_digest)
        });
        StreamOwnership { is_settled: true, by_worker: by_worker.collect(), cause: 1 }
    }

    fn worker_pods(words: &[&str]) -> Vec<WorkerPod> {
        words.iter().map(|words| pod(words)).collect()
    }

    #[test]
    fn records_the_streams_of_a_new_pod_before_any_restart() {
        let decided =
            decide(&ownership(&[("a", 1)]), 1, &worker_pods(&["a"]), &mut RestartRound::default());
        assert_eq!(decided.record, [(0, "0000000000000001".to_owned())]);
        assert_eq!(decided.restart, None);
    }

    #[test]
    fn pods_whose_streams_changed_are_restarted_one_at_a_time() {
        let ownership = ownership(&[("a", 0x1a), ("b", 0x1b), ("c", 0x1c)]);
        let began = |a: &str| {
            worker_pods(&[
                &format!("a began=0000000000000001 {a}"),
                "b began=000000000000001b",
                "c began=0000000000000003",
            ])
        };
        let mut round = RestartRound::default();
        assert_eq!(decide(&ownership, 3, &began(""), &mut round).restart, Some(0));
        for away in ["restart", "restart drains", "going", "absent", "lost", "drains"] {
            assert_eq!(decide(&ownership, 3, &began(away), &mut round).restart, None, "{away}");
        }
        let restarted = worker_pods(&[
            "a began=000000000000001a",
            "b began=000000000000001b",
            "c began=0000000000000003",
        ]);
        assert_eq!(decide(&ownership, 3, &restarted, &mut round).restart, Some(2));
    }

    #[test]
    fn restarts_no_pod_while_streams_move() {
        let moving = StreamOwnership { is_settled: false, ..ownership(&[("a", 2)]) };
        let worker_pods = worker_pods(&["a began=0000000000000001"]);
        assert_eq!(
            decide(&moving, 1, &worker_pods, &mut RestartRound::default()),
            RestartDecision::default()
        );
        assert_eq!(
            decide(&ownership(&[("a", 2)]), 2, &worker_pods, &mut RestartRound::default()),
            RestartDecision::default()
        );
    }

    #[test]
    fn stops_after_one_restart_per_pod_if_streams_still_differ() {
        let worker_pods = worker_pods(&["a began=0000000000000001", "b began=0000000000000001"]);
        let mut ownership = ownership(&[("a", 2), ("b", 1)]);
        let mut round = RestartRound::default();
        let mut restarts = 0;
        for _ in 0..10 {
            restarts +=
                usize::from(decide(&ownership, 2, &worker_pods, &mut round).restart.is_some());
        }
        assert_eq!(restarts, 2);
        assert!(decide(&ownership, 2, &worker_pods, &mut round).waits.is_some());
        ownership.cause = 2;
        assert!(decide(&ownership, 2, &worker_pods, &mut round).restart.is_some());
    }
}
