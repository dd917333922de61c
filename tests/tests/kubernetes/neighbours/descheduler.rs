//! The descheduler evicts pods again and again, here each that is older than a second: idle
//! workers go at once, busy ones when their jobs have ended.

use serde_json::{Value, json};
use tests::kube::{Descheduler, until};
use tests::process::eventually;

use super::super::evictions::{builds, evictions_of_jobs, wait_for_busy};

/// What evicts the pods of one namespace that are older than a second.
fn policy(namespace: &str) -> Value {
    let life = json!({
        "maxPodLifeTimeSeconds": 1, "namespaces": { "include": [namespace] },
    });
    json!({
        "apiVersion": "descheduler/v1alpha2",
        "kind": "DeschedulerPolicy",
        "profiles": [{
            "name": "old",
            "pluginConfig": [
                { "name": "DefaultEvictor", "args": {} },
                { "name": "PodLifeTime", "args": life },
            ],
            "plugins": { "deschedule": { "enabled": ["PodLifeTime"] } },
        }],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_descheduler_moves_workers_and_costs_no_job() {
    let Some((fixture, _asked)) = evictions_of_jobs("descheduled", 2).await else { return };
    fixture.apply(&builds(&fixture, 8));
    wait_for_busy(&fixture, 4);
    let before = fixture.uids();
    let Some(descheduler) = Descheduler::start(&fixture.access, &policy(&fixture.namespace)) else {
        return;
    };
    eventually("other workers", || {
        let now = fixture.uids();
        before.iter().all(|uid| !now.contains(uid)).then_some(())
    });
    let log = descheduler.process.log();
    assert!(log.contains("takes no new jobs"), "no eviction was refused: {log}");
    let reasons = fixture.event_reasons();
    assert!(reasons.contains("DrainCompleted"), "{reasons}");
    drop(descheduler);
    until("jobs", || fixture.jobs_running(), |running| *running > 0);
    fixture.end();
}
