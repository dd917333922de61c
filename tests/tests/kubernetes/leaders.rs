//! Two leaders cannot be observed: one that is stopped for longer than its leadership lasts, and
//! then wakes, changes nothing of what its successor has granted.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tests::kube::{Cluster, Stage, Work};
use tests::process::{eventually, get};

fn manifest(stage: &Stage, workers: u32) -> String {
    format!(
        r"
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {{name: builds}}
spec:
  maxJobs: {}
  maxJobsPerWorker: 2
  lease: {{ttl: 3s}}
  template:
    spec:
      affinity: {}
      containers: [{{name: worker, image: example.invalid/worker:1}}]
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {{name: feeds}}
spec:
  cluster: builds
  streams: [{{name: a}}, {{name: b}}, {{name: c}}, {{name: d}}, {{name: e}}, {{name: f}}]
",
        2 * workers,
        stage.affinity()
    )
}

/// What each worker may do, as its agent tells it: pool token and stream tokens.
fn leases(stage: &Stage) -> BTreeMap<String, (String, Vec<(String, String)>)> {
    let mut leases = BTreeMap::new();
    for pod in stage.pods() {
        let (name, uid) = (&pod["metadata"]["name"], &pod["metadata"]["uid"]);
        let Some(member) = stage.fleet.member(uid.as_str().unwrap_or_default()) else { continue };
        let Some((_, address)) = &member.agent else { continue };
        let Some((_, body)) = get(*address, "/v1/lease") else { continue };
        let Ok(lease) = serde_json::from_str::<Value>(&body) else { continue };
        let streams = lease["streams"].as_array().cloned().unwrap_or_default();
        let stream = |it: &Value| (it["stream"].to_string(), it["token"].to_string());
        let streams = streams.iter().map(stream).collect();
        leases.insert(name.to_string(), (lease["pool"]["token"].to_string(), streams));
    }
    leases
}

fn owners(stage: &Stage) -> BTreeMap<String, Vec<String>> {
    let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (worker, (_, streams)) in leases(stage) {
        for (stream, _) in streams {
            owners.entry(stream).or_default().push(worker.clone());
        }
    }
    owners
}

/// The metric of who leads, of every replica that answers.
fn leaders(stage: &Stage) -> usize {
    let leads = |body: &str| {
        body.lines().any(|line| line.starts_with("leasehold_leader") && line.ends_with(" 1"))
    };
    let answers = stage.replicas.running.iter().filter_map(|it| get(it.http, "/metrics"));
    answers.filter(|(_, body)| leads(body)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_that_wakes_after_its_time_changes_nothing() {
    let Some(cluster) = Cluster::shared() else { return };
    let namespace = cluster.namespace("leaders");
    let work = Work::Jobs { ms_min: 300, ms_max: 900 };
    let flags = ["--leadership", "6s", "--takeover-after", "1s"];
    let stage = Stage::set_with(cluster.access(), &namespace, 2, 1, work, &flags).await;
    stage.apply(&manifest(&stage, 3));
    stage.wait_for("6 streams owned", "ss", "feeds", |it| it["status"]["streams"]["owned"] == 6);
    let old = stage.replicas.leader();
    eventually("every stream at one worker", || {
        let owners = owners(&stage);
        (owners.len() == 6 && owners.values().all(|all| all.len() == 1)).then_some(())
    });

    let stopped = &stage.replicas.running[old].process;
    stopped.signal(Signal::STOP);
    // The successor grants: a worker more, with streams of its own.
    let lease =
        ["get", "lease", "leasehold-coordinator", "--output=jsonpath={.spec.holderIdentity}"];
    let was = stage.replicas.running[old].identity.clone();
    eventually("a successor", || (!stage.kubectl(&lease).starts_with(&was)).then_some(()));
    stage.apply(&manifest(&stage, 4));
    let granted = eventually("a fourth worker with streams", || {
        let leases = leases(&stage);
        let all = leases.len() == 4 && leases.values().all(|(_, streams)| !streams.is_empty());
        let owners = owners(&stage);
        let once = owners.len() == 6 && owners.values().all(|all| all.len() == 1);
        (all && once).then_some(leases)
    });
    tokio::time::sleep(Duration::from_secs(7)).await;

    stopped.signal(Signal::CONT);
    eventually("the old leader to stand by", || {
        (get(stage.replicas.running[old].http, "/metrics").is_some() && leaders(&stage) == 1)
            .then_some(())
    });
    for _ in 0..50 {
        assert_eq!(leases(&stage), granted, "no lease is the old leader's");
        assert!(leaders(&stage) <= 1, "one leader at most says that it leads");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(!stage.kubectl(&lease).starts_with(&was), "the successor leads on");
    drop(stage);
}
