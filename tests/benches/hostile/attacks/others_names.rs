//! Hellos with a token of one's own and the name of somebody else: of a worker of another
//! namespace, of a namespace that does not exist or is Kubernetes' own, of another own worker.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::session::{Session, hello};
use crate::counts::Counts;
use crate::target::{Network, OwnWorker};

/// The answer that no such hello may get.
pub(crate) const WELCOME: &str = "WELCOME";
/// Connections of each worker at a time.
const CONNECTIONS: usize = 4;
/// Between two hellos of one connection's place.
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn start(
    network: &Arc<Network>,
    workers: Vec<OwnWorker>,
    tasks: &mut JoinSet<()>,
) -> Arc<Counts> {
    let counts = Counts::new(
        "other pods' names and namespaces",
        "a token acts for its own pod, in that pod's namespace and cluster",
    );
    for (number, worker) in workers.into_iter().enumerate() {
        for place in 0..CONNECTIONS {
            let (network, counts) = (Arc::clone(network), Arc::clone(&counts));
            let (worker, index) = (worker.clone(), number * CONNECTIONS + place);
            tasks.spawn(async move {
                for link in 1.. {
                    counts.attempt();
                    let answer = pose(&network, index + link, &worker, link as u64).await;
                    counts.answered(answer);
                    sleep(PAUSE).await;
                }
            });
        }
    }
    counts
}

/// Another name each time.
fn name(network: &Network, worker: &OwnWorker) -> (String, String) {
    let others = &network.target.others;
    let (cluster, other) = others[fastrand::usize(..others.len())].clone();
    match fastrand::u8(..4) {
        0 => (cluster, other),
        // The own name in a cluster of others.
        1 => (cluster, worker.worker.clone()),
        // Another name in the own cluster.
        2 => (worker.cluster.clone(), other),
        _ => ("kube-system/builds".to_owned(), worker.worker.clone()),
    }
}

async fn pose(network: &Network, index: usize, worker: &OwnWorker, link: u64) -> &'static str {
    let Ok(channel) = network.channel(index).await else { return "no connection" };
    let (cluster, name) = name(network, worker);
    let hello = hello(&cluster, &name, link);
    let welcomed = Session::welcomed(channel, &worker.token, hello).await;
    welcomed.map_or_else(|answer| answer, |_| WELCOME)
}
