//! Agents that start with the state folder of an agent that has exited.

use std::path::Path;

use rustix::process::Signal;

use super::coordinator::Coordinator;
use super::process::{Agent, read, until};

/// An agent with the folder `dir/state`, and a worker that writes a line into `dir/runs` and runs
/// until SIGTERM.
async fn start(coordinator: &Coordinator, dir: &Path) -> Agent {
    let (state, runs) = (dir.join("state"), dir.join("runs"));
    let script =
        format!("trap 'exit 0' TERM; echo run >> {}; while :; do sleep 0.02; done", runs.display());
    let state = state.to_str().unwrap().to_owned();
    Agent::start(coordinator, &["--state-dir", &state, "--", "sh", "-c", &script]).await
}

#[tokio::test]
async fn starts_the_worker_again_after_each_exit() {
    let dir = tempfile::tempdir().unwrap();
    let (state, told) = (dir.path().join("state"), dir.path().join("told"));
    let coordinator = Coordinator::start().await;
    let script = format!("echo hello >> {0}; sleep 0.1; echo done >> {0}", told.display());
    let state = state.to_str().unwrap();
    for run in 1..=3 {
        let args = ["--state-dir", state, "--", "sh", "-c", &script];
        let mut agent = Agent::start(&coordinator, &args).await;
        assert_eq!(agent.code().await, Some(0), "run {run}: {}", agent.log.text());
        assert_eq!(read(&told), "hello\ndone\n".repeat(run));
    }
}

#[tokio::test]
async fn takes_jobs_again_after_sigterm_and_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    for (run, signal) in [(1, Signal::INT), (2, Signal::TERM), (3, Signal::TERM)] {
        let mut agent = start(&coordinator, dir.path()).await;
        agent.pool(1).await;
        until("it runs", || read(&runs).lines().count() == run).await;
        assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200, "run {run}");
        assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await.0, 200);
        agent.signal(signal);
        assert_eq!(agent.code().await, Some(0), "run {run}: {}", agent.log.text());
    }
}

#[tokio::test]
async fn does_not_start_the_worker_after_a_drain_that_the_coordinator_ordered() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    let mut agent = start(&coordinator, dir.path()).await;
    agent.pool(1).await;
    until("it runs", || read(&dir.path().join("runs")) == "run\n").await;
    coordinator.drain();
    assert_eq!(agent.code().await, Some(0));
    let mut again = start(&coordinator, dir.path()).await;
    assert_eq!(again.code().await, Some(3));
    let said = again.log.text();
    assert!(said.contains("start its agent with --undrain"), "{said}");
    assert_eq!(read(&dir.path().join("runs")), "run\n", "the worker was started again");
}

#[tokio::test]
async fn undrain_lets_the_worker_work_again_once_an_ordered_drain_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let args = ["--state-dir", state.to_str().unwrap()];
    let undrain = [&args[..], &["--undrain"]].concat();
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    let mut agent = Agent::start(&coordinator, &args).await;
    agent.pool(1).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    coordinator.drain();
    agent.ask_until("/v1/lease", |lease| lease["draining"] == true).await;
    coordinator.forget_drain();
    agent.kill().await;

    // A drain that goes on is the coordinator's to take back.
    let mut agent = Agent::start(&coordinator, &undrain).await;
    agent.log.line("`leasehold undrain w1` takes the order back").await;
    assert_eq!(agent.ask("GET", "/v1/lease", "").await.1["draining"], true);
    assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await.0, 200);
    assert_eq!(agent.code().await, Some(3), "{}", agent.log.text());

    let mut agent = Agent::start(&coordinator, &args).await;
    assert_eq!(agent.code().await, Some(3), "{}", agent.log.text());
    for (run, args) in [(1, &undrain[..]), (2, &args)] {
        let mut agent = Agent::start(&coordinator, args).await;
        // Another agent may have had the name since this one left.
        let start = format!(r#"{{"start_id": "{run}"}}"#);
        assert_eq!(agent.ask("POST", "/v1/start", &start).await.0, 200, "run {run}");
        agent.pool(1).await;
        assert_eq!(agent.ask("PUT", "/v1/jobs/b", "").await.0, 200, "run {run}");
        assert_eq!(agent.ask("DELETE", "/v1/jobs/b", "").await.0, 200);
        agent.signal(Signal::TERM);
        assert_eq!(agent.code().await, Some(0), "run {run}: {}", agent.log.text());
    }
}

/// Without a child the agent does not see a restart of the worker, only its own.
#[tokio::test]
async fn an_agent_without_a_child_takes_jobs_again() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let args = ["--state-dir", state.to_str().unwrap()];
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    for run in 1..=3 {
        let mut agent = Agent::start(&coordinator, &args).await;
        agent.pool(1).await;
        assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200, "run {run}");
        assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await.0, 200);
        agent.signal(Signal::TERM);
        assert_eq!(agent.code().await, Some(0), "run {run}");
    }
}
