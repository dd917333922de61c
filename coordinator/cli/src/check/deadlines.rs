//! Deadlines that end a running job, of all workers, WorkerClusters and WorkerClasses, and the
//! shortest of them. The API server does not know a node's own shutdown grace period.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::api::ListParams;
use leasehold_types::duration;
use serde_json::{Value, json};

use super::api::ApiClient;
use super::fleet::{
    Fleet, Workload, by_workload, describe_pods, drain_deadline, kind_of, list_in, patch_template,
    place,
};
use super::report::{Finding, Problem, Report, patch};

/// Time after the drain for the agent and the worker to exit. The coordinator adds as much to the
/// workloads that it creates.
const BEYOND_DRAIN: Duration = Duration::from_secs(30);
/// Kubernetes' grace period of a pod that names none.
const GRACE_DEFAULT: Duration = Duration::from_secs(30);

/// A deadline, and where it is set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Deadline {
    after: Duration,
    place: String,
}

/// Checks all deadlines.
pub(super) async fn look(api: &ApiClient, fleet: &Fleet, report: &mut Report) {
    let (clusters, pods) = match (&fleet.clusters, &fleet.pods) {
        (Ok(clusters), Ok(pods)) => (clusters, pods),
        (Err(error), _) | (_, Err(error)) => {
            let check = "no deadline ends a job before its drain has ended";
            report.add(Finding::skipped("deadline-grace", check, error.text()));
            return;
        }
    };
    let mut all = Vec::new();
    report.add(grace(fleet, clusters, pods, &mut all));
    report.add(active(api, fleet, pods, &mut all).await);
    report.add(shortest(all));
}

/// Every grace period covers the drain.
fn grace(fleet: &Fleet, clusters: &[Value], pods: &[Value], all: &mut Vec<Deadline>) -> Finding {
    let check = "every grace period covers its drain deadline";
    let mut finding = Finding::new("deadline-grace", check);
    let mut reported = BTreeSet::new();
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
            let wrong = format!("{name}: its template {}", too_short(own, drain));
            finding.fail(
                Problem::new(wrong, "lengthen it")
                    .run(patch_template(cluster, &long_enough(drain))),
            );
            reported.insert(name);
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
        // A problem of a cluster's template is reported once, with the template.
        let is_reported = workload.is_created_for(cluster)
            && reported.contains(&format!("{} {}", kind_of(cluster), place(cluster)));
        if own < drain_deadline(cluster) && !is_reported {
            short.entry((workload, own)).or_default().push(pod);
        }
    }
    for ((workload, own), pods) in short {
        let Some(cluster) = fleet.cluster_of(pods[0]) else { continue };
        let drain = drain_deadline(cluster);
        let (which, what) = (workload.words(), describe_pods(&pods));
        let wrong = format!("{which}: {what} {}", too_short(own, drain));
        finding.fail(lengthen(wrong, &workload, cluster, drain));
    }
    finding
}

fn too_short(own: Duration, drain: Duration) -> String {
    format!(
        "has {} s to end (terminationGracePeriodSeconds), but a drain may take {} s \
         (drain.deadline): jobs that take longer are killed",
        own.as_secs(),
        drain.as_secs()
    )
}

fn grace_of(pod: &Value) -> Duration {
    let own = pod["spec"]["terminationGracePeriodSeconds"].as_u64();
    own.map_or(GRACE_DEFAULT, Duration::from_secs)
}

/// The problem of a short grace period, with the command that lengthens it.
fn lengthen(wrong: String, workload: &Workload, cluster: &Value, drain: Duration) -> Problem {
    if workload.is_created_for(cluster) {
        let fix = format!("lengthen it in the {}'s template", kind_of(cluster));
        return Problem::new(wrong, fix).run(patch_template(cluster, &long_enough(drain)));
    }
    match workload.patch_template(&long_enough(drain)) {
        Some(command) => {
            let fix = "lengthen it, which restarts its pods, or shorten drain.deadline";
            Problem::new(wrong, fix).run(command)
        }
        None => {
            let secs = (drain + BEYOND_DRAIN).as_secs();
            let fix = format!(
                "set terminationGracePeriodSeconds: {secs} in its manifest and create it again: \
                 the field is immutable"
            );
            Problem::new(wrong, fix)
        }
    }
}

/// The part of a pod template with a grace period that covers the drain.
fn long_enough(drain: Duration) -> Value {
    let secs = (drain + BEYOND_DRAIN).as_secs();
    json!({ "spec": { "terminationGracePeriodSeconds": secs } })
}

/// No `activeDeadlineSeconds` of a pod or Job is shorter than the drain.
async fn active(
    api: &ApiClient,
    fleet: &Fleet,
    pods: &[Value],
    all: &mut Vec<Deadline>,
) -> Finding {
    let check = "no activeDeadlineSeconds is shorter than the drain deadline";
    let mut finding = Finding::new("deadline-active", check);
    let workers = pods.iter().filter(|pod| fleet.cluster_of(pod).is_some());
    let by_workload = by_workload(workers);
    for (workload, pods) in &by_workload {
        for pod in pods {
            let Some(own) = pod["spec"]["activeDeadlineSeconds"].as_u64() else { continue };
            let own = Duration::from_secs(own);
            let place = format!("activeDeadlineSeconds of the pod {}", place(pod));
            all.push(Deadline { after: own, place: place.clone() });
            if let Some(drain) =
                fleet.cluster_of(pod).map(drain_deadline).filter(|deadline| own < *deadline)
            {
                let wrong = format!("{}: {place} {}", workload.words(), ends_too_early(own, drain));
                let fix = "remove it from the pod's manifest, or lengthen it";
                finding.fail(Problem::new(wrong, fix));
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
    let jobs = match list_in(api, &namespaces, jobs, &ListParams::default()).await {
        Ok(jobs) => jobs,
        Err(error) => {
            finding.skip(error.text());
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
        if let Some(drain) =
            fleet.cluster_of(pods[0]).map(drain_deadline).filter(|deadline| own < *deadline)
        {
            let wrong = format!("{place} {}", ends_too_early(own, drain));
            let fix = "remove it, or lengthen it";
            let job = format!("job/{name} -n {namespace}");
            let body = json!({ "spec": { "activeDeadlineSeconds": null } });
            finding.fail(Problem::new(wrong, fix).run(patch(&job, "merge", &body)));
        }
    }
    finding
}

fn ends_too_early(own: Duration, drain: Duration) -> String {
    format!(
        "is {} s, which is shorter than a drain may take ({} s, drain.deadline): running jobs \
         are killed",
        own.as_secs(),
        drain.as_secs()
    )
}

/// The shortest deadline; it is shown even if nothing is wrong.
fn shortest(all: Vec<Deadline>) -> Finding {
    let check = match all.into_iter().min() {
        Some(Deadline { after, place }) => {
            let after = duration::format(after);
            format!("the shortest deadline that ends a running job is {after}: {place}")
        }
        None => "there are no workers yet, so no deadline ends a job".into(),
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
    fn names_the_shortest_deadline_even_if_all_are_ok() {
        let (finding, shortest) = looked_at(cluster(&Value::Null), vec![pod("a", 630)]);
        assert!(finding.is_ok() && shortest.is_ok());
        let text = format!("{shortest:?}");
        assert!(text.contains("is 10m: drain.deadline of WorkerCluster ci/builds"), "{text}");
    }

    #[test]
    fn accepts_a_drain_that_just_fits_and_rejects_one_second_less() {
        assert!(looked_at(cluster(&Value::Null), vec![pod("a", 600)]).0.is_ok());
        let (finding, shortest) = looked_at(cluster(&Value::Null), vec![pod("a", 599)]);
        assert!(!finding.is_ok());
        let text = format!("{shortest:?}");
        assert!(text.contains("is 9m59s: terminationGracePeriodSeconds of pod/a in ci"), "{text}");
    }

    #[test]
    fn checks_a_template_without_pods() {
        let template = json!({ "spec": { "terminationGracePeriodSeconds": 60 } });
        let (finding, shortest) = looked_at(cluster(&template), Vec::new());
        assert!(!finding.is_ok() && format!("{shortest:?}").contains("is 1m:"));
        let text = format!("{finding:?}");
        assert!(text.contains("workercluster/builds -n ci") && text.contains("630"), "{text}");
    }
}
