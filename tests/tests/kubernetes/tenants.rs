//! Tenants of one coordinator: what a user of one namespace creates there does not keep out the
//! objects of the others, and every leader decides the same.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use rustix::process::Signal;
use serde_json::{Value, json};
use tests::kube::{Access, Cluster, Namespace, Replicas, TokenFor};
use tests::process::{eventually, get, soon};
use tokio::task::JoinSet;

/// More WorkerClusters than one coordinator takes.
const CROWD: usize = 1_010;
/// How many are created at once.
const WRITERS: usize = 16;

/// A WorkerCluster that wants nothing but to exist.
fn worker_cluster(name: &str) -> Value {
    json!({
        "apiVersion": "leasehold.dev/v1alpha1",
        "kind": "WorkerCluster",
        "metadata": { "name": name },
        "spec": { "maxJobs": 1, "maxJobsPerWorker": 1 },
    })
}

/// The WorkerClusters of a namespace.
fn worker_clusters(client: Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("leasehold.dev", "v1alpha1", "WorkerCluster");
    Api::namespaced_with(client, namespace, &ApiResource::from_gvk(&kind))
}

/// Access for a service account of the namespace that may do with WorkerClusters what `edit` may.
async fn editor(namespace: &Namespace, replicas: &Replicas) -> Access {
    namespace.wait_for_account();
    let verbs = "--verb=create,update,patch,delete";
    let resource = "--resource=workerclusters.leasehold.dev";
    namespace.kubectl(&["create", "role", "edit", verbs, resource]);
    let account = format!("--serviceaccount={namespace}:default");
    namespace.kubectl(&["create", "rolebinding", "edit", "--role=edit", &account]);
    let wanted =
        TokenFor { namespace, service_account: "default", audience: None, pod: None, seconds: 600 };
    let token = namespace.access.token(wanted).await.expect("a token");
    namespace.access.with_token(&token, &replicas.folder().join("editor"))
}

/// Fills a namespace, the last name of the alphabet first.
async fn fill(editor: &Access, namespace: &str) {
    let api = worker_clusters(editor.client().await, namespace);
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let api = api.clone();
        writers.spawn(async move {
            for number in (writer..CROWD).step_by(WRITERS) {
                let object = worker_cluster(&format!("c{:04}", CROWD - number));
                let object = serde_json::from_value(object).expect("an object");
                let created = api.create(&PostParams::default(), &object).await;
                created.expect("the user may create it");
            }
        });
    }
    writers.join_all().await;
}

/// The clusters that a replica has in force.
fn in_force(http: SocketAddr) -> BTreeSet<String> {
    let (_, body) = get(http, "/metrics").unwrap_or_default();
    let figures = body.lines().filter_map(|line| line.strip_prefix("leasehold_jobs_max{"));
    let name = |line: &str| line.split("cluster=\"").nth(1)?.split('"').next().map(str::to_owned);
    figures.filter_map(name).collect()
}

/// The message of the condition `Stalled` of a WorkerCluster.
fn stalled(namespace: &Namespace, name: &str) -> Option<String> {
    let object = namespace.get("wc", name).expect("an object");
    let conditions = object["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == "Stalled")?;
    found["message"].as_str().map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_user_who_fills_a_namespace_keeps_nobody_out_under_any_leader() {
    let Some(cluster) = Cluster::shared() else { return };
    let access = cluster.access();
    Replicas::define(access);
    let crowd = cluster.namespace("a-crowd");
    let other = cluster.namespace("other");
    let mut replicas = Replicas::new(access, &crowd, &["--watch-namespace", &other]);
    replicas.start();
    replicas.start();
    let leader = replicas.leader();
    let http = replicas.running[leader].http;
    fill(&editor(&crowd, &replicas).await, &crowd).await;
    soon("the places of the namespace", || (!in_force(http).is_empty()).then_some(())).await;

    // Objects of another namespace, made later, are served.
    other.apply(&worker_cluster("late"));
    let wait = ["wait", "--for=jsonpath={.status.maxJobs}=1", "wc/late", "--timeout=120s"];
    other.kubectl(&wait);
    let all = in_force(http);
    let of_crowd = all.iter().filter(|name| name.starts_with(&*crowd)).count();
    assert_eq!((of_crowd, all.len()), (250, 251));

    // The user sees why the others are not.
    let api = worker_clusters(access.client().await, &crowd);
    let list = api.list_metadata(&ListParams::default()).await.expect("a list");
    let names = list.items.into_iter().filter_map(|cluster| cluster.metadata.name);
    let refused: Vec<_> = names.filter(|name| !all.contains(&format!("{crowd}/{name}"))).collect();
    assert_eq!(refused.len(), CROWD - 250);
    let words = format!(
        "metadata.name: is one more than 250 WorkerClusters and WorkerClasses, the most that \
         namespace {crowd} may have: delete those that are not needed, or ask for a higher \
         --namespace-share of the coordinators"
    );
    let message = eventually("the reason in the status", || stalled(&crowd, &refused[0]));
    assert!(message.contains(&words), "{message}");

    // A leader that has just started, and remembers nothing, decides the same.
    let standby = 1 - leader;
    replicas.replace(standby);
    replicas.wait_ready();
    replicas.running[leader].process.signal(Signal::KILL);
    replicas.running.remove(leader);
    let http = replicas.running[replicas.leader()].http;
    soon("the same clusters in force", || (in_force(http) == all).then_some(())).await;

    // Other tests may watch all namespaces.
    api.delete_collection(&DeleteParams::default(), &ListParams::default()).await.expect("deleted");
}

/// Pods that no node ever takes.
const HEAVY_PODS: usize = 10;
/// Bytes of an annotation: the API server accepts 262,144.
const HEAVY_BYTES: usize = 250_000;

/// A pod whose annotation says that it may hold leases of thousands of clusters.
fn heavy_pod(namespace: &str, number: usize) -> Value {
    let entry = |number| format!("\"{namespace}/{number:05}\":0");
    let count = HEAVY_BYTES / (entry(0).len() + 1);
    let text = format!("{{{}}}", (0..count).map(entry).collect::<Vec<_>>().join(","));
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("heavy-{number}"),
            "labels": { "leasehold.dev/cluster": "builds" },
            "annotations": { "leasehold.dev/exposure": text },
        },
        "spec": {
            "nodeSelector": { "leasehold.dev/nowhere": "true" },
            "containers": [{ "name": "worker", "image": "worker" }],
        },
    })
}

/// The workers that a replica has accounts of.
fn workers(http: SocketAddr) -> Option<f64> {
    let (_, body) = get(http, "/metrics")?;
    let figures = body.lines().filter(|line| line.starts_with("leasehold_workers{"));
    let figures: Vec<f64> =
        figures.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    (!figures.is_empty()).then(|| figures.iter().sum())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_user_writes_on_pods_makes_no_more_workers_than_there_are_pods() {
    let Some(cluster) = Cluster::shared() else { return };
    let access = cluster.access();
    Replicas::define(access);
    let namespace = cluster.namespace("heavy");
    namespace.wait_for_account();
    for number in 0..HEAVY_PODS {
        let created = namespace.try_kubectl_with(&["create"], &heavy_pod(&namespace, number));
        created.expect("the API server takes it");
    }
    namespace.apply(&worker_cluster("builds"));

    // The first leader reads the pods, and so does the next one.
    let mut replicas = Replicas::new(access, &namespace, &[]);
    for _ in 0..2 {
        replicas.start();
        let http = replicas.running[replicas.leader()].http;
        let found = eventually("workers", || workers(http).filter(|found| *found > 0.0));
        assert_eq!(found, HEAVY_PODS as f64, "workers of {HEAVY_PODS} pods");
        replicas.running.remove(0).process.signal(Signal::KILL);
    }
    namespace.kubectl(&["delete", "pods", "--all", "--grace-period=0", "--force"]);
}
