//! The limits of sessions: in total, and of one worker. An agent has one session, but the earlier
//! one may not have ended yet, or the session may wait because its agent dials too often.

use std::sync::Arc;

use leasehold_driver::keyed_limit::{KeyedLimit, KeyedPermit};
use leasehold_types::WorkerKey;
use leasehold_types::message::{Refusal, RefusalReason};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most sessions of one worker: those that replace each other.
const SESSIONS_PER_WORKER_MAX: usize = 4;

/// The limits of sessions whose peers may be the agents that they say.
#[derive(Debug)]
pub(super) struct SessionLimits {
    all: Arc<Semaphore>,
    total: usize,
    of_worker: Arc<KeyedLimit<WorkerKey>>,
}

/// The permit of one session.
#[derive(Debug)]
pub(super) struct SessionPermit {
    /// The part that the driver releases with the session.
    pub(super) of_all: OwnedSemaphorePermit,
    /// The part that is released when nothing more is read.
    pub(super) of_worker: KeyedPermit<WorkerKey>,
}

impl SessionLimits {
    pub(super) fn new(total: usize) -> Self {
        let all = Arc::new(Semaphore::new(total));
        // The total is counted by the permits that the driver releases.
        let of_worker = KeyedLimit::new(usize::MAX, SESSIONS_PER_WORKER_MAX);
        Self { all, total, of_worker }
    }

    /// A permit for a session of this worker.
    pub(super) fn take(&self, worker: &WorkerKey) -> Result<SessionPermit, Refusal> {
        let of_worker = self.of_worker.take(worker.clone()).ok_or_else(|| {
            refusal(format!(
                "worker {worker} has {SESSIONS_PER_WORKER_MAX} sessions that have not ended yet: \
                 dial again later"
            ))
        })?;
        let of_all = Arc::clone(&self.all).try_acquire_owned().map_err(|_| {
            let limit = self.total;
            refusal(format!(
                "all {limit} sessions are in use: dial again, or raise --sessions-max or the limit \
                 of open files"
            ))
        })?;
        Ok(SessionPermit { of_all, of_worker })
    }
}

fn refusal(message: String) -> Refusal {
    Refusal { reason: RefusalReason::Limit, message }
}
