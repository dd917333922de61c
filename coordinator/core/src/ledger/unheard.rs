//! Unheard leases: leases that a worker may hold and that no agent has reported to this leader.
//! Such workers are those of a predecessor's term that have not reported, and those whose agent has
//! lost its memory. They are indexed by cluster and by the sets that they may hold, so that no
//! query scans all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold_types::message::Jobs;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{
    ClusterName, GrantNumber, Moment, SetName, StreamKey, WorkerKey, WorkerName,
};

use super::{Account, Ledger, Unknown};
use crate::exposure::{Entry, Exposure, SetList, SetLists, Sets, SetsVersion};

/// The unheard leases that a worker may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnheardExposure {
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

/// The streams that unheard leases may be of.
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

/// All workers that may hold unheard leases.
#[derive(Clone, Debug, Default)]
pub(super) struct UnheardWorkers {
    workers: BTreeMap<WorkerKey, UnheardExposure>,
    /// Workers that have not reported, by the moment until which plans wait for them.
    silent: BTreeMap<ClusterName, BTreeSet<(Moment, WorkerName)>>,
    groups: BTreeMap<StreamScope, ScopeWorkers>,
    /// The lists that name a set.
    by_set: BTreeMap<SetName, BTreeSet<SetsVersion>>,
    /// Streams without a claim that no unheard worker can hold: their last owner was heard after
    /// every predecessor had stopped, or was granted them by this leader.
    known: BTreeSet<StreamKey>,
}

impl UnheardWorkers {
    fn insert(&mut self, key: &WorkerKey, unheard: UnheardExposure) {
        self.take_out(key);
        let at = (unheard.until, key.clone());
        if !unheard.lost_memory {
            let silent = self.silent.entry(key.cluster.clone()).or_default();
            silent.insert((unheard.awaited_until, key.worker.clone()));
        }
        if let Some(scope) = &unheard.scope {
            self.groups.entry(scope.clone()).or_default().workers.insert(at);
        }
        self.workers.insert(key.clone(), unheard);
    }

    pub(super) fn remove(&mut self, key: &WorkerKey) -> Option<UnheardExposure> {
        let unheard = self.take_out(key);
        if self.workers.is_empty() {
            self.known.clear();
        }
        unheard
    }

    /// Moves what a worker may hold to another name.
    pub(super) fn rename(&mut self, key: &WorkerKey, to: &WorkerKey) {
        if let Some(unheard) = self.take_out(key) {
            self.insert(to, unheard);
        }
    }

    fn take_out(&mut self, key: &WorkerKey) -> Option<UnheardExposure> {
        let unheard = self.workers.remove(key)?;
        if let Some(silent) = self.silent.get_mut(&key.cluster) {
            silent.remove(&(unheard.awaited_until, key.worker.clone()));
            if silent.is_empty() {
                self.silent.remove(&key.cluster);
            }
        }
        if let Some(group) = unheard.scope.as_ref().and_then(|scope| self.groups.get_mut(scope)) {
            group.workers.remove(&(unheard.until, key.clone()));
        }
        Some(unheard)
    }

    /// The scope of the streams that this exposure allows.
    fn scope(&mut self, key: &WorkerKey, sets: Sets, lists: &SetLists) -> Option<StreamScope> {
        let version = match sets {
            Sets::None => return None,
            Sets::Any => None,
            Sets::Listed { version, .. } => Some(version),
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
    pub(super) fn note_known(&mut self, stream: &StreamKey) {
        if !self.workers.is_empty() {
            self.known.insert(stream.clone());
        }
    }

    /// Of the workers of a scope, the one for which `set` has to wait longest.
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
        let life = self.next_life();
        let mut account = self.accounts.open(key, || Account::new(life, GrantNumber(0), Moment(0)));
        account.exposure = exposure.clone();
        account.adopted = *epoch == self.epoch;
        account.ttl = exposure.ttl;
        account.unknown = Some(Unknown { slots: exposure.jobs_max, until, unreported: true });
        account.jobs = Jobs::Unknown;
        drop(account);
        let scope = self.unheard.scope(key, exposure.sets, lists);
        let comes_back = until.min(comes_back);
        let (awaited_until, lost_memory, exposure) = (comes_back, false, exposure.clone());
        let unheard =
            UnheardExposure { exposure, until, comes_back, awaited_until, lost_memory, scope };
        self.unheard.insert(key, unheard);
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
        let mut unheard = self.unheard.remove(key)?;
        if is_covered || mutation::on(Mutation::NoMemoryFrees) {
            return None;
        }
        if !unheard.lost_memory {
            unheard.lost_memory = true;
            // An earlier agent that still lives obeys the predecessor until that one's end at most.
            unheard.until = unheard.until.max(now);
        }
        let until = unheard.until;
        self.unheard.insert(key, unheard);
        Some(until)
    }

    /// A worker's agent has dialled again. If it did so in time, plans wait for its report, however
    /// long its turn to report takes.
    pub(crate) fn await_report(&mut self, key: &WorkerKey, hello_at: Moment) {
        let in_time =
            |unheard: &&UnheardExposure| !unheard.lost_memory && hello_at < unheard.comes_back;
        let Some(unheard) = self.unheard.workers.get(key).filter(in_time) else { return };
        let unheard = UnheardExposure { awaited_until: unheard.until, ..unheard.clone() };
        self.unheard.insert(key, unheard);
    }

    /// A worker's agent is not about to report. Returns whether plans have waited for it.
    pub(crate) fn await_no_report(&mut self, key: &WorkerKey) -> bool {
        let waits = |it: &&UnheardExposure| !it.lost_memory && it.awaited_until > it.comes_back;
        let Some(unheard) = self.unheard.workers.get(key).filter(waits) else { return false };
        let unheard = UnheardExposure { awaited_until: unheard.comes_back, ..unheard.clone() };
        self.unheard.insert(key, unheard);
        true
    }

    /// Until when an agent of a predecessor's term that has not reported may still dial again.
    pub(crate) fn comes_back_until(&self, key: &WorkerKey) -> Option<Moment> {
        let unheard = self.unheard.workers.get(key).filter(|unheard| !unheard.lost_memory)?;
        Some(unheard.comes_back)
    }

    /// See the mutation.
    pub(crate) fn adopt_at_hello(&mut self, key: &WorkerKey) {
        self.unheard.remove(key);
    }

    /// Forgets the unheard leases of a worker whose agent lost its memory, once they have ended by
    /// time and leadership was confirmed after that.
    pub(crate) fn settle_unheard(&mut self, key: &WorkerKey, now: Moment) {
        let lost = self.unheard.workers.get(key).is_some_and(|unheard| unheard.lost_memory);
        if lost && !self.may_hold_unheard(key, now) {
            self.unheard.remove(key);
        }
    }

    /// Whether unheard leases of a worker may last.
    pub(super) fn may_hold_unheard(&self, key: &WorkerKey, now: Moment) -> bool {
        self.unheard.workers.get(key).is_some_and(|UnheardExposure { exposure, until, .. }| {
            exposure.sets.is_timeless() || *until > now || !self.confirmed_since(*until)
        })
    }

    /// The unheard leases that a worker may hold, if any.
    pub(crate) fn unheard_exposure(&self, key: &WorkerKey) -> Option<&Exposure> {
        self.unheard.workers.get(key).map(|unheard| &unheard.exposure)
    }

    /// Until when the unheard leases of a worker may last that end by time, if it may hold any.
    pub(crate) fn unheard_until(&self, key: &WorkerKey) -> Option<Moment> {
        self.unheard.workers.get(key).map(|unheard| unheard.until)
    }

    /// Until when a worker may have an unheard lease on a stream, if it may have one;
    /// [`Moment::NEVER`] for a lease that never ends by time.
    pub(super) fn unheard_stream_until(
        &self,
        key: &WorkerKey,
        stream: &StreamKey,
    ) -> Option<Moment> {
        let unheard = self.unheard.workers.get(key)?;
        let timeless = match unheard.scope.as_ref()? {
            _ if self.unheard.known.contains(stream) => return None,
            StreamScope::Any { namespace, .. }
                if stream.set.namespace() != namespace.as_deref() =>
            {
                return None;
            }
            StreamScope::Any { timeless, .. } => *timeless,
            scope @ StreamScope::Listed(_) => match &self.unheard.groups.get(scope)?.list {
                Some(list) => list.get(&stream.set)?,
                None => true,
            },
        };
        Some(if timeless { Moment::NEVER } else { unheard.until })
    }

    /// A worker that may have an unheard lease on a stream of this set, if there is one: of the
    /// workers of the same scope, the one whose time ends last.
    pub(crate) fn unheard_of(
        &self,
        set: &SetName,
        now: Moment,
    ) -> Option<(&WorkerKey, &UnheardExposure)> {
        if self.unheard.workers.is_empty() || mutation::on(Mutation::SkipHold) {
            return None;
        }
        let is_over = |until: Moment| until <= now && self.confirmed_since(until);
        let versions = self.unheard.by_set.get(set).into_iter().flatten();
        let listed = versions.map(|version| StreamScope::Listed(*version));
        let namespace = set.namespace().map(str::to_owned);
        let any = [true, false].map(|timeless| {
            let namespace = namespace.clone();
            StreamScope::Any { namespace, timeless }
        });
        let key = listed.chain(any).find_map(|scope| self.unheard.last_of(&scope, set, is_over))?;
        self.unheard.workers.get_key_value(key)
    }

    /// Whether no unheard lease on a stream can exist: no worker may hold an unheard lease on its
    /// set, or the stream had an owner in this term that was its only one.
    pub(crate) fn is_heard_of(&self, stream: &StreamKey, now: Moment) -> bool {
        self.unheard.known.contains(stream) || self.unheard_of(&stream.set, now).is_none()
    }

    /// Until when a cluster frees, grows and plans nothing, and for which worker: one that has not
    /// reported, whose leases may still last and whose agent may be about to dial. After that
    /// moment the leases that the worker may hold still count as held.
    pub(crate) fn held_by(
        &self,
        cluster: &ClusterName,
        now: Moment,
    ) -> Option<(Moment, WorkerKey)> {
        if mutation::on(Mutation::SkipHold) {
            return None;
        }
        let (until, worker) = self.unheard.silent.get(cluster)?.last()?;
        let key = WorkerKey { cluster: cluster.clone(), worker: worker.clone() };
        (now < *until).then_some((*until, key))
    }

    /// All clusters for which [`Self::held_by`] returns a worker.
    pub(crate) fn held_clusters(&self, now: Moment) -> BTreeSet<ClusterName> {
        if mutation::on(Mutation::SkipHold) {
            return BTreeSet::new();
        }
        let silent = self.unheard.silent.iter();
        let held = silent.filter(|(_, workers)| workers.last().is_some_and(|last| now < last.0));
        held.map(|(cluster, _)| cluster.clone()).collect()
    }
}
