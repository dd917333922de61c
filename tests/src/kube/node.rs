//! A real node: containerd, kubelet, kube-proxy and names by CoreDNS, in namespaces of their own.
//! Their mounts, their packet filter and their processes end with the first process of those
//! namespaces; what is left on the machine, control groups and a cable, the guard removes.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use leasehold_release::Image;
use serde_json::json;

use super::binaries;
use super::bridge::{Bridge, run};
use super::control_plane::{ControlPlane, end_of, local};
use super::guard::Leftover;
use super::machine;
use super::pki::{AUTHORITY, Subject};
use crate::process::{Process, until_ok};

/// The image of a pod's sandbox, and of containers whose work does not matter.
pub const PAUSE_IMAGE: &str = "localhost/pause:1";

/// Where the names of Services end.
const DOMAIN: &str = "cluster.local";

/// A real node of a control plane.
#[derive(Debug)]
pub struct Node {
    name: String,
    address: Ipv4Addr,
    folder: PathBuf,
    /// The machine's number of the process that holds the namespaces.
    init: u32,
    kubelet: Mutex<Option<Process>>,
    others: Vec<Process>,
}

/// Where a node is.
#[derive(Clone, Copy, Debug)]
struct Place {
    number: u8,
    address: Ipv4Addr,
    pods: Ipv4Addr,
    resolver: Ipv4Addr,
}

impl Node {
    /// Starts the node of this number on the control plane's bridge, and waits until it is Ready.
    pub(super) fn start(plane: &ControlPlane, bridge: &Bridge, number: u8) -> Self {
        let name = format!("node{number}");
        let folder = plane.folder().join(&name);
        std::fs::create_dir(&folder).expect("a folder for the node");
        let (address, pods) = (bridge.node(number), bridge.pods(number));
        let place = Place { number, address, pods, resolver: bridge.node(1) };
        let mut namespaces = namespaces(plane, &folder);
        let init = until("the node's namespaces", &mut namespaces, || {
            std::fs::read_to_string(folder.join("init")).map_err(|error| error.to_string())
        });
        let init: u32 = init.trim().parse().expect("a process's number");
        bridge.connect(number, init).expect("an interface at the bridge");
        let kubelet = Mutex::default();
        let mut node = Self { name, address, folder, init, kubelet, others: vec![namespaces] };
        node.start_containerd(plane, place);
        let pause = binaries::path("pause");
        node.load(&Image::new(PAUSE_IMAGE, &["/pause"]).file(&pause, "/pause"));
        node.issue(plane, place);
        node.make_control_groups(plane);
        node.start_kubelet(plane);
        node.start_kube_proxy(plane, place);
        if place.resolver == place.address {
            node.start_coredns(plane, place);
        }
        node.wait_until_ready(plane);
        node
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes an image known to the node, to be used with `imagePullPolicy: Never`.
    ///
    /// # Panics
    /// If containerd does not take it.
    pub fn load(&self, image: &Image) {
        let archive = self.folder.join("image.tar");
        image.pack(&archive).expect("the image is packed");
        let mut import = Command::new("ctr");
        import.arg("--address").arg(self.socket());
        import.args(["--namespace", "k8s.io", "images", "import"]).arg(&archive);
        run(&mut import).expect("the image is imported");
        std::fs::remove_file(&archive).expect("the archive is removed");
    }

    /// Kills the kubelet: its pods keep running and are not reported.
    ///
    /// # Panics
    /// If it was not running.
    pub fn kill_kubelet(&self) {
        let kubelet = self.kubelet.lock().expect("no panic in between").take();
        drop(kubelet.expect("a running kubelet"));
    }

    /// Starts the kubelet, with what it had known.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_kubelet(&self, plane: &ControlPlane) {
        let mut kubelet = self.inside("kubelet");
        kubelet.arg("--config").arg(self.folder.join("kubelet.json"));
        kubelet.arg("--kubeconfig").arg(plane.pki.path(&format!("{}.kubeconfig", self.name)));
        kubelet.arg("--root-dir").arg(self.folder.join("kubelet"));
        kubelet.arg("--cert-dir").arg(self.folder.join("kubelet-pki"));
        kubelet.arg(format!("--hostname-override={}", self.name));
        kubelet.arg(format!("--node-ip={}", self.address));
        let process = plane.guard.process(&mut kubelet, &self.log("kubelet"));
        *self.kubelet.lock().expect("no panic in between") = Some(process);
    }

    fn start_containerd(&mut self, plane: &ControlPlane, place: Place) {
        let plugins = machine::network_plugins().expect("looked for before");
        let network = json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [{
                "type": "ptp",
                "ipam": {
                    "type": "host-local",
                    "dataDir": self.folder.join("addresses"),
                    "ranges": [[{ "subnet": format!("{}/24", place.pods) }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            }],
        });
        let networks = self.folder.join("networks");
        std::fs::create_dir(&networks).expect("a folder for the network");
        std::fs::write(networks.join("pods.conflist"), network.to_string()).expect("written");
        let (root, state) = (self.folder.join("images"), self.folder.join("containers"));
        let config = format!(
            r#"
version = 2
root = {root:?}
state = {state:?}
[grpc]
address = {socket:?}
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = {plugins:?}
conf_dir = {networks:?}
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"#,
            socket = self.socket(),
        );
        let file = self.folder.join("containerd.toml");
        std::fs::write(&file, config).expect("written");
        let mut containerd = self.inside_with("containerd");
        containerd.arg("--config").arg(&file);
        let mut process = plane.guard.process(&mut containerd, &self.log("containerd"));
        let mut version = Command::new("ctr");
        version.arg("--address").arg(self.socket()).arg("version");
        until("containerd", &mut process, || run(&mut version));
        self.others.push(process);
    }

    /// The node's certificates, and the kubelet's settings that depend on nothing else.
    fn issue(&self, plane: &ControlPlane, place: Place) {
        let addresses = [place.address.into()];
        let user = format!("system:node:{}", self.name);
        let subject = Subject {
            name: &user,
            group: Some("system:nodes"),
            hosts: &[&self.name],
            addresses: &addresses,
        };
        plane.pki.kubeconfig(&self.name, &plane.url(), subject);
        let resolver = self.folder.join("resolv.conf");
        std::fs::write(&resolver, format!("nameserver {}\n", place.resolver)).expect("written");
        let in_pki = |kind: &str| plane.pki.path(&format!("{}.{kind}", self.name));
        let settings = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": place.address,
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": true },
                "x509": { "clientCAFile": plane.pki.path(AUTHORITY) },
            },
            "authorization": { "mode": "Webhook" },
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": format!("/{}", self.control_group(plane)),
            "clusterDNS": [place.resolver],
            "clusterDomain": DOMAIN,
            "containerRuntimeEndpoint": format!("unix://{}", self.socket().display()),
            // Neither evicts, taints itself, nor deletes images: the machine's disk and memory are
            // not the node's. A build nearby that fills them would fail tests which need neither.
            "evictionHard": {
                "memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%",
            },
            "imageGCHighThresholdPercent": 100,
            "failCgroupV1": false,
            "failSwapOn": false,
            "makeIPTablesUtilChains": false,
            "nodeLeaseDurationSeconds": 8,
            "oomScoreAdj": 0,
            "podLogsDir": self.folder.join("pod-logs"),
            "resolvConf": resolver,
            "tlsCertFile": in_pki("crt"),
            "tlsPrivateKeyFile": in_pki("key"),
            "volumePluginDir": self.folder.join("volume-plugins"),
        });
        let file = self.folder.join("kubelet.json");
        std::fs::write(file, settings.to_string()).expect("written");
    }

    /// The kubelet asks for a root of its control groups that is there.
    fn make_control_groups(&self, plane: &ControlPlane) {
        let name = self.control_group(plane);
        for hierarchy in machine::control_group_hierarchies() {
            std::fs::create_dir(hierarchy.join(&name)).expect("a control group");
        }
        plane.guard.leave(Leftover::Cgroup(&name));
    }

    fn start_kube_proxy(&mut self, plane: &ControlPlane, place: Place) {
        let user = Subject::user("system:kube-proxy", None);
        let name = format!("kube-proxy{}", place.number);
        let kubeconfig = plane.pki.kubeconfig(&name, &plane.url(), user);
        let settings = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "bindAddress": place.address,
            "clientConnection": { "kubeconfig": kubeconfig },
            "clusterCIDR": format!("{}/24", place.pods),
            "hostnameOverride": self.name,
            // These are set for the whole machine.
            "conntrack": {
                "maxPerCore": 0, "min": 0,
                "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
            },
        });
        let file = self.folder.join("kube-proxy.json");
        std::fs::write(&file, settings.to_string()).expect("written");
        let mut kube_proxy = self.inside("kube-proxy");
        kube_proxy.arg("--config").arg(file);
        self.others.push(plane.guard.process(&mut kube_proxy, &self.log("kube-proxy")));
    }

    /// The first node has the name service of all.
    fn start_coredns(&mut self, plane: &ControlPlane, place: Place) {
        let settings = format!(
            "{DOMAIN}:53 {{\nbind {}\nerrors\nkubernetes {DOMAIN} {{\nkubeconfig {}\n}}\n}}\n",
            place.address,
            plane.access().kubeconfig().display(),
        );
        let file = self.folder.join("Corefile");
        std::fs::write(&file, settings).expect("written");
        let mut coredns = self.inside("coredns");
        coredns.arg("-conf").arg(file);
        self.others.push(plane.guard.process(&mut coredns, &self.log("coredns")));
    }

    fn wait_until_ready(&self, plane: &ControlPlane) {
        let node = format!("node/{}", self.name);
        let ready = ["wait", "--for=condition=Ready", &node, "--timeout=1s"];
        let mut kubelet = self.kubelet.lock().expect("no panic in between");
        let kubelet = kubelet.as_mut().expect("a running kubelet");
        until("the node to be Ready", kubelet, || plane.access().try_kubectl(&ready));
    }

    /// One of Kubernetes' binaries, in the node's namespaces.
    fn inside(&self, name: &str) -> Command {
        let path = binaries::path(name);
        self.inside_with(path.to_str().expect("a path in UTF-8"))
    }

    /// A program in the node's namespaces, which ends with the process that is started.
    fn inside_with(&self, program: &str) -> Command {
        let mut command = local("nsenter");
        command.args(["--target", &self.init.to_string(), "--mount", "--net", "--pid"]);
        command.args(["setpriv", "--pdeathsig", "KILL", program]);
        command
    }

    fn control_group(&self, plane: &ControlPlane) -> String {
        let folder = plane.folder().file_name().and_then(|name| name.to_str());
        format!("{}-{}", folder.expect("a name in UTF-8"), self.name)
    }

    /// The socket of its containerd.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join("containerd.sock")
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }
}

/// Namespaces that end with the process.
fn namespaces(plane: &ControlPlane, folder: &Path) -> Process {
    let mut unshare = local("unshare");
    unshare.args(["--mount", "--net", "--pid", "--fork", "--kill-child=KILL"]);
    unshare.args(["sh", "-c", include_str!("node.sh"), "node"]).arg(folder);
    plane.guard.process(&mut unshare, &folder.join("namespaces.log"))
}

/// Asks until there is an answer, and for as long as the process runs.
fn until<T>(what: &str, process: &mut Process, mut ask: impl FnMut() -> Result<T, String>) -> T {
    until_ok(what, || {
        let answer = ask().map_err(|why| format!("{why}\n{}", end_of(&process.log())));
        match process.ended() {
            Some(ended) if answer.is_err() => {
                panic!("{what}: {ended}:\n{}", end_of(&process.log()))
            }
            _ => answer,
        }
    })
}
