//! The adapter `http` against a worker with its own HTTP interface.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use leasehold_types::message::AgentMessage;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::coordinator::{Coordinator, told};
use super::process::{Agent, exchange, read, until};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/http_worker.py");
const TOKEN: &str = "Bearer w0rker";

/// A running worker; it is killed at the end of its test.
struct Worker {
    _process: Child,
    address: SocketAddr,
    jobs: PathBuf,
    auth: String,
}

impl Worker {
    async fn start(folder: &Path, more: &[&str]) -> Self {
        let (jobs, port, auth) = (folder.join("jobs"), folder.join("port"), folder.join("auth"));
        std::fs::create_dir(&jobs).unwrap();
        std::fs::write(&auth, TOKEN).unwrap();
        let mut command = Command::new("python3");
        command.arg(PROGRAM).args(["--token", TOKEN]).args(more);
        command.arg("--job-dir").arg(&jobs).arg("--port-file").arg(&port);
        let process = command.kill_on_drop(true).spawn().unwrap();
        until("the worker listens", || port.exists()).await;
        let address = format!("127.0.0.1:{}", read(&port)).parse().unwrap();
        Self { _process: process, address, jobs, auth: auth.display().to_string() }
    }

    async fn agent(&self, coordinator: &Coordinator, more: &[&str]) -> Agent {
        let count = self.url("/status");
        let mut args = vec!["--adapter", "http", "--http-count-url", &count];
        args.extend(["--http-count-field", "/jobs/running", "--http-interval", "100ms"]);
        args.extend(["--http-auth-file", &self.auth]);
        args.extend(more);
        Agent::start(coordinator, &args).await
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    async fn ask(&self, method: &str, path: &str) -> Value {
        let socket = TcpStream::connect(self.address).await.unwrap();
        let header = format!("Authorization: {TOKEN}\r\n");
        let (status, body) = exchange(socket, method, path, &header, "").await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    fn running(&self) -> usize {
        std::fs::read_dir(&self.jobs).unwrap().count()
    }

    fn end_job(&self) {
        let job = std::fs::read_dir(&self.jobs).unwrap().next().unwrap();
        std::fs::remove_file(job.unwrap().path()).unwrap();
    }
}

/// A worker that runs two jobs and has stopped to give useful answers, with its agent.
async fn broken_worker(folder: &Path) -> (Worker, Coordinator, Agent) {
    let worker = Worker::start(folder, &[]).await;
    let coordinator = Coordinator::start().await;
    let size = worker.url("/size/{size}");
    let agent = worker.agent(&coordinator, &["--http-size-url", &size]).await;
    coordinator.pool(2);
    coordinator.hear_count(2, 2).await;
    worker.ask("POST", "/break").await;
    (worker, coordinator, agent)
}

async fn sizes_count_and_drain(field: bool) {
    let dir = tempfile::tempdir().unwrap();
    let worker = Worker::start(dir.path(), &[]).await;
    let coordinator = Coordinator::start().await;
    let size = worker.url("/size/{size}");
    let mut more = vec!["--http-size-url", &size];
    if field {
        more.extend(["--http-size-field", "/jobs/limit"]);
    }
    let mut agent = worker.agent(&coordinator, &more).await;
    coordinator.pool(3);
    until("three jobs run", || worker.running() == 3).await;
    coordinator.hear_count(3, 3).await;
    coordinator.forget();
    coordinator.pool(1);
    coordinator.hear_count(1, 3).await;
    assert_eq!(coordinator.count(|message| told(message, 1, 2)), 0);
    worker.end_job();
    worker.end_job();
    coordinator.hear_count(1, 1).await;
    agent.signal(Signal::TERM);
    agent.log.line("\"draining\":true").await;
    worker.end_job();
    assert_eq!(agent.code().await, Some(0));
    let asked = worker.ask("GET", "/asked").await;
    assert_eq!(asked.as_array().unwrap().last().unwrap()[1], "/size/0", "{asked}");
    assert_eq!(worker.running(), 0);
}

#[tokio::test]
async fn sizes_counts_and_drains_a_worker_that_shows_its_size() {
    sizes_count_and_drain(true).await;
}

#[tokio::test]
async fn sizes_counts_and_drains_a_worker_that_only_answers_2xx() {
    sizes_count_and_drain(false).await;
}

#[tokio::test]
async fn a_fixed_size_counts_as_used_until_the_drain() {
    let dir = tempfile::tempdir().unwrap();
    let worker = Worker::start(dir.path(), &["--fixed", "2"]).await;
    let coordinator = Coordinator::start().await;
    let drain = worker.url("/drain");
    let more = ["--http-size-max", "2", "--http-drain-url", &drain];
    let mut agent = worker
        .agent(&coordinator, &[&more[..], &["--http-drain-body", r#"{"a":1}"#]].concat())
        .await;
    until("two jobs run", || worker.running() == 2).await;
    coordinator.pool(1);
    coordinator.hear_count(2, 2).await;
    assert_eq!(worker.ask("GET", "/asked").await, json!([]));
    agent.signal(Signal::TERM);
    coordinator.hear_count(0, 2).await;
    worker.end_job();
    coordinator.hear_count(0, 1).await;
    worker.end_job();
    assert_eq!(agent.code().await, Some(0));
    assert_eq!(worker.ask("GET", "/asked").await, json!([["POST", "/drain", r#"{"a":1}"#]]));
}

#[tokio::test]
async fn keeps_the_last_counts_and_reports_an_unreadable_answer() {
    let dir = tempfile::tempdir().unwrap();
    let (worker, coordinator, agent) = broken_worker(dir.path()).await;
    agent.log.line("--http-count-field /jobs/running: the answer has nothing there").await;
    let (status, why) = agent.text("GET", "/readyz", "").await;
    assert!(status == 503 && why.contains("/jobs/running"), "{status} {why}");
    assert_eq!(agent.metric("leasehold_agent_worker_ok").await, "0");
    worker.end_job();
    coordinator.forget();
    coordinator
        .hear("a beat", |message| matches!(message, AgentMessage::Beat(_)).then_some(()))
        .await;
    assert_eq!(coordinator.count(|message| !told(message, 2, 2)), 0, "the counts were reduced");
    worker.ask("POST", "/break").await;
    agent.log.line("the worker answers").await;
    until("it is ready", || agent.log.count("the worker answers") == 2).await;
    assert_eq!(agent.text("GET", "/readyz", "").await.0, 200);
    assert_eq!(
        agent.log.count("the answer has nothing there"),
        1,
        "the error is logged more than once"
    );
    assert!(!agent.log.text().contains(TOKEN));
}

#[tokio::test]
async fn a_worker_that_gives_no_answer_for_long_gets_no_job_until_it_answers() {
    let dir = tempfile::tempdir().unwrap();
    let (worker, coordinator, agent) = broken_worker(dir.path()).await;
    let failure = |message: &AgentMessage| match message {
        AgentMessage::Beat(beat) => beat.failure.as_ref().map(ToString::to_string),
        _ => None,
    };
    let why = coordinator.hear("that the worker fails", failure).await;
    assert!(why.starts_with("it has not answered its agent for 30s: "), "{why}");
    assert!(why.contains("/jobs/running"), "{why}");
    let counts = |message: &AgentMessage| told(message, 2, 2);
    assert!(coordinator.count(counts) > 0, "its jobs and its size count");
    coordinator.forget();
    worker.ask("POST", "/break").await;
    let recovery = |message: &AgentMessage| match message {
        AgentMessage::Report(report) => report.failure.is_none().then_some(()),
        _ => None,
    };
    coordinator.hear("a report that the worker works", recovery).await;
    assert_eq!(agent.text("GET", "/readyz", "").await.0, 200);
}
