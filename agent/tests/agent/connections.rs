//! Many connections, and clients that disconnect: a request that frees a slot is always answered.

use rustix::process::Signal;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::coordinator::{Coordinator, PATIENCE};
use super::process::{AGENT, Agent, exchange};

/// More than the agent's limit of connections.
const MANY: usize = 1100;
/// The most watches and waiting reads.
const WATCHES: usize = 256;

async fn send(agent: &Agent, text: &str) -> TcpStream {
    let mut socket = TcpStream::connect(agent.address).await.unwrap();
    socket.write_all(text.as_bytes()).await.unwrap();
    socket
}

async fn answer(mut socket: impl AsyncRead + Unpin) -> String {
    let mut bytes = [0; 1024];
    let read = tokio::time::timeout(PATIENCE, socket.read(&mut bytes)).await;
    String::from_utf8_lossy(&bytes[..read.expect("no answer in time").unwrap()]).into_owned()
}

fn put(job: &str) -> String {
    format!("PUT /v1/jobs/{job}?wait_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

#[tokio::test]
async fn serves_the_end_of_a_job_and_a_drain_despite_idle_connections() {
    let coordinator = Coordinator::start().await;
    let mut agent = Agent::start(&coordinator, &[]).await;
    coordinator.pool(1);
    agent.pool(1).await;
    assert_eq!(agent.ask("POST", "/v1/start", r#"{"start_id":"s"}"#).await.0, 200);
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    let mut idle = Vec::new();
    for number in 0..MANY {
        // Half of them have sent the beginning of a request.
        idle.push(send(&agent, if number % 2 == 0 { "" } else { "GET /v1/le" }).await);
    }
    assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await, (200, json!({})));
    let url = format!("http://{}", agent.address);
    let mut drain = tokio::process::Command::new(AGENT);
    drain.args(["drain", "--wait", "--addr", &url]).kill_on_drop(true);
    let drained = tokio::time::timeout(PATIENCE, drain.status()).await.expect("the drain ends");
    assert!(drained.unwrap().success());
    assert_eq!(agent.code().await, Some(0));
}

#[tokio::test]
async fn serves_the_end_of_a_job_despite_requests_that_wait_for_a_slot() {
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &[]).await;
    coordinator.pool(1);
    agent.pool(1).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    let first = send(&agent, &put("first")).await;
    let mut waiting = Vec::new();
    for number in 0..MANY {
        waiting.push(send(&agent, &put(&format!("job-{number}"))).await);
    }
    let refused = answer(waiting.pop().unwrap()).await;
    assert!(refused.contains("429") && refused.contains("at most 512"), "{refused}");
    assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await, (200, json!({})));
    assert!(answer(first).await.contains("200 OK"));
}

#[tokio::test]
async fn serves_as_many_watches_as_it_promises_and_refuses_one_more() {
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &[]).await;
    let watch = "GET /v1/lease/watch HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut watches = Vec::new();
    for number in 1..=WATCHES {
        let mut socket = send(&agent, watch).await;
        let served = answer(&mut socket).await;
        assert!(served.contains("200 OK"), "watch {number}: {served}");
        watches.push(socket);
    }
    let refused = answer(send(&agent, watch).await).await;
    assert!(refused.contains("429") && refused.contains("at most 256"), "{refused}");
    let (status, _) = agent.ask("GET", "/v1/lease", "").await;
    assert_eq!(status, 200, "a read that does not wait is answered");
}

#[tokio::test]
async fn serves_the_kubelet_despite_idle_connections() {
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &["--health-listen", "127.0.0.1:0"]).await;
    let line = agent.log.line("health and metrics are served").await;
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    let health = line["fields"]["address"].as_str().unwrap().to_owned();
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(&health).await.unwrap());
    }
    let kubelet = TcpStream::connect(&health).await.unwrap();
    let (status, _) = exchange(kubelet, "GET", "/livez", "Host: x\r\n", "").await;
    assert_eq!(status, 200);
    // The kubelet was served before the idle connections timed out.
    let still = silent[60].try_read(&mut [0]).unwrap_err();
    assert_eq!(still.kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn a_client_that_disconnects_gets_no_slot_even_with_pipelined_requests() {
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &[]).await;
    coordinator.pool(1);
    agent.pool(1).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    let next = "GET /v1/lease HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for more in [String::new(), next.to_owned(), next.repeat(1000)] {
        let seen = agent.log.count("was closed by its client");
        let gone = send(&agent, &(put("gone") + &more)).await;
        // This request is served, so the agent has read some of the pipelined requests.
        let also = send(&agent, &put("also")).await;
        let (_, lease) = agent.ask("GET", "/v1/lease", "").await;
        assert_eq!(lease["pool"]["running"], 1);
        drop(gone);
        if !more.is_empty() {
            let noticed = || agent.log.count("was closed by its client") > seen;
            super::process::until(
                "the agent notices that the client has closed the connection",
                noticed,
            )
            .await;
        }
        assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await.0, 200);
        assert!(answer(also).await.contains("200 OK"));
        assert_eq!(agent.ask("DELETE", "/v1/jobs/also", "").await.0, 200);
        assert_eq!(agent.ask("PUT", "/v1/jobs/a?wait_ms=20000", "").await.0, 200);
    }
    agent.signal(Signal::KILL);
}

#[tokio::test]
async fn refuses_a_body_that_is_too_long_before_it_arrives() {
    let coordinator = Coordinator::start().await;
    let agent = Agent::start(&coordinator, &[]).await;
    let head = "POST /v1/start HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n";
    let refused = answer(send(&agent, head).await).await;
    assert!(refused.contains("413") && refused.contains("65536 bytes"), "{refused}");
}
