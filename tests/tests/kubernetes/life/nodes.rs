//! Nodes that are to go: drained beside a budget of the user's, tainted by an autoscaler, cordoned
//! all but one, with a job that hangs, and while no coordinator runs.

use std::thread;

use serde_json::{Value, json};
use tests::kube::{RealInstallation, TestNamespace, list, names, object, until};
use tests::process::eventually;

use super::{cluster, deployment, nothing_broke, pods};

/// The namespace and the Deployment of the coordinator.
const COORDINATOR: [&str; 3] =
    ["--namespace", "leasehold-system", "deployment/leasehold-coordinator"];
/// The workers of the fleet.
const WORKERS: usize = 4;

/// A fleet of four workers on three nodes that another team's Deployment makes, and its budget.
struct Fleet<'a> {
    installation: &'a RealInstallation,
    namespace: TestNamespace<'a>,
}

impl<'a> Fleet<'a> {
    fn start(installation: &'a RealInstallation) -> Self {
        let namespace = installation.namespace("nodes");
        let mut adopting = cluster(8);
        adopting[0]["spec"]["onCordon"] = json!("Drain");
        adopting[0]["spec"]["workloadRef"] = json!({ "kind": "Deployment", "name": "builds" });
        namespace.apply(&list(adopting));
        let jobs = ["--streams", "--job-ms-min=5000", "--job-ms-max=7000"];
        let mut workers = deployment(&namespace, 4, &jobs);
        let one_away = json!({ "maxSurge": 1, "maxUnavailable": 1 });
        workers["spec"]["strategy"]["rollingUpdate"] = one_away;
        namespace.apply(&workers);
        let theirs = json!({
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": { "matchLabels": { "app": "builds" } },
        });
        namespace.apply(&object("PodDisruptionBudget", "theirs", theirs));
        let fleet = Self { installation, namespace };
        fleet.until_all_work();
        fleet
    }

    fn until_all_work(&self) {
        self.namespace.until("wc/builds", ".status.workers.ready", "4");
        self.namespace.until("wc/builds", ".status.jobs.running", "8");
    }

    fn kubectl(&self, line: &str) {
        kubectl(self.installation, line);
    }

    /// The workers on a node.
    fn workers_on(&self, node: &str) -> usize {
        let pods = self.namespace.all_pods();
        pods.iter().filter(|pod| pod["spec"]["nodeName"] == node).count()
    }

    fn until_no_worker_on(&self, node: &str) {
        self.namespace.until_holds("no worker on the node", || match self.workers_on(node) {
            0 => Ok(()),
            left => Err(format!("{left} on {node}")),
        });
    }

    /// A node with a worker.
    fn node_with_workers(&self) -> String {
        let nodes = self.installation.cluster().nodes().iter();
        let mut nodes: Vec<_> = nodes.map(|node| (self.workers_on(node.name()), node)).collect();
        nodes.sort_by_key(|(workers, _)| *workers);
        let (workers, node) = nodes.pop().expect("a node");
        assert_ne!(workers, 0);
        node.name().to_owned()
    }

    /// The workers that drain.
    fn draining(&self) -> usize {
        let mark = |pod: &&Value| pod["metadata"]["annotations"]["leasehold.dev/drain"].is_string();
        self.namespace.pods().iter().filter(mark).count()
    }
}

/// `kubectl` without a namespace.
fn kubectl(installation: &RealInstallation, line: &str) {
    installation.cluster().access().kubectl(&line.split(' ').collect::<Vec<_>>());
}

/// A drain as people type it, of the workers alone.
fn drain(node: &str) -> String {
    format!("drain {node} --pod-selector=app=builds --delete-emptydir-data --force --timeout=170s")
}

#[test]
fn nodes_that_go_wait_for_jobs_and_never_take_more_workers_than_the_budget() {
    let Some(installation) = RealInstallation::start(3) else { return };
    let fleet = Fleet::start(&installation);

    // An administrator drains a node.
    let drained = fleet.node_with_workers();
    fleet.kubectl(&drain(&drained));
    fleet.until_no_worker_on(&drained);
    fleet.until_all_work();
    fleet.kubectl(&format!("uncordon {drained}"));

    // An autoscaler announces the end of a node by a taint, and evicts no pod that is busy.
    let tainted = fleet.node_with_workers();
    fleet.kubectl(&format!("taint node {tainted} karpenter.sh/disrupted=:NoSchedule"));
    fleet.until_no_worker_on(&tainted);
    fleet.until_all_work();
    fleet.kubectl(&format!("taint node {tainted} karpenter.sh/disrupted-"));

    // All nodes but one are cordoned; in the middle of it, none is any more.
    let kept = fleet.node_with_workers();
    let others: Vec<_> = installation.cluster().nodes().iter().map(|node| node.name()).collect();
    let others: Vec<_> = others.into_iter().filter(|node| *node != kept).collect();
    others.iter().for_each(|node| fleet.kubectl(&format!("cordon {node}")));
    eventually("the first drain", || (fleet.draining() > 0).then_some(()));
    others.iter().for_each(|node| fleet.kubectl(&format!("uncordon {node}")));
    eventually("no drain", || (fleet.draining() == 0).then_some(()));
    fleet.until_all_work();
    let fewest = fleet.namespace.fewest_ready(WORKERS);
    assert_eq!(fewest, WORKERS - 1, "no more than the budget allows were away at once");

    fleet.namespace.kubectl(&["delete", "wc/builds", "deployment/builds"]);
    fleet.namespace.until_no_pod("");
    nothing_broke(&fleet.namespace.evidence(), 8);

    a_job_that_hangs_leaves_its_node_after_the_deadline(&installation);
}

#[test]
fn a_node_is_drained_while_no_coordinator_runs_and_no_job_is_lost() {
    let Some(installation) = RealInstallation::start(2) else { return };
    let fleet = Fleet::start(&installation);
    let scale = |replicas: &str| {
        let access = installation.cluster().access();
        access.kubectl(&[&["scale"], &COORDINATOR[..], &["--replicas", replicas]].concat());
    };
    scale("0");
    let objects = installation.cluster().access().objects();
    let coordinators = || objects.list(COORDINATOR[1], "pods").expect("a list").len();
    until("the end of the coordinators", coordinators, |left| *left == 0);
    let all = || names(&fleet.namespace.all_pods());
    let before = all();
    let drained = fleet.node_with_workers();
    thread::scope(|scope| {
        let drains = scope.spawn(|| fleet.kubectl(&drain(&drained)));
        // Nobody refuses an eviction. The pod ends when its agent has nothing left, and no other
        // pod is made without an agent.
        eventually("the end of a worker", || {
            let now = all();
            before.iter().any(|pod| !now.contains(pod)).then_some(())
        });
        scale("2");
        drains.join().expect("the node is drained");
    });
    fleet.until_no_worker_on(&drained);
    fleet.kubectl(&format!("uncordon {drained}"));
    fleet.until_all_work();
    fleet.namespace.kubectl(&["delete", "wc/builds", "deployment/builds"]);
    fleet.namespace.until_no_pod("");
    nothing_broke(&fleet.namespace.evidence(), 8);
}

/// Its jobs never end: the fleet's manifest says that its node waits for them for five seconds.
fn a_job_that_hangs_leaves_its_node_after_the_deadline(installation: &RealInstallation) {
    let namespace = installation.namespace("hung");
    let mut releasing = cluster(2);
    releasing[0]["spec"]["drain"] = json!({ "deadline": "5s", "afterDeadline": "Release" });
    namespace.apply(&list(releasing));
    let hangs = ["--job-ms-min=3600000", "--job-ms-max=3600000"];
    let mut workers = deployment(&namespace, 1, &hangs);
    workers["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(5);
    namespace.apply(&workers);
    namespace.until("wc/builds", ".status.jobs.running", "2");
    let first = &pods(&namespace)[0];
    let node = namespace.field(&format!("pod/{first}"), ".spec.nodeName");
    kubectl(installation, &drain(&node));
    kubectl(installation, &format!("uncordon {node}"));
    let evidence = namespace.evidence();
    let lost = evidence.runs.iter().filter(|run| run.worker == *first && !run.done).count();
    assert_eq!(lost, 2, "{:#?}", evidence.runs);
    namespace.kubectl(&["delete", "wc/builds", "deployment/builds"]);
}
