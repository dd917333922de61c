//! The agent as a sidecar: it starts before its worker, keeps running after a drain, and exits on
//! SIGTERM.

use std::path::Path;
use std::process::Command;

use leasehold_types::message::{AgentMessage, DrainPhase, Jobs, Report};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::coordinator::Coordinator;
use super::drain::phase;
use super::process::{AGENT, Agent, exchange, process_namespace};

pub fn report(message: &AgentMessage) -> Option<Report> {
    match message {
        AgentMessage::Report(report) => Some(report.clone()),
        _ => None,
    }
}

fn beat_of(running: u32, wanted: DrainPhase) -> impl Fn(&AgentMessage) -> Option<()> {
    move |message| match message {
        AgentMessage::Beat(beat) => {
            (beat.jobs == Jobs::Running(running) && beat.drain == wanted).then_some(())
        }
        _ => None,
    }
}

#[tokio::test]
async fn stays_after_a_drain_until_sigterm() {
    let coordinator = Coordinator::start().await;
    coordinator.pool(2);
    let mut agent = Agent::start(&coordinator, &["--sidecar"]).await;
    agent.pool(2).await;
    assert_eq!(agent.ask("POST", "/v1/start", r#"{"start_id":"s"}"#).await.0, 200);
    assert_eq!(agent.ask("POST", "/v1/drain?wait=true", "").await, (200, json!({"jobs_left": 0})));
    coordinator.hear("the farewell", phase(DrainPhase::Leaving)).await;
    agent.log.line("the agent stays until it gets a signal").await;
    let lease = agent.ask_until("/v1/lease", |lease| lease["connected"] == false).await;
    assert_eq!((&lease["pool"]["size"], &lease["draining"]), (&json!(0), &json!(true)));
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 409);
    assert_eq!(agent.ask("POST", "/v1/drain?wait=true", "").await, (200, json!({"jobs_left": 0})));
    assert_eq!(agent.metric("leasehold_agent_reconnects_total").await, "0");
    agent.signal(Signal::TERM);
    assert_eq!(agent.code().await, Some(0));
}

/// Process 1 of a container ignores a SIGTERM until it has a handler for it. Before it becomes the
/// agent it is a process of the container runtime, whose handlers do not count.
#[tokio::test]
async fn the_pre_stop_command_waits_until_process_1_is_an_agent_that_handles_sigterm() {
    let Some(mut namespace) = process_namespace() else { return };
    let ended = tempfile::NamedTempFile::new().unwrap();
    let script = "trap : TERM; { \"$0\" pre-stop; echo $? > \"$1\"; kill -TERM 1; } & sleep 0.5; \
                  [ -s \"$1\" ] && exit 9; \
                  exec \"$0\" run --coordinator 127.0.0.1:1 --cluster builds --worker w-0 \
                  --sidecar --listen 127.0.0.1:0 --health-listen 127.0.0.1:0";
    let output = namespace.args(["sh", "-c", script, AGENT]).arg(ended.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_to_string(ended.path()).unwrap(), "0\n");
}

#[tokio::test]
async fn sigterm_ends_it_at_once_and_its_successor_continues_from_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().display().to_string();
    for signal in [Signal::TERM, Signal::INT] {
        let coordinator = Coordinator::start().await;
        coordinator.pool(3);
        let more = ["--sidecar", "--state-dir", &state];
        let mut agent = Agent::start(&coordinator, &more).await;
        agent.pool(3).await;
        let token = coordinator.grant("cars", "a", true);
        agent.ask_until("/v1/lease", |lease| lease["streams"][0]["state"] == "held").await;
        assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
        assert_eq!(agent.ask("PUT", "/v1/jobs/b", "").await.0, 200);
        agent.signal(signal);
        assert_eq!(agent.code().await, Some(0));
        let drains = |message: &AgentMessage| match message {
            AgentMessage::Beat(beat) => {
                beat.drain != DrainPhase::Working || !beat.released.is_empty()
            }
            _ => false,
        };
        assert_eq!(coordinator.count(drains), 0, "it drained or released something");

        coordinator.forget();
        let mut successor = Agent::start(&coordinator, &more).await;
        let report = coordinator.hear("the successor's report", report).await;
        assert_eq!(report.jobs, Jobs::Running(2));
        assert_eq!(report.drain, DrainPhase::Working);
        assert_eq!(report.streams.iter().map(|held| held.token).collect::<Vec<_>>(), [token]);
        assert_eq!(successor.ask("PUT", "/v1/jobs/a", "").await.0, 200, "the job is still known");
        successor.pool(3).await;
        successor.kill().await;
        std::fs::remove_file(dir.path().join("journal.jsonl")).unwrap();
    }
}

#[tokio::test]
async fn keeps_reporting_after_the_drain_deadline_until_the_last_job_has_ended() {
    let coordinator = Coordinator::start().await;
    coordinator.pool(2);
    let more = ["--sidecar", "--drain-deadline", "100ms"];
    let mut agent = Agent::start(&coordinator, &more).await;
    agent.pool(2).await;
    assert_eq!(agent.ask("POST", "/v1/start", r#"{"start_id":"s"}"#).await.0, 200);
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    assert_eq!(agent.ask("PUT", "/v1/jobs/b", "").await.0, 200);
    assert_eq!(agent.ask("POST", "/v1/drain?wait=true", "").await, (200, json!({"jobs_left": 2})));
    agent.log.line("it keeps reporting until nothing is left").await;
    assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await.0, 200);
    coordinator.hear("that one job is left", beat_of(1, DrainPhase::Draining)).await;
    assert_eq!(agent.ask("POST", "/v1/drain?wait=true", "").await, (200, json!({"jobs_left": 1})));
    assert_eq!(agent.metric("leasehold_agent_connected").await, "1");
    assert_eq!(agent.ask("DELETE", "/v1/jobs/b", "").await.0, 200);
    coordinator.hear("the farewell", beat_of(0, DrainPhase::Leaving)).await;
    assert_eq!(agent.ask("POST", "/v1/drain?wait=true", "").await, (200, json!({"jobs_left": 0})));
    agent.signal(Signal::TERM);
    assert_eq!(agent.code().await, Some(0));
}

#[tokio::test]
async fn a_worker_restart_cancels_a_drain_unless_the_coordinator_ordered_it() {
    let coordinator = Coordinator::start().await;
    coordinator.pool(2);
    let agent = Agent::start(&coordinator, &["--sidecar"]).await;
    agent.pool(2).await;
    assert_eq!(agent.ask("POST", "/v1/start", r#"{"start_id":"1"}"#).await.0, 200);
    // After a failed liveness probe a kubelet runs the hook, stops the container and starts
    // another.
    assert_eq!(agent.ask("POST", "/v1/drain?wait=true", "").await, (200, json!({"jobs_left": 0})));
    coordinator.hear("the farewell", phase(DrainPhase::Leaving)).await;
    coordinator.forget();
    assert_eq!(agent.ask("POST", "/v1/start", r#"{"start_id":"2"}"#).await.0, 200);
    let told = coordinator.hear("a report", report).await;
    assert_eq!((told.drain, told.pool), (DrainPhase::Working, None));
    agent.pool(2).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);

    coordinator.drain();
    agent.ask_until("/v1/lease", |lease| lease["draining"] == true).await;
    assert_eq!(agent.ask("POST", "/v1/start", r#"{"start_id":"3"}"#).await.0, 200);
    assert_eq!(agent.ask("POST", "/v1/drain?wait=true", "").await, (200, json!({"jobs_left": 0})));
    assert_eq!(agent.ask("PUT", "/v1/jobs/b", "").await.0, 409);
}

#[tokio::test]
async fn the_port_for_health_serves_health_and_metrics_and_no_worker_api() {
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    let agent = Agent::start(&coordinator, &["--health-listen", "[::]:0"]).await;
    agent.pool(1).await;
    let line: Value =
        serde_json::from_str(&agent.log.line("health and metrics are served").await).unwrap();
    let address = line["fields"]["address"].as_str().unwrap();
    let port: u16 = address.rsplit(':').next().unwrap().parse().unwrap();
    let ask = async |method: &str, path: &str| {
        let socket = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        // With the pod's address as the host, as a kubelet does.
        exchange(socket, method, path, "Host: 10.1.2.3:7412\r\n", "").await
    };
    for path in ["/livez", "/readyz", "/healthz"] {
        assert_eq!(ask("GET", path).await, (200, "ok\n".into()), "{path}");
    }
    let (status, metrics) = ask("GET", "/metrics").await;
    assert!(status == 200 && metrics.contains("leasehold_agent_pool_size 1\n"), "{metrics}");
    for (method, path) in [
        ("GET", "/v1/lease"),
        ("PUT", "/v1/jobs/a"),
        ("POST", "/v1/drain"),
        ("POST", "/leasehold.worker.v1.WorkerService/Drain"),
    ] {
        assert_eq!(ask(method, path).await.0, 404, "{path}");
    }
    let lease = agent.ask("GET", "/v1/lease", "").await.1;
    assert_eq!((&lease["draining"], &lease["pool"]["running"]), (&json!(false), &json!(0)));

    // Connections are closed after one request, so that the kubelet always gets one.
    let mut socket = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    socket.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("connection: close\r\n"), "{answer}");
}

/// Whether the program runs: `drain` without an agent exits with 1.
fn runs(program: &Path) -> bool {
    let args = ["drain", "--addr", "http://127.0.0.1:1"];
    Command::new(program).args(args).output().unwrap().status.code() == Some(1)
}

#[tokio::test]
async fn a_shared_program_is_replaced_while_the_old_one_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (share, program) = (dir.path().join("bin"), dir.path().join("bin/leasehold-agent"));
    let coordinator = Coordinator::start().await;
    // An earlier version of the program, in use.
    std::fs::create_dir(&share).unwrap();
    std::fs::copy("/bin/sleep", &program).unwrap();
    let mut old = tokio::process::Command::new(&program);
    let mut old = old.arg("1000").kill_on_drop(true).spawn().unwrap();
    let more = ["--sidecar", "--share-dir", &share.display().to_string()];
    let mut agent = Agent::start(&coordinator, &more).await;
    assert!(runs(&program), "the copy is not the agent");
    assert!(old.try_wait().unwrap().is_none(), "the old program has exited");
    old.kill().await.unwrap();

    // The next agent finds its own copy in use, and leaves it.
    let mut waits = tokio::process::Command::new(&program);
    waits.args(["drain", "--wait", "--addr", "http://127.0.0.1:1"]).kill_on_drop(true);
    let mut waits = waits.spawn().unwrap();
    agent.kill().await;
    let _successor = Agent::start(&coordinator, &more).await;
    assert!(runs(&program), "the copy is not the agent");
    assert!(waits.try_wait().unwrap().is_none(), "the old program has exited");
    waits.kill().await.unwrap();
}
