//! The harness is real: what the tests of this ring rely on holds of the control plane that they
//! are given.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::Api;
use kube::api::PostParams;
use tests::kube::{
    Cluster, Component, ControlPlane, HollowNode, NoProcesses, Runner, SimulatedPod, TokenFor,
};
use tokio::sync::mpsc;

/// A Deployment of three on one node.
fn deployment(node: &str) -> String {
    format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: three}}
spec:
  replicas: 3
  selector: {{matchLabels: {{app: three}}}}
  template:
    metadata: {{labels: {{app: three}}}}
    spec:
      nodeSelector: {{kubernetes.io/hostname: {node}}}
      terminationGracePeriodSeconds: 30
      initContainers: [{{name: side, image: none, restartPolicy: Always}}]
      containers: [{{name: main, image: none}}]
"#
    )
}

/// Says what happens to its pods, and ends none before it is asked to.
struct RecordingRunner {
    events: mpsc::UnboundedSender<(&'static str, SimulatedPod)>,
    may_end: tokio::sync::Semaphore,
}

impl Runner for RecordingRunner {
    async fn start(&self, pod: SimulatedPod) {
        self.events.send(("start", pod)).expect("the test listens");
    }

    async fn stop(&self, pod: SimulatedPod, _grace: Duration) {
        self.events.send(("stop", pod)).expect("the test listens");
        self.may_end.acquire().await.expect("never closed").forget();
    }

    async fn kill(&self, pod: SimulatedPod) {
        self.events.send(("kill", pod)).expect("the test listens");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_runs_on_a_simulated_node_and_pods_end_after_their_processes() {
    let Some(cluster) = Cluster::shared() else { return };
    let access = cluster.access();
    let namespace = cluster.namespace("played");
    let (events, mut node_events) = mpsc::unbounded_channel();
    let runner = Arc::new(RecordingRunner { events, may_end: tokio::sync::Semaphore::new(0) });
    let node = HollowNode::join(access.client().await, &namespace, runner.clone()).await;
    namespace.apply(&deployment(node.name()));
    let wait = ["wait", "--for=condition=Available", "deployment/three", "--timeout=120s"];
    namespace.kubectl(&wait);
    for _ in 0..3 {
        let (what, pod) = node_events.recv().await.expect("the node plays");
        assert_eq!((what, pod.labels["app"].as_str()), ("start", "three"));
        assert_eq!(
            (pod.namespace.as_str(), pod.service_account.as_str()),
            (&*namespace, "default")
        );
    }

    namespace.kubectl(&["scale", "deployment/three", "--replicas=0"]);
    for _ in 0..3 {
        assert_eq!(node_events.recv().await.expect("the node plays").0, "stop");
    }
    let pods = || namespace.kubectl(&["get", "pods", "--output=name"]);
    assert_eq!(pods().lines().count(), 3, "no pod is gone before its processes are");
    runner.may_end.add_permits(3);
    namespace.kubectl(&["wait", "--for=delete", "pods", "--all"]);
    assert_eq!(pods(), "");
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_outlives_its_grace_period_is_killed() {
    let Some(cluster) = Cluster::shared() else { return };
    let access = cluster.access();
    let namespace = cluster.namespace("killed");
    let (events, mut node_events) = mpsc::unbounded_channel();
    let runner = Arc::new(RecordingRunner { events, may_end: tokio::sync::Semaphore::new(0) });
    let node = HollowNode::join(access.client().await, &namespace, runner).await;
    namespace.apply(&deployment(node.name()));
    let (_, pod) = node_events.recv().await.expect("the node plays");
    let delete = ["delete", "pod", &pod.name, "--grace-period=1", "--wait=false"];
    namespace.kubectl(&delete);
    let mut seen = Vec::new();
    while seen.last() != Some(&"kill") {
        let (what, other) = node_events.recv().await.expect("the node plays");
        if other.uid == pod.uid {
            seen.push(what);
        }
    }
    assert_eq!(seen, ["stop", "kill"]);
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_evicts_pods_and_keeps_to_the_disruption_budget() {
    let Some(cluster) = Cluster::shared() else { return };
    let access = cluster.access();
    let namespace = cluster.namespace("drained");
    let node = HollowNode::join(access.client().await, &namespace, Arc::new(NoProcesses)).await;
    namespace.apply(&deployment(node.name()));
    let budget = r"
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: all}
spec: {maxUnavailable: 0, selector: {matchLabels: {app: three}}}
";
    namespace.apply(&budget);
    let wait = ["wait", "--for=condition=Available", "deployment/three", "--timeout=120s"];
    namespace.kubectl(&wait);
    let allowed = ["wait", "--for=condition=DisruptionAllowed=False", "pdb/all"];
    namespace.kubectl(&allowed);

    let drain = ["drain", node.name(), "--timeout=3s"];
    let refused = access.try_kubectl(&drain).expect_err("the budget allows none");
    assert!(refused.contains("disruption budget"), "{refused}");
    namespace.kubectl(&["delete", "pdb/all"]);
    access.kubectl(&["drain", node.name(), "--timeout=60s"]);
    let bound = format!("--field-selector=spec.nodeName={}", node.name());
    let left = namespace.kubectl(&["get", "pods", "-o", "name", &bound]);
    assert_eq!(left, "");
    node.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_valid_for_its_audience_until_its_pod_ends() {
    let Some(cluster) = Cluster::shared() else { return };
    let access = cluster.access();
    let namespace = cluster.namespace("token");
    namespace.wait_for_account();
    let run = ["run", "one", "--image=none", "--output=jsonpath={.metadata.uid}"];
    let uid = namespace.kubectl(&run);
    let wanted = TokenFor {
        namespace: &namespace,
        service_account: "default",
        audience: Some("leasehold"),
        pod: Some(("one", &uid)),
        seconds: 600,
    };
    let token = access.token(wanted).await.expect("a token");
    let reviews: Api<TokenReview> = Api::all(access.client().await);
    let review = async |audience: &str| {
        let audiences = Some(vec![audience.to_owned()]);
        let spec = TokenReviewSpec { token: token.clone(), audiences };
        let review = TokenReview { spec, ..TokenReview::default() };
        let answer = reviews.create(&PostParams::default(), &review).await.expect("an answer");
        answer.status.expect("a status")
    };
    let good = review("leasehold").await;
    assert_eq!(good.authenticated, Some(true));
    let user = good.user.expect("a user");
    let extra = user.extra.expect("what the token is bound to");
    assert_eq!(extra["authentication.kubernetes.io/pod-name"], ["one"]);
    assert_eq!(extra["authentication.kubernetes.io/pod-uid"], [uid]);
    assert_ne!(review("another").await.authenticated, Some(true));

    let delete = ["delete", "pod", "one", "--force", "--grace-period=0"];
    namespace.kubectl(&delete);
    tests::process::eventually("the token's end with its pod", || {
        let review = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(review("leasehold"))
        });
        (review.authenticated != Some(true)).then_some(())
    });
}

#[test]
fn a_killed_api_server_keeps_its_objects_after_a_restart() {
    let Some(plane) = ControlPlane::start() else { return };
    plane.access().kubectl(&["create", "configmap", "kept", "--from-literal=word=here"]);
    plane.kill_component(Component::ApiServer);
    plane.access().try_kubectl(&["get", "configmap", "kept"]).expect_err("no server answers");
    plane.start_component(Component::ApiServer);
    let word = ["get", "configmap", "kept", "--output=jsonpath={.data.word}"];
    assert_eq!(plane.access().kubectl(&word), "here");
    let folder = plane.folder().to_owned();
    drop(plane);
    assert!(!folder.exists(), "nothing is left of a control plane");
}
