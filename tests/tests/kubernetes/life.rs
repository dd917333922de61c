//! A pod's whole life on a real node: the sidecar comes by a label, and whatever happens to the pod
//! or to one of its containers, no job is lost and no stream has two owners.

#[path = "life/asked.rs"]
mod asked;
#[path = "life/ends.rs"]
mod ends;
#[path = "life/helm.rs"]
mod helm;
#[path = "life/nodes.rs"]
mod nodes;
#[path = "life/page.rs"]
mod page;
#[path = "life/restarts.rs"]
mod restarts;

use leasehold_demo::checker::{double_owned, peak};
use leasehold_demo::evidence::Evidence;
use serde_json::{Value, json};
use tests::kube::{TestNamespace, WORKER_IMAGE, feeds, names, object};

/// The agent's container.
const AGENT: &str = "leasehold-agent";

/// A WorkerCluster for this many jobs, two a worker, and six streams, none of which a living worker
/// gives up within half a minute.
pub(crate) fn cluster(jobs: u32) -> [Value; 2] {
    let spec = json!({
        "maxJobs": jobs, "maxJobsPerWorker": 2,
        "lease": { "ttl": "30s" }, "drain": { "deadline": "4m" },
    });
    let set = json!({ "cluster": "builds", "streams": feeds(6) });
    [object("WorkerCluster", "builds", spec), object("StreamSet", "feeds", set)]
}

/// The spec of a pod as a user of plain Kubernetes writes it.
fn pod_spec(namespace: &TestNamespace<'_>, arguments: &[&str]) -> Value {
    let (volume, mount) = namespace.volume();
    let arguments = [&["--journal=/journals"], arguments].concat();
    json!({
        "terminationGracePeriodSeconds": 300,
        "containers": [{
            "name": "worker",
            "image": WORKER_IMAGE,
            "imagePullPolicy": "Never",
            "args": arguments,
            "resources": { "limits": { "memory": "64Mi" } },
            "volumeMounts": [mount],
        }],
        "volumes": [volume],
    })
}

/// A template of such pods, which ask for their sidecars.
fn template(namespace: &TestNamespace<'_>, arguments: &[&str]) -> Value {
    let labels = json!({ "app": "builds", "leasehold.dev/inject": "true" });
    json!({ "metadata": { "labels": labels }, "spec": pod_spec(namespace, arguments) })
}

/// A Deployment of this many workers.
pub(crate) fn deployment(
    namespace: &TestNamespace<'_>,
    replicas: u32,
    arguments: &[&str],
) -> Value {
    let spec = json!({
        "replicas": replicas,
        "selector": { "matchLabels": { "app": "builds" } },
        "strategy": { "rollingUpdate": { "maxSurge": "100%", "maxUnavailable": 0 } },
        "template": template(namespace, arguments),
    });
    object("Deployment", "builds", spec)
}

/// The names of the pods that are there and not about to end.
fn pods(namespace: &TestNamespace<'_>) -> Vec<String> {
    names(&namespace.pods())
}

/// How often a container of a living pod was restarted.
fn restarts(namespace: &TestNamespace<'_>, pod: &str, name: &str) -> u64 {
    namespace.container(pod, name)["restartCount"].as_u64().expect("a container that was started")
}

/// No job was lost, never did more run than may, and no stream had two owners.
pub(crate) fn nothing_broke(evidence: &Evidence, jobs_max: usize) {
    assert_eq!(evidence.contradictions, Vec::<String>::new());
    let lost: Vec<_> = evidence.runs.iter().filter(|run| !run.done).collect();
    assert!(lost.is_empty(), "lost: {lost:#?}");
    assert!(peak(&evidence.runs, 0, u64::MAX) <= jobs_max, "{:#?}", evidence.runs);
    let (_, cases) = double_owned(&evidence.owns);
    assert_eq!(cases, Vec::<String>::new());
}
