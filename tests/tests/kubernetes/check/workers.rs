//! Faults of workers and of their deadlines.

use serde_json::Value;
use tests::process::eventually;

use super::super::installed::Turn;
use super::scene::{Fault, Scene, check, until_all_is_well};

/// A Deployment of one worker that asks for nothing, with lines for its pod.
fn deployment(pod: &str) -> String {
    format!(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {{name: others}}
spec:
  replicas: 1
  selector: {{matchLabels: {{app: others}}}}
  template:
    metadata: {{labels: {{app: others, leasehold.dev/cluster: builds}}}}
    spec:
{pod}
      containers: [{{name: worker, image: example.invalid/worker}}]
"
    )
}

fn with_sidecar(image: &str) -> String {
    let sidecar = format!("{{name: leasehold-agent, image: {image}, restartPolicy: Always}}");
    deployment(&format!(
        "      terminationGracePeriodSeconds: 700\n      initContainers: [{sidecar}]"
    ))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_reports_faults_of_workers_and_its_fixes_resolve_them() {
    let Some(turn) = Turn::take() else { return };
    let access = turn.access();
    let scene = Scene::set(access).await;
    without_a_sidecar(&scene);
    with_an_old_sidecar(&scene);
    with_too_short_a_grace_period(&scene);
    of_a_job_with_a_deadline(&scene);
    of_no_cluster(&scene);
    until_all_is_well(access);
    scene.end().await;
}

/// A user labels a pod after its creation.
fn without_a_sidecar(scene: &Scene<'_>) {
    scene.apply(
        "
apiVersion: v1
kind: Pod
metadata: {name: late, labels: {leasehold.dev/cluster: builds}}
spec:
  terminationGracePeriodSeconds: 700
  containers: [{name: worker, image: example.invalid/worker}]
",
    );
    scene.kubectl(&["label", "pod/late", "leasehold.dev/inject=true"]);
    let says = &["pod/late", "got none", "create it again"];
    Fault { line: "sidecars", result: "fail", says }.comes_and_goes(scene.access);
    assert!(!scene.pods().contains(&"late".to_owned()));
}

fn with_an_old_sidecar(scene: &Scene<'_>) {
    scene.apply(&with_sidecar("leasehold/agent:0.9.0"));
    let says = &["deployment/others", "leasehold/agent:0.9.0", "leasehold/agent:0.1.0"];
    let far = Fault { line: "sidecar-versions", result: "fail", says };
    far.comes_and_goes(scene.access);
    // A neighbouring version is compatible, and gets a note only.
    scene.apply(&with_sidecar("leasehold/agent:0.0.9"));
    let says = &["deployment/others", "leasehold/agent:0.0.9"];
    let near = Fault { line: "sidecar-versions", result: "warn", says };
    near.comes_and_goes(scene.access);
    // An injected one is what its WorkerCluster wants now.
    let patch = r#"{"spec":{"agent":{"image":"mirror/agent:0.1.0"}}}"#;
    scene.kubectl(&["patch", "workercluster/builds", "--type=merge", "--patch", patch]);
    let says = &["deployment/builds", "leasehold/agent:0.1.0", "mirror/agent:0.1.0"];
    let asked = Fault { line: "sidecar-versions", result: "warn", says };
    asked.comes_and_goes(scene.access);
    scene.kubectl(&["delete", "deployment/others"]);
}

fn with_too_short_a_grace_period(scene: &Scene<'_>) {
    scene.apply(&deployment(""));
    let says = &["deployment/others", "has 30 s to end", "may take 600 s"];
    let short = Fault { line: "deadline-grace", result: "fail", says };
    short.is_found(scene.access);
    shortest(scene, "30s: terminationGracePeriodSeconds of deployment/others");
    short.comes_and_goes(scene.access);
    shortest(scene, "10m: drain.deadline of WorkerCluster workers-");
    scene.kubectl(&["delete", "deployment/others"]);
    let own = r#"{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":60}}}}"#;
    scene.kubectl(&["patch", "workercluster/builds", "--type=merge", "--patch", own]);
    let says = &["its template has 60 s to end", "may take 600 s"];
    Fault { line: "deadline-grace", result: "fail", says }.comes_and_goes(scene.access);
}

fn shortest(scene: &Scene<'_>, wanted: &str) {
    eventually(wanted, || {
        let found = check(scene.access, &[]);
        let said = found.line("deadline-shortest")["check"].as_str().expect("a text").to_owned();
        said.contains(wanted).then_some(())
    });
}

fn of_a_job_with_a_deadline(scene: &Scene<'_>) {
    scene.apply(
        "
apiVersion: batch/v1
kind: Job
metadata: {name: nightly}
spec:
  activeDeadlineSeconds: 300
  template:
    metadata: {labels: {leasehold.dev/cluster: builds}}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 700
      containers: [{name: worker, image: example.invalid/worker}]
",
    );
    let says = &["activeDeadlineSeconds of job/nightly", "is 300 s"];
    Fault { line: "deadline-active", result: "fail", says }.comes_and_goes(scene.access);
    scene.kubectl(&["delete", "job/nightly"]);
}

fn of_no_cluster(scene: &Scene<'_>) {
    scene.apply(
        "
apiVersion: v1
kind: Pod
metadata: {name: lost, labels: {leasehold.dev/cluster: other}}
spec:
  containers: [{name: worker, image: example.invalid/worker}]
",
    );
    let says = &["pod/lost", "cluster=other", "no WorkerCluster or WorkerClass"];
    let lost = Fault { line: "pods-clusters", result: "fail", says };
    let line: Value = lost.is_found(scene.access);
    assert!(line["problems"][0]["mend"].as_str().is_some_and(|mend| mend.contains("label")));
    scene.kubectl(&["label", "--overwrite", "pod/lost", "leasehold.dev/cluster=builds"]);
    lost.is_gone(scene.access);
    scene.kubectl(&["delete", "pod/lost", "--force", "--grace-period=0"]);
}
