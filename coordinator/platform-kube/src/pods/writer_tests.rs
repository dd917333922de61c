//! Writes to a pod that other clients write to, and the reads of a new leader, against a small fake
//! API server.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use leasehold_coordinator_core::campaign::{
    EntryAttempt, EntryChange, EntryOutcome, EntryVersion, Namespaces,
};
use leasehold_coordinator_core::exposure::{AccountId, Entry, Exposure};
use leasehold_driver::clock;
use leasehold_driver::log_limit::LogLimit;
use leasehold_kube_api::names::{
    BUSY_LABEL, CLUSTER_LABEL, EXPOSED_LABEL, EXPOSURE_ANNOTATION, TRUE,
};
use leasehold_types::{ClusterName, Epoch, TimeBounds, WorkerKey};
use serde_json::{Value, json};
use tokio::sync::{broadcast, mpsc, watch};

use super::exposure_annotation;
use super::facts::{PodFacts, PodName};
use super::{Pods, PodsSettings, Shared};

/// The one pod, and what another client writes to it before each write of this replica.
#[derive(Default)]
struct Server {
    pod: Value,
    others: Vec<Value>,
    writes: usize,
    /// The pods of the second page of each list.
    second_page: Vec<Value>,
    /// The part of a list's path that is forbidden.
    forbidden: Option<&'static str>,
}

type Shop = Arc<Mutex<Server>>;

impl Server {
    fn put(&mut self, patch: Value) {
        merge(&mut self.pod, patch);
        let version = self.version() + 1;
        self.pod["metadata"]["resourceVersion"] = json!(version.to_string());
    }

    fn version(&self) -> u64 {
        let version = self.pod["metadata"]["resourceVersion"].as_str().expect("a version");
        version.parse().expect("a number")
    }

    fn answer(&mut self, method: &Method, address: &str, body: &[u8]) -> (u16, Value) {
        if *method == Method::PATCH {
            return self.write(serde_json::from_slice(body).expect("JSON"));
        }
        if !address.contains("labelSelector=") {
            return (200, self.pod.clone());
        }
        if self.forbidden.is_some_and(|part| address.contains(part)) {
            return (403, json!({ "kind": "Status", "status": "Failure", "code": 403 }));
        }
        if address.contains("continue=second") {
            return (200, json!({ "metadata": {}, "items": self.second_page }));
        }
        let continues = if self.second_page.is_empty() { "" } else { "second" };
        let labels = self.pod["metadata"]["labels"].as_object().expect("labels");
        let wanted = |label: &&String| address.contains(&label.replace('/', "%2F"));
        let found = labels.keys().find(wanted).map(|_| self.pod.clone());
        let items = Vec::from_iter(found);
        (200, json!({ "metadata": { "continue": continues }, "items": items }))
    }

    fn write(&mut self, patch: Value) -> (u16, Value) {
        self.writes += 1;
        if let Some(other) = self.others.pop() {
            self.put(other);
        }
        let is_this = |name: &str| match &patch["metadata"][name] {
            Value::Null => true,
            bound => *bound == self.pod["metadata"][name],
        };
        if !is_this("uid") || !is_this("resourceVersion") {
            let status = json!({ "kind": "Status", "status": "Failure", "code": 409 });
            return (409, status);
        }
        self.put(patch);
        (200, self.pod.clone())
    }
}

fn merge(onto: &mut Value, patch: Value) {
    match patch {
        Value::Object(fields) => {
            if !onto.is_object() {
                *onto = json!({});
            }
            for (name, value) in fields {
                merge(&mut onto[name], value);
            }
            let fields = onto.as_object_mut().expect("just made");
            fields.retain(|_, value| !value.is_null());
        }
        other => *onto = other,
    }
}

/// A server with one pod, and the pods of a replica that has seen it.
fn shop() -> (Shop, Pods) {
    let (shop, pods) = unseen();
    let pod = shop.lock().expect("whole").pod.clone();
    pods.0.store().apply(facts(pod), clock::now());
    (shop, pods)
}

/// A server with one pod, and the pods of a replica that has seen none.
fn unseen() -> (Shop, Pods) {
    unseen_in(&[])
}

/// The same, of a replica that serves these namespaces.
fn unseen_in(watched: &[&str]) -> (Shop, Pods) {
    let pod = json!({
        "metadata": {
            "namespace": "ci", "name": "w-0", "uid": "uid-1", "resourceVersion": "7",
            "labels": { CLUSTER_LABEL: "builds" },
        },
        "spec": { "nodeName": "n1", "containers": [] },
    });
    let shop = Arc::new(Mutex::new(Server { pod, ..Server::default() }));
    let server = Arc::clone(&shop);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.expect("a body");
            let address = head.uri.to_string();
            let answer = server.lock().expect("whole").answer(&head.method, &address, &body);
            let answer = (answer.0, Body::from(answer.1.to_string().into_bytes()));
            let response = Response::builder().status(answer.0).body(answer.1);
            Ok::<_, Infallible>(response.expect("a response"))
        }
    });
    let (_, handle) = watch::channel(None);
    let settings = PodsSettings {
        client: Client::new(service, "ci"),
        watched: watched.iter().map(|name| (*name).to_owned()).collect(),
        bounds: TimeBounds::default(),
        handle,
    };
    let pods = Pods(Arc::new(Shared {
        settings,
        store: Mutex::default(),
        scopes: Mutex::default(),
        changed: watch::Sender::new(0),
        changes: broadcast::channel(1).0,
        events: mpsc::channel(1).0,
        failed_writes: LogLimit::default(),
    }));
    (shop, pods)
}

fn facts(pod: Value) -> PodFacts {
    PodFacts::new(&serde_json::from_value(pod).expect("a pod")).expect("a whole pod")
}

fn key() -> WorkerKey {
    let name = PodName { namespace: "ci".into(), name: "w-0".into() };
    let cluster = ClusterName::in_namespace("ci", "builds").expect("a name");
    name.key_in(&cluster).expect("a worker")
}

fn exposure(jobs_max: u32) -> Exposure {
    Exposure { ttl: Duration::from_secs(10), jobs_max, ..Exposure::default() }
}

fn entry(epoch: u64, jobs_max: u32) -> Entry {
    Entry { epoch: Epoch(epoch), exposure: exposure(jobs_max) }
}

/// The leader of term 2 enters the worker.
async fn enter(pods: &Pods, jobs_max: u32) -> EntryOutcome {
    enter_over(pods, jobs_max, EntryVersion(0)).await
}

/// The same, where leadership was renewed after this version of the pod was read.
async fn enter_over(pods: &Pods, jobs_max: u32, confirmed: EntryVersion) -> EntryOutcome {
    let change = EntryChange::Register(key(), AccountId(1), exposure(jobs_max));
    pods.write_entry(Epoch(2), EntryAttempt { change, confirmed }).await
}

/// The leader of term 2 removes the worker's entry.
async fn strike(pods: &Pods) -> EntryOutcome {
    let attempt =
        EntryAttempt { change: EntryChange::Unregister(key()), confirmed: EntryVersion(0) };
    pods.write_entry(Epoch(2), attempt).await
}

/// The write of the leader of a term.
fn annotation(epoch: u64, jobs_max: u32) -> Value {
    let exposures = BTreeMap::from([(key().cluster, entry(epoch, jobs_max))]);
    json!({ "metadata": {
        "labels": { EXPOSED_LABEL: TRUE, BUSY_LABEL: TRUE },
        "annotations": { EXPOSURE_ANNOTATION: exposure_annotation::text(&exposures) },
    } })
}

/// The jobs that the exposure on the server's pod allows.
fn written(shop: &Shop) -> Option<u32> {
    let pod = shop.lock().expect("whole").pod.clone();
    facts(pod).exposures.get(&key().cluster).map(|entry| entry.exposure.jobs_max)
}

/// Every worker that may hold anything, of all namespaces.
async fn listed(pods: &Pods) -> BTreeMap<WorkerKey, Entry> {
    pods.list_exposed(&Namespaces::All).await.expect("an answer").exposed
}

fn label(shop: &Shop, label: &str) -> Value {
    shop.lock().expect("whole").pod["metadata"]["labels"][label].clone()
}

#[tokio::test]
async fn writing_an_entry_sets_the_label_and_removing_it_clears_the_label() {
    let (shop, pods) = shop();
    assert_eq!(enter(&pods, 3).await, EntryOutcome::Done);
    assert_eq!((written(&shop), label(&shop, EXPOSED_LABEL)), (Some(3), json!(TRUE)));
    assert_eq!(label(&shop, BUSY_LABEL), json!(TRUE));
    assert_eq!(strike(&pods).await, EntryOutcome::Done);
    assert_eq!((written(&shop), label(&shop, EXPOSED_LABEL)), (None, Value::Null));
    assert_eq!(label(&shop, BUSY_LABEL), Value::Null);
    assert_eq!(shop.lock().expect("whole").writes, 2, "the second write needs no read");
}

#[tokio::test]
async fn a_leader_replaces_a_concurrent_write_of_its_predecessor() {
    let (shop, pods) = shop();
    shop.lock().expect("whole").others = vec![annotation(1, 5)];
    assert_eq!(enter(&pods, 3).await, EntryOutcome::Done);
    assert_eq!(written(&shop), Some(3));
}

#[tokio::test]
async fn a_deposed_leader_does_not_overwrite_its_successor() {
    let (shop, pods) = shop();
    assert_eq!(enter(&pods, 3).await, EntryOutcome::Done);
    // The write of the successor comes between the first attempt and the second.
    shop.lock().expect("whole").others = vec![annotation(3, 4)];
    assert_eq!(strike(&pods).await, EntryOutcome::Superseded);
    assert_eq!(written(&shop), Some(4));
    shop.lock().expect("whole").others = vec![annotation(3, 5)];
    assert_eq!(enter(&pods, 9).await, EntryOutcome::Superseded);
    assert_eq!(written(&shop), Some(5));
}

#[tokio::test]
async fn gives_up_after_repeated_conflicts() {
    let (shop, pods) = shop();
    let change = json!({ "metadata": { "labels": { "app": "x" } } });
    shop.lock().expect("whole").others = vec![change; 9];
    assert_eq!(enter(&pods, 3).await, EntryOutcome::Failed);
    assert_eq!((written(&shop), shop.lock().expect("whole").writes), (None, 3));
}

#[tokio::test]
async fn an_unrelated_change_does_not_prevent_the_write() {
    let (shop, pods) = shop();
    enter(&pods, 3).await;
    shop.lock().expect("whole").others = vec![json!({ "status": { "phase": "Running" } })];
    assert_eq!(strike(&pods).await, EntryOutcome::Done);
    assert_eq!(written(&shop), None);
}

#[tokio::test]
async fn does_not_mark_a_pod_idle_after_a_later_write() {
    let (shop, pods) = shop();
    let seen = pods.find("ci", "w-0").expect("a pod");
    enter(&pods, 3).await;
    assert!(!pods.mark_busy(&seen, false).await.expect("an answer"));
    assert_eq!(label(&shop, BUSY_LABEL), json!(TRUE));
    let seen = pods.find("ci", "w-0").expect("a pod");
    assert!(pods.mark_busy(&seen, false).await.expect("an answer"));
    assert_eq!(label(&shop, BUSY_LABEL), Value::Null);
}

#[tokio::test]
async fn does_not_write_to_a_later_pod_of_the_name() {
    let (shop, pods) = shop();
    shop.lock().expect("whole").others = vec![json!({ "metadata": { "uid": "uid-2" } })];
    assert_eq!(enter(&pods, 3).await, EntryOutcome::Failed);
    assert_eq!(written(&shop), None);
}

#[tokio::test]
async fn finds_an_exposed_pod_by_either_label() {
    for lost in [CLUSTER_LABEL, EXPOSED_LABEL] {
        let (shop, pods) = unseen();
        shop.lock().expect("whole").put(annotation(1, 3));
        shop.lock().expect("whole").put(json!({ "metadata": { "labels": { lost: null } } }));
        let exposed = listed(&pods).await;
        assert_eq!(exposed, BTreeMap::from([(key(), entry(1, 3))]), "without {lost}");
    }
}

#[tokio::test]
async fn a_namespace_that_may_not_be_listed_is_left_out_until_it_may() {
    let (shop, pods) = unseen_in(&["ci", "cd"]);
    shop.lock().expect("whole").put(annotation(1, 3));
    let mut known = shop.lock().expect("whole").pod.clone();
    merge(&mut known, json!({ "metadata": { "namespace": "cd", "uid": "uid-2" } }));
    pods.0.store().apply(facts(known), clock::now());
    shop.lock().expect("whole").forbidden = Some("/namespaces/cd/pods");
    let listing = pods.list_exposed(&Namespaces::All).await.expect("an answer");
    assert_eq!(listing.exposed.keys().collect::<Vec<_>>(), [&key()], "what was seen says nothing");
    assert_eq!(listing.unreadable, BTreeSet::from(["cd".to_owned()]));

    let only = Namespaces::Only(listing.unreadable);
    let listing = pods.list_exposed(&only).await.expect("an answer");
    assert_eq!((listing.exposed.len(), listing.unreadable.len()), (0, 1));
    shop.lock().expect("whole").forbidden = None;
    let name = ClusterName::in_namespace("cd", "builds").expect("a name");
    let exposures = BTreeMap::from([(name, entry(1, 3))]);
    let annotations = json!({ EXPOSURE_ANNOTATION: exposure_annotation::text(&exposures) });
    let moved = json!({ "namespace": "cd", "uid": "uid-2", "annotations": annotations });
    shop.lock().expect("whole").put(json!({ "metadata": moved }));
    let listing = pods.list_exposed(&only).await.expect("an answer");
    let clusters: Vec<_> = listing.exposed.keys().map(|key| key.cluster.as_str()).collect();
    assert_eq!((clusters, listing.unreadable.len()), (vec!["cd/builds"], 0));

    let (shop, pods) = unseen();
    shop.lock().expect("whole").forbidden = Some("/v1/pods");
    pods.list_exposed(&Namespaces::All).await.expect_err("no pod may be listed at all");
}

#[tokio::test]
async fn a_new_leader_reads_every_page_of_pods() {
    let (shop, pods) = unseen();
    shop.lock().expect("whole").put(annotation(1, 3));
    let mut other = shop.lock().expect("whole").pod.clone();
    merge(&mut other, json!({ "metadata": { "name": "w-1", "uid": "uid-2" } }));
    shop.lock().expect("whole").second_page = vec![other];
    let exposed = listed(&pods).await;
    let names: Vec<_> = exposed.keys().map(|key| key.worker.as_str()).collect();
    assert_eq!(names, ["w-0", "w-1"]);
}

#[tokio::test]
async fn only_a_confirmed_leader_replaces_an_unreadable_entry() {
    let names = r#"{"ci/builds":{"incarnation":1,"ttlMs":1,"jobsMax":1,"sets":{"ci/feeds":true}}}"#;
    for invalid in [json!("invalid"), Value::Null, json!(names)] {
        let (shop, pods) = unseen();
        shop.lock().expect("whole").put(annotation(1, 3));
        let change = json!({ "metadata": { "annotations": { EXPOSURE_ANNOTATION: invalid } } });
        shop.lock().expect("whole").put(change);
        let exposed = listed(&pods).await;
        assert_eq!(exposed, BTreeMap::from([(key(), Entry::unreadable())]));
        let pod = shop.lock().expect("whole").pod.clone();
        pods.0.store().apply(facts(pod), clock::now());
        let EntryOutcome::Unreadable(version) = enter(&pods, 3).await else {
            panic!("a successor may have written it")
        };
        // Another client writes between the renewal and the second attempt.
        shop.lock().expect("whole").others = vec![json!({ "status": { "phase": "Running" } })];
        let EntryOutcome::Unreadable(later) = enter_over(&pods, 3, version).await else {
            panic!("a successor may have written the entry")
        };
        assert!(version < later);
        assert_eq!(enter_over(&pods, 3, later).await, EntryOutcome::Done);
        assert_eq!(written(&shop), Some(3));
    }
}
