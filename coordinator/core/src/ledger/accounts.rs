//! All accounts of a term, and sums over them. Invariant: an account is changed only through a
//! guard, which updates the sums when it is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Deref, DerefMut};
use std::sync::Arc;

use leasehold_types::message::Jobs;
use leasehold_types::{ClusterName, WorkerKey, WorkerName};

use super::{Account, faults};
use crate::exposure::AccountId;
use crate::ordered_table::OrderedTable;

/// The accounts by worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accounts {
    /// A worker's claims share its key.
    all: OrderedTable<Arc<WorkerKey>, Account>,
    /// The workers of present accounts. Of accounts with one id, as a what-if may have them, one.
    by_id: BTreeMap<AccountId, Arc<WorkerKey>>,
    /// How many of them are of former agents.
    former: usize,
    sums: ClusterSums,
}

/// Sums and marks that are updated as accounts change.
#[derive(Clone, Debug, Default)]
struct ClusterSums {
    /// Committed slots per cluster.
    committed: BTreeMap<ClusterName, u64>,
    /// Those of them that no report to this leader confirms.
    unreported: BTreeMap<ClusterName, u64>,
    /// Accounts that have changed in facts that pools are planned by.
    changed: BTreeSet<WorkerKey>,
}

/// The facts of an account that pools are planned by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PoolFacts {
    exists: bool,
    committed: u32,
    unreported: u32,
    size: u32,
    is_known: bool,
    size_unsure: bool,
}

/// An account that is being changed.
#[derive(Debug)]
pub(crate) struct AccountMut<'a> {
    key: &'a WorkerKey,
    before: PoolFacts,
    account: &'a mut Account,
    sums: &'a mut ClusterSums,
}

impl Accounts {
    pub(super) fn get(&self, key: &WorkerKey) -> Option<&Account> {
        self.all.get(key)
    }

    pub(super) fn get_mut<'a>(&'a mut self, key: &'a WorkerKey) -> Option<AccountMut<'a>> {
        let account = self.all.get_mut(key)?;
        let (before, sums) = (PoolFacts::of(account), &mut self.sums);
        Some(AccountMut { key, before, account, sums })
    }

    /// The worker's account. A worker without one gets `new`.
    pub(super) fn open<'a>(
        &'a mut self,
        key: &'a WorkerKey,
        new: impl FnOnce() -> Account,
    ) -> AccountMut<'a> {
        let Self { all, by_id, former, sums } = self;
        let before = all.get(key).map(PoolFacts::of);
        if before.is_none() {
            let (shared, account) = (Arc::new(key.clone()), new());
            by_id.insert(account.id(), Arc::clone(&shared));
            *former += usize::from(key.worker.is_former());
            all.insert(shared, account);
        }
        let account = all.get_mut(key).expect("every worker has an account from here on");
        AccountMut { key, before: before.unwrap_or_default(), account, sums }
    }

    pub(super) fn remove(&mut self, key: &WorkerKey) -> Option<Account> {
        let account = self.all.remove(key)?;
        self.former -= usize::from(key.worker.is_former());
        if self.by_id.get(&account.id()).is_some_and(|of| **of == *key) {
            self.by_id.remove(&account.id());
        }
        self.sums.record_change(key, PoolFacts::of(&account), PoolFacts::default());
        Some(account)
    }

    /// Moves an account to another key that has none.
    pub(super) fn rename(&mut self, key: &WorkerKey, to: &Arc<WorkerKey>) -> Option<&Account> {
        let account = self.remove(key)?;
        self.sums.record_change(to, PoolFacts::default(), PoolFacts::of(&account));
        self.former += usize::from(to.worker.is_former());
        let account = self.all.get_or_insert_with(to, || account);
        self.by_id.insert(account.id(), Arc::clone(to));
        Some(account)
    }

    /// The key of a worker, to be shared with its claims.
    pub(super) fn shared_key(&self, key: &WorkerKey) -> Arc<WorkerKey> {
        let known = self.all.get_key_value(key);
        known.map_or_else(|| Arc::new(key.clone()), |(key, _)| Arc::clone(key))
    }

    /// The id of a worker's present account.
    pub(crate) fn id_of(&self, cluster: &ClusterName, worker: &WorkerName) -> Option<AccountId> {
        let key = WorkerKey { cluster: cluster.clone(), worker: worker.clone() };
        self.get(&key).map(Account::id)
    }

    /// Whether this is the id of a worker's present account. Faster than [`Self::id_of`] where it
    /// is: that compares names.
    pub(crate) fn is_present(
        &self,
        id: AccountId,
        cluster: &ClusterName,
        worker: &WorkerName,
    ) -> bool {
        let is_it = |key: &Arc<WorkerKey>| key.worker == *worker && key.cluster == *cluster;
        self.by_id.get(&id).is_some_and(is_it) || self.id_of(cluster, worker) == Some(id)
    }

    /// The accounts of one cluster.
    pub(crate) fn of<'a>(
        &'a self,
        cluster: &'a ClusterName,
    ) -> impl Iterator<Item = (&'a WorkerKey, &'a Account)> {
        self.of_after(cluster, None)
    }

    /// The same, all or those after this worker.
    pub(crate) fn of_after<'a>(
        &'a self,
        cluster: &'a ClusterName,
        after: Option<&WorkerName>,
    ) -> impl Iterator<Item = (&'a WorkerKey, &'a Account)> {
        let key =
            |worker: &WorkerName| WorkerKey { cluster: cluster.clone(), worker: worker.clone() };
        let from = match after {
            Some(worker) => Bound::Excluded(key(worker)),
            None => Bound::Included(key(&WorkerName::first())),
        };
        let accounts = self.all.range::<WorkerKey>((from, Bound::Unbounded));
        let accounts = accounts.take_while(move |(key, _)| key.cluster == *cluster);
        accounts.map(|(key, account)| (&**key, account))
    }

    /// The accounts of the agents that had a worker's name before its present one.
    pub(crate) fn former_of<'a>(
        &'a self,
        key: &'a WorkerKey,
    ) -> impl Iterator<Item = (&'a WorkerKey, &'a Account)> {
        // Hardly ever are there any, and each message asks.
        let first = (self.former > 0).then(|| key.former_first());
        let accounts = first.into_iter().flat_map(|first| self.all.range::<WorkerKey>(first..));
        let former = accounts.take_while(move |(worker, _)| worker.present() == *key);
        former.map(|(worker, account)| (&**worker, account))
    }

    /// The accounts of all clusters, after one of them or all.
    pub(crate) fn after<'a>(
        &'a self,
        after: Option<&'a WorkerKey>,
    ) -> impl Iterator<Item = (&'a WorkerKey, &'a Account)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let accounts = self.all.range::<WorkerKey>((from, Bound::Unbounded));
        accounts.map(|(key, account)| (&**key, account))
    }

    /// Upper bound of the slots of a cluster that are in use.
    pub(crate) fn committed(&self, cluster: &ClusterName) -> u32 {
        let sum = self.sums.committed.get(cluster).copied().unwrap_or(0);
        u32::try_from(sum).unwrap_or(u32::MAX)
    }

    /// The committed slots of a cluster that no report to this leader confirms.
    pub(crate) fn unreported_slots(&self, cluster: &ClusterName) -> u32 {
        let sum = self.sums.unreported.get(cluster).copied().unwrap_or(0);
        u32::try_from(sum).unwrap_or(u32::MAX)
    }

    /// Drops some of the accounts of a term that has ended, stream by stream; whether any are left.
    pub(super) fn shrink(&mut self, by: usize) -> bool {
        for _ in 0..by {
            let Some(key) = self.all.keys().next().cloned() else { return false };
            if self.all.get_mut(&*key).and_then(|account| account.streams.pop()).is_none() {
                self.all.remove(&*key);
            }
        }
        true
    }

    /// The accounts that changed since the last call.
    pub(super) fn take_changed(&mut self) -> BTreeSet<WorkerKey> {
        std::mem::take(&mut self.sums.changed)
    }
}

impl ClusterSums {
    fn record_change(&mut self, key: &WorkerKey, before: PoolFacts, after: PoolFacts) {
        if before == after {
            return;
        }
        self.changed.insert(key.clone());
        let fell = after.committed < before.committed && faults::lets_sums_drift();
        let freed = before.committed + u32::from(fell);
        add(&mut self.committed, &key.cluster, after.committed, freed);
        if before.unreported != after.unreported {
            add(&mut self.unreported, &key.cluster, after.unreported, before.unreported);
        }
    }
}

fn add(sums: &mut BTreeMap<ClusterName, u64>, cluster: &ClusterName, taken: u32, freed: u32) {
    let change = |sum: u64| (sum + u64::from(taken)).saturating_sub(u64::from(freed));
    match sums.get_mut(cluster) {
        Some(sum) => *sum = change(*sum),
        None => _ = sums.insert(cluster.clone(), change(0)),
    }
}

impl PoolFacts {
    fn of(account: &Account) -> Self {
        Self {
            exists: true,
            committed: account.committed(),
            unreported: account.unreported_slots(),
            size: account.size(),
            is_known: account.unaccounted.is_none() && account.jobs != Jobs::Unknown,
            size_unsure: account.size_unsure,
        }
    }
}

impl Deref for AccountMut<'_> {
    type Target = Account;

    fn deref(&self) -> &Account {
        self.account
    }
}

impl DerefMut for AccountMut<'_> {
    fn deref_mut(&mut self) -> &mut Account {
        self.account
    }
}

impl Drop for AccountMut<'_> {
    fn drop(&mut self) {
        self.sums.record_change(self.key, self.before, PoolFacts::of(self.account));
    }
}
