//! Leasehold's neighbours on a cluster, each built from its own modules and a process of this
//! machine: KEDA, Prometheus' adapter for autoscalers, cert-manager and the descheduler.

use std::net::SocketAddr;
use std::process::Command;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::access::Access;
use super::binaries;
use super::control_plane::local;
use super::namespace::Namespace;
use super::objects::list;
use crate::certificates::{authority, signed_for};
use crate::process::{Process, free_address};
use crate::toolbox;

/// The API of the metrics that autoscalers read and no object of the cluster has.
const EXTERNAL_METRICS: &str = "v1beta1.external.metrics.k8s.io";
/// The Service of who serves it.
const METRICS_SERVICE: &str = "external-metrics";

/// Who serves a cluster its external metrics, which `HorizontalPodAutoscaler`s read through the API
/// server. A cluster has one at a time.
#[derive(Debug)]
pub struct ExternalMetrics {
    access: Access,
    /// They end before the folder with their files goes.
    processes: Vec<Process>,
    folder: tempfile::TempDir,
}

impl ExternalMetrics {
    /// KEDA, for the objects of one namespace: its kinds, its operator, and its server of metrics.
    /// None where it is not built, which is noted.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn of_keda(namespace: &Namespace) -> Option<Self> {
        if !binaries::all(&["keda-operator", "keda-adapter"]) {
            return None;
        }
        define(&namespace.access, "keda-crds");
        let mut server = Self::new(namespace);
        let (operator, metrics, probes) = (free_address(), free_address(), free_address());
        let command = |name: &str| {
            let mut command = local(binaries::path(name));
            command.env("KUBECONFIG", namespace.access.kubeconfig());
            for variable in ["WATCH_NAMESPACE", "POD_NAMESPACE", "KEDA_CLUSTER_OBJECT_NAMESPACE"] {
                command.env(variable, &**namespace);
            }
            command.arg("--cert-dir").arg(server.folder.path());
            command
        };
        let mut of_operator = command("keda-operator");
        of_operator.arg(format!("--metrics-service-bind-address={operator}"));
        of_operator.arg(format!("--metrics-bind-address={metrics}"));
        of_operator.arg(format!("--health-probe-bind-address={probes}"));
        let mut of_adapter = command("keda-adapter");
        let port = operator.port();
        of_adapter.arg(format!("--metrics-service-address=localhost:{port}"));
        of_adapter.arg(format!("--port={}", free_address().port()));
        server.start("keda-operator", &mut of_operator);
        server.serve(namespace, "keda-adapter", of_adapter);
        Some(server)
    }

    /// Prometheus' adapter with these rules for external metrics. None where it is not built, which
    /// is noted.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn of_prometheus(
        namespace: &Namespace,
        prometheus: SocketAddr,
        rules: &Value,
    ) -> Option<Self> {
        if !binaries::all(&["prometheus-adapter"]) {
            return None;
        }
        let mut server = Self::new(namespace);
        let config = server.folder.path().join("rules.yaml");
        std::fs::write(&config, json!({ "externalRules": rules }).to_string()).expect("a file");
        let mut command = local(binaries::path("prometheus-adapter"));
        command.arg(format!("--prometheus-url=http://{prometheus}"));
        command.arg("--config").arg(config).arg("--metrics-relist-interval=2s");
        server.serve(namespace, "prometheus-adapter", command);
        Some(server)
    }

    /// The certificate of a server; nobody serves yet.
    fn new(namespace: &Namespace) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let service = format!("{METRICS_SERVICE}.{namespace}.svc");
        let authority = authority();
        let (certificate, key) = signed_for(&authority, &service);
        let ca = authority.pem();
        for (file, text) in [("ca.crt", ca), ("tls.crt", certificate), ("tls.key", key)] {
            std::fs::write(folder.path().join(file), text).expect("a file");
        }
        Self { access: namespace.access.clone(), processes: Vec::new(), folder }
    }

    fn start(&mut self, name: &str, command: &mut Command) {
        let log = self.folder.path().join(format!("{name}.log"));
        self.processes.push(Process::start(command, &log));
    }

    /// Starts the server, and waits until the API server passes requests on to it.
    fn serve(&mut self, namespace: &Namespace, name: &str, mut command: Command) {
        let address = free_address();
        let file = |name: &str| self.folder.path().join(name);
        command.arg(format!("--bind-address={}", address.ip()));
        command.arg(format!("--secure-port={}", address.port()));
        command.arg("--tls-cert-file").arg(file("tls.crt"));
        command.arg("--tls-private-key-file").arg(file("tls.key"));
        // Whom it asks about its callers: the API server.
        for whom in ["lister", "authentication", "authorization"] {
            command.arg(format!("--{whom}-kubeconfig")).arg(self.access.kubeconfig());
        }
        let bundle = std::fs::read(file("ca.crt")).expect("the authority");
        self.start(name, &mut command);
        namespace.apply(&self::list(registration(namespace, address.port(), &bundle)));
        let wait = ["wait", "--for=condition=Available", "--timeout=120s", "apiservice"];
        let waited = self.access.try_kubectl(&[&wait[..], &[EXTERNAL_METRICS]].concat());
        waited.unwrap_or_else(|why| panic!("{why}\n{}", self.log()));
    }

    /// What its processes wrote.
    #[must_use]
    pub fn log(&self) -> String {
        self.processes.iter().map(Process::log).collect()
    }
}

impl Drop for ExternalMetrics {
    fn drop(&mut self) {
        let _ = self.access.try_kubectl(&["delete", "apiservice", EXTERNAL_METRICS]);
    }
}

/// The objects by which the API server finds a server on this machine and trusts it, and by which
/// the controller of `HorizontalPodAutoscaler`s may read its metrics.
fn registration(namespace: &str, port: u16, bundle: &[u8]) -> [Value; 4] {
    let ports = json!([{ "port": port }]);
    let rbac = "rbac.authorization.k8s.io";
    let reader = "external-metrics-reader";
    [
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": METRICS_SERVICE, "namespace": namespace },
            "spec": { "type": "ExternalName", "externalName": "localhost", "ports": ports },
        }),
        json!({
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": { "name": EXTERNAL_METRICS },
            "spec": {
                "group": "external.metrics.k8s.io",
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "caBundle": BASE64_STANDARD.encode(bundle),
                "service": { "name": METRICS_SERVICE, "namespace": namespace, "port": port },
            },
        }),
        json!({
            "apiVersion": format!("{rbac}/v1"),
            "kind": "ClusterRole",
            "metadata": { "name": reader },
            "rules": [{
                "apiGroups": ["external.metrics.k8s.io"],
                "resources": ["*"],
                "verbs": ["get", "list"],
            }],
        }),
        json!({
            "apiVersion": format!("{rbac}/v1"),
            "kind": "ClusterRoleBinding",
            "metadata": { "name": reader },
            "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": reader },
            "subjects": [{
                "kind": "ServiceAccount",
                "name": "horizontal-pod-autoscaler",
                "namespace": "kube-system",
            }],
        }),
    ]
}

/// Cert-manager's controllers and its injector of authorities, for all namespaces.
#[derive(Debug)]
pub struct CertManager {
    /// Its process.
    pub process: Process,
    _folder: tempfile::TempDir,
}

impl CertManager {
    /// Defines its kinds and starts it; none where it is not built, which is noted.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(access: &Access) -> Option<Self> {
        if !binaries::all(&["cert-manager"]) {
            return None;
        }
        define(access, "cert-manager-crds");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = local(binaries::path("cert-manager"));
        command.arg(access.kubeconfig());
        let process = Process::start(&mut command, &folder.path().join("cert-manager.log"));
        Some(Self { process, _folder: folder })
    }
}

/// The descheduler, which looks at all pods again and again.
#[derive(Debug)]
pub struct Descheduler {
    /// Its process.
    pub process: Process,
    _folder: tempfile::TempDir,
}

impl Descheduler {
    /// Starts it with this policy, to look every second; none where it is not built, which is
    /// noted.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(access: &Access, policy: &Value) -> Option<Self> {
        if !binaries::all(&["descheduler"]) {
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("policy.yaml");
        std::fs::write(&file, policy.to_string()).expect("a file");
        let mut command = local(binaries::path("descheduler"));
        command.arg("--kubeconfig").arg(access.kubeconfig());
        command.arg("--policy-config-file").arg(file);
        command.args(["--descheduling-interval=1s", "--disable-metrics", "--v=3"]);
        command.args(["--bind-address=127.0.0.1", "--secure-port=0"]);
        let process = Process::start(&mut command, &folder.path().join("descheduler.log"));
        Some(Self { process, _folder: folder })
    }
}

/// Applies the definitions of a neighbour's kinds, and waits until they are served.
fn define(access: &Access, folder: &str) {
    let folder = toolbox::root().join(".cache/neighbours").join(folder);
    let folder = folder.to_str().expect("UTF-8");
    access.kubectl(&["apply", "--server-side", "-f", folder]);
    access.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "-f", folder]);
}
