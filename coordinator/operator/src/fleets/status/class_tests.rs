//! Every condition of a class, and its load in figures.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use leasehold_coordinator_core::view::{Presence, WorkerView};
use leasehold_manifest::manifest::WorkloadKind;
use leasehold_platform_kube::pods::PodFacts;
use leasehold_types::message::DrainPhase;
use leasehold_types::{ClusterName, Load, WorkerKey, WorkerName};
use serde_json::json;

use super::*;
use crate::fleets::InjectionCounts;
use crate::fleets::workload::{Rollout, WorkloadState};

fn name() -> ClusterName {
    ClusterName::in_namespace("ns", "green").expect("a name")
}

fn load(documents: u64) -> Load {
    Load::per_second(documents).expect("a load")
}

fn pod(name: &str) -> Arc<PodFacts> {
    let metadata = json!({ "name": name, "namespace": "ns", "uid": name });
    let pod: Pod = serde_json::from_value(json!({ "metadata": metadata })).expect("a pod");
    Arc::new(PodFacts::new(&pod).expect("facts"))
}

fn worker(name: &str) -> WorkerView {
    WorkerView {
        key: WorkerKey { cluster: self::name(), worker: WorkerName::new(name).expect("a name") },
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
        granted: 0,
        in_effect: 0,
        running: Some(0),
        committed: 0,
        wanted: 0,
        pool_token: None,
        streams: 1,
        load: load(10),
        address: None,
    }
}

/// A class of three workers, as it should be.
fn facts() -> ClassFacts {
    let class = ClassView {
        name: name(),
        capacity: load(15),
        request: load(30),
        placed: load(30),
        workers: 3,
        workers_needed: 2,
        workers_wanted: 3,
        workers_min: 0,
        workers_max: 10,
        waiting: 0,
        short: 0,
    };
    FleetFacts {
        name: "green".into(),
        generation: Some(3),
        in_force: Some(3),
        problem: None,
        view: Some(ClassSnapshot { class, held: None }),
        workers: ["a", "b", "c"].map(worker).into(),
        pods: ["a", "b", "c"].map(pod).into(),
        workload: Some(WorkloadState {
            kind: WorkloadKind::Deployment,
            name: "green".into(),
            desired: 3,
            replicas: 3,
            updated: 3,
            ready: 3,
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

fn changed(change: impl FnOnce(&mut ClassFacts, &mut WorkloadState)) -> ClassFacts {
    let mut facts = facts();
    let mut workload = facts.workload.take().expect("one");
    change(&mut facts, &mut workload);
    facts.workload = Some(workload);
    facts
}

fn written(facts: &ClassFacts) -> WorkerClassStatus {
    status(facts, &WorkerClassStatus::default(), Timestamp::UNIX_EPOCH)
}

/// Every condition in a few words, and Ready's message.
fn words(facts: &ClassFacts) -> (String, String) {
    let conditions = written(facts).conditions;
    let word = |condition: &leasehold_kube_api::status::Condition| {
        let mark = if condition.status == "True" { '+' } else { '-' };
        format!("{mark}{} {}", condition.type_, condition.reason)
    };
    let all: Vec<_> = conditions.iter().map(word).collect();
    (all.join(", "), conditions[0].message.clone())
}

#[test]
fn a_healthy_class_is_ready_and_has_the_autoscaler_fields() {
    let status = written(&facts());
    assert_eq!((status.observed_generation, status.in_force_generation), (Some(3), Some(3)));
    assert_eq!(status.replicas, 3);
    assert_eq!(status.selector.as_deref(), Some("leasehold.dev/cluster=green"));
    assert_eq!((status.workers.desired, status.workers.ready), (3, 3));
    let ClassLoad { request, placed, utilization } = status.load;
    assert_eq!((request.as_str(), placed.as_str(), utilization), ("30", "30", Some(67)));
    let (conditions, message) = words(&facts());
    assert_eq!(conditions, "+Ready Ready, -Progressing Complete, -Degraded AsExpected");
    assert_eq!(message, "3 workers are ready, 3 are needed");
}

#[test]
fn a_change_that_ends_by_itself_is_progressing() {
    let held = changed(|class, _| class.view.as_mut().expect("one").held = Some(3));
    let more = changed(|_, workload| {
        (workload.desired, workload.replicas, workload.rollout) = (4, 4, Rollout::Progressing);
    });
    let less = changed(|class, workload| {
        workload.desired = 2;
        class.workers[0].drain = DrainPhase::Draining;
    });
    let waits = changed(|class, _| class.view.as_mut().expect("one").class.waiting = 2);
    for (facts, reason, part) in [
        (held, "LeaderHolds", "0 of 3 have not"),
        (more, "RollingOut", "3 of 4 pods"),
        (less, "ScalingIn", "from 3 to 2 replicas"),
        (waits, "PipelinesWait", "2 pipelines wait for more workers than 3"),
    ] {
        let (conditions, message) = words(&facts);
        let wanted = format!(
            "-Ready {reason}, +Progressing {reason}, -Degraded AsExpected, +Reconciling {reason}"
        );
        assert_eq!(conditions, wanted);
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn pipelines_waiting_at_the_worker_limit_stall_the_class() {
    let limited = changed(|class, workload| {
        class.view.as_mut().expect("one").class.waiting = 1;
        workload.limited = Some(("TooManyReplicas", "3 workers; maxReplicas is 3".into()));
    });
    let (conditions, message) = words(&limited);
    let wanted = "-Ready PipelinesWait, -Progressing Complete, +Degraded PipelinesWait, \
                  +ScalingLimited TooManyReplicas";
    assert_eq!(conditions, wanted);
    assert!(message.ends_with("more workers than 3: 3 workers; maxReplicas is 3"), "{message}");
    let mut unowned = facts();
    unowned.view.as_mut().expect("one").class.waiting = 1;
    unowned.workload = None;
    let (conditions, message) = words(&unowned);
    assert!(conditions.ends_with("+Degraded PipelinesWait"), "{conditions}");
    assert!(message.ends_with("start pods with the label leasehold.dev/cluster=green"));
}

#[test]
fn a_reached_limit_alone_does_not_degrade() {
    let limited = changed(|_, workload| {
        workload.limited = Some(("TooManyReplicas", "spec.replicas is 9; maxReplicas is 3".into()));
    });
    let (conditions, _) = words(&limited);
    assert!(conditions.starts_with("+Ready Ready"), "{conditions}");
    assert!(conditions.ends_with("+ScalingLimited TooManyReplicas"), "{conditions}");
}

#[test]
fn reports_surplus_workers_kept_for_their_shares() {
    let kept = changed(|_, workload| (workload.desired, workload.kept) = (2, 1));
    let (conditions, message) = words(&kept);
    assert_eq!(conditions, "+Ready Ready, -Progressing Complete, -Degraded AsExpected");
    assert!(message.contains("3 workers are ready, 2 are needed; 1 stay, because"), "{message}");
}

#[test]
fn an_invalid_spec_and_a_lost_worker_degrade() {
    let degraded_by = changed(|class, _| {
        (class.problem, class.in_force) = (Some("spec.capacity: must be above 0".into()), Some(2));
    });
    let (conditions, message) = words(&degraded_by);
    let wanted = "-Ready InvalidSpec, -Progressing InvalidSpec, +Degraded InvalidSpec, +Stalled \
                  InvalidSpec";
    assert_eq!(conditions, wanted);
    assert!(
        message.ends_with("generation 2 stays in force until the spec is corrected"),
        "{message}"
    );
    let lost = changed(|class, workload| {
        class.workers[0].presence = Presence::Lost;
        workload.desired = 2;
    });
    let (conditions, message) = words(&lost);
    assert!(conditions.contains("+Degraded WorkersLost"), "{conditions}");
    assert!(message.contains("go to other workers when their leases have ended: a"), "{message}");
}

#[test]
fn changed_figures_alone_do_not_change_the_comparison() {
    let before = written(&facts());
    let after = written(&changed(|class, _| {
        class.view.as_mut().expect("one").class.placed = load(20);
    }));
    assert_ne!(before, after);
    assert_eq!(without_figures(&before), without_figures(&after));
    let waits = written(&changed(|class, _| class.view.as_mut().expect("one").class.waiting = 1));
    assert_ne!(without_figures(&before), without_figures(&waits));
}
