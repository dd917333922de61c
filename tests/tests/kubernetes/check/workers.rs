//! Faults of workers and of their deadlines.

use serde_json::Value;
use tests::process::eventually;

use super::super::installed::ExclusiveControlPlane;
use super::fixture::{CheckFixture, Fault, check, until_all_is_well};

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
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let fixture = CheckFixture::set(access).await;
    without_a_sidecar(&fixture);
    with_an_old_sidecar(&fixture);
    with_too_short_a_grace_period(&fixture);
    of_a_job_with_a_deadline(&fixture);
    of_no_cluster(&fixture);
    with_budgets_that_keep_every_pod(&fixture);
    in_a_mesh_that_takes_the_agents_connections(&fixture);
    until_all_is_well(access);
    fixture.end().await;
}

/// A user labels a pod after its creation.
fn without_a_sidecar(fixture: &CheckFixture<'_>) {
    fixture.namespace.apply(
        "
apiVersion: v1
kind: Pod
metadata: {name: late, labels: {leasehold.dev/cluster: builds}}
spec:
  terminationGracePeriodSeconds: 700
  containers: [{name: worker, image: example.invalid/worker}]
",
    );
    fixture.namespace.kubectl(&["label", "pod/late", "leasehold.dev/inject=true"]);
    let says = &["pod/late", "got none", "create it again"];
    Fault { line: "sidecars", result: "fail", says }.comes_and_goes(fixture.access);
    assert!(!fixture.pods().contains(&"late".to_owned()));
}

fn with_an_old_sidecar(fixture: &CheckFixture<'_>) {
    fixture.namespace.apply(&with_sidecar("registry.invalid/leasehold/agent:0.9.0"));
    let says = &[
        "deployment/others",
        "registry.invalid/leasehold/agent:0.9.0",
        "registry.invalid/leasehold/agent:0.1.0",
    ];
    let far = Fault { line: "sidecar-versions", result: "fail", says };
    far.comes_and_goes(fixture.access);
    // A neighbouring version is compatible, and gets a note only.
    fixture.namespace.apply(&with_sidecar("registry.invalid/leasehold/agent:0.0.9"));
    let says = &["deployment/others", "registry.invalid/leasehold/agent:0.0.9"];
    let near = Fault { line: "sidecar-versions", result: "warn", says };
    near.comes_and_goes(fixture.access);
    // An injected one is what its WorkerCluster wants now.
    let patch = r#"{"spec":{"agent":{"image":"mirror/agent:0.1.0"}}}"#;
    fixture.namespace.kubectl(&["patch", "workercluster/builds", "--type=merge", "--patch", patch]);
    let says =
        &["deployment/builds", "registry.invalid/leasehold/agent:0.1.0", "mirror/agent:0.1.0"];
    let asked = Fault { line: "sidecar-versions", result: "warn", says };
    asked.comes_and_goes(fixture.access);
    fixture.namespace.kubectl(&["delete", "deployment/others"]);
}

fn with_too_short_a_grace_period(fixture: &CheckFixture<'_>) {
    fixture.namespace.apply(&deployment(""));
    let says = &["deployment/others", "has 30 s to end", "may take 600 s"];
    let short = Fault { line: "deadline-grace", result: "fail", says };
    short.is_found(fixture.access);
    shortest(fixture, "30s: terminationGracePeriodSeconds of deployment/others");
    short.comes_and_goes(fixture.access);
    shortest(fixture, "10m: drain.deadline of WorkerCluster workers-");
    fixture.namespace.kubectl(&["delete", "deployment/others"]);
    let own = r#"{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":60}}}}"#;
    fixture.namespace.kubectl(&["patch", "workercluster/builds", "--type=merge", "--patch", own]);
    let says = &["its template has 60 s to end", "may take 600 s"];
    Fault { line: "deadline-grace", result: "fail", says }.comes_and_goes(fixture.access);
}

fn shortest(fixture: &CheckFixture<'_>, wanted: &str) {
    eventually(wanted, || {
        let found = check(fixture.access, &[]);
        let said = found.line("deadline-shortest")["check"].as_str().expect("a text").to_owned();
        said.contains(wanted).then_some(())
    });
}

fn of_a_job_with_a_deadline(fixture: &CheckFixture<'_>) {
    fixture.namespace.apply(
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
    Fault { line: "deadline-active", result: "fail", says }.comes_and_goes(fixture.access);
    fixture.namespace.kubectl(&["delete", "job/nightly"]);
}

fn of_no_cluster(fixture: &CheckFixture<'_>) {
    fixture.namespace.apply(
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
    let line: Value = lost.is_found(fixture.access);
    assert!(line["problems"][0]["mend"].as_str().is_some_and(|mend| mend.contains("label")));
    fixture.namespace.kubectl(&[
        "label",
        "--overwrite",
        "pod/lost",
        "leasehold.dev/cluster=builds",
    ]);
    lost.is_gone(fixture.access);
    fixture.namespace.kubectl(&["delete", "pod/lost", "--force", "--grace-period=0"]);
}

/// A user has budgets of their own.
fn with_budgets_that_keep_every_pod(fixture: &CheckFixture<'_>) {
    let budget = |name: &str, allows: &str| {
        fixture.namespace.apply(&format!(
            "
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{name: {name}}}
spec:
  {allows}
  selector: {{matchLabels: {{leasehold.dev/cluster: builds}}}}
"
        ));
    };
    budget("nothing", "maxUnavailable: 0");
    let says = &["/nothing allows no eviction at any time", "allow one pod at a time"];
    Fault { line: "budgets", result: "warn", says }.comes_and_goes(fixture.access);
    budget("second", "minAvailable: 1");
    let says = &["several PodDisruptionBudgets (", "/nothing", "/second"];
    Fault { line: "budgets", result: "warn", says }.comes_and_goes(fixture.access);
    fixture.namespace.kubectl(&["delete", "poddisruptionbudget", "--all"]);
}

/// The mesh itself is not there: its proxy is enough.
fn in_a_mesh_that_takes_the_agents_connections(fixture: &CheckFixture<'_>) {
    let proxy = "{name: istio-proxy, image: example.invalid/proxy, restartPolicy: Always}";
    fixture.namespace.apply(&deployment(&format!(
        "      terminationGracePeriodSeconds: 700\n      initContainers: [{proxy}]"
    )));
    let says = &["deployment/others", "Istio", "traffic.sidecar.istio.io/excludeOutboundPorts"];
    Fault { line: "meshes", result: "warn", says }.comes_and_goes(fixture.access);
    fixture.namespace.kubectl(&["delete", "deployment/others"]);
}
