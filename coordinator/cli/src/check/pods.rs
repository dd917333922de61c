//! Workers: each has the sidecar that it asks for, of a version that the coordinator understands,
//! belongs to a cluster that there is, is connected, and cannot be evicted while it is busy.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use leasehold_injection::names::{CONFIG, CONTAINER};
use leasehold_kube_api::names::{BUSY_LABEL, CLUSTER_LABEL, TRUE, disruption_budget};
use serde_json::Value;

use super::cluster::Cluster;
use super::fleet::{
    Fleet, Workload, asks, by_workload, everywhere, is_injected, kind_of, place, sidecar, some,
};
use super::installation::Installation;
use super::manifests::{list, text};
use super::report::{Finding, Problem, Report};
use super::version::Version;

/// What [`well`] finds.
const WELL: &str = "the WorkerClusters and WorkerClasses are well";
/// A pod that is younger may still be connecting, a cluster waiting for its first status.
const YOUNG_SECS: i64 = 120;

/// Looks at all workers.
pub(super) async fn look(
    cluster: &Cluster,
    installation: &Installation,
    fleet: &Fleet,
    report: &mut Report,
) {
    let pods = match &fleet.pods {
        Ok(pods) => pods,
        Err(trouble) => {
            let check = "the workers' pods are known";
            let mut finding = Finding::skipped("pods", check, trouble.text());
            finding.note("name the namespaces that you may read: -n NAMESPACE");
            report.tell(finding);
            return;
        }
    };
    report.tell(with_sidecar(pods));
    report.tell(with_new_sidecar(installation, fleet, pods));
    report.tell(of_a_cluster(fleet, pods));
    match &fleet.clusters {
        Ok(clusters) => {
            let now = Timestamp::now().as_second();
            report.tell(connected(clusters, pods, now));
            report.tell(well(clusters, now));
            report.tell(kept(cluster, fleet, clusters).await);
        }
        Err(trouble) => {
            let check = WELL;
            report.tell(Finding::skipped("clusters", check, trouble.text()));
        }
    }
}

fn with_sidecar(pods: &[Value]) -> Finding {
    let check = "pods that ask for a sidecar have one";
    let mut finding = Finding::new("sidecars", check);
    let asking = pods.iter().filter(|pod| asks(pod));
    let count = asking.clone().count();
    for (workload, pods) in by_workload(asking.filter(|pod| sidecar(pod).is_none())) {
        let wrong = format!(
            "{}: {} asked for a sidecar and got none, so its jobs are in nobody's budget",
            workload.words(),
            some(&pods)
        );
        finding.fail(Problem::new(wrong, workload.renewal()).run(workload.renew(&pods)));
    }
    finding.note(format!("{count} pods ask for one"));
    finding
}

fn with_new_sidecar(installation: &Installation, fleet: &Fleet, pods: &[Value]) -> Finding {
    let check = "sidecars are what would be injected now";
    let mut finding = Finding::new("sidecar-versions", check);
    let ours = Version::of_image(&installation.image).or_else(Version::own);
    // Pods of one workload with one image are one problem.
    let mut old: BTreeMap<(Workload, &str, String), Vec<&Value>> = BTreeMap::new();
    for pod in pods {
        let Some(sidecar) = sidecar(pod) else { continue };
        let image = text(&sidecar["image"]);
        let wanted = wanted_image(installation, fleet, pod);
        let is_new = match is_injected(pod) {
            true => image == wanted,
            // A sidecar that was written by hand may come from anywhere.
            false => Version::of_image(image).is_none_or(|theirs| Some(theirs) == ours),
        };
        if !is_new {
            old.entry((Workload::of(pod), image, wanted)).or_default().push(pod);
        }
    }
    for ((workload, image, wanted), pods) in old {
        let theirs = Version::of_image(image);
        let is_understood = theirs.zip(ours).is_none_or(|(one, other)| one.understands(other));
        let beside = match is_understood {
            true => String::new(),
            false => {
                format!(", which the coordinator ({}) does not speak with", installation.image)
            }
        };
        let what = some(&pods);
        let wrong = format!(
            "{}: {what} with an old sidecar, {image}{beside}; now it would be {wanted}",
            workload.words()
        );
        let is_asked = pods.iter().all(|pod| is_injected(pod));
        let Workload { namespace, kind, name } = &workload;
        let problem = match is_asked || kind == "pod" {
            true => Problem::new(wrong, workload.renewal()).run(workload.renew(&pods)),
            false => Problem::new(wrong, "set the image in the workload's manifest").run(format!(
                "kubectl -n {namespace} set image {kind}/{name} {CONTAINER}={wanted}"
            )),
        };
        if is_understood { finding.warn(problem) } else { finding.fail(problem) }
    }
    finding
}

/// The image that a pod would get now: its own wish before its cluster's before the installation's.
fn wanted_image(installation: &Installation, fleet: &Fleet, pod: &Value) -> String {
    let own = pod["metadata"]["annotations"][format!("{CONFIG}image")].as_str();
    let clusters = fleet.cluster_of(pod).and_then(|it| it["spec"]["agent"]["image"].as_str());
    own.or(clusters).map_or_else(|| installation.agent_image(), str::to_owned)
}

fn of_a_cluster(fleet: &Fleet, pods: &[Value]) -> Finding {
    let check = "every worker's pod belongs to a WorkerCluster or a WorkerClass";
    let mut finding = Finding::new("pods-clusters", check);
    if let Err(trouble) = &fleet.clusters {
        finding.skip(trouble.text());
        return finding;
    }
    let lost = pods.iter().filter(|pod| fleet.cluster_of(pod).is_none());
    for (workload, pods) in by_workload(lost) {
        let namespace = &workload.namespace;
        let label = text(&pods[0]["metadata"]["labels"][CLUSTER_LABEL]);
        let (which, what) = (workload.words(), some(&pods));
        let wrong = match label {
            "" => format!("{which}: {what} without the label {CLUSTER_LABEL}"),
            name => format!(
                "{which}: {what} of {name}, and {namespace} has no WorkerCluster or WorkerClass of \
                 that name"
            ),
        };
        let mend = "name one of these in the label of the workload's template, or make one";
        let list = format!("kubectl -n {namespace} get workerclusters,workerclasses");
        finding.fail(Problem::new(wrong, mend).run(list));
    }
    finding
}

/// Whether workers are connected, as the leader says in the status of their clusters.
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
                "Lost" => "was connected, and is silent",
                "Unreported" => "has not reported to the present leader",
                "Pending" if !is_young => "has never connected, and is not new",
                _ => continue,
            };
            let namespace = text(namespace);
            let wrong = format!("the pod {namespace}/{name} of {} {why}", place(cluster));
            let mend = "see what its agent says";
            let logs = format!("kubectl -n {namespace} logs {name} -c {CONTAINER} --tail=20");
            finding.fail(Problem::new(wrong, mend).run(logs));
        }
    }
    finding.note(format!("{count} are"));
    finding
}

fn is_young(object: &Value, now: i64) -> bool {
    let made = text(&object["metadata"]["creationTimestamp"]).parse::<Timestamp>();
    made.is_ok_and(|made| now - made.as_second() < YOUNG_SECS)
}

/// Whether the leader finds nothing wrong with the clusters.
fn well(clusters: &[Value], now: i64) -> Finding {
    let mut finding = Finding::new("clusters", WELL);
    for cluster in clusters {
        let metadata = &cluster["metadata"];
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        let describe =
            format!("kubectl -n {namespace} describe {} {name}", kind_of(cluster).to_lowercase());
        if cluster["status"].is_null() && !is_young(cluster, now) {
            let wrong = format!(
                "{} {} has no status: nobody serves its namespace, or nobody leads",
                kind_of(cluster),
                place(cluster)
            );
            let mend = "see what the lines of the election say, and what the coordinator serves";
            finding.fail(Problem::new(wrong, mend).run(describe.clone()));
        }
        for condition in list(&cluster["status"]["conditions"]) {
            let aspect = text(&condition["type"]);
            if !matches!(aspect, "Degraded" | "Stalled") || condition["status"] != "True" {
                continue;
            }
            let (reason, message) = (text(&condition["reason"]), text(&condition["message"]));
            let wrong =
                format!("{} {} is {aspect}: {reason}: {message}", kind_of(cluster), place(cluster));
            finding.warn(Problem::new(wrong, "do what it says").run(describe.clone()));
        }
    }
    finding.note(format!("{} are there", clusters.len()));
    finding
}

/// Whether busy pods are kept from evictions.
async fn kept(cluster: &Cluster, fleet: &Fleet, clusters: &[Value]) -> Finding {
    let check = "busy pods are not evicted: each WorkerCluster and WorkerClass has its budget";
    let mut finding = Finding::new("busy-budgets", check);
    let budgets = ("/apis/policy/v1", "poddisruptionbudgets");
    let labelled = ListParams::default().labels(CLUSTER_LABEL);
    let budgets = match everywhere(cluster, &fleet.namespaces, budgets, &labelled).await {
        Ok(budgets) => budgets,
        Err(trouble) => {
            finding.skip(trouble.text());
            return finding;
        }
    };
    for cluster in clusters {
        let metadata = &cluster["metadata"];
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        let wanted = disruption_budget(name);
        let there = budgets.iter().find(|budget| {
            budget["metadata"]["namespace"] == namespace && budget["metadata"]["name"] == *wanted
        });
        let wrong = match there {
            None => format!("there is no PodDisruptionBudget {wanted} in {namespace}"),
            Some(budget) if !keeps(&budget["spec"], name) => {
                format!("PodDisruptionBudget {wanted} in {namespace} does not keep busy pods")
            }
            Some(_) => continue,
        };
        let selector = format!("{CLUSTER_LABEL}={name},{BUSY_LABEL}={TRUE}");
        let mend = "whoever leads makes it by itself, where it may; by hand";
        finding.fail(Problem::new(wrong, mend).run(format!(
            "kubectl create poddisruptionbudget {wanted} --max-unavailable=0 \
             --selector={selector} --dry-run=client -o yaml | kubectl label --local -f - \
             {CLUSTER_LABEL}={name} -o yaml | kubectl -n {namespace} apply --server-side \
             --force-conflicts -f -"
        )));
    }
    finding
}

fn keeps(budget: &Value, name: &str) -> bool {
    let labels = &budget["selector"]["matchLabels"];
    let selects = labels[CLUSTER_LABEL] == name && labels[BUSY_LABEL] == TRUE;
    let only = labels.as_object().is_some_and(|labels| labels.len() == 2);
    selects
        && only
        && matches!(&budget["maxUnavailable"], Value::Number(it) if it.as_u64() == Some(0))
}

#[cfg(test)]
mod tests {
    use leasehold_injection::names::{INJECT, STATUS};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_of_a_class_belongs_somewhere() {
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
        assert!(of_a_cluster(&fleet, &[pod("blue")]).is_well());
        let lost = of_a_cluster(&fleet, &[pod("green")]);
        let text = format!("{lost:?}");
        assert!(!lost.is_well() && text.contains("no WorkerCluster or WorkerClass"), "{text}");
        let text = format!("{:?}", well(&clusters, 0));
        assert!(text.contains("WorkerClass ci/blue is Degraded: R: m"), "{text}");
        assert!(text.contains("kubectl -n ci describe workerclass blue"), "{text}");
    }

    #[test]
    fn only_an_injected_sidecar_is_to_be_what_would_be_injected_now() {
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
            with_new_sidecar(&Installation::example(), &fleet, &[pod]).is_well()
        };
        let injected = || json!({ STATUS: "{}" });
        assert!(is_well(injected(), &Installation::example().agent_image()));
        assert!(!is_well(injected(), "mirror/agent:own"));
        // One that was written by hand stays, whatever the pod asks for.
        assert!(is_well(json!({}), "mirror/agent:own"));
        assert!(!is_well(json!({}), "mirror/agent:9.0.0"));
    }
}
