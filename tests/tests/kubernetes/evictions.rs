//! Evictions through a real API server, which asks a coordinator about them: a pod that runs jobs
//! drains first, whatever budgets its user has, and every other pod goes at once.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use tests::kube::{
    Access, Cluster, FleetFixture, HollowNode, NoProcesses, Replicas, Work, list, name, object,
    until,
};
use tests::process::{eventually, until_ok};

/// The configuration by which the API server asks about the evictions of one namespace.
pub(crate) struct Asked {
    access: Access,
    name: String,
}

impl Asked {
    /// As `deploy/base` has it, but for this namespace and at this address.
    fn about(fixture: &FleetFixture, webhook: SocketAddr) -> Self {
        let text = std::fs::read_to_string(tests::toolbox::root().join("deploy/base/webhook.yaml"));
        let text = text.expect("the manifests");
        let documents = text.split("---\n").map(serde_yaml::from_str::<Value>);
        let mut documents = documents.map(|document| document.expect("YAML"));
        let found = documents.find(|document| document["kind"] == "ValidatingWebhookConfiguration");
        let mut wanted = found.expect("the configuration");
        let name = configuration(&fixture.namespace);
        wanted["metadata"] = json!({ "name": name });
        let webhooks = wanted["webhooks"].as_array_mut().expect("webhooks");
        webhooks.retain(|webhook| webhook["name"] == "evictions.leasehold.dev");
        let webhook_config = webhooks.first_mut().expect("the webhook");
        webhook_config["clientConfig"] = json!({ "url": format!("https://{webhook}/evict") });
        let label = json!({ "kubernetes.io/metadata.name": &*fixture.namespace });
        webhook_config["namespaceSelector"] = json!({ "matchLabels": label });
        fixture.access.apply(&wanted.to_string());
        let asked = Self { access: fixture.access.clone(), name };
        let path = "--output=jsonpath={.webhooks[0].clientConfig.url}";
        let get = ["get", "validatingwebhookconfiguration", &asked.name, path];
        until(
            "the key in the path",
            || fixture.access.kubectl(&get),
            |url| url.rsplit_once("/evict/").is_some_and(|(_, key)| key.len() == 32),
        );
        asked
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let delete = ["delete", "validatingwebhookconfiguration", &self.name];
        let _ = self.access.try_kubectl(&[&delete[..], &["--ignore-not-found"]].concat());
    }
}

fn configuration(namespace: &str) -> String {
    format!("evictions-{namespace}")
}

/// The milliseconds of a job that no test waits for.
const HANGS: u64 = 3_600_000;

/// A fixture whose API server asks its only replica; jobs take two to four seconds.
pub(crate) async fn evictions_of_jobs(prefix: &str, nodes: usize) -> Option<(FleetFixture, Asked)> {
    stage_with(prefix, nodes, Work::Jobs { ms_min: 2_000, ms_max: 4_000 }).await
}

/// The same; jobs never end.
pub(crate) async fn hanging_jobs(prefix: &str, nodes: usize) -> Option<(FleetFixture, Asked)> {
    stage_with(prefix, nodes, Work::Jobs { ms_min: HANGS, ms_max: HANGS }).await
}

async fn stage_with(prefix: &str, nodes: usize, work: Work) -> Option<(FleetFixture, Asked)> {
    let namespace = Cluster::shared()?.namespace(prefix);
    let flags = ["--validator-configuration", &configuration(&namespace)];
    let fixture = FleetFixture::start_with(namespace, 1, nodes, work, &flags).await;
    let asked = Asked::about(&fixture, fixture.replicas.running[0].webhook);
    Some((fixture, asked))
}

/// What the API server says to an eviction.
fn evict(fixture: &FleetFixture, pod: &str, options: &Value) -> Result<String, String> {
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "name": pod, "namespace": &*fixture.namespace },
        "deleteOptions": options,
    });
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", fixture.namespace);
    fixture.try_kubectl_with(&["create", "--raw", &path], &eviction)
}

fn is_busy(pod: &Value) -> bool {
    pod["metadata"]["labels"]["leasehold.dev/busy"] == "true"
}

/// The WorkerCluster `builds`, of two jobs a worker.
pub(crate) fn builds(fixture: &FleetFixture, jobs: u32) -> Value {
    let spec = json!({
        "maxJobs": jobs, "maxJobsPerWorker": 2, "lease": { "ttl": "10s" },
        "template": fixture.template(),
    });
    object("WorkerCluster", "builds", spec)
}

/// A PodDisruptionBudget as users write it, of one worker of `builds`.
fn budget(name: &str) -> Value {
    let spec = json!({
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": { "matchLabels": { "leasehold.dev/cluster": "builds" } },
    });
    object("PodDisruptionBudget", name, spec)
}

/// Why Leasehold makes no budget: a user may have one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_drain_gives_up_on_a_pod_under_two_budgets() {
    let Some(cluster) = Cluster::shared() else { return };
    let access = cluster.access();
    let namespace = cluster.namespace("two-budgets");
    let node = HollowNode::join(access.client().await, &namespace, Arc::new(NoProcesses)).await;
    let pod = foreign(node.name(), &json!({ "leasehold.dev/cluster": "builds" }));
    namespace.wait_for_account();
    namespace.apply(&list([pod, budget("a"), budget("b")]));
    namespace.kubectl(&["wait", "--for=condition=Ready", "pod/foreign"]);
    let drain = ["drain", node.name(), "--force", "--timeout=60s"];
    let refused = access.try_kubectl(&drain).expect_err("it gives up");
    assert!(refused.contains("more than one PodDisruptionBudget"), "{refused}");
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_evicted_worker_ends_its_jobs_first_whatever_budget_its_user_has() {
    let Some((fixture, _asked)) = evictions_of_jobs("evicted", 2).await else { return };
    fixture.apply(&builds(&fixture, 8));
    fixture.apply(&budget("theirs"));
    let evicted = wait_for_busy(&fixture, 4).remove(0);

    // A dry run gets the answer and starts nothing.
    let dry_run = json!({ "dryRun": ["All"] });
    until_ok("a dry run that is refused", || match evict(&fixture, &evicted, &dry_run) {
        Err(answer) if answer.contains("runs jobs: try again") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let drain = |pod: &str| {
        let pod = fixture.get("pod", pod)?;
        pod["metadata"]["annotations"]["leasehold.dev/drain"].as_str().map(str::to_owned)
    };
    assert_eq!(drain(&evicted), None);

    // So does a review of somebody who is not the API server.
    let review = review(&fixture.namespace, &evicted);
    let webhook = fixture.replicas.running[0].webhook;
    let server = format!("--server=https://{webhook}");
    let create = ["--kubeconfig=/dev/null", &server, "--insecure-skip-tls-verify", "--token=none"];
    let create = [&create[..], &["create", "--raw=/evict", "--filename=-"]].concat();
    let answer = fixture.access.try_kubectl_with(&create, &review.to_string()).expect("an answer");
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(answer["response"]["status"]["code"], 429, "{answer}");
    assert_eq!(drain(&evicted), None);

    // An eviction starts the drain, and the pod goes when its jobs have ended.
    until_ok("an eviction that starts a drain", || match evict(&fixture, &evicted, &json!({})) {
        Err(answer) if answer.contains("(TooManyRequests)") && answer.contains("no new jobs") => {
            Ok(())
        }
        other => Err(format!("{other:?}")),
    });
    assert_eq!(drain(&evicted).as_deref(), Some("eviction"));
    eventually("the end of the pod", || fixture.get("pod", &evicted).is_none().then_some(()));
    wait_for_busy(&fixture, 4);
    let events = fixture.event_reasons();
    assert!(events.contains("DrainStarted") && events.contains("PodReplaced"), "{events}");

    let drained = fixture.nodes[0].name();
    let drain = ["drain", drained, "--pod-selector=leasehold.dev/cluster", "--timeout=240s"];
    fixture.access.kubectl(&drain);
    for pod in fixture.pods() {
        assert_ne!(pod["spec"]["nodeName"], drained, "{}", name(&pod));
    }
    fixture.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_budget_that_keeps_a_drained_worker_is_said_in_an_event() {
    let Some((fixture, _asked)) = evictions_of_jobs("kept", 1).await else { return };
    fixture.apply(&builds(&fixture, 2));
    let mut none = budget("none");
    none["spec"]["maxUnavailable"] = json!(0);
    none["spec"].as_object_mut().expect("a map").remove("unhealthyPodEvictionPolicy");
    fixture.apply(&none);
    let evicted = wait_for_busy(&fixture, 1).remove(0);
    until_ok("an eviction that starts a drain", || match evict(&fixture, &evicted, &json!({})) {
        Err(answer) if answer.contains("no new jobs") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    until("an event", || fixture.event_reasons(), |all| all.contains("EvictionRefused"));
    assert!(fixture.get("pod", &evicted).is_some(), "the budget counts");
    fixture.kubectl(&["delete", "pdb", "none"]);
    eventually("the end of the pod", || fixture.get("pod", &evicted).is_none().then_some(()));
    fixture.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_job_that_hangs_keeps_its_node_until_the_deadline_releases_it() {
    let Some((fixture, _asked)) = hanging_jobs("hangs", 1).await else { return };
    let mut builds = builds(&fixture, 2);
    builds["spec"]["drain"] = json!({ "deadline": "1s", "afterDeadline": "Wait" });
    builds["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(1);
    fixture.apply(&builds);
    wait_for_busy(&fixture, 1);
    let drain = ["drain", fixture.nodes[0].name(), "--pod-selector=leasehold.dev/cluster"];
    let refused = fixture.access.try_kubectl(&[&drain[..], &["--timeout=8s"]].concat());
    let refused = refused.expect_err("its job runs");
    assert!(refused.contains("runs jobs"), "{refused}");
    until("an event", || fixture.event_reasons(), |all| all.contains("DrainDeadlineExceeded"));
    assert_eq!(busy_workers(&fixture).len(), 1);

    builds["spec"]["drain"]["afterDeadline"] = json!("Release");
    fixture.apply(&builds);
    fixture.access.kubectl(&[&drain[..], &["--timeout=240s"]].concat());
}

/// An eviction as the API server would show it.
pub(crate) fn review(namespace: &str, pod: &str) -> Value {
    let gvk = |group: &str, kind: &str| json!({ "group": group, "version": "v1", "kind": kind });
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "1",
            "kind": gvk("policy", "Eviction"),
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "subResource": "eviction",
            "requestKind": gvk("policy", "Eviction"),
            "name": pod,
            "namespace": namespace,
            "operation": "CREATE",
            "userInfo": { "username": "mallory" },
            "object": {
                "apiVersion": "policy/v1", "kind": "Eviction",
                "metadata": { "name": pod, "namespace": namespace },
            },
        },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn other_pods_and_idle_workers_are_evicted_at_once_and_all_while_nobody_answers() {
    let Some((mut fixture, _asked)) = evictions_of_jobs("evicts", 1).await else { return };
    fixture.apply(&builds(&fixture, 4));
    let workload = json!({ "kind": "Deployment", "name": "idle" });
    let spec = json!({ "maxJobs": 0, "maxJobsPerWorker": 2, "workloadRef": workload });
    let idle = object("WorkerCluster", "idle", spec);
    fixture.apply(&list([idle, fixture.workload("Deployment", "idle")]));
    let client = fixture.access.client().await;
    let node = format!("{}-foreign", fixture.namespace);
    let node = HollowNode::join(client, &node, Arc::new(NoProcesses)).await;
    fixture.apply(&foreign(node.name(), &json!({ "leasehold.dev/busy": "true" })));
    fixture.kubectl(&["wait", "--for=condition=Ready", "pod/foreign"]);
    wait_for_busy(&fixture, 2);
    fixture.wait_for("a worker", "wc", "idle", |cluster| {
        cluster["status"]["workers"]["connected"] == 1
    });
    // A worker counts as busy until it has reported, and for ten seconds more.
    let idle = eventually("an idle worker", || {
        let pods = fixture.pods();
        let idle = pods.iter().find(|pod| pod["metadata"]["labels"]["app"] == "idle")?;
        (!is_busy(idle)).then(|| name(idle))
    });
    let running = &busy_workers(&fixture)[0];
    until_ok("a refusal", || match evict(&fixture, running, &json!({ "dryRun": ["All"] })) {
        Err(answer) if answer.contains("runs jobs") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    for pod in [&idle, "foreign"] {
        evict(&fixture, pod, &json!({})).unwrap_or_else(|why| panic!("{pod}: {why}"));
    }

    fixture.replicas.running.iter_mut().for_each(|replica| replica.process.kill());
    evict(&fixture, &busy_workers(&fixture)[0], &json!({})).expect("nobody answers");
    node.leave().await;
}

/// The workers of the cluster `builds` that run jobs.
pub(crate) fn busy_workers(fixture: &FleetFixture) -> Vec<String> {
    let is_worker = |pod: &&Value| pod["metadata"]["labels"]["leasehold.dev/cluster"] == "builds";
    fixture.pods().iter().filter(|pod| is_busy(pod)).filter(is_worker).map(name).collect()
}

/// Waits until this many workers of `builds` run jobs.
pub(crate) fn wait_for_busy(fixture: &FleetFixture, count: usize) -> Vec<String> {
    let what = format!("{count} busy workers");
    until(&what, || busy_workers(fixture), |workers| workers.len() == count)
}

/// A pod on a node, which does not belong to Leasehold.
fn foreign(node: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "foreign", "labels": labels },
        "spec": { "nodeName": node, "containers": [{ "name": "main", "image": "none" }] },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_budget_of_an_earlier_version_is_deleted_and_no_other() {
    let Some(cluster) = Cluster::shared() else { return };
    let namespace = cluster.namespace("budgets");
    let access = cluster.access();
    Replicas::define(access);
    let uid = |name: &str| namespace.get("wc", name).expect("it")["metadata"]["uid"].clone();
    let budget = |of: &str, labels: Value, owners: Value| {
        let selector = json!({ "matchLabels": { "leasehold.dev/cluster": of } });
        let spec = json!({ "maxUnavailable": 0, "selector": selector });
        let mut budget = object("PodDisruptionBudget", &format!("{of}-busy"), spec);
        budget["metadata"]["labels"] = labels;
        budget["metadata"]["ownerReferences"] = owners;
        budget
    };
    let labels = |of: &str| {
        let by = "leasehold";
        json!({ "leasehold.dev/cluster": of, "app.kubernetes.io/managed-by": by })
    };
    for name in ["ours", "theirs", "copied"] {
        let spec = json!({ "maxJobs": 4, "maxJobsPerWorker": 2 });
        namespace.apply(&object("WorkerCluster", name, spec));
    }
    let owner = json!([{
        "apiVersion": "leasehold.dev/v1alpha1", "kind": "WorkerCluster", "name": "ours",
        "uid": uid("ours"), "controller": true,
    }]);
    namespace.apply(&budget("ours", labels("ours"), owner));
    namespace.apply(&budget("theirs", json!({ "app": "theirs" }), json!([])));
    namespace.apply(&budget("copied", labels("copied"), json!([])));
    let spec = |name: &str| {
        let get = ["get", "pdb", name, "--output=jsonpath={.metadata}"];
        let text = namespace.try_kubectl(&get).ok()?;
        let metadata: Value = serde_json::from_str(&text).expect("JSON");
        Some((metadata["uid"].clone(), metadata["generation"].clone(), metadata["labels"].clone()))
    };
    let before = (spec("theirs-busy"), spec("copied-busy"));
    assert!(before.0.is_some() && before.1.is_some());
    let mut replicas = Replicas::new(access, &namespace, &[]);
    replicas.start();
    eventually("the end of the earlier budget", || spec("ours-busy").is_none().then_some(()));
    assert_eq!((spec("theirs-busy"), spec("copied-busy")), before);
}
