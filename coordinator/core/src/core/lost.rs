//! What frees a lost worker by time, where the manifest of its cluster accepts that
//! (`spec.lost.after`). Its jobs may still run then: nobody can know.

use leasehold_types::{ClusterName, Moment, WorkerKey};

use super::{Leader, Timer};
use crate::desired::Desired;
use crate::effect::Notice;

impl Leader {
    /// Reminds of the moment at which a worker of which nothing more is heard counts as gone.
    pub(super) fn watch_lost(&mut self, key: &WorkerKey) {
        if let Some(at) = self.gone_at(key) {
            self.timers.insert((at, Timer::Lost(key.clone())));
        }
    }

    /// The same for those that are missing already where another time is desired now than `before`.
    pub(super) fn watch_lost_anew(&mut self, before: &Desired) {
        let ledger = &self.ledger;
        let after = |desired: &Desired, name: &ClusterName| desired.clusters.get(name)?.lost_after;
        let clusters = self.replica.desired.clusters.keys();
        let changed =
            clusters.filter(|name| after(before, name) != after(&self.replica.desired, name));
        let workers = changed.flat_map(|name| ledger.accounts_of(name));
        let missing = workers.map(|(key, _)| key).filter(|key| self.is_missing(key));
        for key in missing.cloned().collect::<Vec<_>>() {
            self.watch_lost(&key);
        }
    }

    pub(super) fn lost_due(&mut self, key: &WorkerKey) {
        let Some(at) = self.gone_at(key).filter(|_| self.is_missing(key)) else { return };
        if self.replica.heard < at {
            self.timers.insert((at, Timer::Lost(key.clone())));
            return;
        }
        // It may have gone to a successor of this leader.
        if !self.ledger.confirmed_since(at) {
            self.unconfirmed.insert(Timer::Lost(key.clone()));
            return;
        }
        let cluster = self.clusters.get(&key.cluster);
        let after = cluster.and_then(|cluster| cluster.spec.lost_after).unwrap_or_default();
        self.replica.notice(Notice::GivenUp { worker: key.clone(), after });
        self.end_accounts(vec![key.clone()]);
    }

    /// When a worker of which nothing more is heard counts as gone, if that is desired at all. A
    /// new leader counts from when nothing granted before its term can last.
    fn gone_at(&self, key: &WorkerKey) -> Option<Moment> {
        let after = self.clusters.get(&key.cluster)?.spec.lost_after?;
        let ledger = &self.ledger;
        ledger.account(key)?;
        let unheard = ledger.unheard_until(key).unwrap_or_default();
        Some(ledger.free_at(key).max(unheard) + after)
    }

    /// Whether nothing is heard of a worker that has an account, and no report of it waits.
    pub(super) fn is_missing(&self, key: &WorkerKey) -> bool {
        let account = self.ledger.account(key);
        if account.is_none_or(|account| account.adopting) {
            return false;
        }
        let Some(worker) = self.observed(key) else { return true };
        worker.lost || (!worker.reported && worker.session.is_none())
    }
}
