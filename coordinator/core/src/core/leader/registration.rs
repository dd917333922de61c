//! Registrations: an exposure is stored before its worker is granted anything under it.
//! Invariant: the leader grants nothing that the worker's entry, or the entry that is being written
//! in its place, does not allow.

use leasehold_types::WorkerKey;
use leasehold_types::mutation::{self, Mutation};

use super::Leader;
use super::facts::Facts;
use crate::effect::Order;
use crate::exposure::{AccountId, Exposure, SetScope};
use crate::observed::Worker;

impl Leader {
    /// The platform has written these exposures: leases within them may be granted now.
    pub(in crate::core) fn registered(&mut self, workers: Vec<(WorkerKey, AccountId, Exposure)>) {
        for (key, account_id, exposure) in workers {
            let Some(mut account) = self.ledger.account_mut(&key) else { continue };
            // The entry of an earlier account has been removed since.
            if account.id() != account_id && !mutation::on(Mutation::RegisteredOfAnotherAccount) {
                continue;
            }
            account.entry_mut().written(exposure);
            drop(account);
            self.entry_is_removed(&key);
            self.register_if_needed(&key);
            if key.worker.is_former() {
                self.update_entry_of_name(&key.present());
            }
            self.pool_changed(&key);
            self.unblock(&key);
            self.outgoing.mark(key);
        }
    }

    /// The entry of a name may have waited for that of a former agent, which it may still stand
    /// for: has it replaced or removed.
    pub(super) fn update_entry_of_name(&mut self, key: &WorkerKey) {
        if !self.agent_rules().are_former_written(key) {
            return;
        }
        match self.ledger.account(key) {
            Some(_) => self.register_if_needed(key),
            None => self.forget_entries(vec![key.clone()]),
        }
    }

    /// Has the worker's exposure stored, if the written one does not cover it.
    pub(super) fn register_if_needed(&mut self, key: &WorkerKey) {
        let Some(worker) = self.observed(key).filter(|worker| worker.has_reported()) else {
            return;
        };
        if !self.agent_rules().are_former_written(key) {
            return;
        }
        let Some(wanted) = exposure(key, worker, self.facts()) else { return };
        let lists = self.replica.lists();
        let Some(mut account) = self.ledger.account_mut(key) else { return };
        let stored = account.entry().exposure();
        let narrows = stored.sets == SetScope::Any && wanted.sets != SetScope::Any;
        let covered = lists.covers(&key.cluster, stored, &wanted) && !narrows;
        if account.entry().next().is_some() || (account.entry().is_adopted() && covered) {
            return;
        }
        account.entry_mut().begin_write(wanted.clone());
        let account_id = account.id();
        drop(account);
        self.order(Order::Register(vec![(key.clone(), account_id, wanted)]));
    }
}

/// The exposure that covers all that the worker may be granted under the desired state, and all
/// that it may hold already.
fn exposure(key: &WorkerKey, worker: &Worker, facts: Facts<'_>) -> Option<Exposure> {
    let Facts { replica, ledger, clusters } = facts;
    let cluster = clusters.get(&key.cluster)?;
    let account = ledger.account(key)?;
    let lists = replica.cluster_lists(&key.cluster);
    let list = lists.map(|lists| &lists[usize::from(worker.stops_worker())]);
    let allows = |sets: SetScope| {
        account.sets().fold(true, |allowed, (set, timeless)| {
            allowed && replica.lists().allow(&key.cluster, sets, set, timeless)
        })
    };
    let stored = account.entry().exposure();
    let have = stored.sets;
    let sets = match list.map_or(SetScope::None, |list| list.sets()) {
        sets if allows(sets) => sets,
        // It still holds streams of a set that is no longer desired.
        sets if replica.lists().cover(&key.cluster, have, sets) && allows(have) => have,
        SetScope::None | SetScope::Listed { .. } | SetScope::Any => SetScope::Any,
    };
    let is_fresh = mutation::on(Mutation::EntrySaysFresh)
        || (account.is_fresh(worker.incarnation()) && stored.incarnation <= worker.incarnation());
    let wanted = Exposure {
        incarnation: worker.incarnation().max(stored.incarnation),
        ttl: cluster.spec().ttl.max(account.ttl()),
        jobs_max: cluster.spec().jobs_per_worker_max.max(account.committed()).max(account.size()),
        sets,
        identity: worker.occupant().identity(),
        fresh_agent: worker.occupant().agent().filter(|_| is_fresh),
    };
    Some(match ledger.unreported().exposure(key) {
        Some(unreported) => replica.lists().joined(&key.cluster, &wanted, unreported),
        None => wanted,
    })
}
