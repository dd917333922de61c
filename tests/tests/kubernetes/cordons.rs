//! Cordons on a real control plane: what they mean for the workers on the node, how many of them
//! are away at once, and that an uncordon takes the drains back.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tests::kube::{FleetFixture, throughout};
use tests::process::eventually;

use crate::evictions::{builds, busy_workers, hanging_jobs, name};

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
    let manifest = |on_cordon: &str| {
        builds(&fixture, 6).replace("  template:", &format!("  onCordon: {on_cordon}\n  template:"))
    };
    fixture.apply(&manifest("Drain"));
    let three = || Some(busy_workers(&fixture)).filter(|workers| workers.len() == 3);
    let workers = eventually("3 busy workers", three);

    fixture.access.kubectl(&["cordon", node]);
    let first = eventually("a drain", || marks(&fixture).pop_first());
    assert_eq!(first.1, "node");
    // Its jobs never end, so no other may follow it.
    throughout(Duration::from_secs(3), || {
        assert_eq!(marks(&fixture), BTreeMap::from([first.clone()]));
    });
    fixture.access.kubectl(&["uncordon", node]);
    eventually("no drain", || marks(&fixture).is_empty().then_some(()));
    let ready = |cluster: &Value| cluster["status"]["workers"]["ready"] == 3;
    fixture.wait_for("all workers work", "wc", "builds", ready);
    assert!(fixture.event_reasons().contains("DrainTakenBack"), "{}", fixture.event_reasons());

    // A `kubectl drain` that is given up asks each pod to go. Uncordoned, they all work on.
    fixture.apply(&manifest("Prefer"));
    let drain = ["drain", node, "--pod-selector=leasehold.dev/cluster", "--timeout=5s"];
    let refused = fixture.access.try_kubectl(&drain).expect_err("jobs run");
    assert!(refused.contains("runs jobs"), "{refused}");
    eventually("3 drains for the node", || {
        let marks = marks(&fixture);
        (marks.len() == 3 && marks.values().all(|why| why == "node")).then_some(())
    });
    fixture.access.kubectl(&["uncordon", node]);
    eventually("no drain", || marks(&fixture).is_empty().then_some(()));
    fixture.wait_for("all workers work", "wc", "builds", ready);
    assert_eq!(busy_workers(&fixture), workers, "no pod was replaced, no job lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn workers_on_a_cordoned_node_get_what_the_others_leave() {
    let Some((fixture, _asked)) = hanging_jobs("preferred", 2).await else { return };
    // Two workers on two nodes. Two jobs are allowed.
    let manifest = |jobs_per_worker: u32| {
        format!(
            r"
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {{name: builds}}
spec:
  maxJobs: 2
  maxJobsPerWorker: {jobs_per_worker}
  workloadRef: {{kind: Deployment, name: builds}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: builds}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: builds}}}}
  template:
    metadata: {{labels: {{app: builds, leasehold.dev/cluster: builds}}}}
    spec:
      affinity: {}
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {{matchLabels: {{app: builds}}}}
      containers: [{{name: worker, image: example.invalid/worker:1}}]
",
            fixture.affinity()
        )
    };
    // One job each: the first worker would begin both before the second one joins.
    fixture.apply(&manifest(1));
    let slots = |wanted: [u64; 2]| {
        let granted: Vec<u64> = granted(&fixture).into_values().collect();
        (granted == wanted).then_some(())
    };
    eventually("a slot each", || slots([1, 1]));
    eventually("a job each", || (busy_workers(&fixture).len() == 2).then_some(()));
    // Now each has room for both.
    fixture.apply(&manifest(2));
    let pods = fixture.pods();
    let first = pods.iter().map(name).min().expect("a pod");
    let pod = fixture.get("pod", &first).expect("the pod");
    let node = pod["spec"]["nodeName"].as_str().expect("its node").to_owned();
    fixture.access.kubectl(&["cordon", &node]);
    // Its job never ends, so the other waits for the slot.
    eventually("no slot for more jobs there", || {
        (granted(&fixture).get(&first) == Some(&0)).then_some(())
    });
    assert_eq!(marks(&fixture), BTreeMap::new(), "nothing drains");
    fixture.access.kubectl(&["uncordon", &node]);
    eventually("a slot each", || slots([1, 1]));
    let names = |pods: &[Value]| pods.iter().map(name).collect::<Vec<_>>();
    assert_eq!(names(&fixture.pods()), names(&pods));
}
