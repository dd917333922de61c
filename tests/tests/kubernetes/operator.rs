//! Behaviour of the operator that no other test covers: fewer workers without an end of a job, and
//! workloads that were there before.

use serde_json::Value;
use tests::kube::{FleetFixture, Work};
use tests::process::eventually;

fn manifest(fixture: &FleetFixture, jobs: u64) -> String {
    format!(
        r"
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {{name: builds}}
spec:
  maxJobs: {jobs}
  maxJobsPerWorker: 2
  drain: {{deadline: 10m}}
  template:
    spec:
      affinity: {}
      containers: [{{name: worker, image: example.invalid/worker:1}}]
",
        fixture.affinity()
    )
}

fn replicas(fixture: &FleetFixture, kind: &str, name: &str) -> Option<u64> {
    fixture.get(kind, name)?.pointer("/spec/replicas")?.as_u64()
}

fn connected(cluster: &Value, workers: u64) -> bool {
    cluster["status"]["inForceGeneration"] == cluster["metadata"]["generation"]
        && cluster.pointer("/status/workers/connected").and_then(Value::as_u64) == Some(workers)
        && cluster.pointer("/status/workers/draining").and_then(Value::as_u64) == Some(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_scale_in_ends_no_job_and_reduces_replicas_last() {
    let work = Work::Jobs { ms_min: 1_000, ms_max: 4_000 };
    let Some(fixture) = FleetFixture::start("scale-in", 1, 1, work).await else { return };
    fixture.apply(&manifest(&fixture, 8));
    fixture.wait_for("4 workers", "wc", "builds", |cluster| connected(cluster, 4));
    eventually("8 jobs", || {
        let running = fixture.evidence().runs.iter().filter(|run| run.to_ns == u64::MAX).count();
        (running == 8).then_some(())
    });
    fixture.kubectl(&["scale", "wc", "builds", "--replicas=2"]);
    eventually("3 marked pods", || {
        let pods = fixture.pods();
        let marked = pods
            .iter()
            .filter(|pod| pod["metadata"]["annotations"]["leasehold.dev/drain"] == "scale-in");
        // A drained worker may be gone by now.
        (marked.count() + 4 - pods.len() >= 3).then_some(())
    });
    eventually("1 replica", || {
        (replicas(&fixture, "deployment", "builds") == Some(1)).then_some(())
    });
    fixture.wait_for("1 worker", "wc", "builds", |cluster| connected(cluster, 1));
    fixture.apply(&manifest(&fixture, 4));
    fixture.wait_for("2 workers", "wc", "builds", |cluster| connected(cluster, 2));
    let reported = fixture.event_reasons();
    for reason in ["ScaleInStarted", "DrainStarted", "DrainCompleted", "ScaleInCompleted"] {
        assert!(
            reported.split_whitespace().any(|word| word == reason),
            "no {reason} in: {reported}"
        );
    }
    fixture.kubectl(&["delete", "wc", "builds", "--wait=false"]);
    eventually("the end of all pods", || fixture.pods().is_empty().then_some(()));
    eventually("the end of all jobs", || {
        fixture.evidence().runs.iter().all(|run| run.to_ns != u64::MAX).then_some(())
    });
    let evidence = fixture.evidence();
    let lost: Vec<_> = evidence.runs.iter().filter(|run| !run.done).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
}

/// The API server stores such a template, and answers 500 when it is applied as a Deployment's.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_template_on_which_the_api_server_fails_is_reported_with_its_words() {
    let Some(fixture) = FleetFixture::start("refused", 1, 0, Work::File).await else { return };
    let of = |name: &str, wrong: &str| {
        format!(
            r"
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {{name: {name}}}
spec:
  maxJobs: 2
  maxJobsPerWorker: 1
  template:
    spec:
      nodeSelector: {{leasehold.dev/nowhere: 'true'}}
      containers: [{{name: worker, image: example.invalid/worker{wrong}}}]
"
        )
    };
    for (name, wrong, words) in [
        ("twice", ", env: [{name: MODE, value: a}, {name: MODE, value: b}]", "duplicate entries"),
        ("misspelt", ", imagePullPolcy: Always", "imagePullPolcy"),
    ] {
        fixture.apply(&of(name, wrong));
        fixture.wait_for("a condition with its words", "wc", name, |cluster| {
            let conditions = cluster["status"]["conditions"].to_string();
            conditions.contains("WorkloadRefused") && conditions.contains(words)
        });
        fixture.apply(&of(name, ""));
        fixture.wait_for("no such condition", "wc", name, |cluster| {
            !cluster["status"]["conditions"].to_string().contains("WorkloadRefused")
        });
        assert!(fixture.get("deployment", name).is_some(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_existing_workload_of_the_same_name_is_reported_and_not_changed() {
    let Some(fixture) = FleetFixture::start("not-ours", 1, 0, Work::File).await else { return };
    fixture.apply(
        r"
apiVersion: apps/v1
kind: Deployment
metadata: {name: builds}
spec:
  replicas: 0
  selector: {matchLabels: {app: other}}
  template:
    metadata: {labels: {app: other}}
    spec:
      containers: [{name: other, image: example.invalid/other}]
",
    );
    let before = fixture.get("deployment", "builds").expect("the Deployment");
    fixture.apply(&manifest(&fixture, 8).replace("affinity:", "# none:"));
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
    let more = "replicas: 1\n  podManagementPolicy: Parallel";
    fixture.apply(&adopted(&fixture, "StatefulSet", 3, more));
    fixture.wait_for("3 workers", "wc", "swarm", |cluster| connected(cluster, 3));
    let set = fixture.get("statefulset", "swarm").expect("the StatefulSet");
    assert_eq!(set["spec"]["replicas"], 3);
    assert_eq!(set["spec"]["template"]["spec"]["terminationGracePeriodSeconds"], 7);
    assert_eq!(set["metadata"]["ownerReferences"], Value::Null);
    fixture.kubectl(&["scale", "wc", "swarm", "--replicas=1"]);
    fixture.wait_for("1 worker", "wc", "swarm", |cluster| connected(cluster, 1));
    // An agent disconnects before the API server has removed its pod.
    let left = eventually("one pod", || {
        let left = fixture.pods();
        (left.len() == 1).then_some(left)
    });
    assert_eq!(left[0]["metadata"]["name"], "swarm-0");
}

/// Whether the condition `Ready` is true.
fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// A workload, which `more` describes, and the cluster that scales it.
fn adopted(fixture: &FleetFixture, kind: &str, jobs: u64, more: &str) -> String {
    format!(
        r"
apiVersion: apps/v1
kind: {kind}
metadata: {{name: swarm}}
spec:
  {more}
  selector: {{matchLabels: {{app: swarm}}}}
  template:
    metadata: {{labels: {{app: swarm, leasehold.dev/cluster: swarm}}}}
    spec:
      terminationGracePeriodSeconds: 7
      affinity: {}
      containers: [{{name: worker, image: example.invalid/worker:1}}]
---
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {{name: swarm}}
spec:
  maxJobs: {jobs}
  maxJobsPerWorker: 1
  workloadRef: {{kind: {kind}, name: swarm, scale: true}}
",
        fixture.affinity()
    )
}

const NEW_TEMPLATE: &str = r#"{"spec":{"template":{"metadata":{"annotations":{"build":"2"}}}}}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stateful_set_that_keeps_an_earlier_template_is_ready_and_scales() {
    let Some(fixture) = FleetFixture::start("on-delete", 1, 1, Work::File).await else { return };
    let of = |jobs| {
        let more = "podManagementPolicy: Parallel\n  updateStrategy: {type: OnDelete}";
        adopted(&fixture, "StatefulSet", jobs, more)
    };
    fixture.apply(&of(2));
    fixture
        .wait_for("2 workers", "wc", "swarm", |cluster| connected(cluster, 2) && is_ready(cluster));
    fixture.kubectl(&["patch", "statefulset/swarm", "--patch", NEW_TEMPLATE]);
    fixture.wait_for("a revision that no pod has", "statefulset", "swarm", |set| {
        set["status"]["updateRevision"] != set["status"]["currentRevision"]
    });
    // The status is that of a later moment only where it counts another number of workers.
    fixture.apply(&of(3));
    fixture
        .wait_for("3 workers", "wc", "swarm", |cluster| connected(cluster, 3) && is_ready(cluster));
    fixture.apply(&of(1));
    fixture
        .wait_for("1 worker", "wc", "swarm", |cluster| connected(cluster, 1) && is_ready(cluster));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_paused_deployment_is_reported_scales_in_and_goes_on_once_resumed() {
    let Some(fixture) = FleetFixture::start("paused", 1, 1, Work::File).await else { return };
    let of = |jobs| adopted(&fixture, "Deployment", jobs, "progressDeadlineSeconds: 600");
    fixture.apply(&of(2));
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
