//! Everything at once: a new image, half the budget, a node that is drained and a leader that is
//! killed, while long jobs run. No job is lost, and never do more run than may.

use leasehold_demo::checker::peak;
use leasehold_demo::clock::now_ns;
use tests::kube::{Cluster, JOBS_AFTER, JOBS_BEFORE, Keeper, Stage, Story, Work};
use tests::process::{eventually, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rollout_a_scale_in_a_drained_node_and_a_killed_leader_lose_no_job() {
    let Some(cluster) = Cluster::shared() else { return };
    let namespace = cluster.namespace("rollout");
    let work = Work::Jobs { ms_min: 2_000, ms_max: 6_000 };
    let stage = Stage::set(cluster.access(), &namespace, 3, 3, work).await;
    let mut story = Story { stage, keeper: Keeper::WorkerCluster };
    story.begin().await;
    assert_eq!(story.jobs_running(), JOBS_BEFORE, "the status agrees with the journals");
    let upset = story.upset();
    let all_at_once = upset.at_ns;
    let settled = story.settle(upset).await;

    let table = story.stage.kubectl(&["get", "wc"]);
    assert!(table.lines().any(|line| line.starts_with("builds")), "{table}");
    let events = story.stage.kubectl(&["get", "events", "--output=jsonpath={.items[*].reason}"]);
    for reason in ["DrainStarted", "DrainCompleted", "LeaderChanged"] {
        assert!(events.split_whitespace().any(|it| it == reason), "no {reason} in: {events}");
    }

    // No more than half are begun from here on, so a while at 20 shows that they are reached.
    soon("some jobs more", || {
        let done = story.stage.evidence().runs.iter().filter(|run| run.from_ns > settled).count();
        (done >= 10).then_some(())
    })
    .await;
    let end = now_ns();
    let stage = story.stage;
    stage.kubectl(&["delete", "wc", "builds", "--wait=false"]);
    eventually("the end of all pods", || stage.pods().is_empty().then_some(()));
    eventually("the end of all jobs", || {
        stage.evidence().runs.iter().all(|run| run.to_ns != u64::MAX).then_some(())
    });
    let evidence = stage.evidence();
    assert_eq!(evidence.contradictions, Vec::<String>::new());
    let lost: Vec<_> = evidence.runs.iter().filter(|run| !run.done).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
    let running = |from: u64, to: u64| peak(&evidence.runs, from, to) as u64;
    assert_eq!(running(0, all_at_once), JOBS_BEFORE, "the budget is used");
    let meanwhile = running(all_at_once, settled);
    assert!(meanwhile <= JOBS_BEFORE, "{meanwhile} jobs at once, of {JOBS_BEFORE}");
    assert_eq!(running(settled, end), JOBS_AFTER, "the new budget is kept and used");
}
