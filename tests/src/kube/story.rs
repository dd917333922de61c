//! The scenario of a test and of a benchmark: long jobs fill the budget, and at the same
//! moment come a new image, half the budget, the drain of a node, and the death of the leader where
//! there is one.

use std::process::Stdio;

use leasehold_demo::clock::now_ns;
use rustix::process::Signal;
use serde_json::Value;
use tokio::process::{Child, Command};

use super::stage::Stage;
use crate::process::soon;

/// How many jobs may run at first.
pub const JOBS_BEFORE: u64 = 40;
/// How many in the end.
pub const JOBS_AFTER: u64 = 20;

const JOBS_PER_WORKER: u64 = 2;

/// What keeps the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// The WorkerCluster `builds`.
    WorkerCluster,
    /// The Deployment `builds`, whose pods have this many seconds to end.
    Deployment {
        /// `terminationGracePeriodSeconds`.
        grace_s: u64,
    },
}

/// A story on its stage.
#[derive(Debug)]
pub struct Story {
    /// The stage.
    pub stage: Stage,
    /// What keeps the workers.
    pub keeper: Keeper,
}

/// What has come over the workers.
#[derive(Debug)]
pub struct Upset {
    /// When.
    pub at_ns: u64,
    drained: String,
    drain: Child,
}

impl Story {
    /// Begins it, and waits until the budget is used.
    pub async fn begin(&self) {
        self.apply(1, JOBS_BEFORE);
        soon("a full fleet", || self.stands_at(JOBS_BEFORE).then_some(())).await;
    }

    /// A new image, half the budget, the drain of the first node, and the leader killed.
    ///
    /// # Panics
    /// If the API server refuses it.
    pub fn upset(&mut self) -> Upset {
        let drained = self.stage.nodes[0].name().to_owned();
        let at_ns = now_ns();
        self.apply(2, JOBS_AFTER);
        if !self.stage.replicas.running.is_empty() {
            let leader = self.stage.replicas.leader();
            self.stage.replicas.running.remove(leader).process.signal(Signal::KILL);
        }
        let pods = format!("--pod-selector={}", self.keeper.selector());
        let drain = ["drain", &drained, "--ignore-daemonsets", "--force", "--timeout=300s"];
        let arguments = [&drain[..], &[&pods]].concat();
        let command = self.stage.access.kubectl_command(&arguments);
        let mut command = Command::from(command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let drain = command.kill_on_drop(true).spawn().expect("kubectl starts");
        Upset { at_ns, drained, drain }
    }

    /// Waits until the drain is over and what remains runs the new image, elsewhere and with the
    /// whole budget; returns when that was.
    ///
    /// # Panics
    /// If the drain fails.
    pub async fn settle(&self, upset: Upset) -> u64 {
        let output = upset.drain.wait_with_output().await.expect("kubectl ends");
        assert!(output.status.success(), "drain: {}", String::from_utf8_lossy(&output.stderr));
        let image = image(2);
        soon("new workers, off the drained node", || {
            let pods = self.stage.pods();
            let moved = pods.iter().all(|pod| {
                pod["spec"]["containers"][0]["image"] == image.as_str()
                    && pod["spec"]["nodeName"] != upset.drained.as_str()
            });
            (moved && self.stands_at(JOBS_AFTER)).then_some(())
        })
        .await;
        now_ns()
    }

    /// How many jobs run, by the workers' journals.
    #[must_use]
    pub fn jobs_running(&self) -> u64 {
        let open = self.stage.evidence().runs.iter().filter(|run| run.to_ns == u64::MAX).count();
        open as u64
    }

    fn apply(&self, version: u32, jobs: u64) {
        self.stage.apply(&self.keeper.manifest(&self.stage, &image(version), jobs));
    }

    /// Whether all is as wanted: this many jobs run, and no pod is on its way in or out.
    fn stands_at(&self, jobs: u64) -> bool {
        let workers = jobs / JOBS_PER_WORKER;
        let Some(object) = self.stage.get(self.keeper.kind(), "builds") else { return false };
        let stands = match self.keeper {
            Keeper::WorkerCluster => {
                number(&object, "/status/workers/desired") == workers
                    && number(&object, "/status/workers/connected") == workers
                    && number(&object, "/status/jobs/running") == jobs
                    && is_true(&object, "Ready")
            }
            Keeper::Deployment { .. } => {
                number(&object, "/status/replicas") == workers
                    && number(&object, "/status/updatedReplicas") == workers
                    && number(&object, "/status/availableReplicas") == workers
                    && self.jobs_running() == jobs
            }
        };
        let is_seen = object["status"]["observedGeneration"] == object["metadata"]["generation"];
        let pods = || self.stage.kubectl(&["get", "pods", "--output=name"]).lines().count();
        is_seen && stands && pods() as u64 == workers
    }
}

impl Keeper {
    fn kind(self) -> &'static str {
        match self {
            Self::WorkerCluster => "workercluster",
            Self::Deployment { .. } => "deployment",
        }
    }

    fn selector(self) -> &'static str {
        match self {
            Self::WorkerCluster => "leasehold.dev/cluster=builds",
            Self::Deployment { .. } => "app=builds",
        }
    }

    fn manifest(self, stage: &Stage, image: &str, jobs: u64) -> String {
        let affinity = stage.affinity();
        let containers = format!("[{{name: worker, image: {image}}}]");
        match self {
            Self::WorkerCluster => format!(
                r"
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {{name: builds}}
spec:
  maxJobs: {jobs}
  maxJobsPerWorker: {JOBS_PER_WORKER}
  drain: {{deadline: 10m}}
  template:
    spec:
      affinity: {affinity}
      containers: {containers}
"
            ),
            Self::Deployment { grace_s } => format!(
                r"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: builds}}
spec:
  replicas: {}
  selector: {{matchLabels: {{app: builds}}}}
  template:
    metadata: {{labels: {{app: builds}}}}
    spec:
      terminationGracePeriodSeconds: {grace_s}
      affinity: {affinity}
      containers: {containers}
",
                jobs / JOBS_PER_WORKER
            ),
        }
    }
}

fn image(version: u32) -> String {
    format!("example.invalid/worker:{version}")
}

fn number(object: &Value, path: &str) -> u64 {
    object.pointer(path).and_then(Value::as_u64).unwrap_or(0)
}

fn is_true(object: &Value, condition: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| {
        all.iter().any(|one| one["type"] == condition && one["status"] == "True")
    })
}
