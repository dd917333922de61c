//! Plans for one cluster, from the observed state to the actions.

use std::collections::BTreeSet;

use leasehold_manifest::manifest::WorkloadKind;
use leasehold_platform_kube::pods::PodFacts;
use serde_json::json;

use super::*;
use crate::fleets::fixtures::{self, facts, pod};
use crate::fleets::workload::StuckReason;

pub(super) const START: Moment = Moment(1_000_000_000_000);

pub(super) fn spec(jobs: u32) -> Value {
    json!({ "maxJobs": jobs, "maxJobsPerWorker": 2, "template": { "spec": {} } })
}

/// The plan for a cluster with this number of jobs.
pub(super) fn plan_for(
    jobs: u32,
    workload: Option<WorkloadFacts>,
    pods: &[&str],
    state: &mut ReconcilerState,
) -> FleetPlan {
    plan_at(&fixtures::cluster(spec(jobs)), workload, pods, START, state)
}

pub(super) fn plan_at(
    fleet: &Fleet,
    workload: Option<WorkloadFacts>,
    pods: &[&str],
    now: Moment,
    state: &mut ReconcilerState,
) -> FleetPlan {
    let input = FleetInput {
        fleet,
        name: &fixtures::name(),
        worker_pods: pods.iter().map(|words| pod(words)).collect(),
        workload: workload.map(Arc::new),
        scale: scale(fleet),
        ownership: None,
        nodes: &nodes(),
        now,
    };
    plan(input, state)
}

/// The node `cordoned` is.
fn nodes() -> ClosedNodes {
    let cordoned = BTreeSet::from(["cordoned".to_owned()]);
    ClosedNodes { cordoned, are_all_known: true, ..ClosedNodes::default() }
}

/// The replicas that a cluster's jobs ask for.
fn scale(fleet: &Fleet) -> DesiredScale {
    let Fleet::Cluster(cluster) = fleet else { panic!("no cluster: {fleet:?}") };
    DesiredScale::of(workload::replicas(&cluster.spec.0))
}

/// The actions, one word each.
fn words(plan: &FleetPlan) -> Vec<String> {
    let name = |pod: &Arc<PodFacts>| pod.pod.name.clone();
    let mut words: Vec<_> = plan
        .actions
        .iter()
        .map(|action| match &action.kind {
            ActionKind::MarkForDrain(pod, mark) => format!("mark {} {}", name(pod), mark.text()),
            ActionKind::Unmark(pod) => format!("unmark {}", name(pod)),
            ActionKind::RemoveMarks(pod) => format!("remove {}", name(pod)),
            ActionKind::SetDeletionCost(pod, cost) => format!("cost {} {cost}", name(pod)),
            ActionKind::SetBusyLabel(pod, busy) => format!("busy {} {busy}", name(pod)),
            ActionKind::RecordStreams(pod, streams) => format!("began {} {streams}", name(pod)),
            ActionKind::DeletePod(pod) => format!("replace {}", name(pod)),
            ActionKind::EvictPod(pod) => format!("evict {}", name(pod)),
            ActionKind::DeleteBudget(uid) => format!("delete {uid}"),
            ActionKind::Apply(body) => format!("apply {}", body["spec"]["replicas"]),
        })
        .collect();
    words.sort();
    words
}

#[test]
fn creates_a_missing_workload() {
    let mut state = ReconcilerState::default();
    let made = plan_for(8, None, &[], &mut state);
    assert_eq!(words(&made), ["apply 4"]);
    let state = made.state.unwrap();
    assert_eq!((state.desired, state.replicas, state.problem), (4, 0, None));
}

#[test]
fn applies_again_only_after_a_change_by_others() {
    let mut state = ReconcilerState::default();
    let made = plan_for(8, None, &[], &mut state).actions.remove(0);
    let ActionKind::Apply(body) = made.kind else { panic!("{made:?}") };
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
    state.applied.note(made.target.clone(), body.clone(), Some(1), START);
    let pods = ["a", "b", "c", "d"];
    assert_eq!(words(&plan_for(8, seen(1), &pods, &mut state)), [""; 0]);
    assert_eq!(words(&plan_for(8, seen(2), &pods, &mut state)), ["apply 4"]);
    assert_eq!(words(&plan_for(12, seen(1), &pods, &mut state)), ["apply 6"]);
    let later = Moment(START.0 + 3_600_000_000_000);
    let cluster = fixtures::cluster(spec(8));
    let again = plan_at(&cluster, seen(1), &pods, later, &mut state);
    assert_eq!(words(&again), ["apply 4"]);
}

#[test]
fn writes_a_workload_only_at_the_version_that_was_read() {
    // More pods, a new template, or neither: the look may be an old one, and there may be more.
    let older = WorkloadFacts { digest: Some("older".into()), ..applied(8, 4) };
    for (jobs, seen) in [(12, applied(8, 4)), (8, older), (8, applied(8, 4))] {
        let plan =
            plan_for(jobs, Some(seen), &["a", "b", "c", "d"], &mut ReconcilerState::default());
        let ActionKind::Apply(body) = &plan.actions[0].kind else { panic!("{plan:?}") };
        assert_eq!(body["metadata"]["resourceVersion"], "100");
    }
    let made = plan_for(8, None, &[], &mut ReconcilerState::default());
    let ActionKind::Apply(body) = &made.actions[0].kind else { panic!("{made:?}") };
    assert_eq!(body["metadata"]["resourceVersion"], Value::Null);
}

#[test]
fn leaves_a_workload_of_another_owner_unchanged() {
    let other =
        WorkloadFacts { controller: Some("other".into()), ..facts(WorkloadKind::Deployment, 1) };
    let plan = plan_for(8, Some(other), &[], &mut ReconcilerState::default());
    assert_eq!(words(&plan), [""; 0]);
    assert_eq!(plan.state.unwrap().problem.unwrap().0, "WorkloadNotOwned");
}

#[test]
fn creates_nothing_for_a_cluster_being_deleted() {
    let mut cluster = fixtures::cluster_object(spec(8));
    let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    cluster.metadata.deletion_timestamp = Some(time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
    let plan = plan_at(
        &Fleet::Cluster(Arc::new(cluster)),
        None,
        &[],
        START,
        &mut ReconcilerState::default(),
    );
    assert_eq!(words(&plan), [""; 0]);
}

/// The workload of the cluster, as it was applied with `replicas`.
pub(super) fn applied(jobs: u32, replicas: u32) -> WorkloadFacts {
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
fn a_scale_in_marks_drains_and_then_lowers_the_replicas() {
    let mut state = ReconcilerState::default();
    let of_two =
        |pods: &[&str], state: &mut ReconcilerState| plan_for(2, Some(applied(2, 2)), pods, state);
    let drain_marks = of_two(&["a jobs=1 labelled", "b"], &mut state);
    assert_eq!(words(&drain_marks), ["apply 2", "mark b scale-in"]);
    assert_eq!(
        drain_marks.scale_in_started.as_deref(),
        Some("Deployment ci has 2 replicas, 1 too many: those workers drain first")
    );
    let ordered = of_two(&["a jobs=1 labelled", "b scale-in"], &mut state);
    assert_eq!(ordered.orders.len(), 1);
    let (kind, worker) = &ordered.orders[0];
    assert_eq!((*kind, worker.worker.as_str()), (OrderKind::Drain, "b"));
    let drains = of_two(&["a jobs=1 labelled", "b scale-in drains jobs=1 labelled"], &mut state);
    assert_eq!((words(&drains), drains.orders.len()), (vec!["apply 2".to_owned()], 0));
    let drained = of_two(&["a jobs=1 labelled", "b scale-in absent"], &mut state);
    assert_eq!(words(&drained), ["apply 2", "cost b -1000"]);
    assert_eq!(drained.drain_progress.len(), 1);
    let falls = of_two(&["a jobs=1 labelled", "b scale-in absent cost"], &mut state);
    assert_eq!(words(&falls), ["apply 1"]);
    let ActionKind::Apply(body) = &falls.actions[0].kind else { panic!("{falls:?}") };
    assert_eq!(body["metadata"]["resourceVersion"], "100");
    assert!(falls.drain_progress.is_empty());
}

#[test]
fn does_not_write_a_new_template_with_fewer_replicas() {
    let pods = ["a jobs=1 labelled", "b scale-in absent cost"];
    let old = WorkloadFacts { digest: Some("older".into()), ..applied(2, 2) };
    let plan = plan_for(2, Some(old), &pods, &mut ReconcilerState::default());
    assert_eq!(words(&plan), ["apply 2"]);
}

#[test]
fn reports_a_scale_in_blocked_by_a_stuck_rollout() {
    let mixed = ["a jobs=1 labelled", "b hash=old scale-in absent cost"];
    let stuck = Some(StuckReason::Reported("too late".into()));
    let stuck = WorkloadFacts { stuck, updated: 1, ..applied(2, 2) };
    let plan = plan_for(2, Some(stuck), &mixed, &mut ReconcilerState::default());
    assert_eq!(words(&plan), ["apply 2"]);
    assert_eq!(
        plan.blocked.as_deref(),
        Some(
            "Deployment ci should have 1 replicas and has 2: there are pods of more than one \
             template, and a scale-in would end pods of each, drained or not; too late"
        )
    );
}

#[test]
fn replaces_a_drained_pod_that_scale_in_no_longer_removes() {
    let pods = ["a jobs=1 labelled", "b scale-in absent"];
    let plan = plan_for(4, Some(applied(4, 2)), &pods, &mut ReconcilerState::default());
    assert_eq!(words(&plan), ["apply 2", "replace b"]);
    let drains = ["a jobs=1 labelled", "b scale-in drains jobs=1 labelled"];
    let plan = plan_for(4, Some(applied(4, 2)), &drains, &mut ReconcilerState::default());
    assert_eq!(words(&plan), ["apply 2"]);
}

#[test]
fn workers_on_a_cordoned_node_are_drained_under_drain_and_replaced() {
    let one = |on_cordon: &str, pod: &str| {
        let mut spec = spec(2);
        spec["onCordon"] = on_cordon.into();
        let (cluster, mut state) = (fixtures::cluster(spec), ReconcilerState::default());
        let plan = plan_at(&cluster, Some(applied(2, 1)), &[pod], START, &mut state);
        words(&plan).into_iter().filter(|word| !word.starts_with("apply")).collect::<Vec<_>>()
    };
    assert_eq!(one("Drain", "a jobs=1 labelled"), [""; 0]);
    assert_eq!(one("Drain", "a jobs=1 labelled on=cordoned"), ["mark a node"]);
    assert_eq!(one("Prefer", "a jobs=1 labelled on=cordoned"), [""; 0]);
    assert_eq!(one("Drain", "a jobs=1 labelled on=cordoned node drains"), [""; 0]);
    assert_eq!(one("Drain", "a absent on=cordoned node"), ["evict a"]);
    // The node takes pods again, but the worker has left.
    assert_eq!(one("Drain", "a absent node"), ["evict a"]);
}

#[test]
fn a_drain_for_a_node_is_taken_back_before_its_mark_is_removed() {
    let mut state = ReconcilerState::default();
    let mut turn = |pod: &str| {
        let plan = plan_for(2, Some(applied(2, 1)), &[pod], &mut state);
        let actions = words(&plan).into_iter().filter(|word| !word.starts_with("apply"));
        let orders = plan.orders.iter().map(|(kind, _)| *kind).collect::<Vec<_>>();
        (actions.collect::<Vec<_>>(), orders)
    };
    let nothing = || (Vec::new(), Vec::new());
    let taken_back = || (Vec::new(), vec![OrderKind::Undrain]);
    assert_eq!(turn("a jobs=1 labelled on=cordoned node drains ordered"), nothing());
    assert_eq!(turn("a jobs=1 labelled node drains ordered"), taken_back());
    // The agent has not heard of it yet.
    assert_eq!(turn("a jobs=1 labelled node drains"), nothing());
    // It has joined another leader meanwhile, and was found marked.
    assert_eq!(turn("a jobs=1 labelled node drains ordered"), taken_back());
    assert_eq!(turn("a jobs=1 labelled node"), (vec!["unmark a".to_owned()], Vec::new()));
}

#[test]
fn replaces_a_worker_drained_through_the_admin_api() {
    let one = |words_of: &str| {
        let plan = plan_for(2, Some(applied(2, 1)), &[words_of], &mut ReconcilerState::default());
        words(&plan).into_iter().filter(|word| !word.starts_with("apply")).collect::<Vec<_>>()
    };
    assert_eq!(one("a jobs=1 labelled ordered"), ["mark a restart"]);
    assert_eq!(one("a jobs=1 labelled ordered restart"), [""; 0]);
    assert_eq!(one("a absent restart"), ["replace a"]);
}

#[test]
fn reports_an_overdue_drain_once_and_kills_nothing() {
    let mut state = ReconcilerState::default();
    let cluster = fixtures::cluster(json!({
        "maxJobs": 2, "maxJobsPerWorker": 2, "template": {}, "drain": { "deadline": "1s" },
    }));
    let pods = ["a jobs=1 labelled node drains"];
    let mut at = |now| {
        let plan = plan_at(&cluster, None, &pods, now, &mut state);
        assert!(words(&plan).iter().all(|word| !word.contains("replace")));
        plan.drain_progress.into_iter().map(|(_, stage)| stage).collect::<Vec<_>>()
    };
    assert_eq!(at(START), []);
    assert_eq!(at(Moment(START.0 + 2_000_000_000)), [DrainProgress::Overdue]);
    assert_eq!(at(Moment(START.0 + 3_000_000_000)), []);
}

#[test]
fn an_overdue_pod_ends_with_its_jobs_only_under_release() {
    for (after, wanted) in
        [("Wait", [vec![], vec![]]), ("Release", [vec!["busy a false"], vec!["evict a"]])]
    {
        let mut state = ReconcilerState::default();
        let cluster = fixtures::cluster(json!({
            "maxJobs": 2, "maxJobsPerWorker": 2, "template": {},
            "drain": { "deadline": "1s", "afterDeadline": after },
        }));
        let mut at = |seconds: u64, pod: &str| {
            let now = Moment(START.0 + seconds * 1_000_000_000);
            let plan = plan_at(
                &cluster,
                Some(facts(WorkloadKind::Deployment, 1)),
                &[pod],
                now,
                &mut state,
            );
            words(&plan).into_iter().filter(|word| !word.starts_with("apply")).collect::<Vec<_>>()
        };
        assert_eq!(at(0, "a jobs=1 labelled on=cordoned node drains"), [""; 0], "{after}");
        assert_eq!(at(2, "a jobs=1 labelled on=cordoned node drains"), wanted[0], "{after}");
        // Without the label, which kept it, it is not labelled again.
        let busy: Vec<&str> = if after == "Wait" { vec!["busy a true"] } else { wanted[1].clone() };
        assert_eq!(at(3, "a jobs=1 on=cordoned node drains"), busy, "{after}");
    }
}

#[test]
fn sets_the_busy_label_at_once_and_removes_it_after_ten_idle_seconds() {
    let mut state = ReconcilerState::default();
    let cluster = fixtures::cluster(json!({ "maxJobs": 2, "maxJobsPerWorker": 2 }));
    let mut at = |millis: u64, pod: &str| {
        let now = Moment(START.0 + millis * 1_000_000);
        words(&plan_at(&cluster, None, &[pod], now, &mut state))
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
fn drains_the_worker_of_a_terminating_pod_at_once() {
    let mut state = ReconcilerState::default();
    let workload = || Some(facts(WorkloadKind::Deployment, 2));
    let worker_pods =
        ["a going jobs=1", "b going drains jobs=1", "c going lost", "d going absent", "e"];
    let plan = plan_for(4, workload(), &worker_pods, &mut state);
    let ordered: Vec<_> = plan.orders.iter().map(|(_, key)| key.worker.as_str()).collect();
    assert_eq!(ordered, ["a"]);
}

/// A class of capacity 15 with a request of 30, at this scale.
fn class_turn(scale: DesiredScale, replicas: Option<u32>, pods: &[&str]) -> FleetPlan {
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
    let input = FleetInput {
        fleet: &class,
        name: &fixtures::name(),
        worker_pods: pods.iter().map(|words| pod(words)).collect(),
        workload,
        scale,
        ownership: None,
        nodes: &ClosedNodes::default(),
        now: START,
    };
    plan(input, &mut ReconcilerState::default())
}

fn class_scale(replicas: u32, removable: &[&str]) -> DesiredScale {
    let name = |name: &&str| leasehold_types::WorkerName::new(name).unwrap();
    DesiredScale {
        replicas,
        why: Some("request 30, capacity 15, target 70%: 3 workers".into()),
        limited: None,
        removable: Some(removable.iter().map(name).collect()),
        due: None,
    }
}

#[test]
fn creates_the_workload_of_a_class_and_explains_its_size() {
    let made = class_turn(class_scale(3, &[]), None, &[]);
    assert_eq!(words(&made), ["apply 3"]);
    let ActionKind::Apply(body) = &made.actions[0].kind else { panic!("{made:?}") };
    let owner = &body["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("WorkerClass"), &json!("class-uid")));
    let labels = &body["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels["leasehold.dev/cluster"], "ci");
    let larger = class_turn(class_scale(3, &[]), Some(2), &["a load=15", "b load=15"]);
    let (reason, note) = larger.actions[0].event.clone().unwrap();
    let note_wanted = "Deployment ci had 2 replicas and has 3 now (request 30, capacity 15, target \
                       70%: 3 workers)";
    assert_eq!((reason, note.as_str()), (EventReason::ScaledOut, note_wanted));
}

#[test]
fn drains_removable_workers_before_lowering_replicas_of_a_class() {
    let pods = ["a load=15", "b load=15", "c load=5"];
    let none = class_turn(class_scale(2, &[]), Some(3), &pods);
    assert_eq!(words(&none), ["apply 3"]);
    let state = none.state.unwrap();
    assert_eq!((state.desired, state.replicas, state.kept), (2, 3, 1));
    assert_eq!(none.blocked, None);
    let drain_marks = class_turn(class_scale(2, &["c"]), Some(3), &pods);
    assert_eq!(words(&drain_marks), ["apply 3", "mark c scale-in"]);
    let note = drain_marks.scale_in_started.unwrap();
    assert!(
        note.contains("3 replicas, 1 too many: those workers drain first (request 30"),
        "{note}"
    );
    let serves = ["a load=15", "b load=15", "c load=5 scale-in drains"];
    assert_eq!(words(&class_turn(class_scale(2, &[]), Some(3), &serves)), ["apply 3"]);
    let drained = ["a load=15", "b load=15", "c load=0 scale-in drains jobs=0 cost"];
    assert_eq!(words(&class_turn(class_scale(2, &[]), Some(3), &drained)), ["apply 2"]);
    // A request that comes meanwhile has it replaced.
    let wanted = class_turn(class_scale(3, &[]), Some(3), &drained);
    assert_eq!(words(&wanted), ["apply 3", "replace c"]);
}
