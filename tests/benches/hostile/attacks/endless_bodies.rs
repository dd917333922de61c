//! Bodies that go on and on, as fast as they are taken: reviews, calls, and messages of a session.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, StreamBody};
use hyper::Request;
use hyper::body::{Bytes, Frame};
use leasehold_proto::coordinator::v1::open_session_request::Message as Said;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt;
use tonic::body::Body;
use tonic::codegen::Service;

use super::session::{hello, message};
use super::unread_windows::framed;
use crate::counts::Counts;
use crate::target::{Network, OwnWorker, Protocol};

/// Connections of each kind.
const CONNECTIONS: usize = 16;
/// Between two bodies of one place.
const PAUSE: Duration = Duration::from_millis(500);
/// How long the client waits for the end of one.
const PATIENCE: Duration = Duration::from_secs(120);
const PART_BYTES: usize = 16 * 1024;
const REVIEW: &[u8] = b"POST /inject HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
const PLAN: &str = "/leasehold.admin.v1.AdminService/Plan";
const OPEN_SESSION: &str = "/leasehold.coordinator.v1.SessionService/OpenSession";
/// The beginning of a message of 16 MiB.
const BEGUN: [u8; 5] = [0, 1, 0, 0, 0];
/// The beginning of a message of 15 MiB, which a session may send.
const BEGUN_REPORT: [u8; 5] = [0, 0, 0xf0, 0, 0];

/// What does not end.
#[derive(Clone, Copy, Debug)]
enum Endless {
    Review,
    Call,
    Report,
}

pub(crate) fn start(
    network: &Arc<Network>,
    workers: Vec<OwnWorker>,
    tasks: &mut JoinSet<()>,
) -> Arc<Counts> {
    let counts = Counts::new(
        "endless bodies",
        "a review has 3 MiB, 4 s and one of 128 places; a stream 64 KiB on its way; long messages \
         share 64 MiB, of which a namespace has a part, and each has 10 s for each MiB",
    );
    let workers = Arc::new(workers);
    for endless in [Endless::Review, Endless::Call, Endless::Report] {
        for index in 0..CONNECTIONS {
            let (network, counts) = (Arc::clone(network), Arc::clone(&counts));
            let workers = Arc::clone(&workers);
            tasks.spawn(async move {
                for link in 1.. {
                    counts.attempt();
                    let worker = &workers[index % workers.len()];
                    let _open = counts.opened();
                    let sent = send(&network, index + link, endless, worker, link as u64);
                    match timeout(PATIENCE, sent).await {
                        Ok(kind) => counts.answered(&kind),
                        Err(_) => counts.answered("open for 120 s"),
                    }
                    sleep(PAUSE).await;
                }
            });
        }
    }
    counts
}

async fn send(
    network: &Network,
    index: usize,
    endless: Endless,
    worker: &OwnWorker,
    link: u64,
) -> String {
    match endless {
        Endless::Review => match review(network, index).await {
            Ok(kind) => kind,
            Err(_) => "closed".to_owned(),
        },
        Endless::Call => call(network, index, PLAN, "", BEGUN.to_vec()).await,
        Endless::Report => {
            let hello = hello(&worker.cluster, &worker.worker, link);
            let mut first = framed(&message(Said::Hello(hello)));
            first.extend(BEGUN_REPORT);
            call(network, index, OPEN_SESSION, &format!("Bearer {}", worker.token), first).await
        }
    }
}

/// A review whose chunks do not end, until it is answered.
async fn review(network: &Network, index: usize) -> io::Result<String> {
    let target = &network.target;
    let to = target.webhook[index % target.webhook.len()];
    let stream = network.tls(index, to, Protocol::Http1).await?;
    let (mut read, mut write) = tokio::io::split(stream);
    let sent = async {
        write.write_all(REVIEW).await?;
        let mut chunk = format!("{PART_BYTES:x}\r\n").into_bytes();
        chunk.resize(chunk.len() + PART_BYTES, b' ');
        chunk.extend_from_slice(b"\r\n");
        loop {
            write.write_all(&chunk).await?;
        }
    };
    let answered = async {
        let mut answer = vec![0; 64];
        let length = read.read(&mut answer).await?;
        let text = String::from_utf8_lossy(&answer[..length]).into_owned();
        let status = text.split(' ').nth(1).map(|status| format!("HTTP {status}"));
        Ok(status.unwrap_or_else(|| "closed".to_owned()))
    };
    tokio::select! {
        answer = answered => answer,
        error = sent => error,
    }
}

/// A call whose message does not end, until the call does.
async fn call(network: &Network, index: usize, path: &str, token: &str, first: Vec<u8>) -> String {
    let Ok(mut channel) = network.channel(index).await else { return "no connection".to_owned() };
    let part = Bytes::from(vec![0; PART_BYTES]);
    let parts = tokio_stream::once(Bytes::from(first))
        .chain(tokio_stream::iter(std::iter::repeat(part)))
        .map(|part| Ok::<_, Infallible>(Frame::data(part)));
    let request = Request::post(path).header("content-type", "application/grpc");
    let request = request.header("te", "trailers").header("authorization", token);
    let request = request.body(Body::new(StreamBody::new(parts))).expect("valid headers");
    if poll_fn(|cx| channel.poll_ready(cx)).await.is_err() {
        return "closed".to_owned();
    }
    let Ok(answer) = channel.call(request).await else { return "closed".to_owned() };
    let status = |headers: &hyper::HeaderMap| {
        let code = headers.get("grpc-status")?.to_str().ok()?.parse::<i32>().ok()?;
        Some(format!("{:?}", tonic::Code::from_i32(code)))
    };
    if let Some(status) = status(answer.headers()) {
        return status;
    }
    match answer.into_body().collect().await {
        Ok(body) => body.trailers().and_then(status).unwrap_or_else(|| "closed".to_owned()),
        Err(_) => "closed".to_owned(),
    }
}
