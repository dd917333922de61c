//! The API server is away for two minutes while jobs run and streams flow: no job stops, no stream
//! moves, work goes on, and afterwards everything is told.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::demo::clock::now_ns;
use tests::kube::{Component, ControlPlane, Stage, Work};
use tests::process::{eventually, get};

/// How long the API server is away.
const OUTAGE: Duration = Duration::from_secs(120);

fn manifest(stage: &Stage, jobs: u32) -> String {
    format!(
        r"
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {{name: builds}}
spec:
  maxJobs: {jobs}
  maxJobsPerWorker: 2
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
  streams: [{{name: a}}, {{name: b}}, {{name: c}}, {{name: d}}, {{name: e}}]
",
        stage.affinity()
    )
}

/// Which worker has which stream under which token, as the agents tell their workers.
fn leases(stage: &Stage) -> BTreeSet<(String, String)> {
    let pods = stage.pods();
    let lease = |pod: &Value| {
        let uid = pod["metadata"]["uid"].as_str()?;
        let member = stage.fleet.member(uid)?;
        let (_, address) = member.agent.as_ref()?;
        let (_, body) = get(*address, "/v1/lease")?;
        let lease: Value = serde_json::from_str(&body).ok()?;
        let streams = lease["streams"].as_array()?.iter();
        let held = streams.filter(|it| it["state"] == "held");
        let name = |it: &Value| (uid.to_owned(), format!("{} {}", it["stream"], it["token"]));
        Some(held.map(name).collect::<Vec<_>>())
    };
    pods.iter().filter_map(lease).flatten().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_outage_of_the_api_server_stops_no_job_and_moves_no_stream() {
    let Some(plane) = ControlPlane::start() else { return };
    plane.access().kubectl(&["create", "namespace", "outage"]);
    let work = Work::Jobs { ms_min: 1_000, ms_max: 3_000 };
    let stage = Stage::set(plane.access(), "outage", 2, 1, work).await;
    stage.apply(&manifest(&stage, 8));
    stage.wait_for("8 jobs running", "wc", "builds", |it| it["status"]["jobs"]["running"] == 8);
    stage.wait_for("5 streams owned", "ss", "feeds", |it| it["status"]["streams"]["owned"] == 5);
    let leader = stage.replicas.leader();
    let before =
        eventually("5 streams held", || Some(leases(&stage)).filter(|leases| leases.len() == 5));
    let members: Vec<_> = stage.pods().iter().map(|pod| pod["metadata"]["uid"].clone()).collect();

    plane.kill_component(Component::ApiServer);
    let (began, began_ns) = (Instant::now(), now_ns());
    let mut owned = BTreeSet::new();
    while began.elapsed() < OUTAGE {
        owned.clear();
        for uid in &members {
            let member = stage.fleet.member(uid.as_str().expect("a UID")).expect("it runs");
            let (_, address) = member.agent.as_ref().expect("it has an agent");
            let (_, body) = get(*address, "/v1/lease").expect("the agent answers");
            let lease: Value = serde_json::from_str(&body).expect("JSON");
            assert_eq!(lease["connected"], true, "after {:?}: {body}", began.elapsed());
            for stream in lease["streams"].as_array().expect("a list") {
                let named = format!("{} {}", stream["stream"], stream["token"]);
                owned.insert((uid.as_str().expect("a UID").to_owned(), named));
            }
        }
        assert_eq!(owned, before, "after {:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let ended_ns = now_ns();
    assert_eq!(stage.replicas.leader(), leader, "the leader leads on");
    plane.start_component(Component::ApiServer);

    let evidence = stage.evidence();
    let begun = |from_ns| (began_ns..ended_ns).contains(&from_ns);
    let meanwhile: Vec<_> = evidence.runs.iter().filter(|run| begun(run.from_ns)).collect();
    assert!(meanwhile.len() > 100, "work went on: {} jobs were begun", meanwhile.len());
    stage.apply(&manifest(&stage, 6));
    stage.wait_for("the new budget in the status", "wc", "builds", |it| {
        it["status"]["observedGeneration"] == 2 && it["status"]["jobs"]["running"] == 6
    });
    assert_eq!(stage.replicas.leader(), leader, "nobody else took over");
    stage.kubectl(&["delete", "wc", "builds", "--wait=false"]);
    eventually("the end of all pods", || stage.pods().is_empty().then_some(()));
    let lost = || stage.evidence().runs.into_iter().filter(|run| !run.done).collect::<Vec<_>>();
    eventually("the end of all jobs", || lost().is_empty().then_some(()));
    drop(stage);
}
