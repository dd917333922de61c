//! Everything at once: a new image, half the budget, a node that is drained and a leader that is
//! killed, while long jobs run. No job is lost, and never do more run than may.

use rustix::process::Signal;
use serde_json::Value;
use tests::demo::checker::peak;
use tests::demo::clock::now_ns;
use tests::kube::{Cluster, Stage, Work};
use tests::process::eventually;

const JOBS_BEFORE: u64 = 40;
const JOBS_AFTER: u64 = 20;

fn manifest(stage: &Stage, image: &str, jobs: u64) -> String {
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
      containers: [{{name: worker, image: {image}}}]
",
        stage.affinity()
    )
}

fn number(object: &Value, path: &str) -> u64 {
    object.pointer(path).and_then(Value::as_u64).unwrap_or(0)
}

fn is_true(object: &Value, condition: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| {
        all.iter().any(|one| one["type"] == condition && one["status"] == "True")
    })
}

/// Whether the cluster stands at so many jobs, and its status is of the newest specification.
fn stands_at(cluster: &Value, jobs: u64) -> bool {
    cluster["status"]["observedGeneration"] == cluster["metadata"]["generation"]
        && number(cluster, "/status/workers/desired") == jobs / 2
        && number(cluster, "/status/workers/connected") == jobs / 2
        && number(cluster, "/status/jobs/running") == jobs
        && is_true(cluster, "Ready")
}

fn jobs_running(stage: &Stage) -> usize {
    stage.evidence().runs.iter().filter(|run| run.to_ns == u64::MAX).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rollout_a_scale_in_a_drained_node_and_a_killed_leader_lose_no_job() {
    let Some(cluster) = Cluster::shared() else { return };
    let namespace = cluster.namespace("rollout");
    let work = Work::Jobs { ms_min: 2_000, ms_max: 6_000 };
    let mut stage = Stage::set(cluster.access(), &namespace, 3, 3, work).await;
    stage.apply(&manifest(&stage, "example.invalid/worker:1", JOBS_BEFORE));
    stage.wait_for("40 jobs on 20 workers", "wc", "builds", |it| stands_at(it, JOBS_BEFORE));
    assert_eq!(jobs_running(&stage), 40, "the status tells what the journals do");

    let drained = stage.nodes[0].name().to_owned();
    let all_at_once = now_ns();
    stage.apply(&manifest(&stage, "example.invalid/worker:2", JOBS_AFTER));
    let leader = stage.replicas.leader();
    stage.replicas.running.remove(leader).process.signal(Signal::KILL);
    let drain = ["drain", &drained, "--ignore-daemonsets", "--force", "--timeout=300s"];
    let pods = "--pod-selector=leasehold.dev/cluster=builds";
    let mut drain = stage.access.kubectl_command(&[&drain[..], &[pods]].concat());
    let drained_by = tokio::task::spawn_blocking(move || drain.output().expect("kubectl starts"));
    stage.wait_for("20 jobs on 10 workers", "wc", "builds", |it| stands_at(it, JOBS_AFTER));
    let output = drained_by.await.expect("kubectl runs");
    assert!(output.status.success(), "drain: {}", String::from_utf8_lossy(&output.stderr));
    eventually("10 pods of the new image, off the drained node", || {
        let pods = stage.pods();
        let moved = pods.iter().all(|pod| {
            pod["spec"]["containers"][0]["image"] == "example.invalid/worker:2"
                && pod["spec"]["nodeName"] != drained.as_str()
        });
        (pods.len() == 10 && moved).then_some(())
    });
    stage.wait_for("20 jobs on 10 workers", "wc", "builds", |it| stands_at(it, JOBS_AFTER));
    let settled = now_ns();

    let table = stage.kubectl(&["get", "wc"]);
    assert!(table.lines().any(|line| line.starts_with("builds")), "{table}");
    let events = stage.kubectl(&["get", "events", "--output=jsonpath={.items[*].reason}"]);
    for reason in ["DrainStarted", "DrainCompleted", "LeaderChanged"] {
        assert!(events.split_whitespace().any(|it| it == reason), "no {reason} in: {events}");
    }

    // No more than half are begun from here on, so a while at 20 shows that they are reached.
    eventually("some jobs more", || {
        let done = stage.evidence().runs.iter().filter(|run| run.from_ns > settled).count();
        (done >= 10).then_some(())
    });
    let end = now_ns();
    stage.kubectl(&["delete", "wc", "builds", "--wait=false"]);
    eventually("the end of all pods", || stage.pods().is_empty().then_some(()));
    eventually("the end of all jobs", || (jobs_running(&stage) == 0).then_some(()));
    let evidence = stage.evidence();
    assert_eq!(evidence.contradictions, Vec::<String>::new());
    let lost: Vec<_> = evidence.runs.iter().filter(|run| !run.done).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
    let before = peak(&evidence.runs, 0, all_at_once);
    assert_eq!(before, 40, "the budget is used");
    let meanwhile = peak(&evidence.runs, all_at_once, settled);
    assert!(meanwhile <= 40, "{meanwhile} jobs at once, of 40");
    let after = peak(&evidence.runs, settled, end);
    assert_eq!(after, 20, "the new budget is kept and used");
    drop(stage);
}
