//! A coordinator that is not given the rights for pipelines and for lists of streams: it says so
//! where they are asked for, serves the rest, and goes on by itself when it gets them.

use serde_json::Value;
use tests::kube::Access;
use tests::process::{eventually, get};

use super::super::installed::{
    ExclusiveControlPlane, Installed, LocalCoordinator, coordinator_with_its_own_rights, folder,
    strictly_apply, until_kinds_are_known, until_pods_are_admitted,
};
use super::kustomization;

/// One set has its streams in a ConfigMap, the other one in itself. The pipeline has a class.
const OBJECTS: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: cars, namespace: default, labels: {leasehold.dev/stream-list: "true"}}
data: {list: "cars:new\ncars:updated\ncars:sold"}
---
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds, namespace: default}
spec: {maxJobs: 4, maxJobsPerWorker: 2}
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {name: cars, namespace: default}
spec:
  cluster: builds
  streamsFrom: [{configMapKeyRef: {name: cars, key: list}}]
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {name: bikes, namespace: default}
spec: {cluster: builds, streams: [{name: bikes}]}
---
apiVersion: leasehold.dev/v1alpha1
kind: WorkerClass
metadata: {name: green, namespace: default}
spec: {capacity: 15, maxReplicas: 3}
---
apiVersion: leasehold.dev/v1alpha1
kind: Pipeline
metadata: {name: first, namespace: default}
spec:
  documentsPerSecond: 10
  workers: {in: {class: green}}
"#;

fn status(access: &Access, object: &str) -> Value {
    let get = ["get", object, "--namespace=default", "--output=jsonpath={.status}"];
    let text = access.try_kubectl(&get).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// The message of an object's condition `Ready`, if it is False for this reason.
fn not_ready(access: &Access, object: &str, reason: &str) -> Option<String> {
    let status = status(access, object);
    let mut conditions = status["conditions"].as_array()?.iter();
    let ready = conditions.find(|condition| condition["type"] == "Ready")?;
    let is_this = ready["status"] == "False" && ready["reason"] == reason;
    is_this.then(|| ready["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_without_the_rights_of_a_component_says_so_and_serves_the_rest() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let lean = kustomization("../../deploy/base", &["all-namespaces", "own-authority"], "");
    let installed = Installed::new(access, lean.path());
    until_pods_are_admitted(access, 3);
    until_kinds_are_known(access);
    // No coordinator runs behind the Service to validate what is applied.
    access.kubectl(&["delete", "validatingwebhookconfiguration/leasehold-validator"]);
    access.apply(OBJECTS);
    let own = tempfile::tempdir().expect("a folder");
    let coordinator = coordinator_with_its_own_rights(access, own.path()).await;
    let LocalCoordinator { process: coordinator, http, .. } = coordinator;
    eventually("a ready coordinator", || get(http, "/readyz").filter(|(status, _)| *status == 200));
    eventually("a set with streams of its own", || {
        (status(access, "ss/bikes")["streams"]["total"] == 1).then_some(())
    });
    let why = eventually("the set whose list cannot be read", || {
        not_ready(access, "ss/cars", "InvalidSpec")
    });
    assert!(why.contains("components/stream-lists"), "{why}");
    let why = eventually("the pipeline whose Services cannot be made", || {
        not_ready(access, "pl/first", "RightsMissing")
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

    let all = folder("overlays/ha");
    strictly_apply(access, &["-k", all.to_str().expect("UTF-8")]);
    access.kubectl(&["delete", "validatingwebhookconfiguration/leasehold-validator"]);
    eventually("the streams of the list", || {
        (status(access, "ss/cars")["streams"]["total"] == 3).then_some(())
    });
    eventually("the Service of the pipeline", || {
        access.try_kubectl(&["get", "service/first-in", "--namespace=default"]).ok()
    });
    eventually("a pipeline that only waits", || not_ready(access, "pl/first", "WaitsForWorkers"));
    access.kubectl(&["delete", "pl,wcl,ss,wc", "--all", "--namespace=default"]);
    access.kubectl(&["delete", "configmap/cars", "--namespace=default"]);
    // Garbage is collected only as long as the kinds of its owners are defined.
    eventually("the end of what was made for them", || {
        let made = ["get", "pdb,services", "--namespace=default", "--output=name"];
        (access.kubectl(&made).lines().eq(["service/kubernetes"])).then_some(())
    });
    drop(coordinator);
    drop(installed);
}
