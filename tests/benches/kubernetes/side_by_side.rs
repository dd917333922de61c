//! The script, once against a plain Deployment and once against a WorkerCluster.

use std::time::{Duration, Instant};

use leasehold_demo::checker::peak;
use tests::kube::{Access, FleetFixture, JOBS_BEFORE, RolloutScenario, Work, WorkloadKind};
use tests::process::soon;

use crate::figures::{Figures, seconds};
use crate::namespace;

/// How long a job lasts: hours, scaled down.
const JOB_MS: (u64, u64) = (4_000, 12_000);
/// What Kubernetes gives by default is 30 seconds; beside jobs of hours that is less than this is
/// beside jobs of seconds.
const GRACE_S: u64 = 5;
const NODES: usize = 3;
/// How many jobs a plain worker takes, whatever others do.
const POOL: usize = 2;
const REPLICAS: usize = 3;

/// What came of one run of the script.
pub(crate) struct Outcome {
    run: usize,
    lost: usize,
    peak: usize,
    settled: Duration,
    /// Writes of the object's status, by its controller.
    status_writes: u64,
}

/// Against a plain Deployment.
pub(crate) async fn plain(access: &Access) -> Outcome {
    println!("==> the script against a plain Deployment");
    let (ms_min, ms_max) = JOB_MS;
    let work = Work::JobsAlone { ms_min, ms_max, pool: POOL };
    let namespace = namespace(access, "plain");
    let fixture = FleetFixture::set(access, &namespace, 0, NODES, work).await;
    let mut scenario =
        RolloutScenario { fixture, workload: WorkloadKind::Deployment { grace_s: GRACE_S } };
    let outcome = run(&mut scenario, "deployments").await;
    scenario.fixture.kubectl(&["delete", "deployment", "builds", "--wait=false"]);
    ended(&scenario).await;
    outcome
}

/// Against a WorkerCluster, whose scenario can go on.
pub(crate) async fn ours(access: &Access, figures: &mut Figures) -> (Outcome, RolloutScenario) {
    println!("==> the script against a WorkerCluster");
    let (ms_min, ms_max) = JOB_MS;
    let namespace = namespace(access, "ours");
    let begun = Instant::now();
    let work = Work::Jobs { ms_min, ms_max };
    let fixture = FleetFixture::set(access, &namespace, REPLICAS, NODES, work).await;
    figures.add("start of three coordinators and three simulated nodes", &[begun.elapsed()]);
    let mut scenario = RolloutScenario { fixture, workload: WorkloadKind::WorkerCluster };
    let outcome = run(&mut scenario, "workerclusters").await;
    (outcome, scenario)
}

async fn run(scenario: &mut RolloutScenario, resource: &str) -> Outcome {
    println!("    {JOBS_BEFORE} jobs are to run");
    scenario.begin().await;
    println!("    they run; now everything at once");
    let writes = status_writes(scenario, resource);
    let disruption = scenario.disrupt();
    let from_ns = disruption.at_ns;
    let to_ns = scenario.settle(disruption).await;
    let status_writes = status_writes(scenario, resource) - writes;
    let evidence = scenario.fixture.evidence();
    assert_eq!(evidence.contradictions, Vec::<String>::new());
    let meanwhile =
        || evidence.runs.iter().filter(|run| run.from_ns < to_ns && run.to_ns > from_ns);
    let outcome = Outcome {
        run: meanwhile().count(),
        // What still runs has no end yet; what was killed has one and is not done.
        lost: meanwhile().filter(|run| !run.done && run.to_ns != u64::MAX).count(),
        peak: peak(&evidence.runs, from_ns, to_ns),
        settled: Duration::from_nanos(to_ns - from_ns),
        status_writes,
    };
    println!("    settled after {}", seconds(outcome.settled));
    outcome
}

/// Ends a scenario that went on; no job of all of it may be lost.
pub(crate) async fn end(scenario: RolloutScenario) {
    println!("==> the end of the WorkerCluster");
    scenario.fixture.kubectl(&["delete", "workercluster", "builds", "--wait=false"]);
    ended(&scenario).await;
    let evidence = scenario.fixture.evidence();
    let lost = evidence.runs.iter().filter(|run| !run.done).count();
    println!(
        "    {} jobs were begun from its beginning to its end, {lost} lost",
        evidence.runs.len()
    );
}

async fn ended(scenario: &RolloutScenario) {
    soon("the end of all pods", || {
        let pods = scenario.fixture.kubectl(&["get", "pods", "--output=name"]);
        pods.is_empty().then_some(())
    })
    .await;
}

/// The number of status writes for this resource at the API server.
fn status_writes(scenario: &RolloutScenario, resource: &str) -> u64 {
    let metrics = scenario.fixture.access.kubectl(&["get", "--raw", "/metrics"]);
    let is_write = |line: &&str| {
        line.starts_with("apiserver_request_total{")
            && line.contains(&format!("resource=\"{resource}\""))
            && line.contains("subresource=\"status\"")
            && ["APPLY", "PATCH", "PUT"]
                .iter()
                .any(|verb| line.contains(&format!("verb=\"{verb}\"")))
    };
    let count = |line: &str| line.rsplit(' ').next()?.parse::<u64>().ok();
    metrics.lines().filter(is_write).filter_map(count).sum()
}

/// Prints both beside each other.
pub(crate) fn print(plain: &Outcome, ours: &Outcome) {
    let row = |what: &str, plain: String, ours: String| {
        println!("{what:<36} {plain:>18} {ours:>18}");
    };
    println!();
    row("", "plain Deployment".to_owned(), "WorkerCluster".to_owned());
    let count = |what: &str, plain: usize, ours: usize| {
        row(what, plain.to_string(), ours.to_string());
    };
    count("jobs run", plain.run, ours.run);
    count("jobs lost", plain.lost, ours.lost);
    row(
        "peak",
        format!("{} of {JOBS_BEFORE}", plain.peak),
        format!("{} of {JOBS_BEFORE}", ours.peak),
    );
    row("settled after", seconds(plain.settled), seconds(ours.settled));
    let rate = |outcome: &Outcome| {
        let rate = outcome.status_writes as f64 / outcome.settled.as_secs_f64();
        format!("{} ({rate:.2}/s)", outcome.status_writes)
    };
    row("writes of its status", rate(plain), rate(ours));
    let (least, most) = (JOB_MS.0 / 1_000, JOB_MS.1 / 1_000);
    println!(
        "\nScaled down: jobs last {least} to {most} s instead of hours, and a plain worker has \
         {GRACE_S} s to end\ninstead of the default of 30 s. Only the WorkerCluster's leader was \
         killed: the other has none.\n"
    );
}
