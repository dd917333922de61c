//! The adapter `file` with a pool size: the file, and the slots that stay reserved until a reload.

use std::path::Path;

use leasehold_types::message::{AgentMessage, DrainPhase};
use rustix::process::Signal;

use super::coordinator::{Coordinator, counts};
use super::process::{Agent, read, until};

async fn start(coordinator: &Coordinator, path: &Path, more: &[&str]) -> Agent {
    let path = path.display().to_string();
    let args = [&["--adapter", "file", "--file-path", &path, "--file-pool"][..], more].concat();
    Agent::start(coordinator, &args).await
}

fn shows(path: &Path, size: u32) -> bool {
    read(path).contains(&format!("\n    poolSize: {size}\n"))
}

#[tokio::test]
async fn keeps_slots_reserved_until_the_worker_has_reloaded_and_its_jobs_have_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (path, count, may) =
        (dir.path().join("config.yml"), dir.path().join("count"), dir.path().join("may"));
    std::fs::write(&may, "").unwrap();
    std::fs::write(&count, "0").unwrap();
    let coordinator = Coordinator::start().await;
    coordinator.pool(3);
    let command = format!("test -e {}", may.display());
    let count_file = count.display().to_string();
    let more = ["--file-command", &command, "--file-count", &count_file];
    let mut agent = start(&coordinator, &path, &more).await;
    until("the size is in the file", || shows(&path, 3)).await;
    std::fs::write(&count, "2").unwrap();
    coordinator.hear_count(3, 2).await;

    std::fs::remove_file(&may).unwrap();
    coordinator.pool(1);
    until("the smaller size is in the file", || shows(&path, 1)).await;
    agent.log.line("--file-command exited with 1").await;
    // The worker has not reloaded, and begins a third job under the old size.
    coordinator.forget();
    std::fs::write(&count, "3").unwrap();
    coordinator.hear_count(3, 3).await;
    let freed = |message: &AgentMessage| counts(message).is_some_and(|reported| reported.0 < 3);
    assert_eq!(coordinator.count(freed), 0, "slots were released before the worker had reloaded");

    std::fs::write(&may, "").unwrap();
    coordinator.hear_count(1, 3).await;
    std::fs::write(&count, "1").unwrap();
    coordinator.hear_count(1, 1).await;

    agent.signal(Signal::TERM);
    until("the drain is in the file", || shows(&path, 0)).await;
    coordinator.hear_count(0, 1).await;
    let left = |message: &AgentMessage| match message {
        AgentMessage::Beat(beat) => beat.drain == DrainPhase::Leaving,
        _ => false,
    };
    assert_eq!(coordinator.count(left), 0, "the agent left although a job ran");
    std::fs::write(&count, "0").unwrap();
    assert_eq!(agent.code().await, Some(0));
}

#[tokio::test]
async fn a_restarted_agent_knows_the_size_that_its_worker_may_still_use() {
    let dir = tempfile::tempdir().unwrap();
    let (path, may) = (dir.path().join("config.yml"), dir.path().join("may"));
    let state = dir.path().join("state").display().to_string();
    std::fs::write(&may, "").unwrap();
    let coordinator = Coordinator::start().await;
    coordinator.pool(3);
    let command = format!("test -e {}", may.display());
    let more = ["--file-command", &command, "--state-dir", &state];
    let mut agent = start(&coordinator, &path, &more).await;
    // Without a count every slot counts as used.
    coordinator.hear_count(3, 3).await;
    std::fs::remove_file(&may).unwrap();
    coordinator.pool(1);
    agent.log.line("--file-command exited with 1").await;
    assert!(shows(&path, 1), "{}", read(&path));
    agent.kill().await;

    coordinator.forget();
    let agent = start(&coordinator, &path, &more).await;
    agent.log.line("--file-command exited with 1").await;
    coordinator.hear_count(3, 3).await;
    let freed = |message: &AgentMessage| counts(message).is_some_and(|reported| reported != (3, 3));
    assert_eq!(coordinator.count(freed), 0, "slots were released before the worker had reloaded");
    std::fs::write(&may, "").unwrap();
    coordinator.hear_count(1, 1).await;
}
