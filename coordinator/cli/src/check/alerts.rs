//! The alerts: PrometheusRules have those of this version.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::ListParams;
use serde_json::Value;

use super::api::ApiClient;
use super::expected::{list, text};
use super::fleet::place;
use super::installation::OWN_VERSION;
use super::monitors::VERSION;
use super::report::{Finding, Problem, Report};

/// The PrometheusRule of this version.
const OWN: &str = include_str!("../../../../deploy/components/prometheus/alerts.yaml");
const APPLY: &str = "kubectl apply -f deploy/components/prometheus/alerts.yaml";

/// Checks the PrometheusRules of all namespaces.
pub(super) async fn look(api: &ApiClient, report: &mut Report) {
    let folder = format!("/apis/{VERSION}/prometheusrules");
    report.add(match api.list(&folder, ListParams::default()).await {
        Ok(rules) => checked(&rules),
        Err(error) => Finding::skipped("alerts", &check(), error.text()),
    });
}

fn check() -> String {
    format!("a PrometheusRule has the alerts of version {OWN_VERSION}")
}

/// The PrometheusRule of this version.
fn own() -> Value {
    serde_yaml::from_str(OWN).expect("the manifests of deploy/ are YAML, as a test says")
}

fn checked(rules: &[Value]) -> Finding {
    let mut finding = Finding::new("alerts", check());
    let own = own();
    let wanted = alerts(&own);
    let mut places = BTreeSet::new();
    let mut found: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for rule in rules {
        for (alert, expression) in alerts(rule) {
            if wanted.contains_key(alert) {
                places.insert(place(rule));
                found.entry(alert).or_default().insert(expression);
            }
        }
    }
    if found.is_empty() {
        let wrong = "no PrometheusRule has an alert of Leasehold";
        let fix =
            "apply the one of components/prometheus, or set monitoring.alerts.enabled of the chart";
        finding.warn(Problem::new(wrong, fix).run(APPLY));
        return finding;
    }
    let places = places.into_iter().collect::<Vec<_>>().join(", ");
    let (mut missing, mut differing) = (Vec::new(), Vec::new());
    for (alert, expression) in &wanted {
        match found.get(alert) {
            None => missing.push(*alert),
            Some(found) if found.iter().any(|other| other != expression) => {
                differing.push(*alert);
            }
            Some(_) => {}
        }
    }
    if !missing.is_empty() {
        finding.warn(other_version(&places, &format!("lacks {}", missing.join(", "))));
    }
    if !differing.is_empty() {
        let what = format!("has another expression for {}", differing.join(", "));
        finding.warn(other_version(&places, &what));
    }
    finding.note(format!("PrometheusRule {places}"));
    finding
}

fn other_version(places: &str, what: &str) -> Problem {
    let wrong = format!("PrometheusRule {places} {what}: it is of another version, or was edited");
    Problem::new(wrong, "apply this version's, or upgrade the chart").run(APPLY)
}

/// The alerts of a PrometheusRule, each with its expression.
fn alerts(rule: &Value) -> BTreeMap<&str, String> {
    let rules = list(&rule["spec"]["groups"]).flat_map(|group| list(&group["rules"]));
    let alerts = rules.filter_map(|rule| {
        // White space between the parts of an expression means nothing.
        let expression: Vec<&str> = text(&rule["expr"]).split_whitespace().collect();
        Some((rule["alert"].as_str()?, expression.join(" ")))
    });
    alerts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_that_are_missing_or_differ_are_named() {
        let own = own();
        assert!(alerts(&own).len() > 10);
        assert!(checked(std::slice::from_ref(&own)).is_ok());
        let none = format!("{:?}", checked(&[]));
        assert!(none.contains("no PrometheusRule") && none.contains(APPLY), "{none}");

        let mut wrapped = own.clone();
        let expression = "max(leasehold_leader)  < 1\n or absent(leasehold_leader)";
        wrapped["spec"]["groups"][0]["rules"][0]["expr"] = expression.into();
        assert!(checked(&[wrapped]).is_ok());

        let mut older = own.clone();
        let rules = older["spec"]["groups"][0]["rules"].as_array_mut().unwrap();
        rules[0]["expr"] = "max(leasehold_leader) < 1".into();
        rules.remove(1);
        let finding = checked(std::slice::from_ref(&older));
        let said = format!("{finding:?}");
        assert!(!finding.is_ok());
        assert!(!checked(&[older, own]).is_ok(), "an older rule beside this version's");
        for words in [
            "lacks LeaseholdIsNotRedundant:",
            "has another expression for LeaseholdHasNoLeader:",
            "leasehold-system/leasehold-coordinator",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
}
