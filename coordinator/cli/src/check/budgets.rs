//! The users' PodDisruptionBudgets: at most one for a worker's pod, and one that lets a pod go at
//! some time. Otherwise `kubectl drain` of its node never ends.

use std::collections::BTreeMap;

use kube::api::ListParams;
use serde_json::{Value, json};

use super::api::ApiClient;
use super::expected::text;
use super::fleet::{Fleet, describe_pods, list_in, place, selects};
use super::report::{Finding, Problem, Report, patch};

const CHECK: &str = "PodDisruptionBudgets let the workers' pods be evicted";

/// Checks the budgets of all workers.
pub(super) async fn look(api: &ApiClient, fleet: &Fleet, report: &mut Report) {
    let Ok(pods) = &fleet.pods else { return };
    let kind = ("/apis/policy/v1", "poddisruptionbudgets");
    let budgets = list_in(api, &fleet.namespaces, kind, &ListParams::default()).await;
    report.add(match budgets {
        Ok(budgets) => checked(&budgets, pods),
        Err(error) => Finding::skipped("budgets", CHECK, error.text()),
    });
}

fn checked(budgets: &[Value], pods: &[Value]) -> Finding {
    let mut finding = Finding::new("budgets", CHECK);
    let mut pods_of: BTreeMap<Vec<String>, Vec<&Value>> = BTreeMap::new();
    for pod in pods {
        let names: Vec<_> =
            budgets.iter().filter(|budget| is_for(budget, pod)).map(place).collect();
        if !names.is_empty() {
            pods_of.entry(names).or_default().push(pod);
        }
    }
    for (names, pods) in pods_of.iter().filter(|(names, _)| names.len() > 1) {
        let wrong = format!(
            "several PodDisruptionBudgets ({}) select {}: the API server evicts no such pod",
            names.join(", "),
            describe_pods(pods)
        );
        let surplus = names.iter().skip(1).map(|name| format!("kubectl delete {}", object(name)));
        let problem = Problem::new(wrong, "keep one of them");
        finding.warn(surplus.fold(problem, Problem::run));
    }
    let used = budgets.iter().filter(|budget| {
        let name = place(budget);
        pods_of.keys().any(|names| names.contains(&name))
    });
    for budget in used.filter(|budget| allows_nothing(&budget["spec"])) {
        let name = place(budget);
        let wrong = format!("PodDisruptionBudget {name} allows no eviction at any time");
        let fix = "allow one pod at a time: evictions wait for a worker's jobs all the same";
        let body = json!({ "spec": { "minAvailable": null, "maxUnavailable": 1 } });
        finding.warn(Problem::new(wrong, fix).run(patch(&object(&name), "merge", &body)));
    }
    finding
}

/// Whether the budget selects the pod.
fn is_for(budget: &Value, pod: &Value) -> bool {
    budget["metadata"]["namespace"] == pod["metadata"]["namespace"]
        && selects(&budget["spec"]["selector"], &pod["metadata"]["labels"])
}

fn allows_nothing(spec: &Value) -> bool {
    let is = |field: &str, number: u64, share: &str| {
        spec[field] == number || text(&spec[field]) == share
    };
    // The API server takes 0 or "0%" as it is, and rounds no other share down to it.
    is("maxUnavailable", 0, "0%") || text(&spec["minAvailable"]) == "100%"
}

/// The budget at this place, as kubectl takes it.
fn object(place: &str) -> String {
    let (namespace, name) = place.split_once('/').unwrap_or(("default", place));
    format!("poddisruptionbudget/{name} --namespace={namespace}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(name: &str, spec: Value) -> Value {
        json!({ "metadata": { "namespace": "a", "name": name }, "spec": spec })
    }

    fn pod(namespace: &str, labels: Value) -> Value {
        json!({ "metadata": { "namespace": namespace, "name": "w-0", "labels": labels } })
    }

    #[test]
    fn a_budget_is_for_the_pods_of_its_namespace_that_its_selector_matches() {
        let of_app = budget("x", json!({ "selector": { "matchLabels": { "app": "w" } } }));
        assert!(is_for(&of_app, &pod("a", json!({ "app": "w", "more": "1" }))));
        assert!(!is_for(&of_app, &pod("a", json!({ "app": "v" }))));
        assert!(!is_for(&of_app, &pod("b", json!({ "app": "w" }))));
        let of_all = budget("x", json!({ "selector": {} }));
        assert!(is_for(&of_all, &pod("a", json!({}))));
        assert!(!is_for(&budget("x", json!({})), &pod("a", json!({}))), "no selector: no pod");
        let in_list = json!([{ "key": "app", "operator": "In", "values": ["v", "w"] }]);
        let of_list = budget("x", json!({ "selector": { "matchExpressions": in_list } }));
        assert!(is_for(&of_list, &pod("a", json!({ "app": "w" }))));
        assert!(!is_for(&of_list, &pod("a", json!({ "app": "x" }))));
    }

    #[test]
    fn a_second_budget_and_one_that_allows_nothing_are_reported() {
        let pods = [pod("a", json!({ "app": "w" }))];
        let one = |name: &str, allows: Value| {
            let mut spec = allows;
            spec["selector"] = json!({ "matchLabels": { "app": "w" } });
            budget(name, spec)
        };
        let good = one("good", json!({ "maxUnavailable": 1 }));
        assert!(checked(std::slice::from_ref(&good), &pods).is_ok());
        assert!(checked(&[], &pods).is_ok());
        assert!(
            !checked(&[good.clone(), one("second", json!({ "maxUnavailable": 1 }))], &pods).is_ok()
        );
        for nothing in [
            json!({ "maxUnavailable": 0 }),
            json!({ "maxUnavailable": "0%" }),
            json!({ "minAvailable": "100%" }),
        ] {
            assert!(!checked(&[one("nothing", nothing)], &pods).is_ok());
        }
        let of_others = json!({ "matchLabels": { "app": "x" } });
        let other = budget("other", json!({ "maxUnavailable": 0, "selector": of_others }));
        assert!(checked(&[good, other], &pods).is_ok(), "it is for no worker");
    }
}
