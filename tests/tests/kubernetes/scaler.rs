//! A client made from KEDA's proto asks operators on a real API server, over the TLS of their own
//! making, while that server and the leader go: right answers or errors.

use serde_json::Value;
use tests::keda::{Keda, Right, object};
use tests::kube::{Component, ControlPlane, Replicas};
use tests::process::{eventually, get};
use tests::toolbox;

use super::installed::folder;

const NAMESPACE: &str = "scaling";
const OBJECTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerClass
metadata: {name: green, namespace: scaling}
spec: {capacity: 15, maxReplicas: 7}
---
apiVersion: leasehold.dev/v1alpha1
kind: Pipeline
metadata: {name: one, namespace: scaling}
spec: {documentsPerSecond: 10, workers: {first: {class: green}, second: {class: green}}}
---
apiVersion: leasehold.dev/v1alpha1
kind: Pipeline
metadata: {name: two, namespace: scaling}
spec: {documentsPerSecond: '2.5', workers: {first: {class: green}}}
";
const GAUGE: &str =
    r#"workerclass_request{workerclass_name="green",workerclass_namespace="scaling"} 22.5"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_of_the_api_server_or_of_a_leader_never_scale_to_zero() {
    let Some(plane) = ControlPlane::start() else { return };
    let access = plane.access();
    access.kubectl(&["create", "namespace", NAMESPACE]);
    Replicas::define(access);
    let mut replicas = Replicas::new(access, NAMESPACE, &[]);
    replicas.start();
    replicas.start();
    replicas.wait_ready();
    let file = replicas.folder().join("objects.yaml");
    std::fs::write(&file, OBJECTS).expect("a file");
    access.kubectl(&["apply", "-f", file.to_str().expect("UTF-8")]);
    for replica in &replicas.running {
        eventually("what the class is asked for", || {
            let (_, metrics) = get(replica.http, "/metrics")?;
            metrics.lines().any(|line| line == GAUGE).then_some(())
        });
    }
    let authority = std::fs::read_to_string(replicas.authority()).expect("a certificate");
    let server = format!("leasehold-coordinator.{NAMESPACE}.svc");
    let right = Right { request: 22.5, target: 10.5, needed: 2.0 };
    let leader = replicas.leader();
    let keda = |name, at: usize| {
        let address = replicas.running[at].grpc.to_string();
        let trusts = Some((authority.as_str(), server.as_str()));
        Keda::start(name, &address, trusts, &object(NAMESPACE, "green"), right)
    };
    let (leads, follows) = (keda("leader", leader), keda("follower", 1 - leader));
    leads.until_right().await;
    follows.until_right().await;

    plane.kill_component(Component::ApiServer);
    leads.until_refused("has not been confirmed").await;
    follows.until_refused("has not been confirmed").await;
    plane.start_component(Component::ApiServer);
    leads.until_right().await;
    follows.until_right().await;

    replicas.running[leader].process.kill();
    leads.until_refusals(10).await;
    eventually("another leader", || replicas.leading().filter(|at| *at != leader));
    follows.until_right().await;
    drop((leads.heard(), follows.heard()));
}

/// What a class and a component come to, as the API server would take it.
fn with_component(component: &str) -> (tempfile::TempDir, String) {
    let cache = toolbox::root().join(".cache");
    let folder = tempfile::tempdir_in(cache).expect("a folder in the checkout");
    let kustomization = format!(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n\
         resources: [worker-class.yaml]\ncomponents: [../../deploy/components/{component}]\n"
    );
    let class = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerClass
metadata: {name: green, namespace: default}
spec: {capacity: 15, maxReplicas: 7}
";
    std::fs::write(folder.path().join("kustomization.yaml"), kustomization).expect("a file");
    std::fs::write(folder.path().join("worker-class.yaml"), class).expect("a file");
    let path = folder.path().to_str().expect("UTF-8").to_owned();
    (folder, path)
}

#[test]
fn the_component_creates_an_autoscaler_for_the_class() {
    let Some(turn) = super::installed::Turn::take() else { return };
    let access = turn.access();
    Replicas::define(access);
    let stand_ins = toolbox::root().join("tests/tests/kubernetes/stand_in_crds.yaml");
    let stand_ins = stand_ins.to_str().expect("UTF-8");
    access.kubectl(&["apply", "-f", stand_ins]);
    access.kubectl(&["wait", "--for=condition=Established", "-f", stand_ins]);
    let taken = |component: &str, kind: &str| {
        let (_folder, path) = with_component(component);
        let dry = ["apply", "--dry-run=server", "--validate=strict", "--output=json", "-k", &path];
        let list: Value = serde_json::from_str(&access.kubectl(&dry)).expect("JSON");
        let items = list["items"].as_array().expect("objects").clone();
        items.into_iter().find(|item| item["kind"] == kind).expect("an autoscaler")
    };
    for (component, kind, most) in [
        ("keda", "ScaledObject", "maxReplicaCount"),
        ("hpa", "HorizontalPodAutoscaler", "maxReplicas"),
    ] {
        let made = taken(component, kind);
        assert_eq!(made["metadata"]["name"], "green", "{made}");
        let target = &made["spec"]["scaleTargetRef"];
        assert_eq!((&target["kind"], &target["name"]), (&"WorkerClass".into(), &"green".into()));
        assert_eq!(made["spec"][most], 7, "{made}");
        let text = made["spec"].to_string();
        assert!(!text.contains("worker-class"), "{text}");
    }
    let rule = std::fs::read_to_string(folder("components/hpa/adapter-values.yaml"));
    let rule: Value = serde_yaml::from_str(&rule.expect("a file")).expect("YAML");
    let overrides = &rule["rules"]["external"][0]["resources"]["overrides"];
    assert_eq!(overrides["workerclass_namespace"]["resource"], "namespace");
    access.kubectl(&["delete", "-f", stand_ins]);
    access.kubectl(&["delete", "-k", folder("crds").to_str().expect("UTF-8")]);
}
