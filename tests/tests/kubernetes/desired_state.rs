//! What is wanted reaches a real replica from the API server: budgets, sets and the ConfigMaps that
//! hold their lists, as they come, change, go wrong and go.

use serde_json::{Value, json};
use tests::kube::{Cluster, Replicas, object, until};
use tests::process::get;

/// The figures of a cluster that a replica shows, and the problems that it knows of.
struct ReplicaMetrics {
    http: std::net::SocketAddr,
    cluster: String,
}

impl ReplicaMetrics {
    fn of_cluster(&self, name: &str) -> Option<u64> {
        let (_, body) = get(self.http, "/metrics")?;
        let cluster = format!("cluster=\"{}\"", self.cluster);
        let begins = format!("{name}{{");
        let line = body.lines().find(|line| line.starts_with(&begins) && line.contains(&cluster));
        line?.rsplit(' ').next()?.parse().ok()
    }

    fn problems(&self) -> Option<u64> {
        let (_, body) = get(self.http, "/metrics")?;
        let line = body.lines().find(|line| line.starts_with("leasehold_manifest_problems"));
        line?.rsplit(' ').next()?.parse().ok()
    }

    /// Waits for a budget, a number of streams and a number of problems.
    fn await_these(&self, what: &str, jobs_max: Option<u64>, streams: Option<u64>, problems: u64) {
        let figures = || {
            let [jobs_max, streams] = ["leasehold_jobs_max", "leasehold_streams"];
            (self.of_cluster(jobs_max), self.of_cluster(streams), self.problems())
        };
        until(what, figures, |figures| *figures == (jobs_max, streams, Some(problems)));
    }
}

/// A ConfigMap `list` with these keys.
fn list(data: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": "list", "labels": { "leasehold.dev/stream-list": "true" } },
        "data": data,
    })
}

/// A set of one stream and those of a key of `list`.
fn set(key: &str) -> Value {
    let from = json!({ "configMapKeyRef": { "name": "list", "key": key } });
    let streams = json!([{ "name": "first" }]);
    let spec = json!({ "cluster": "builds", "streams": streams, "streamsFrom": [from] });
    object("StreamSet", "cars", spec)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn valid_changes_apply_and_invalid_ones_keep_the_last_valid_state() {
    let Some(cluster) = Cluster::shared() else { return };
    let access = cluster.access();
    Replicas::define(access);
    let namespace = cluster.namespace("wanted");
    let mut replicas = Replicas::new(access, &namespace, &[]);
    replicas.start();
    let leader = replicas.leader();
    let http = replicas.running[leader].http;
    let figures = ReplicaMetrics { http, cluster: format!("{namespace}/builds") };

    let spec = json!({ "maxJobs": 8, "maxJobsPerWorker": 3 });
    namespace.apply(&object("WorkerCluster", "builds", spec));
    figures.await_these("a budget", Some(8), Some(0), 0);
    namespace.apply(&set("a.txt"));
    figures.await_these("a set whose ConfigMap is missing", Some(8), Some(0), 1);
    namespace.apply(&list(json!({ "a.txt": "x\ny\n", "b.yaml": "jobs: [p, q, r]" })));
    figures.await_these("streams from a ConfigMap", Some(8), Some(3), 0);

    namespace.apply(&list(json!({ "a.txt": "x\nx\n", "b.yaml": "jobs: [p, q, r]" })));
    figures.await_these("a wrong list, and the last good one", Some(8), Some(3), 1);
    namespace.kubectl(&["delete", "configmap", "list"]);
    figures.await_these("a lost list, and the last good one", Some(8), Some(3), 1);
    namespace.apply(&list(json!({ "a.txt": "x\n", "b.yaml": "jobs: [p, q, r]" })));
    figures.await_these("a fixed list", Some(8), Some(2), 0);
    namespace.apply(&set("b.yaml"));
    figures.await_these("another key", Some(8), Some(4), 0);
    let label = ["label", "configmap/list", "leasehold.dev/stream-list-"];
    namespace.kubectl(&label);
    figures.await_these("no label, and the last good list", Some(8), Some(4), 1);
    namespace.kubectl(&["label", "configmap/list", "leasehold.dev/stream-list=true"]);
    figures.await_these("a list with the label again", Some(8), Some(4), 0);

    namespace.kubectl(&["scale", "wc/builds", "--replicas=20"]);
    figures.await_these("a budget that was scaled", Some(20), Some(4), 0);
    namespace.kubectl(&["delete", "wc/builds"]);
    figures.await_these("a cluster that a set still runs on", Some(20), Some(4), 1);
    namespace.kubectl(&["delete", "ss/cars"]);
    figures.await_these("nothing", None, None, 0);
}
