//! Unreported leases: leases that a worker may hold and that no agent has reported to this leader.
//! Such workers are those of a predecessor's term that have not reported, and those whose agent has
//! lost its memory. They are indexed by cluster and by the sets that they may hold, so that no
//! query scans all of them.

mod leases;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold_types::message::Jobs;
use leasehold_types::{
    ClusterName, GrantNumber, Moment, SetName, StreamKey, WorkerKey, WorkerName,
};

use super::{Account, Ledger, UnaccountedSlots, faults};
use crate::exposure::{Entry, Exposure, SetList, SetLists, SetScope, SetsVersion};
pub(crate) use leases::UnreportedLeases;

/// The unreported leases that a worker may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnreportedExposure {
    pub(crate) exposure: Exposure,
    /// Its leases that end by time may last until then.
    pub(crate) until: Moment,
    /// A living agent has dialled again by then.
    comes_back: Moment,
    /// Plans wait for its report until then.
    pub(crate) awaited_until: Moment,
    /// Its agent has reported, but without a memory.
    pub(crate) lost_memory: bool,
    scope: Option<StreamScope>,
}

/// The streams that unreported leases may be of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StreamScope {
    /// The streams of the sets of one list.
    Listed(SetsVersion),
    /// The streams of every set of a namespace.
    Any { namespace: Option<String>, timeless: bool },
}

/// The workers that may hold streams of one scope, by the end of their leases that end by time.
#[derive(Clone, Debug, Default)]
struct ScopeWorkers {
    list: Option<Arc<SetList>>,
    workers: BTreeSet<(Moment, WorkerKey)>,
}

/// All workers that may hold unreported leases.
#[derive(Clone, Debug, Default)]
pub(super) struct UnreportedWorkers {
    workers: BTreeMap<WorkerKey, UnreportedExposure>,
    /// Workers that have not reported, by the moment until which plans wait for them.
    silent: BTreeMap<ClusterName, BTreeSet<(Moment, WorkerName)>>,
    groups: BTreeMap<StreamScope, ScopeWorkers>,
    /// The lists that name a set.
    by_set: BTreeMap<SetName, BTreeSet<SetsVersion>>,
    /// Streams without a claim that no unreported worker can hold: their last owner was heard after
    /// every predecessor had stopped, or was granted them by this leader.
    known: BTreeSet<StreamKey>,
}

impl UnreportedWorkers {
    fn insert(&mut self, key: &WorkerKey, unreported: UnreportedExposure) {
        self.take_out(key);
        let at = (unreported.until, key.clone());
        if !unreported.lost_memory {
            let silent = self.silent.entry(key.cluster.clone()).or_default();
            silent.insert((unreported.awaited_until, key.worker.clone()));
        }
        if let Some(scope) = &unreported.scope {
            self.groups.entry(scope.clone()).or_default().workers.insert(at);
        }
        self.workers.insert(key.clone(), unreported);
    }

    pub(super) fn remove(&mut self, key: &WorkerKey) -> Option<UnreportedExposure> {
        let unreported = self.take_out(key);
        if self.workers.is_empty() {
            self.known.clear();
        }
        unreported
    }

    /// Moves what a worker may hold to another name.
    pub(super) fn rename(&mut self, key: &WorkerKey, to: &WorkerKey) {
        if let Some(unreported) = self.take_out(key) {
            self.insert(to, unreported);
        }
    }

    fn take_out(&mut self, key: &WorkerKey) -> Option<UnreportedExposure> {
        let unreported = self.workers.remove(key)?;
        if let Some(silent) = self.silent.get_mut(&key.cluster) {
            silent.remove(&(unreported.awaited_until, key.worker.clone()));
            if silent.is_empty() {
                self.silent.remove(&key.cluster);
            }
        }
        if let Some(group) = unreported.scope.as_ref().and_then(|scope| self.groups.get_mut(scope))
        {
            group.workers.remove(&(unreported.until, key.clone()));
        }
        Some(unreported)
    }

    /// The scope of the streams that this exposure allows.
    fn scope(&mut self, key: &WorkerKey, sets: SetScope, lists: &SetLists) -> Option<StreamScope> {
        let version = match sets {
            SetScope::None => return None,
            SetScope::Any => None,
            SetScope::Listed { version, .. } => Some(version),
        };
        let list = version.and_then(|version| lists.get(&key.cluster, version));
        let Some((version, list)) = version.zip(list) else {
            let namespace = key.cluster.parts().0.map(str::to_owned);
            return Some(StreamScope::Any { namespace, timeless: sets.is_timeless() });
        };
        let scope = StreamScope::Listed(version);
        let group = self.groups.entry(scope.clone()).or_default();
        if group.list.is_none() {
            group.list = Some(Arc::clone(list));
            for (set, _) in list.iter() {
                self.by_set.entry(set.clone()).or_default().insert(version);
            }
        }
        Some(scope)
    }

    /// Notes a stream that has lost its last claim, and whose owner was its only one.
    pub(super) fn record_known(&mut self, stream: &StreamKey) {
        if !self.workers.is_empty() {
            self.known.insert(stream.clone());
        }
    }

    /// The worker of this scope whose unreported leases on `set` expire last.
    fn last_of(
        &self,
        scope: &StreamScope,
        set: &SetName,
        is_over: impl Fn(Moment) -> bool,
    ) -> Option<&WorkerKey> {
        let group = self.groups.get(scope)?;
        let (until, key) = group.workers.last()?;
        let timeless = match (scope, &group.list) {
            (StreamScope::Any { timeless, .. }, _) => *timeless,
            (StreamScope::Listed(_), Some(list)) => list.get(set)?,
            (StreamScope::Listed(_), None) => true,
        };
        (timeless || !is_over(*until)).then_some(key)
    }
}

impl Ledger {
    /// Opens the account of a worker that is registered from a predecessor's term. A living agent
    /// has dialled again by `comes_back`. Returns the moments at which to check the worker, unless
    /// it has reported by then.
    pub(crate) fn expose(
        &mut self,
        key: &WorkerKey,
        entry: &Entry,
        lists: &SetLists,
        comes_back: Moment,
    ) -> [Moment; 2] {
        let Entry { epoch, exposure } = entry;
        let until = self.predecessor_end + self.bounds.outlast(exposure.ttl);
        let account_id = self.next_account_id();
        let mut account =
            self.accounts.open(key, || Account::new(account_id, GrantNumber(0), Moment::EARLIEST));
        account.entry_mut().read(exposure.clone(), *epoch == self.epoch);
        account.ttl = exposure.ttl;
        account.unaccounted =
            Some(UnaccountedSlots { slots: exposure.jobs_max, until, unreported: true });
        account.jobs = Jobs::Unknown;
        drop(account);
        let scope = self.unreported.scope(key, exposure.sets, lists);
        let comes_back = until.min(comes_back);
        let (awaited_until, lost_memory, exposure) = (comes_back, false, exposure.clone());
        let unreported =
            UnreportedExposure { exposure, until, comes_back, awaited_until, lost_memory, scope };
        self.unreported.insert(key, unreported);
        [awaited_until, until]
    }

    /// A worker of a predecessor's term has reported; `is_covered` if its report names all that it
    /// may hold. Leases that it does not cover last for one more lease time at most, or until the
    /// worker is gone. Returns the end of that time, if there are such leases.
    pub(crate) fn heard(
        &mut self,
        key: &WorkerKey,
        is_covered: bool,
        now: Moment,
    ) -> Option<Moment> {
        let mut unreported = self.unreported.remove(key)?;
        if is_covered || faults::no_memory_frees() {
            return None;
        }
        if !unreported.lost_memory {
            unreported.lost_memory = true;
            // An earlier agent that still lives obeys the predecessor until that one's end at most.
            unreported.until = unreported.until.max(now);
        }
        let until = unreported.until;
        self.unreported.insert(key, unreported);
        Some(until)
    }

    /// A worker's agent has dialled again. If it did so in time, plans wait for its report, however
    /// long its turn to report takes.
    pub(crate) fn await_report(&mut self, key: &WorkerKey, hello_at: Moment) {
        let in_time = |unreported: &&UnreportedExposure| {
            !unreported.lost_memory && hello_at < unreported.comes_back
        };
        let Some(unreported) = self.unreported.workers.get(key).filter(in_time) else { return };
        let unreported =
            UnreportedExposure { awaited_until: unreported.until, ..unreported.clone() };
        self.unreported.insert(key, unreported);
    }

    /// A worker's agent is not about to report. Returns whether plans have waited for it.
    pub(crate) fn await_no_report(&mut self, key: &WorkerKey) -> bool {
        let waits = |exposure: &&UnreportedExposure| {
            !exposure.lost_memory && exposure.awaited_until > exposure.comes_back
        };
        let Some(unreported) = self.unreported.workers.get(key).filter(waits) else { return false };
        let unreported =
            UnreportedExposure { awaited_until: unreported.comes_back, ..unreported.clone() };
        self.unreported.insert(key, unreported);
        true
    }

    /// See the mutation.
    pub(crate) fn adopt_at_hello(&mut self, key: &WorkerKey, now: Moment) {
        self.unreported.remove(key);
        self.open(key, now).unaccounted = None;
    }

    /// Forgets the unreported leases of a worker whose agent lost its memory, once they have ended
    /// by time and leadership was confirmed after that.
    pub(crate) fn settle_unreported(&mut self, key: &WorkerKey, now: Moment) {
        let lost =
            self.unreported.workers.get(key).is_some_and(|unreported| unreported.lost_memory);
        if lost && !self.unreported().may_hold(key, now) {
            self.unreported.remove(key);
        }
    }
}
