//! What people see of clusters and stream sets: conditions that kubectl can wait for, figures, the
//! reason where something is not as it should be, and events of what happened.

use std::collections::BTreeSet;

use rustix::process::Signal;
use serde_json::{Value, json};
use tests::kube::{FleetFixture, Work, feeds, list, name, object, until};
use tests::process::eventually;

/// The WorkerCluster `builds`, and a set of four streams that runs on another one.
fn builds_and_feeds(fixture: &FleetFixture) -> (Value, Value) {
    let spec = json!({ "maxJobs": 4, "maxJobsPerWorker": 2, "template": fixture.template() });
    let feeds = json!({ "cluster": "nowhere", "streams": feeds(4) });
    (object("WorkerCluster", "builds", spec), object("StreamSet", "feeds", feeds))
}

/// A condition's status and reason.
fn condition<'a>(object: &'a Value, type_: &str) -> Option<(&'a str, &'a str)> {
    let conditions = object["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == type_)?;
    Some((found["status"].as_str()?, found["reason"].as_str()?))
}

fn is_of_newest(object: &Value) -> bool {
    object["status"]["inForceGeneration"] == object["metadata"]["generation"]
}

/// Whether an event of this reason is about an object of this kind.
fn was_told(fixture: &FleetFixture, reason: &str, kind: &str) -> bool {
    let list = fixture.kubectl(&["get", "events.v1.events.k8s.io", "--output=json"]);
    let list: Value = serde_json::from_str(&list).expect("a list");
    let mut events = list["items"].as_array().into_iter().flatten();
    events.any(|event| {
        event["reason"] == reason
            && event["regarding"]["kind"] == kind
            && event["regarding"]["uid"].is_string()
            && event["reportingController"] == "leasehold.dev/coordinator"
    })
}

/// The set is valid by itself: only the last status names the generation that stays in force.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_invalid_edit_is_observed_and_the_generation_in_force_stays() {
    let Some(fixture) = FleetFixture::start("edits", 1, 0, Work::File).await else { return };
    let observed =
        |object: &Value| object["status"]["observedGeneration"] == object["metadata"]["generation"];
    let (builds, mut feeds) = builds_and_feeds(&fixture);
    feeds["spec"]["cluster"] = json!("builds");
    fixture.apply(&list([builds, feeds.clone()]));
    let waits = Some(("True", "NoWorkers"));
    fixture.wait_for("a set that waits for workers", "ss", "feeds", |set| {
        is_of_newest(set) && observed(set) && condition(set, "Degraded") == waits
    });
    fixture.wait_for("a cluster that waits for pods", "wc", "builds", |cluster| {
        is_of_newest(cluster)
            && condition(cluster, "Reconciling").is_some_and(|(status, _)| status == "True")
    });
    feeds["spec"]["cluster"] = json!("nowhere");
    fixture.apply(&feeds);
    fixture.wait_for("the newest generation, stalled", "ss", "feeds", |set| {
        let conditions = set["status"]["conditions"].to_string();
        set["metadata"]["generation"] == 2
            && observed(set)
            && set["status"]["inForceGeneration"] == 1
            && condition(set, "Stalled") == Some(("True", "InvalidSpec"))
            && condition(set, "Reconciling").is_none()
            && conditions.contains("generation 1 stays in force until the spec is corrected")
    });
    feeds["spec"]["cluster"] = json!("builds");
    fixture.apply(&feeds);
    fixture.wait_for("the corrected generation", "ss", "feeds", |set| {
        is_of_newest(set) && observed(set) && condition(set, "Stalled").is_none()
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn status_and_events_are_current_before_and_after_a_failover() {
    let work = Work::Jobs { ms_min: 300, ms_max: 900 };
    let Some(mut fixture) = FleetFixture::start("status", 2, 1, work).await else { return };

    let (builds, mut feeds) = builds_and_feeds(&fixture);
    fixture.apply(&list([builds, feeds.clone()]));
    fixture.wait_for("a set without a cluster", "ss", "feeds", |set| {
        condition(set, "Degraded") == Some(("True", "InvalidSpec"))
            && set["status"]["inForceGeneration"].is_null()
    });
    feeds["spec"]["cluster"] = json!("builds");
    fixture.apply(&feeds);
    let wait = ["wait", "--for=condition=Ready", "--timeout=120s", "wc/builds", "ss/feeds"];
    fixture.kubectl(&wait);
    fixture.wait_for("a cluster in figures", "wc", "builds", |cluster| {
        let status = &cluster["status"];
        is_of_newest(cluster)
            && status["maxJobs"] == 4
            && status["selector"] == "leasehold.dev/cluster=builds"
            && status["workload"]["kind"] == "Deployment"
            && status["workers"]["ready"] == 2
            && status["jobs"]["capacity"] == 4
            && status["workerList"].as_array().is_some_and(|list| {
                list.len() == 2 && list.iter().all(|worker| worker["phase"] == "Running")
            })
    });
    fixture.wait_for("a converged set", "ss", "feeds", |set| {
        condition(set, "Converged") == Some(("True", "Converged"))
            && is_of_newest(set)
            && set["status"]["streams"]["owned"] == 4
            && set["status"]["workers"] == json!({ "total": 2, "current": 2 })
    });
    let version = fixture.get("ss", "feeds").expect("a set")["status"]["planVersion"].clone();
    assert!(version.as_u64().is_some_and(|version| version > 0), "{version}");

    let leader = fixture.replicas.leader();
    fixture.replicas.running.remove(leader).process.signal(Signal::KILL);
    assert!(was_told(&fixture, "LeaderChanged", "Lease"));
    let reported = "--output=jsonpath={.items[?(@.reason=='LeaderChanged')].reportingInstance}";
    let leaders = || fixture.kubectl(&["get", "events.v1.events.k8s.io", reported]);
    until("an event of each leader", leaders, |leaders| {
        leaders.split_whitespace().collect::<BTreeSet<&str>>().len() == 2
    });
    fixture.wait_for("the same plan under another leader", "ss", "feeds", |set| {
        let status = &set["status"];
        condition(set, "Converged").is_some_and(|(status, _)| status == "True")
            && status["planVersion"] == version
    });

    let pod = name(&fixture.pods()[0]);
    fixture.kubectl(&["delete", "pod", &pod, "--wait=false"]);
    for reason in ["DrainStarted", "DrainCompleted"] {
        for kind in ["Pod", "WorkerCluster"] {
            eventually(reason, || was_told(&fixture, reason, kind).then_some(()));
        }
    }
    fixture.kubectl(&wait);
    fixture.wait_for("a new plan", "ss", "feeds", |set| {
        set["status"]["planVersion"].as_u64() > version.as_u64()
            && condition(set, "Converged").is_some_and(|(status, _)| status == "True")
    });
    drop(fixture);
}
