//! How long there is no leader after the leader ends, and how long until its successor has
//! everybody back, with workers connected that run jobs.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tests::kube::{JOBS_AFTER, Replicas, RolloutScenario};
use tests::process::{HANG, get, soon};

use crate::figures::Figures;

/// Between two looks: there is less to be measured than the usual time between two.
const LOOK: Duration = Duration::from_millis(2);
const WORKERS: u64 = JOBS_AFTER / 2;

/// Times hand-overs and takeovers, this many of each.
pub(crate) async fn measure(scenario: &mut RolloutScenario, runs: usize, figures: &mut Figures) {
    let replicas = &mut scenario.fixture.replicas;
    // The script has killed one. Agents learn of this one from the leader.
    replicas.start();
    for (what, signal) in
        [("SIGTERM to the leader", Signal::TERM), ("kill -9 of the leader", Signal::KILL)]
    {
        println!("==> {what}, {runs} times");
        let mut taken = Vec::new();
        for _ in 0..runs {
            taken.push(succession(replicas, signal).await);
        }
        let (led, whole): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
        figures.add(&format!("{what}: until another leads"), &led);
        figures.add(&format!("{what}: until it has all {WORKERS} workers"), &whole);
    }
}

/// From the signal to the leader until another's metrics say that it leads, and until they say that
/// it has every worker and plans again. Another replica follows the one that went.
async fn succession(replicas: &mut Replicas, signal: Signal) -> (Duration, Duration) {
    soon("ready replicas", || replicas.are_ready().then_some(())).await;
    soon("a leader with all workers", || has_all(replicas).then_some(())).await;
    let leader = soon("a leader", || replicas.leading()).await;
    let old = replicas.running.remove(leader);
    let told = Instant::now();
    old.process.signal(signal);
    let led = after(told, || replicas.leading().is_some()).await;
    let whole = after(told, || has_all(replicas)).await;
    replicas.follow(leader, old);
    (led, whole)
}

async fn after(told: Instant, mut condition: impl FnMut() -> bool) -> Duration {
    while !condition() {
        assert!(told.elapsed() < HANG, "no succession");
        tokio::time::sleep(LOOK).await;
    }
    told.elapsed()
}

/// Whether there is a leader with every worker, and nothing keeps it from planning.
fn has_all(replicas: &Replicas) -> bool {
    let Some(leader) = replicas.leading() else { return false };
    let Some((_, metrics)) = get(replicas.running[leader].http, "/metrics") else { return false };
    let value = |name: &str, label: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name) && line.contains(label));
        line?.rsplit(' ').next()?.parse::<u64>().ok()
    };
    value("leasehold_workers{", "\"connected\"") == Some(WORKERS)
        && value("leasehold_cluster_held{", "") == Some(0)
}
