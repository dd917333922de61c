//! The body that is applied for a template: labels, grace period, generation.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::fleets::fixtures::{cluster, cluster_object, facts};

fn spec(jobs: u32, image: &str) -> Value {
    json!({
        "maxJobs": jobs,
        "maxJobsPerWorker": 2,
        "drain": { "deadline": "1h" },
        "template": {
            "metadata": { "labels": { "app": "worker" } },
            "spec": { "containers": [{ "name": "worker", "image": image }] },
        },
    })
}

/// The facts of a workload after this body was applied.
fn seen(body: &Value) -> WorkloadFacts {
    let annotations = &body["spec"]["template"]["metadata"]["annotations"];
    let generation = annotations[GENERATION_ANNOTATION].as_str().unwrap();
    let digest = body["metadata"]["annotations"][TEMPLATE_DIGEST].as_str().unwrap();
    WorkloadFacts {
        digest: Some(digest.into()),
        template_generation: generation.parse().unwrap(),
        ..facts(WorkloadKind::Deployment, 2)
    }
}

#[test]
fn a_deployment_is_made_from_the_template() {
    let body = body(&cluster(spec(8, "v1")), None, 4).unwrap();
    assert_eq!(body["kind"], "Deployment");
    assert_eq!(body["metadata"]["name"], "ci");
    assert_eq!(body["metadata"]["namespace"], "ns");
    assert_eq!(body["metadata"]["ownerReferences"][0]["uid"], "cluster-uid");
    assert_eq!(body["metadata"]["ownerReferences"][0]["controller"], true);
    assert_eq!(body["spec"]["replicas"], 4);
    assert_eq!(body["spec"]["strategy"], json!({ "type": "RollingUpdate" }));
    let labels = json!({ "app": "worker", "leasehold.dev/cluster": "ci" });
    assert_eq!(body["spec"]["template"]["metadata"]["labels"], labels);
    // Labels of the template may change; a selector cannot.
    let selector = json!({ "matchLabels": { "leasehold.dev/cluster": "ci" } });
    assert_eq!(body["spec"]["selector"], selector);
    assert_eq!(body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"], 3_630);
    assert_eq!(body["spec"]["template"]["spec"]["containers"][0]["image"], "v1");
}

#[test]
fn a_grace_period_that_is_given_stays() {
    let mut spec = spec(8, "v1");
    spec["template"]["spec"]["terminationGracePeriodSeconds"] = json!(5);
    let body = body(&cluster(spec), None, 4).unwrap();
    assert_eq!(body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"], 5);
}

#[test]
fn a_rollout_uses_the_pace_of_the_spec() {
    let mut spec = spec(8, "v1");
    spec["workload"] = json!({ "maxSurge": "50%", "maxUnavailable": 0 });
    let body = body(&cluster(spec), None, 4).unwrap();
    let rolling = json!({ "maxSurge": "50%", "maxUnavailable": 0 });
    assert_eq!(body["spec"]["strategy"]["rollingUpdate"], rolling);
}

#[test]
fn a_stateful_set_starts_its_pods_in_parallel_by_default() {
    let mut spec = spec(8, "v1");
    spec["workload"] = json!({ "kind": "StatefulSet", "serviceName": "workers" });
    let all = body(&cluster(spec.clone()), None, 4).unwrap();
    assert_eq!(all["kind"], "StatefulSet");
    assert_eq!(all["spec"]["serviceName"], "workers");
    assert_eq!(all["spec"]["podManagementPolicy"], "Parallel");
    assert_eq!(all["spec"].get("strategy"), None);
    spec["workload"]["podManagementPolicy"] = json!("OrderedReady");
    let ordered = body(&cluster(spec), None, 4).unwrap();
    assert_eq!(ordered["spec"]["podManagementPolicy"], "OrderedReady");
}

#[test]
fn the_template_generation_grows_only_when_pods_must_be_replaced() {
    let first = seen(&body(&cluster(spec(8, "v1")), None, 4).unwrap());
    assert_eq!(first.template_generation, 7);
    let mut larger = cluster_object(spec(80, "v1"));
    larger.metadata.generation = Some(8);
    let larger = Fleet::Cluster(Arc::new(larger));
    let larger = seen(&body(&larger, Some(&first), 40).unwrap());
    assert_eq!(larger.template_generation, 7);
    let mut changed = cluster_object(spec(80, "v2"));
    changed.metadata.generation = Some(9);
    let changed = Fleet::Cluster(Arc::new(changed));
    let changed = seen(&body(&changed, Some(&larger), 40).unwrap());
    assert_eq!(changed.template_generation, 9);
    // A recreated cluster starts at generation 1 again; the generation of its workload continues.
    let mut recreated = cluster_object(spec(80, "v3"));
    recreated.metadata.generation = Some(1);
    let recreated = Fleet::Cluster(Arc::new(recreated));
    let recreated = seen(&body(&recreated, Some(&changed), 40).unwrap());
    assert_eq!(recreated.template_generation, 10);
}

#[test]
fn rejects_a_template_that_is_not_an_object_and_names_the_field() {
    let mut spec = spec(8, "v1");
    spec["template"]["metadata"]["labels"] = json!(["app"]);
    let why = body(&cluster(spec), None, 4).unwrap_err();
    assert!(why.contains("spec.template: labels"), "{why}");
}
