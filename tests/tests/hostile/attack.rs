//! Connections that never send a whole request.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

/// The pause before a closed connection is opened again.
const PAUSE: Duration = Duration::from_secs(2);
/// The pause between two bytes of a slow request.
const BYTE_PAUSE: Duration = Duration::from_secs(1);
/// The addresses that the attackers have: those of loopback from 127.0.1.0 on.
const SOURCES: usize = 16;
/// What an HTTP/2 client may send before it has heard anything (RFC 9113, 6.9.2).
const WINDOW_BYTES: usize = 65_535;
/// The largest payload of a frame (RFC 9113, 4.2).
const FRAME_BYTES: usize = 16_384;

/// What a connection sends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Attack {
    /// Nothing.
    Silence,
    /// This, one byte at a time, again and again.
    Slow(&'static [u8]),
    /// The beginning of one long request each to this method, as much as a client may send.
    Half(&'static str),
    /// The same over this many streams.
    HalfStreams(&'static str, u32),
}

/// Runs these attacks, each over a connection of its own, until it is dropped.
#[derive(Debug)]
pub(crate) struct Attackers {
    tasks: JoinSet<()>,
    connected: Arc<AtomicUsize>,
}

impl Attackers {
    pub(crate) fn start(address: SocketAddr, count: usize, attacks: &[Attack]) -> Self {
        let (mut tasks, connected) = (JoinSet::new(), Arc::<AtomicUsize>::default());
        for (index, attack) in attacks.iter().copied().cycle().take(count).enumerate() {
            let from = IpAddr::from([127, 0, 1, u8::try_from(index % SOURCES).expect("few")]);
            let connected = Arc::clone(&connected);
            tasks.spawn(async move {
                loop {
                    // The peer may end the connection at any time.
                    let _ = run(from, address, attack, &connected).await;
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
        Self { tasks, connected }
    }

    /// How many run.
    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// How often they have connected.
    pub(crate) fn connected(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }
}

async fn run(
    from: IpAddr,
    address: SocketAddr,
    attack: Attack,
    connected: &AtomicUsize,
) -> std::io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    let mut stream = socket.connect(address).await?;
    connected.fetch_add(1, Ordering::Relaxed);
    match attack {
        Attack::Silence => {}
        Attack::Slow(bytes) => {
            for byte in bytes.iter().cycle() {
                stream.write_all(&[*byte]).await?;
                tokio::time::sleep(BYTE_PAUSE).await;
            }
        }
        Attack::Half(path) => stream.write_all(&half_requests(path, 1)).await?,
        Attack::HalfStreams(path, streams) => {
            stream.write_all(&half_requests(path, streams)).await?;
        }
    }
    let mut answer = [0; 4096];
    while stream.read(&mut answer).await? > 0 {}
    Ok(())
}

/// The preface and the beginning of one gRPC call on each stream. Each message says that it has
/// 16 MiB.
fn half_requests(path: &str, streams: u32) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frame(&mut bytes, 0x4, 0, 0, &[]);
    let share = WINDOW_BYTES / usize::try_from(streams).expect("few streams");
    for stream in (0..streams).map(|index| 2 * index + 1) {
        frame(&mut bytes, 0x1, 0x4, stream, &headers(path));
        let mut body = vec![0, 1, 0, 0, 0];
        body.resize(share, 0);
        for part in body.chunks(FRAME_BYTES) {
            frame(&mut bytes, 0x0, 0, stream, part);
        }
    }
    bytes
}

fn frame(into: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("a small payload").to_be_bytes();
    into.extend_from_slice(&length[1..]);
    into.extend_from_slice(&[kind, flags]);
    into.extend_from_slice(&stream.to_be_bytes());
    into.extend_from_slice(payload);
}

/// The headers of a call, encoded without a table of their own (RFC 7541, 6.2.2).
fn headers(path: &str) -> Vec<u8> {
    // :method POST and :scheme http, from the static table.
    let mut block = vec![0x83, 0x86];
    let text = |block: &mut Vec<u8>, text: &str| {
        block.push(u8::try_from(text.len()).expect("a short text"));
        block.extend_from_slice(text.as_bytes());
    };
    for (name, value) in
        [(":path", path), (":authority", "x"), ("content-type", "application/grpc")]
    {
        block.push(0);
        text(&mut block, name);
        text(&mut block, value);
    }
    block.push(0);
    text(&mut block, "te");
    text(&mut block, "trailers");
    block
}
