//! Peers that ask and read nothing: of a session, of the reflection service, of the metrics.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use leasehold_proto::coordinator::v1::open_session_request::Message as Said;
use tests::raw_http2;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::session::{hello, message};
use crate::counts::Counts;
use crate::target::{Network, OwnWorker, Protocol};

/// Connections of each kind.
const CONNECTIONS: usize = 60;
const PAUSE: Duration = Duration::from_secs(1);
/// How long the client waits for the end of such a connection.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two bytes by which the client finds out whether it is closed.
const LOOK: Duration = Duration::from_secs(1);
const OPEN_SESSION: &str = "/leasehold.coordinator.v1.SessionService/OpenSession";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
/// A request of the reflection service that lists all services, as gRPC sends it.
const LIST_SERVICES: &[u8] = &[0, 0, 0, 0, 2, 0x3a, 0];
const SCRAPE: &str = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
const SCRAPES: usize = 200;
/// Hellos of one session.
const HELLOS: u64 = 100;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
enum Answers {
    Session,
    Reflection,
    Metrics,
}

pub(crate) fn start(
    network: &Arc<Network>,
    workers: Vec<OwnWorker>,
    tasks: &mut JoinSet<()>,
) -> Arc<Counts> {
    let counts = Counts::new(
        "unread windows",
        "a session whose agent takes no message for 10 to 15 s ends; 16 streams of a connection; \
         an unauthenticated connection has 30 s at the gRPC port, an answer 30 s at an HTTP port",
    );
    let workers = Arc::new(workers);
    for answers in [Answers::Session, Answers::Reflection, Answers::Metrics] {
        for index in 0..CONNECTIONS {
            let (network, counts) = (Arc::clone(network), Arc::clone(&counts));
            let workers = Arc::clone(&workers);
            tasks.spawn(async move {
                for link in 1.. {
                    counts.attempt();
                    let worker = &workers[index % workers.len()];
                    match ask(&network, index + link, answers, worker, &counts).await {
                        Ok(kind) => counts.answered(kind),
                        Err(error) => counts.failed(&error),
                    }
                    sleep(PAUSE).await;
                }
            });
        }
    }
    counts
}

async fn ask(
    network: &Network,
    index: usize,
    answers: Answers,
    worker: &OwnWorker,
    counts: &Arc<Counts>,
) -> io::Result<&'static str> {
    let target = &network.target;
    let to = target.grpc[index % target.grpc.len()];
    match answers {
        Answers::Session => {
            let token = format!("Bearer {}", worker.token);
            let mut bytes = raw_http2::greeting(Some(0));
            bytes.extend(raw_http2::call(1, OPEN_SESSION, &[("authorization", &token)]));
            for link in 1..=HELLOS {
                let hello = hello(&worker.cluster, &worker.worker, link);
                bytes.extend(raw_http2::data(1, &framed(&message(Said::Hello(hello)))));
            }
            unread(network.tls(index, to, Protocol::Http2).await?, &bytes, counts).await
        }
        Answers::Reflection => {
            let mut bytes = raw_http2::greeting(Some(0));
            bytes.extend(raw_http2::call(1, REFLECTION, &[]));
            let requests = raw_http2::WINDOW_BYTES / LIST_SERVICES.len();
            bytes.extend(raw_http2::data(1, &LIST_SERVICES.repeat(requests)));
            unread(network.tls(index, to, Protocol::Http2).await?, &bytes, counts).await
        }
        Answers::Metrics => {
            let to = target.http[index % target.http.len()];
            let bytes = SCRAPE.repeat(SCRAPES).into_bytes();
            unread(network.tcp(index, to).await?, &bytes, counts).await
        }
    }
}

/// Sends all of it, and then what shows whether the connection is closed.
async fn unread(
    mut stream: impl AsyncWrite + Unpin,
    bytes: &[u8],
    counts: &Arc<Counts>,
) -> io::Result<&'static str> {
    let (_open, begun) = (counts.opened(), Instant::now());
    let ended = async {
        stream.write_all(bytes).await?;
        stream.flush().await?;
        let probe =
            if bytes.starts_with(b"GET") { SCRAPE.as_bytes().to_vec() } else { raw_http2::ping() };
        loop {
            sleep(LOOK).await;
            stream.write_all(&probe).await?;
            stream.flush().await?;
        }
    };
    let ended: Result<io::Result<()>, _> = tokio::time::timeout(PATIENCE, ended).await;
    match ended {
        Err(_) => Ok("open for 120 s"),
        Ok(_) if begun.elapsed() <= Duration::from_secs(20) => Ok("closed within 20 s"),
        Ok(_) if begun.elapsed() <= Duration::from_secs(45) => Ok("closed within 45 s"),
        Ok(_) => Ok("closed later"),
    }
}

/// A message as gRPC sends it.
pub(super) fn framed(message: &impl prost::Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).expect("a short message").to_be_bytes();
    [&[0], &length[..], &bytes].concat()
}
