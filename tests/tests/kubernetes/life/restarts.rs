//! Restarts in place: one container of a pod ends and comes back, and the other must not notice.

use std::process::{Command, Stdio};

use leasehold_demo::checker::moves;
use leasehold_demo::clock::now_ns;
use leasehold_release::Program;
use serde_json::{Value, json};
use tests::kube::{RealInstallation, TestNamespace, container, list, object, until};
use tests::process::eventually;
use tests::toolbox;

use super::{AGENT, cluster, deployment, nothing_broke, pod_spec, pods, restarts};

/// The agent by another name.
const ANOTHER_IMAGE: &str = "localhost/agent:another";

const SHORT: [&str; 3] = ["--streams", "--job-ms-min=2000", "--job-ms-max=4000"];

/// Two workers that share four jobs and six streams.
fn two_workers(namespace: &TestNamespace<'_>) -> Vec<String> {
    namespace.apply(&list(cluster(4)));
    namespace.apply(&deployment(namespace, 2, &SHORT));
    namespace.until("wc/builds", ".status.jobs.running", "4");
    namespace.until("ss/feeds", ".status.streams.owned", "6");
    pods(namespace)
}

/// Waits until a worker that has something to do has begun this many more jobs.
fn work_goes_on(namespace: &TestNamespace<'_>, worker: &str) {
    let begun = || namespace.evidence().runs.iter().filter(|run| run.worker == worker).count();
    let before = begun();
    namespace.until_holds("four more jobs", || match begun() - before {
        more if more >= 4 => Ok(()),
        more => Err(format!("{worker} has begun {more}")),
    });
}

/// Restarts a worker's agent, and only that: the worker works on, and no stream moves.
fn goes_unnoticed(namespace: &TestNamespace<'_>, worker: &str, restart: impl FnOnce()) {
    let from_ns = now_ns();
    restart();
    until("the agent's restart", || restarts(namespace, worker, AGENT), |count| *count == 1);
    work_goes_on(namespace, worker);
    assert_eq!(restarts(namespace, worker, "worker"), 0);
    let evidence = namespace.evidence();
    assert_eq!(moves(&evidence.owns, from_ns, now_ns()), 0, "{:#?}", evidence.owns);
}

fn end(namespace: &TestNamespace<'_>) {
    namespace.kubectl(&["delete", "deployment/builds", "--cascade=foreground"]);
    namespace.until_no_pod("");
}

#[test]
fn an_agent_that_is_killed_comes_back_to_the_jobs_and_streams_of_its_worker() {
    let Some(installation) = RealInstallation::shared() else { return };
    let namespace = installation.namespace("agent");
    let workers = two_workers(&namespace);
    goes_unnoticed(&namespace, &workers[0], || {
        namespace.signal(&workers[0], AGENT, "SIGKILL");
    });
    end(&namespace);
    nothing_broke(&namespace.evidence(), 4);
}

#[test]
fn the_sidecars_image_changes_in_place_and_the_worker_does_not_notice() {
    let Some(installation) = RealInstallation::shared() else { return };
    let namespace = installation.namespace("image");
    let program = toolbox::binary(Program::Agent.binary());
    installation.cluster().load(&Program::Agent.image_named(ANOTHER_IMAGE, &program));
    let workers = two_workers(&namespace);
    let sidecar = "/spec/initContainers/0";
    let patch = json!([
        {"op": "test", "path": format!("{sidecar}/name"), "value": AGENT},
        {"op": "replace", "path": format!("{sidecar}/image"), "value": ANOTHER_IMAGE},
    ]);
    let patch = format!("--patch={patch}");
    goes_unnoticed(&namespace, &workers[0], || {
        namespace.kubectl(&["patch", "pod", &workers[0], "--type=json", &patch]);
    });
    // No worker was drained for it.
    assert_eq!(namespace.field("wc/builds", ".status.workers.draining"), "0");
    end(&namespace);
    nothing_broke(&namespace.evidence(), 4);
}

#[test]
fn a_worker_killed_for_memory_restarts_beside_its_running_agent() {
    let Some(installation) = RealInstallation::shared() else { return };
    let namespace = installation.namespace("worker");
    let workers = two_workers(&namespace);
    namespace.signal(&workers[0], "worker", "SIGUSR1");
    let killed_ns = now_ns();
    let killed = eventually("the worker's restart", || {
        let status = namespace.container(&workers[0], "worker");
        (status["restartCount"] == 1).then_some(status)
    });
    assert_eq!(killed["lastState"]["terminated"]["reason"], "OOMKilled", "{killed}");
    work_goes_on(&namespace, &workers[0]);
    namespace.until("ss/feeds", ".status.streams.owned", "6");
    assert_eq!(restarts(&namespace, &workers[0], AGENT), 0);
    end(&namespace);
    let mut evidence = namespace.evidence();
    // What it had in its hands is lost with it, and only that.
    let own = |worker: &String| *worker == workers[0];
    let lost = evidence.runs.iter_mut().filter(|run| own(&run.worker) && !run.done);
    let lost = lost.map(|run| (run.to_ns, run.done) = (killed_ns.max(run.from_ns), true)).count();
    assert!(lost <= 2, "{lost} jobs were lost");
    for owned in
        evidence.owns.iter_mut().filter(|owned| own(&owned.worker) && owned.to_ns == u64::MAX)
    {
        owned.to_ns = killed_ns.max(owned.from_ns);
    }
    nothing_broke(&evidence, 4);
}

/// Makes the pod `alone` with what the command line injects, which cannot reach any coordinator,
/// and waits until it is ready.
fn start_alone(namespace: &TestNamespace<'_>, annotations: &Value) {
    // Opted out, so that no webhook is asked.
    let labels = json!({ "app": "alone", "leasehold.dev/cluster": "builds" });
    let spec = pod_spec(namespace, &["--job-ms-min=100", "--job-ms-max=200"]);
    let mut pod = object("Pod", "alone", spec);
    pod["metadata"]["labels"] = labels;
    pod["metadata"]["annotations"] = annotations.clone();
    let mut inject = Command::new(toolbox::binary("leasehold"));
    inject.args(["inject", "-f", "-", "--coordinator", "nobody.invalid:7400"]);
    let pipes = inject.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = pipes.spawn().expect("the command line starts");
    std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), pod.to_string().as_bytes())
        .expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    let manifest = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(manifest.contains(AGENT), "{manifest}");
    namespace.apply(&manifest);
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod/alone", "--timeout=170s"]);
    assert_eq!(restarts(namespace, "alone", AGENT), 0);
}

#[test]
fn a_worker_starts_without_a_coordinator() {
    let Some(installation) = RealInstallation::shared() else { return };
    let namespace = installation.namespace("alone");
    start_alone(&namespace, &json!({}));
    // No lease, no job.
    assert!(namespace.evidence().runs.is_empty());
    namespace.kubectl(&["delete", "pod/alone", "--timeout=170s"]);
    let seen = &namespace.pods_deleted()["alone"];
    let worker = &container(seen, "worker")["state"]["terminated"];
    assert_eq!(worker["exitCode"], 0, "{worker}");
}

/// As in a mesh that refuses the kubelet: nothing answers at the pod's address.
#[test]
fn an_agent_that_a_kubelet_cannot_reach_is_probed_in_its_container() {
    let Some(installation) = RealInstallation::shared() else { return };
    let namespace = installation.namespace("meshed");
    let annotations = json!({
        "config.leasehold.dev/health-listen": "127.0.0.1:7412",
        "config.leasehold.dev/probes": "exec",
    });
    start_alone(&namespace, &annotations);
    namespace.kubectl(&["delete", "pod/alone", "--timeout=170s"]);
}
