//! Connections that never send a whole request.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tests::raw_http2::half_requests;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

/// The pause before a closed connection is opened again.
const PAUSE: Duration = Duration::from_secs(2);
/// The pause between two bytes of a slow request.
const BYTE_PAUSE: Duration = Duration::from_secs(1);
/// The addresses that the attackers have: those of loopback from 127.0.1.0 on.
const SOURCES: usize = 16;

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
