//! The limits of sessions: in total, of one namespace, and of one worker. An agent has one session,
//! but the earlier one may not have ended yet, or the session may wait because its agent dials too
//! often.

use std::sync::Arc;

use leasehold_driver::keyed_limit::{KeyedLimit, KeyedPermit};
use leasehold_types::WorkerKey;
use leasehold_types::limits::NamespaceShare;
use leasehold_types::message::{Refusal, RefusalReason};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most sessions of one worker: those that replace each other.
const SESSIONS_PER_WORKER_MAX: usize = 4;

/// The limits of sessions whose peers may be the agents that they say.
#[derive(Debug)]
pub(super) struct SessionLimits {
    all: Arc<Semaphore>,
    total: usize,
    per_namespace: usize,
    of_namespace: Arc<KeyedLimit<String>>,
    of_worker: Arc<KeyedLimit<WorkerKey>>,
}

/// The permit of one session.
#[derive(Debug)]
pub(super) struct SessionPermit {
    /// The part that the driver releases with the session.
    pub(super) of_all: OwnedSemaphorePermit,
    /// The parts that are released when nothing more is read.
    pub(super) of_worker: KeyedPermit<WorkerKey>,
    /// None of a cluster without a namespace.
    pub(super) of_namespace: Option<KeyedPermit<String>>,
}

impl SessionLimits {
    pub(super) fn new(total: usize, share: NamespaceShare) -> Self {
        let (all, per_namespace) = (Arc::new(Semaphore::new(total)), share.of(total));
        // The total is counted by the permits that the driver releases.
        let of_namespace = KeyedLimit::new(usize::MAX, per_namespace);
        let of_worker = KeyedLimit::new(usize::MAX, SESSIONS_PER_WORKER_MAX);
        Self { all, total, per_namespace, of_namespace, of_worker }
    }

    /// A permit for a session of this worker.
    pub(super) fn take(&self, worker: &WorkerKey) -> Result<SessionPermit, Refusal> {
        let of_worker = self.of_worker.take(worker.clone()).ok_or_else(|| {
            refusal(format!(
                "worker {worker} has {SESSIONS_PER_WORKER_MAX} sessions that have not ended yet: \
                 dial again later"
            ))
        })?;
        let namespace = worker.cluster.parts().0;
        let of_namespace = namespace.map(|namespace| self.in_namespace(namespace)).transpose()?;
        let of_all = Arc::clone(&self.all).try_acquire_owned().map_err(|_| {
            let limit = self.total;
            refusal(format!(
                "all {limit} sessions are in use: dial again, or raise --sessions-max or the limit \
                 of open files"
            ))
        })?;
        Ok(SessionPermit { of_all, of_worker, of_namespace })
    }

    fn in_namespace(&self, namespace: &str) -> Result<KeyedPermit<String>, Refusal> {
        self.of_namespace.take(namespace.to_owned()).ok_or_else(|| {
            refusal(format!(
                "namespace {namespace} has {} sessions, the most that one namespace may have: dial \
                 again, or ask for a higher --namespace-share of the coordinators",
                self.per_namespace
            ))
        })
    }
}

fn refusal(message: String) -> Refusal {
    Refusal { reason: RefusalReason::Limit, message }
}

#[cfg(test)]
mod tests {
    use leasehold_types::{ClusterName, WorkerName};

    use super::*;

    fn worker(cluster: &str, number: usize) -> WorkerKey {
        let cluster = ClusterName::new(cluster).expect("a name");
        WorkerKey { cluster, worker: WorkerName::new(&format!("w-{number}")).expect("a name") }
    }

    #[test]
    fn one_namespace_leaves_sessions_for_others() {
        let share = NamespaceShare::of_percent(50).expect("a percentage");
        let limits = SessionLimits::new(8, share);
        let taken: Vec<_> =
            (0..4).map(|number| limits.take(&worker("ci/builds", number))).collect();
        assert!(taken.iter().all(Result::is_ok));
        let refused = limits.take(&worker("ci/others", 9)).expect_err("one too many");
        assert!(refused.message.contains("namespace ci has 4 sessions"), "{}", refused.message);
        assert!(limits.take(&worker("cd/builds", 0)).is_ok());
        drop(taken);
        let taken: Vec<_> = (0..8).map(|number| limits.take(&worker("builds", number))).collect();
        assert!(taken.iter().all(Result::is_ok), "without a namespace only the total counts");
        assert!(limits.take(&worker("builds", 8)).is_err());
    }
}
