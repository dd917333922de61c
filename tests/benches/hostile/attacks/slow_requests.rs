//! Requests that come one byte at a time: their headers, or their bodies.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tests::raw_http2;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::counts::Counts;
use crate::target::{Network, Protocol};

/// Connections of each kind.
const CONNECTIONS: usize = 100;
/// Between two bytes, or two headers.
const BYTE_PAUSE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_secs(2);
const HTTP_HEADERS: &[u8] = b"POST /inject HTTP/1.1\r\nHost: x\r\nX-Long: ";
const HTTP_BODY: &[u8] = b"POST /inject HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{";
const SCRAPE: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Long: ";
const PLAN: &str = "/leasehold.admin.v1.AdminService/Plan";

/// Where a slow request goes.
#[derive(Clone, Copy, Debug)]
enum Port {
    Grpc,
    Webhook,
    Http,
}

/// Headers that do not end.
pub(crate) fn headers(network: &Arc<Network>, tasks: &mut JoinSet<()>) -> Arc<Counts> {
    let counts = Counts::new(
        "slow headers",
        "a first request's headers have 10 s at an HTTP port, a call 30 s at the gRPC port; 16 KiB",
    );
    for (port, first, again) in [
        (Port::Http, SCRAPE.to_vec(), b"a".to_vec()),
        (Port::Webhook, HTTP_HEADERS.to_vec(), b"a".to_vec()),
        (
            Port::Grpc,
            [raw_http2::greeting(None), raw_http2::begun_headers(1, PLAN)].concat(),
            raw_http2::more_headers(1, "x-long", "a"),
        ),
    ] {
        start(network, &counts, port, first, again, tasks);
    }
    counts
}

/// Bodies that take hours.
pub(crate) fn bodies(network: &Arc<Network>, tasks: &mut JoinSet<()>) -> Arc<Counts> {
    let counts = Counts::new(
        "slow bodies",
        "a review has 4 s, a call a deadline; 128 reviews, 256 calls and 4 with manifests are read \
         at a time, and the oldest gives way",
    );
    let call = [
        raw_http2::greeting(None),
        raw_http2::call(1, PLAN, &[]),
        raw_http2::data(1, &[0, 0, 1, 0, 0]),
    ];
    start(network, &counts, Port::Webhook, HTTP_BODY.to_vec(), b" ".to_vec(), tasks);
    start(network, &counts, Port::Grpc, call.concat(), raw_http2::data(1, b"a"), tasks);
    counts
}

fn start(
    network: &Arc<Network>,
    counts: &Arc<Counts>,
    port: Port,
    first: Vec<u8>,
    again: Vec<u8>,
    tasks: &mut JoinSet<()>,
) {
    for index in 0..CONNECTIONS {
        let (network, counts) = (Arc::clone(network), Arc::clone(counts));
        let (first, again) = (first.clone(), again.clone());
        tasks.spawn(async move {
            loop {
                counts.attempt();
                match send(&network, index, port, &first, &again, &counts).await {
                    Ok(kind) => counts.answered(kind),
                    Err(error) => counts.failed(&error),
                }
                sleep(PAUSE).await;
            }
        });
    }
}

async fn send(
    network: &Network,
    index: usize,
    port: Port,
    first: &[u8],
    again: &[u8],
    counts: &Arc<Counts>,
) -> io::Result<&'static str> {
    let target = &network.target;
    let ports = match port {
        Port::Grpc => &target.grpc,
        Port::Webhook => &target.webhook,
        Port::Http => &target.http,
    };
    let to = ports[index % ports.len()];
    match port {
        Port::Http => drip(network.tcp(index, to).await?, first, again, counts).await,
        Port::Webhook => {
            let stream = network.tls(index, to, Protocol::Http1).await?;
            drip(stream, first, again, counts).await
        }
        Port::Grpc => {
            let stream = network.tls(index, to, Protocol::Http2).await?;
            drip(stream, first, again, counts).await
        }
    }
}

/// Sends a part again and again until the other side says or closes something.
async fn drip(
    stream: impl AsyncRead + AsyncWrite,
    first: &[u8],
    again: &[u8],
    counts: &Arc<Counts>,
) -> io::Result<&'static str> {
    let _open = counts.opened();
    let (mut read, mut write) = tokio::io::split(stream);
    write.write_all(first).await?;
    let answered = async {
        let mut answer = Vec::new();
        while read.read_buf(&mut answer).await? > 0 {
            if let Some(kind) = http_status(&answer) {
                return Ok(kind);
            }
        }
        Ok("closed")
    };
    let dripping = async {
        loop {
            sleep(BYTE_PAUSE).await;
            write.write_all(again).await?;
        }
    };
    tokio::select! {
        answer = answered => answer,
        error = dripping => error,
    }
}

fn http_status(answer: &[u8]) -> Option<&'static str> {
    let status = answer.strip_prefix(b"HTTP/1.1 ")?;
    Some(match status.get(..3)? {
        b"408" => "HTTP 408",
        b"413" => "HTTP 413",
        b"431" => "HTTP 431",
        b"503" => "HTTP 503",
        _ => "another HTTP status",
    })
}
