//! Facts of workloads, and the decisions on them.

use serde_json::json;

use super::*;
use crate::fleets::fixtures::{cluster, cluster_object, facts, ordinal_pod, pod};

fn wants(spec: serde_json::Value) -> Option<WorkloadTarget> {
    target(&cluster(spec))
}

#[test]
fn replicas_are_the_jobs_by_worker_rounded_up() {
    for (jobs, per_worker, workers) in [(8, 3, 3), (700, 50, 14), (0, 1, 0), (1620, 50, 33)] {
        let spec = cluster_object(json!({ "maxJobs": jobs, "maxJobsPerWorker": per_worker })).spec;
        assert_eq!(replicas(&spec.0), workers, "{jobs} by {per_worker}");
    }
}

#[test]
fn a_cluster_creates_or_adopts_a_workload_or_has_none() {
    let sizes = |more: serde_json::Value| {
        let mut spec = json!({ "maxJobs": 4, "maxJobsPerWorker": 2 });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    assert_eq!(wants(sizes(json!({}))), None);
    let made = WorkloadTarget {
        kind: WorkloadKind::Deployment,
        name: "ci".into(),
        role: WorkloadRole::Created,
    };
    assert_eq!(wants(sizes(json!({ "template": {} }))), Some(made.clone()));
    let kind = WorkloadKind::StatefulSet;
    let spec = sizes(json!({ "template": {}, "workload": { "kind": "StatefulSet" } }));
    assert_eq!(wants(spec), Some(WorkloadTarget { kind, ..made }));
    let spec = sizes(json!({ "workloadRef": { "kind": "StatefulSet", "name": "swarm" } }));
    let found = WorkloadTarget { kind, name: "swarm".into(), role: WorkloadRole::Observed };
    assert_eq!(wants(spec), Some(found.clone()));
    let found_by = json!({ "kind": "StatefulSet", "name": "swarm", "scale": true });
    assert_eq!(
        wants(sizes(json!({ "workloadRef": found_by }))),
        Some(WorkloadTarget { role: WorkloadRole::Scaled, ..found })
    );
}

#[test]
fn reports_and_keeps_a_workload_of_another_owner() {
    let cluster = cluster(json!({ "maxJobs": 1, "maxJobsPerWorker": 1, "template": {} }));
    let target = target(&cluster).unwrap();
    let own = facts(WorkloadKind::Deployment, 1);
    assert_eq!(problem(&cluster, &target, Some(&own)), None);
    assert_eq!(problem(&cluster, &target, None), None);
    let other = WorkloadFacts { controller: Some("other".into()), ..own.clone() };
    let free = WorkloadFacts { controller: None, ..own.clone() };
    for foreign in [&other, &free] {
        let (reason, text) = problem(&cluster, &target, Some(foreign)).unwrap();
        assert_eq!(reason, "WorkloadNotOwned");
        assert!(text.contains("Deployment ci exists"), "{text}");
    }
    // One that an earlier cluster of this name has left behind is taken over.
    let left = WorkloadFacts { created_for: Some("ci".into()), ..free };
    assert_eq!(problem(&cluster, &target, Some(&left)), None);
}

#[test]
fn an_adopted_workload_must_exist_and_label_its_pods() {
    let found = json!({ "kind": "Deployment", "name": "web" });
    let cluster = cluster(json!({ "maxJobs": 1, "maxJobsPerWorker": 1, "workloadRef": found }));
    let target = target(&cluster).unwrap();
    assert_eq!(problem(&cluster, &target, None).unwrap().0, "WorkloadNotFound");
    let mut seen = facts(WorkloadKind::Deployment, 1);
    assert_eq!(problem(&cluster, &target, Some(&seen)).unwrap().0, "PodLabelMissing");
    seen.pods_opt_in = true;
    assert_eq!(problem(&cluster, &target, Some(&seen)), None);
    seen.pods_cluster = Some("other".into());
    assert_eq!(problem(&cluster, &target, Some(&seen)).unwrap().0, "PodLabelMissing");
    seen.pods_cluster = Some("ci".into());
    assert_eq!(problem(&cluster, &target, Some(&seen)), None);
}

#[test]
fn a_deployment_owns_the_pods_of_its_replica_sets_and_no_others() {
    let deployment = facts(WorkloadKind::Deployment, 1);
    assert!(deployment.owns(&pod("a").pod));
    assert!(deployment.owns(&pod("a hash=5d8f").pod));
    assert!(!deployment.owns(&pod("a of=Job").pod));
    let other = WorkloadFacts { name: "c".into(), ..deployment };
    assert!(!other.owns(&pod("a").pod));
    let set = facts(WorkloadKind::StatefulSet, 1);
    assert!(set.owns(&ordinal_pod("ci-0").pod));
    assert!(!set.owns(&pod("a").pod));
}

#[test]
fn a_rollout_is_complete_when_all_pods_are_new_and_available() {
    let all = facts(WorkloadKind::Deployment, 3);
    assert_eq!(all.rollout(), Rollout::Complete);
    for part in [
        WorkloadFacts { observed_generation: 0, ..all.clone() },
        WorkloadFacts { updated: 2, ..all.clone() },
        WorkloadFacts { pods: 4, ..all.clone() },
        WorkloadFacts { available: 2, ..all.clone() },
    ] {
        assert_eq!(part.rollout(), Rollout::Progressing);
    }
    let stuck = WorkloadFacts { stuck: Some(StuckReason::Paused), ..all };
    assert_eq!(stuck.rollout(), Rollout::Stuck(StuckReason::Paused));
}

#[test]
fn reads_the_facts_of_a_deployment() {
    let object: Deployment = serde_json::from_value(json!({
        "metadata": {
            "name": "ci", "uid": "u", "resourceVersion": "9", "generation": 4,
            "labels": {
                "leasehold.dev/cluster": "ci", "app.kubernetes.io/managed-by": "leasehold",
            },
            "annotations": { "leasehold.dev/template": "abc" },
            "ownerReferences": [{
                "apiVersion": "leasehold.dev/v1alpha1", "kind": "WorkerCluster", "name": "ci",
                "uid": "cluster-uid", "controller": true,
            }],
        },
        "spec": {
            "replicas": 5,
            "selector": {},
            "template": { "metadata": {
                "labels": { "leasehold.dev/cluster": "ci" },
                "annotations": { "leasehold.dev/generation": "3" },
            } },
        },
        "status": {
            "observedGeneration": 4, "replicas": 6, "updatedReplicas": 2, "readyReplicas": 4,
            "availableReplicas": 4,
            "conditions": [
                {
                    "type": "Progressing", "status": "False",
                    "reason": "ProgressDeadlineExceeded", "message": "it has timed out",
                },
                {
                    "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
                    "message": "exceeded quota: storage",
                },
            ],
        },
    }))
    .unwrap();
    let facts = WorkloadFacts::of_deployment(&object).unwrap();
    assert_eq!((facts.replicas, facts.pods, facts.updated, facts.ready), (5, 6, 2, 4));
    assert_eq!(facts.controller.as_deref(), Some("cluster-uid"));
    assert_eq!(facts.created_for.as_deref(), Some("ci"));
    assert_eq!((facts.digest.as_deref(), facts.template_generation), (Some("abc"), 3));
    assert_eq!(facts.rollout(), Rollout::Stuck(StuckReason::Reported("it has timed out".into())));
    assert_eq!(facts.pods_refused.as_deref(), Some("exceeded quota: storage"));
    assert!(facts.is_rolling_out());
}

/// The facts of a StatefulSet of three pods, of which `updated` have the newest template.
fn stateful_set(strategy: serde_json::Value, updated: u32) -> WorkloadFacts {
    let object: StatefulSet = serde_json::from_value(json!({
        "metadata": { "name": "ci", "uid": "u", "generation": 2 },
        "spec": {
            "replicas": 3, "selector": {}, "serviceName": "", "template": {},
            "updateStrategy": strategy,
        },
        "status": {
            "observedGeneration": 2, "replicas": 3, "readyReplicas": 3, "availableReplicas": 3,
            "updatedReplicas": updated, "currentRevision": "ci-1", "updateRevision": "ci-2",
        },
    }))
    .unwrap();
    WorkloadFacts::of_stateful_set(&object).unwrap()
}

#[test]
fn a_stateful_set_is_complete_once_its_controller_replaces_no_more_pods() {
    let on_delete = json!({ "type": "OnDelete" });
    let partition = json!({ "type": "RollingUpdate", "rollingUpdate": { "partition": 2 } });
    let beyond = json!({ "type": "RollingUpdate", "rollingUpdate": { "partition": 9 } });
    for (strategy, updated, is_complete) in [
        (json!({ "type": "RollingUpdate" }), 2, false),
        (json!({ "type": "RollingUpdate" }), 3, true),
        (on_delete.clone(), 0, true),
        (on_delete.clone(), 2, true),
        (partition.clone(), 0, false),
        (partition, 1, true),
        (beyond, 0, true),
    ] {
        let facts = stateful_set(strategy.clone(), updated);
        assert_eq!(facts.rollout() == Rollout::Complete, is_complete, "{strategy} {updated}");
        assert_eq!(facts.is_rolling_out(), !is_complete, "{strategy} {updated}");
    }
    let unavailable = WorkloadFacts { available: 2, ..stateful_set(on_delete, 0) };
    assert_eq!(unavailable.rollout(), Rollout::Progressing);
}

#[test]
fn a_paused_deployment_is_stuck_while_its_template_waits() {
    let of = |revision: Option<&str>, pods: u32, updated: u32| {
        let mut object: Deployment = serde_json::from_value(json!({
            "metadata": { "name": "ci", "generation": 2 },
            "spec": { "replicas": 3, "selector": {}, "template": {}, "paused": true },
            "status": {
                "observedGeneration": 2, "replicas": pods, "updatedReplicas": updated,
                "availableReplicas": pods,
            },
        }))
        .unwrap();
        let annotation = |number: &str| (REVISION_ANNOTATION.to_owned(), number.to_owned());
        object.metadata.annotations = Some(revision.map(annotation).into_iter().collect());
        WorkloadFacts::of_deployment(&object).unwrap().rollout()
    };
    assert_eq!(of(Some("1"), 3, 3), Rollout::Complete);
    assert_eq!(of(Some("1"), 2, 2), Rollout::Progressing);
    assert_eq!(of(Some("1"), 3, 0), Rollout::Stuck(StuckReason::Paused));
    assert_eq!(of(Some("1"), 3, 1), Rollout::Stuck(StuckReason::Paused));
    // One that was created paused has no ReplicaSet.
    assert_eq!(of(None, 0, 0), Rollout::Stuck(StuckReason::Paused));
}
