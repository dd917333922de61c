//! A real control plane on this machine: etcd, kube-apiserver, kube-controller-manager and
//! kube-scheduler, at ports of their own, so that several can run side by side. All of it ends
//! with the value, or with the process that started it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_demo::ports::free_ports;
use serde_json::json;

use super::access::Access;
use super::binaries;
use super::guard::{Guard, Leftover};
use super::pki::{AUTHORITY, Pki, Subject};
use super::wait::POLL;
use crate::process::Process;

/// A hang shows as a failure after this time, on a machine that compiles beside the tests, too.
const PATIENCE: Duration = Duration::from_secs(240);

/// An address without a listener or a reply: an address for documentation (RFC 5737).
const NOWHERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// The name in the certificate that the API server shows to webhooks.
pub const WEBHOOK_CLIENT: &str = "kube-apiserver-webhook-client";

/// What the API server logs: no objects, and no other user's requests.
const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    users: [\"system:serviceaccount:leasehold-system:leasehold-coordinator\"]
  - level: None
";

/// A process of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// etcd, which keeps its data in memory.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
}

impl Component {
    /// All, in the order in which they start.
    const ALL: [Self; 4] = [Self::Etcd, Self::ApiServer, Self::ControllerManager, Self::Scheduler];
}

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    access: Access,
    processes: Mutex<BTreeMap<Component, Process>>,
    pub(super) pki: Pki,
    pub(super) site: NetworkLocation,
    folder: PathBuf,
    data: PathBuf,
    api: SocketAddr,
    etcd: [SocketAddr; 2],
    /// The last to go: it removes the folders.
    pub(super) guard: Guard,
}

/// Where a control plane is on the network.
#[derive(Clone, Copy, Debug)]
pub(super) struct NetworkLocation {
    /// What the API server listens at.
    pub(super) address: Ipv4Addr,
    /// The network of the Services: 256 addresses from here.
    pub(super) services: Ipv4Addr,
}

impl NetworkLocation {
    /// On loopback, where no pod could reach it.
    const LOOPBACK: Self =
        Self { address: Ipv4Addr::LOCALHOST, services: Ipv4Addr::new(10, 96, 0, 0) };

    /// The Service of the API server has the first address.
    fn service(self) -> Ipv4Addr {
        let [a, b, c, _] = self.services.octets();
        Ipv4Addr::new(a, b, c, 1)
    }
}

impl ControlPlane {
    /// Starts one on loopback, and waits until pods can be created, or `None` if its binaries are
    /// missing, which is then noted for the end of `make test`.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start() -> Option<Self> {
        Self::start_at(NetworkLocation::LOOPBACK, Guard::start())
    }

    /// Starts one elsewhere.
    pub(super) fn start_at(site: NetworkLocation, guard: Guard) -> Option<Self> {
        if !binaries::all(&binaries::CONTROL_PLANE) {
            return None;
        }
        let folder = own_folder(&std::env::temp_dir());
        let memory = Some(PathBuf::from("/dev/shm")).filter(|memory| memory.is_dir());
        let data = own_folder(memory.as_deref().unwrap_or(&folder));
        guard.leave(Leftover::Folder(&folder));
        guard.leave(Leftover::Folder(&data));
        let pki = Pki::create(&folder.join("pki"));
        let ports = free_ports(3).expect("free ports");
        let api = SocketAddr::from((site.address, ports[0]));
        let etcd = [ports[1], ports[2]].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let url = format!("https://{api}");
        let admin = Subject::user("admin", Some("system:masters"));
        let access = Access::new(pki.kubeconfig("admin", &url, admin));
        let processes = Mutex::default();
        let plane = Self { access, processes, pki, site, folder, data, api, etcd, guard };
        plane.issue();
        plane.start_missing_components();
        let account = || plane.access.objects().get("default", "serviceaccount", "default");
        plane.until("the default service account", || account().is_ok());
        Some(plane)
    }

    /// The administrator's way in.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// The API server's address, as a URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.api)
    }

    /// The file of the certificate that the API server is known by.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        self.pki.path(AUTHORITY)
    }

    /// A folder that lives as long as the control plane; all logs are in it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The requests of the coordinator's service account, one JSON object a line, as the API server
    /// logs them: each with its verb, its object and the answer's code.
    #[must_use]
    pub fn audit_log(&self) -> PathBuf {
        self.folder.join("audit.log")
    }

    /// Starts a component that was stopped, with what it had known, and waits for the API server
    /// to be ready where it is that.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn start_component(&self, component: Component) {
        let mut command = match component {
            Component::Etcd => etcd_command(&self.data, self.etcd),
            Component::ApiServer => self.api_server_command(),
            Component::ControllerManager => self.controller_manager_command(),
            Component::Scheduler => self.scheduler_command(),
        };
        let process = self.guard.process(&mut command, &self.log(component));
        self.processes.lock().expect("no panic in between").insert(component, process);
        match component {
            Component::Etcd => self.until("etcd", || answers(self.etcd[0])),
            Component::ApiServer => self
                .until("the API server", || answers(self.api) && self.access.objects().is_ready()),
            Component::ControllerManager | Component::Scheduler => {}
        }
    }

    /// Starts the components that do not run.
    ///
    /// # Panics
    /// If one does not come up.
    pub fn start_missing_components(&self) {
        for component in Component::ALL {
            let runs = self.processes.lock().expect("no panic in between").contains_key(&component);
            if !runs {
                self.start_component(component);
            }
        }
    }

    /// Kills a component, as `kill -9` does.
    ///
    /// # Panics
    /// If it was not running.
    pub fn kill_component(&self, component: Component) {
        let process = self.processes.lock().expect("no panic in between").remove(&component);
        drop(process.unwrap_or_else(|| panic!("{component:?} was not running")));
    }

    fn log(&self, component: Component) -> PathBuf {
        self.folder.join(match component {
            Component::Etcd => "etcd.log",
            Component::ApiServer => "kube-apiserver.log",
            Component::ControllerManager => "kube-controller-manager.log",
            Component::Scheduler => "kube-scheduler.log",
        })
    }

    /// Waits for a condition, and for as long as every component runs.
    fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !condition() {
            let mut processes = self.processes.lock().expect("no panic in between");
            for (component, process) in processes.iter_mut() {
                if let Some(status) = process.ended() {
                    panic!("{component:?} ended ({status}):\n{}", end_of(&process.log()));
                }
            }
            assert!(begun.elapsed() < PATIENCE, "timed out waiting for {what}");
            drop(processes);
            std::thread::sleep(POLL);
        }
    }

    fn issue(&self) {
        let NetworkLocation { address, .. } = self.site;
        let addresses = [address, Ipv4Addr::LOCALHOST, self.site.service()].map(IpAddr::from);
        let hosts = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        let subject =
            Subject { name: "kube-apiserver", group: None, hosts: &hosts, addresses: &addresses };
        self.pki.issue("apiserver", subject);
        let to_kubelets = Subject::user("kube-apiserver-kubelet-client", Some("system:masters"));
        self.pki.issue("kubelet-client", to_kubelets);
        self.pki.issue("webhook-client", Subject::user(WEBHOOK_CLIENT, None));
        self.pki.issue("front-proxy-client", Subject::user("front-proxy-client", None));
        for name in ["kube-controller-manager", "kube-scheduler"] {
            let user = format!("system:{name}");
            self.pki.kubeconfig(name, &self.url(), Subject::user(&user, None));
        }
    }

    fn api_server_command(&self) -> Command {
        let NetworkLocation { address, services } = self.site;
        let mut command = command("kube-apiserver");
        command.arg(format!("--etcd-servers=http://{}", self.etcd[0]));
        command.arg(format!("--bind-address={address}"));
        command.arg(format!("--secure-port={}", self.api.port()));
        command.arg(format!("--service-cluster-ip-range={services}/24"));
        if address.is_loopback() {
            // Only this machine can reach it: it has no address for pods.
            command.arg(format!("--advertise-address={NOWHERE}"));
            command.arg("--endpoint-reconciler-type=none");
            self.pass_on_other_apis(&mut command);
        } else {
            command.arg(format!("--advertise-address={address}"));
        }
        for (flag, file) in [
            ("--tls-cert-file", "apiserver.crt"),
            ("--tls-private-key-file", "apiserver.key"),
            ("--client-ca-file", AUTHORITY),
            ("--kubelet-certificate-authority", AUTHORITY),
            ("--kubelet-client-certificate", "kubelet-client.crt"),
            ("--kubelet-client-key", "kubelet-client.key"),
            ("--service-account-key-file", "tokens.pub"),
            ("--service-account-signing-key-file", "tokens.key"),
        ] {
            command.arg(flag).arg(self.pki.path(file));
        }
        let policy = self.folder.join("audit-policy.yaml");
        std::fs::write(&policy, AUDIT_POLICY).expect("a file");
        command.arg("--audit-policy-file").arg(policy);
        command.arg("--audit-log-path").arg(self.audit_log());
        command.arg("--admission-control-config-file").arg(self.admission_configuration());
        command.args([
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-extend-token-expiration=false",
            "--kubelet-preferred-address-types=InternalIP",
            "--authorization-mode=Node,RBAC",
            // The second is on in OpenShift: it asks for a right on the owner of some objects.
            "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
            "--allow-privileged=true",
            "--profiling=false",
        ]);
        command
    }

    /// The API server passes requests on to servers of other APIs, and shows a client certificate.
    /// Only tests on loopback have such servers, and it takes two more instances of inotify.
    fn pass_on_other_apis(&self, command: &mut Command) {
        for (flag, file) in [
            ("--requestheader-client-ca-file", AUTHORITY),
            ("--proxy-client-cert-file", "front-proxy-client.crt"),
            ("--proxy-client-key-file", "front-proxy-client.key"),
        ] {
            command.arg(flag).arg(self.pki.path(file));
        }
        command.args([
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        ]);
    }

    /// The API server shows its client certificate to each webhook that asks for one.
    fn admission_configuration(&self) -> PathBuf {
        let users = self.folder.join("webhook-users.yaml");
        let (certificate, key) =
            (self.pki.path("webhook-client.crt"), self.pki.path("webhook-client.key"));
        let user = json!({ "client-certificate": certificate, "client-key": key });
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "users": [{ "name": "*", "user": user }],
        });
        std::fs::write(&users, config.to_string()).expect("a file");
        let plugin = |name: &str| {
            let configuration = json!({
                "apiVersion": "apiserver.config.k8s.io/v1",
                "kind": "WebhookAdmissionConfiguration",
                "kubeConfigFile": users,
            });
            json!({ "name": name, "configuration": configuration })
        };
        let file = self.folder.join("admission.yaml");
        let config = json!({
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "AdmissionConfiguration",
            "plugins": [plugin("MutatingAdmissionWebhook"), plugin("ValidatingAdmissionWebhook")],
        });
        std::fs::write(&file, config.to_string()).expect("a file");
        file
    }

    fn controller_manager_command(&self) -> Command {
        let mut command = self.client_command("kube-controller-manager");
        command.arg("--service-account-private-key-file").arg(self.pki.path("tokens.key"));
        command.arg("--root-ca-file").arg(self.pki.path(AUTHORITY));
        command.args([
            "--use-service-account-credentials=true",
            "--controllers=*,-cloud-node-lifecycle-controller,-service-lb-controller",
            // A lost node is known after 40 seconds instead of 50: a heartbeat may be late where
            // eight control planes start on two processors.
            "--node-monitor-period=2s",
            "--node-monitor-grace-period=40s",
            // An autoscaler looks every second instead of 15, and takes back at once what it added.
            "--horizontal-pod-autoscaler-sync-period=1s",
            "--horizontal-pod-autoscaler-downscale-stabilization=1s",
            "--kube-api-qps=100",
            "--kube-api-burst=200",
        ]);
        command
    }

    fn scheduler_command(&self) -> Command {
        self.client_command("kube-scheduler")
    }

    /// A component that is a client of the API server, and has no server.
    fn client_command(&self, name: &str) -> Command {
        let mut command = command(name);
        command.arg("--kubeconfig").arg(self.pki.path(&format!("{name}.kubeconfig")));
        command.args(["--leader-elect=false", "--secure-port=0", "--profiling=false"]);
        command
    }
}

/// The command of an etcd at these addresses, for clients and for peers. It does not wait for the
/// disk.
pub(crate) fn etcd_command(data: &Path, addresses: [SocketAddr; 2]) -> Command {
    let [clients, peers] = addresses.map(|address| format!("http://{address}"));
    let mut command = command("etcd");
    command.arg("--data-dir").arg(data);
    command.args(["--name=tests", "--unsafe-no-fsync", "--log-level=warn"]);
    command.arg(format!("--listen-client-urls={clients}"));
    command.arg(format!("--advertise-client-urls={clients}"));
    command.arg(format!("--listen-peer-urls={peers}"));
    command.arg(format!("--initial-advertise-peer-urls={peers}"));
    command.arg(format!("--initial-cluster=tests={peers}"));
    command
}

/// One of Kubernetes' binaries.
fn command(name: &str) -> Command {
    local(binaries::path(name))
}

/// A program that uses no proxy: all its peers are on this machine.
pub(crate) fn local(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for variable in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "KUBECONFIG"] {
        command.env_remove(variable);
    }
    command
}

/// The last lines of a log.
pub(super) fn end_of(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// A new folder with a short name: sockets' paths are limited to about a hundred characters.
fn own_folder(place: &Path) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = place.join(format!("leasehold-{}-{number}", std::process::id()));
    std::fs::create_dir(&folder).expect("a new folder");
    folder
}

fn answers(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_ok()
}
