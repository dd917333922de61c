//! Connections to every port that say nothing, or begin a handshake and do not end it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::counts::Counts;
use crate::target::{Network, Protocol};

/// The attacks of this module.
pub(crate) const KINDS: usize = 2;
/// The pause before a closed connection is opened again.
const PAUSE: Duration = Duration::from_secs(2);
/// Between the first connections, so that they do not all come in one moment.
const STAGGER: Duration = Duration::from_micros(500);

/// What a connection does before it is silent.
#[derive(Clone, Copy, Debug)]
enum Beginning {
    Nothing,
    Handshake,
    HalfHandshake,
}

/// One of four begins with half a handshake, one with a whole one.
const BEGINNINGS: [Beginning; 4] =
    [Beginning::Nothing, Beginning::HalfHandshake, Beginning::Nothing, Beginning::Handshake];

pub(crate) fn start(network: &Arc<Network>, tasks: &mut JoinSet<()>) -> Result<Vec<Arc<Counts>>> {
    let silent = Counts::new(
        "connections that say nothing",
        "512 unauthenticated connections of the gRPC port and 256 of each HTTP port have a place; \
         without a free one the address with the most gives one up; 4,096 of a port wait, for 5 s",
    );
    let half = Counts::new(
        "half-open handshakes",
        "a handshake has to begin within 10 s and takes one of the places",
    );
    let target = &network.target;
    let encrypted: Vec<_> = [&target.grpc[..], &target.webhook].concat();
    let all: Vec<_> = [&encrypted[..], &target.http].concat();
    let hello = Arc::new(network.half_handshake()?);
    for index in 0..target.connections {
        let beginning = BEGINNINGS[index % BEGINNINGS.len()];
        let turn = index / BEGINNINGS.len();
        let (counts, to) = match beginning {
            Beginning::Nothing => (&silent, all[turn % all.len()]),
            Beginning::Handshake => (&silent, encrypted[turn % encrypted.len()]),
            Beginning::HalfHandshake => (&half, encrypted[turn % encrypted.len()]),
        };
        let (network, counts, hello) =
            (Arc::clone(network), Arc::clone(counts), Arc::clone(&hello));
        tasks.spawn(async move {
            sleep(STAGGER * u32::try_from(index).unwrap_or(u32::MAX)).await;
            loop {
                counts.attempt();
                let held = hold(&network, index, to, beginning, &hello, &counts).await;
                match held {
                    Ok(()) => counts.answered("closed"),
                    Err(error) => counts.failed(&error),
                }
                sleep(PAUSE).await;
            }
        });
    }
    Ok(vec![silent, half])
}

async fn hold(
    network: &Network,
    index: usize,
    to: SocketAddr,
    beginning: Beginning,
    hello: &[u8],
    counts: &Arc<Counts>,
) -> io::Result<()> {
    match beginning {
        Beginning::Handshake => {
            let stream = network.tls(index, to, Protocol::Http2).await?;
            let _open = counts.opened();
            until_closed(stream).await
        }
        Beginning::Nothing => {
            let stream = network.tcp(index, to).await?;
            let _open = counts.opened();
            until_closed(stream).await
        }
        Beginning::HalfHandshake => {
            let mut stream = network.tcp(index, to).await?;
            let _open = counts.opened();
            stream.write_all(hello).await?;
            until_closed(stream).await
        }
    }
}

async fn until_closed(mut stream: impl AsyncRead + Unpin) -> io::Result<()> {
    let mut answer = [0; 256];
    while stream.read(&mut answer).await? > 0 {}
    Ok(())
}
