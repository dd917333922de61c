//! Thousands of workers, all of them sessions of this process.

use std::net::SocketAddr;

use leasehold_proto::coordinator::v1::open_session_request::Message as Said;
use leasehold_proto::coordinator::v1::open_session_response::Message as Heard;
use leasehold_proto::coordinator::v1::{Beat, DrainPhase, HeldPool};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};

use super::Session;

/// Sessions over one connection; a coordinator takes up to 16.
const SESSIONS_PER_CONNECTION: usize = 10;

/// The sessions of a cluster's agents. Each takes what it is granted and runs as many jobs as it is
/// told. They beat only when something changes: their leases have to last as long as they do.
#[derive(Debug)]
pub struct Workers {
    runtime: Runtime,
    jobs: Vec<mpsc::Sender<u32>>,
}

impl Workers {
    /// Joins so many workers to a cluster; see [`Self::name`].
    ///
    /// # Panics
    /// If the coordinator cannot be reached. A session that it refuses ends with its reason on
    /// stderr.
    #[must_use]
    pub fn start(coordinator: SocketAddr, cluster: &str, count: usize) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let jobs = runtime.block_on(async {
            let mut jobs = Vec::with_capacity(count);
            let endpoint = Endpoint::from_shared(format!("http://{coordinator}"));
            let endpoint = endpoint.expect("an address");
            while jobs.len() < count {
                let channel = endpoint.connect().await.expect("a connection");
                for _ in 0..SESSIONS_PER_CONNECTION.min(count - jobs.len()) {
                    let (to, wanted) = mpsc::channel(4);
                    let (cluster, name) = (cluster.to_owned(), Self::name(jobs.len()));
                    tokio::spawn(run(channel.clone(), cluster, name, wanted));
                    jobs.push(to);
                }
            }
            jobs
        });
        Self { runtime, jobs }
    }

    /// The name of the worker with this number, from 0.
    #[must_use]
    pub fn name(index: usize) -> String {
        format!("w-{index:04}")
    }

    /// Has this worker run so many jobs.
    ///
    /// # Panics
    /// If its session has ended.
    pub fn set_jobs(&self, index: usize, jobs: u32) {
        self.runtime.block_on(self.jobs[index].send(jobs)).expect("the session goes on");
    }
}

/// One session: it takes what it is granted, and runs as many jobs as are `wanted`.
async fn run(channel: Channel, cluster: String, worker: String, mut wanted: mpsc::Receiver<u32>) {
    let mut session = Session::open(channel, &cluster, &worker, "").await;
    let drain = DrainPhase::Working.into();
    let mut beat =
        Beat { epoch: session.epoch, nonce: 1, running: Some(0), drain, ..Beat::default() };
    loop {
        tokio::select! {
            heard = session.hear() => match heard {
                Some(Heard::Grant(grant)) => {
                    beat.applied = grant.number;
                    if let Some(pool) = grant.pool {
                        let size = pool.size;
                        beat.pool = Some(HeldPool {
                            token: pool.token, size, granted_size: size, floor: pool.floor,
                        });
                    } else if beat.running == Some(0) {
                        // A renewal needs no answer.
                        continue;
                    }
                }
                Some(_) => continue,
                None => return,
            },
            Some(running) = wanted.recv() => beat.running = Some(running),
            else => return,
        }
        beat.nonce += 1;
        if !session.say(Said::Beat(beat.clone())).await {
            return;
        }
    }
}
