//! Monitors, by which the Prometheus operator has the coordinators and the agents scraped: some
//! select all of them, in their namespaces and at a port that they have. Where the cluster lacks
//! the operator's kinds, nothing is checked.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::ListParams;
use leasehold_injection::names::CONTAINER;
use leasehold_kube_api::names::CLUSTER_LABEL;
use leasehold_types::counted;
use serde_json::{Value, json};

use super::api::{ApiClient, ApiError};
use super::expected::{list, text};
use super::fleet::{Fleet, selects, sidecar};
use super::installation::Installation;
use super::monitor::{Fit, Monitor, MonitorKind, names_port, port_of};
use super::report::{Finding, Problem, Report, patch};

/// The group and version of the operator's kinds.
pub(super) const VERSION: &str = "monitoring.coreos.com/v1";
const CHECK: &str = "monitors have the coordinators and the agents scraped";
const COORDINATORS: (&str, &str) =
    ("coordinator-monitor", "one monitor has each coordinator scraped");
const AGENTS: (&str, &str) = ("agent-monitor", "a PodMonitor has each agent scraped");

/// Checks the monitors; returns whether the cluster has the operator's kinds.
pub(super) async fn look(
    api: &ApiClient,
    installation: &Installation,
    fleet: &Fleet,
    report: &mut Report,
) -> bool {
    match api.resources(VERSION).await {
        Ok(kinds) if kinds.iter().any(|kind| kind == "podmonitors") => {}
        Ok(_) => {
            let why = format!("the cluster lacks the Prometheus operator's kinds ({VERSION})");
            report.add(Finding::skipped("monitors", CHECK, why));
            return false;
        }
        Err(error) => {
            report.add(Finding::skipped("monitors", CHECK, error.text()));
            return false;
        }
    }
    match monitors(api).await {
        Ok(monitors) => {
            report.add(of_coordinators(api, installation, &monitors).await);
            report.add(of_agents(fleet, &monitors));
        }
        Err(error) => report.add(Finding::skipped("monitors", CHECK, error.text())),
    }
    true
}

/// The monitors of all namespaces.
async fn monitors(api: &ApiClient) -> Result<Vec<Monitor>, ApiError> {
    let mut all = Vec::new();
    for kind in [MonitorKind::Pods, MonitorKind::Services] {
        let folder = format!("/apis/{VERSION}/{}s", kind.name().to_lowercase());
        let objects = api.list(&folder, ListParams::default()).await?;
        all.extend(objects.into_iter().map(|object| Monitor { kind, object }));
    }
    Ok(all)
}

async fn of_coordinators(
    api: &ApiClient,
    installation: &Installation,
    monitors: &[Monitor],
) -> Finding {
    let folder = format!("/api/v1/namespaces/{}/services", installation.namespace);
    match api.list(&folder, ListParams::default()).await {
        Ok(services) => checked_coordinators(installation, &services, monitors),
        Err(error) => Finding::skipped(COORDINATORS.0, COORDINATORS.1, error.text()),
    }
}

fn checked_coordinators(
    installation: &Installation,
    services: &[Value],
    monitors: &[Monitor],
) -> Finding {
    let mut finding = Finding::new(COORDINATORS.0, COORDINATORS.1);
    let fits = monitors.iter().map(|monitor| {
        let (selects, finds) = match monitor.kind {
            MonitorKind::Pods => {
                let finds = |port| monitor.endpoints().any(|endpoint| names_port(endpoint, port));
                let finds = installation.metrics_port().is_some_and(finds);
                (monitor.selects(installation.pod_labels()), finds)
            }
            MonitorKind::Services => {
                let selected = services_of(installation, services)
                    .filter(|service| monitor.selects(&service["metadata"]["labels"]));
                let selected: Vec<&Value> = selected.collect();
                let finds = monitor.endpoints().any(|endpoint| {
                    let mut services = selected.iter();
                    services.any(|service| leads_to_metrics(endpoint, installation, service))
                });
                (!selected.is_empty(), finds)
            }
        };
        (monitor, monitor.fit(&installation.namespace, selects, finds))
    });
    let fits: Vec<(&Monitor, Fit)> = fits.collect();
    let with = |wanted: Fit| {
        let fits = fits.iter().filter(move |(_, fit)| *fit == wanted);
        fits.map(|(monitor, _)| *monitor).collect::<Vec<_>>()
    };
    match with(Fit::Scraped).as_slice() {
        [] => {}
        [one] => {
            finding.note(one.words());
            return finding;
        }
        [first, surplus @ ..] => {
            finding.warn(several(first, surplus));
            return finding;
        }
    }
    let is_meant = |monitor: &&Monitor| monitor.is_specific();
    for monitor in with(Fit::OtherNamespaces).into_iter().filter(is_meant) {
        let own = BTreeSet::from([installation.namespace.as_str()]);
        finding.warn(monitor.other_namespaces("the coordinators", &own));
    }
    for monitor in with(Fit::OtherPorts).into_iter().filter(is_meant) {
        finding.warn(without_metrics_port(installation, services, monitor));
    }
    if finding.is_ok() {
        let wrong = "no PodMonitor and no ServiceMonitor selects the coordinators";
        let fix = "apply the one of components/prometheus, or set monitoring.podMonitor.enabled of \
                   the chart";
        let apply = "kubectl apply -f deploy/components/prometheus/pod-monitor.yaml";
        finding.warn(Problem::new(wrong, fix).run(apply));
    }
    finding
}

/// More than one monitor has each coordinator scraped.
fn several(first: &Monitor, surplus: &[&Monitor]) -> Problem {
    let all = [&[first], surplus].concat();
    let names: Vec<String> = all.iter().map(|monitor| monitor.words()).collect();
    let wrong = format!(
        "{} each have the coordinators scraped: the alert LeaseholdIsNotRedundant counts a \
         replica as often",
        names.join(" and ")
    );
    let delete = surplus.iter().map(|monitor| format!("kubectl delete {}", monitor.argument()));
    delete.fold(Problem::new(wrong, "keep one of them"), Problem::run)
}

/// A monitor selects the coordinators, and another port than that of their metrics.
fn without_metrics_port(
    installation: &Installation,
    services: &[Value],
    monitor: &Monitor,
) -> Problem {
    let wrong = format!(
        "{} selects the coordinators, and none of its endpoints names the port of their metrics",
        monitor.words()
    );
    let port = match monitor.kind {
        MonitorKind::Pods => installation.metrics_port(),
        MonitorKind::Services => {
            let ports = services_of(installation, services)
                .flat_map(|service| list(&service["spec"]["ports"]));
            ports.into_iter().find(|port| is_metrics_port(&port["targetPort"], installation))
        }
    };
    match port.and_then(|port| port["name"].as_str()) {
        Some(name) => {
            let path = format!("/spec/{}/0/port", monitor.kind.endpoints());
            let body = json!([{ "op": "add", "path": path, "value": name }]);
            let command = patch(&monitor.argument(), "json", &body);
            Problem::new(wrong, format!("name it: {name}")).run(command)
        }
        None => {
            let number = installation.http_port();
            Problem::new(wrong, format!("give port {number} a name, and name it in the monitor"))
        }
    }
}

/// The Services that select the coordinators.
fn services_of<'a>(
    installation: &'a Installation,
    services: &'a [Value],
) -> impl Iterator<Item = &'a Value> {
    services.iter().filter(move |service| {
        let selector = &service["spec"]["selector"];
        // A Service without a selector selects no pod.
        selector.is_object()
            && selects(&json!({ "matchLabels": selector }), installation.pod_labels())
    })
}

/// Whether a port, by its name or number, is that of a coordinator's metrics.
fn is_metrics_port(port: &Value, installation: &Installation) -> bool {
    !port.is_null()
        && installation
            .metrics_port()
            .is_some_and(|metrics| *port == metrics["name"] || *port == metrics["containerPort"])
}

/// Whether an endpoint of a ServiceMonitor leads to the metrics of the coordinators of a Service.
fn leads_to_metrics(endpoint: &Value, installation: &Installation, service: &Value) -> bool {
    let name = &endpoint["port"];
    if name.is_null() || name == "" {
        return is_metrics_port(&endpoint["targetPort"], installation);
    }
    list(&service["spec"]["ports"])
        .any(|port| port["name"] == *name && is_metrics_port(&port["targetPort"], installation))
}

fn of_agents(fleet: &Fleet, monitors: &[Monitor]) -> Finding {
    let pods = match &fleet.pods {
        Ok(pods) => pods,
        Err(error) => return Finding::skipped(AGENTS.0, AGENTS.1, error.text()),
    };
    let agents: Vec<&Value> = pods.iter().filter(|pod| sidecar(pod).is_some()).collect();
    checked_agents(&agents, monitors)
}

fn checked_agents(agents: &[&Value], monitors: &[Monitor]) -> Finding {
    let mut finding = Finding::new(AGENTS.0, AGENTS.1);
    let monitors: Vec<&Monitor> =
        monitors.iter().filter(|monitor| monitor.kind == MonitorKind::Pods).collect();
    if agents.is_empty() {
        let example = json!({ "metadata": { "labels": { CLUSTER_LABEL: "example" } } });
        let fits = |monitor: &&&Monitor| {
            // In which namespaces agents will run is not known.
            matches!(fit_of_agent(monitor, &example), Fit::Scraped | Fit::OtherNamespaces)
        };
        match monitors.iter().find(fits) {
            Some(monitor) => finding.note(format!("{}; no agent runs", monitor.words())),
            None => finding.warn(no_agent_monitor("no PodMonitor is for agents")),
        }
        return finding;
    }
    let mut scraping = BTreeSet::new();
    // The namespaces of the agents that are missed, by the monitor that is closest to fit.
    let mut elsewhere: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
    let mut wrong_port = BTreeSet::new();
    let mut missed = BTreeSet::new();
    for pod in agents {
        let namespace = text(&pod["metadata"]["namespace"]);
        let find = |wanted: Fit| {
            monitors.iter().position(|monitor| {
                let is_meant = wanted == Fit::Scraped || monitor.is_specific();
                is_meant && fit_of_agent(monitor, pod) == wanted
            })
        };
        if let Some(monitor) = find(Fit::Scraped) {
            scraping.insert(monitors[monitor].words());
        } else if let Some(monitor) = find(Fit::OtherNamespaces) {
            elsewhere.entry(monitor).or_default().insert(namespace);
        } else if let Some(monitor) = find(Fit::OtherPorts) {
            wrong_port.insert(monitor);
        } else {
            missed.insert(namespace);
        }
    }
    for (monitor, namespaces) in elsewhere {
        finding.warn(monitors[monitor].other_namespaces("agents", &namespaces));
    }
    for monitor in wrong_port {
        let wrong = format!(
            "{} selects pods with agents, and none of its endpoints finds a port of the container \
             {CONTAINER}",
            monitors[monitor].words()
        );
        finding.warn(no_agent_monitor(wrong));
    }
    if !missed.is_empty() {
        let namespaces: Vec<&str> = missed.into_iter().collect();
        let wrong = format!("no PodMonitor selects the agents in {}", namespaces.join(", "));
        finding.warn(no_agent_monitor(wrong));
    }
    if finding.is_ok() {
        let monitors: Vec<String> = scraping.into_iter().collect();
        finding.note(format!("{}: {}", monitors.join(", "), counted(agents.len(), "agent")));
    }
    finding
}

/// The problem that agents are not scraped, which the shipped PodMonitor solves.
fn no_agent_monitor(wrong: impl Into<String>) -> Problem {
    let fix =
        "apply the one of components/prometheus, or set monitoring.agents.enabled of the chart";
    let apply = "kubectl apply -f deploy/components/prometheus/agent-monitor.yaml";
    Problem::new(wrong, fix).run(apply)
}

/// How a PodMonitor fits a pod with an agent.
fn fit_of_agent(monitor: &Monitor, pod: &Value) -> Fit {
    let metadata = &pod["metadata"];
    let selects = monitor.selects(&metadata["labels"]);
    let finds = monitor.endpoints().any(|endpoint| match port_of(endpoint) {
        Some(_) => sidecar(pod)
            .is_some_and(|sidecar| list(&sidecar["ports"]).any(|port| names_port(endpoint, port))),
        // A container without a port is found, too: rules that name it make its address.
        None => list(&endpoint["relabelings"])
            .any(|rule| rule["action"] != "drop" && text(&rule["regex"]).contains(CONTAINER)),
    });
    monitor.fit(text(&metadata["namespace"]), selects, finds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD_MONITOR: &str =
        include_str!("../../../../deploy/components/prometheus/pod-monitor.yaml");
    const AGENT_MONITOR: &str =
        include_str!("../../../../deploy/components/prometheus/agent-monitor.yaml");
    const SERVICE_MONITOR: &str =
        include_str!("../../../../deploy/components/service-monitor/service-monitor.yaml");
    const SERVICE: &str = include_str!("../../../../deploy/base/service.yaml");

    fn monitor(text: &str) -> Monitor {
        let object: Value = serde_yaml::from_str(text).unwrap();
        let kind = match object["kind"].as_str() {
            Some("PodMonitor") => MonitorKind::Pods,
            _ => MonitorKind::Services,
        };
        Monitor { kind, object }
    }

    fn changed(text: &str, change: impl FnOnce(&mut Value)) -> Monitor {
        let mut monitor = monitor(text);
        change(&mut monitor.object["spec"]);
        monitor
    }

    fn coordinators(monitors: &[Monitor]) -> Finding {
        let service = serde_yaml::from_str(SERVICE).unwrap();
        checked_coordinators(&Installation::example(), &[service], monitors)
    }

    /// An agent's pod in this namespace.
    fn agent(namespace: &str) -> Value {
        json!({
            "metadata": { "namespace": namespace, "name": "w-0", "labels": { CLUSTER_LABEL: "b" } },
            "spec": { "initContainers": [{ "name": CONTAINER }], "containers": [{}] },
        })
    }

    fn agents(namespaces: &[&str], monitors: &[Monitor]) -> Finding {
        let pods: Vec<Value> = namespaces.iter().map(|namespace| agent(namespace)).collect();
        checked_agents(&pods.iter().collect::<Vec<_>>(), monitors)
    }

    fn says(finding: &Finding, words: &[&str]) {
        let text = format!("{finding:?}");
        assert!(!finding.is_ok(), "{text}");
        words.iter().for_each(|word| assert!(text.contains(word), "{word}: {text}"));
    }

    /// A mesh's monitor of its own proxies, which selects nearly every pod.
    fn of_a_mesh() -> Monitor {
        changed(AGENT_MONITOR, |spec| {
            let key = json!({ "key": "mesh-ignore", "operator": "DoesNotExist" });
            spec["selector"] = json!({ "matchExpressions": [key] });
            let regex = json!({ "action": "keep", "regex": "mesh-proxy" });
            spec["podMetricsEndpoints"] = json!([{ "relabelings": [regex] }]);
        })
    }

    #[test]
    fn the_shipped_monitors_have_all_scraped() {
        for text in [POD_MONITOR, SERVICE_MONITOR] {
            let all = [of_a_mesh(), monitor(AGENT_MONITOR), monitor(text)];
            let finding = coordinators(&all);
            let noted = format!("{finding:?}");
            assert!(finding.is_ok() && noted.contains("leasehold-system/leasehold-coordinator"));
            for namespaces in [&[][..], &["a", "b"]] {
                let finding = agents(namespaces, &all);
                assert!(finding.is_ok(), "{finding:?}");
            }
        }
    }

    #[test]
    fn without_a_monitor_there_is_the_command_that_makes_it() {
        let none = "no PodMonitor and no ServiceMonitor selects the coordinators";
        let chart = "monitoring.podMonitor.enabled";
        for others in [vec![], vec![of_a_mesh(), monitor(AGENT_MONITOR)]] {
            says(&coordinators(&others), &[none, chart, "prometheus/pod-monitor.yaml"]);
        }
        let (chart, file) = ("monitoring.agents.enabled", "prometheus/agent-monitor.yaml");
        for others in [vec![], vec![of_a_mesh(), monitor(POD_MONITOR)]] {
            says(&agents(&[], &others), &["no PodMonitor is for agents", chart, file]);
            let none = "no PodMonitor selects the agents in a, b";
            says(&agents(&["b", "a"], &others), &[none, chart, file]);
        }
    }

    #[test]
    fn other_ports_and_namespaces_and_a_second_monitor_are_reported() {
        let port = "none of its endpoints names the port of their metrics";
        let other = changed(POD_MONITOR, |spec| {
            spec["podMetricsEndpoints"][0]["port"] = "metrics".into();
        });
        says(&coordinators(&[other]), &[port, "/spec/podMetricsEndpoints/0/port", "http-metrics"]);
        let grpc = changed(SERVICE_MONITOR, |spec| spec["endpoints"][0]["port"] = "grpc".into());
        says(&coordinators(&[grpc]), &[port, "/spec/endpoints/0/port", "http-metrics"]);
        for field in ["portNumber", "targetPort"] {
            let by_number = changed(POD_MONITOR, |spec| {
                spec["podMetricsEndpoints"][0] = json!({ field: 7401 });
            });
            assert!(coordinators(&[by_number]).is_ok(), "{field}");
        }
        let names = json!({ "matchNames": ["x"] });
        let elsewhere = changed(POD_MONITOR, |spec| spec["namespaceSelector"] = names.clone());
        let words = ["the namespaces x, and not in leasehold-system", "matchNames"];
        says(&coordinators(&[elsewhere]), &words);
        let both = [monitor(POD_MONITOR), monitor(SERVICE_MONITOR)];
        let delete = "kubectl delete servicemonitor/leasehold-coordinator";
        says(&coordinators(&both), &["LeaseholdIsNotRedundant", delete]);

        let elsewhere = changed(AGENT_MONITOR, |spec| spec["namespaceSelector"] = names);
        let finding = agents(&["a", "x", "b"], &[elsewhere]);
        says(&finding, &["selects agents in the namespaces x, and not in a, b", "matchNames"]);
        let named = changed(AGENT_MONITOR, |spec| {
            spec["podMetricsEndpoints"][0]["port"] = "health".into();
        });
        says(&agents(&["a"], &[named]), &["finds a port of the container leasehold-agent"]);
    }
}
