//! Pods that a test plays: the kubelet's part of a pod's life, with the test's own processes in the
//! place of containers. A pod is never gone before its processes are.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use super::pod_status;

/// The interval between two attempts of a request to the API server.
const RETRY: Duration = Duration::from_millis(200);

/// What runs in the place of a pod's containers.
pub trait Runner: Send + Sync + 'static {
    /// Starts the pod's processes. The pod is Ready when this returns; it is dropped where the pod
    /// is deleted before.
    fn start(&self, pod: SimulatedPod) -> impl Future<Output = ()> + Send;

    /// Asks the pod's processes to end, and returns when they have ended. It is dropped when the
    /// grace period is over.
    fn stop(&self, pod: SimulatedPod, grace: Duration) -> impl Future<Output = ()> + Send;

    /// Kills the pod's processes: the grace period is over, or the pod was deleted by force. None
    /// may run when this returns.
    fn kill(&self, pod: SimulatedPod) -> impl Future<Output = ()> + Send;

    /// The pod's address. Kubernetes takes no loopback address into a Service's endpoints.
    fn address(&self, _pod: &SimulatedPod) -> IpAddr {
        IpAddr::V4(Ipv4Addr::LOCALHOST)
    }
}

/// No processes at all: each pod is Ready at once and ends at once.
#[derive(Clone, Copy, Debug)]
pub struct NoProcesses;

impl Runner for NoProcesses {
    async fn start(&self, _pod: SimulatedPod) {}
    async fn stop(&self, _pod: SimulatedPod, _grace: Duration) {}
    async fn kill(&self, _pod: SimulatedPod) {}
}

/// A pod that was bound to a simulated node.
#[derive(Clone)]
pub struct SimulatedPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What distinguishes it from others of its name.
    pub uid: String,
    /// The node that it is bound to.
    pub node: String,
    /// Its labels when it was bound.
    pub labels: BTreeMap<String, String>,
    /// Its annotations when it was bound.
    pub annotations: BTreeMap<String, String>,
    /// As whom it speaks to the API server.
    pub service_account: String,
    /// Its address.
    pub address: IpAddr,
    /// All of it, as it was bound.
    pub object: Arc<Pod>,
    client: Client,
}

impl std::fmt::Debug for SimulatedPod {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{} ({})", self.namespace, self.name, self.uid)
    }
}

impl SimulatedPod {
    pub(super) fn new(client: Client, pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let account = spec.and_then(|spec| spec.service_account_name.clone());
        Self {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            node: spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
            labels: pod.labels().clone(),
            annotations: pod.annotations().clone(),
            service_account: account.unwrap_or_else(|| "default".to_owned()),
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            object: Arc::new(pod.clone()),
            client,
        }
    }

    /// Says whether the pod is Ready, as a readiness probe's result would.
    pub async fn set_ready(&self, ready: bool) {
        self.tell(pod_status::running(&self.object, self.address, ready)).await;
    }

    /// Writes a part of the pod's status, again and again until the API server takes it or the pod
    /// is gone.
    async fn tell(&self, status: Value) {
        // With the UID in it, the patch meets no other pod of the same name.
        let body = serde_json::json!({ "metadata": { "uid": self.uid }, "status": status });
        let patch = Patch::Strategic(body);
        let params = PatchParams::default();
        while let Err(error) = self.api().patch_status(&self.name, &params, &patch).await {
            if is_gone(&error) {
                return;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Removes the pod for good.
    async fn remove(&self) {
        let this = Preconditions { uid: Some(self.uid.clone()), ..Preconditions::default() };
        let params = DeleteParams { preconditions: Some(this), ..DeleteParams::default() };
        let params = params.grace_period(0);
        while let Err(error) = self.api().delete(&self.name, &params).await {
            if is_gone(&error) {
                return;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    fn api(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

/// Plays one pod from its binding to its end. `seen` has the newest that is known of it, and is
/// closed when it is gone.
pub(super) async fn play<R: Runner>(
    runner: Arc<R>,
    mut pod: SimulatedPod,
    mut seen: watch::Receiver<Arc<Pod>>,
) {
    pod.address = runner.address(&pod);
    let is_started = tokio::select! {
        biased;
        () = deleted(&mut seen) => false,
        () = runner.start(pod.clone()) => true,
    };
    if is_started {
        pod.set_ready(true).await;
        deleted(&mut seen).await;
    }
    let exit_code = end(runner.as_ref(), &pod, &mut seen).await;
    pod.tell(pod_status::ended(&pod.object, exit_code)).await;
    pod.remove().await;
}

/// Waits until the pod is to end, or is gone.
async fn deleted(seen: &mut watch::Receiver<Arc<Pod>>) {
    // Fails where the pod is gone.
    let _ = seen.wait_for(|pod| pod.metadata.deletion_timestamp.is_some()).await;
}

/// Ends the pod's processes; returns the exit code that its containers have.
async fn end<R: Runner>(
    runner: &R,
    pod: &SimulatedPod,
    seen: &mut watch::Receiver<Arc<Pod>>,
) -> i32 {
    const KILLED: i32 = 128 + 9;
    let mut deadline = Instant::now() + grace(&seen.borrow_and_update());
    let stop = runner.stop(pod.clone(), deadline - Instant::now());
    tokio::pin!(stop);
    let is_stopped = loop {
        tokio::select! {
            () = &mut stop => break true,
            () = tokio::time::sleep_until(deadline) => break false,
            changed = seen.changed() => match changed {
                // A second deletion may shorten the grace period.
                Ok(()) => {
                    deadline = deadline.min(Instant::now() + grace(&seen.borrow_and_update()));
                }
                Err(_) => break false,
            },
        }
    };
    if is_stopped {
        return 0;
    }
    runner.kill(pod.clone()).await;
    KILLED
}

fn grace(pod: &Pod) -> Duration {
    let seconds = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// Whether the pod, or the one with its name and UID, is gone. A conflict with another write is
/// tried again.
fn is_gone(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let is_conflict = status.code == 409 && !status.message.contains("object has been modified");
    status.code == 404 || is_conflict
}
