//! Cordons on a real control plane: what they mean for the workers on the node, how many of them
//! are away at once, and that an uncordon takes the drains back.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tests::kube::{FleetFixture, list, name, names, object, until};
use tests::process::{eventually, throughout};

use crate::evictions::{builds, busy_workers, hanging_jobs, wait_for_busy};

/// Why each pod of the fixture drains, those that do not left out.
fn marks(fixture: &FleetFixture) -> BTreeMap<String, String> {
    let mark = |pod: &Value| {
        let mark = pod["metadata"]["annotations"]["leasehold.dev/drain"].as_str()?;
        Some((name(pod), mark.to_owned()))
    };
    fixture.pods().iter().filter_map(mark).collect()
}

/// The slots that each worker of the cluster was granted, by its status.
fn granted(fixture: &FleetFixture) -> BTreeMap<String, u64> {
    let cluster = fixture.get("wc", "builds").unwrap_or_default();
    let workers = cluster["status"]["workerList"].as_array().cloned().unwrap_or_default();
    let one = |worker: &Value| {
        Some((worker["name"].as_str()?.to_owned(), worker["granted"].as_u64().unwrap_or(0)))
    };
    workers.iter().filter_map(one).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cordon_drains_a_few_at_a_time_and_an_uncordon_takes_it_back() {
    let Some((fixture, _asked)) = hanging_jobs("cordoned", 1).await else { return };
    let node = fixture.nodes[0].name();
    let mut builds = builds(&fixture, 6);
    builds["spec"]["onCordon"] = json!("Drain");
    fixture.apply(&builds);
    let workers = wait_for_busy(&fixture, 3);

    fixture.access.kubectl(&["cordon", node]);
    let first = eventually("a drain", || marks(&fixture).pop_first());
    assert_eq!(first.1, "node");
    // Its jobs never end, so no other may follow it.
    throughout(Duration::from_secs(3), || {
        assert_eq!(marks(&fixture), BTreeMap::from([first.clone()]));
    });
    fixture.access.kubectl(&["uncordon", node]);
    until("no drain", || marks(&fixture), BTreeMap::is_empty);
    let ready = |cluster: &Value| cluster["status"]["workers"]["ready"] == 3;
    fixture.wait_for("all workers work", "wc", "builds", ready);
    assert!(fixture.event_reasons().contains("DrainTakenBack"), "{}", fixture.event_reasons());

    // A `kubectl drain` that is given up asks each pod to go. Uncordoned, they all work on.
    builds["spec"]["onCordon"] = json!("Prefer");
    fixture.apply(&builds);
    let drain = ["drain", node, "--pod-selector=leasehold.dev/cluster", "--timeout=5s"];
    let refused = fixture.access.try_kubectl(&drain).expect_err("jobs run");
    assert!(refused.contains("runs jobs"), "{refused}");
    until(
        "3 drains for the node",
        || marks(&fixture),
        |marks| marks.len() == 3 && marks.values().all(|why| why == "node"),
    );
    fixture.access.kubectl(&["uncordon", node]);
    until("no drain", || marks(&fixture), BTreeMap::is_empty);
    fixture.wait_for("all workers work", "wc", "builds", ready);
    assert_eq!(busy_workers(&fixture), workers, "no pod was replaced, no job lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn workers_on_a_cordoned_node_get_what_the_others_leave() {
    let Some((fixture, _asked)) = hanging_jobs("preferred", 2).await else { return };
    // Two workers on two nodes. Two jobs are allowed.
    let workload = json!({ "kind": "Deployment", "name": "builds" });
    // One job each: the first worker would begin both before the second one joins.
    let spec = json!({ "maxJobs": 2, "maxJobsPerWorker": 1, "workloadRef": workload });
    let mut builds = object("WorkerCluster", "builds", spec);
    let mut deployment = fixture.workload("Deployment", "builds");
    deployment["spec"]["replicas"] = json!(2);
    deployment["spec"]["template"]["spec"]["topologySpreadConstraints"] = json!([{
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "app": "builds" } },
    }]);
    fixture.apply(&list([builds.clone(), deployment]));
    let a_slot_each = || {
        until("a slot each", || granted(&fixture), |granted| granted.values().eq([&1, &1]));
    };
    a_slot_each();
    wait_for_busy(&fixture, 2);
    // Now each has room for both.
    builds["spec"]["maxJobsPerWorker"] = json!(2);
    fixture.apply(&builds);
    let pods = fixture.pods();
    let first = names(&pods).into_iter().min().expect("a pod");
    let pod = fixture.get("pod", &first).expect("the pod");
    let node = pod["spec"]["nodeName"].as_str().expect("its node").to_owned();
    fixture.access.kubectl(&["cordon", &node]);
    // Its job never ends, so the other waits for the slot.
    until(
        "no slot for more jobs there",
        || granted(&fixture),
        |granted| granted.get(&first) == Some(&0),
    );
    assert_eq!(marks(&fixture), BTreeMap::new(), "nothing drains");
    fixture.access.kubectl(&["uncordon", &node]);
    a_slot_each();
    assert_eq!(names(&fixture.pods()), names(&pods));
}
