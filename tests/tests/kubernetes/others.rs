//! Fields that belong to others: a user's annotations survive the marks of busy pods, and replicas
//! that an autoscaler or another controller sets are left to it.

use serde_json::{Value, json};
use tests::kube::{FleetFixture, Work, names, object, until};
use tests::process::{eventually, until_ok};

/// A Deployment of one worker of the WorkerCluster `builds`.
fn deployment(fixture: &FleetFixture) -> Value {
    let mut deployment = fixture.workload("Deployment", "builds");
    deployment["spec"]["replicas"] = json!(1);
    deployment
}

/// The WorkerCluster that adopts it.
fn adopting(jobs: u32, scale: bool) -> Value {
    let workload = json!({ "kind": "Deployment", "name": "builds", "scale": scale });
    let spec = json!({ "maxJobs": jobs, "maxJobsPerWorker": 2, "workloadRef": workload });
    object("WorkerCluster", "builds", spec)
}

/// The labels and annotations of the only pod.
fn metadata(fixture: &FleetFixture) -> Option<Value> {
    fixture.pods().into_iter().next().map(|mut pod| pod["metadata"].take())
}

fn annotation(fixture: &FleetFixture, key: &str) -> Option<Value> {
    metadata(fixture).map(|metadata| metadata["annotations"][key].clone())
}

fn is_busy(fixture: &FleetFixture) -> bool {
    metadata(fixture).is_some_and(|metadata| metadata["labels"]["leasehold.dev/busy"] == "true")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_users_annotations_survive_the_mark_of_a_busy_pod_and_removal_leaves_nothing() {
    let work = Work::Jobs { ms_min: 200, ms_max: 400 };
    let Some(mut fixture) = FleetFixture::start("annotations", 1, 1, work).await else { return };
    let own = json!({ "cluster-autoscaler.kubernetes.io/safe-to-evict": "true" });
    let mut deployment = deployment(&fixture);
    deployment["spec"]["template"]["metadata"]["annotations"] = own.clone();
    fixture.apply(&deployment);
    fixture.apply(&adopting(2, false));
    eventually("a busy pod", || is_busy(&fixture).then_some(()));
    let safe = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    assert_eq!(annotation(&fixture, safe), Some(json!("true")));
    assert_eq!(annotation(&fixture, "karpenter.sh/do-not-disrupt"), Some(json!("true")));

    fixture.apply(&adopting(0, false));
    eventually("an idle pod", || (!is_busy(&fixture)).then_some(()));
    assert_eq!(annotation(&fixture, safe), Some(json!("true")));
    assert_eq!(annotation(&fixture, "karpenter.sh/do-not-disrupt"), Some(Value::Null));

    fixture.apply(&adopting(2, false));
    eventually("a busy pod", || is_busy(&fixture).then_some(()));
    fixture.kubectl(&["delete", "wc/builds"]);
    // What a scale-in or a drain may have left at that moment.
    let pod = names(&fixture.pods()).remove(0);
    let marks = [
        "controller.kubernetes.io/pod-deletion-cost=-1000",
        "leasehold.dev/drain=eviction",
        "leasehold.dev/streams=0123456789abcdef",
    ];
    fixture.kubectl(&[&["annotate", "pod", &pod][..], &marks].concat());
    until_ok("a pod without marks", || {
        let mut left = metadata(&fixture).ok_or("no pod")?;
        // Until its agent is gone, it is known for what it may hold.
        let annotations = left["annotations"].as_object_mut().ok_or("no annotations")?;
        annotations.remove("leasehold.dev/exposure");
        let is_marked = !left["labels"]["leasehold.dev/busy"].is_null();
        if left["annotations"] == own && !is_marked { Ok(()) } else { Err(format!("{left:#}")) }
    });
    let uid = metadata(&fixture).expect("a pod")["uid"].clone();

    fixture.apply(&adopting(2, false));
    eventually("the same pod, busy again", || {
        (is_busy(&fixture) && metadata(&fixture)?["uid"] == uid).then_some(())
    });
    fixture.kubectl(&["delete", "wc/builds"]);
    eventually("an idle pod", || (!is_busy(&fixture)).then_some(()));
    fixture.replicas.running.clear();
    let text = std::fs::read_to_string(tests::toolbox::root().join("docs/KUBERNETES.md"));
    let text = text.expect("the document");
    let (_, after) = text.split_once("what is left on pods that stay:\n\n").expect("it");
    let lines: Vec<&str> = after.lines().take_while(|line| line.starts_with("    ")).collect();
    let commands = lines.join("\n");
    let commands =
        commands.replace("--all-namespaces", &format!("--namespace {}", fixture.namespace));
    let done = fixture.access.try_shell(&commands, tests::toolbox::root());
    done.unwrap_or_else(|why| panic!("{commands}\n{why}"));
    let left = metadata(&fixture).expect("a pod");
    assert_eq!(left["annotations"], own);
    let labels: Vec<&String> = left["labels"].as_object().expect("labels").keys().collect();
    assert_eq!(labels, ["app", "leasehold.dev/cluster", "pod-template-hash"]);
}

/// Waits until the WorkerCluster says that this manager sets the replicas.
fn until_left_to(fixture: &FleetFixture, manager: &str, between: impl Fn()) {
    fixture.wait_for(&format!("replicas left to {manager}"), "wc", "builds", |cluster| {
        between();
        let conditions = cluster["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found =
            conditions.iter().find(|condition| condition["type"] == "ReplicasManagedElsewhere");
        found.is_some_and(|condition| {
            condition["message"].as_str().is_some_and(|message| message.starts_with(manager))
        })
    });
}

fn generation(fixture: &FleetFixture) -> Value {
    fixture.get("deployment", "builds").expect("the Deployment")["metadata"]["generation"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replicas_are_left_to_an_autoscaler() {
    let Some(fixture) = FleetFixture::start("autoscaled", 1, 1, Work::File).await else { return };
    fixture.apply(&deployment(&fixture));
    let usage = json!({ "type": "Utilization", "averageUtilization": 50 });
    let spec = json!({
        "minReplicas": 3,
        "maxReplicas": 3,
        "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "builds" },
        "metrics": [{ "type": "Resource", "resource": { "name": "cpu", "target": usage } }],
    });
    fixture.apply(&object("HorizontalPodAutoscaler", "builds", spec));
    fixture.wait_for("3 replicas", "deployment", "builds", |deployment| {
        deployment["spec"]["replicas"] == 3
    });
    fixture.apply(&adopting(4, true));
    until_left_to(&fixture, "kube-controller-manager", || ());
    let before = generation(&fixture);
    fixture.apply(&adopting(8, true));
    fixture.wait_for("the new spec", "wc", "builds", |cluster| {
        cluster["status"]["inForceGeneration"] == cluster["metadata"]["generation"]
    });
    until_left_to(&fixture, "kube-controller-manager", || ());
    assert_eq!(generation(&fixture), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replicas_are_left_to_a_manager_that_sets_them_again_and_again() {
    let Some(fixture) = FleetFixture::start("synced", 1, 1, Work::File).await else { return };
    fixture.apply(&deployment(&fixture));
    fixture.apply(&adopting(6, true));
    // Its creator set its replicas once: they are the coordinator's.
    fixture.wait_for("3 replicas", "deployment", "builds", |deployment| {
        deployment["spec"]["replicas"] == 3
    });
    let sync = || {
        let patch = ["patch", "deployment/builds", "--field-manager=argocd-controller"];
        fixture.kubectl(&[&patch[..], &["--patch", r#"{"spec":{"replicas":1}}"#]].concat());
    };
    until_left_to(&fixture, "argocd-controller", sync);
    sync();
    let deployment = fixture.get("deployment", "builds").expect("the Deployment");
    assert_eq!(deployment["spec"]["replicas"], 1);
}

fn node_of(pod: &Value) -> Option<String> {
    pod["spec"]["nodeName"].as_str().map(str::to_owned)
}

/// The taint by itself moves no pod that is there already.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_worker_leaves_a_node_that_an_autoscaler_is_about_to_remove() {
    let work = Work::Jobs { ms_min: 200, ms_max: 400 };
    let Some(fixture) = FleetFixture::start("disrupted", 1, 2, work).await else { return };
    fixture.apply(&deployment(&fixture));
    fixture.apply(&adopting(2, false));
    eventually("a busy pod", || is_busy(&fixture).then_some(()));
    let node = fixture.pods().first().and_then(node_of).expect("a pod on a node");
    fixture.kubectl(&["taint", "node", &node, "karpenter.sh/disrupted:NoSchedule"]);
    let nodes = || fixture.pods().iter().filter_map(node_of).collect::<Vec<_>>();
    until("a worker on the other node", nodes, |nodes| {
        !nodes.is_empty() && nodes.iter().all(|other| *other != node)
    });
}
