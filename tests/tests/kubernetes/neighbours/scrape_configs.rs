//! Scrape configurations as the Prometheus operator makes them of monitors, for a Prometheus that
//! has no shards and enforces nothing: `pkg/prometheus/promcfg.go` of its release 0.93.
//!
//! Only what the shipped monitors use is translated. Anything else panics, so that no field is left
//! out unseen.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The fields of a relabelling rule, and what Prometheus calls them.
const RELABELING: [(&str, &str); 6] = [
    ("action", "action"),
    ("sourceLabels", "source_labels"),
    ("separator", "separator"),
    ("regex", "regex"),
    ("replacement", "replacement"),
    ("targetLabel", "target_label"),
];

/// What a monitor selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Selected {
    Pods,
    Services,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct MonitorSpec {
    #[serde(default)]
    namespace_selector: NamespaceSelector,
    selector: LabelSelector,
    #[serde(alias = "podMetricsEndpoints")]
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct NamespaceSelector {
    any: bool,
    match_names: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct LabelSelector {
    match_labels: BTreeMap<String, String>,
    match_expressions: Vec<Expression>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expression {
    key: String,
    operator: Operator,
}

#[derive(Debug, Deserialize)]
enum Operator {
    Exists,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Endpoint {
    port: Option<String>,
    path: String,
    interval: String,
    #[serde(default)]
    relabelings: Vec<Map<String, Value>>,
    #[serde(default)]
    metric_relabelings: Vec<Map<String, Value>>,
}

/// The scrape configurations of a PodMonitor or a ServiceMonitor, one for each endpoint. Targets
/// are found with the rights of this kubeconfig.
pub(super) fn scrape_configs(monitor: &Value, kubeconfig: &Path) -> Vec<Value> {
    let (selected, role, word) = match monitor["kind"].as_str() {
        Some("PodMonitor") => (Selected::Pods, "pod", "podMonitor"),
        Some("ServiceMonitor") => (Selected::Services, "endpoints", "serviceMonitor"),
        other => panic!("expected a PodMonitor or a ServiceMonitor: {other:?}"),
    };
    let metadata = |field: &str| monitor["metadata"][field].as_str().expect("it is in a namespace");
    let (namespace, name) = (metadata("namespace"), metadata("name"));
    let spec: MonitorSpec = serde_json::from_value(monitor["spec"].clone())
        .unwrap_or_else(|error| panic!("{word} {name}: {error}: translate it in {}", file!()));
    let NamespaceSelector { any, match_names } = spec.namespace_selector;
    let namespaces = if any {
        Vec::new()
    } else if match_names.is_empty() {
        vec![namespace.to_owned()]
    } else {
        match_names
    };
    let discovery = json!({
        "role": role, "kubeconfig_file": kubeconfig, "namespaces": { "names": namespaces },
    });
    let configs = spec.endpoints.iter().enumerate().map(|(number, endpoint)| {
        let rules = match selected {
            Selected::Pods => of_pods(&format!("{namespace}/{name}"), &spec.selector, endpoint),
            Selected::Services => of_services(&spec.selector, endpoint),
        };
        let own = endpoint.relabelings.iter().map(relabeling);
        let of_series: Vec<Value> = endpoint.metric_relabelings.iter().map(relabeling).collect();
        json!({
            "job_name": format!("{word}/{namespace}/{name}/{number}"),
            "kubernetes_sd_configs": [discovery],
            "scrape_interval": endpoint.interval,
            "metrics_path": endpoint.path,
            "relabel_configs": rules.into_iter().chain(own).collect::<Vec<_>>(),
            "metric_relabel_configs": of_series,
        })
    });
    configs.collect()
}

/// The rules that come before a PodMonitor's own.
fn of_pods(job: &str, selector: &LabelSelector, endpoint: &Endpoint) -> Vec<Value> {
    let mut rules = vec![copy("job", "__tmp_prometheus_job_name"), drop_ended_pods()];
    rules.extend(selection("__meta_kubernetes_pod", selector));
    rules.extend(of_port("__meta_kubernetes_pod_container_port_name", endpoint));
    rules.extend([
        copy("__meta_kubernetes_namespace", "namespace"),
        copy("__meta_kubernetes_pod_container_name", "container"),
        copy("__meta_kubernetes_pod_name", "pod"),
        set("job", job),
    ]);
    rules.extend(endpoint.port.iter().map(|port| set("endpoint", port)));
    rules
}

/// The rules that come before a ServiceMonitor's own.
fn of_services(selector: &LabelSelector, endpoint: &Endpoint) -> Vec<Value> {
    let target = |kind: &str, label: &str| {
        json!({
            "source_labels": [
                "__meta_kubernetes_endpoint_address_target_kind",
                "__meta_kubernetes_endpoint_address_target_name",
            ],
            "separator": ";",
            "regex": format!("{kind};(.*)"),
            "replacement": "${1}",
            "target_label": label,
        })
    };
    let mut rules = vec![copy("job", "__tmp_prometheus_job_name")];
    rules.extend(selection("__meta_kubernetes_service", selector));
    rules.extend(of_port("__meta_kubernetes_endpoint_port_name", endpoint));
    rules.extend([
        target("Node", "node"),
        target("Pod", "pod"),
        copy("__meta_kubernetes_namespace", "namespace"),
        copy("__meta_kubernetes_service_name", "service"),
        copy("__meta_kubernetes_pod_name", "pod"),
        copy("__meta_kubernetes_pod_container_name", "container"),
        drop_ended_pods(),
        copy("__meta_kubernetes_service_name", "job"),
    ]);
    rules.extend(endpoint.port.iter().map(|port| set("endpoint", port)));
    rules
}

/// Keeps the targets of objects with these labels. `object` begins the names of their labels.
fn selection(object: &str, selector: &LabelSelector) -> Vec<Value> {
    let value = |key: &str| format!("{object}_label_{}", label_name(key));
    let presence = |key: &str| format!("{object}_labelpresent_{}", label_name(key));
    let equal = selector
        .match_labels
        .iter()
        .map(|(key, wanted)| keep(&[value(key), presence(key)], &format!("({wanted});true")));
    let others = selector.match_expressions.iter().map(|Expression { key, operator }| {
        let Operator::Exists = operator;
        keep(&[presence(key)], "true")
    });
    equal.chain(others).collect()
}

/// Keeps the targets at the endpoint's port, if it names one.
fn of_port(label: &str, endpoint: &Endpoint) -> Option<Value> {
    endpoint.port.as_ref().map(|port| keep(&[label.to_owned()], port))
}

fn drop_ended_pods() -> Value {
    let phase = "__meta_kubernetes_pod_phase";
    json!({ "action": "drop", "source_labels": [phase], "regex": "(Failed|Succeeded)" })
}

fn keep(labels: &[String], regex: &str) -> Value {
    json!({ "action": "keep", "source_labels": labels, "regex": regex })
}

fn copy(from: &str, to: &str) -> Value {
    json!({ "source_labels": [from], "target_label": to })
}

fn set(label: &str, value: &str) -> Value {
    json!({ "target_label": label, "replacement": value })
}

/// A rule that a monitor has.
fn relabeling(rule: &Map<String, Value>) -> Value {
    let fields = rule.iter().map(|(field, value)| {
        let known = RELABELING.into_iter().find(|(known, _)| known == field);
        let (_, name) = known.unwrap_or_else(|| panic!("{field}: translate it in {}", file!()));
        (name.to_owned(), value.clone())
    });
    Value::Object(fields.collect())
}

/// The key of a Kubernetes label, as a part of the name of a label of Prometheus.
fn label_name(key: &str) -> String {
    key.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

#[test]
#[should_panic(expected = "unknown field `scheme`")]
fn a_field_that_is_not_translated_is_found() {
    let endpoint = json!({ "path": "/metrics", "interval": "15s", "scheme": "https" });
    let monitor = json!({
        "kind": "ServiceMonitor",
        "metadata": { "namespace": "a", "name": "b" },
        "spec": { "selector": {}, "endpoints": [endpoint] },
    });
    scrape_configs(&monitor, Path::new("kubeconfig"));
}
