//! An upgrade and its rollback: every replica is replaced, one after the other, twice. No lease is
//! lost and no job refused, and each replica that goes hands over and ends well.

use std::collections::BTreeMap;

use serde_json::json;
use tests::kube::{FleetFixture, Work, feeds, list, object, until};
use tests::process::eventually;

const REPLICAS: usize = 3;

/// The streams of each worker with their tokens; none while an agent is without a leader. A pool is
/// granted again by each leader, under a higher token.
fn owned(
    fixture: &FleetFixture,
    workers: &[String],
) -> Option<BTreeMap<String, BTreeMap<String, String>>> {
    let leases = fixture.leases(workers);
    let all = leases.len() == workers.len() && leases.values().all(|lease| lease.connected);
    all.then(|| leases.into_iter().map(|(worker, lease)| (worker, lease.streams)).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replacing_every_replica_loses_no_lease() {
    let work = Work::Jobs { ms_min: 500, ms_max: 1_500 };
    let Some(mut fixture) = FleetFixture::start("upgrade", REPLICAS, 1, work).await else { return };
    let spec = json!({
        "maxJobs": 6, "maxJobsPerWorker": 2, "lease": { "ttl": "10s" },
        "template": fixture.template(),
    });
    let set = json!({ "cluster": "builds", "streams": feeds(5) });
    let objects = [object("WorkerCluster", "builds", spec), object("StreamSet", "feeds", set)];
    fixture.apply(&list(objects));
    fixture.wait_for("6 jobs running", "wc", "builds", |cluster| {
        cluster["status"]["jobs"]["running"] == 6
    });
    let workers = fixture.uids();
    let before = eventually("5 streams held by 3 workers", || {
        let owned = owned(&fixture, &workers)?;
        let held: usize = owned.values().map(BTreeMap::len).sum();
        (held == 5).then_some(owned)
    });
    fixture
        .wait_for("a converged set", "ss", "feeds", |set| set["status"]["workers"]["current"] == 3);
    let plan = fixture.get("ss", "feeds").expect("the set")["status"]["planVersion"].clone();
    for round in ["upgrade", "rollback"] {
        for index in 0..REPLICAS {
            fixture.replicas.replace(index);
            fixture.replicas.wait_ready();
            let _ = fixture.replicas.leader();
            let owned = || owned(&fixture, &workers);
            until("every agent at a leader, with what it had", owned, |owned| {
                owned.as_ref() == Some(&before)
            });
        }
        let status = fixture.get("ss", "feeds").expect("the set");
        assert_eq!(status["status"]["planVersion"], plan, "{round}: nothing was planned again");
    }
    fixture.end();
}
