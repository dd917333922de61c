//! Autoscalers of nodes, and handlers of their interruptions. They announce the removal of a node
//! by a taint, which only a coordinator with the right to see nodes can act on.

use std::collections::BTreeMap;

use kube::api::ListParams;
use leasehold_kube_api::node_taints::{
    AWS_NODE_TERMINATION_HANDLER, CLUSTER_AUTOSCALER, KARPENTER, removal_taint,
};
use serde_json::Value;

use super::api::{ApiClient, ApiError};
use super::expected::{list, text};
use super::fleet::place;
use super::installation::Installation;
use super::report::{Finding, Problem, Report};
use super::rights::coordinator_sees_nodes;

const CHECK: &str = "the coordinator sees which nodes autoscalers remove";
/// Programs that are found by their workloads.
const PROGRAMS: [&str; 3] = [KARPENTER, CLUSTER_AUTOSCALER, AWS_NODE_TERMINATION_HANDLER];
/// Labels that hold the name of a workload's program.
const NAME_LABELS: [&str; 3] = ["app.kubernetes.io/name", "app", "k8s-app"];
/// The group of Karpenter's NodePools. Everyone may ask whether it is served.
const KARPENTER_GROUP: &str = "karpenter.sh";
/// The ConfigMap that cluster-autoscaler writes, also where a provider runs it out of sight.
const STATUS_CONFIG_MAP: (&str, &str) = ("kube-system", "cluster-autoscaler-status");

/// What shows each program that was found.
type Signs = BTreeMap<&'static str, String>;

/// Checks whether the coordinator needs to see nodes, and may.
pub(super) async fn look(api: &ApiClient, installation: &Installation, report: &mut Report) {
    let mut finding = Finding::new("autoscalers", CHECK);
    match coordinator_sees_nodes(api, installation).await {
        Ok(true) => finding.note("it may list and watch nodes"),
        Ok(false) => {
            let (signs, unread) = signs(api).await;
            unseen(&mut finding, &signs, &unread);
        }
        Err(error) => finding.skip(error.text()),
    }
    report.add(finding);
}

/// The coordinator does not see nodes; `unread` is what could not be read while looking for signs.
fn unseen(finding: &mut Finding, signs: &Signs, unread: &[ApiError]) {
    if signs.is_empty() {
        finding.note("no autoscaler of nodes was found, and the coordinator does not see nodes");
        for error in unread {
            finding.skip(error.text());
        }
        return;
    }
    let found = signs.iter().map(|(program, sign)| format!("{program} ({sign})"));
    let found = found.collect::<Vec<_>>().join(", ");
    let announce = if signs.len() == 1 { "announces" } else { "announce" };
    let wrong = format!(
        "{found} {announce} the removal of a node by a taint, and the coordinator may not list and \
         watch nodes: workers there get new jobs and streams until their pods are evicted or \
         deleted"
    );
    let fix = "let the coordinator see nodes";
    let apply = "kubectl apply -f deploy/components/all-namespaces/nodes.yaml";
    finding.warn(Problem::new(wrong, fix).run(apply));
}

/// The programs that show in the cluster, as far as the user may read it.
async fn signs(api: &ApiClient) -> (Signs, Vec<ApiError>) {
    let (mut signs, mut unread) = (Signs::new(), Vec::new());
    match api.get("/apis", KARPENTER_GROUP).await {
        Ok(Some(_)) => {
            signs.insert(KARPENTER, format!("kinds of {KARPENTER_GROUP}"));
        }
        Ok(None) => {}
        Err(error) => unread.push(error),
    }
    for (kind, folder) in
        [("Deployment", "/apis/apps/v1/deployments"), ("DaemonSet", "/apis/apps/v1/daemonsets")]
    {
        match api.list(folder, ListParams::default()).await {
            Ok(workloads) => add_workloads(&mut signs, kind, &workloads),
            Err(error) => unread.push(error),
        }
    }
    let (namespace, name) = STATUS_CONFIG_MAP;
    match api.get(&format!("/api/v1/namespaces/{namespace}/configmaps"), name).await {
        Ok(Some(_)) => {
            let sign = format!("ConfigMap {namespace}/{name}");
            signs.entry(CLUSTER_AUTOSCALER).or_insert(sign);
        }
        Ok(None) => {}
        Err(error) => unread.push(error),
    }
    match api.list("/api/v1/nodes", ListParams::default()).await {
        Ok(nodes) => add_taints(&mut signs, &nodes),
        Err(error) => unread.push(error),
    }
    (signs, unread)
}

/// Adds the programs of workloads of one kind.
fn add_workloads(signs: &mut Signs, kind: &str, workloads: &[Value]) {
    for workload in workloads {
        let metadata = &workload["metadata"];
        let labels = NAME_LABELS.iter().map(|label| text(&metadata["labels"][label]));
        let names: Vec<&str> = labels.chain([text(&metadata["name"])]).collect();
        // Charts put a release's or a provider's name before the program's.
        let is_named = |program: &&str| {
            names.iter().any(|name| {
                let prefix = name.strip_suffix(program);
                prefix.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('-'))
            })
        };
        if let Some(program) = PROGRAMS.into_iter().find(is_named) {
            signs.entry(program).or_insert_with(|| format!("{kind} {}", place(workload)));
        }
    }
}

/// Adds the programs that have announced the removal of a node.
fn add_taints(signs: &mut Signs, nodes: &[Value]) {
    for node in nodes {
        for taint in list(&node["spec"]["taints"]) {
            let key = text(&taint["key"]);
            let Some(removal) = removal_taint(key) else { continue };
            let node = text(&node["metadata"]["name"]);
            signs.entry(removal.set_by).or_insert_with(|| format!("taint {key} of node {node}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn workload(name: &str, labels: &Value) -> Value {
        json!({ "metadata": { "namespace": "infra", "name": name, "labels": labels } })
    }

    fn of_workload(name: &str, labels: &Value) -> Signs {
        let mut signs = Signs::new();
        add_workloads(&mut signs, "Deployment", &[workload(name, labels)]);
        signs
    }

    #[test]
    fn autoscalers_show_by_the_names_and_labels_of_their_workloads() {
        let none = json!({});
        let chart = json!({ "app.kubernetes.io/name": "aws-cluster-autoscaler" });
        for (name, labels, program) in [
            ("karpenter", &none, KARPENTER),
            ("cluster-autoscaler", &none, CLUSTER_AUTOSCALER),
            ("scaler", &chart, CLUSTER_AUTOSCALER),
            ("scaler", &json!({ "app": "cluster-autoscaler" }), CLUSTER_AUTOSCALER),
            ("aws-node-termination-handler", &none, AWS_NODE_TERMINATION_HANDLER),
        ] {
            let sign = format!("Deployment infra/{name}");
            assert_eq!(of_workload(name, labels), Signs::from([(program, sign)]), "{name}");
        }
        for name in ["karpenter-exporter", "mykarpenter", "cluster-proportional-autoscaler", "web"]
        {
            assert_eq!(of_workload(name, &none), Signs::new(), "{name}");
        }
    }

    #[test]
    fn autoscalers_show_by_the_taints_of_nodes() {
        let of_taint = |key: &str| {
            let mut signs = Signs::new();
            let taints = json!([{ "key": key, "effect": "NoSchedule" }]);
            add_taints(
                &mut signs,
                &[json!({ "metadata": { "name": "n" }, "spec": { "taints": taints } })],
            );
            signs
        };
        let key = "ToBeDeletedByClusterAutoscaler";
        let sign = format!("taint {key} of node n");
        assert_eq!(of_taint(key), Signs::from([(CLUSTER_AUTOSCALER, sign)]));
        assert_eq!(of_taint("dedicated"), Signs::new());
    }

    #[test]
    fn without_the_right_to_see_nodes_an_autoscaler_is_reported_and_its_absence_must_be_certain() {
        let looked = |signs: &Signs, unread: &[ApiError]| {
            let mut finding = Finding::new("autoscalers", CHECK);
            unseen(&mut finding, signs, unread);
            finding
        };
        let forbidden = [ApiError::Forbidden("you may not list nodes".into())];
        let signs = of_workload("karpenter", &json!({}));
        let text = format!("{:?}", looked(&signs, &forbidden));
        assert!(!looked(&signs, &forbidden).is_ok());
        for words in ["karpenter (Deployment infra/karpenter)", "components/all-namespaces/nodes"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(looked(&Signs::new(), &[]).is_ok());
        let text = format!("{:?}", looked(&Signs::new(), &forbidden));
        assert!(text.contains("verdict: Skip") && text.contains("may not list nodes"), "{text}");
    }
}
