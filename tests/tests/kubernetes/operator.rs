//! Behaviour of the operator that no other test covers: fewer workers without an end of a job, and
//! workloads that were there before.

use serde_json::{Value, json};
use tests::kube::{FleetFixture, Work, list, names, object, until};

fn connected(cluster: &Value, workers: u64) -> bool {
    cluster["status"]["inForceGeneration"] == cluster["metadata"]["generation"]
        && cluster.pointer("/status/workers/connected").and_then(Value::as_u64) == Some(workers)
        && cluster.pointer("/status/workers/draining").and_then(Value::as_u64) == Some(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_scale_in_ends_no_job_and_reduces_replicas_last() {
    let work = Work::Jobs { ms_min: 1_000, ms_max: 4_000 };
    let Some(fixture) = FleetFixture::start("scale-in", 1, 1, work).await else { return };
    let spec = json!({
        "maxJobs": 8, "maxJobsPerWorker": 2, "drain": { "deadline": "10m" },
        "template": fixture.template(),
    });
    let mut builds = object("WorkerCluster", "builds", spec);
    fixture.apply(&builds);
    fixture.wait_for("4 workers", "wc", "builds", |cluster| connected(cluster, 4));
    until("8 jobs", || fixture.jobs_running(), |jobs| *jobs == 8);
    fixture.kubectl(&["scale", "wc", "builds", "--replicas=2"]);
    // A drained worker may be gone by now.
    let marked = || {
        let pods = fixture.pods();
        let mark = |pod: &Value| pod["metadata"]["annotations"]["leasehold.dev/drain"].clone();
        pods.iter().filter(|pod| mark(pod) == "scale-in").count() + 4 - pods.len()
    };
    until("3 marked pods", marked, |marked| *marked >= 3);
    fixture.wait_for("1 replica", "deployment", "builds", |deployment| {
        deployment["spec"]["replicas"] == 1
    });
    fixture.wait_for("1 worker", "wc", "builds", |cluster| connected(cluster, 1));
    builds["spec"]["maxJobs"] = json!(4);
    fixture.apply(&builds);
    fixture.wait_for("2 workers", "wc", "builds", |cluster| connected(cluster, 2));
    let reported = fixture.event_reasons();
    for reason in ["ScaleInStarted", "DrainStarted", "DrainCompleted", "ScaleInCompleted"] {
        assert!(
            reported.split_whitespace().any(|word| word == reason),
            "no {reason} in: {reported}"
        );
    }
    fixture.end();
}

/// The API server stores such a template, and answers 500 when it is applied as a Deployment's.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_template_on_which_the_api_server_fails_is_reported_with_its_words() {
    let Some(fixture) = FleetFixture::start("refused", 1, 0, Work::File).await else { return };
    let twice = json!([{ "name": "MODE", "value": "a" }, { "name": "MODE", "value": "b" }]);
    for (name, wrong, value, words) in [
        ("twice", "env", twice, "duplicate entries"),
        ("misspelt", "imagePullPolcy", json!("Always"), "imagePullPolcy"),
    ] {
        let pod = json!({
            "nodeSelector": { "leasehold.dev/nowhere": "true" },
            "containers": [{ "name": "worker", "image": "example.invalid/worker" }],
        });
        let spec = json!({ "maxJobs": 2, "maxJobsPerWorker": 1, "template": { "spec": pod } });
        let right = object("WorkerCluster", name, spec);
        let mut cluster = right.clone();
        cluster["spec"]["template"]["spec"]["containers"][0][wrong] = value;
        fixture.apply(&cluster);
        fixture.wait_for("a condition with its words", "wc", name, |cluster| {
            let conditions = cluster["status"]["conditions"].to_string();
            conditions.contains("WorkloadRefused") && conditions.contains(words)
        });
        fixture.apply(&right);
        fixture.wait_for("no such condition", "wc", name, |cluster| {
            !cluster["status"]["conditions"].to_string().contains("WorkloadRefused")
        });
        assert!(fixture.get("deployment", name).is_some(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_existing_workload_of_the_same_name_is_reported_and_not_changed() {
    let Some(fixture) = FleetFixture::start("not-ours", 1, 0, Work::File).await else { return };
    let other = json!({ "name": "other", "image": "example.invalid/other" });
    let spec = json!({
        "replicas": 0,
        "selector": { "matchLabels": { "app": "other" } },
        "template": {
            "metadata": { "labels": { "app": "other" } }, "spec": { "containers": [other] },
        },
    });
    fixture.apply(&object("Deployment", "builds", spec));
    let before = fixture.get("deployment", "builds").expect("the Deployment");
    let worker = json!({ "name": "worker", "image": "example.invalid/worker:1" });
    let spec = json!({
        "maxJobs": 8, "maxJobsPerWorker": 2, "drain": { "deadline": "10m" },
        "template": { "spec": { "containers": [worker] } },
    });
    fixture.apply(&object("WorkerCluster", "builds", spec));
    fixture.wait_for("a condition that says so", "wc", "builds", |cluster| {
        let conditions = cluster["status"]["conditions"].to_string();
        conditions.contains("WorkloadNotOwned") && conditions.contains("does not belong to this")
    });
    let after = fixture.get("deployment", "builds").expect("the Deployment");
    assert_eq!(after["metadata"]["generation"], before["metadata"]["generation"]);
    assert_eq!(after["metadata"]["ownerReferences"], before["metadata"]["ownerReferences"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn only_the_replicas_of_an_adopted_workload_change_and_only_on_request() {
    let Some(fixture) = FleetFixture::start("adopted", 1, 1, Work::File).await else { return };
    let mut workload = swarm(&fixture, "StatefulSet");
    workload["spec"]["replicas"] = json!(1);
    workload["spec"]["podManagementPolicy"] = json!("Parallel");
    fixture.apply(&list([workload, adopting("StatefulSet", 3)]));
    fixture.wait_for("3 workers", "wc", "swarm", |cluster| connected(cluster, 3));
    let set = fixture.get("statefulset", "swarm").expect("the StatefulSet");
    assert_eq!(set["spec"]["replicas"], 3);
    assert_eq!(set["spec"]["template"]["spec"]["terminationGracePeriodSeconds"], 7);
    assert_eq!(set["metadata"]["ownerReferences"], Value::Null);
    fixture.kubectl(&["scale", "wc", "swarm", "--replicas=1"]);
    fixture.wait_for("1 worker", "wc", "swarm", |cluster| connected(cluster, 1));
    // An agent disconnects before the API server has removed its pod.
    let left = until("one pod", || names(&fixture.pods()), |left| left.len() == 1);
    assert_eq!(left, ["swarm-0"]);
}

/// Whether the condition `Ready` is true.
fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// A workload of the user, whose pods have seven seconds to end.
fn swarm(fixture: &FleetFixture, kind: &str) -> Value {
    let mut workload = fixture.workload(kind, "swarm");
    workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(7);
    workload
}

/// The WorkerCluster that scales the workload `swarm`: a worker for each job.
fn adopting(kind: &str, jobs: u64) -> Value {
    let workload = json!({ "kind": kind, "name": "swarm", "scale": true });
    let spec = json!({ "maxJobs": jobs, "maxJobsPerWorker": 1, "workloadRef": workload });
    object("WorkerCluster", "swarm", spec)
}

const NEW_TEMPLATE: &str = r#"{"spec":{"template":{"metadata":{"annotations":{"build":"2"}}}}}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stateful_set_that_keeps_an_earlier_template_is_ready_and_scales() {
    let Some(fixture) = FleetFixture::start("on-delete", 1, 1, Work::File).await else { return };
    let mut workload = swarm(&fixture, "StatefulSet");
    workload["spec"]["podManagementPolicy"] = json!("Parallel");
    workload["spec"]["updateStrategy"] = json!({ "type": "OnDelete" });
    fixture.apply(&list([workload, adopting("StatefulSet", 2)]));
    fixture
        .wait_for("2 workers", "wc", "swarm", |cluster| connected(cluster, 2) && is_ready(cluster));
    fixture.kubectl(&["patch", "statefulset/swarm", "--patch", NEW_TEMPLATE]);
    fixture.wait_for("a revision that no pod has", "statefulset", "swarm", |set| {
        set["status"]["updateRevision"] != set["status"]["currentRevision"]
    });
    // The status is that of a later moment only where it counts another number of workers.
    fixture.apply(&adopting("StatefulSet", 3));
    fixture
        .wait_for("3 workers", "wc", "swarm", |cluster| connected(cluster, 3) && is_ready(cluster));
    fixture.apply(&adopting("StatefulSet", 1));
    fixture
        .wait_for("1 worker", "wc", "swarm", |cluster| connected(cluster, 1) && is_ready(cluster));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_paused_deployment_is_reported_scales_in_and_goes_on_once_resumed() {
    let Some(fixture) = FleetFixture::start("paused", 1, 1, Work::File).await else { return };
    let mut workload = swarm(&fixture, "Deployment");
    workload["spec"]["progressDeadlineSeconds"] = json!(600);
    fixture.apply(&list([workload, adopting("Deployment", 2)]));
    fixture
        .wait_for("2 workers", "wc", "swarm", |cluster| connected(cluster, 2) && is_ready(cluster));
    fixture.kubectl(&["rollout", "pause", "deployment/swarm"]);
    fixture.kubectl(&["patch", "deployment/swarm", "--patch", NEW_TEMPLATE]);
    fixture.wait_for("a condition that says what to do", "wc", "swarm", |cluster| {
        let conditions = cluster["status"]["conditions"].to_string();
        conditions.contains("RolloutPaused")
            && conditions.contains("kubectl rollout resume deployment/swarm")
    });
    fixture.kubectl(&["scale", "wc", "swarm", "--replicas=1"]);
    fixture.wait_for("1 worker", "wc", "swarm", |cluster| connected(cluster, 1));
    let is_smaller = |deployment: &Value| deployment["spec"]["replicas"] == 1;
    fixture.wait_for("1 replica", "deployment", "swarm", is_smaller);
    fixture.kubectl(&["rollout", "resume", "deployment/swarm"]);
    fixture.wait_for("the new template", "deployment", "swarm", |deployment| {
        let status = &deployment["status"];
        status["updatedReplicas"] == 1 && status["replicas"] == 1
    });
    fixture.wait_for("no such condition", "wc", "swarm", is_ready);
}
