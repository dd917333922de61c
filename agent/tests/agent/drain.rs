//! Drains of an agent without a child, by signal and by request.

use leasehold_types::Epoch;
use leasehold_types::message::{AgentMessage, DrainPhase};
use rustix::process::Signal;
use serde_json::json;

use super::coordinator::Coordinator;
use super::process::{Agent, fail};

pub fn phase(wanted: DrainPhase) -> impl Fn(&AgentMessage) -> Option<()> {
    move |message| match message {
        AgentMessage::Beat(beat) => (beat.drain == wanted).then_some(()),
        _ => None,
    }
}

#[tokio::test]
async fn sigterm_drains_waits_for_the_job_and_the_stream_and_exits_with_0() {
    let coordinator = Coordinator::start().await;
    coordinator.pool(2);
    let mut agent = Agent::start(&coordinator, &[]).await;
    agent.pool(2).await;
    let token = coordinator.grant("cars", "a", false);
    agent.ask_until("/v1/lease", |lease| lease["streams"][0]["state"] == "held").await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    assert_eq!(agent.ask("POST", "/v1/start", r#"{"start_id":"s","running":0}"#).await.0, 200);
    coordinator.hear_release(token).await;
    let token = coordinator.grant("cars", "b", false);
    agent.ask_until("/v1/lease", |lease| lease["streams"][0]["stream"] == "b").await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    agent.signal(Signal::TERM);
    let lease = agent.ask_until("/v1/lease", |lease| lease["draining"] == true).await;
    assert_eq!(
        (&lease["pool"]["size"], &lease["streams"][0]["state"]),
        (&json!(0), &json!("revoked"))
    );
    coordinator.hear("the drain's begin", phase(DrainPhase::Draining)).await;
    assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await.0, 200);
    let path = format!("/v1/streams/cars/b?token={token}");
    assert_eq!(agent.ask("DELETE", &path, "").await.0, 200);
    assert_eq!(agent.code().await, Some(0));
    coordinator.hear("the farewell", phase(DrainPhase::Leaving)).await;
}

#[tokio::test]
async fn a_drained_agent_waits_for_a_coordinator_only_if_one_knows_it() {
    const WAITS: &str = "waiting for a coordinator";
    const UNACKNOWLEDGED: &str = "no coordinator has acknowledged it: its slots stay counted";
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().display().to_string();
    let start = r#"{"start_id":"s","running":0}"#;
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    let mut known = Agent::start(&coordinator, &["--state-dir", &state]).await;
    known.pool(1).await;
    coordinator.stop();
    known.log.line("no session with the coordinator").await;
    let mut unknown = Agent::start(&coordinator, &[]).await;
    for agent in [&known, &unknown] {
        assert_eq!(agent.ask("POST", "/v1/start", start).await.0, 200);
        agent.signal(Signal::INT);
    }
    let line = known.log.line(WAITS).await;
    assert!(line.contains("5s"), "{line}");
    assert_eq!((known.code().await, unknown.code().await), (Some(0), Some(0)));
    let line = known.log.line(UNACKNOWLEDGED).await;
    assert!(line.contains("WARN") && line.contains(&state), "{line}");
    for words in [WAITS, UNACKNOWLEDGED] {
        assert_eq!(unknown.log.count(words), 0, "{}", unknown.log.text());
    }
    // What the line advises helps: the command ends with 0 once a coordinator has its report.
    let next = Coordinator::start_in(Epoch(2)).await;
    let address = next.address.to_string();
    let leave = ["leave", "--coordinator", &address, "--cluster", "ci", "--worker", "w1"];
    let (code, said) = fail(&[&leave[..], &["--state-dir", &state]].concat()).await;
    assert_eq!(code, Some(0), "{said}");
}

#[tokio::test]
async fn the_leave_command_says_once_that_no_coordinator_has_its_report() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().display().to_string();
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    let mut agent = Agent::start(&coordinator, &["--state-dir", &state]).await;
    agent.pool(1).await;
    assert_eq!(agent.ask("POST", "/v1/start", r#"{"start_id":"s","running":0}"#).await.0, 200);
    agent.kill().await;
    coordinator.stop();
    let address = coordinator.address.to_string();
    let leave = ["leave", "--coordinator", &address, "--cluster", "ci", "--worker", "w1"];
    let more = ["--state-dir", &state, "--timeout", "100ms"];
    let (code, said) = fail(&[&leave[..], &more].concat()).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("run the command again"), "{said}");
    assert!(!said.contains("its slots stay counted"), "{said}");
}

/// Like the first worker of the README: it uses jobs only, also across restarts of its agent.
#[tokio::test]
async fn a_drain_does_not_wait_for_streams_that_the_worker_never_used() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--state-dir", dir.path().to_str().unwrap(), "--adapter", "api"];
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    let token = coordinator.grant("cars", "a", true);
    let mut first = Agent::start(&coordinator, &args).await;
    let start = r#"{"start_id":"s","running":0}"#;
    assert_eq!(first.ask("POST", "/v1/start", start).await.0, 200);
    assert_eq!(first.ask("PUT", "/v1/jobs/a?wait_ms=20000", "").await.0, 200);
    first.log.line("stream granted").await;
    // It may read its pool.
    let path = "/v1/lease?without_streams=true&without_bindings=true";
    let (_, lease) = first.ask("GET", path, "").await;
    assert_eq!((&lease["pool"]["size"], &lease["streams"]), (&json!(1), &json!([])));
    first.kill().await;
    coordinator.forget();
    let mut agent = Agent::start(&coordinator, &args).await;
    let beat = |message: &AgentMessage| matches!(message, AgentMessage::Beat(_)).then_some(());
    coordinator.hear("a beat of the second", beat).await;
    assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await.0, 200);
    assert_eq!(agent.ask("PUT", "/v1/jobs/b?wait_ms=20000", "").await.0, 200);
    assert_eq!(agent.metric("leasehold_agent_streams").await, "1");
    assert_eq!(agent.ask("DELETE", "/v1/jobs/b", "").await.0, 200);
    agent.signal(Signal::TERM);
    coordinator.hear_release(token).await;
    assert_eq!(agent.code().await, Some(0));
}

#[tokio::test]
async fn a_waiting_drain_returns_the_jobs_left_at_the_deadline() {
    let coordinator = Coordinator::start().await;
    coordinator.pool(2);
    let mut agent = Agent::start(&coordinator, &["--drain-deadline", "100ms"]).await;
    agent.pool(2).await;
    assert_eq!(agent.ask("POST", "/v1/start", r#"{"start_id":"s"}"#).await.0, 200);
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    assert_eq!(agent.ask("POST", "/v1/drain?wait=true", "").await, (200, json!({"jobs_left": 1})));
    assert_eq!(agent.code().await, Some(0));
    agent.log.line("jobs still run, and the agent does not kill them").await;
    coordinator.hear("the farewell", phase(DrainPhase::Leaving)).await;
}

#[tokio::test]
async fn a_second_signal_ends_the_agent_at_once() {
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    let mut agent = Agent::start(&coordinator, &[]).await;
    agent.pool(1).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    agent.signal(Signal::TERM);
    agent.ask_until("/v1/lease", |lease| lease["draining"] == true).await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.code().await, Some(128 + 15));
}
