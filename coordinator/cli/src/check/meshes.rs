//! Service meshes: what a worker's agent sends to the coordinator does not pass the mesh's proxy.
//! The proxy starts after the agent and ends before it.

use std::collections::BTreeMap;

use leasehold_injection::Mesh;
use serde_json::{Value, json};

use super::expected::text;
use super::fleet::{Fleet, Workload, by_workload, describe_pods, kind_of, patch_template};
use super::installation::Installation;
use super::report::{Finding, Problem, Report};

const CHECK: &str = "agents in a service mesh reach the coordinator without its proxy";

/// Checks all workers.
pub(super) fn look(installation: &Installation, fleet: &Fleet, report: &mut Report) {
    let Ok(pods) = &fleet.pods else { return };
    report.add(checked(installation.agent_port(), fleet, pods));
}

fn checked(port: u16, fleet: &Fleet, pods: &[Value]) -> Finding {
    let mut finding = Finding::new("meshes", CHECK);
    let mut count = 0;
    for (workload, pods) in by_workload(pods.iter()) {
        // One problem per mesh, and per list of ports that the pods have already.
        let mut missing: BTreeMap<(Mesh, String), Vec<&Value>> = BTreeMap::new();
        for pod in pods {
            let Ok(Some(mesh)) = Mesh::of(pod) else { continue };
            count += 1;
            let ports = text(&pod["metadata"]["annotations"][annotation(mesh)]);
            if !ports.split(',').any(|item| includes(item, port)) {
                missing.entry((mesh, with_port(ports, port))).or_default().push(pod);
            }
        }
        for ((mesh, ports), pods) in missing {
            finding.warn(problem(&workload, fleet, &pods, (mesh, port), &ports));
        }
    }
    finding.note(format!("pods in a mesh: {count}"));
    finding
}

fn problem(
    workload: &Workload,
    fleet: &Fleet,
    pods: &[&Value],
    (mesh, port): (Mesh, u16),
    ports: &str,
) -> Problem {
    let annotation = annotation(mesh);
    let wrong = format!(
        "{}: {} in {} without {annotation} for the coordinator's port {port}: the agent reaches \
         no coordinator before the proxy runs and after it has ended",
        workload.words(),
        describe_pods(pods),
        name(mesh),
    );
    let template = json!({ "metadata": { "annotations": { annotation: ports } } });
    let cluster = fleet.cluster_of(pods[0]).filter(|cluster| workload.is_created_for(cluster));
    if let Some(cluster) = cluster {
        let fix = format!("set it in the {}'s template", kind_of(cluster));
        return Problem::new(wrong, fix).run(patch_template(cluster, &template));
    }
    match workload.patch_template(&template) {
        Some(command) => {
            let fix = "set it in the workload's template, which restarts its pods";
            Problem::new(wrong, fix).run(command)
        }
        None => {
            let fix = format!(
                "set {annotation}: {ports:?} in its manifest and create it again: the mesh reads \
                 it at the start of a pod"
            );
            Problem::new(wrong, fix)
        }
    }
}

fn name(mesh: Mesh) -> &'static str {
    match mesh {
        Mesh::Istio => "Istio",
        Mesh::Linkerd => "Linkerd",
    }
}

/// The annotation of a pod with the ports, separated by commas, of connections that leave it
/// without the proxy.
fn annotation(mesh: Mesh) -> &'static str {
    match mesh {
        Mesh::Istio => "traffic.sidecar.istio.io/excludeOutboundPorts",
        Mesh::Linkerd => "config.linkerd.io/skip-outbound-ports",
    }
}

/// Whether an item of such an annotation, a port or a range of them, includes the port.
fn includes(item: &str, port: u16) -> bool {
    let (first, last) = item.split_once('-').unwrap_or((item, item));
    let number = |text: &str| text.trim().parse::<u16>().ok();
    number(first).zip(number(last)).is_some_and(|(first, last)| (first..=last).contains(&port))
}

/// The annotation's value with the port added. What is neither a port nor a range is left out.
fn with_port(ports: &str, port: u16) -> String {
    let is_range = |item: &&str| {
        !item.is_empty() && item.chars().all(|letter| letter.is_ascii_digit() || letter == '-')
    };
    let kept = ports.split(',').map(str::trim).filter(is_range).map(str::to_owned);
    kept.chain([port.to_string()]).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u16 = 7400;

    fn fleet(clusters: Vec<Value>) -> Fleet {
        Fleet { clusters: Ok(clusters), pods: Ok(Vec::new()), namespaces: Vec::new() }
    }

    /// A pod with a proxy, of a Deployment `web`.
    fn pod(proxy: &str, annotations: &Value) -> Value {
        let owner = json!({ "controller": true, "kind": "ReplicaSet", "name": "web-7f" });
        json!({
            "metadata": {
                "namespace": "ci",
                "name": "web-7f-a",
                "labels": { "leasehold.dev/cluster": "web", "pod-template-hash": "7f" },
                "annotations": annotations,
                "ownerReferences": [owner],
            },
            "spec": { "containers": [{ "name": "worker" }, { "name": proxy }] },
        })
    }

    /// What is said about one pod; none if it is well.
    fn said(fleet: &Fleet, pod: Value) -> Option<String> {
        let finding = checked(PORT, fleet, &[pod]);
        (!finding.is_ok()).then(|| format!("{finding:?}"))
    }

    #[test]
    fn the_coordinators_port_must_be_excluded_from_a_mesh() {
        let fleet = fleet(Vec::new());
        let (istio, linkerd) = (annotation(Mesh::Istio), annotation(Mesh::Linkerd));
        for (proxy, annotation) in [("istio-proxy", istio), ("linkerd-proxy", linkerd)] {
            let missing = said(&fleet, pod(proxy, &json!({}))).expect("a problem");
            for words in ["deployment/web in ci", "the pod ci/web-7f-a", annotation, "port 7400"] {
                assert!(missing.contains(words), "{words}: {missing}");
            }
            for well in ["7400", "9090, 7400", "7000-7500"] {
                assert_eq!(said(&fleet, pod(proxy, &json!({ annotation: well }))), None, "{well}");
            }
            for wrong in ["", "74000", "7401", "7000-7399", "7400-", "all"] {
                assert!(
                    said(&fleet, pod(proxy, &json!({ annotation: wrong }))).is_some(),
                    "{wrong}"
                );
            }
        }
        assert!(said(&fleet, pod("istio-proxy", &json!({ linkerd: "7400" }))).is_some());
        assert_eq!(said(&fleet, pod("other", &json!({}))), None, "it is in no mesh");
    }

    #[test]
    fn the_annotation_is_set_where_the_pods_template_is() {
        let istio = annotation(Mesh::Istio);
        let meshed = || pod("istio-proxy", &json!({ istio: "9090,'; true" }));
        let annotated = format!(r#""annotations":{{"{istio}":"9090,7400"}}"#).replace('"', r#"\""#);
        let own = said(&fleet(Vec::new()), meshed()).expect("a problem");
        assert!(own.contains("kubectl patch deployment/web -n ci --type=strategic"), "{own}");
        assert!(own.contains(&annotated), "{own}");
        let cluster = json!({
            "kind": "WorkerCluster",
            "metadata": { "namespace": "ci", "name": "web" },
            "spec": { "template": {} },
        });
        let made = said(&fleet(vec![cluster]), meshed()).expect("a problem");
        assert!(made.contains("kubectl patch workercluster/web -n ci --type=merge"), "{made}");
        let mut alone = meshed();
        alone["metadata"]["ownerReferences"] = json!([]);
        let alone = said(&fleet(Vec::new()), alone).expect("a problem");
        assert!(alone.contains("create it again") && alone.contains("run: []"), "{alone}");
    }
}
