//! The product on real nodes, as its users install it, and its namespaces for tests, each with a
//! folder that the workers of its pods write their journals to, and all that its pods came to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Formatter};
use std::fs::{File, Permissions};
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use leasehold_demo::evidence::Evidence;
use leasehold_demo::journal::Journals;
use leasehold_release::{Image, Program};
use serde_json::{Value, json};

use super::access::Access;
use super::bridge::run;
use super::namespace::Namespace;
use super::real_cluster::RealCluster;
use crate::process::{eventually, until_ok};
use crate::toolbox;

/// The image of `job_worker`, which knows nothing of Leasehold.
pub const WORKER_IMAGE: &str = "localhost/worker:1";
/// The namespace of the coordinator.
const HOME: &str = "leasehold-system";

/// A real cluster with a coordinator.
#[derive(Debug)]
pub struct RealInstallation {
    cluster: RealCluster,
}

impl RealInstallation {
    /// Starts a cluster with this many nodes and installs `crds` and `overlays/dev` in it; none as
    /// with [`RealCluster::start`].
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start(nodes: usize) -> Option<Self> {
        Self::start_with(nodes, &dev(), |_| ())
    }

    /// The same with another overlay, and after something else was done to the cluster.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start_with(nodes: usize, overlay: &Path, before: impl FnOnce(&Access)) -> Option<Self> {
        Self::start_by(nodes, |cluster| {
            before(cluster.access());
            apply(cluster.access(), overlay);
            Some(())
        })
    }

    /// The same, installed in another way; none also where that says so.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start_by(
        nodes: usize,
        install: impl FnOnce(&RealCluster) -> Option<()>,
    ) -> Option<Self> {
        Self::install(RealCluster::start()?, nodes, install)
    }

    fn install(
        mut cluster: RealCluster,
        nodes: usize,
        install: impl FnOnce(&RealCluster) -> Option<()>,
    ) -> Option<Self> {
        for _ in 1..nodes {
            cluster.add_node();
        }
        for program in Program::WITH_IMAGE {
            cluster.load(&program.image(&toolbox::binary(program.binary())));
        }
        let worker = Image::new(WORKER_IMAGE, &["/job_worker"]);
        cluster.load(&worker.program(&toolbox::binary("job_worker"), "/job_worker"));
        install(&cluster)?;
        let installation = Self { cluster };
        installation.wait_for_rollout();
        Some(installation)
    }

    /// Waits until every coordinator is Ready and as its Deployment says now.
    ///
    /// # Panics
    /// If one is not for a long time; shows the pods, a log and the nodes.
    pub fn wait_for_rollout(&self) {
        let access = self.cluster.access();
        let rollout = ["rollout", "status", "deployment/leasehold-coordinator", "--timeout=120s"];
        let own = ["--namespace", HOME];
        if let Err(why) = access.try_kubectl(&[&own[..], &rollout].concat()) {
            let say = |arguments: &[&str]| {
                access.try_kubectl(&[&own[..], arguments].concat()).unwrap_or_else(|error| error)
            };
            let logs = say(&["logs", "--tail=20", "deployment/leasehold-coordinator"]);
            let nodes = say(&["describe", "nodes"]);
            panic!("{why}\n{}\n{logs}\n{nodes}", say(&["describe", "pods"]));
        }
    }

    /// The installation of this test binary, with one node, started when it is first asked for;
    /// none as with [`Self::start`]. It ends with the process.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<RealInstallation>> = OnceLock::new();
        let start = || {
            Self::install(RealCluster::start_shared()?, 1, |cluster| {
                apply(cluster.access(), &dev());
                Some(())
            })
        };
        SHARED.get_or_init(start).as_ref()
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &RealCluster {
        &self.cluster
    }

    /// A new namespace.
    ///
    /// # Panics
    /// If the API server refuses its namespace.
    #[must_use]
    pub fn namespace(&self, prefix: &str) -> TestNamespace<'_> {
        let namespace = Namespace::create_with_prefix(self.cluster.access(), prefix);
        let folder = self.cluster.plane().folder().join(&*namespace);
        let journals = folder.join("journals");
        std::fs::create_dir_all(&journals).expect("a folder for journals");
        // Workers run as the user nobody.
        std::fs::set_permissions(&journals, Permissions::from_mode(0o777)).expect("it is ours");
        let seen = folder.join("pods.json");
        let watch = ["get", "pods", "--watch", "--output=json", "--output-watch-events"];
        let mut watch = namespace.access.kubectl_command(&watch);
        watch.args(["--namespace", &namespace]).stdin(Stdio::null());
        let file = File::create(&seen).expect("a file for what is seen");
        let watch = watch.stdout(file).spawn().expect("kubectl starts");
        TestNamespace { installation: self, namespace, journals, seen, watch }
    }
}

/// Applies `crds` and an overlay.
fn apply(access: &Access, overlay: &Path) {
    for folder in [&toolbox::root().join("deploy/crds"), overlay] {
        access.kubectl(&["apply", "-k", folder.to_str().expect("UTF-8")]);
    }
}

/// The overlay of one small replica.
fn dev() -> PathBuf {
    toolbox::root().join("deploy/overlays/dev")
}

/// A namespace, and the history of its pods.
#[derive(Debug)]
pub struct TestNamespace<'a> {
    installation: &'a RealInstallation,
    namespace: Namespace,
    journals: PathBuf,
    seen: PathBuf,
    watch: Child,
}

impl Deref for TestNamespace<'_> {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        &self.namespace
    }
}

impl TestNamespace<'_> {
    /// A field of an object, KIND/NAME, by a path as in `.status.jobs`; empty if the object or the
    /// field does not exist.
    #[must_use]
    pub fn field(&self, object: &str, path: &str) -> String {
        let (kind, name) = object.split_once('/').expect("KIND/NAME");
        let mut found = &self.get(kind, name).unwrap_or_default();
        for key in path.split('.').skip(1) {
            found = &found[key];
        }
        match found {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }

    /// Waits until there is no pod.
    ///
    /// # Panics
    /// If some stay for a long time; shows them and the diagnostics of the namespace.
    pub fn until_no_pod(&self, which: &str) {
        self.until_holds(&format!("the end of all pods {which}"), || {
            let left = self.all_pods();
            let states = left.iter().map(|pod| {
                let (name, status) = (&pod["metadata"]["name"], &pod["status"]);
                let statuses = ["initContainerStatuses", "containerStatuses"];
                let states = statuses.iter().filter_map(|kind| status[kind].as_array()).flatten();
                let states: Vec<_> = states.map(|one| one["state"].to_string()).collect();
                format!("{name} {}\n", states.join(" "))
            });
            let states: String = states.collect();
            if left.is_empty() { Ok(()) } else { Err(states) }
        });
    }

    /// Waits until a field of an object has this value.
    ///
    /// # Panics
    /// If it has not for a long time; shows the diagnostics of the namespace.
    pub fn until(&self, object: &str, path: &str, value: &str) {
        self.until_holds(&format!("{object} {path} to be {value}"), || {
            let found = self.field(object, path);
            if found == value { Ok(()) } else { Err(found) }
        });
    }

    /// Waits until a condition holds, which says otherwise what it has found.
    ///
    /// # Panics
    /// If it does not for a long time; shows the diagnostics of the namespace.
    pub fn until_holds(&self, what: &str, mut condition: impl FnMut() -> Result<(), String>) {
        until_ok(what, || condition().map_err(|found| Unexpected { namespace: self, found }));
    }

    /// What a person would look at first.
    #[must_use]
    pub fn diagnostics(&self) -> String {
        let look = |arguments: &[&str]| self.try_kubectl(arguments).unwrap_or_else(|error| error);
        let own = ["--namespace", HOME, "logs", "--tail=40", "deployment/leasehold-coordinator"];
        let pods = look(&["get", "pods", "--output=name"]);
        let logs = pods
            .lines()
            .map(|pod| look(&["logs", "--all-containers", "--ignore-errors", "--tail=30", pod]));
        [look(&["get", "wc,ss,pods"]), look(&["get", "events"])]
            .into_iter()
            .chain(logs)
            .chain([self.access.try_kubectl(&own).unwrap_or_else(|error| error)])
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// The volume of the workers' journals, and its mount.
    #[must_use]
    pub fn volume(&self) -> (Value, Value) {
        let folder = json!({ "path": self.journals, "type": "Directory" });
        let volume = json!({ "name": "journals", "hostPath": folder });
        (volume, json!({ "name": "journals", "mountPath": "/journals" }))
    }

    /// The status of a container of a pod, of either kind; null if the pod lacks it.
    ///
    /// # Panics
    /// If there is no such pod.
    #[must_use]
    pub fn container(&self, pod: &str, name: &str) -> Value {
        container(&self.get("pod", pod).expect("a pod"), name)
    }

    /// Sends a signal, as in SIGKILL, to the first process of a container of a pod.
    ///
    /// # Panics
    /// If there is no such container, or it has ended.
    pub fn signal(&self, pod: &str, container: &str, signal: &str) {
        let status = self.container(pod, container);
        let id = status["containerID"].as_str().and_then(|id| id.strip_prefix("containerd://"));
        let id = id.unwrap_or_else(|| panic!("{container} of {pod}: {status}"));
        let node = self.field(&format!("pod/{pod}"), ".spec.nodeName");
        let nodes = self.installation.cluster.nodes();
        let node =
            nodes.iter().find(|candidate| candidate.name() == node).expect("a node of the cluster");
        let mut kill = Command::new("ctr");
        kill.arg("--address").arg(node.socket()).args(["--namespace", "k8s.io"]);
        run(kill.args(["tasks", "kill", "--signal", signal, id])).expect("it is signalled");
    }

    /// What the workers' journals say so far.
    ///
    /// # Panics
    /// If a journal cannot be read.
    #[must_use]
    pub fn evidence(&self) -> Evidence {
        Evidence::new(Journals::new(self.journals.clone()).read().expect("journals"))
    }

    /// Every pod that there was, by name, as it was seen last.
    ///
    /// # Panics
    /// If what was seen cannot be read.
    #[must_use]
    pub fn pods_seen(&self) -> BTreeMap<String, Value> {
        self.last_events().into_iter().map(|(name, (_, pod))| (name, pod)).collect()
    }

    /// The same once every one of them is deleted: what was seen last is how it ended.
    ///
    /// # Panics
    /// If one is not for a long time.
    #[must_use]
    pub fn pods_deleted(&self) -> BTreeMap<String, Value> {
        // The watch hears of it later than who asks for the list.
        eventually("all pods to be seen deleted", || {
            let is_deleted = |(kind, _): &(String, Value)| kind == "DELETED";
            self.last_events().values().all(is_deleted).then_some(())
        });
        self.pods_seen()
    }

    /// The fewest pods that were ready at once, and not about to end, since this many were for the
    /// first time.
    ///
    /// # Panics
    /// If what was seen cannot be read.
    #[must_use]
    pub fn fewest_ready(&self, all: usize) -> usize {
        let mut ready = BTreeSet::new();
        let counts = self.events().into_iter().map(|(kind, pod)| {
            let name = pod["metadata"]["name"].clone().to_string();
            let ends = kind == "DELETED" || !pod["metadata"]["deletionTimestamp"].is_null();
            if is_ready(&pod) && !ends {
                ready.insert(name)
            } else {
                ready.remove(&name)
            };
            ready.len()
        });
        let counts: Vec<_> = counts.collect();
        let since_all = counts.into_iter().skip_while(|count| *count < all);
        since_all.min().unwrap_or(0)
    }

    /// The last event of every pod, by its name: what kind it is of, and the pod.
    fn last_events(&self) -> BTreeMap<String, (String, Value)> {
        let named = self.events().into_iter().filter_map(|(kind, pod)| {
            Some((pod["metadata"]["name"].as_str()?.to_owned(), (kind, pod)))
        });
        named.collect()
    }

    /// All events of pods, in their order: of what kind each is, and the pod.
    fn events(&self) -> Vec<(String, Value)> {
        let file = File::open(&self.seen).expect("it was created");
        let events = serde_json::Deserializer::from_reader(std::io::BufReader::new(file));
        // The last may be half written.
        let events = events.into_iter::<Value>().map_while(Result::ok);
        let pods = events.filter_map(|mut event| {
            Some((event["type"].as_str()?.to_owned(), event["object"].take()))
        });
        pods.collect()
    }

    /// The folder of the workers' journals.
    #[must_use]
    pub fn journals(&self) -> &Path {
        &self.journals
    }
}

/// Another value than the expected one, with the diagnostics of the namespace.
struct Unexpected<'a> {
    namespace: &'a TestNamespace<'a>,
    found: String,
}

impl Display for Unexpected<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "found {:?}\n{}", self.found, self.namespace.diagnostics())
    }
}

/// The status of a container of a pod, of either kind; null if the pod lacks it.
#[must_use]
pub fn container(pod: &Value, name: &str) -> Value {
    let kinds = ["containerStatuses", "initContainerStatuses"];
    let mut all = kinds.iter().filter_map(|kind| pod["status"][kind].as_array()).flatten();
    all.find(|status| status["name"] == name).cloned().unwrap_or_default()
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

impl Drop for TestNamespace<'_> {
    fn drop(&mut self) {
        let _ = self.watch.kill();
        let _ = self.watch.wait();
        // Whatever still runs must not disturb the next test.
        let delete = ["delete", "namespace", &*self.namespace, "--wait=false"];
        let _ = self.access.try_kubectl(&delete);
    }
}
