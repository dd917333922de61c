//! The shipped monitors beside a real node: by them alone a real Prometheus finds every coordinator
//! and every agent, with labels that join both and that the alerts name.

use std::collections::BTreeMap;
use std::path::Path;

use leasehold_release::Program;
use serde_json::{Value, json};
use tests::kube::{Access, RealInstallation, TestNamespace, list, names, object};
use tests::process::{eventually, until_ok};
use tests::prometheus::{Prometheus, alerts, rules};

use super::super::deploy::{kustomization, render};
use super::super::installed::{HOME, coordinator_pods};
use super::super::life::{cluster, deployment};
use super::scrape_configs::scrape_configs;

const OVERLAY: &str = "../../deploy/overlays/dev";
const AGENT: &str = "leasehold-agent";
const HEALTH_LISTEN: &str = "config.leasehold.dev/health-listen";
/// The agent of this pod listens where nobody else reaches it.
const UNREACHABLE: &str = "loopback";
/// The agent of this pod dials nobody.
const BY_HAND: &str = "by-hand";

const CANNOT_WRITE: &str = "LeaseholdAgentCannotWriteItsJournal";
const DISCONNECTED: &str = "LeaseholdAgentDisconnected";

#[test]
fn a_prometheus_finds_every_coordinator_and_every_agent_by_the_shipped_monitors() {
    let two = "replicas:\n  - name: leasehold-coordinator\n    count: 2\n";
    let overlay = kustomization(OVERLAY, &[], two);
    let Some(installation) = RealInstallation::start_with(1, overlay.path(), |_| ()) else {
        return;
    };
    let access = installation.cluster().access();
    let namespace = installation.namespace("scraped");
    start_workers(&namespace);
    let folder = tempfile::tempdir().expect("a folder");
    let reader = reader(access, &folder.path().join("kubeconfig"));

    let coordinators = sorted(names(&coordinator_pods(access)));
    assert_eq!(coordinators.len(), 2, "{coordinators:?}");
    let agents = names(&namespace.pods()).into_iter().filter(|pod| pod != UNREACHABLE);
    let agents = sorted(agents.collect());
    assert_eq!(agents.len(), 4, "{agents:?}");
    for (components, of_coordinators, job, service) in [
        (
            &["prometheus"][..],
            "podMonitor/leasehold-system/leasehold-coordinator/0",
            "leasehold-system/leasehold-coordinator",
            None,
        ),
        (
            &["prometheus", "service-monitor"][..],
            "serviceMonitor/leasehold-system/leasehold-coordinator/0",
            "leasehold-coordinator",
            Some("leasehold-coordinator"),
        ),
    ] {
        let monitors = monitors(access, components);
        let jobs = monitors.iter().flat_map(|monitor| scrape_configs(monitor, reader.kubeconfig()));
        let what = "the shipped monitors, by a Prometheus on Kubernetes";
        let Some(prometheus) = Prometheus::start_with_discovery(what, jobs.collect()) else {
            return;
        };
        until_up(
            &prometheus,
            &[
                (of_coordinators, &coordinators),
                ("podMonitor/leasehold-system/leasehold-agent/0", &agents),
            ],
        );
        let of_coordinator = |pod: &String| {
            let mut labels = json!({
                "namespace": HOME, "pod": pod, "container": "coordinator",
                "endpoint": "http-metrics", "job": job,
            });
            if let Some(service) = service {
                labels["service"] = service.into();
            }
            labels
        };
        until_series(&prometheus, "leasehold_leader", coordinators.iter().map(of_coordinator));
        agents_are_seen(&prometheus, &namespace, &agents);
    }
}

/// Starts workers whose agents listen at the usual port, at another one and on loopback, and an
/// agent beside no worker that no coordinator welcomes.
fn start_workers(namespace: &TestNamespace<'_>) {
    namespace.apply(&list(cluster(4)));
    let builds = deployment(namespace, 2, &[]);
    namespace.apply(&builds);
    namespace.kubectl(&["rollout", "status", "deployment/builds", "--timeout=120s"]);
    for (name, annotations) in [
        ("other-port", json!({ HEALTH_LISTEN: ":7499" })),
        // A kubelet that asked by HTTP would not reach it either.
        (
            UNREACHABLE,
            json!({ HEALTH_LISTEN: "127.0.0.1:7412", "config.leasehold.dev/probes": "exec" }),
        ),
    ] {
        let mut pod = object("Pod", name, builds["spec"]["template"]["spec"].clone());
        pod["metadata"]["labels"] = json!({ "leasehold.dev/inject": "true" });
        pod["metadata"]["annotations"] = annotations;
        namespace.apply(&pod);
    }
    let variables = [
        ("LEASEHOLD_COORDINATOR", "127.0.0.1:1"),
        ("LEASEHOLD_CLUSTER", "builds"),
        ("LEASEHOLD_WORKER", BY_HAND),
        ("LEASEHOLD_HEALTH_LISTEN", ":7412"),
    ];
    let variables = variables.map(|(name, value)| json!({ "name": name, "value": value }));
    let image = Program::Agent.reference();
    let agent = json!({ "name": AGENT, "image": image, "args": ["run"], "env": variables });
    let mut pod = object("Pod", BY_HAND, json!({ "containers": [agent] }));
    pod["metadata"]["labels"] = json!({ "leasehold.dev/cluster": "builds" });
    namespace.apply(&pod);
    namespace.until("wc/builds", ".status.workers.connected", "4");
}

/// The rights of a Prometheus, as the Prometheus operator documents them: access with them, by a
/// kubeconfig in this file.
fn reader(access: &Access, file: &Path) -> Access {
    let inside = "--namespace=monitoring";
    let resources = "--resource=services,endpoints,pods";
    let account = "--serviceaccount=monitoring:prometheus";
    for arguments in [
        &["namespace", "monitoring"][..],
        &["serviceaccount", "prometheus", inside],
        &["clusterrole", "prometheus", "--verb=get,list,watch", resources],
        &["clusterrolebinding", "prometheus", "--clusterrole=prometheus", account],
    ] {
        access.kubectl(&[&["create"], arguments].concat());
    }
    let token = access.kubectl(&["create", "token", "prometheus", inside]);
    access.with_token(token.trim(), file)
}

/// The monitors of the overlay with these components.
fn monitors(access: &Access, components: &[&str]) -> Vec<Value> {
    let built = render(access, kustomization(OVERLAY, components, "").path());
    let mut objects: Vec<Value> = serde_yaml::from_multiple(&built).expect("YAML");
    objects.retain(|object| object["kind"].as_str().is_some_and(|kind| kind.ends_with("Monitor")));
    assert_eq!(objects.len(), 2, "{objects:#?}");
    objects
}

/// Waits until each scrape job has one target in each of these pods, all targets are up, and there
/// are no others.
fn until_up(prometheus: &Prometheus, expected: &[(&str, &Vec<String>)]) {
    let expected: BTreeMap<_, _> =
        expected.iter().map(|(job, pods)| ((*job).to_owned(), (*pods).clone())).collect();
    until_ok("every target", || {
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for target in prometheus.targets() {
            if target["health"] != "up" {
                return Err(format!("{target:#}"));
            }
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let job = text(&target["scrapePool"]);
            found.entry(job).or_default().push(text(&target["labels"]["pod"]));
        }
        found.values_mut().for_each(|pods| pods.sort());
        if found == expected { Ok(()) } else { Err(format!("{found:#?}")) }
    });
}

/// Waits until the agents' series have their labels, which join those of coordinators, alerts find
/// the agents that are well, and only the one that no coordinator welcomes raises an alert.
fn agents_are_seen(prometheus: &Prometheus, namespace: &str, agents: &[String]) {
    let cluster = format!("{namespace}/builds");
    let labels = |pod: &String| {
        json!({
            "namespace": namespace, "pod": pod, "container": AGENT, "cluster": cluster,
            "job": "leasehold-system/leasehold-agent",
        })
    };
    let all = || agents.iter().map(labels);
    until_series(prometheus, "leasehold_agent_connected", all());
    let joined = "leasehold_agent_connected and on (cluster) leasehold_workers";
    until_series(prometheus, joined, all());
    until_series(prometheus, &of_those_that_are_well(CANNOT_WRITE), all());
    let connected = agents.iter().filter(|pod| *pod != BY_HAND).map(labels);
    until_series(prometheus, &of_those_that_are_well(DISCONNECTED), connected);
    let alert = eventually("the alert of one agent", || prometheus.firing(DISCONNECTED));
    assert_eq!(alert["labels"]["pod"], BY_HAND, "{alert:#}");
    assert_eq!(alert["labels"]["cluster"], cluster, "{alert:#}");
    let summary = format!("The agent of {namespace}/{BY_HAND} is not connected to the leader.");
    assert_eq!(alert["annotations"]["summary"], summary);
    until_ok("no other alert", || {
        let mut others = alerts().into_iter().filter(|alert| alert != DISCONNECTED);
        match others.find_map(|alert| prometheus.firing(&alert)) {
            None => Ok(()),
            Some(other) => Err(format!("{other:#}")),
        }
    });
}

/// The expression of an alert on agents, which asks for a truth that is 0, asking for 1.
fn of_those_that_are_well(alert: &str) -> String {
    let rule = rules().into_iter().find(|rule| rule["alert"] == alert).expect("a rule");
    let expression = rule["expr"].as_str().expect("an expression");
    assert!(expression.contains("== 0"), "{expression}");
    expression.replacen("== 0", "== 1", 1)
}

/// Waits until an expression gives these series, one a pod, in the order of the pods' names; their
/// addresses and names are left out.
fn until_series(prometheus: &Prometheus, expression: &str, expected: impl Iterator<Item = Value>) {
    let expected: Vec<Value> = expected.collect();
    until_ok(expression, || {
        let mut found = prometheus.query(expression)?;
        let mut found: Vec<Value> =
            found.iter_mut().map(|series| series["metric"].take()).collect();
        for labels in found.iter_mut().filter_map(Value::as_object_mut) {
            labels.retain(|name, _| !["__name__", "instance"].contains(&name.as_str()));
        }
        found.sort_by_key(|labels| labels["pod"].to_string());
        if found == expected { Ok(()) } else { Err(format!("{found:#?} are not {expected:#?}")) }
    });
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}
