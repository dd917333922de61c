//! A coordinator that is not given the rights for pipelines and for lists of streams: it says so
//! where they are asked for, serves the rest, and goes on by itself when it gets them.

use serde_json::{Value, json};
use tests::kube::{Namespace, list, object};
use tests::process::{eventually, get};

use super::super::installed::{
    ExclusiveControlPlane, Installed, LocalCoordinator, coordinator_with_its_own_rights, folder,
    until_kinds_are_known, until_pods_are_admitted,
};
use super::{kustomization, listed_streams};

/// One set has its streams in a ConfigMap, the other one in itself. The pipeline has a class.
fn objects() -> Value {
    let [map, cars] = listed_streams();
    let bikes = json!({ "cluster": "builds", "streams": [{ "name": "bikes" }] });
    let workers = json!({ "in": { "class": "green" } });
    list([
        map,
        object("WorkerCluster", "builds", json!({ "maxJobs": 4, "maxJobsPerWorker": 2 })),
        cars,
        object("StreamSet", "bikes", bikes),
        object("WorkerClass", "green", json!({ "capacity": 15, "maxReplicas": 3 })),
        object("Pipeline", "first", json!({ "documentsPerSecond": 10, "workers": workers })),
    ])
}

fn status(namespace: &Namespace, kind: &str, name: &str) -> Value {
    namespace.get(kind, name).unwrap_or_default()["status"].take()
}

/// The message of an object's condition `Ready`, if it is False for this reason.
fn not_ready(namespace: &Namespace, kind: &str, name: &str, reason: &str) -> Option<String> {
    let status = status(namespace, kind, name);
    let mut conditions = status["conditions"].as_array()?.iter();
    let ready = conditions.find(|condition| condition["type"] == "Ready")?;
    let is_this = ready["status"] == "False" && ready["reason"] == reason;
    is_this.then(|| ready["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_without_the_rights_of_a_component_says_so_and_serves_the_rest() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let namespace = &Namespace::existing(access, "default");
    let lean = kustomization("../../deploy/base", &["all-namespaces", "own-authority"], "");
    let installed = Installed::new(access, lean.path());
    until_pods_are_admitted(access, 3);
    until_kinds_are_known(access);
    // No coordinator runs behind the Service to validate what is applied.
    access.kubectl(&["delete", "validatingwebhookconfiguration/leasehold-validator"]);
    namespace.apply(&objects());
    let own = tempfile::tempdir().expect("a folder");
    let coordinator = coordinator_with_its_own_rights(access, own.path()).await;
    let LocalCoordinator { process: coordinator, http, .. } = coordinator;
    eventually("a ready coordinator", || get(http, "/readyz").filter(|(status, _)| *status == 200));
    eventually("a set with streams of its own", || {
        (status(namespace, "ss", "bikes")["streams"]["total"] == 1).then_some(())
    });
    let why = eventually("the set whose list cannot be read", || {
        not_ready(namespace, "ss", "cars", "InvalidSpec")
    });
    assert!(why.contains("components/stream-lists"), "{why}");
    let why = eventually("the pipeline whose Services cannot be made", || {
        not_ready(namespace, "pl", "first", "RightsMissing")
    });
    assert!(why.contains("components/pipelines"), "{why}");
    eventually("the request of its class", || {
        let (status, text) = get(http, "/metrics")?;
        let is_asked =
            |line: &str| line.starts_with("workerclass_request{") && line.ends_with(" 10");
        (status == 200 && text.lines().any(is_asked)).then_some(())
    });
    let log = coordinator.log();
    assert!(log.contains("services is forbidden"), "{log}");

    // It has objects that the lean one has not, and removes them.
    let whole = Installed::new(access, &folder("overlays/ha"));
    access.kubectl(&["delete", "validatingwebhookconfiguration/leasehold-validator"]);
    eventually("the streams of the list", || {
        (status(namespace, "ss", "cars")["streams"]["total"] == 3).then_some(())
    });
    eventually("the Service of the pipeline", || namespace.get("service", "first-in"));
    eventually("a pipeline that only waits", || {
        not_ready(namespace, "pl", "first", "WaitsForWorkers")
    });
    namespace.kubectl(&["delete", "pl,wcl,ss,wc", "--all"]);
    namespace.kubectl(&["delete", "configmap/cars"]);
    // Garbage is collected only as long as the kinds of its owners are defined.
    eventually("the end of what was made for them", || {
        let made = ["get", "pdb,services", "--output=name"];
        (namespace.kubectl(&made).lines().eq(["service/kubernetes"])).then_some(())
    });
    drop(coordinator);
    drop(whole);
    drop(installed);
}
