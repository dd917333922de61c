//! Deadlines: whatever would end a job that runs, over all workers and WorkerClusters, and the
//! shortest of them. A node's own shutdown is not known to the API server, and not looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::api::ListParams;
use leasehold_types::duration;
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::fleet::{
    Fleet, Workload, by_workload, drain_deadline, everywhere, kind_of, place, some,
};
use super::manifests::text;
use super::report::{Finding, Problem, Report, patch};

/// Beyond the drain, for the agent's goodbye and the worker's own end: what the coordinator adds
/// where it makes the workload.
const BEYOND_DRAIN: Duration = Duration::from_secs(30);
/// Kubernetes' grace period of a pod that names none.
const GRACE_DEFAULT: Duration = Duration::from_secs(30);

/// A deadline, and where it is set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Deadline {
    after: Duration,
    place: String,
}

/// Looks at all deadlines.
pub(super) async fn look(cluster: &Cluster, fleet: &Fleet, report: &mut Report) {
    let (clusters, pods) = match (&fleet.clusters, &fleet.pods) {
        (Ok(clusters), Ok(pods)) => (clusters, pods),
        (Err(trouble), _) | (_, Err(trouble)) => {
            let check = "no deadline ends a job that could end by itself";
            report.tell(Finding::skipped("deadline-grace", check, trouble.text()));
            return;
        }
    };
    let mut all = Vec::new();
    report.tell(grace(fleet, clusters, pods, &mut all));
    report.tell(active(cluster, fleet, pods, &mut all).await);
    report.tell(shortest(all));
}

/// Whether every grace period covers the drain.
fn grace(fleet: &Fleet, clusters: &[Value], pods: &[Value], all: &mut Vec<Deadline>) -> Finding {
    let check = "every grace period covers its drain deadline";
    let mut finding = Finding::new("deadline-grace", check);
    let mut told = BTreeSet::new();
    for cluster in clusters {
        let drain = drain_deadline(cluster);
        let name = format!("{} {}", kind_of(cluster), place(cluster));
        all.push(Deadline { after: drain, place: format!("drain.deadline of {name}") });
        let template = &cluster["spec"]["template"]["spec"];
        let Some(own) = template["terminationGracePeriodSeconds"].as_u64() else { continue };
        let own = Duration::from_secs(own);
        let place = format!("terminationGracePeriodSeconds of {name}'s template");
        all.push(Deadline { after: own, place });
        if own < drain {
            let wrong = format!("{name}: its template {}", says(own, drain));
            finding.fail(Problem::new(wrong, "lengthen it").run(patch_cluster(cluster, drain)));
            told.insert(name);
        }
    }
    let workers = pods.iter().filter_map(|pod| Some((pod, fleet.cluster_of(pod)?)));
    let mut short: BTreeMap<(Workload, Duration), Vec<&Value>> = BTreeMap::new();
    let mut known = BTreeSet::new();
    for (pod, cluster) in workers {
        let own = grace_of(pod);
        let workload = Workload::of(pod);
        if known.insert((workload.clone(), own)) {
            let place = format!("terminationGracePeriodSeconds of {}", workload.words());
            all.push(Deadline { after: own, place });
        }
        // What is wrong with a cluster's template has been said.
        let is_told = is_made_by(&workload, cluster)
            && told.contains(&format!("{} {}", kind_of(cluster), place(cluster)));
        if own < drain_deadline(cluster) && !is_told {
            short.entry((workload, own)).or_default().push(pod);
        }
    }
    for ((workload, own), pods) in short {
        let Some(cluster) = fleet.cluster_of(pods[0]) else { continue };
        let drain = drain_deadline(cluster);
        let (which, what) = (workload.words(), some(&pods));
        let wrong = format!("{which}: {what} {}", says(own, drain));
        finding.fail(lengthen(wrong, &workload, cluster, drain));
    }
    finding
}

fn says(own: Duration, drain: Duration) -> String {
    format!(
        "has {} s to end (terminationGracePeriodSeconds), and a drain may take {} s \
         (drain.deadline): jobs that take longer are killed",
        own.as_secs(),
        drain.as_secs()
    )
}

fn grace_of(pod: &Value) -> Duration {
    let own = pod["spec"]["terminationGracePeriodSeconds"].as_u64();
    own.map_or(GRACE_DEFAULT, Duration::from_secs)
}

/// Whether a WorkerCluster or WorkerClass makes a workload, which then has its name.
fn is_made_by(workload: &Workload, cluster: &Value) -> bool {
    matches!(workload.kind.as_str(), "deployment" | "statefulset")
        && cluster["spec"]["template"].is_object()
        && cluster["metadata"]["name"] == *workload.name
}

/// How a workload gets a longer grace period.
fn lengthen(wrong: String, workload: &Workload, cluster: &Value, drain: Duration) -> Problem {
    let Workload { namespace, kind, name } = workload;
    let secs = (drain + BEYOND_DRAIN).as_secs();
    let mend = "lengthen it, which rolls its pods, or shorten the drain";
    match kind.as_str() {
        _ if is_made_by(workload, cluster) => {
            let mend = format!("lengthen it in the {}'s template", kind_of(cluster));
            Problem::new(wrong, mend).run(patch_cluster(cluster, drain))
        }
        "deployment" | "statefulset" | "daemonset" | "replicaset" | "replicationcontroller" => {
            let grace = json!({ "terminationGracePeriodSeconds": secs });
            let body = json!({ "spec": { "template": { "spec": grace } } });
            let object = format!("{kind}/{name} -n {namespace}");
            Problem::new(wrong, mend).run(patch(&object, "strategic", &body))
        }
        _ => {
            let mend = format!(
                "set terminationGracePeriodSeconds: {secs} in its manifest and make it anew: it \
                 cannot be changed"
            );
            Problem::new(wrong, mend)
        }
    }
}

fn patch_cluster(cluster: &Value, drain: Duration) -> String {
    let metadata = &cluster["metadata"];
    let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
    let secs = (drain + BEYOND_DRAIN).as_secs();
    let grace = json!({ "terminationGracePeriodSeconds": secs });
    let body = json!({ "spec": { "template": { "spec": grace } } });
    let kind = kind_of(cluster).to_lowercase();
    patch(&format!("{kind}/{name} -n {namespace}"), "merge", &body)
}

/// Whether no pod and no Job is ended by its age before a job could be drained.
async fn active(
    cluster: &Cluster,
    fleet: &Fleet,
    pods: &[Value],
    all: &mut Vec<Deadline>,
) -> Finding {
    let check = "no Job and no pod is ended by its age before a drain could be over";
    let mut finding = Finding::new("deadline-active", check);
    let workers = pods.iter().filter(|pod| fleet.cluster_of(pod).is_some());
    let by_workload = by_workload(workers);
    for (workload, pods) in &by_workload {
        for pod in pods {
            let Some(own) = pod["spec"]["activeDeadlineSeconds"].as_u64() else { continue };
            let own = Duration::from_secs(own);
            let place = format!("activeDeadlineSeconds of the pod {}", place(pod));
            all.push(Deadline { after: own, place: place.clone() });
            if let Some(drain) = fleet.cluster_of(pod).map(drain_deadline).filter(|it| own < *it) {
                let wrong = format!("{}: {place} {}", workload.words(), ages(own, drain));
                let mend = "take it out of the pod's manifest, or lengthen it";
                finding.fail(Problem::new(wrong, mend));
            }
        }
    }
    let of_jobs = by_workload.iter().filter(|(workload, _)| workload.kind == "job");
    let namespaces: BTreeSet<String> =
        of_jobs.clone().map(|(workload, _)| workload.namespace.clone()).collect();
    let namespaces: Vec<String> = namespaces.into_iter().collect();
    if namespaces.is_empty() {
        return finding;
    }
    let jobs = ("/apis/batch/v1", "jobs");
    let jobs = match everywhere(cluster, &namespaces, jobs, &ListParams::default()).await {
        Ok(jobs) => jobs,
        Err(trouble) => {
            finding.skip(trouble.text());
            return finding;
        }
    };
    for (Workload { namespace, name, .. }, pods) in of_jobs {
        let job = jobs.iter().find(|job| {
            let metadata = &job["metadata"];
            metadata["namespace"] == **namespace && metadata["name"] == **name
        });
        let Some(own) = job.and_then(|job| job["spec"]["activeDeadlineSeconds"].as_u64()) else {
            continue;
        };
        let own = Duration::from_secs(own);
        let place = format!("activeDeadlineSeconds of job/{name} in {namespace}");
        all.push(Deadline { after: own, place: place.clone() });
        if let Some(drain) = fleet.cluster_of(pods[0]).map(drain_deadline).filter(|it| own < *it) {
            let wrong = format!("{place} {}", ages(own, drain));
            let mend = "take it out, or lengthen it";
            let job = format!("job/{name} -n {namespace}");
            let body = json!({ "spec": { "activeDeadlineSeconds": null } });
            finding.fail(Problem::new(wrong, mend).run(patch(&job, "merge", &body)));
        }
    }
    finding
}

fn ages(own: Duration, drain: Duration) -> String {
    format!(
        "is {} s: it is ended then, whatever runs, sooner than a drain may take ({} s, \
         drain.deadline)",
        own.as_secs(),
        drain.as_secs()
    )
}

/// The shortest of all, said even where all is well.
fn shortest(all: Vec<Deadline>) -> Finding {
    let check = match all.into_iter().min() {
        Some(Deadline { after, place }) => {
            let after = duration::format(after);
            format!("the shortest deadline that ends a running job is {after}: {place}")
        }
        None => "there are no workers yet whose jobs a deadline could end".into(),
    };
    Finding::new("deadline-shortest", check)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(template: &Value) -> Value {
        json!({
            "metadata": { "namespace": "ci", "name": "builds" },
            "spec": { "drain": { "deadline": "10m" }, "template": template },
        })
    }

    fn pod(name: &str, seconds: u64) -> Value {
        json!({
            "metadata": {
                "namespace": "ci",
                "name": name,
                "labels": { "leasehold.dev/cluster": "builds" },
            },
            "spec": { "terminationGracePeriodSeconds": seconds },
        })
    }

    fn looked_at(cluster: Value, pods: Vec<Value>) -> (Finding, Finding) {
        let fleet = Fleet {
            clusters: Ok(vec![cluster.clone()]),
            pods: Ok(pods.clone()),
            namespaces: Vec::new(),
        };
        let mut all = Vec::new();
        let finding = grace(&fleet, &[cluster], &pods, &mut all);
        (finding, shortest(all))
    }

    #[test]
    fn the_shortest_deadline_is_named_even_where_all_is_well() {
        let (finding, shortest) = looked_at(cluster(&Value::Null), vec![pod("a", 630)]);
        assert!(finding.is_well() && shortest.is_well());
        let text = format!("{shortest:?}");
        assert!(text.contains("is 10m: drain.deadline of WorkerCluster ci/builds"), "{text}");
    }

    #[test]
    fn a_drain_just_fits_and_a_second_less_does_not() {
        assert!(looked_at(cluster(&Value::Null), vec![pod("a", 600)]).0.is_well());
        let (finding, shortest) = looked_at(cluster(&Value::Null), vec![pod("a", 599)]);
        assert!(!finding.is_well());
        let text = format!("{shortest:?}");
        assert!(text.contains("is 9m59s: terminationGracePeriodSeconds of pod/a in ci"), "{text}");
    }

    #[test]
    fn a_template_counts_without_any_pod() {
        let template = json!({ "spec": { "terminationGracePeriodSeconds": 60 } });
        let (finding, shortest) = looked_at(cluster(&template), Vec::new());
        assert!(!finding.is_well() && format!("{shortest:?}").contains("is 1m:"));
        let text = format!("{finding:?}");
        assert!(text.contains("workercluster/builds -n ci") && text.contains("630"), "{text}");
    }
}
