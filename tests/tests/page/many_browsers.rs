//! As many watchers as ten thousand browsers would open: those beyond the limit are refused with
//! 503 and what to do, and neither the leader nor the pages that are open notice.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde_json::json;
use tests::answers::shows;
use tests::command_line::{CommandLine, MANIFESTS, start_job};
use tests::process::{HANG, PEAK_MEMORY, memory_kib};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::fixture::{LIVE, PageFixture, cell};

/// Watches that are asked for.
const WATCHES: usize = 10_000;
/// Of these, at the same time.
const AT_ONCE: usize = 64;
/// The addresses that they come from: those of loopback from 127.0.1.0 on.
const SOURCES: usize = 16;
/// The memory that the leader may use.
const MEMORY_MAX_KIB: u64 = 256 * 1024;

/// The answer to a watch: the status, the text so far, and the connection, which goes on.
struct Answer {
    status: u16,
    text: String,
    connection: TcpStream,
}

/// Asks for the fleet as a page does, from one of several addresses, and waits for the answer's
/// beginning.
async fn watch(http: SocketAddr, source: usize) -> std::io::Result<Answer> {
    let from = IpAddr::from([127, 0, 1, u8::try_from(source % SOURCES).expect("few")]);
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    let mut connection = socket.connect(http).await?;
    let request =
        format!("GET /api/v1/fleet HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !text.contains("\r\n\r\n") {
        let length = connection.read(&mut buffer).await?;
        if length == 0 {
            return Err(std::io::Error::other(format!("it ends after {text:?}")));
        }
        text.push_str(&String::from_utf8_lossy(&buffer[..length]));
    }
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    if status != 200 {
        // The rest of a refusal, which ends with its connection.
        loop {
            match connection.read(&mut buffer).await? {
                0 => break,
                length => text.push_str(&String::from_utf8_lossy(&buffer[..length])),
            }
        }
    }
    Ok(Answer { status, text, connection })
}

/// Asks for [`WATCHES`]; returns those that go on, a refusal's text, and how often each answer
/// came.
async fn watch_all(http: SocketAddr) -> (Vec<TcpStream>, String, BTreeMap<String, usize>) {
    let (mut tasks, places) = (JoinSet::new(), Arc::new(Semaphore::new(AT_ONCE)));
    for source in 0..WATCHES {
        let places = Arc::clone(&places);
        tasks.spawn(async move {
            let _place = places.acquire().await.expect("it is never closed");
            match tokio::time::timeout(HANG, watch(http, source)).await {
                Ok(answer) => answer,
                Err(_) => Err(std::io::Error::other("no answer")),
            }
        });
    }
    let (mut open, mut refusal, mut counts) = (Vec::new(), String::new(), BTreeMap::new());
    while let Some(answer) = tasks.join_next().await {
        let kind = match answer.expect("no panic") {
            Ok(answer) => {
                match answer.status {
                    200 => open.push(answer.connection),
                    _ => refusal = answer.text,
                }
                answer.status.to_string()
            }
            Err(error) => error.to_string(),
        };
        *counts.entry(kind).or_default() += 1;
    }
    (open, refusal, counts)
}

#[test]
fn watchers_beyond_the_limit_get_503_and_the_leader_and_open_pages_go_on() {
    let Some(mut fixture) = PageFixture::start("the page", &[("all.yaml", MANIFESTS)]) else {
        return;
    };
    fixture.agent("builds", "worker-0", &[]);
    fixture.leasehold().until("explain worker worker-0", &["has its share: 3 slots"]);
    fixture.open("#/fleet/builds");
    fixture.has(&cell("builds/worker-0"), &[("state", "working"), ("running", "0")]);
    let http = fixture.coordinator.http;
    let runtime = Runtime::new().expect("a runtime");

    let (open, refusal, counts) = runtime.block_on(watch_all(http));
    println!("answers: {counts:?}");
    assert!(counts.keys().all(|kind| kind == "200" || kind == "503"), "{counts:?}: {refusal}");
    assert!(counts.contains_key("200") && counts.contains_key("503"), "{counts:?}");
    assert!(refusal.contains("\"message\""), "it says why, and what to do: {refusal}");
    assert_eq!(open.len(), counts["200"], "{counts:?}");

    // The page is as live as before, and the leader serves its agents.
    start_job(&fixture.agents["worker-0"], "a");
    fixture.has(&cell("builds/worker-0"), &[("state", "working"), ("running", "1")]);
    let connections = fixture.seen("connections");
    let reconnects = connections.iter().filter(|one| one[0] == json!("reconnecting"));
    assert_eq!(reconnects.count(), 0, "{connections:?}");
    assert_eq!(shows(http, "leasehold_leader 1"), Some(()), "it leads");
    let elections = CommandLine(&fixture.coordinator).line("events --kind elected -o json");
    assert_eq!(elections.matches("CHANGE_KIND_ELECTED").count(), 1, "{elections}");
    let memory = memory_kib(fixture.coordinator.process.id(), PEAK_MEMORY).expect("it runs");
    assert!(memory < MEMORY_MAX_KIB, "{memory} KiB");

    // A page that finds no place says so, and comes in once there is one.
    fixture.browser.open("about:blank");
    let (more, _, _) = runtime.block_on(watch_all(http));
    fixture.browser.open(&format!("http://{http}/#/fleet/builds"));
    let refused = "return document.querySelector('#connection').dataset.state !== 'live'
        && document.querySelector('#connection').innerText.trim()";
    let said = fixture.browser.until("a page without a place", refused, &[]);
    println!("a page without a place says: {said}");
    drop((open, more));
    fixture.browser.until("a live page once there is a place", LIVE, &[]);
    fixture.has(&cell("builds/worker-0"), &[("state", "working"), ("running", "1")]);
}
