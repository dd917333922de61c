//! Monitors and alerts for the Prometheus operator, whose kinds are there.

use serde_json::json;
use tests::kube::Access;
use tests::process::eventually;
use tests::toolbox;

use super::super::deploy::stand_ins;
use super::super::installed::{ExclusiveControlPlane, HOME};
use super::fixture::{CheckFixture, Fault, check, until_all_is_well};
use super::installation::is_documented;

/// The coordinators' PodMonitor, and the PrometheusRule.
const COORDINATOR: &str = "leasehold-coordinator";

fn warns<'a>(line: &'a str, says: &'a [&'a str]) -> Fault<'a> {
    Fault { line, result: "warn", says }
}

fn patch(access: &Access, object: &str, kind: &str, patch: &serde_json::Value) {
    let (kind, patch) = (format!("--type={kind}"), patch.to_string());
    access.kubectl(&["--namespace", HOME, "patch", object, &kind, "--patch", &patch]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_reports_monitors_and_alerts_that_are_missing_or_miss_pods() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    let fixture = CheckFixture::set(access).await;
    // Without the operator's kinds there is nothing to look at.
    let found = check(access, &[]);
    assert_eq!(found.line("monitors")["result"], "skip", "{:#}", found.report);

    let stand_ins = stand_ins(access);
    eventually("the operator's kinds", || {
        check(access, &[]).lines().any(|line| line["id"] == "alerts").then_some(())
    });
    let workers = format!("no PodMonitor selects the agents in {}", &*fixture.namespace);
    for (line, says) in [
        ("coordinator-monitor", "no PodMonitor and no ServiceMonitor selects the coordinators"),
        ("agent-monitor", workers.as_str()),
        ("alerts", "no PrometheusRule has an alert of Leasehold"),
    ] {
        warns(line, &[says]).comes_and_goes(access);
    }
    until_all_is_well(access);
    let found = check(access, &[]);
    assert_eq!(found.that("warn"), Vec::<&str>::new(), "{:#}", found.report);
    is_documented(&found);
    coordinators(access);
    agents(access, &fixture.namespace);
    alerts(access);
    drop(stand_ins);
    fixture.end().await;
}

fn coordinators(access: &Access) {
    let monitor = format!("podmonitor/{COORDINATOR}");
    let port = "/spec/podMetricsEndpoints/0/port";
    let other = json!([{ "op": "replace", "path": port, "value": "metrics" }]);
    patch(access, &monitor, "json", &other);
    let says = &["selects the coordinators, and none of its endpoints names the port"];
    warns("coordinator-monitor", says).comes_and_goes(access);

    let elsewhere = json!({ "spec": { "namespaceSelector": { "matchNames": ["default"] } } });
    patch(access, &monitor, "merge", &elsewhere);
    let says = &["in the namespaces default, and not in leasehold-system"];
    warns("coordinator-monitor", says).comes_and_goes(access);

    let second = "deploy/components/service-monitor/service-monitor.yaml";
    let second = toolbox::root().join(second);
    access.kubectl(&["apply", "-f", second.to_str().expect("UTF-8")]);
    let says = &["PodMonitor leasehold-system/", "ServiceMonitor leasehold-system/", "each have"];
    warns("coordinator-monitor", says).comes_and_goes(access);
}

fn agents(access: &Access, workers: &str) {
    let monitor = "podmonitor/leasehold-agent";
    let selector = json!({ "any": null, "matchNames": ["default"] });
    patch(access, monitor, "merge", &json!({ "spec": { "namespaceSelector": selector } }));
    let says = format!("selects agents in the namespaces default, and not in {workers}");
    warns("agent-monitor", &[&says]).comes_and_goes(access);

    let port = "/spec/podMetricsEndpoints/0/port";
    let named = json!([{ "op": "add", "path": port, "value": "health" }]);
    patch(access, monitor, "json", &named);
    let says = &["none of its endpoints finds a port of the container leasehold-agent"];
    warns("agent-monitor", says).comes_and_goes(access);
}

fn alerts(access: &Access) {
    let rule = format!("prometheusrule/{COORDINATOR}");
    let rules = "/spec/groups/0/rules";
    let older = json!([
        { "op": "remove", "path": format!("{rules}/1") },
        { "op": "replace", "path": format!("{rules}/0/expr"), "value": "leasehold_leader < 1" },
    ]);
    patch(access, &rule, "json", &older);
    let says =
        &["lacks LeaseholdIsNotRedundant:", "has another expression for LeaseholdHasNoLeader:"];
    warns("alerts", says).comes_and_goes(access);
}
