//! Whether the worker lives: what the agent asks, what the worker promises, how COMMAND starts.

use std::path::Path;

use leasehold_types::message::{AgentMessage, DrainPhase};
use rustix::process::{Pid, Signal, kill_process};

use super::coordinator::Coordinator;
use super::process::{Agent, read, until};

/// How the newest message says that its worker is.
#[derive(Clone, Debug, PartialEq)]
enum Said {
    Works,
    Fails(String),
    Drains,
}

fn said(message: &AgentMessage) -> Option<Said> {
    let (drain, failure) = match message {
        AgentMessage::Hello(_) => return None,
        AgentMessage::Report(report) => (report.drain, &report.failure),
        AgentMessage::Beat(beat) => (beat.drain, &beat.failure),
    };
    Some(match (drain, failure) {
        (DrainPhase::Draining, Some(failure)) => Said::Fails(failure.to_string()),
        (DrainPhase::Working, None) => Said::Works,
        (_, None) => Said::Drains,
        (drain, Some(failure)) => panic!("{drain}, and fails: {failure}"),
    })
}

/// Waits until the worker fails, and returns why.
async fn failure(coordinator: &Coordinator) -> String {
    let fails = |message: &AgentMessage| match said(message) {
        Some(Said::Fails(why)) => Some(why),
        _ => None,
    };
    coordinator.hear("that the worker fails", fails).await
}

/// Waits until a report says that the worker works, in a message that comes from now on.
async fn recovery(coordinator: &Coordinator) {
    let works = |message: &AgentMessage| match message {
        AgentMessage::Report(_) => (said(message)? == Said::Works).then_some(()),
        AgentMessage::Hello(_) | AgentMessage::Beat(_) => None,
    };
    coordinator.hear("a report that the worker works", works).await;
}

const OFTEN: [&str; 4] = ["--worker-check-interval", "100ms", "--worker-check-start-period", "0s"];

async fn checked(coordinator: &Coordinator, check: &[&str], more: &[&str]) -> Agent {
    Agent::start(coordinator, &[&OFTEN, check, more].concat()).await
}

async fn exec_check(coordinator: &Coordinator, well: &Path, more: &[&str]) -> Agent {
    let line = format!("test -e {} || {{ echo it is gone >&2; exit 4; }}", well.display());
    checked(coordinator, &["--worker-check-exec", &line], more).await
}

#[tokio::test]
async fn a_worker_that_fails_its_check_gets_nothing_until_it_passes() {
    let dir = tempfile::tempdir().unwrap();
    let (well, state) = (dir.path().join("well"), dir.path().join("state"));
    std::fs::write(&well, "").unwrap();
    let coordinator = Coordinator::start().await;
    coordinator.pool(2);
    let state = ["--state-dir", state.to_str().unwrap()];
    let mut agent = exec_check(&coordinator, &well, &state).await;
    agent.pool(2).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    assert_eq!(agent.text("GET", "/readyz", "").await.0, 200);

    std::fs::remove_file(&well).unwrap();
    let why = failure(&coordinator).await;
    assert_eq!(why, "--worker-check-exec exited with 4: it is gone");
    let (status, refused) = agent.ask("PUT", "/v1/jobs/b", "").await;
    assert_eq!((status, refused["error"]["reason"].as_str()), (409, Some("failing")));
    let (status, why) = agent.text("GET", "/readyz", "").await;
    assert!(status == 503 && why.contains("the worker fails: --worker-check-exec"), "{why}");
    assert_eq!(agent.metric("leasehold_agent_worker_ok").await, "0");
    let (_, lease) = agent.ask("GET", "/v1/lease", "").await;
    assert!(lease["draining"] == false && lease["pool"]["size"] == 0, "{lease}");
    assert_eq!(lease["pool"]["running"], 1, "its job goes on: {lease}");

    // The next agent does not take it for well before it has passed.
    agent.kill().await;
    coordinator.forget();
    let again = exec_check(&coordinator, &well, &state).await;
    failure(&coordinator).await;
    coordinator.forget();
    coordinator.pool(2);
    std::fs::write(&well, "").unwrap();
    recovery(&coordinator).await;
    again.pool(2).await;
    assert_eq!(again.ask("PUT", "/v1/jobs/b", "").await.0, 200);
    assert_eq!(again.text("GET", "/readyz", "").await.0, 200);
    assert_eq!(again.metric("leasehold_agent_worker_ok").await, "1");
}

#[tokio::test]
async fn a_check_that_cannot_run_fails_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("plain");
    std::fs::write(&plain, "").unwrap();
    for (line, what) in [
        ("/no/such/check", "a command in it was not found (exit 127): "),
        (plain.to_str().unwrap(), "a command in it is not executable (exit 126): "),
    ] {
        let coordinator = Coordinator::start().await;
        let checks = dir.path().join("checks");
        let check = format!("echo >> {}; {line}", checks.display());
        let command = ["--restart", "always", "--", "sleep", "1000"];
        let agent = checked(&coordinator, &["--worker-check-exec", &check], &command).await;
        let why = failure(&coordinator).await;
        let begins = format!("--worker-check-exec cannot run: {what}");
        assert!(why.starts_with(&begins) && why.contains(line), "{why}");
        agent.log.line("the check itself cannot run").await;
        assert_eq!(agent.log.count("the check itself cannot run"), 1, "{}", agent.log.text());
        // Another process would be checked no better.
        let before = read(&checks).lines().count();
        until("more checks", || read(&checks).lines().count() > before + 2).await;
        assert_eq!(agent.log.count("COMMAND fails, and --restart is set"), 0);
    }
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_and_a_wrong_status_fail_the_check() {
    let coordinator = Coordinator::start().await;
    let well = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = well.local_addr().unwrap().to_string();
    let agent = checked(&coordinator, &["--worker-check-tcp", &address], &[]).await;
    coordinator
        .hear("a beat", |message| matches!(message, AgentMessage::Beat(_)).then_some(()))
        .await;
    drop(well);
    let why = failure(&coordinator).await;
    assert!(why.starts_with(&format!("{address}: ")) && why.contains("refused"), "{why}");
    drop(agent);

    let other = Coordinator::start().await;
    let served = Agent::start(&Coordinator::start().await, &[]).await;
    let url = format!("http://{}/nowhere", served.address);
    let _agent = checked(&other, &["--worker-check-http", &url], &[]).await;
    assert_eq!(failure(&other).await, format!("{url} answers 404"));
}

#[tokio::test]
async fn a_worker_that_breaks_its_promise_to_call_fails_until_it_calls() {
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    let agent = Agent::start(&coordinator, &[]).await;
    agent.pool(1).await;
    assert_eq!(agent.ask("POST", "/v1/beat?within_ms=60000", "").await.0, 200);
    assert_eq!(agent.ask("POST", "/v1/beat?within_ms=300", "").await.0, 200);
    assert_eq!(failure(&coordinator).await, "it has not called the worker API for 300ms");
    // What a person asks is no sign of life.
    assert_eq!(agent.ask("GET", "/v1/lease?peek=true", "").await.0, 200);
    assert_eq!(agent.text("GET", "/readyz", "").await.0, 503);
    coordinator.forget();
    assert_eq!(agent.ask("POST", "/v1/beat?within_ms=0", "").await.0, 200);
    recovery(&coordinator).await;
    let start = r#"{"start_id":"same","running":0}"#;
    for _ in 0..2 {
        assert_eq!(agent.ask("POST", "/v1/start", start).await.0, 200);
    }
    let (status, refused) = agent.ask("POST", "/v1/beat", r#"{"within_ms":1000}"#).await;
    assert!(status == 400 && refused.to_string().contains("into the query"), "{refused}");
    let (status, refused) = agent.ask("POST", "/v1/beat?within_ms=99", "").await;
    assert!(status == 400 && refused.to_string().contains("at least 100"), "{refused}");
}

#[tokio::test]
async fn a_worker_must_call_as_often_as_its_agent_is_told() {
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &["--worker-timeout", "300ms"]).await;
    assert_eq!(failure(&coordinator).await, "it has not called the worker API for 300ms");
    coordinator.forget();
    assert_eq!(agent.ask("GET", "/v1/lease", "").await.0, 200);
    recovery(&coordinator).await;
    failure(&coordinator).await;
}

#[tokio::test]
async fn a_command_that_hangs_is_killed_and_restarted() {
    let dir = tempfile::tempdir().unwrap();
    let pids = dir.path().join("pids");
    let coordinator = Coordinator::start().await;
    // It lives as long as its newest process is not stopped.
    let line = format!("! grep -q '^State:.T' /proc/$(tail -n1 {})/status", pids.display());
    let script = format!("echo $$ >> {}; exec sleep 1000", pids.display());
    let restart = ["--restart", "on-failure", "--child-kill", "--child-grace", "100ms"];
    let command = ["--", "sh", "-c", &script];
    let agent = checked(
        &coordinator,
        &["--worker-check-exec", &line],
        &[&restart[..], &command[..]].concat(),
    )
    .await;
    let started = || read(&pids).lines().map(|pid| pid.parse().unwrap()).collect::<Vec<i32>>();
    until("it runs", || started().len() == 1).await;
    kill_process(Pid::from_raw(started()[0]).unwrap(), Signal::STOP).unwrap();
    failure(&coordinator).await;
    agent.log.line("COMMAND fails, and --restart is set").await;
    until("it runs again", || started().len() == 2).await;
    // The first report is that of the agent's start.
    let reports = |message: &AgentMessage| matches!(message, AgentMessage::Report(_));
    until("a report of the recovery", || coordinator.count(reports) == 2).await;
    until("the worker is well", || {
        coordinator.count(|message| said(message) == Some(Said::Works)) >= 2
    })
    .await;
    assert_eq!(started().len(), 2, "{}", agent.log.text());
}

#[tokio::test]
async fn a_command_that_exits_again_and_again_fails() {
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    let args = ["--restart", "always", "--", "sh", "-c", "exit 3"];
    let agent = Agent::start(&coordinator, &args).await;
    let why = failure(&coordinator).await;
    assert!(why.contains("again and again") && why.ends_with("with code 3"), "{why}");
    assert_eq!(agent.text("GET", "/readyz", "").await.0, 503);
}

#[tokio::test]
async fn the_next_agent_knows_what_its_worker_has_promised() {
    let dir = tempfile::tempdir().unwrap();
    let state = ["--state-dir", dir.path().to_str().unwrap()];
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    let mut agent = Agent::start(&coordinator, &state).await;
    agent.pool(1).await;
    assert_eq!(agent.ask("POST", "/v1/beat?within_ms=400", "").await.0, 200);
    agent.kill().await;
    coordinator.forget();
    // It hears nothing of the worker, which did not fail before.
    let mut agent = Agent::start(&coordinator, &state).await;
    assert_eq!(failure(&coordinator).await, "it has not called the worker API for 400ms");
    agent.kill().await;
    coordinator.forget();
    let agent = Agent::start(&coordinator, &state).await;
    agent.log.line("it has not called the worker API for 400ms").await;
    let works = |message: &AgentMessage| said(message) == Some(Said::Works);
    assert_eq!(coordinator.count(works), 0, "nothing has shown that it lives");
    assert_eq!(agent.text("GET", "/readyz", "").await.0, 503);
    assert_eq!(agent.ask("POST", "/v1/beat?within_ms=60000", "").await.0, 200);
    recovery(&coordinator).await;
}

#[tokio::test]
async fn a_command_that_breaks_its_promise_is_restarted() {
    let dir = tempfile::tempdir().unwrap();
    let starts = dir.path().join("starts");
    let coordinator = Coordinator::start().await;
    let script = format!(
        "echo >> {}; curl -sS -X POST \"$LEASEHOLD_ADDR/v1/beat?within_ms=300\"; exec sleep 1000",
        starts.display()
    );
    let args = ["--restart", "on-failure", "--", "sh", "-c", &script];
    let agent = Agent::start(&coordinator, &args).await;
    failure(&coordinator).await;
    agent.log.line("COMMAND fails, and --restart is set").await;
    until("it runs again", || read(&starts).lines().count() >= 2).await;
}
