//! An upgrade and its rollback: every replica is replaced, one after the other, twice. No lease is
//! lost and no job refused, and each replica that goes hands over and ends well.

use std::time::Duration;

use tests::kube::{Cluster, Stage, Work};
use tests::process::eventually;

const REPLICAS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replacing_every_replica_loses_no_lease() {
    let Some(cluster) = Cluster::shared() else { return };
    let namespace = cluster.namespace("upgrade");
    let work = Work::Jobs { ms_min: 500, ms_max: 1_500 };
    let mut stage = Stage::set(cluster.access(), &namespace, REPLICAS, 1, work).await;
    stage.apply(&stage.builds(6, 5, "10s"));
    stage.wait_for("6 jobs running", "wc", "builds", |it| it["status"]["jobs"]["running"] == 6);
    let workers = stage.uids();
    let before = eventually("5 streams held by 3 workers", || {
        let leases = stage.leases(&workers);
        let held: usize = leases.values().map(|lease| lease.streams.len()).sum();
        (leases.len() == 3 && held == 5).then_some(leases)
    });
    for round in ["upgrade", "rollback"] {
        for index in 0..REPLICAS {
            stage.replicas.replace(index);
            stage.replicas.wait_ready();
            let _ = stage.replicas.leader();
            eventually("every agent at a leader, with what it had", || {
                (stage.leases(&workers) == before).then_some(())
            });
        }
        let status = stage.get("ss", "feeds").expect("the set");
        assert_eq!(status["status"]["planVersion"], 1, "{round}: nothing was planned anew");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(stage.leases(&workers), before);
    stage.end();
}
