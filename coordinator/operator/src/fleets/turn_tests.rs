//! One turn of the operator for one cluster, from what is seen to what is done.

use leasehold_manifest::manifest::WorkloadKind;
use leasehold_platform_kube::pods::PodFacts;
use serde_json::json;

use super::*;
use crate::fleets::fixtures::{self, facts, pod};

const START: Moment = Moment(1_000_000_000_000);

fn spec(jobs: u32) -> Value {
    json!({ "maxJobs": jobs, "maxJobsPerWorker": 2, "template": { "spec": {} } })
}

/// One look at a cluster of so many jobs.
fn look(jobs: u32, workload: Option<WorkloadFacts>, pods: &[&str], memory: &mut Memory) -> Turn {
    look_at(&fixtures::cluster(spec(jobs)), workload, pods, START, memory)
}

fn look_at(
    fleet: &Fleet,
    workload: Option<WorkloadFacts>,
    pods: &[&str],
    now: Moment,
    memory: &mut Memory,
) -> Turn {
    let look = Look {
        fleet,
        name: &fixtures::name(),
        team: pods.iter().map(|words| pod(words)).collect(),
        workload: workload.map(Arc::new),
        scale: scale(fleet),
        shares: None,
        cordoned: &BTreeSet::from(["cordoned".to_owned()]),
        now,
    };
    turn(look, memory)
}

/// The replicas that a cluster's jobs ask for.
fn scale(fleet: &Fleet) -> Scale {
    let Fleet::Cluster(cluster) = fleet else { panic!("no cluster: {fleet:?}") };
    Scale::of(workload::replicas(&cluster.spec))
}

/// What is done, in a word each.
fn words(turn: &Turn) -> Vec<String> {
    let pod = |pod: &Arc<PodFacts>| pod.pod.name.clone();
    let mut words: Vec<_> = turn
        .actions
        .iter()
        .map(|action| match &action.what {
            What::Mark(it, mark) => format!("mark {} {}", pod(it), mark.text()),
            What::Cost(it, cost) => format!("cost {} {cost}", pod(it)),
            What::Busy(it, busy) => format!("busy {} {busy}", pod(it)),
            What::Began(it, streams) => format!("began {} {streams}", pod(it)),
            What::Replace(it) => format!("replace {}", pod(it)),
            What::Apply(body) => format!("apply {}", body["spec"]["replicas"]),
        })
        .collect();
    words.sort();
    words
}

#[test]
fn a_workload_that_is_not_there_is_made() {
    let mut memory = Memory::default();
    let made = look(8, None, &[], &mut memory);
    assert_eq!(words(&made), ["apply 4"]);
    let state = made.state.unwrap();
    assert_eq!((state.desired, state.replicas, state.problem), (4, 0, None));
}

#[test]
fn what_was_applied_is_not_applied_again_until_somebody_changes_it() {
    let mut memory = Memory::default();
    let made = look(8, None, &[], &mut memory).actions.remove(0);
    let What::Apply(body) = made.what else { panic!("{made:?}") };
    let seen = |generation| {
        let annotations = &body["spec"]["template"]["metadata"]["annotations"];
        let number = annotations["leasehold.dev/generation"].as_str().unwrap();
        Some(WorkloadFacts {
            generation,
            observed_generation: generation,
            digest: body["metadata"]["annotations"]["leasehold.dev/template"]
                .as_str()
                .map(str::to_owned),
            template_generation: number.parse().unwrap(),
            ..facts(WorkloadKind::Deployment, 4)
        })
    };
    memory.applied.note(made.target.clone(), body.clone(), Some(1), START);
    let pods = ["a", "b", "c", "d"];
    assert_eq!(words(&look(8, seen(1), &pods, &mut memory)), [""; 0]);
    assert_eq!(words(&look(8, seen(2), &pods, &mut memory)), ["apply 4"]);
    assert_eq!(words(&look(12, seen(1), &pods, &mut memory)), ["apply 6"]);
    let later = Moment(START.0 + 3_600_000_000_000);
    let cluster = fixtures::cluster(spec(8));
    let again = look_at(&cluster, seen(1), &pods, later, &mut memory);
    assert_eq!(words(&again), ["apply 4"]);
}

#[test]
fn a_workload_is_written_only_as_it_was_looked_at() {
    // More pods, a new template, or neither: the look may be an old one, and there may be more.
    let older = WorkloadFacts { digest: Some("older".into()), ..applied(8, 4) };
    for (jobs, seen) in [(12, applied(8, 4)), (8, older), (8, applied(8, 4))] {
        let turn = look(jobs, Some(seen), &["a", "b", "c", "d"], &mut Memory::default());
        let What::Apply(body) = &turn.actions[0].what else { panic!("{turn:?}") };
        assert_eq!(body["metadata"]["resourceVersion"], "100");
    }
    let made = look(8, None, &[], &mut Memory::default());
    let What::Apply(body) = &made.actions[0].what else { panic!("{made:?}") };
    assert_eq!(body["metadata"]["resourceVersion"], Value::Null);
}

#[test]
fn somebody_elses_workload_is_left_as_it_is() {
    let other =
        WorkloadFacts { controller: Some("other".into()), ..facts(WorkloadKind::Deployment, 1) };
    let turn = look(8, Some(other), &[], &mut Memory::default());
    assert_eq!(words(&turn), [""; 0]);
    assert_eq!(turn.state.unwrap().problem.unwrap().0, "WorkloadNotOwned");
}

#[test]
fn nothing_is_made_of_a_cluster_that_is_being_deleted() {
    let mut cluster = fixtures::cluster_object(spec(8));
    let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    cluster.metadata.deletion_timestamp = Some(time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
    let turn =
        look_at(&Fleet::Cluster(Arc::new(cluster)), None, &[], START, &mut Memory::default());
    assert_eq!(words(&turn), [""; 0]);
}

/// The workload of the cluster, as it was applied with `replicas`.
fn applied(jobs: u32, replicas: u32) -> WorkloadFacts {
    let cluster = fixtures::cluster(spec(jobs));
    let body = template::body(&cluster, None, replicas).unwrap();
    let digest = body["metadata"]["annotations"]["leasehold.dev/template"].as_str();
    WorkloadFacts {
        digest: digest.map(str::to_owned),
        template_generation: 7,
        ..facts(WorkloadKind::Deployment, replicas)
    }
}

#[test]
fn a_scale_in_goes_step_by_step_and_only_then_lowers_the_replicas() {
    let mut memory = Memory::default();
    let of_two = |pods: &[&str], memory: &mut Memory| look(2, Some(applied(2, 2)), pods, memory);
    let marks = of_two(&["a jobs=1 labelled", "b"], &mut memory);
    assert_eq!(words(&marks), ["apply 2", "mark b scale-in"]);
    assert_eq!(
        marks.scales_in.as_deref(),
        Some("Deployment ci has 2 replicas, 1 too many: they drain first")
    );
    let ordered = of_two(&["a jobs=1 labelled", "b scale-in"], &mut memory);
    assert_eq!(ordered.orders.len(), 1);
    assert_eq!(ordered.orders[0].worker.as_str(), "b");
    let drains = of_two(&["a jobs=1 labelled", "b scale-in drains jobs=1 labelled"], &mut memory);
    assert_eq!((words(&drains), drains.orders.len()), (vec!["apply 2".to_owned()], 0));
    let drained = of_two(&["a jobs=1 labelled", "b scale-in absent"], &mut memory);
    assert_eq!(words(&drained), ["apply 2", "cost b -1000"]);
    assert_eq!(drained.stages.len(), 1);
    let falls = of_two(&["a jobs=1 labelled", "b scale-in absent cost"], &mut memory);
    assert_eq!(words(&falls), ["apply 1"]);
    let What::Apply(body) = &falls.actions[0].what else { panic!("{falls:?}") };
    assert_eq!(body["metadata"]["resourceVersion"], "100");
    assert!(falls.stages.is_empty());
}

#[test]
fn a_new_template_and_fewer_replicas_are_not_written_at_once() {
    let pods = ["a jobs=1 labelled", "b scale-in absent cost"];
    let old = WorkloadFacts { digest: Some("older".into()), ..applied(2, 2) };
    let turn = look(2, Some(old), &pods, &mut Memory::default());
    assert_eq!(words(&turn), ["apply 2"]);
}

#[test]
fn a_scale_in_that_waits_for_a_stuck_rollout_says_so() {
    let mixed = ["a jobs=1 labelled", "b hash=old scale-in absent cost"];
    let stuck = WorkloadFacts { stuck: Some("too late".into()), updated: 1, ..applied(2, 2) };
    let turn = look(2, Some(stuck), &mixed, &mut Memory::default());
    assert_eq!(words(&turn), ["apply 2"]);
    assert_eq!(
        turn.blocked.as_deref(),
        Some(
            "Deployment ci is to have 1 replicas and has 2: pods of more than one template are \
             there, and fewer replicas would end pods of each, whoever has drained; too late"
        )
    );
}

#[test]
fn a_drained_pod_that_is_no_victim_any_more_is_replaced() {
    let pods = ["a jobs=1 labelled", "b scale-in absent"];
    let turn = look(4, Some(applied(4, 2)), &pods, &mut Memory::default());
    assert_eq!(words(&turn), ["apply 2", "replace b"]);
    let drains = ["a jobs=1 labelled", "b scale-in drains jobs=1 labelled"];
    let turn = look(4, Some(applied(4, 2)), &drains, &mut Memory::default());
    assert_eq!(words(&turn), ["apply 2"]);
}

#[test]
fn workers_on_a_cordoned_node_are_drained_and_replaced() {
    let one = |words_of: &str| {
        let turn = look(2, Some(applied(2, 1)), &[words_of], &mut Memory::default());
        words(&turn).into_iter().filter(|it| !it.starts_with("apply")).collect::<Vec<_>>()
    };
    assert_eq!(one("a jobs=1 labelled"), [""; 0]);
    assert_eq!(one("a jobs=1 labelled on=cordoned"), ["mark a node"]);
    assert_eq!(one("a jobs=1 labelled on=cordoned node drains"), [""; 0]);
    assert_eq!(one("a absent on=cordoned node"), ["replace a"]);
    // The node takes pods again: what has drained works no more, and is replaced all the same.
    assert_eq!(one("a absent node"), ["replace a"]);
    assert_eq!(one("a jobs=1 labelled on=cordoned of=DaemonSet"), [""; 0]);
}

#[test]
fn a_worker_whose_drain_was_ordered_by_hand_is_replaced() {
    let one = |words_of: &str| {
        let turn = look(2, Some(applied(2, 1)), &[words_of], &mut Memory::default());
        words(&turn).into_iter().filter(|it| !it.starts_with("apply")).collect::<Vec<_>>()
    };
    assert_eq!(one("a jobs=1 labelled ordered"), ["mark a restart"]);
    assert_eq!(one("a jobs=1 labelled ordered restart"), [""; 0]);
    assert_eq!(one("a absent restart"), ["replace a"]);
}

#[test]
fn a_drain_beyond_its_deadline_is_told_once_and_nothing_is_killed() {
    let mut memory = Memory::default();
    let cluster = fixtures::cluster(json!({
        "maxJobs": 2, "maxJobsPerWorker": 2, "template": {}, "drain": { "deadline": "1s" },
    }));
    let pods = ["a jobs=1 labelled node drains"];
    let mut at = |now| {
        let turn = look_at(&cluster, None, &pods, now, &mut memory);
        assert!(words(&turn).iter().all(|it| !it.contains("replace")));
        turn.stages.into_iter().map(|(_, stage)| stage).collect::<Vec<_>>()
    };
    assert_eq!(at(START), []);
    assert_eq!(at(Moment(START.0 + 2_000_000_000)), [Stage::Overdue]);
    assert_eq!(at(Moment(START.0 + 3_000_000_000)), []);
}

#[test]
fn the_busy_label_is_written_at_once_and_struck_after_ten_idle_seconds() {
    let mut memory = Memory::default();
    let cluster = fixtures::cluster(json!({ "maxJobs": 2, "maxJobsPerWorker": 2 }));
    let mut at = |millis: u64, pod: &str| {
        let now = Moment(START.0 + millis * 1_000_000);
        words(&look_at(&cluster, None, &[pod], now, &mut memory))
    };
    assert_eq!(at(0, "a jobs=1"), ["busy a true"]);
    assert_eq!(at(250, "a jobs=1 labelled"), [""; 0]);
    assert_eq!(at(500, "a labelled streams=3"), [""; 0]);
    assert_eq!(at(10_250, "a labelled"), [""; 0]);
    assert_eq!(at(10_300, "a labelled jobs=1"), [""; 0]);
    assert_eq!(at(10_500, "a labelled"), [""; 0]);
    assert_eq!(at(20_400, "a labelled"), [""; 0]);
    assert_eq!(at(20_500, "a labelled"), ["busy a false"]);
    assert_eq!(at(20_750, "a"), [""; 0]);
    assert_eq!(at(21_000, "a lost"), ["busy a true"]);
}

#[test]
fn a_worker_whose_pod_ends_is_drained_at_once_whoever_ended_it() {
    let mut memory = Memory::default();
    let workload = || Some(facts(WorkloadKind::Deployment, 2));
    let team = ["a going jobs=1", "b going drains jobs=1", "c going lost", "d going absent", "e"];
    let turn = look(4, workload(), &team, &mut memory);
    let ordered: Vec<_> = turn.orders.iter().map(|key| key.worker.as_str()).collect();
    assert_eq!(ordered, ["a"]);
}

/// A class of capacity 15 with a request of 30, as it stands with this scale.
fn class_turn(scale: Scale, replicas: Option<u32>, pods: &[&str]) -> Turn {
    let spec = json!({ "capacity": 15, "maxReplicas": 5, "template": { "spec": {} } });
    let class = Fleet::Class(fixtures::class(spec));
    let workload = replicas.map(|replicas| {
        let body = template::body(&class, None, replicas).unwrap();
        let digest = body["metadata"]["annotations"]["leasehold.dev/template"].as_str();
        Arc::new(WorkloadFacts {
            controller: Some("class-uid".into()),
            digest: digest.map(str::to_owned),
            template_generation: 7,
            ..facts(WorkloadKind::Deployment, replicas)
        })
    });
    let look = Look {
        fleet: &class,
        name: &fixtures::name(),
        team: pods.iter().map(|words| pod(words)).collect(),
        workload,
        scale,
        shares: None,
        cordoned: &BTreeSet::new(),
        now: START,
    };
    turn(look, &mut Memory::default())
}

fn class_scale(replicas: u32, spare: &[&str]) -> Scale {
    let name = |name: &&str| leasehold_types::WorkerName::new(name).unwrap();
    Scale {
        replicas,
        why: Some("request 30, capacity 15, target 70%: 3 workers".into()),
        limited: None,
        spare: Some(spare.iter().map(name).collect()),
    }
}

#[test]
fn a_class_makes_its_workload_and_says_why_it_is_so_large() {
    let made = class_turn(class_scale(3, &[]), None, &[]);
    assert_eq!(words(&made), ["apply 3"]);
    let What::Apply(body) = &made.actions[0].what else { panic!("{made:?}") };
    let owner = &body["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("WorkerClass"), &json!("class-uid")));
    let labels = &body["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels["leasehold.dev/cluster"], "ci");
    let larger = class_turn(class_scale(3, &[]), Some(2), &["a load=15", "b load=15"]);
    let (reason, note) = larger.actions[0].news.clone().unwrap();
    let told = "Deployment ci had 2 replicas and has 3 now (request 30, capacity 15, target 70%: \
                3 workers)";
    assert_eq!((reason, note.as_str()), (Reason::ScaledOut, told));
}

#[test]
fn a_class_drains_whom_it_can_spare_before_its_replicas_fall() {
    let pods = ["a load=15", "b load=15", "c load=5"];
    let none = class_turn(class_scale(2, &[]), Some(3), &pods);
    assert_eq!(words(&none), ["apply 3"]);
    let state = none.state.unwrap();
    assert_eq!((state.desired, state.replicas, state.kept), (2, 3, 1));
    assert_eq!(none.blocked, None);
    let marks = class_turn(class_scale(2, &["c"]), Some(3), &pods);
    assert_eq!(words(&marks), ["apply 3", "mark c scale-in"]);
    let told = marks.scales_in.unwrap();
    assert!(told.contains("3 replicas, 1 too many: they drain first (request 30"), "{told}");
    let serves = ["a load=15", "b load=15", "c load=5 scale-in drains"];
    assert_eq!(words(&class_turn(class_scale(2, &[]), Some(3), &serves)), ["apply 3"]);
    let drained = ["a load=15", "b load=15", "c load=0 scale-in drains jobs=0 cost"];
    assert_eq!(words(&class_turn(class_scale(2, &[]), Some(3), &drained)), ["apply 2"]);
    // A request that comes meanwhile has it replaced.
    let wanted = class_turn(class_scale(3, &[]), Some(3), &drained);
    assert_eq!(words(&wanted), ["apply 3", "replace c"]);
}
