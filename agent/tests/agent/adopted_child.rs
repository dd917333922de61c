//! A worker whose agent is killed at any moment of its start: the next agent adopts it, and never
//! starts a second one. No worker is started that a next agent would not find.

use std::time::{Duration, Instant};

use leasehold_types::message::{AgentMessage, Jobs};
use rustix::process::{Signal, kill_process};

use super::coordinator::Coordinator;
use super::process::{SmallDisk, runs, until};
use super::worker_folder::{ALONE, WorkerFolder};

/// How often an agent is killed during its start.
const ATTEMPTS: u64 = 30;
/// The longest time until the kill, after its port listens.
const LIFE_MICROS_MAX: u64 = 4000;

/// A worker that runs until it is killed, and alone.
fn worker() -> String {
    format!("{ALONE}; echo $$ >> starts; exec sleep 600")
}

fn running(jobs: u32) -> impl Fn(&AgentMessage) -> Option<()> {
    move |message| match message {
        AgentMessage::Report(report) => (report.jobs == Jobs::Running(jobs)).then_some(()),
        AgentMessage::Beat(beat) => (beat.jobs == Jobs::Running(jobs)).then_some(()),
        AgentMessage::Hello(_) => None,
    }
}

#[tokio::test]
async fn a_successor_starts_no_second_worker_however_early_the_agent_was_killed() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    for attempt in 0..ATTEMPTS {
        let _ = std::fs::remove_file(fixture.path("starts"));
        let mut agent = fixture.agent(&coordinator, &[], &worker()).await;
        let life = Duration::from_micros(attempt * LIFE_MICROS_MAX / ATTEMPTS);
        // Shorter than the resolution of a timer.
        let since = Instant::now();
        while since.elapsed() < life {
            std::hint::spin_loop();
        }
        kill_process(agent.pid, Signal::KILL).unwrap();
        agent.status().await;
        let mut successor = fixture.agent(&coordinator, &[], &worker()).await;
        until("a worker runs", || fixture.running() > 0).await;
        let known = || successor.log.count("adopts it") + successor.log.count("child started") > 0;
        until("its agent knows it", known).await;
        assert!(
            fixture.ran_alone(),
            "two workers at once, killed {life:?} after the port listened"
        );
        assert_eq!(fixture.started().len(), 1, "{life:?}: {}", successor.log.text());
        successor.kill().await;
        fixture.kill_all();
        until("it has ended", || fixture.running() == 0).await;
    }
}

#[tokio::test]
async fn starts_no_worker_until_its_start_can_be_recorded() {
    let fixture = WorkerFolder::new();
    let state = fixture.path("state");
    std::fs::create_dir(&state).unwrap();
    let Some(disk) = SmallDisk::mount(&state, "a worker's start on a full disk") else { return };
    let coordinator = Coordinator::start().await;
    coordinator.pool(100);
    let mut agent = fixture.agent(&coordinator, &[], &worker()).await;
    agent.pool(100).await;
    until("it runs", || fixture.running() == 1).await;
    let ballast = disk.fill();
    let begun = agent.fill_journal().await;
    assert!(begun > 0, "the disk was full before the first job");
    kill_process(agent.pid, Signal::KILL).unwrap();
    agent.status().await;

    // The worker runs: the next agent adopts it with its jobs, although it cannot write.
    let mut agent = fixture.agent(&coordinator, &[], &worker()).await;
    agent.log.line("adopts it").await;
    let (status, why) = agent.text("GET", "/readyz", "").await;
    assert_eq!(status, 503);
    assert!(why.contains("cannot write the journal"), "{why}");
    let (_, lease) = agent.ask("GET", "/v1/lease", "").await;
    assert_eq!(lease["pool"]["running"], begun, "{lease}");
    kill_process(agent.pid, Signal::KILL).unwrap();
    agent.status().await;

    // The worker has exited: no other one is started while it cannot be recorded.
    fixture.kill_all();
    until("it has ended", || fixture.running() == 0).await;
    let agent = fixture.agent(&coordinator, &[], &worker()).await;
    agent.log.line("cannot record the start of COMMAND").await;
    assert_eq!(agent.text("GET", "/readyz", "").await.0, 503);
    let (_, lease) = agent.ask("GET", "/v1/lease", "").await;
    assert_eq!(lease["pool"]["running"], begun, "the end of the jobs is not recorded");
    assert_eq!(fixture.started().len(), 1);
    coordinator.forget();
    std::fs::remove_file(&ballast).unwrap();
    until("it is started", || fixture.started().len() == 2).await;
    coordinator.hear("the end of the jobs of the worker before", running(0)).await;
    until("it is well", || agent.log.count("child started") == 1).await;
    assert_eq!(agent.text("GET", "/readyz", "").await.0, 200);
    assert!(fixture.ran_alone());
}

#[tokio::test]
async fn starts_no_worker_while_a_process_of_the_previous_one_runs() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    let (more, script) = (["--restart", "always"], "sleep 600 & echo $$ $! >> starts; wait");
    let mut agent = fixture.agent(&coordinator, &more, script).await;
    let [first, rest] = fixture.until_started(2).await[..] else { panic!("two processes") };
    kill_process(agent.pid, Signal::KILL).unwrap();
    agent.status().await;
    kill_process(first, Signal::KILL).unwrap();
    until("it has ended", || !runs(first)).await;
    let agent = fixture.agent(&coordinator, &more, script).await;
    agent.log.line("COMMAND starts when this process group is empty").await;
    assert!(runs(rest));
    assert_eq!(fixture.started().len(), 2, "the worker was not started again exactly once");
    kill_process(rest, Signal::KILL).unwrap();
    until("it is started again", || fixture.started().len() == 4).await;
}

#[tokio::test]
async fn refuses_to_start_a_worker_if_its_record_is_invalid() {
    let fixture = WorkerFolder::new();
    let state = fixture.path("state");
    std::fs::create_dir(&state).unwrap();
    std::fs::write(state.join("child"), "0 \n").unwrap();
    let coordinator = Coordinator::start().await;
    let mut agent = fixture.agent(&coordinator, &[], &worker()).await;
    assert_eq!(agent.code().await, Some(1));
    let said = agent.log.text();
    assert!(said.contains("cannot parse") && said.contains("child"), "{said}");
    assert_eq!(fixture.started().len(), 0);
}
