//! Every condition of a cluster, and its workers in figures.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use leasehold_coordinator_core::view::{Presence, WorkerView};
use leasehold_kube_api::status::{WORKERS_LISTED_MAX, WorkerPhase};
use leasehold_manifest::manifest::WorkloadKind;
use leasehold_platform_kube::pods::PodFacts;
use leasehold_types::message::DrainPhase;
use leasehold_types::{ClusterName, WorkerKey, WorkerName};
use serde_json::json;

use super::super::super::InjectionCounts;
use super::super::super::workload::{Rollout, StuckReason, WorkloadState};
use super::*;

fn pod(name: &str, deleted: bool) -> Arc<PodFacts> {
    let mut metadata = json!({"name": name, "namespace": "fleet", "uid": format!("uid-{name}")});
    if deleted {
        metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    let pod: Pod = serde_json::from_value(json!({"metadata": metadata})).expect("a pod");
    Arc::new(PodFacts::new(&pod).expect("facts"))
}

fn worker(name: &str) -> WorkerView {
    let cluster = ClusterName::in_namespace("fleet", "builds").expect("a name");
    WorkerView {
        key: WorkerKey { cluster, worker: WorkerName::new(name).expect("a name") },
        presence: Presence::Connected,
        drain: DrainPhase::Working,
        failure: None,
        drain_ordered: false,
        drain_overdue: None,
        agent_version: None,
        refused_agent: None,
        agent: None,
        incarnation: None,
        generation: 0,
        silent_for: None,
        granted: 2,
        in_effect: 2,
        running: Some(1),
        committed: 2,
        wanted: 2,
        pool_token: None,
        streams: 3,
        load: leasehold_types::Load::ZERO,
        address: None,
    }
}

/// A cluster of two workers, as it should be.
fn facts() -> ClusterFacts {
    let view = ClusterView {
        name: ClusterName::in_namespace("fleet", "builds").expect("a name"),
        jobs_max: 4,
        jobs_per_worker_max: 2,
        committed: 4,
        running: 2,
        granted: 4,
        workers: 2,
        connected: 2,
        draining: 0,
        failing: 0,
        names_wanted: 0,
        lost: 0,
        unreported: 0,
        streams: 6,
        streams_owned: 6,
        held: None,
        is_class: false,
    };
    ClusterFacts {
        name: "builds".into(),
        generation: Some(3),
        in_force: Some(3),
        problem: None,
        view: Some(view),
        workers: vec![worker("a"), worker("b")],
        pods: vec![pod("a", false), pod("b", false)],
        workload: Some(WorkloadState {
            kind: WorkloadKind::Deployment,
            name: "builds".into(),
            desired: 2,
            replicas: 2,
            updated: 2,
            ready: 2,
            rollout: Rollout::Complete,
            pods_refused: None,
            problem: None,
            limited: None,
            kept: 0,
            replicas_manager: None,
        }),
        agents: InjectionCounts::default(),
    }
}

fn with_workload(change: impl FnOnce(&mut WorkloadState)) -> ClusterFacts {
    let mut facts = facts();
    change(facts.workload.as_mut().expect("one"));
    facts
}

fn written(facts: &ClusterFacts) -> WorkerClusterStatus {
    status(facts, &WorkerClusterStatus::default(), Timestamp::UNIX_EPOCH)
}

/// Every condition in a few words, and Ready's message.
fn words(facts: &ClusterFacts) -> (Vec<String>, String) {
    let conditions = written(facts).conditions;
    let word = |condition: &leasehold_kube_api::status::Condition| {
        let mark = if condition.status == "True" { '+' } else { '-' };
        format!("{mark}{} {}", condition.type_, condition.reason)
    };
    (conditions.iter().map(word).collect(), conditions[0].message.clone())
}

#[test]
fn a_healthy_cluster_is_ready() {
    let status = written(&facts());
    assert_eq!((status.observed_generation, status.in_force_generation), (Some(3), Some(3)));
    assert_eq!(status.max_jobs, Some(4));
    assert_eq!(status.selector.as_deref(), Some("leasehold.dev/cluster=builds"));
    let workload = status.workload.expect("one");
    assert_eq!((workload.kind.as_str(), workload.name.as_str()), ("Deployment", "builds"));
    assert_eq!((status.workers.desired, status.workers.total, status.workers.ready), (2, 2, 2));
    assert_eq!((status.jobs.running, status.jobs.committed, status.jobs.capacity), (2, 4, 4));
    let listed = &status.worker_list[0];
    assert_eq!((listed.name.as_str(), listed.phase), ("a", WorkerPhase::Running));
    assert_eq!((listed.current, listed.granted, listed.running, listed.streams), (2, 2, 1, 3));
    let (words, message) = words(&facts());
    assert_eq!(words, ["+Ready Ready", "-Progressing Complete", "-Degraded AsExpected"]);
    assert_eq!(message, "2 workers are ready, 2 are needed");
}

#[test]
fn a_change_that_ends_by_itself_is_progressing() {
    let mut holds = facts();
    holds.view.as_mut().expect("one").held = Some("waits".into());
    let mut fresh = facts();
    (fresh.view, fresh.in_force, fresh.workers) = (None, None, Vec::new());
    let mut scales_in = with_workload(|workload| (workload.desired, workload.replicas) = (1, 2));
    scales_in.workers[1].drain_ordered = true;
    let rolls =
        with_workload(|workload| (workload.updated, workload.rollout) = (1, Rollout::Progressing));
    let mut waits = facts();
    waits.workers.pop();
    for (facts, reason, part) in [
        (holds, "LeaderHolds", "grants nothing new until every worker has reported"),
        (fresh, "NotInForce", "not read this object yet"),
        (scales_in, "ScalingIn", "from 2 to 1 replicas once the 1 workers that drain"),
        (rolls, "RollingOut", "1 of 2 pods have the newest template"),
        (waits, "WorkersMissing", "the agents of 1 pods have not connected"),
    ] {
        let (words, message) = words(&facts);
        let ready = format!("-Ready {reason}");
        let progressing = format!("+Progressing {reason}");
        let reconciling = format!("+Reconciling {reason}");
        assert_eq!(words, [&ready, &progressing, "-Degraded AsExpected", &reconciling]);
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_problem_for_a_user_is_stalled_and_names_the_fix() {
    let refused = ClusterFacts { problem: Some("spec.lease.ttl: too short".into()), ..facts() };
    let refused = ClusterFacts { in_force: Some(2), ..refused };
    let stuck = StuckReason::Reported("ProgressDeadlineExceeded".into());
    let stuck = with_workload(|workload| workload.rollout = Rollout::Stuck(stuck));
    let paused = with_workload(|workload| workload.rollout = Rollout::Stuck(StuckReason::Paused));
    let absent = with_workload(|workload| {
        workload.problem =
            Some(("WorkloadNotFound", "Deployment builds does not exist: create it".into()));
    });
    for (facts, reason, part) in [
        (refused, "InvalidSpec", "generation 2 stays in force until the spec is corrected"),
        (stuck, "RolloutBlocked", "change the template or undo the change"),
        (paused, "RolloutPaused", "kubectl rollout resume deployment/builds"),
        (absent, "WorkloadNotFound", "create it"),
    ] {
        let (words, message) = words(&facts);
        let all = ["-Ready", "-Progressing", "+Degraded", "+Stalled"];
        assert_eq!(words, all.map(|condition| format!("{condition} {reason}")));
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn pods_that_the_api_server_refuses_are_said_in_its_words() {
    let refused = with_workload(|workload| {
        (workload.updated, workload.rollout) = (1, Rollout::Progressing);
        workload.pods_refused = Some("pods \"b\" is forbidden: exceeded quota: storage".into());
    });
    let (words, message) = words(&refused);
    let conditions = ["-Ready", "+Progressing", "+Reconciling"];
    let [ready, progressing, reconciling] = conditions.map(|name| format!("{name} RollingOut"));
    assert_eq!(words, [&ready, &progressing, "+Degraded PodsRefused", &reconciling]);
    assert!(message.contains("1 of 2 pods have the newest template"), "{message}");
    assert!(
        message.ends_with("cannot create pods: pods \"b\" is forbidden: exceeded quota: storage")
    );
}

#[test]
fn an_invalid_spec_is_observed_at_once_and_stalls_what_still_moves() {
    let rolls = with_workload(|workload| workload.rollout = Rollout::Progressing);
    let problem = Some("spec.lease.ttl: too short".into());
    let facts = ClusterFacts { generation: Some(4), problem, ..rolls };
    let status = written(&facts);
    assert_eq!((status.observed_generation, status.in_force_generation), (Some(4), Some(3)));
    let all = [
        "-Ready InvalidSpec",
        "+Progressing RollingOut",
        "+Degraded InvalidSpec",
        "+Stalled InvalidSpec",
    ];
    assert_eq!(words(&facts).0, all);
}

#[test]
fn a_message_about_missing_pods_names_their_source() {
    let mut made = facts();
    (made.workers, made.pods) = (Vec::new(), Vec::new());
    let loose = ClusterFacts { workload: None, ..made.clone() };
    let (_, message) = words(&made);
    assert!(message.ends_with("2 pods are missing: see the events of Deployment builds"));
    let (_, message) = words(&loose);
    assert!(message.ends_with("start pods with the label leasehold.dev/cluster=builds"));
    let mut idle = loose;
    idle.view.as_mut().expect("one").jobs_max = 0;
    assert_eq!(words(&idle).0[0], "+Ready Ready");
}

#[test]
fn a_lost_worker_degrades_and_is_named() {
    let mut facts = facts();
    facts.workers[0].presence = Presence::Lost;
    facts.workers.push(worker("c"));
    facts.pods.push(pod("c", false));
    let (words, message) = words(&facts);
    assert_eq!(words, ["-Ready WorkersLost", "-Progressing Complete", "+Degraded WorkersLost"]);
    assert!(message.ends_with("gone: a"), "{message}");
    let counts = written(&facts).workers;
    assert_eq!((counts.lost, counts.ready, counts.connected), (1, 2, 2));
}

#[test]
fn lists_a_bounded_number_of_workers_problems_first() {
    let mut facts = facts();
    let name = |number: usize| format!("w{number:03}");
    facts.workers = (0..80).map(|number| worker(&name(number))).collect();
    facts.pods = (0..90).map(|number| pod(&name(number), number == 70 || number == 89)).collect();
    facts.workers[60].presence = Presence::Lost;
    facts.workers[61].presence = Presence::Unreported;
    facts.workers[62].drain = DrainPhase::Draining;
    let status = written(&facts);
    let first: Vec<_> = status
        .worker_list
        .iter()
        .take(15)
        .map(|worker| (worker.name.as_str(), worker.phase))
        .collect();
    use WorkerPhase::{Draining, Lost, Pending, Running, Unreported};
    assert_eq!(first[..3], [("w062", Draining), ("w070", Draining), ("w089", Draining)]);
    assert_eq!(first[3..6], [("w060", Lost), ("w061", Unreported), ("w080", Pending)]);
    assert_eq!(first[14], ("w000", Running));
    assert_eq!((status.worker_list.len(), status.workers_omitted), (WORKERS_LISTED_MAX, 40));
    let counts = status.workers;
    assert_eq!((counts.total, counts.draining, counts.lost, counts.unreported), (90, 3, 1, 1));
    assert_eq!((counts.connected, counts.ready), (78, 76));
}

#[test]
fn changed_figures_alone_do_not_change_the_comparison() {
    let before = written(&facts());
    let mut changed = facts();
    changed.workers[0].running = Some(2);
    changed.view.as_mut().expect("one").running = 3;
    let after = written(&changed);
    assert_ne!(before, after);
    assert_eq!(without_figures(&before), without_figures(&after));
    changed.workers[0].drain_ordered = true;
    assert_ne!(without_figures(&before), without_figures(&written(&changed)));
}

#[test]
fn missing_agents_degrade_and_outdated_ones_do_not() {
    let mut facts = facts();
    facts.agents = InjectionCounts { injected: 2, ..InjectionCounts::default() };
    assert_eq!(words(&facts).0, ["+Ready Ready", "-Progressing Complete", "-Degraded AsExpected"]);
    facts.agents.outdated = 1;
    facts.agents.outdated_pods = vec![("a".into(), "agent:1".into(), "agent:2".into())];
    let (words_of, _) = words(&facts);
    assert_eq!(words_of[0], "+Ready Ready");
    assert_eq!(words_of[3], "+AgentsOutdated ImageDiffers");
    let message = written(&facts).conditions[3].message.clone();
    assert!(message.starts_with("1 of 2 pods") && message.contains("agent:2: a;"), "{message}");
    facts.agents.missing = 7;
    facts.agents.missing_pods = ["x", "y"].map(str::to_owned).into();
    let (words_of, message) = words(&facts);
    assert_eq!(words_of[0], "-Ready AgentMissing");
    assert_eq!(words_of[2], "+Degraded AgentMissing");
    assert!(message.starts_with("7 pods") && message.contains("x, y, …"), "{message}");
    let agents = written(&facts).agents;
    assert_eq!((agents.injected, agents.missing, agents.outdated), (2, 7, 1));
}

#[test]
fn warnings_of_injections_are_a_condition_and_change_no_other() {
    let mut facts = facts();
    let warning = "spec.terminationGracePeriodSeconds is 30 (the default)";
    facts.agents.warned = 2;
    facts.agents.warnings = vec![("a".into(), warning.into())];
    let (words_of, _) = words(&facts);
    assert_eq!(words_of[0], "+Ready Ready");
    assert_eq!(words_of[3], "+InjectionWarnings PodSettings");
    let message = written(&facts).conditions[3].message.clone();
    let quoted = format!("for example a: {warning};");
    assert!(message.starts_with("2 pods") && message.contains(&quoted), "{message}");
    assert!(message.ends_with("change the pod template, and new pods have none"), "{message}");
}
