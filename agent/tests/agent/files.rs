//! An agent that may open few files: neither connections nor programs take those that it needs.

use std::process::Command;

use rustix::process::{Signal, kill_process_group};
use serde_json::json;
use tokio::net::{TcpStream, UnixStream};

use super::coordinator::Coordinator;
use super::process::{AGENT, Agent, exchange, pids, read, until};

/// The most open files of these agents.
const FILES: &str = "64";
/// More connections than the agent may open files.
const MANY: usize = 300;
/// The log's word for a connection for which no file was left.
const REFUSED: &str = "cannot accept";

async fn start(coordinator: &Coordinator, more: &[&str]) -> Agent {
    let mut command = Command::new("sh");
    let address = coordinator.address.to_string();
    command.args(["-c", "ulimit -n $0 && exec \"$@\"", FILES, AGENT, "run"]);
    command.args(["--coordinator", &address, "--cluster", "ci", "--worker", "w1"]);
    command.args(["--listen", "127.0.0.1:0", "--log-format", "json"]).args(more);
    Agent::run(&mut command).await
}

#[tokio::test]
async fn serves_the_end_of_a_job_despite_more_idle_connections_than_files() {
    let dir = tempfile::tempdir().unwrap();
    let (state, socket) = (dir.path().join("state"), dir.path().join("socket"));
    let (state, path) = (state.to_str().unwrap(), socket.to_str().unwrap());
    let coordinator = Coordinator::start().await;
    let agent = start(&coordinator, &["--state-dir", state, "--socket", path]).await;
    agent.log.line("allows fewer connections").await;
    coordinator.pool(2);
    agent.pool(2).await;
    for job in ["a", "b"] {
        assert_eq!(agent.ask("PUT", &format!("/v1/jobs/{job}"), "").await.0, 200);
    }
    let mut idle = Vec::new();
    for _ in 0..MANY {
        idle.push(TcpStream::connect(agent.address).await.unwrap());
    }
    assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await, (200, json!({})));
    // The port and the socket share their files.
    let mut silent = Vec::new();
    for _ in 0..MANY {
        silent.push(UnixStream::connect(&socket).await.unwrap());
    }
    let worker = UnixStream::connect(&socket).await.unwrap();
    let answer = exchange(worker, "DELETE", "/v1/jobs/b", "Host: localhost\r\n", "").await;
    assert_eq!(answer.0, 200, "{}", answer.1);
    assert_eq!(agent.log.count(REFUSED), 0, "no file was left for a connection");
    drop((idle, silent));
}

#[tokio::test]
async fn kubelets_take_no_file_from_the_worker() {
    let coordinator = Coordinator::start().await;
    let agent = start(&coordinator, &["--health-listen", "127.0.0.1:0"]).await;
    let line = agent.log.line("health and metrics are served").await;
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    let health = line["fields"]["address"].as_str().unwrap().to_owned();
    coordinator.pool(1);
    agent.pool(1).await;
    let mut silent = Vec::new();
    for _ in 0..MANY / 2 {
        silent.push(TcpStream::connect(agent.address).await.unwrap());
        silent.push(TcpStream::connect(&health).await.unwrap());
    }
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    let kubelet = TcpStream::connect(&health).await.unwrap();
    assert_eq!(exchange(kubelet, "GET", "/livez", "Host: x\r\n", "").await.0, 200);
    assert_eq!(agent.log.count(REFUSED), 0, "no file was left for a connection");
}

#[tokio::test]
async fn starts_many_programs_with_few_files_and_idle_connections() {
    const PROGRAMS: usize = 60;
    let dir = tempfile::tempdir().unwrap();
    let starts = dir.path().join("starts");
    let script = format!("echo $$ >> {}; exec sleep 600", starts.display());
    let coordinator = Coordinator::start().await;
    let command = ["--adapter", "process", "--", "sh", "-c", &script];
    let mut agent = start(&coordinator, &command).await;
    let mut idle = Vec::new();
    for _ in 0..MANY {
        idle.push(TcpStream::connect(agent.address).await.unwrap());
    }
    for stream in 0..PROGRAMS {
        coordinator.grant("cars", &format!("s{stream}"), true);
    }
    until("all run", || read(&starts).lines().count() >= PROGRAMS).await;
    assert_eq!(agent.log.count("cannot start programs"), 0, "no file was left for a program");
    assert_eq!(agent.log.count(REFUSED), 0, "no file was left for a connection");
    // A program writes its line before the agent counts it.
    let all = |running: u64| usize::try_from(running) == Ok(PROGRAMS);
    agent.metric_until("leasehold_agent_processes", all).await;
    // The second signal kills the programs.
    agent.signal(Signal::TERM);
    agent.ask_until("/v1/lease", |lease| lease["draining"] == true).await;
    agent.signal(Signal::TERM);
    agent.status().await;
    for pid in pids(&starts) {
        let _ = kill_process_group(pid, Signal::KILL);
    }
}
