//! Workers: each has the sidecar that it asks for, of a version that the coordinator supports,
//! belongs to an existing cluster, and is connected.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use leasehold_injection::names::{CONFIG, CONTAINER};
use leasehold_kube_api::names::CLUSTER_LABEL;
use serde_json::Value;

use super::expected::{list, text};
use super::fleet::{
    Fleet, Workload, by_workload, describe_pods, is_injected, kind_of, place, sidecar,
    wants_sidecar,
};
use super::installation::{Installation, Version};
use super::report::{Finding, Problem, Report};

/// The check of [`cluster_conditions`].
const CLUSTERS_OK: &str = "no WorkerCluster or WorkerClass is Degraded or Stalled";
/// A younger pod may still be connecting, and a younger cluster have no status yet.
const YOUNG_SECS: i64 = 120;

/// Checks all workers.
pub(super) fn look(installation: &Installation, fleet: &Fleet, report: &mut Report) {
    let pods = match &fleet.pods {
        Ok(pods) => pods,
        Err(error) => {
            let check = "the workers' pods can be read";
            let mut finding = Finding::skipped("pods", check, error.text());
            finding.note("pass the namespaces that you may read: -n NAMESPACE");
            report.add(finding);
            return;
        }
    };
    report.add(sidecars(pods));
    report.add(sidecar_versions(installation, fleet, pods));
    report.add(cluster_of_each_pod(fleet, pods));
    match &fleet.clusters {
        Ok(clusters) => {
            let now = Timestamp::now().as_second();
            report.add(connected(clusters, pods, now));
            report.add(cluster_conditions(clusters, now));
        }
        Err(error) => {
            let check = CLUSTERS_OK;
            report.add(Finding::skipped("clusters", check, error.text()));
        }
    }
}

fn sidecars(pods: &[Value]) -> Finding {
    let check = "pods that ask for a sidecar have one";
    let mut finding = Finding::new("sidecars", check);
    let asking = pods.iter().filter(|pod| wants_sidecar(pod));
    let count = asking.clone().count();
    for (workload, pods) in by_workload(asking.filter(|pod| sidecar(pod).is_none())) {
        let wrong = format!(
            "{}: {} asked for a sidecar and got none, so no budget counts its jobs",
            workload.words(),
            describe_pods(&pods)
        );
        finding.fail(
            Problem::new(wrong, workload.restart_words()).run(workload.restart_command(&pods)),
        );
    }
    finding.note(format!("pods that ask for one: {count}"));
    finding
}

fn sidecar_versions(installation: &Installation, fleet: &Fleet, pods: &[Value]) -> Finding {
    let check = "sidecars have the image that would be injected now";
    let mut finding = Finding::new("sidecar-versions", check);
    let ours = Version::of_image(&installation.image).or_else(Version::own);
    // One problem per workload and image.
    let mut old: BTreeMap<(Workload, &str, String), Vec<&Value>> = BTreeMap::new();
    for pod in pods {
        let Some(sidecar) = sidecar(pod) else { continue };
        let image = text(&sidecar["image"]);
        let wanted = wanted_image(installation, fleet, pod);
        let is_new = if is_injected(pod) {
            image == wanted
        } else {
            // The registry of a sidecar written by hand is the user's choice.
            Version::of_image(image).is_none_or(|theirs| Some(theirs) == ours)
        };
        if !is_new {
            old.entry((Workload::of(pod), image, wanted)).or_default().push(pod);
        }
    }
    for ((workload, image, wanted), pods) in old {
        let theirs = Version::of_image(image);
        let is_compatible = theirs.zip(ours).is_none_or(|(one, other)| one.is_compatible(other));
        let beside = if is_compatible {
            String::new()
        } else {
            format!(", which the coordinator ({}) does not support", installation.image)
        };
        let what = describe_pods(&pods);
        let wrong = format!(
            "{}: {what} with the sidecar {image}{beside}; {wanted} would be injected now",
            workload.words()
        );
        let is_asked = pods.iter().all(|pod| is_injected(pod));
        let Workload { namespace, kind, name } = &workload;
        let problem = if is_asked || kind == "pod" {
            Problem::new(wrong, workload.restart_words()).run(workload.restart_command(&pods))
        } else {
            Problem::new(wrong, "set the image in the workload's manifest")
                .run(format!("kubectl -n {namespace} set image {kind}/{name} {CONTAINER}={wanted}"))
        };
        if is_compatible { finding.warn(problem) } else { finding.fail(problem) }
    }
    finding
}

/// The image that a pod would get now: set by the pod, else by its cluster, else the default.
fn wanted_image(installation: &Installation, fleet: &Fleet, pod: &Value) -> String {
    let own = pod["metadata"]["annotations"][format!("{CONFIG}image")].as_str();
    let clusters =
        fleet.cluster_of(pod).and_then(|cluster| cluster["spec"]["agent"]["image"].as_str());
    own.or(clusters).map_or_else(|| installation.agent_image(), str::to_owned)
}

fn cluster_of_each_pod(fleet: &Fleet, pods: &[Value]) -> Finding {
    let check = "every worker's pod belongs to a WorkerCluster or a WorkerClass";
    let mut finding = Finding::new("pods-clusters", check);
    if let Err(error) = &fleet.clusters {
        finding.skip(error.text());
        return finding;
    }
    let lost = pods.iter().filter(|pod| fleet.cluster_of(pod).is_none());
    for (workload, pods) in by_workload(lost) {
        let namespace = &workload.namespace;
        let label = text(&pods[0]["metadata"]["labels"][CLUSTER_LABEL]);
        let (which, what) = (workload.words(), describe_pods(&pods));
        let wrong = match label {
            "" => format!("{which}: {what} without the label {CLUSTER_LABEL}"),
            name => format!(
                "{which}: {what} with {CLUSTER_LABEL}={name}, but {namespace} has no WorkerCluster \
                 or WorkerClass {name}"
            ),
        };
        let fix = "set the label in the workload's template to one of these, or create one";
        let list = format!("kubectl -n {namespace} get workerclusters,workerclasses");
        finding.fail(Problem::new(wrong, fix).run(list));
    }
    finding
}

/// Workers are connected, by the status that the leader writes.
fn connected(clusters: &[Value], pods: &[Value], now: i64) -> Finding {
    let mut finding = Finding::new("connected", "workers are connected to the coordinator");
    let mut count = 0;
    for cluster in clusters {
        let status = &cluster["status"];
        count += status["workers"]["connected"].as_u64().unwrap_or_default();
        for worker in list(&status["workerList"]) {
            let (name, phase) = (text(&worker["name"]), text(&worker["phase"]));
            let namespace = &cluster["metadata"]["namespace"];
            let pod = pods.iter().find(|pod| {
                pod["metadata"]["name"] == name && pod["metadata"]["namespace"] == *namespace
            });
            let is_young = pod.is_none_or(|pod| is_young(pod, now));
            let why = match phase {
                "Lost" => "was connected and is silent now",
                "Unreported" => "has not reported to the current leader",
                "Pending" if !is_young => "has never connected since its start",
                _ => continue,
            };
            let namespace = text(namespace);
            let wrong = format!("the pod {namespace}/{name} of {} {why}", place(cluster));
            let fix = "see what its agent logs";
            let logs = format!("kubectl -n {namespace} logs {name} -c {CONTAINER} --tail=20");
            finding.fail(Problem::new(wrong, fix).run(logs));
        }
    }
    finding.note(format!("connected: {count}"));
    finding
}

fn is_young(object: &Value, now: i64) -> bool {
    let made = text(&object["metadata"]["creationTimestamp"]).parse::<Timestamp>();
    made.is_ok_and(|made| now - made.as_second() < YOUNG_SECS)
}

/// Every cluster has a status without a bad condition.
fn cluster_conditions(clusters: &[Value], now: i64) -> Finding {
    let mut finding = Finding::new("clusters", CLUSTERS_OK);
    for cluster in clusters {
        let metadata = &cluster["metadata"];
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        let describe =
            format!("kubectl -n {namespace} describe {} {name}", kind_of(cluster).to_lowercase());
        if cluster["status"].is_null() && !is_young(cluster, now) {
            let wrong = format!(
                "{} {} has no status: the coordinator does not serve its namespace, or no replica \
                 leads",
                kind_of(cluster),
                place(cluster)
            );
            let fix = "see the checks of the election, and which namespaces the coordinator serves";
            finding.fail(Problem::new(wrong, fix).run(describe.clone()));
        }
        for condition in list(&cluster["status"]["conditions"]) {
            let aspect = text(&condition["type"]);
            if !matches!(aspect, "Degraded" | "Stalled") || condition["status"] != "True" {
                continue;
            }
            let (reason, message) = (text(&condition["reason"]), text(&condition["message"]));
            let wrong =
                format!("{} {} is {aspect}: {reason}: {message}", kind_of(cluster), place(cluster));
            finding.warn(Problem::new(wrong, "follow the message").run(describe.clone()));
        }
    }
    finding.note(format!("checked: {}", clusters.len()));
    finding
}

#[cfg(test)]
mod tests {
    use leasehold_injection::names::{INJECT, STATUS};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_of_a_class_has_a_cluster() {
        let class = json!({
            "kind": "WorkerClass", "metadata": { "namespace": "ci", "name": "blue" },
            "status": { "conditions": [
                { "type": "Degraded", "status": "True", "reason": "R", "message": "m" },
            ] },
        });
        let clusters = vec![class];
        let fleet =
            Fleet { clusters: Ok(clusters.clone()), pods: Ok(Vec::new()), namespaces: Vec::new() };
        let pod = |name: &str| {
            json!({ "metadata": {
                "namespace": "ci", "name": "p", "labels": { CLUSTER_LABEL: name },
            } })
        };
        assert!(cluster_of_each_pod(&fleet, &[pod("blue")]).is_ok());
        let lost = cluster_of_each_pod(&fleet, &[pod("green")]);
        let text = format!("{lost:?}");
        assert!(!lost.is_ok() && text.contains("no WorkerCluster or WorkerClass"), "{text}");
        let text = format!("{:?}", cluster_conditions(&clusters, 0));
        assert!(text.contains("WorkerClass ci/blue is Degraded: R: m"), "{text}");
        assert!(text.contains("kubectl -n ci describe workerclass blue"), "{text}");
    }

    #[test]
    fn only_an_injected_sidecar_can_be_outdated() {
        let fleet =
            Fleet { clusters: Ok(Vec::new()), pods: Ok(Vec::new()), namespaces: Vec::new() };
        let is_well = |annotations: Value, image: &str| {
            let pod = json!({
                "metadata": {
                    "namespace": "ci", "name": "p",
                    "labels": { INJECT: "true" }, "annotations": annotations,
                },
                "spec": { "initContainers": [{ "name": CONTAINER, "image": image }] },
            });
            sidecar_versions(&Installation::example(), &fleet, &[pod]).is_ok()
        };
        let injected = || json!({ STATUS: "{}" });
        assert!(is_well(injected(), &Installation::example().agent_image()));
        assert!(!is_well(injected(), "mirror/agent:own"));
        // One that was written by hand stays, whatever the pod asks for.
        assert!(is_well(json!({}), "mirror/agent:own"));
        assert!(!is_well(json!({}), "mirror/agent:9.0.0"));
    }
}
