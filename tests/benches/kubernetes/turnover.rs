//! How long a slot is idle that a pod's end sets free, until a job elsewhere uses it.

use std::time::Duration;

use leasehold_demo::clock::now_ns;
use leasehold_demo::evidence::{Evidence, Run};
use tests::kube::{Access, FleetFixture, Work};
use tests::process::soon;

use crate::figures::Figures;
use crate::namespace;

/// Jobs are short here: nothing but their number counts.
const JOB_MS: (u64, u64) = (1_000, 3_000);
/// Fewer than the workers could take, so that slots move.
const SLOTS: usize = 4;
const WORKERS: u64 = 3;

/// Workers from a Deployment that only the benchmark changes.
fn manifest(fixture: &FleetFixture) -> String {
    format!(
        r"
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {{name: builds}}
spec: {{maxJobs: {SLOTS}, maxJobsPerWorker: {SLOTS}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: workers}}
spec:
  replicas: {WORKERS}
  selector: {{matchLabels: {{leasehold.dev/cluster: builds}}}}
  template:
    metadata: {{labels: {{leasehold.dev/cluster: builds}}}}
    spec:
      terminationGracePeriodSeconds: 600
      affinity: {}
      containers: [{{name: worker, image: example.invalid/worker:1}}]
",
        fixture.affinity()
    )
}

/// Times slots that move after a pod's end, this many times for each way to end.
pub(crate) async fn measure(access: &Access, runs: usize, figures: &mut Figures) {
    let (ms_min, ms_max) = JOB_MS;
    let namespace = namespace(access, "turnover");
    let fixture = FleetFixture::set(access, &namespace, 1, 1, Work::Jobs { ms_min, ms_max }).await;
    fixture.apply(&manifest(&fixture));
    for (what, flags) in [
        ("all slots used after a drained pod's last job", &[][..]),
        ("all slots used after a pod was killed with its jobs", &["--grace-period=0", "--force"]),
    ] {
        println!("==> {what}, {runs} times");
        let mut taken = Vec::new();
        for _ in 0..runs {
            taken.push(turnover(&fixture, flags).await);
        }
        figures.add(what, &taken);
    }
    fixture.kubectl(&["delete", "deployment", "workers", "--wait=false"]);
    fixture.kubectl(&["delete", "workercluster", "builds", "--wait=false"]);
    soon("the end of all pods", || {
        fixture.kubectl(&["get", "pods", "--output=name"]).is_empty().then_some(())
    })
    .await;
}

/// From the end of a deleted pod's last job until as many jobs run again as may.
async fn turnover(fixture: &FleetFixture, flags: &[&str]) -> Duration {
    soon("all workers and a full budget", || {
        let cluster = fixture.get("workercluster", "builds")?;
        let pods = fixture.kubectl(&["get", "pods", "--output=name"]).lines().count() as u64;
        let all = cluster["status"]["workers"]["connected"] == WORKERS && pods == WORKERS;
        (all && open(&fixture.evidence()).count() == SLOTS).then_some(())
    })
    .await;
    // The job that was begun last runs for longer than it takes to delete its pod.
    let worker = soon("a worker with a job", || {
        open(&fixture.evidence()).last().map(|run| run.worker.clone())
    })
    .await;
    let from_ns = now_ns();
    let delete = ["delete", "pod", &worker, "--wait=false"];
    fixture.kubectl(&[&delete[..], flags].concat());
    let pod = ["get", "pod", &worker, "--ignore-not-found", "--output=name"];
    soon("the pod's end", || {
        let ended = open(&fixture.evidence()).all(|run| run.worker != worker);
        (ended && fixture.kubectl(&pod).is_empty()).then_some(())
    })
    .await;
    let evidence = fixture.evidence();
    let its = evidence.runs.iter().filter(|run| run.worker == worker);
    let ended_ns = its.map(|run| run.to_ns).max().unwrap_or(0).max(from_ns);
    let full_ns = soon("a full budget", || full_after(&fixture.evidence().runs, ended_ns)).await;
    Duration::from_nanos(full_ns - ended_ns)
}

fn open(evidence: &Evidence) -> impl Iterator<Item = &Run> {
    evidence.runs.iter().filter(|run| run.to_ns == u64::MAX)
}

/// The first moment from `from_ns` on at which all slots are used; none so far.
fn full_after(runs: &[Run], from_ns: u64) -> Option<u64> {
    let later = runs.iter().map(|run| run.from_ns).filter(|&at_ns| at_ns >= from_ns);
    let mut moments: Vec<u64> = later.chain([from_ns]).collect();
    moments.sort_unstable();
    let running =
        |at_ns| runs.iter().filter(|run| run.from_ns <= at_ns && run.to_ns > at_ns).count();
    moments.into_iter().find(|&at_ns| running(at_ns) >= SLOTS)
}
