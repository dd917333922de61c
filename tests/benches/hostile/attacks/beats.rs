//! Beats as fast as the connection takes them.

use std::sync::Arc;
use std::time::Duration;

use leasehold_proto::coordinator::v1::open_session_request::Message as Said;
use leasehold_proto::coordinator::v1::{Beat, DrainPhase};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::session::{Session, hello, report};
use crate::counts::Counts;
use crate::target::{Network, OwnWorker};

/// Before another session.
const PAUSE: Duration = Duration::from_millis(500);

pub(crate) fn start(
    network: &Arc<Network>,
    workers: Vec<OwnWorker>,
    tasks: &mut JoinSet<()>,
) -> Arc<Counts> {
    let counts = Counts::new(
        "beats of its own workers",
        "500 messages and 1 MiB a second of one agent after a burst; more waits in its connection",
    );
    for (index, worker) in workers.into_iter().enumerate() {
        let (network, counts) = (Arc::clone(network), Arc::clone(&counts));
        tasks.spawn(async move {
            for link in 1.. {
                // One of two replicas leads: the other one refuses.
                let answer = flood(&network, index + link, &worker, link as u64, &counts).await;
                counts.answered(answer);
                sleep(PAUSE).await;
            }
        });
    }
    counts
}

async fn flood(
    network: &Network,
    index: usize,
    worker: &OwnWorker,
    link: u64,
    counts: &Counts,
) -> &'static str {
    let Ok(channel) = network.channel(index).await else { return "no connection" };
    let hello = hello(&worker.cluster, &worker.worker, link);
    let welcomed = Session::welcomed(channel, &worker.token, hello).await;
    let (mut session, epoch) = match welcomed {
        Ok(welcomed) => welcomed,
        Err(answer) => return answer,
    };
    let to = session.to.clone();
    if !session.say(Said::Report(report(epoch, 1))).await {
        return "closed";
    }
    let write = async {
        let drain = DrainPhase::Working.into();
        for nonce in 2.. {
            let beat = Beat { epoch, nonce, running: Some(0), drain, ..Beat::default() };
            if to.send(super::session::message(Said::Beat(beat))).await.is_err() {
                break;
            }
            counts.attempt();
        }
        "closed"
    };
    tokio::select! {
        answer = session.end() => answer,
        answer = write => answer,
    }
}
