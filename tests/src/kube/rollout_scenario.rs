//! The scenario of a test and of a benchmark: long jobs fill the budget, and at the same
//! moment come a new image, half the budget, the drain of a node, and the death of the leader where
//! there is one.

use std::process::Stdio;

use leasehold_demo::clock::now_ns;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use super::fleet_fixture::FleetFixture;
use super::objects::object;
use crate::process::soon_ok;

/// How many jobs may run at first.
pub const JOBS_BEFORE: u64 = 40;
/// How many in the end.
pub const JOBS_AFTER: u64 = 20;

const JOBS_PER_WORKER: u64 = 2;

/// What creates the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadKind {
    /// The WorkerCluster `builds`.
    WorkerCluster,
    /// The Deployment `builds`, whose pods have this many seconds to end.
    Deployment {
        /// `terminationGracePeriodSeconds`.
        grace_s: u64,
    },
}

/// The scenario and what it runs on.
#[derive(Debug)]
pub struct RolloutScenario {
    /// The fixture.
    pub fixture: FleetFixture,
    /// What creates the workers.
    pub workload: WorkloadKind,
}

/// The changes and faults that came at the same moment.
#[derive(Debug)]
pub struct Disruption {
    /// When.
    pub at_ns: u64,
    drained: String,
    drain: Child,
}

impl RolloutScenario {
    /// Begins it, and waits until the budget is used.
    pub async fn begin(&self) {
        self.apply(1, JOBS_BEFORE);
        soon_ok("a full fleet", || self.check_settled_at(JOBS_BEFORE)).await;
    }

    /// A new image, half the budget, the drain of the first node, and the leader killed.
    ///
    /// # Panics
    /// If the API server refuses it.
    pub fn disrupt(&mut self) -> Disruption {
        let drained = self.fixture.nodes[0].name().to_owned();
        let at_ns = now_ns();
        self.apply(2, JOBS_AFTER);
        if !self.fixture.replicas.running.is_empty() {
            let leader = self.fixture.replicas.leader();
            self.fixture.replicas.running.remove(leader).process.signal(Signal::KILL);
        }
        let pods = format!("--pod-selector={}", self.workload.selector());
        let drain = ["drain", &drained, "--ignore-daemonsets", "--force", "--timeout=300s"];
        let arguments = [&drain[..], &[&pods]].concat();
        let command = self.fixture.access.kubectl_command(&arguments);
        let mut command = Command::from(command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let drain = command.kill_on_drop(true).spawn().expect("kubectl starts");
        Disruption { at_ns, drained, drain }
    }

    /// Waits until the drain is over and what remains runs the new image, elsewhere and with the
    /// whole budget; returns when that was.
    ///
    /// # Panics
    /// If the drain fails.
    pub async fn settle(&self, disruption: Disruption) -> u64 {
        let output = disruption.drain.wait_with_output().await.expect("kubectl ends");
        assert!(output.status.success(), "drain: {}", String::from_utf8_lossy(&output.stderr));
        let image = image(2);
        soon_ok("new workers, off the drained node", || {
            let pods = self.fixture.pods();
            let remaining = pods.iter().find(|pod| {
                pod["spec"]["containers"][0]["image"] != image.as_str()
                    || pod["spec"]["nodeName"] == disruption.drained.as_str()
            });
            match remaining {
                Some(pod) => Err(format!("an old pod: {}", pod["metadata"]["name"])),
                None => self.check_settled_at(JOBS_AFTER),
            }
        })
        .await;
        now_ns()
    }

    fn apply(&self, version: u32, jobs: u64) {
        self.fixture.apply(&self.workload.manifest(&self.fixture, &image(version), jobs));
    }

    /// Checks that this many jobs run, by the status and by the journals, and that no pod starts
    /// or ends. Between the end of a job and the start of the next one fewer run, so this succeeds
    /// only at some moments: poll it.
    fn check_settled_at(&self, jobs: u64) -> Result<(), String> {
        let workers = jobs / JOBS_PER_WORKER;
        let kind = self.workload.kind();
        let object = self.fixture.get(kind, "builds").ok_or_else(|| format!("no {kind}"))?;
        let is_settled = match self.workload {
            WorkloadKind::WorkerCluster => {
                number(&object, "/status/workers/desired") == workers
                    && number(&object, "/status/workers/connected") == workers
                    && number(&object, "/status/jobs/running") == jobs
                    && is_true(&object, "Ready")
            }
            WorkloadKind::Deployment { .. } => {
                number(&object, "/status/replicas") == workers
                    && number(&object, "/status/updatedReplicas") == workers
                    && number(&object, "/status/availableReplicas") == workers
            }
        };
        let seen = match self.workload {
            WorkloadKind::WorkerCluster => "inForceGeneration",
            WorkloadKind::Deployment { .. } => "observedGeneration",
        };
        let is_seen = object["status"][seen] == object["metadata"]["generation"];
        let running = self.fixture.jobs_running();
        let pods = self.fixture.all_pods().len();
        if is_settled && is_seen && running == jobs && pods as u64 == workers {
            return Ok(());
        }
        let status = &object["status"];
        Err(format!("{running} jobs run by the journals, {pods} pods, the status is\n{status:#}"))
    }
}

impl WorkloadKind {
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

    fn manifest(self, fixture: &FleetFixture, image: &str, jobs: u64) -> Value {
        let mut manifest = match self {
            Self::WorkerCluster => {
                let spec = json!({
                    "maxJobs": jobs, "maxJobsPerWorker": JOBS_PER_WORKER,
                    "drain": { "deadline": "10m" }, "template": fixture.template(),
                });
                object("WorkerCluster", "builds", spec)
            }
            Self::Deployment { grace_s } => {
                let mut pod = fixture.pod_spec();
                pod["terminationGracePeriodSeconds"] = json!(grace_s);
                let labels = json!({ "app": "builds" });
                let spec = json!({
                    "replicas": jobs / JOBS_PER_WORKER, "selector": { "matchLabels": labels },
                    "template": { "metadata": { "labels": labels }, "spec": pod },
                });
                object("Deployment", "builds", spec)
            }
        };
        manifest["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
        manifest
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
