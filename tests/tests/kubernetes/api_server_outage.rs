//! The API server is away for two minutes while jobs run and streams flow: no job stops, no stream
//! moves, work continues, and the status is current afterwards.

use std::time::{Duration, Instant};

use leasehold_demo::clock::now_ns;
use serde_json::json;
use tests::kube::{
    Component, ControlPlane, FleetFixture, Namespace, Work, feeds, list, object, until,
};
use tests::process::throughout;

/// How long the API server is away.
const OUTAGE: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_outage_of_the_api_server_stops_no_job_and_moves_no_stream() {
    let Some(plane) = ControlPlane::start() else { return };
    let namespace = Namespace::create(plane.access(), "outage");
    let work = Work::Jobs { ms_min: 1_000, ms_max: 3_000 };
    let fixture = FleetFixture::start_with(namespace, 2, 1, work, &[]).await;
    let spec = json!({
        "maxJobs": 8, "maxJobsPerWorker": 2, "lease": { "ttl": "10s" },
        "template": fixture.template(),
    });
    let mut builds = object("WorkerCluster", "builds", spec);
    let set = json!({ "cluster": "builds", "streams": feeds(5) });
    fixture.apply(&list([builds.clone(), object("StreamSet", "feeds", set)]));
    fixture.wait_for("8 jobs running", "wc", "builds", |cluster| {
        cluster["status"]["jobs"]["running"] == 8
    });
    fixture
        .wait_for("5 streams owned", "ss", "feeds", |set| set["status"]["streams"]["owned"] == 5);
    let leader = fixture.replicas.leader();
    let workers = fixture.uids();
    let leases = || fixture.leases(&workers);
    let before = until("5 streams held by 4 workers", leases, |leases| {
        let held: usize = leases.values().map(|lease| lease.streams.len()).sum();
        leases.len() == 4 && held == 5
    });

    plane.kill_component(Component::ApiServer);
    let (began, began_ns) = (Instant::now(), now_ns());
    // For the whole outage, no lease changes.
    throughout(OUTAGE, || {
        assert_eq!(fixture.leases(&workers), before, "after {:?}", began.elapsed());
    });
    let ended_ns = now_ns();
    assert_eq!(fixture.replicas.leader(), leader, "the leader leads on");
    plane.start_component(Component::ApiServer);

    let evidence = fixture.evidence();
    let begun = |from_ns| (began_ns..ended_ns).contains(&from_ns);
    let meanwhile: Vec<_> = evidence.runs.iter().filter(|run| begun(run.from_ns)).collect();
    assert!(meanwhile.len() > 100, "work went on: {} jobs were begun", meanwhile.len());
    builds["spec"]["maxJobs"] = json!(6);
    fixture.apply(&builds);
    fixture.wait_for("the new budget in the status", "wc", "builds", |cluster| {
        cluster["status"]["inForceGeneration"] == 2 && cluster["status"]["jobs"]["running"] == 6
    });
    assert_eq!(fixture.replicas.leader(), leader, "no other replica took over");
    fixture.end();
}
