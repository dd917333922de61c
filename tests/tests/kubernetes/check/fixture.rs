//! The fixture: an installation whose pods are simulated, with one real coordinator beside them
//! that has no more than its rights, and workers whose agents are real.

use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use tests::answers::shows;
use tests::kube::{
    Access, CoordinatorEndpoints, Fleet, HollowNode, Namespace, Runner, SimulatedPod, Work,
};
use tests::process::{eventually, get, until_ok};
use tests::toolbox;

use super::super::installed::{
    Installed, LocalCoordinator, coordinator_with_its_own_rights, folder, until_kinds_are_known,
    until_pods_are_admitted,
};

/// What the program found.
#[derive(Debug)]
pub(super) struct CheckOutput {
    pub(super) code: Option<i32>,
    pub(super) report: Value,
}

impl CheckOutput {
    /// All lines.
    pub(super) fn lines(&self) -> impl Iterator<Item = &Value> {
        let sections = self.report["sections"].as_array().expect("sections").iter();
        sections.flat_map(|section| section["checks"].as_array().expect("lines"))
    }

    /// The line of this name.
    pub(super) fn line(&self, id: &str) -> &Value {
        let line = self.lines().find(|line| line["id"] == id);
        line.unwrap_or_else(|| panic!("no line {id} in {:#}", self.report))
    }

    /// The names of the lines that came out so.
    pub(super) fn that(&self, result: &str) -> Vec<&str> {
        let lines = self.lines().filter(|line| line["result"] == result);
        lines.map(|line| line["id"].as_str().expect("a name")).collect()
    }
}

/// Runs the program as a user, with these arguments, and takes its JSON.
pub(super) fn check(access: &Access, arguments: &[&str]) -> CheckOutput {
    let mut command = Command::new(toolbox::binary("leasehold"));
    command.args(["check", "--output", "json", "--timeout", "2m", "--kubeconfig"]);
    command.arg(access.kubeconfig()).args(arguments).stdin(Stdio::null());
    let output = command.output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let report = serde_json::from_str(&text);
    let report = report.unwrap_or_else(|error| {
        panic!("{error}: {text}\n{}", String::from_utf8_lossy(&output.stderr))
    });
    CheckOutput { code: output.status.code(), report }
}

/// The same as people see it.
pub(super) fn check_as_text(access: &Access, arguments: &[&str]) -> String {
    let mut command = Command::new(toolbox::binary("leasehold"));
    command.args(["check", "--timeout", "2m", "--kubeconfig"]);
    command.arg(access.kubeconfig()).args(arguments).stdin(Stdio::null());
    let output = command.output().expect("the program starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until nothing fails.
pub(crate) fn until_all_is_well(access: &Access) {
    until_ok("all is well", || {
        let found = check(access, &[]);
        if found.code == Some(0) { Ok(()) } else { Err(format!("{:#}", found.report)) }
    });
}

/// A planted fault.
pub(super) struct Fault<'a> {
    /// The line that has to name it, and how that comes out.
    pub(super) line: &'a str,
    pub(super) result: &'a str,
    /// What it has to say.
    pub(super) says: &'a [&'a str],
}

impl Fault<'_> {
    /// The program finds it, and names it.
    pub(super) fn is_found(&self, access: &Access) -> Value {
        // Controllers take their time to notice what was planted.
        until_ok(self.line, || {
            let found = check(access, &[]);
            let code = if self.result == "fail" { Some(1) } else { found.code };
            assert_eq!(found.code, code, "{:#}", found.report);
            let line = found.line(self.line).clone();
            let text = line["problems"].to_string();
            let is_named = self.says.iter().all(|word| text.contains(word));
            if line["result"] == self.result && is_named {
                Ok(line)
            } else {
                Err(format!("{:?} is not said: {line:#}", self.says))
            }
        })
    }

    /// What the program says is done, to the letter; looking is left out.
    pub(super) fn is_mended_as_told(&self, access: &Access) {
        let line = self.is_found(access);
        let mut ran = 0;
        for problem in line["problems"].as_array().expect("problems") {
            assert_ne!(problem["mend"], "", "{line:#}");
            for command in problem["run"].as_array().expect("commands") {
                let command = command.as_str().expect("a line");
                if [" logs ", " get pods", " get mutating"]
                    .iter()
                    .any(|words| command.contains(words))
                {
                    continue;
                }
                eventually(command, || match access.try_shell(command, toolbox::root()) {
                    Ok(_) => Some(()),
                    // Two faults that have the same fix, within one second.
                    Err(why) if why.contains("within the past second") => None,
                    Err(why) => panic!("{command}\n{why}"),
                });
                ran += 1;
            }
        }
        assert!(ran > 0, "{line:#}");
    }

    /// The line comes out well.
    pub(super) fn is_gone(&self, access: &Access) {
        until_ok(self.line, || {
            let line = check(access, &[]).line(self.line).clone();
            if line["result"] == "ok" { Ok(()) } else { Err(format!("still {line:#}")) }
        });
    }

    /// All three.
    pub(super) fn comes_and_goes(&self, access: &Access) {
        self.is_mended_as_told(access);
        self.is_gone(access);
    }
}

/// Runs the agents of workers, and nothing in other pods.
struct LateFleet(OnceLock<Arc<Fleet>>);

impl LateFleet {
    fn fleet(&self, pod: &SimulatedPod) -> Option<&Arc<Fleet>> {
        self.0.get().filter(|_| pod.labels.contains_key("leasehold.dev/cluster"))
    }
}

impl Runner for LateFleet {
    async fn start(&self, pod: SimulatedPod) {
        if let Some(fleet) = self.fleet(&pod) {
            fleet.start(pod).await;
        }
    }

    async fn stop(&self, pod: SimulatedPod, grace: Duration) {
        if let Some(fleet) = self.fleet(&pod) {
            fleet.stop(pod, grace).await;
        }
    }

    async fn kill(&self, pod: SimulatedPod) {
        if let Some(fleet) = self.fleet(&pod) {
            fleet.kill(pod).await;
        }
    }

    // An address for documentation (RFC 5737): endpoints take none of loopback.
    fn address(&self, _pod: &SimulatedPod) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10))
    }
}

/// An installation with workers.
pub(super) struct CheckFixture<'a> {
    // It goes while there is a node that its pods end on.
    installed: Installed<'a>,
    pub(super) access: &'a Access,
    /// The workers' namespace.
    pub(super) namespace: Namespace,
    pub(super) coordinator: LocalCoordinator,
    node: HollowNode,
    own: tempfile::TempDir,
}

impl<'a> CheckFixture<'a> {
    /// Sets it: the coordinator leads, and two workers of the WorkerCluster `builds` are connected.
    pub(super) async fn set(access: &'a Access) -> Self {
        let installed = Installed::new(access, &folder("overlays/ha"));
        until_pods_are_admitted(access, 3);
        until_kinds_are_known(access);
        let late_fleet = Arc::new(LateFleet(OnceLock::new()));
        let client = access.client().await;
        let node = HollowNode::join(client, "check-1", Arc::clone(&late_fleet)).await;
        let own = tempfile::tempdir().expect("a folder");
        let coordinator = coordinator_with_its_own_rights(access, own.path()).await;
        let namespace = Namespace::create_with_prefix(access, "workers");
        namespace.wait_for_account();
        let fleet = Fleet::new(access, Work::File, None);
        let fixture = Self { installed, access, namespace, coordinator, node, own };
        fixture.until_it_leads();
        fixture.until_asked();
        fleet.dial(fixture.dials());
        assert!(late_fleet.0.set(fleet).is_ok(), "it is set once");
        fixture.namespace.apply(BUILDS);
        eventually("two workers", || {
            let ready = fixture.get("workercluster/builds", "{.status.workers.ready}");
            (ready == "2").then_some(())
        });
        fixture
    }

    /// Starts a coordinator in the place of one that has ended.
    pub(super) async fn start_again(&mut self) {
        self.coordinator = coordinator_with_its_own_rights(self.access, self.own.path()).await;
        self.until_it_leads();
        self.until_asked();
    }

    fn until_it_leads(&self) {
        let http = self.coordinator.http;
        eventually("a ready coordinator", || get(http, "/readyz").filter(|answer| answer.0 == 200));
        eventually("a leader", || shows(http, "leasehold_leader 1"));
    }

    /// The coordinator is not a pod, so no Service selects it: the API server gets its address.
    fn until_asked(&self) {
        let url = format!("https://{}/inject", self.coordinator.webhook);
        self.point(&json!({ "url": url, "service": null }));
        eventually("the caBundle", || {
            let bundle = self.webhook("{.webhooks[0].clientConfig.caBundle}");
            (!bundle.is_empty()).then_some(())
        });
    }

    /// Has the API server ask the Service again, as it is installed.
    pub(super) fn ask_the_service(&self) {
        let (name, namespace) = ("leasehold-coordinator", "leasehold-system");
        let service = json!({ "name": name, "namespace": namespace, "path": "/inject" });
        self.point(&json!({ "url": null, "service": service }));
    }

    fn point(&self, to: &Value) {
        let name = "injector.leasehold.dev";
        let patch = json!({ "webhooks": [{ "name": name, "clientConfig": to }] }).to_string();
        let patched = ["patch", "mutatingwebhookconfiguration/leasehold-injector", "--patch"];
        self.access.kubectl(&[&patched[..], &[&patch]].concat());
    }

    fn webhook(&self, path: &str) -> String {
        let output = format!("--output=jsonpath={path}");
        self.access.kubectl(&["get", "mutatingwebhookconfiguration/leasehold-injector", &output])
    }

    fn dials(&self) -> CoordinatorEndpoints {
        let bundle = ["get", "configmap/leasehold-ca", "--namespace=leasehold-system"];
        let bundle = [&bundle[..], &["--output=jsonpath={.data.ca\\.crt}"]].concat();
        let bundle = eventually("the certificate", || self.access.try_kubectl(&bundle).ok());
        let authority = self.own.path().join("ca.crt");
        std::fs::write(&authority, bundle).expect("written");
        let server_name = "leasehold-coordinator.leasehold-system.svc".to_owned();
        CoordinatorEndpoints { addresses: vec![self.coordinator.grpc], authority, server_name }
    }

    /// A field of an object in the workers' namespace.
    pub(super) fn get(&self, object: &str, path: &str) -> String {
        self.namespace.kubectl(&["get", object, &format!("--output=jsonpath={path}")])
    }

    /// The names of the pods in the workers' namespace.
    pub(super) fn pods(&self) -> Vec<String> {
        let name = |pod: &Value| pod["metadata"]["name"].as_str().expect("a name").to_owned();
        self.namespace.all_pods().iter().map(name).collect()
    }

    /// Ends it: workers first, while a coordinator can drain them.
    pub(super) async fn end(self) {
        self.namespace.kubectl(&["delete", "workerclusters", "--all"]);
        self.access.kubectl(&["delete", "namespace", &self.namespace, "--wait=false"]);
        eventually("the end of all workers", || self.pods().is_empty().then_some(()));
        let Self { installed, node, .. } = self;
        drop(installed);
        node.leave().await;
    }
}

/// Two workers that ask for their sidecars.
const BUILDS: &str = "
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec:
  maxJobs: 4
  maxJobsPerWorker: 2
  drain: {deadline: 10m}
  template:
    metadata:
      labels: {leasehold.dev/inject: 'true'}
    spec:
      containers: [{name: worker, image: example.invalid/worker}]
";

/// A kind in namespaces, with one version and any fields.
pub(super) fn definition(group: &str, kind: &str, plural: &str, version: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": { "kind": kind, "plural": plural },
            "versions": [{
                "name": version, "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object" } },
            }],
        },
    })
}
