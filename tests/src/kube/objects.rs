//! Reads objects in this process, for tests that look again and again: kubectl is a process and a
//! discovery of the API for each look.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, mpsc};
use std::time::Duration;

use kube::api::{GetParams, ListParams, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::runtime::{self, Runtime};
use tokio::sync::OnceCell;

/// An API server that is down or stopped answers nothing.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Where requests run, so that tests with and without a runtime of their own can wait for them.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut runtime = runtime::Builder::new_multi_thread();
    runtime.worker_threads(1).enable_all().build().expect("a runtime")
});

/// The objects of a cluster, as the user of a kubeconfig reads them.
#[derive(Clone)]
pub struct Objects {
    kubeconfig: PathBuf,
    /// Made when it is first used.
    client: Arc<OnceCell<Client>>,
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects").field("kubeconfig", &self.kubeconfig).finish_non_exhaustive()
    }
}

impl Objects {
    pub(super) fn new(kubeconfig: PathBuf) -> Self {
        Self { kubeconfig, client: Arc::default() }
    }

    pub(super) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// An object of a namespace as it is.
    ///
    /// # Errors
    /// Why it cannot be had.
    ///
    /// # Panics
    /// If no path to objects of the kind is known here.
    pub fn get(&self, namespace: &str, kind: &str, name: &str) -> Result<Value, String> {
        let text = self.read(objects_path(namespace, kind), Some(name.to_owned()))?;
        serde_json::from_str(&text).map_err(|error| format!("{kind} {name}: {error}"))
    }

    /// The objects of a kind in a namespace.
    ///
    /// # Errors
    /// Why they cannot be had.
    ///
    /// # Panics
    /// If no path to objects of the kind is known here.
    pub fn list(&self, namespace: &str, kind: &str) -> Result<Vec<Value>, String> {
        let text = self.read(objects_path(namespace, kind), None)?;
        let mut list: Value =
            serde_json::from_str(&text).map_err(|error| format!("the list of {kind}: {error}"))?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            other => Err(format!("the list of {kind} has {other} for items")),
        }
    }

    /// Whether the API server is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.read(String::new(), Some("readyz".to_owned())).is_ok()
    }

    /// What is at a path: one object of this name, or the list of all.
    fn read(&self, path: String, name: Option<String>) -> Result<String, String> {
        let (answer, answers) = mpsc::sync_channel(1);
        let objects = self.clone();
        RUNTIME.spawn(async move {
            let asked = async {
                let request = match name {
                    Some(name) => Request::new(path).get(&name, &GetParams::default()),
                    None => Request::new(path).list(&ListParams::default()),
                };
                let request = request.map_err(|error| error.to_string())?;
                let client = objects.client.get_or_init(|| client(&objects.kubeconfig)).await;
                client.request_text(request).await.map_err(|error| error.to_string())
            };
            let asked = tokio::time::timeout(ANSWER_TIMEOUT, asked).await;
            let none = || format!("the API server has not answered within {ANSWER_TIMEOUT:?}");
            // The test may have ended meanwhile.
            let _ = answer.send(asked.unwrap_or_else(|_| Err(none())));
        });
        answers.recv().expect("each request is answered, or has panicked")
    }
}

/// An object of a kind and a name, to be applied.
///
/// # Panics
/// If the version of the kind is not known here.
#[must_use]
pub fn object(kind: &str, name: &str, spec: Value) -> Value {
    let version = match kind {
        "Pod" => "v1",
        "Deployment" | "StatefulSet" => "apps/v1",
        "HorizontalPodAutoscaler" => "autoscaling/v2",
        "Job" => "batch/v1",
        "PodDisruptionBudget" => "policy/v1",
        "WorkerCluster" | "StreamSet" | "WorkerClass" | "Pipeline" | "PipelineBinding" => {
            "leasehold.dev/v1alpha1"
        }
        other => panic!("no version of kind {other}: add it in {}", file!()),
    };
    json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name }, "spec": spec })
}

/// Streams `feed-1`, `feed-2` and so on, as the spec of a StreamSet lists them.
#[must_use]
pub fn feeds(count: u32) -> Value {
    (1..=count).map(|number| json!({ "name": format!("feed-{number}") })).collect()
}

/// The names of objects.
///
/// # Panics
/// If one has no name.
#[must_use]
pub fn names(objects: &[Value]) -> Vec<String> {
    objects.iter().map(name).collect()
}

/// The name of an object.
///
/// # Panics
/// If it has none.
#[must_use]
pub fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().expect("a name").to_owned()
}

/// Several objects, to be applied in this order.
#[must_use]
pub fn list(objects: impl IntoIterator<Item = Value>) -> Value {
    let items: Vec<_> = objects.into_iter().collect();
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
}

/// A client of the cluster of a kubeconfig.
///
/// # Panics
/// If the kubeconfig is invalid.
pub(super) async fn client(kubeconfig: &Path) -> Client {
    let config = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await;
    Client::try_from(config.expect("a usable kubeconfig")).expect("a client")
}

/// The path of the objects of a kind, by one of its names for kubectl.
fn objects_path(namespace: &str, kind: &str) -> String {
    let (group, plural) = match kind {
        "pod" | "pods" => ("api/v1", "pods"),
        "events" => ("api/v1", "events"),
        "service" => ("api/v1", "services"),
        "serviceaccount" => ("api/v1", "serviceaccounts"),
        "endpointslice" => ("apis/discovery.k8s.io/v1", "endpointslices"),
        "deployment" => ("apis/apps/v1", "deployments"),
        "job" => ("apis/batch/v1", "jobs"),
        "statefulset" => ("apis/apps/v1", "statefulsets"),
        "lease" => ("apis/coordination.k8s.io/v1", "leases"),
        "wc" | "workercluster" => ("apis/leasehold.dev/v1alpha1", "workerclusters"),
        "wcl" => ("apis/leasehold.dev/v1alpha1", "workerclasses"),
        "ss" => ("apis/leasehold.dev/v1alpha1", "streamsets"),
        "pl" => ("apis/leasehold.dev/v1alpha1", "pipelines"),
        "plb" => ("apis/leasehold.dev/v1alpha1", "pipelinebindings"),
        other => panic!("no path to objects of kind {other}: add it in {}", file!()),
    };
    format!("/{group}/namespaces/{namespace}/{plural}")
}
