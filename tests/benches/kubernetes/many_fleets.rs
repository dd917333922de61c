//! What many fleets cost a coordinator: its processor, its memory and its requests, idle and in a
//! rollout. The pods have no processes: agents are measured by the bench `fleet`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::kube::{Access, ControlPlane, HollowNode, NoProcesses, Replicas, TokenFor};
use tests::process::{PRESENT_MEMORY, memory_kib, processor_seconds, soon};

use crate::namespace;

/// The namespace of the coordinators and of all fleets. The API server logs the requests of this
/// service account there.
const NAMESPACE: &str = "leasehold-system";
const ACCOUNT: &str = "leasehold-coordinator";
/// Pods that one simulated node takes.
const PODS_PER_NODE: usize = 250;
/// How long the coordinators run before they count as idle, and how long they are then measured.
const SETTLE: Duration = Duration::from_secs(30);
const IDLE: Duration = Duration::from_secs(60);
/// Between two looks at the progress.
const LOOK: Duration = Duration::from_secs(2);
/// Of how many pods there is one in the rollout.
const ROLLED_PART: usize = 5;

/// How many fleets, and how many pods they have together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) fleets: usize,
    pub(crate) pods: usize,
}

/// What a coordinator has used up to a moment.
struct Usage {
    at: Instant,
    processor_s: f64,
    requests: usize,
    writes: usize,
}

/// Starts the fleets, and prints what they cost.
pub(crate) async fn measure(plane: &ControlPlane, size: Size) {
    let Size { fleets, pods } = size;
    println!("==> {fleets} WorkerClusters with {pods} pods, two coordinators");
    let admin = plane.access();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let access = as_coordinator(admin, &folder.path().join("kubeconfig")).await;
    let mut nodes = Vec::new();
    for number in 0..pods.div_ceil(PODS_PER_NODE) + 2 {
        let name = format!("many-{number}");
        nodes.push(HollowNode::join(admin.client().await, &name, Arc::new(NoProcesses)).await);
    }
    Replicas::define(admin);
    let mut replicas = Replicas::new(&access, NAMESPACE, &[]);
    replicas.start();
    replicas.start();
    soon("ready replicas", || replicas.are_ready().then_some(())).await;
    admin.apply(&clusters(0..fleets, pods / fleets, 1));
    progress(admin, "pods run", pods, is_ready).await;
    tokio::time::sleep(SETTLE).await;

    let leader = replicas.leader();
    let (leader, standby) = (&replicas.running[leader], &replicas.running[1 - leader]);
    let ids = [leader.process.id(), standby.process.id()];
    let log = plane.audit_log();
    println!("    idle for {} s", IDLE.as_secs());
    let before = ids.map(|id| usage(id, &log));
    tokio::time::sleep(IDLE).await;
    report("idle", ids, &before, &log);

    let rolled = (fleets / ROLLED_PART).max(1);
    let rolled_pods = rolled * (pods / fleets);
    println!("    a new image for {rolled_pods} pods of {rolled} fleets");
    let before = ids.map(|id| usage(id, &log));
    admin.apply(&clusters(0..rolled, pods / fleets, 2));
    progress(admin, "pods are new", rolled_pods, |pod| is_ready(pod) && is_new(pod)).await;
    report(&format!("rollout of {rolled_pods} pods"), ids, &before, &log);
}

/// Access as the coordinator's own account, with all rights: the API server logs its requests.
async fn as_coordinator(admin: &Access, kubeconfig: &Path) -> Access {
    namespace(admin, NAMESPACE);
    let account = format!("--serviceaccount={NAMESPACE}:{ACCOUNT}");
    admin.kubectl(&["create", "serviceaccount", ACCOUNT, "--namespace", NAMESPACE]);
    let role = "--clusterrole=cluster-admin";
    admin.kubectl(&["create", "clusterrolebinding", "many-fleets", role, &account]);
    let wanted = TokenFor {
        namespace: NAMESPACE,
        service_account: ACCOUNT,
        audience: None,
        pod: None,
        seconds: 86_400,
    };
    let token = admin.token(wanted).await.expect("a token of the account");
    admin.with_token(&token, kubeconfig)
}

/// WorkerClusters of so many workers each, with this version of their image.
fn clusters(numbers: std::ops::Range<usize>, workers: usize, version: usize) -> String {
    let mut text = String::new();
    for number in numbers {
        let _ = write!(
            text,
            "---\napiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\n\
             metadata: {{name: fleet-{number}, namespace: {NAMESPACE}}}\n\
             spec:\n  maxJobs: {workers}\n  maxJobsPerWorker: 1\n  template:\n    spec:\n      \
             containers: [{{name: worker, image: 'example.invalid/worker:{version}'}}]\n",
        );
    }
    text
}

/// Waits until so many pods are as `is_done` says, and prints how many are.
async fn progress(access: &Access, what: &str, wanted: usize, is_done: impl Fn(&Value) -> bool) {
    let begun = Instant::now();
    let mut shown = usize::MAX;
    loop {
        let pods = access.objects().list(NAMESPACE, "pods").unwrap_or_default();
        let done = pods.iter().filter(|pod| is_done(pod)).count();
        if done / 500 != shown / 500 || done >= wanted {
            println!("    {done} of {wanted} {what} after {} s", begun.elapsed().as_secs());
            shown = done;
        }
        if done >= wanted {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let mut conditions = conditions
        .filter(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    pod["metadata"]["deletionTimestamp"].is_null() && conditions.next().is_some()
}

fn is_new(pod: &Value) -> bool {
    pod["spec"]["containers"][0]["image"] == "example.invalid/worker:2"
}

fn usage(id: u32, log: &PathBuf) -> Usage {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let writes =
        ["\"verb\":\"create\"", "\"verb\":\"update\"", "\"verb\":\"patch\"", "\"verb\":\"delete\""];
    let is_write = |line: &&str| writes.iter().any(|verb| line.contains(verb));
    Usage {
        at: Instant::now(),
        processor_s: processor_seconds(id).expect("it runs"),
        requests: text.lines().count(),
        writes: text.lines().filter(is_write).count(),
    }
}

/// Prints what was used since `before`: the requests are those of both replicas.
fn report(what: &str, ids: [u32; 2], before: &[Usage; 2], log: &PathBuf) {
    let mut line = format!("{what}:");
    for ((name, id), before) in ["leader", "standby"].into_iter().zip(ids).zip(before) {
        let now = usage(id, log);
        let seconds = (now.at - before.at).as_secs_f64();
        let percent = (now.processor_s - before.processor_s) / seconds * 100.0;
        let memory = memory_kib(id, PRESENT_MEMORY).expect("it runs") / 1024;
        let _ = write!(line, " {name} {percent:.1} % of a core, {memory} MiB;");
    }
    let now = usage(ids[0], log);
    let seconds = (now.at - before[0].at).as_secs_f64();
    let rate = |count: usize, before: usize| (count - before) as f64 / seconds;
    println!(
        "    {line} {:.1} requests and {:.1} writes a second over {seconds:.0} s",
        rate(now.requests, before[0].requests),
        rate(now.writes, before[0].writes),
    );
}
