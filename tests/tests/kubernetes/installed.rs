//! Control planes that each serve one test at a time. What `deploy/` installs, for tests that look
//! at it, since it is installed into one namespace of one name; and a coordinator with no more than
//! the rights that it is given there.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Condvar, LazyLock, Mutex, OnceLock, PoisonError};

use serde_json::Value;
use tests::kube::{Access, ControlPlane, Namespace, Replicas, TokenFor};
use tests::process::{Process, eventually, free_address};
use tests::toolbox;

/// A control plane on which no other test that takes one runs meanwhile.
pub(crate) struct ExclusiveControlPlane {
    plane: &'static ControlPlane,
    _free: FreeOnDrop,
}

/// Control planes that each serve one test at a time.
struct Pool {
    planes: &'static [OnceLock<Option<ControlPlane>>],
    /// The places of those that no test has.
    free: Mutex<Vec<usize>>,
    freed: Condvar,
}

/// For tests that install: two, so that those tests are not the last ones.
static FOR_INSTALLING: LazyLock<Pool> = LazyLock::new(|| {
    static PLANES: [OnceLock<Option<ControlPlane>>; 2] = [const { OnceLock::new() }; 2];
    Pool::new(&PLANES)
});
/// For tests that end or count what others need. It keeps Leasehold's kinds.
static FOR_FAILURES: LazyLock<Pool> = LazyLock::new(|| {
    static PLANES: [OnceLock<Option<ControlPlane>>; 1] = [const { OnceLock::new() }];
    Pool::new(&PLANES)
});

impl Pool {
    fn new(planes: &'static [OnceLock<Option<ControlPlane>>]) -> Self {
        let free = Mutex::new((0..planes.len()).rev().collect());
        Self { planes, free, freed: Condvar::new() }
    }

    fn take(&'static self) -> Option<ExclusiveControlPlane> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let place = loop {
            match free.pop() {
                Some(place) => break place,
                None => free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(free);
        let own = FreeOnDrop { pool: self, place };
        let plane = self.planes[place].get_or_init(ControlPlane::start).as_ref()?;
        Some(ExclusiveControlPlane { plane, _free: own })
    }
}

/// A control plane that is free again afterwards.
struct FreeOnDrop {
    pool: &'static Pool,
    place: usize,
}

impl Drop for FreeOnDrop {
    fn drop(&mut self) {
        self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.place);
        self.pool.freed.notify_one();
    }
}

impl ExclusiveControlPlane {
    /// One to install on: what the test installs, it removes. None where there are no binaries,
    /// which is noted.
    pub(crate) fn take() -> Option<Self> {
        let taken = FOR_INSTALLING.take()?;
        // A test that failed may have left a node that nobody plays any more: no pod ends there.
        if !taken.access().kubectl(&["get", "nodes", "--output=name"]).is_empty() {
            taken.access().kubectl(&["delete", "nodes", "--all"]);
            let pods = ["delete", "pods", "--all-namespaces", "--all"];
            taken.access().kubectl(&[&pods[..], &["--force", "--grace-period=0"]].concat());
        }
        Some(taken)
    }

    /// One whose components may be ended, with Leasehold's kinds and a new namespace. None where
    /// there are no binaries, which is noted.
    pub(crate) fn for_failures(namespace: &str) -> Option<Self> {
        let taken = FOR_FAILURES.take()?;
        // A test that failed may have left one ended.
        taken.plane.start_missing_components();
        Replicas::define(taken.access());
        let _ = Namespace::create(taken.access(), namespace);
        Some(taken)
    }

    pub(crate) fn plane(&self) -> &ControlPlane {
        self.plane
    }

    pub(crate) fn access(&self) -> &Access {
        self.plane.access()
    }

    /// The file of the coordinator's requests, those of earlier tests first.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.plane.audit_log()
    }

    /// The API server's address, as a URL.
    pub(crate) fn url(&self) -> String {
        self.plane.url()
    }
}

/// The definitions of kinds and an overlay, installed for as long as this value is there.
pub(crate) struct Installed<'a> {
    access: &'a Access,
    pub(crate) folder: String,
    kinds: String,
}

impl<'a> Installed<'a> {
    pub(crate) fn new(access: &'a Access, folder: &Path) -> Self {
        let [folder, kinds] = [folder, &self::folder("crds")]
            .map(|folder| folder.to_str().expect("UTF-8").to_owned());
        // Made first, so that half an installation is removed, too.
        let installed = Self { access, folder, kinds };
        strictly_apply(access, &["-k", &installed.kinds]);
        strictly_apply(access, &["-k", &installed.folder]);
        installed
    }
}

impl Drop for Installed<'_> {
    fn drop(&mut self) {
        for folder in [&self.folder, &self.kinds] {
            remove(self.access, &["-k", folder]);
        }
    }
}

/// Deletes what the arguments name, and waits until it is gone.
///
/// # Panics
/// If it stays for a long time.
pub(crate) fn remove(access: &Access, what: &[&str]) {
    /// How often the removal is asked for.
    const ATTEMPTS_MAX: u32 = 60;
    let delete = [&["delete", "--ignore-not-found", "--timeout=10s"], what].concat();
    let gone = (0..ATTEMPTS_MAX).any(|attempt| match access.try_kubectl(&delete) {
        Ok(_) => true,
        Err(why) => {
            eprintln!("not removed yet: {why}");
            nudge(access, attempt);
            false
        }
    });
    assert!(gone || std::thread::panicking(), "{} is not removed", what.join(" "));
}

/// Has the API server look again at the kinds that it is removing, and shows what it says of them:
/// when it starved, its finalizer waits for minutes before it tries once more, or until the next
/// change of the definition.
fn nudge(access: &Access, attempt: u32) {
    let conditions = "--output=jsonpath={range .items[?(@.metadata.deletionTimestamp)]}\
        {.metadata.name}{\"\\n\"}{range .status.conditions[*]}    {.type}={.status} {.message}\
        {\"\\n\"}{end}{end}";
    let text = access.try_kubectl(&["get", "customresourcedefinitions", conditions]);
    let text = text.unwrap_or_else(|why| why);
    eprintln!("{text}");
    let again = format!("leasehold.dev/nudge={attempt}");
    for name in text.lines().filter(|line| !line.starts_with(' ')) {
        let annotate = ["annotate", "--overwrite", "customresourcedefinitions", name, &again];
        if let Err(why) = access.try_kubectl(&annotate) {
            eprintln!("{name}: {why}");
        }
    }
}

/// Applies what the arguments name; nothing in it may be unknown, and no warning may come of it.
pub(crate) fn strictly_apply(access: &Access, what: &[&str]) {
    let mut command = access.kubectl_command(&["apply", "--validate=strict"]);
    let output = command.args(what).stdin(Stdio::null()).output().expect("kubectl starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "kubectl apply {what:?}: {said}");
}

pub(crate) fn folder(path: &str) -> PathBuf {
    toolbox::root().join("deploy").join(path)
}

/// The namespace of the coordinator.
pub(crate) const HOME: &str = "leasehold-system";

/// The pods of the installed coordinator, also those that end.
pub(crate) fn coordinator_pods(access: &Access) -> Vec<Value> {
    Namespace::existing(access, HOME).all_pods()
}

/// The chart's folder.
pub(crate) fn chart() -> String {
    folder("helm/leasehold").to_str().expect("UTF-8").to_owned()
}

/// Runs Helm in the coordinator's namespace; returns what it prints, or none where it is not built.
pub(crate) fn helm(access: &Access, arguments: &[&str]) -> Option<String> {
    let output = access.helm_command()?.args(arguments).args(["--namespace", HOME]).output();
    let output = output.expect("Helm starts");
    let [out, error] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("UTF-8"));
    assert!(output.status.success(), "{arguments:?}: {out}{error}");
    Some(out)
}

/// Waits until all pods of the coordinator are there: their admission is the namespace's level of
/// pod security.
pub(crate) fn until_pods_are_admitted(access: &Access, replicas: usize) {
    eventually("the coordinator's pods", || {
        for event in access.objects().list("leasehold-system", "events").expect("a list") {
            assert_ne!(event["reason"], "FailedCreate", "{event:#}");
        }
        (coordinator_pods(access).len() == replicas).then_some(())
    });
}

pub(crate) fn until_kinds_are_known(access: &Access) {
    let plurals =
        ["workerclusters", "streamsets", "workerclasses", "pipelines", "pipelinebindings"];
    let kinds = plurals.map(|plural| format!("crd/{plural}.leasehold.dev"));
    let kinds = kinds.each_ref().map(String::as_str);
    access.kubectl(&[&["wait", "--for=condition=Established"], &kinds[..]].concat());
}

/// A coordinator that does not run in a pod.
pub(crate) struct LocalCoordinator {
    pub(crate) process: Process,
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    /// Where it serves the webhook.
    pub(crate) webhook: SocketAddr,
}

/// The real coordinator as the Deployment starts it, but on this machine, with nothing but the
/// rights of its service account.
pub(crate) async fn coordinator_with_its_own_rights(
    access: &Access,
    folder: &Path,
) -> LocalCoordinator {
    let token = TokenFor {
        namespace: "leasehold-system",
        service_account: "leasehold-coordinator",
        audience: None,
        pod: None,
        seconds: 3_600,
    };
    let token = access.token(token).await.expect("a token");
    let own = access.with_token(&token, &folder.join("kubeconfig"));
    let (grpc, http, webhook) = (free_address(), free_address(), free_address());
    let mut command = Command::new(toolbox::binary("leasehold-coordinator"));
    command.env("KUBECONFIG", own.kubeconfig());
    let pods = coordinator_pods(access);
    let container = &pods.first().expect("a pod")["spec"]["containers"][0];
    for argument in container["args"].as_array().expect("arguments") {
        command.arg(argument.as_str().expect("a text"));
    }
    for variable in container["env"].as_array().expect("variables") {
        let name = variable["name"].as_str().expect("a name");
        let value = match name {
            "LEASEHOLD_LISTEN" | "LEASEHOLD_ADVERTISE" => grpc.to_string(),
            "LEASEHOLD_HTTP_LISTEN" => http.to_string(),
            "LEASEHOLD_WEBHOOK_LISTEN" => webhook.to_string(),
            "RUST_LOG" => "info,leasehold_coordinator=debug".to_owned(),
            _ => match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                Some("metadata.name") => "replica".to_owned(),
                Some("metadata.namespace") => "leasehold-system".to_owned(),
                Some("status.podIP") => grpc.ip().to_string(),
                Some(path) => panic!("what is {path}?"),
                None => variable["value"].as_str().expect("a value").to_owned(),
            },
        };
        command.env(name, value);
    }
    let process = Process::start(&mut command, &folder.join("coordinator.log"));
    LocalCoordinator { process, grpc, http, webhook }
}
