//! Everything at once: a new image, half the budget, a node that is drained and a leader that is
//! killed, while long jobs run. No job is lost, and never do more run than may.

use leasehold_demo::checker::peak;
use leasehold_demo::clock::now_ns;
use tests::kube::{FleetFixture, JOBS_AFTER, JOBS_BEFORE, RolloutScenario, Work, WorkloadKind};
use tests::process::soon;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rollout_a_scale_in_a_drained_node_and_a_killed_leader_lose_no_job() {
    let work = Work::Jobs { ms_min: 2_000, ms_max: 6_000 };
    let Some(fixture) = FleetFixture::start("rollout", 3, 3, work).await else { return };
    let mut scenario = RolloutScenario { fixture, workload: WorkloadKind::WorkerCluster };
    scenario.begin().await;
    let disruption = scenario.disrupt();
    let all_at_once = disruption.at_ns;
    let settled = scenario.settle(disruption).await;

    let table = scenario.fixture.kubectl(&["get", "wc"]);
    assert!(table.lines().any(|line| line.starts_with("builds")), "{table}");
    let events = scenario.fixture.event_reasons();
    for reason in ["DrainStarted", "DrainCompleted", "LeaderChanged"] {
        assert!(events.split_whitespace().any(|word| word == reason), "no {reason} in: {events}");
    }

    // No more than half are begun from here on, so a while at 20 shows that they are reached.
    soon("some jobs more", || {
        let done =
            scenario.fixture.evidence().runs.iter().filter(|run| run.from_ns > settled).count();
        (done >= 10).then_some(())
    })
    .await;
    let end = now_ns();
    let evidence = scenario.fixture.end();
    let running = |from: u64, to: u64| peak(&evidence.runs, from, to) as u64;
    assert_eq!(running(0, all_at_once), JOBS_BEFORE, "the budget is used");
    let meanwhile = running(all_at_once, settled);
    assert!(meanwhile <= JOBS_BEFORE, "{meanwhile} jobs at once, of {JOBS_BEFORE}");
    assert_eq!(running(settled, end), JOBS_AFTER, "the new budget is kept and used");
}
