//! What the attack is made on: a control plane, two coordinators with little memory, a namespace of
//! honest workers and one of the client's own.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tests::agents::{AgentIdentity, Coordinators};
use tests::kube::{AUDIENCE, Access, ControlPlane, Replicas, TokenFor};
use tests::process::{eventually, soon};
use tonic::transport::{Certificate, ClientTlsConfig};

use crate::attacks::OWN_WORKERS;
use crate::target::{OwnWorker, Target};

/// The memory of each coordinator.
pub(crate) const MEMORY_MAX_MIB: u64 = 256;
/// Coordinators; one leads.
pub(crate) const REPLICAS: usize = 2;
/// The namespace of the honest workers, which the coordinators also keep their own objects in.
pub(crate) const HONEST: &str = "honest";
/// That of the client's workers.
const HOSTILE: &str = "hostile";
/// The webhook configuration.
const INJECTOR: &str = "injector-of-the-bench";
const STREAMS_PER_AGENT: usize = 2;
/// Longer than a bench takes.
const TOKEN_SECONDS: i64 = 24 * 3_600;

/// All of it. The coordinators end before the control plane does.
pub(crate) struct TestBed {
    pub(crate) replicas: Replicas,
    pub(crate) client: Client,
    pub(crate) access: Access,
    /// The agents of the honest workers.
    pub(crate) agents: Vec<AgentIdentity>,
    /// Where they dial.
    pub(crate) coordinators: Arc<Coordinators>,
    own: Vec<OwnWorker>,
    authority: String,
    folder: tempfile::TempDir,
    _plane: ControlPlane,
}

impl TestBed {
    /// Starts it with this many honest workers, or `None` where there is no control plane.
    pub(crate) async fn start(agents: usize) -> Option<Self> {
        let plane = ControlPlane::start()?;
        let access = plane.access().clone();
        Replicas::define(&access);
        for namespace in [HONEST, HOSTILE] {
            access.kubectl(&["create", "namespace", namespace]);
            let account = || access.objects().get(namespace, "serviceaccount", "default").ok();
            eventually("the service account", account);
        }
        access.apply(&manifests(agents));
        let flags = ["--watch-namespace", HOSTILE, "--webhook-configuration", INJECTOR];
        let mut replicas = Replicas::new(&access, HONEST, &flags);
        replicas.memory_max = Some(MEMORY_MAX_MIB * 1024 * 1024);
        for _ in 0..REPLICAS {
            replicas.start();
        }
        soon("ready replicas", || replicas.are_ready().then_some(())).await;
        let authority = std::fs::read_to_string(replicas.authority()).expect("the authority");
        let client = access.client().await;
        let honest = workers(&access, &client, HONEST, "w", agents).await;
        let own = workers(&access, &client, HOSTILE, "h", OWN_WORKERS).await;
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&authority))
            .domain_name(server_name());
        let addresses = replicas.addresses().iter().map(ToString::to_string).collect();
        let coordinators =
            Arc::new(Coordinators { addresses, tls: Some(tls), agents_follow: true });
        let identity = |(number, worker): (usize, OwnWorker)| AgentIdentity {
            number,
            cluster: worker.cluster,
            worker: worker.worker,
            token: Some(worker.token),
        };
        let agents = honest.into_iter().enumerate().map(identity).collect();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let test_bed = Self {
            replicas,
            client,
            access,
            agents,
            coordinators,
            own,
            authority,
            folder,
            _plane: plane,
        };
        test_bed.configure_webhooks().await;
        Some(test_bed)
    }

    /// All streams of the honest workers.
    pub(crate) fn streams(&self) -> usize {
        self.agents.len() * STREAMS_PER_AGENT
    }

    /// Writes down what the client attacks; returns the file.
    pub(crate) fn describe(&self, connections: usize, seconds: u64) -> Result<PathBuf> {
        let running = &self.replicas.running;
        let other = |agent: &AgentIdentity| (agent.cluster.clone(), agent.worker.clone());
        let target = Target {
            grpc: running.iter().map(|replica| replica.grpc).collect(),
            http: running.iter().map(|replica| replica.http).collect(),
            webhook: running.iter().map(|replica| replica.webhook).collect(),
            authority: self.authority.clone(),
            server_name: server_name(),
            own: self.own.clone(),
            others: self.agents.iter().map(other).collect(),
            connections,
            seconds,
        };
        let file = self.folder.path().join("target.json");
        std::fs::write(&file, serde_json::to_string(&target)?)?;
        Ok(file)
    }

    /// A pod that the API server asks this replica about. It is created on trial only.
    pub(crate) fn asked_pod(replica: usize) -> Pod {
        let mut pod = pod("asked", HONEST);
        pod["metadata"]["labels"] =
            json!({ "leasehold.dev/inject": "true", "asks": replica.to_string() });
        serde_json::from_value(pod).expect("a pod")
    }

    /// The name of the webhook by which the API server asks this replica.
    pub(crate) fn webhook_name(replica: usize) -> String {
        format!("injector-{replica}.leasehold.dev")
    }

    /// Has the API server ask each replica about pods with that replica's label.
    async fn configure_webhooks(&self) {
        let webhook = |(replica, url): (usize, String)| {
            json!({
                "name": Self::webhook_name(replica),
                "admissionReviewVersions": ["v1"],
                "clientConfig": { "url": url },
                "rules": [{
                    "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
                    "resources": ["pods"], "scope": "Namespaced",
                }],
                "objectSelector": { "matchLabels": {
                    "leasehold.dev/inject": "true", "asks": replica.to_string(),
                } },
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "timeoutSeconds": 5,
            })
        };
        let urls = self
            .replicas
            .running
            .iter()
            .map(|replica| format!("https://{}/inject", replica.webhook));
        let webhooks: Vec<_> = urls.enumerate().map(webhook).collect();
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": { "name": INJECTOR },
            "webhooks": webhooks,
        });
        self.access.apply(&configuration.to_string());
        for replica in 0..REPLICAS {
            let begun = std::time::Instant::now();
            while self.inject(replica).await.is_err() {
                assert!(begun.elapsed() < tests::process::HANG, "the webhook is not asked");
                tokio::time::sleep(crate::LOOK).await;
            }
        }
    }

    /// Has the API server ask this replica about a pod.
    ///
    /// # Errors
    /// If the pod gets no agent.
    pub(crate) async fn inject(&self, replica: usize) -> Result<(), String> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), HONEST);
        let trial = PostParams { dry_run: true, ..PostParams::default() };
        let created = pods.create(&trial, &Self::asked_pod(replica)).await;
        let pod = created.map_err(|error| match error {
            kube::Error::Api(status) => status.message.clone(),
            other => other.to_string(),
        })?;
        let spec = pod.spec.unwrap_or_default();
        let mut sidecars = spec.init_containers.into_iter().flatten();
        let is_injected = sidecars.any(|container| container.name == "leasehold-agent");
        is_injected.then_some(()).ok_or_else(|| "the pod has no agent".to_owned())
    }
}

fn server_name() -> String {
    format!("leasehold-coordinator.{HONEST}.svc")
}

fn manifests(agents: usize) -> String {
    let streams: Vec<_> = (0..agents * STREAMS_PER_AGENT)
        .map(|stream| json!({ "name": format!("stream-{stream}") }))
        .collect();
    let object = |kind: &str, namespace: &str, name: &str, spec: Value| {
        let metadata = json!({ "name": name, "namespace": namespace });
        let api = "leasehold.dev/v1alpha1";
        json!({ "apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec }).to_string()
    };
    let jobs = json!({ "maxJobs": agents * 2, "maxJobsPerWorker": 2 });
    let set = json!({ "cluster": "builds", "streams": streams });
    [
        object("WorkerCluster", HONEST, "builds", jobs.clone()),
        object("StreamSet", HONEST, "feeds", set),
        object("WorkerCluster", HOSTILE, "builds", jobs),
    ]
    .join("\n---\n")
}

/// A pod that no node takes: a token needs the pod's object only.
fn pod(name: &str, namespace: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": { "leasehold.dev/cluster": "builds" },
        },
        "spec": {
            "nodeSelector": { "leasehold.dev/nowhere": "true" },
            "containers": [{ "name": "worker", "image": "example.invalid/worker:1" }],
        },
    })
}

/// Creates the pods of workers, with a token each.
async fn workers(
    access: &Access,
    client: &Client,
    namespace: &str,
    prefix: &str,
    count: usize,
) -> Vec<OwnWorker> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut workers = Vec::with_capacity(count);
    for number in 0..count {
        let worker = format!("{prefix}-{number}");
        let object = serde_json::from_value(pod(&worker, namespace)).expect("a pod");
        let created = pods.create(&PostParams::default(), &object).await.expect("it is taken");
        let uid = created.uid().expect("the API server gives one");
        let wanted = TokenFor {
            namespace,
            service_account: "default",
            audience: Some(AUDIENCE),
            pod: Some((&worker, &uid)),
            seconds: TOKEN_SECONDS,
        };
        let token = access.token(wanted).await.expect("a token");
        workers.push(OwnWorker { cluster: format!("{namespace}/builds"), worker, token });
    }
    workers
}
