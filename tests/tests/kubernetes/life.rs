//! A pod's whole life on a real node: the sidecar comes by a label, and whatever happens to the pod
//! or to one of its containers, no job is lost and no stream has two owners.

#[path = "life/asked.rs"]
mod asked;
#[path = "life/ends.rs"]
mod ends;
#[path = "life/nodes.rs"]
mod nodes;
#[path = "life/page.rs"]
mod page;
#[path = "life/restarts.rs"]
mod restarts;

use leasehold_demo::checker::{double_owned, peak};
use leasehold_demo::evidence::Evidence;
use tests::kube::{TestNamespace, WORKER_IMAGE};

/// The agent's container.
const AGENT: &str = "leasehold-agent";

/// A WorkerCluster for this many jobs, two a worker, and six streams, none of which a living worker
/// gives up within half a minute.
fn cluster(jobs: u32, more: &str) -> String {
    let streams: Vec<_> = (1..=6).map(|number| format!("{{name: feed-{number}}}")).collect();
    format!(
        r"
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {{name: builds}}
spec:
  maxJobs: {jobs}
  maxJobsPerWorker: 2
  lease: {{ttl: 30s}}
  drain: {{deadline: 4m}}
{more}---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {{name: feeds}}
spec:
  cluster: builds
  streams: [{}]
",
        streams.join(", ")
    )
}

/// A pod template as a user of plain Kubernetes writes it, except for one
/// label.
fn template(namespace: &TestNamespace<'_>, arguments: &[&str]) -> String {
    let (volume, mount) = namespace.volume();
    let mut all = vec!["--journal=/journals"];
    all.extend(arguments);
    format!(
        r"
    metadata:
      labels: {{app: builds, leasehold.dev/inject: 'true'}}
    spec:
      terminationGracePeriodSeconds: 300
      containers:
      - name: worker
        image: {WORKER_IMAGE}
        imagePullPolicy: Never
        args: {all:?}
        resources: {{limits: {{memory: 64Mi}}}}
        volumeMounts: [{mount}]
      volumes: [{volume}]
"
    )
}

/// A Deployment of this many workers.
fn deployment(namespace: &TestNamespace<'_>, replicas: u32, arguments: &[&str]) -> String {
    format!(
        r"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: builds}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: builds}}}}
  strategy: {{rollingUpdate: {{maxSurge: 100%, maxUnavailable: 0}}}}
  template:{}",
        template(namespace, arguments)
    )
}

/// The names of the pods that are there and not about to end.
fn pods(namespace: &TestNamespace<'_>) -> Vec<String> {
    let pods = namespace.pods().into_iter();
    pods.filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned)).collect()
}

/// How often a container of a living pod was restarted.
fn restarts(namespace: &TestNamespace<'_>, pod: &str, name: &str) -> u64 {
    namespace.container(pod, name)["restartCount"].as_u64().expect("a container that was started")
}

/// No job was lost, never did more run than may, and no stream had two owners.
fn nothing_broke(evidence: &Evidence, jobs_max: usize) {
    assert_eq!(evidence.contradictions, Vec::<String>::new());
    let lost: Vec<_> = evidence.runs.iter().filter(|run| !run.done).collect();
    assert!(lost.is_empty(), "lost: {lost:#?}");
    assert!(peak(&evidence.runs, 0, u64::MAX) <= jobs_max, "{:#?}", evidence.runs);
    let (_, cases) = double_owned(&evidence.owns);
    assert_eq!(cases, Vec::<String>::new());
}
