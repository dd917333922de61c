//! Pods that are to be replaced although neither scale nor node asks for it: somebody has ordered
//! their drain, or their streams have changed and they cannot reload.
//!
//! Which streams a pod began with is a digest in an annotation of it. It is compared only while
//! nothing moves and every worker is there: what others own in a pod's absence is no change. So
//! restarts come to rest where the plan of all workers is always the same, as with the policy
//! `Contiguous` on a StatefulSet; where they do not, they stop after one for each pod.

use std::collections::BTreeMap;

use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::view::Presence;
use leasehold_types::{SetName, WorkerName};

use super::standing::Standing;
use crate::digest::sum;

/// Who owns what of the sets of a cluster whose workers cannot reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shares {
    /// Whether everybody has what the plan wants, and has said so.
    pub(super) is_settled: bool,
    /// The streams of each worker that has any, as one number.
    pub(super) by_worker: BTreeMap<WorkerName, u64>,
    /// What was asked for: another number where the sets are others.
    pub(super) cause: u64,
}

/// Restarts since the sets or the number of workers last changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Round {
    cause: (u64, usize),
    restarts: usize,
}

/// What is to be done for workers that cannot reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Refresh {
    /// Pods to write this digest to: what they began with.
    pub(super) note: Vec<(usize, String)>,
    /// The pod to restart.
    pub(super) restart: Option<usize>,
    /// Why no more pods are restarted, although streams have changed.
    pub(super) waits: Option<String>,
}

/// Whether a pod is to be marked because its worker's drain was ordered through the admin API.
pub(super) fn is_asked_for(it: &Standing) -> bool {
    // Drains of marked pods are ordered by the operator itself.
    let ordered = it.view.as_ref().is_some_and(|view| view.drain_ordered);
    ordered && it.mark.is_none() && it.pod.is_active() && it.is_replaced()
}

impl Shares {
    /// What the core knows of these sets.
    pub(super) fn of(core: &Core, sets: &[SetName]) -> Self {
        let mut shares = Self { is_settled: true, ..Self::default() };
        for name in sets {
            let Some(set) = core.set(name) else { continue };
            shares.is_settled &= set.moving == 0 && !set.held && set.workers == set.workers_current;
            for stream in core.streams(name, None).into_iter().flatten() {
                let sum = sum(stream.key.to_string().as_bytes());
                shares.cause = shares.cause.wrapping_add(sum);
                for claim in stream.claims {
                    let share = shares.by_worker.entry(claim.worker.worker).or_default();
                    *share = share.wrapping_add(sum);
                }
            }
        }
        shares
    }
}

/// Decides for the pods of a cluster, which is to have so many of them.
pub(super) fn refresh(
    shares: &Shares,
    wanted: u32,
    team: &[Standing],
    round: &mut Round,
) -> Refresh {
    let mut decided = Refresh::default();
    let active: Vec<usize> = (0..team.len()).filter(|it| team[*it].pod.is_active()).collect();
    let is_there = |it: &Standing| {
        let is_heard = it.view.as_ref().is_some_and(|it| it.presence == Presence::Connected);
        is_heard && it.mark.is_none() && !it.drains()
    };
    let is_whole = wanted as usize == active.len();
    if !shares.is_settled || !is_whole || !active.iter().all(|it| is_there(&team[*it])) {
        return decided;
    }
    let cause = (shares.cause, active.len());
    if round.cause != cause {
        *round = Round { cause, restarts: 0 };
    }
    let mut changed = Vec::new();
    for index in active.iter().copied() {
        let it = &team[index];
        let share = WorkerName::new(&it.pod.pod.name).ok();
        let share = share.and_then(|worker| shares.by_worker.get(&worker)).copied().unwrap_or(0);
        let share = format!("{share:016x}");
        match &it.pod.streams {
            None => decided.note.push((index, share)),
            Some(began) if *began != share && it.is_replaced() => changed.push(index),
            Some(_) => {}
        }
    }
    changed.sort_by_key(|it| (team[*it].pod.ordinal, team[*it].pod.pod.name.clone()));
    let Some(first) = changed.first().filter(|_| decided.note.is_empty()) else { return decided };
    if round.restarts >= active.len() {
        decided.waits = Some(format!(
            "refresh: Restart has restarted {} pods, and the streams of {} still differ from those \
             that they began with: no more are restarted; the policy Contiguous on a StatefulSet \
             comes to rest",
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

    fn shares(of: &[(&str, u64)]) -> Shares {
        let by_worker = of.iter().map(|(name, share)| (WorkerName::new(name).unwrap(), *share));
        Shares { is_settled: true, by_worker: by_worker.collect(), cause: 1 }
    }

    fn team(words: &[&str]) -> Vec<Standing> {
        words.iter().map(|words| pod(words)).collect()
    }

    #[test]
    fn what_a_pod_began_with_is_noted_first() {
        let decided = refresh(&shares(&[("a", 1)]), 1, &team(&["a"]), &mut Round::default());
        assert_eq!(decided.note, [(0, "0000000000000001".to_owned())]);
        assert_eq!(decided.restart, None);
    }

    #[test]
    fn pods_whose_streams_changed_are_restarted_one_at_a_time() {
        let shares = shares(&[("a", 0x1a), ("b", 0x1b), ("c", 0x1c)]);
        let began = |a: &str| {
            team(&[
                &format!("a began=0000000000000001 {a}"),
                "b began=000000000000001b",
                "c began=0000000000000003",
            ])
        };
        let mut round = Round::default();
        assert_eq!(refresh(&shares, 3, &began(""), &mut round).restart, Some(0));
        for away in ["restart", "restart drains", "going", "absent", "lost", "drains"] {
            assert_eq!(refresh(&shares, 3, &began(away), &mut round).restart, None, "{away}");
        }
        let anew = team(&[
            "a began=000000000000001a",
            "b began=000000000000001b",
            "c began=0000000000000003",
        ]);
        assert_eq!(refresh(&shares, 3, &anew, &mut round).restart, Some(2));
    }

    #[test]
    fn nothing_is_judged_while_anything_moves() {
        let moving = Shares { is_settled: false, ..shares(&[("a", 2)]) };
        let team = team(&["a began=0000000000000001"]);
        assert_eq!(refresh(&moving, 1, &team, &mut Round::default()), Refresh::default());
        assert_eq!(
            refresh(&shares(&[("a", 2)]), 2, &team, &mut Round::default()),
            Refresh::default()
        );
    }

    #[test]
    fn restarts_that_come_to_no_rest_stop() {
        let team = team(&["a began=0000000000000001", "b began=0000000000000001"]);
        let mut shares = shares(&[("a", 2), ("b", 1)]);
        let mut round = Round::default();
        let mut restarts = 0;
        for _ in 0..10 {
            restarts += usize::from(refresh(&shares, 2, &team, &mut round).restart.is_some());
        }
        assert_eq!(restarts, 2);
        assert!(refresh(&shares, 2, &team, &mut round).waits.is_some());
        shares.cause = 2;
        assert!(refresh(&shares, 2, &team, &mut round).restart.is_some());
    }
}
