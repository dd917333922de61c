//! KEDA, by the coordinator's scaler and by Prometheus, and a HorizontalPodAutoscaler through
//! Prometheus' adapter scale a class with its load: 2 workers, 3, and 2 again.

use serde_json::{Value, json};
use tests::kube::{ExternalMetrics, FleetFixture, Namespace, Work, list, object};
use tests::prometheus::{Prometheus, Target};

use super::super::classes::{pipeline, wait_for_workers};
use super::super::installed::{ExclusiveControlPlane, folder};
use super::super::scaler::{class_with_component, client_certificate};

/// What takes back at once what is not needed any more.
fn at_once() -> Value {
    json!({ "scaleDown": { "stabilizationWindowSeconds": 0 } })
}

/// A class whose workers have room for one pipeline of 10 documents a second each.
fn class(fixture: &FleetFixture, name: &str) -> Value {
    let spec = json!({
        "capacity": 15, "minReplicas": 1, "maxReplicas": 4,
        "lease": { "ttl": "3s" }, "drain": { "deadline": "10m" },
        "template": fixture.template(),
    });
    let mut class = object("WorkerClass", name, spec);
    class["metadata"]["namespace"] = json!(&*fixture.namespace);
    class
}

/// Gives a class its first number, as docs/KUBERNETES.md has it, then two pipelines and a third,
/// and takes that away again: its workers follow.
fn follows_the_load(fixture: &FleetFixture, class: &str) {
    fixture.kubectl(&["scale", &format!("wcl/{class}"), "--replicas=1"]);
    let name = |number: u32| format!("{class}-{number}");
    fixture.apply(&list([1, 2].map(|number| pipeline(&name(number), class, 10))));
    wait_for_workers(fixture, class, 2, "20");
    fixture.apply(&pipeline(&name(3), class, 10));
    wait_for_workers(fixture, class, 3, "30");
    fixture.kubectl(&["delete", "pl", &name(3)]);
    wait_for_workers(fixture, class, 2, "20");
}

/// A Prometheus that scrapes the replicas.
fn prometheus(fixture: &FleetFixture) -> Option<Prometheus> {
    let running = fixture.replicas.running.iter();
    let targets: Vec<_> =
        running.map(|replica| Target { pod: "replica", address: replica.http }).collect();
    Prometheus::start("autoscalers by Prometheus", &targets)
}

/// A namespace of a control plane that serves one test, with two replicas and a node.
async fn fixture(turn: &ExclusiveControlPlane, namespace: &str) -> FleetFixture {
    FleetFixture::set(turn.access(), namespace, 2, 1, Work::File).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn keda_scales_a_class_by_its_scaler_and_by_prometheus() {
    let Some(turn) = ExclusiveControlPlane::for_failures("keda") else { return };
    let fixture = fixture(&turn, "keda").await;
    let Some(keda) = ExternalMetrics::of_keda(&fixture.namespace) else { return };
    let Some(prometheus) = prometheus(&fixture) else { return };

    // The shipped component, at the address of a replica; KEDA shows the certificate of docs.
    let uri = format!("leasehold://autoscaler/{}", fixture.namespace);
    secret(&fixture.namespace, client_certificate(&fixture.namespace, &uri));
    let address = fixture.replicas.running[0].grpc;
    let more = json!({ "patches": [{
        "target": { "kind": "ScaledObject" },
        "patch": json!([
            { "op": "replace", "path": "/spec/triggers/0/metadata/scalerAddress",
              "value": format!("localhost:{}", address.port()) },
            { "op": "add", "path": "/spec/advanced",
              "value": { "horizontalPodAutoscalerConfig": { "behavior": at_once() } } },
        ]).to_string(),
    }] });
    let more = serde_yaml::to_string(&more).expect("YAML");
    let (_folder, path) = class_with_component(&class(&fixture, "green"), "keda", &more);
    fixture.kubectl(&["apply", "-k", &path]);
    follows_the_load(&fixture, "green");

    let query = format!(
        r#"max(workerclass_request{{workerclass_namespace="{}",workerclass_name="blue"}})"#,
        fixture.namespace
    );
    let server = format!("http://{}", prometheus.address());
    let metadata = json!({ "serverAddress": server, "query": query, "threshold": "10.5" });
    let target = json!({
        "apiVersion": "leasehold.dev/v1alpha1", "kind": "WorkerClass", "name": "blue",
    });
    let by_prometheus = json!({
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": { "name": "blue" },
        "spec": {
            "scaleTargetRef": target, "minReplicaCount": 1, "maxReplicaCount": 4,
            "advanced": { "horizontalPodAutoscalerConfig": { "behavior": at_once() } },
            "triggers": [{ "type": "prometheus", "metadata": metadata }],
        },
    });
    fixture.apply(&list([class(&fixture, "blue"), by_prometheus]));
    follows_the_load(&fixture, "blue");
    // They end while KEDA is there to let them go.
    fixture.kubectl(&["delete", "scaledobjects", "--all"]);
    drop(keda);
}

/// The Secret by which KEDA shows who it is.
fn secret(namespace: &Namespace, (certificate, key): (String, String)) {
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "leasehold-autoscaler" },
        "type": "kubernetes.io/tls",
        "stringData": { "tls.crt": certificate, "tls.key": key },
    }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_horizontal_pod_autoscaler_scales_a_class_through_prometheus() {
    let Some(turn) = ExclusiveControlPlane::for_failures("hpa") else { return };
    let fixture = fixture(&turn, "hpa").await;
    let Some(prometheus) = prometheus(&fixture) else { return };
    let rules = std::fs::read_to_string(folder("components/hpa/adapter-values.yaml"));
    let rules: Value = serde_yaml::from_str(&rules.expect("a file")).expect("YAML");
    let rules = &rules["rules"]["external"];
    let Some(_adapter) =
        ExternalMetrics::of_prometheus(&fixture.namespace, prometheus.address(), rules)
    else {
        return;
    };
    let more = json!({ "patches": [{
        "target": { "kind": "HorizontalPodAutoscaler" },
        "patch": json!([
            { "op": "replace", "path": "/spec/metrics/0/external/target/averageValue",
              "value": "10.5" },
            { "op": "add", "path": "/spec/behavior", "value": at_once() },
        ]).to_string(),
    }] });
    let more = serde_yaml::to_string(&more).expect("YAML");
    let (_folder, path) = class_with_component(&class(&fixture, "green"), "hpa", &more);
    fixture.kubectl(&["apply", "-k", &path]);
    follows_the_load(&fixture, "green");
}
