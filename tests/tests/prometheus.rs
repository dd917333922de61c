//! The shipped alerts and both programs' metrics, read by a real Prometheus.

#[path = "prometheus/agent_alerts.rs"]
mod agent_alerts;
#[path = "prometheus/dashboards.rs"]
mod dashboards;
#[path = "prometheus/exported.rs"]
mod exported;
#[path = "prometheus/histograms.rs"]
mod histograms;
#[path = "prometheus/planted.rs"]
mod planted;

use std::path::Path;
use std::process::Output;

use serde_json::Value;
use tests::process::{Coordinator, eventually, free_address};
use tests::prometheus::{Prometheus, Target, alerts, promtool, rules, write_rules};
use tests::{runbooks, toolbox};

/// Situations, and which alerts fire in each.
const SITUATIONS: &str = "tests/tests/prometheus/situations.yaml";

const MANIFESTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 4, maxJobsPerWorker: 2, lease: {ttl: 1s}}
";

/// What promtool says of the situations, with the rules in `folder`.
fn judge(folder: &Path) -> Option<Output> {
    let mut promtool = promtool("the test of the alerts")?;
    let situations = folder.join("situations.yaml");
    std::fs::copy(toolbox::root().join(SITUATIONS), &situations).expect("a copy");
    Some(promtool.args(["test", "rules"]).arg(situations).output().expect("promtool starts"))
}

#[test]
fn every_alert_fires_in_its_situation_after_its_time_and_in_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    write_rules(folder.path(), |_| ());
    let Some(output) = judge(folder.path()) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool: {said}");

    let situations = std::fs::read_to_string(toolbox::root().join(SITUATIONS)).expect("a file");
    let situations: Value = serde_yaml::from_str(&situations).expect("YAML");
    let cases = situations["tests"].as_array().expect("tests").iter();
    let cases = cases.flat_map(|case| case["alert_rule_test"].as_array().expect("cases"));
    let cases: Vec<(&str, bool)> = cases
        .map(|case| {
            let name = case["alertname"].as_str().expect("a name");
            (name, case["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty()))
        })
        .collect();
    for alert in alerts() {
        for fires in [true, false] {
            assert!(cases.contains(&(alert.as_str(), fires)), "{alert}: a case, fires = {fires}");
        }
    }
}

#[test]
fn an_alert_that_does_not_fire_in_its_situation_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    write_rules(folder.path(), |rule| {
        if rule["alert"] == "LeaseholdHasNoLeader" {
            rule["expr"] = "max(leasehold_leader) > 1".into();
        }
    });
    let Some(output) = judge(folder.path()) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("LeaseholdHasNoLeader"), "{said}");
}

/// Each alert names its page, and each page with the name of an alert its alert. Other pages are
/// about situations that no alert names.
#[test]
fn every_alert_has_a_runbook() {
    let mut alerts = alerts();
    for (rule, name) in rules().iter().zip(&alerts) {
        assert_eq!(rule["annotations"]["runbook"], format!("docs/runbooks/{name}.md"), "{name}");
    }
    let pages = runbooks::pages().into_iter();
    let mut pages: Vec<_> =
        pages.filter_map(|(name, _)| name.strip_suffix(".md").map(str::to_owned)).collect();
    // Others are about situations without an alert. That each is in the index is tested with its
    // commands.
    pages.retain(|name| name.starts_with("Leasehold"));
    alerts.sort();
    assert_eq!(pages, alerts);
}

/// The alerts of this test wait for no time: how long each waits is in the situations.
#[test]
fn prometheus_scrapes_both_programs_and_alerts_of_what_happens_to_them() {
    let coordinator = Coordinator::start(&[("builds.yaml", MANIFESTS)]);
    let health = free_address();
    let mut agent = coordinator.agent("builds", "w-0", &["--health-listen", &health.to_string()]);
    let targets = [
        Target { pod: "coordinator-0", address: coordinator.http },
        Target { pod: "w-0", address: health },
    ];
    let what = "the test of Prometheus' scrapes";
    let Some(prometheus) = Prometheus::start(what, &targets) else { return };

    eventually("both targets up", || {
        let targets = prometheus.targets();
        (targets.iter().filter(|target| target["health"] == "up").count() == 2).then_some(())
    });
    eventually("the leader", || (prometheus.value("leasehold_leader")? == "1").then_some(()));
    eventually("the agent", || {
        (prometheus.value("leasehold_agent_connected")? == "1").then_some(())
    });
    let rules = eventually("an evaluation of every rule", || {
        let rules = prometheus.rules();
        let are_read = rules.iter().all(|rule| rule["health"] != "unknown");
        (rules.len() == alerts().len() && are_read).then_some(rules)
    });
    for rule in &rules {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    // It fires until the first scrape.
    eventually("no alert of the leader", || {
        prometheus.firing("LeaseholdHasNoLeader").is_none().then_some(())
    });

    let manifests = coordinator.folder().join("manifests");
    std::fs::write(manifests.join("typing.yaml"), "kind: WorkerCluster\n").expect("a manifest");
    eventually("the alert of the manifest", || prometheus.firing("LeaseholdRefusesObjects"));

    agent.process.kill();
    let lost = eventually("the alert of the worker", || prometheus.firing("LeaseholdWorkersLost"));
    assert_eq!(lost["labels"]["cluster"], "builds", "{lost}");
    let summary = "1 workers of builds are silent, and hold slots.";
    assert_eq!(lost["annotations"]["summary"], summary);

    coordinator.process.signal(rustix::process::Signal::KILL);
    eventually("the alert of the leader", || prometheus.firing("LeaseholdHasNoLeader"));
}
