//! Classes on a real control plane, with real agents: workers by load, by a user's choice, and
//! fewer of them without a pipeline that waits.

use serde_json::{Value, json};
use tests::kube::{FleetFixture, Work, list, name, names, object, until};
use tests::process::get;

/// A pipeline of one node of a class.
pub(crate) fn pipeline(name: &str, class: &str, load: u32) -> Value {
    let workers = json!({ "parse": { "class": class } });
    object("Pipeline", name, json!({ "documentsPerSecond": load, "workers": workers }))
}

/// A class has this many workers, all connected, and workers are chosen for so much load.
pub(crate) fn wait_for_workers(fixture: &FleetFixture, class: &str, workers: u64, placed: &str) {
    fixture.wait_for(&format!("{workers} workers with {placed}"), "wcl", class, |class| {
        let status = &class["status"];
        let count = |field: &str| status["workers"][field].as_u64();
        status["inForceGeneration"] == class["metadata"]["generation"]
            && (count("connected"), count("draining")) == (Some(workers), Some(0))
            && status["replicas"].as_u64() == Some(workers)
            && status["load"]["placed"] == placed
            && status["pipelinesWaiting"] == 0
    });
}

/// The pods whose agents say that they serve a pipeline, by their names.
fn serving(fixture: &FleetFixture, pipeline: &str) -> Vec<String> {
    let pipeline = format!("{}/{pipeline}", fixture.namespace);
    let serves = |pod: &Value| {
        let member = fixture.fleet.member(pod["metadata"]["uid"].as_str()?)?;
        let (_, body) = get(member.agent.as_ref()?.1, "/v1/lease")?;
        body.contains(&pipeline).then(|| name(pod))
    };
    fixture.pods().iter().filter_map(serves).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_class_scales_to_its_load_or_to_the_replicas_that_a_user_sets() {
    let Some(fixture) = FleetFixture::start("classes", 1, 1, Work::File).await else { return };
    let spec = json!({
        "capacity": 15, "minReplicas": 1, "maxReplicas": 4,
        // Its workers are to be full.
        "scaling": { "targetUtilization": 100, "stabilization": "1s" },
        "lease": { "ttl": "3s" }, "drain": { "deadline": "10m" },
        "template": fixture.template(),
    });
    fixture.apply(&object("WorkerClass", "green", spec));
    wait_for_workers(&fixture, "green", 1, "0");
    let deployment = fixture.get("deployment", "green").expect("the Deployment");
    let owner = &deployment["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["name"]), (&"WorkerClass".into(), &"green".into()));

    // The second finds no room, and gets a worker; the third fits beside the first.
    let loads = [("first", 10), ("second", 10), ("third", 4)];
    fixture.apply(&list(loads.map(|(name, load)| pipeline(name, "green", load))));
    wait_for_workers(&fixture, "green", 2, "24");
    let events = fixture.kubectl(&[
        "get",
        "events",
        "--field-selector=reason=ScaledOut",
        "--output=jsonpath={.items[*].message}{.items[*].note}",
    ]);
    assert!(events.contains("capacity 15, target 100%: "), "{events}");

    fixture.kubectl(&["scale", "wcl", "green", "--replicas=3"]);
    wait_for_workers(&fixture, "green", 3, "24");
    let refused = fixture.try_kubectl(&["scale", "wcl", "green", "--replicas=5"]);
    let refused = refused.expect_err("more than maxReplicas");
    assert!(refused.contains("must be from minReplicas to maxReplicas"), "{refused}");

    // Back to the load: the idle ones go, and what is served stays where it is.
    let before =
        (serving(&fixture, "first"), serving(&fixture, "second"), serving(&fixture, "third"));
    assert_eq!((before.0.len(), before.1.len(), &before.0), (1, 1, &before.2));
    let remove = r#"[{"op": "remove", "path": "/spec/replicas"}]"#;
    fixture.kubectl(&["patch", "wcl", "green", "--type=json", "--patch", remove]);
    wait_for_workers(&fixture, "green", 2, "24");
    let after =
        (serving(&fixture, "first"), serving(&fixture, "second"), serving(&fixture, "third"));
    assert_eq!(after, before);

    // One worker is enough now: who has less to give away drains first, and hands it over.
    fixture.kubectl(&["delete", "pl", "first"]);
    wait_for_workers(&fixture, "green", 1, "14");
    assert_eq!(serving(&fixture, "second"), before.1);
    assert_eq!(serving(&fixture, "third"), before.1);
    let reasons = fixture.event_reasons();
    for reason in ["ScaleInStarted", "DrainStarted", "DrainCompleted", "ScaleInCompleted"] {
        assert!(reasons.split_whitespace().any(|word| word == reason), "no {reason} in: {reasons}");
    }
    fixture.kubectl(&["delete", "wcl", "green", "--wait=false"]);
    until("the end of all pods", || names(&fixture.pods()), Vec::is_empty);
}
