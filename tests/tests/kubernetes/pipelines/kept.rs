//! What is made for pipelines is kept: what others change of it is undone, what is theirs is left
//! alone, and a new leader writes nothing where nothing has changed.

use rustix::process::Signal;
use serde_json::{Value, json};
use tests::kube::{FleetFixture, Version, Work, list, until};
use tests::process::eventually;

use super::{class, endpoints, pipeline, record, resource_versions, wait_for_end, wait_for_phase};

/// A condition's status, reason and message.
fn condition(object: &Value, type_: &str) -> Option<(String, String, String)> {
    let conditions = object["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == type_)?;
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason"), text("message")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn changes_by_others_are_reverted_and_foreign_objects_stay_unchanged() {
    let Some(fixture) = FleetFixture::start("kept", 1, 1, Work::Bindings).await else { return };
    let spec = json!({ "capacity": 30, "minReplicas": 1, "maxReplicas": 1 });
    fixture.apply(&class(&fixture, "blue", spec));
    fixture.kubectl(&["create", "service", "clusterip", "taken-in", "--tcp=80"]);
    let theirs = || fixture.get("service", "taken-in").expect("their Service")["metadata"].clone();
    let before = theirs();
    fixture.apply(&list(["mine", "taken"].map(|name| pipeline(name, 10, &[("in", "blue", &[])]))));
    wait_for_phase(&fixture, &["mine", "taken"], "Ready");

    undone(&fixture);
    fixture.wait_for("a binding that says so", "plb", "taken-in", |binding| {
        condition(binding, "Ready").is_some_and(|(_, reason, message)| {
            reason == "NameTaken" && message.contains("Service taken-in")
        })
    });
    fixture.wait_for("a pipeline that says so", "pl", "taken", |pipeline| {
        condition(pipeline, "Stalled").is_some_and(|(_, reason, _)| reason == "NameTaken")
    });
    assert_eq!(theirs(), before);
    assert_eq!(endpoints(&fixture, "taken-in"), [""; 0], "they would be their Service's");
    let reasons = "--output=jsonpath={.items[?(@.regarding.name=='taken-in')].reason}";
    let reasons = || fixture.kubectl(&["get", "events.v1.events.k8s.io", reasons]);
    until("an event of the binding", reasons, |reasons| reasons.contains("NameTaken"));
    fixture.kubectl(&["delete", "service", "taken-in"]);
    fixture.wait_for("a Service of its own", "pl", "taken", |pipeline| {
        condition(pipeline, "Ready").is_some_and(|(status, ..)| status == "True")
    });
    assert_eq!(endpoints(&fixture, "taken-in"), ["blue-0 ready serving"]);

    // Without a port the Service is headless, which no Service can become.
    fixture.kubectl(&[
        "patch",
        "wcl",
        "blue",
        "--type=json",
        "--patch",
        r#"[{"op": "remove", "path": "/spec/port"}]"#,
    ]);
    fixture.wait_for("a headless Service", "service", "mine-in", |service| {
        service["spec"]["clusterIP"] == "None" && service["spec"].get("ports").is_none()
    });
    fixture.kubectl(&["delete", "pl", "mine", "--wait=false"]);
    wait_for_end(&fixture, "mine");
}

/// A webhook of another team, for the Services of a namespace, which is down.
fn webhook_that_is_down(namespace: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": format!("down-{namespace}") },
        "webhooks": [{
            "name": "services.example.com",
            "admissionReviewVersions": ["v1"],
            "clientConfig": { "url": "https://127.0.0.1:1/" },
            "rules": [{
                "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
                "resources": ["services"],
            }],
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } },
            "failurePolicy": "Fail",
            "sideEffects": "None",
        }],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_object_on_which_the_api_server_fails_is_reported_until_it_is_written() {
    let Some(fixture) = FleetFixture::start("fails", 1, 1, Work::Bindings).await else { return };
    let spec = json!({ "capacity": 30, "minReplicas": 1, "maxReplicas": 1 });
    fixture.apply(&class(&fixture, "blue", spec));
    fixture.apply(&webhook_that_is_down(&fixture.namespace));
    fixture.apply(&pipeline("mine", 10, &[("in", "blue", &[])]));
    fixture.wait_for("a pipeline that says why", "pl", "mine", |pipeline| {
        condition(pipeline, "Stalled").is_some_and(|(_, reason, message)| {
            reason == "ObjectRejected" && message.contains("failed calling webhook")
        })
    });
    let down = format!("down-{}", fixture.namespace);
    fixture.access.kubectl(&["delete", "validatingwebhookconfiguration", &down]);
    fixture.wait_for("its Service", "pl", "mine", |pipeline| {
        condition(pipeline, "Ready").is_some_and(|(status, ..)| status == "True")
    });
    assert_eq!(endpoints(&fixture, "mine-in"), ["blue-0 ready serving"]);
}

/// Everything that people can do to what was made is undone.
fn undone(fixture: &FleetFixture) {
    let uid = |kind: &str, name: &str| {
        fixture.get(kind, name).map(|object| object["metadata"]["uid"].to_string())
    };
    for (kind, name) in
        [("service", "mine-in"), ("endpointslice", "mine-in-ipv4-0"), ("plb", "mine-in")]
    {
        let before = uid(kind, name).expect("the object");
        fixture.kubectl(&["delete", kind, name, "--wait=false"]);
        eventually(&format!("another {kind}"), || {
            uid(kind, name).filter(|now| *now != before).map(|_| ())
        });
        let home = "leasehold.dev/pipeline";
        fixture.kubectl(&[
            "label",
            kind,
            name,
            "app.kubernetes.io/managed-by-",
            &format!("{home}-"),
        ]);
        fixture.wait_for("its labels", kind, name, |object| {
            object["metadata"]["labels"][home] == "mine"
        });
    }
    let patch = |kind: &str, name: &str, patch: Value| {
        fixture.kubectl(&["patch", kind, name, "--type=merge", "--patch", &patch.to_string()]);
    };
    patch("service", "mine-in", json!({ "spec": { "selector": { "app": "theirs" } } }));
    fixture.wait_for("no selector", "service", "mine-in", |service| {
        service["spec"]["selector"].is_null()
    });
    patch("service", "mine-in", json!({ "metadata": { "ownerReferences": null } }));
    fixture.wait_for("its owner", "service", "mine-in", |service| {
        service["metadata"]["ownerReferences"][0]["name"] == "mine"
    });
    patch("endpointslice", "mine-in-ipv4-0", json!({ "endpoints": [] }));
    let served = || endpoints(fixture, "mine-in");
    until("its endpoints", served, |endpoints| *endpoints == ["blue-0 ready serving"]);
    patch("plb", "mine-in", json!({ "spec": { "class": "red" } }));
    fixture.wait_for("its class", "plb", "mine-in", |binding| binding["spec"]["class"] == "blue");
    wait_for_phase(fixture, &["mine"], "Ready");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_new_leader_changes_no_object_of_a_pipeline() {
    let Some(mut fixture) = FleetFixture::start("pipelines-leader", 2, 1, Work::Bindings).await
    else {
        return;
    };
    let spec = json!({ "capacity": 30, "minReplicas": 2, "maxReplicas": 2 });
    let mut blue = class(&fixture, "blue", spec);
    // Longer than the agents may take to find the other leader.
    blue["spec"]["lease"]["ttl"] = json!("1m");
    fixture.apply(&blue);
    let nodes: [(_, _, &[_]); 2] = [("in", "blue", &["out"]), ("out", "blue", &[])];
    fixture.apply(&list([pipeline("first", 10, &nodes), pipeline("second", 15, &nodes)]));
    wait_for_phase(&fixture, &["first", "second"], "Ready");
    let record = record(&fixture).await;
    let before = resource_versions(&fixture, "first");
    assert_eq!(before.len(), 6, "{before:?}");

    let begin = record.newest();
    let leader = fixture.replicas.leader();
    let mut old = fixture.replicas.running.remove(leader);
    old.process.signal(Signal::KILL);
    old.process.wait();
    let _ = fixture.replicas.leader();
    // What is undone for the second shows that the new leader keeps pipelines again.
    fixture.kubectl(&["delete", "service", "second-in"]);
    fixture.wait_for("another Service", "service", "second-in", |service| service.is_object());
    fixture.kubectl(&["delete", "plb", "first-in"]);
    fixture.wait_for("another binding", "plb", "first-in", |binding| {
        binding["status"]["phase"] == "Ready"
    });
    let first = record.versions().into_iter().filter(|version| version.name.starts_with("first"));
    let written: Vec<_> = first.filter(|version| version.revision > begin).collect();
    let is_other =
        |version: &&Version| version.kind != "PipelineBinding" || version.name != "first-in";
    let touched: Vec<_> = written.iter().filter(is_other).collect();
    assert!(touched.is_empty(), "{touched:#?}");
    assert_eq!(resource_versions(&fixture, "first").len(), before.len());
}
