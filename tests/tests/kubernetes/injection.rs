//! Injection through a real API server: it asks a coordinator, which it trusts by the bundle that
//! the leader writes, what opted-in pods get. Pods that did not opt in never come by.

#[path = "injection/ca_bundle.rs"]
mod ca_bundle;
#[path = "injection/client_certificates.rs"]
mod client_certificates;
#[path = "injection/reports.rs"]
mod reports;
#[path = "injection/strangers.rs"]
mod strangers;

use std::ops::Deref;
use std::process::Stdio;

use serde_json::{Value, json};
use tests::kube::{Cluster, Namespace, Replicas};
use tests::process::eventually;

/// The name of what is injected.
const AGENT: &str = "leasehold-agent";

/// A webhook configuration of this name, that asks at this address about pods of a namespace.
fn configuration(name: &str, namespace: &str, url: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": name },
        "webhooks": [{
            "name": "injector.leasehold.dev",
            "admissionReviewVersions": ["v1"],
            "clientConfig": { "url": url },
            "rules": [{
                "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
                "resources": ["pods"], "scope": "Namespaced",
            }],
            "objectSelector": { "matchLabels": { "leasehold.dev/inject": "true" } },
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } },
            "failurePolicy": "Fail",
            "reinvocationPolicy": "IfNeeded",
            "sideEffects": "None",
            "timeoutSeconds": 5,
        }],
    })
}

/// A namespace with one replica, which the API server asks about its opted-in pods.
struct InjectorFixture {
    namespace: Namespace,
    configuration: String,
    replicas: Replicas,
}

impl Deref for InjectorFixture {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        &self.namespace
    }
}

impl InjectorFixture {
    /// None where there are no binaries, which is noted.
    fn set(flags: &[&str]) -> Option<Self> {
        let namespace = Cluster::shared()?.namespace("inject");
        Replicas::define(&namespace.access);
        namespace.wait_for_account();
        let configuration = format!("injector-{namespace}");
        let flags = [&["--webhook-configuration", &configuration], flags].concat();
        let mut replicas = Replicas::new(&namespace.access, &namespace, &flags);
        replicas.start();
        replicas.wait_ready();
        let fixture = Self { namespace, configuration, replicas };
        fixture.configure(0);
        Some(fixture)
    }

    /// Has the API server ask this replica.
    fn configure(&self, replica: usize) {
        let url = format!("https://{}/inject", self.replicas.running[replica].webhook);
        let wanted = configuration(&self.configuration, &self.namespace, &url);
        self.access.apply(&wanted.to_string());
        eventually("the caBundle", || self.bundle());
        // The API server takes a moment to know its own configuration.
        eventually("a webhook that is asked", || {
            let pod = pod("probe", json!({ "leasehold.dev/inject": "true" }), json!({}));
            let refused = self.try_create(&["--dry-run=server"], &pod).1;
            let is_asked = refused.contains("WorkerCluster") || refused.is_empty();
            is_asked.then_some(())
        });
    }

    /// What the API server trusts, as it is encoded.
    fn bundle(&self) -> Option<String> {
        let path = "--output=jsonpath={.webhooks[0].clientConfig.caBundle}";
        let get = ["get", "mutatingwebhookconfiguration", &self.configuration, path];
        self.access.try_kubectl(&get).ok().filter(|text| !text.is_empty())
    }

    /// Creates a pod: the pod as it was stored, and the warnings of the answer.
    fn try_create(&self, more: &[&str], pod: &Value) -> (Option<Value>, String) {
        let arguments = ["--namespace", &self.namespace, "create", "-o", "json", "-f", "-"];
        let mut command = self.access.kubectl_command(&[&arguments[..], more].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kubectl starts");
        let pipe = child.stdin.take().expect("a pipe");
        serde_json::to_writer(pipe, pod).expect("kubectl reads");
        let output = child.wait_with_output().expect("kubectl ends");
        let stored = serde_json::from_slice(&output.stdout).ok();
        (stored, String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// The same, where it has to be taken.
    fn create(&self, pod: &Value) -> (Value, String) {
        let (stored, message) = self.try_create(&[], pod);
        (stored.unwrap_or_else(|| panic!("not taken: {message}")), message)
    }

    /// Waits until the coordinator knows of a WorkerCluster, or knows it as it is now.
    fn until_known(&self, what: &str, pod: &Value, wanted: impl Fn(&Value) -> bool) {
        eventually(what, || {
            let (stored, _) = self.try_create(&["--dry-run=server"], pod);
            stored.filter(|pod| wanted(pod)).map(drop)
        });
    }
}

impl Drop for InjectorFixture {
    fn drop(&mut self) {
        let delete = ["delete", "mutatingwebhookconfiguration", &self.configuration];
        let _ = self.access.try_kubectl(&[&delete[..], &["--ignore-not-found"]].concat());
    }
}

/// A WorkerCluster, with what it says of agents.
fn worker_cluster(name: &str, agent: Value) -> Value {
    json!({
        "apiVersion": "leasehold.dev/v1alpha1",
        "kind": "WorkerCluster",
        "metadata": { "name": name },
        "spec": {
            "maxJobs": 4, "maxJobsPerWorker": 2, "drain": { "deadline": "20s" }, "agent": agent,
        },
    })
}

pub(crate) fn pod(name: &str, labels: Value, annotations: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": labels, "annotations": annotations },
        "spec": {
            // Not for the nodes of other tests, which drain them.
            "nodeSelector": { "leasehold.dev/nowhere": "true" },
            "containers": [{ "name": "worker", "image": "example.invalid/worker:1" }],
        },
    })
}

fn opted_in(name: &str, annotations: Value) -> Value {
    pod(name, json!({ "leasehold.dev/inject": "true" }), annotations)
}

/// The agents among a pod's init containers.
fn agents(pod: &Value) -> Vec<&Value> {
    let containers = pod["spec"]["initContainers"].as_array().into_iter().flatten();
    containers.filter(|container| container["name"] == AGENT).collect()
}

fn image(pod: &Value) -> &str {
    agents(pod).first().and_then(|agent| agent["image"].as_str()).unwrap_or_default()
}

#[test]
fn a_labelled_pod_gets_one_agent_and_other_pods_stay_unchanged() {
    let Some(fixture) = InjectorFixture::set(&[]) else { return };
    fixture.apply(&worker_cluster("builds", json!({})));
    fixture.until_known("the cluster", &opted_in("probe", json!({})), |_| true);

    let (stored, message) = fixture.create(&opted_in("first", json!({})));
    assert_eq!(stored["spec"]["initContainers"][0]["name"], AGENT, "{stored:#}");
    assert_eq!(agents(&stored).len(), 1);
    assert_eq!(stored["metadata"]["labels"]["leasehold.dev/cluster"], "builds");
    assert!(stored["metadata"]["annotations"]["leasehold.dev/status"].is_string());
    assert!(!message.contains("Warning"), "{message}");
    let default = concat!("registry.invalid/leasehold/agent:", env!("CARGO_PKG_VERSION"));
    assert_eq!(image(&stored), default);

    // The API server has asked twice, since the service account's token was mounted into the agent
    // that it did not know of before.
    let metrics = tests::process::get(fixture.replicas.running[0].http, "/metrics");
    let (_, metrics) = metrics.expect("an answer");
    let asked = |result: &str| {
        let series = format!("leasehold_injections_total{{result=\"{result}\"}} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&series));
        value.expect("the series").parse::<u64>().expect("a number")
    };
    assert!(asked("injected") >= 1 && asked("unchanged") >= 1, "{metrics}");

    let plain = pod("plain", json!({ "leasehold.dev/cluster": "builds" }), json!({}));
    let (stored, message) = fixture.create(&plain);
    assert_eq!(agents(&stored), Vec::<&Value>::new());
    assert_eq!(message, "");
}
