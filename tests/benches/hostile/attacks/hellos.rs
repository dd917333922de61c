//! Hellos of workers that exist, on a new connection each time, as fast as they are answered.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::session::{Session, hello};
use crate::counts::Counts;
use crate::target::{Network, OwnWorker};

/// Connections of one worker at a time: more than it may have sessions.
const CONNECTIONS: usize = 8;
/// After a connection that was refused.
const PAUSE: Duration = Duration::from_millis(500);

pub(crate) fn start(
    network: &Arc<Network>,
    workers: Vec<OwnWorker>,
    tasks: &mut JoinSet<()>,
) -> Arc<Counts> {
    let counts = Counts::new(
        "hellos of its own workers",
        "4 sessions of one worker; its hellos wait once there are too many; a namespace has a part \
         of the sessions",
    );
    for (number, worker) in workers.into_iter().enumerate() {
        for place in 0..CONNECTIONS {
            let (network, counts) = (Arc::clone(network), Arc::clone(&counts));
            let (worker, index) = (worker.clone(), number * CONNECTIONS + place);
            tasks.spawn(async move {
                for link in 1.. {
                    counts.attempt();
                    // Links of one worker that grow, whichever connection has them.
                    let link = link * CONNECTIONS + place;
                    let answer = greet(&network, index + link, &worker, link as u64).await;
                    counts.answered(answer);
                    if answer != "welcome" {
                        sleep(PAUSE).await;
                    }
                }
            });
        }
    }
    counts
}

async fn greet(network: &Network, index: usize, worker: &OwnWorker, link: u64) -> &'static str {
    let Ok(channel) = network.channel(index).await else { return "no connection" };
    let hello = hello(&worker.cluster, &worker.worker, link);
    let welcomed = Session::welcomed(channel, &worker.token, hello).await;
    welcomed.map_or_else(|answer| answer, |_| "welcome")
}
