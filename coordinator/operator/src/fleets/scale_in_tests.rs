//! Scale-in, pod by pod: which pods are chosen and drained, and when the replicas are lowered.

use super::*;
use crate::fleets::fixtures::{facts, ordinal_pod, pod};
use crate::fleets::workload::StuckReason;

/// The decision, by the names of pods.
#[derive(Debug, PartialEq, Eq)]
struct Decided {
    mark: Vec<String>,
    cost: Vec<String>,
    replicas: u32,
    waits: bool,
}

fn decided(mark: &[&str], cost: &[&str], replicas: u32) -> Decided {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Decided { mark: owned(mark), cost: owned(cost), replicas, waits: false }
}

fn of(facts: &WorkloadFacts, desired: u32, own_pods: &[WorkerPod]) -> Decided {
    scaled(facts, &DesiredScale::of(desired), own_pods)
}

/// The same, where only these workers can be spared.
fn sparing(
    facts: &WorkloadFacts,
    desired: u32,
    removable: &[&str],
    own_pods: &[WorkerPod],
) -> Decided {
    let removable = removable.iter().map(|name| WorkerName::new(name).expect("a name")).collect();
    scaled(
        facts,
        &DesiredScale { removable: Some(removable), ..DesiredScale::of(desired) },
        own_pods,
    )
}

fn scaled(facts: &WorkloadFacts, scale: &DesiredScale, own_pods: &[WorkerPod]) -> Decided {
    let decision = decide(facts, scale, own_pods);
    let names = |indices: &[usize]| {
        let mut names: Vec<_> =
            indices.iter().map(|index| own_pods[*index].pod.pod.name.clone()).collect();
        names.sort();
        names
    };
    Decided {
        mark: names(&decision.mark),
        cost: names(&decision.cost),
        replicas: decision.replicas.expect("it may be scaled"),
        waits: decision.waits.is_some(),
    }
}

fn deployment(replicas: u32, desired: u32, pods: &[&str]) -> Decided {
    let own_pods: Vec<_> = pods.iter().map(|words| pod(words)).collect();
    of(&facts(WorkloadKind::Deployment, replicas), desired, &own_pods)
}

fn stateful_set(replicas: u32, desired: u32, pods: &[&str]) -> Decided {
    let own_pods: Vec<_> = pods.iter().map(|words| ordinal_pod(words)).collect();
    of(&facts(WorkloadKind::StatefulSet, replicas), desired, &own_pods)
}

#[test]
fn removes_idle_workers_first_newest_before_oldest() {
    let pods = ["a jobs=2 age=4", "b age=3", "c jobs=1 age=2", "d age=1"];
    assert_eq!(deployment(4, 3, &pods), decided(&["d"], &[], 4));
    assert_eq!(deployment(4, 1, &pods), decided(&["b", "c", "d"], &[], 4));
}

#[test]
fn removes_unready_pods_without_jobs_before_idle_ones() {
    let pods = ["a", "b pending absent", "c unready", "d streams=1"];
    assert_eq!(deployment(4, 2, &pods).mark, ["b", "c"]);
    assert_eq!(deployment(4, 1, &pods).mark, ["a", "b", "c"]);
}

#[test]
fn a_worker_with_unknown_jobs_does_not_count_as_idle() {
    assert_eq!(deployment(2, 1, &["a unknown", "b jobs=1"]).mark, ["b"]);
}

#[test]
fn lowers_replicas_after_the_drain_and_the_deletion_cost() {
    let draining = ["a jobs=1", "b", "c scale-in drains jobs=1", "d scale-in drains jobs=1"];
    assert_eq!(deployment(4, 2, &draining), decided(&[], &[], 4));
    let one = ["a jobs=1", "b", "c scale-in drains jobs=0", "d scale-in drains jobs=1"];
    assert_eq!(deployment(4, 2, &one), decided(&[], &["c"], 4));
    let costed = ["a jobs=1", "b", "c scale-in absent cost", "d scale-in drains jobs=1"];
    assert_eq!(deployment(4, 2, &costed), decided(&[], &[], 3));
}

#[test]
fn keeps_a_draining_worker_that_still_has_streams() {
    let pods = ["a", "b scale-in drains jobs=0 streams=1"];
    assert_eq!(deployment(2, 1, &pods), decided(&[], &[], 2));
}

#[test]
fn keeps_a_marked_worker_before_its_drain_is_ordered() {
    assert_eq!(deployment(2, 1, &["a", "b scale-in jobs=0"]), decided(&[], &[], 2));
}

#[test]
fn a_late_watch_event_lowers_the_replicas_only_once() {
    // The replicas fell to 3, and the removed pod is still visible.
    let stale = ["a jobs=1", "b", "c scale-in absent cost", "d scale-in drains jobs=1"];
    assert_eq!(deployment(3, 2, &stale), decided(&[], &[], 3));
    let then = ["a jobs=1", "b", "c scale-in absent cost going", "d scale-in drains jobs=1"];
    assert_eq!(deployment(3, 2, &then), decided(&[], &[], 3));
}

#[test]
fn lowers_replicas_without_pods_at_once() {
    let mut facts = facts(WorkloadKind::Deployment, 4);
    facts.pods = 2;
    facts.updated = 2;
    let own_pods = [pod("a jobs=1 age=2"), pod("b jobs=1 age=1")];
    assert_eq!(of(&facts, 1, &own_pods), decided(&["b"], &[], 2));
}

#[test]
fn does_not_scale_in_while_pods_are_unknown() {
    let own_pods = [pod("a scale-in absent cost")];
    let decided = of(&facts(WorkloadKind::Deployment, 4), 1, &own_pods);
    assert!(decided.waits);
    assert_eq!(decided.replicas, 4);
}

#[test]
fn terminating_pods_do_not_count_as_known_pods() {
    // Three pods run, and one of them is not visible: the terminating one is another.
    let mut facts = facts(WorkloadKind::Deployment, 3);
    let own_pods = [pod("a jobs=1"), pod("b scale-in absent cost"), pod("c going")];
    assert_eq!(of(&facts, 1, &own_pods), decided(&[], &[], 3));
    facts.pods = 2;
    assert_eq!(of(&facts, 1, &own_pods), decided(&[], &[], 1));
}

#[test]
fn waits_for_a_busy_pod_that_the_replica_set_removes_first() {
    let pods = ["a jobs=1 unready", "b", "c scale-in absent cost"];
    let decided = deployment(3, 2, &pods);
    assert!(decided.waits);
    assert_eq!(decided.replicas, 3);
    assert_eq!(deployment(3, 2, &["a jobs=1", "b", "c scale-in absent cost"]).replicas, 2);
}

#[test]
fn waits_for_a_rollout_also_when_it_is_stuck() {
    let own_pods = [
        pod("a jobs=1"),
        pod("b age=2"),
        pod("c hash=old scale-in absent cost"),
        pod("d hash=old absent unready"),
    ];
    let mut rolling = facts(WorkloadKind::Deployment, 4);
    rolling.updated = 2;
    for stuck in [None, Some(StuckReason::Paused), Some(StuckReason::Reported("late".into()))] {
        rolling.stuck = stuck;
        let decision = of(&rolling, 2, &own_pods);
        assert!(decision.waits);
        assert_eq!((decision.mark.len(), decision.replicas), (0, 4));
    }
}

#[test]
fn does_not_wait_for_a_stuck_rollout_without_new_pods() {
    let own_pods = [pod("a jobs=1"), pod("b scale-in absent cost")];
    let mut stuck = facts(WorkloadKind::Deployment, 2);
    stuck.updated = 0;
    for why in [StuckReason::Reported("quota".into()), StuckReason::Paused] {
        stuck.stuck = Some(why);
        assert_eq!(of(&stuck, 1, &own_pods), decided(&[], &[], 1));
    }
    // The controller has not observed the newest spec.
    stuck.generation = 2;
    assert_eq!(of(&stuck, 1, &own_pods).replicas, 2);
}

#[test]
fn scales_out_at_once_without_marks() {
    assert_eq!(deployment(2, 5, &["a jobs=2", "b"]), decided(&[], &[], 5));
}

#[test]
fn ignores_marks_that_a_scale_out_made_obsolete() {
    let own_pods = [pod("a"), pod("b scale-in drains jobs=0"), pod("c scale-in drains jobs=1")];
    let decision = decide(&facts(WorkloadKind::Deployment, 3), &DesiredScale::of(3), &own_pods);
    assert_eq!(decision.victims, BTreeSet::new());
    // The one that has drained is the victim, of two.
    let decision = decide(&facts(WorkloadKind::Deployment, 3), &DesiredScale::of(2), &own_pods);
    assert_eq!(decision.victims, BTreeSet::from([1]));
}

#[test]
fn removes_the_highest_ordinals_of_a_stateful_set() {
    let pods = ["ci-0", "ci-1", "ci-2 jobs=2", "ci-3 jobs=1"];
    assert_eq!(stateful_set(4, 2, &pods), decided(&["ci-2", "ci-3"], &[], 4));
}

#[test]
fn lowers_a_stateful_set_only_from_the_highest_ordinal() {
    let below = ["ci-0", "ci-1", "ci-2 scale-in absent", "ci-3 scale-in drains jobs=1"];
    assert_eq!(stateful_set(4, 2, &below), decided(&[], &[], 4));
    let top = ["ci-0", "ci-1", "ci-2 scale-in drains jobs=1", "ci-3 scale-in absent"];
    assert_eq!(stateful_set(4, 2, &top), decided(&[], &[], 3));
    let both = ["ci-0", "ci-1", "ci-2 scale-in absent", "ci-3 scale-in absent"];
    assert_eq!(stateful_set(4, 2, &both), decided(&[], &[], 2));
    assert_eq!(stateful_set(3, 2, &both), decided(&[], &[], 2));
}

#[test]
fn removes_the_highest_ordinals_also_during_a_rollout() {
    let mut facts = facts(WorkloadKind::StatefulSet, 2);
    facts.updated = 1;
    facts.first_ordinal = 5;
    let own_pods = [ordinal_pod("ci-5"), ordinal_pod("ci-6")];
    assert_eq!(of(&facts, 1, &own_pods), decided(&["ci-6"], &[], 2));
}

/// The pods of a class with this number of desired replicas.
fn class(desired: u32, removable: &[&str], pods: &[&str]) -> Decided {
    let own_pods: Vec<_> = pods.iter().map(|words| pod(words)).collect();
    sparing(&facts(WorkloadKind::Deployment, count(own_pods.len())), desired, removable, &own_pods)
}

#[test]
fn removes_only_removable_workers_of_a_class_idle_first() {
    let pods = ["a load=20", "b load=5", "c load=0", "d load=12"];
    assert_eq!(class(2, &["c", "b"], &pods), decided(&["b", "c"], &[], 4));
    assert_eq!(class(3, &["c", "b"], &pods), decided(&["c"], &[], 4));
    // Two would be too many, and only one finds room for its part.
    assert_eq!(class(2, &["c"], &pods), decided(&["c"], &[], 4));
    assert_eq!(class(1, &[], &pods), decided(&[], &[], 4));
    let scale = DesiredScale { removable: Some(Vec::new()), ..DesiredScale::of(1) };
    let own_pods: Vec<_> = pods.iter().map(|words| pod(words)).collect();
    assert_eq!(decide(&facts(WorkloadKind::Deployment, 4), &scale, &own_pods).kept, 3);
}

#[test]
fn removes_unconnected_pods_of_a_class_before_workers() {
    let pods = ["a load=0", "b pending absent", "c load=5", "d lost load=0 jobs=0"];
    assert_eq!(class(3, &["a"], &pods).mark, ["b"]);
    assert_eq!(class(1, &["a"], &pods).mark, ["a", "b", "d"]);
    assert_eq!(class(0, &["a"], &pods).mark, ["a", "b", "d"]);
}

#[test]
fn chooses_no_further_worker_before_the_core_knows_the_marks() {
    // The core still counts on the capacity of the marked worker.
    let pods = ["a load=5", "b load=0 scale-in drains", "c load=5"];
    assert_eq!(class(1, &["c"], &pods).mark, ["c"]);
    let untold = ["a load=5", "b load=0 scale-in", "c load=5"];
    assert_eq!(class(1, &["c"], &untold).mark, [""; 0]);
}

#[test]
fn never_lets_the_replica_set_remove_a_serving_worker() {
    let pods = ["a load=5 unready", "b scale-in absent cost"];
    let own_pods: Vec<_> = pods.iter().map(|words| pod(words)).collect();
    let waits = sparing(&facts(WorkloadKind::Deployment, 2), 1, &[], &own_pods);
    assert_eq!((waits.replicas, waits.waits), (2, true));
}

#[test]
fn removes_workers_of_a_class_one_by_one_from_the_highest_ordinal() {
    let set = |removable: &[&str], pods: &[&str]| {
        let own_pods: Vec<_> = pods.iter().map(|words| ordinal_pod(words)).collect();
        sparing(&facts(WorkloadKind::StatefulSet, count(own_pods.len())), 1, removable, &own_pods)
    };
    let pods = ["ci-0 load=5", "ci-1 load=0", "ci-2 load=5"];
    assert_eq!(set(&["ci-1", "ci-2"], &pods), decided(&["ci-2"], &[], 3));
    // It can give no other before the top.
    assert_eq!(set(&["ci-1"], &pods), decided(&[], &[], 3));
    let next = ["ci-0 load=10", "ci-1 load=0", "ci-2 scale-in drains load=0"];
    assert_eq!(set(&["ci-1"], &next), decided(&["ci-1"], &[], 2));
    let falls = ["ci-0 load=10", "ci-1 load=0", "ci-2 scale-in absent"];
    assert_eq!(set(&[], &falls), decided(&[], &[], 2));
}
