//! `leasehold-agent drain`, as a container's preStop hook runs it.

use std::process::{Output, Stdio};
use std::time::Duration;

use leasehold_types::message::{AgentMessage, DrainPhase, Jobs};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::coordinator::{Coordinator, PATIENCE};
use super::drain::phase;
use super::process::{AGENT, Agent, Log, process_namespace, until};
use super::sidecar::report;

/// The running command, and its output.
struct DrainCommand {
    log: Log,
    process: tokio::process::Child,
}

impl DrainCommand {
    fn start(agent: &str, more: &[&str]) -> Self {
        let mut program = tokio::process::Command::new(AGENT);
        program.args(["drain", "--addr", &format!("http://{agent}")]).args(more);
        program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = program.kill_on_drop(true).spawn().unwrap();
        let log = Log::follow(process.stdout.take().unwrap());
        Self { log, process }
    }

    /// Waits for its end, and returns its exit code and stderr.
    async fn end(self) -> (Option<i32>, String) {
        let output = tokio::time::timeout(PATIENCE, self.process.wait_with_output()).await;
        let Output { status, stderr, .. } = output.expect("the command exits").unwrap();
        (status.code(), String::from_utf8(stderr).unwrap())
    }
}

async fn sidecar(coordinator: &Coordinator, more: &[&str]) -> Agent {
    coordinator.pool(2);
    let agent = Agent::start(coordinator, &[&["--sidecar"], more].concat()).await;
    agent.pool(2).await;
    assert_eq!(agent.ask("POST", "/v1/start", r#"{"start_id":"s"}"#).await.0, 200);
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    agent
}

#[tokio::test]
async fn waits_for_the_last_job_and_prints_how_many_are_left() {
    let coordinator = Coordinator::start().await;
    let agent = sidecar(&coordinator, &[]).await;
    let command = DrainCommand::start(&agent.address.to_string(), &["--wait"]);
    command.log.line("1 job is left").await;
    coordinator.hear("the drain's begin", phase(DrainPhase::Draining)).await;
    assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await.0, 200);
    command.log.line("drained").await;
    assert_eq!(command.end().await, (Some(0), String::new()));
}

#[tokio::test]
async fn sends_the_waiting_request_first_and_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let command = DrainCommand::start(&listener.local_addr().unwrap().to_string(), &["--wait"]);
    let accepted = tokio::time::timeout(PATIENCE, listener.accept()).await;
    let (mut socket, _) = accepted.expect("no request").unwrap();
    let mut head = [0; 1024];
    let read = socket.read(&mut head).await.unwrap();
    let head = String::from_utf8_lossy(&head[..read]);
    assert!(head.starts_with("POST /v1/drain?wait=true&container=true "), "{head}");
    // An agent without jobs answers within milliseconds, and ends.
    let second = tokio::time::timeout(Duration::from_millis(300), listener.accept()).await;
    assert!(second.is_err(), "a second request was sent beside the first");
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{\"jobs_left\":0}";
    socket.write_all(answer.as_bytes()).await.unwrap();
    drop(listener);
    assert_eq!(command.end().await, (Some(0), String::new()));
}

/// A kubelet that restarts a container after a failed liveness probe runs its preStop hook first.
#[tokio::test]
async fn the_drain_ends_with_the_container_that_requested_it() {
    let Some(mut container) = process_namespace() else { return };
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start().await;
    let agent = sidecar(&coordinator, &[]).await;
    assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await.0, 200);
    let script = "\"$0\" drain --wait --addr \"$1\" && touch \"$2\"; sleep 600";
    let (address, hook) = (format!("http://{}", agent.address), dir.path().join("hook"));
    container.args(["sh", "-c", script, AGENT, &address]).arg(&hook).stdin(Stdio::null());
    let mut container = container.spawn().unwrap();
    until("the hook ends", || hook.exists()).await;
    coordinator.hear("the farewell", phase(DrainPhase::Leaving)).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/b", "").await.0, 409);
    coordinator.forget();

    // All its processes end with the first one. No other process says that it starts.
    container.kill().unwrap();
    container.wait().unwrap();
    let told = coordinator.hear("a report", report).await;
    assert_eq!((told.drain, told.pool), (DrainPhase::Working, None));
    agent.pool(2).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/b", "").await.0, 200);
}

#[tokio::test]
async fn a_drain_lasts_as_long_as_the_process_that_holds_it() {
    let coordinator = Coordinator::start().await;
    let agent = sidecar(&coordinator, &[]).await;
    let address = agent.address.to_string();
    let mut holder = DrainCommand::start(&address, &["--hold"]);
    agent.ask_until("/v1/lease", |lease| lease["draining"] == true).await;
    holder.process.kill().await.unwrap();
    agent.ask_until("/v1/lease", |lease| lease["draining"] == false).await;

    // The process ends when the drain is over for another reason.
    let holder = DrainCommand::start(&address, &["--hold"]);
    agent.ask_until("/v1/lease", |lease| lease["draining"] == true).await;
    assert_eq!(agent.ask("POST", "/v1/start", r#"{"start_id":"another"}"#).await.0, 200);
    assert_eq!(holder.end().await, (Some(0), String::new()));
}

#[tokio::test]
async fn an_agent_that_ends_with_its_drain_refuses_to_hold_it() {
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    let agent = Agent::start(&coordinator, &[]).await;
    agent.pool(1).await;
    let command = DrainCommand::start(&agent.address.to_string(), &["--hold"]);
    let (code, said) = command.end().await;
    assert!(code == Some(1) && said.contains("only a sidecar works again"), "{said}");
    assert_eq!(agent.ask("GET", "/v1/lease", "").await.1["draining"], false);
}

#[tokio::test]
async fn keeps_waiting_while_the_agent_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().display().to_string();
    let coordinator = Coordinator::start().await;
    let mut agent = sidecar(&coordinator, &["--state-dir", &state]).await;
    let address = agent.address.to_string();
    let command = DrainCommand::start(&address, &["--wait"]);
    command.log.line("1 job is left").await;
    for signal in [Signal::TERM, Signal::KILL] {
        agent.signal(signal);
        agent.status().await;
        coordinator.forget();
        agent =
            Agent::start_at(&coordinator, &address, &["--sidecar", "--state-dir", &state]).await;
        let told = |message: &AgentMessage| match message {
            AgentMessage::Report(report) => Some((report.jobs, report.drain)),
            _ => None,
        };
        let told = coordinator.hear("the successor's report", told).await;
        assert_eq!(told, (Jobs::Running(1), DrainPhase::Draining), "the journal records the drain");
    }
    assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await.0, 200);
    command.log.line("drained").await;
    let (code, said) = command.end().await;
    assert_eq!(code, Some(0));
    assert!(said.contains("the agent does not answer"), "{said}");
}

#[tokio::test]
async fn reports_jobs_left_at_the_deadline_and_exits_with_0() {
    let coordinator = Coordinator::start().await;
    let agent = sidecar(&coordinator, &["--drain-deadline", "100ms"]).await;
    let (code, said) = DrainCommand::start(&agent.address.to_string(), &["--wait"]).end().await;
    assert_eq!(code, Some(0));
    assert!(
        said.contains("deadline has passed: 1 job is left, and the agent does not kill them"),
        "{said}"
    );
}

#[tokio::test]
async fn exits_with_1_at_its_timeout_and_the_drain_continues() {
    let coordinator = Coordinator::start().await;
    let agent = sidecar(&coordinator, &[]).await;
    let address = agent.address.to_string();
    let (code, said) = DrainCommand::start(&address, &["--wait", "--timeout", "300ms"]).end().await;
    assert_eq!(code, Some(1));
    assert!(said.contains("not drained within 300ms"), "{said}");
    assert_eq!(agent.ask("GET", "/v1/lease", "").await.1["draining"], true);

    // No server, and a server that is not an agent.
    let (code, said) = DrainCommand::start("127.0.0.1:1", &[]).end().await;
    assert!(code == Some(1) && said.contains("127.0.0.1:1"), "{said}");
    let (code, said) = DrainCommand::start("127.0.0.1:1", &["--timeout", "300ms"]).end().await;
    assert!(code == Some(1) && said.contains("no answer within 300ms"), "{said}");
    let grpc = coordinator.address.to_string();
    let (code, said) = DrainCommand::start(&grpc, &["--wait"]).end().await;
    assert!(code == Some(1) && said.contains("does not answer with HTTP/1.1"), "{said}");
    assert!(said.contains(&grpc) && said.contains("Set --addr to"), "{said}");
}

#[tokio::test]
async fn runs_the_command_of_then_after_success_and_failure_and_returns_its_exit_code() {
    let coordinator = Coordinator::start().await;
    let agent = sidecar(&coordinator, &[]).await;
    let then = ["--then", "--", "sh", "-c", "echo afterwards; exit 7"];
    let command =
        DrainCommand::start(&agent.address.to_string(), &[&["--wait"][..], &then].concat());
    command.log.line("1 job is left").await;
    assert_eq!(command.log.count("afterwards"), 0);
    assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await.0, 200);
    command.log.line("afterwards").await;
    assert_eq!(command.end().await.0, Some(7));

    let command = DrainCommand::start("127.0.0.1:1", &then);
    command.log.line("afterwards").await;
    assert_eq!(command.end().await.0, Some(7));
    for wrong in [&["--then"][..], &["--", "sh"], &["--timeout", "5"], &["--addr", "nowhere"]] {
        assert_eq!(DrainCommand::start("127.0.0.1:1", wrong).end().await.0, Some(2), "{wrong:?}");
    }
}
