//! A pod that is removed by force while its node is cut off: its jobs may run on, and count until
//! the node is certain to have ended them.

use std::sync::PoisonError;

use leasehold_demo::checker::peak;
use rustix::process::Signal;
use serde_json::{Value, json};
use tests::kube::{FleetFixture, Work, object, until};
use tests::process::eventually;

/// The milliseconds of a job that outlasts the test.
const HANGS: u64 = 3_600_000;

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn jobs_of_a_pod_removed_by_force_count_until_its_node_is_gone() {
    let work = Work::Jobs { ms_min: HANGS, ms_max: HANGS };
    let Some(fixture) = FleetFixture::start("removed", 1, 2, work).await else { return };
    let spec = json!({
        "maxJobs": 4, "maxJobsPerWorker": 2, "lease": { "ttl": "2s" },
        "template": fixture.template(),
    });
    fixture.apply(&object("WorkerCluster", "builds", spec));
    until("4 running jobs", || fixture.jobs_running(), |jobs| *jobs == 4);
    let pod = fixture.pods().remove(0);
    let (name, uid) = (text(&pod["metadata"]["name"]), text(&pod["metadata"]["uid"]));
    let node = text(&pod["spec"]["nodeName"]);
    let lost = fixture.nodes.iter().find(|candidate| candidate.name() == node).expect("its node");
    lost.fall_silent();
    // The pod in its place is to start on the other node.
    fixture.access.kubectl(&["taint", "node", &node, "cut-off=true:NoSchedule"]);
    let member = fixture.fleet.member(&uid).expect("its processes");
    let (agent, _) = member.agent.as_ref().expect("an agent");
    agent.lock().unwrap_or_else(PoisonError::into_inner).signal(Signal::STOP);

    fixture.kubectl(&["delete", "pod", &name, "--force", "--grace-period=0"]);
    let coordinator = &fixture.replicas.running[0].process;
    eventually("the coordinator's word that the jobs count", || {
        coordinator.log().contains("its jobs count until its node has ended it").then_some(())
    });
    // A pod in its place connects, and gets no job.
    let next = eventually("a connected worker in its place", || {
        let all = fixture.pods();
        let next = all.iter().find(|pod| {
            pod["metadata"]["name"] != name.as_str() && {
                let leases = fixture.leases(&[text(&pod["metadata"]["uid"])]);
                leases.values().any(|lease| lease.connected && lease.pool.is_empty())
            }
        })?;
        Some(text(&next["metadata"]["name"]))
    });
    fixture.wait_for("the budget in use", "wc", "builds", |cluster| {
        cluster["status"]["workers"]["connected"] == 2 && cluster["status"]["workers"]["lost"] == 1
    });
    assert_eq!(fixture.jobs_running(), 4, "{next}");

    // The machine is switched off, and its node is removed.
    for process in member.worker.iter().chain([agent]) {
        process.lock().unwrap_or_else(PoisonError::into_inner).kill();
    }
    let before_end = fixture.evidence();
    assert_eq!(peak(&before_end.runs, 0, u64::MAX), 4);
    fixture.access.kubectl(&["delete", "node", &node]);
    eventually("two jobs of the worker in its place", || {
        let runs = fixture.evidence().runs;
        (runs.iter().filter(|run| run.worker == next).count() == 2).then_some(())
    });
}
