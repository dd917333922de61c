//! A load above one worker's capacity: class grey takes 5 a worker, and two pipelines of 10 are
//! laid evenly over all five of them.

use std::collections::BTreeMap;

use serde_json::json;
use tests::kube::{FleetFixture, Work, list};
use tests::process::eventually;

use super::{class, endpoints, loads, pipeline, wait_for_phase};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_pipelines_span_all_five_workers_and_none_is_above_its_capacity() {
    let Some(fixture) = FleetFixture::start("spread", 1, 1, Work::Bindings).await else { return };
    let spec = json!({ "capacity": 5, "minReplicas": 5, "maxReplicas": 5, "spread": "Even" });
    fixture.apply(&class(&fixture, "grey", spec));
    eventually("5 workers", || {
        let log = fixture.replicas.running[0].process.log();
        let joined = |pod: u32| log.contains(&format!("worker=grey-{pod}"));
        (0..5).all(joined).then_some(())
    });
    let names = ["one", "two"];
    fixture.apply(&list(names.map(|name| pipeline(name, 10, &[("all", "grey", &[])]))));
    wait_for_phase(&fixture, &names, "Ready");
    let all: Vec<_> = (0..5).map(|pod| format!("grey-{pod} ready serving")).collect();
    for name in names {
        assert_eq!(endpoints(&fixture, &format!("{name}-all")), all);
    }
    let four_each: BTreeMap<_, _> = (0..5).map(|pod| (format!("grey-{pod}"), 4_000)).collect();
    assert_eq!(loads(&fixture, "grey"), four_each);
    // A third would need more than there may ever be.
    fixture.apply(&pipeline("three", 6, &[("all", "grey", &[])]));
    wait_for_phase(&fixture, &["three"], "Pending");
    assert_eq!(loads(&fixture, "grey"), four_each);
}
