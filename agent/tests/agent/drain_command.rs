//! `leasehold-agent drain`, as a container's preStop hook runs it.

use std::process::{Output, Stdio};
use std::time::Duration;

use leasehold_types::message::{AgentMessage, DrainPhase, Jobs};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::coordinator::{Coordinator, PATIENCE};
use super::drain::phase;
use super::process::{AGENT, Agent, Log};

/// The command, with its output to look at.
struct Errand {
    log: Log,
    process: tokio::process::Child,
}

impl Errand {
    fn start(agent: &str, more: &[&str]) -> Self {
        let mut command = tokio::process::Command::new(AGENT);
        command.args(["drain", "--addr", &format!("http://{agent}")]).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.kill_on_drop(true).spawn().unwrap();
        let log = Log::follow(process.stdout.take().unwrap());
        Self { log, process }
    }

    /// Its exit code, and what it said on stderr.
    async fn end(self) -> (Option<i32>, String) {
        let output = tokio::time::timeout(PATIENCE, self.process.wait_with_output()).await;
        let Output { status, stderr, .. } = output.expect("it does not end").unwrap();
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
async fn it_waits_for_the_last_job_and_says_how_many_are_left() {
    let coordinator = Coordinator::start().await;
    let agent = sidecar(&coordinator, &[]).await;
    let errand = Errand::start(&agent.address.to_string(), &["--wait"]);
    errand.log.line("1 job is left").await;
    coordinator.hear("the drain's begin", phase(DrainPhase::Draining)).await;
    assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await.0, 200);
    errand.log.line("drained").await;
    assert_eq!(errand.end().await, (Some(0), String::new()));
}

#[tokio::test]
async fn the_request_that_waits_for_the_end_is_answered_before_another_is_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let errand = Errand::start(&listener.local_addr().unwrap().to_string(), &["--wait"]);
    let accepted = tokio::time::timeout(PATIENCE, listener.accept()).await;
    let (mut socket, _) = accepted.expect("no request").unwrap();
    let mut head = [0; 1024];
    let read = socket.read(&mut head).await.unwrap();
    let head = String::from_utf8_lossy(&head[..read]);
    assert!(head.starts_with("POST /v1/drain?wait=true "), "{head}");
    // An agent without jobs answers within milliseconds, and ends.
    let second = tokio::time::timeout(Duration::from_millis(300), listener.accept()).await;
    assert!(second.is_err(), "a second request was sent beside the first");
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{\"jobs_left\":0}";
    socket.write_all(answer.as_bytes()).await.unwrap();
    drop(listener);
    assert_eq!(errand.end().await, (Some(0), String::new()));
}

#[tokio::test]
async fn it_waits_on_while_the_agent_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().display().to_string();
    let coordinator = Coordinator::start().await;
    let mut agent = sidecar(&coordinator, &["--state-dir", &state]).await;
    let address = agent.address.to_string();
    let errand = Errand::start(&address, &["--wait"]);
    errand.log.line("1 job is left").await;
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
        assert_eq!(told, (Jobs::Running(1), DrainPhase::Draining), "the journal keeps a drain");
    }
    assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await.0, 200);
    errand.log.line("drained").await;
    let (code, said) = errand.end().await;
    assert_eq!(code, Some(0));
    assert!(said.contains("the agent does not answer"), "{said}");
}

#[tokio::test]
async fn jobs_that_outlive_the_deadline_are_named_and_are_no_error() {
    let coordinator = Coordinator::start().await;
    let agent = sidecar(&coordinator, &["--drain-deadline", "100ms"]).await;
    let (code, said) = Errand::start(&agent.address.to_string(), &["--wait"]).end().await;
    assert_eq!(code, Some(0));
    assert!(
        said.contains("deadline has passed: 1 job is left, and the agent does not kill them"),
        "{said}"
    );
}

#[tokio::test]
async fn it_gives_up_at_its_timeout_and_the_drain_goes_on() {
    let coordinator = Coordinator::start().await;
    let agent = sidecar(&coordinator, &[]).await;
    let address = agent.address.to_string();
    let (code, said) = Errand::start(&address, &["--wait", "--timeout", "300ms"]).end().await;
    assert_eq!(code, Some(1));
    assert!(said.contains("not drained within 300ms"), "{said}");
    assert_eq!(agent.ask("GET", "/v1/lease", "").await.1["draining"], true);

    // Nobody there, and somebody who is no agent.
    let (code, said) = Errand::start("127.0.0.1:1", &[]).end().await;
    assert!(code == Some(1) && said.contains("127.0.0.1:1"), "{said}");
    let (code, said) = Errand::start("127.0.0.1:1", &["--timeout", "300ms"]).end().await;
    assert!(code == Some(1) && said.contains("no answer within 300ms"), "{said}");
    let grpc = coordinator.address.to_string();
    let (code, _) = Errand::start(&grpc, &["--wait", "--timeout", "300ms"]).end().await;
    assert_eq!(code, Some(1));
}

#[tokio::test]
async fn what_follows_it_runs_afterwards_in_any_case_and_its_exit_code_counts() {
    let coordinator = Coordinator::start().await;
    let agent = sidecar(&coordinator, &[]).await;
    let then = ["--then", "--", "sh", "-c", "echo afterwards; exit 7"];
    let errand = Errand::start(&agent.address.to_string(), &[&["--wait"][..], &then].concat());
    errand.log.line("1 job is left").await;
    assert_eq!(errand.log.count("afterwards"), 0);
    assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await.0, 200);
    errand.log.line("afterwards").await;
    assert_eq!(errand.end().await.0, Some(7));

    let errand = Errand::start("127.0.0.1:1", &then);
    errand.log.line("afterwards").await;
    assert_eq!(errand.end().await.0, Some(7));
    for wrong in [&["--then"][..], &["--", "sh"], &["--timeout", "5"], &["--addr", "nowhere"]] {
        assert_eq!(Errand::start("127.0.0.1:1", wrong).end().await.0, Some(2), "{wrong:?}");
    }
}
