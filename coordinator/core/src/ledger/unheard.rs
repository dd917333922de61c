//! Workers that may hold leases nobody here has heard of: those of a predecessor's time that have
//! not reported, and those whose agent has lost its memory. They are kept by cluster and by what
//! they may hold, so that no question walks over all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold_types::message::{Jobs, ReportedMemory};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{
    ClusterName, GrantNumber, Incarnation, Moment, SetName, StreamKey, WorkerKey, WorkerName,
};

use super::{Account, Ledger, Unknown};
use crate::exposure::{Entry, Exposure, SetList, SetLists, Sets, SetsVersion};

/// What a worker may hold unheard of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnheardExposure {
    pub(crate) exposure: Exposure,
    /// Until then what ends by time may last.
    pub(crate) until: Moment,
    /// If its agent lives, it has dialled again by then.
    comes_back: Moment,
    /// Until then plans wait for its report.
    pub(crate) awaited_until: Moment,
    /// Its agent has reported, but without a memory.
    pub(crate) lost_memory: bool,
    scope: Option<StreamScope>,
}

/// Streams that workers may hold unheard of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StreamScope {
    /// Those of the sets of one list.
    Listed(SetsVersion),
    /// Those of every set of a namespace.
    Any { namespace: Option<String>, timeless: bool },
}

/// The workers that may hold streams of one scope, by when what ends by time is over.
#[derive(Clone, Debug, Default)]
struct ScopeWorkers {
    list: Option<Arc<SetList>>,
    workers: BTreeSet<(Moment, WorkerKey)>,
}

/// All that may be held unheard of.
#[derive(Clone, Debug, Default)]
pub(super) struct UnheardWorkers {
    workers: BTreeMap<WorkerKey, UnheardExposure>,
    /// Those that have not reported, by until when plans wait for them.
    silent: BTreeMap<ClusterName, BTreeSet<(Moment, WorkerName)>>,
    groups: BTreeMap<StreamScope, ScopeWorkers>,
    /// The lists that name a set.
    by_set: BTreeMap<SetName, BTreeSet<SetsVersion>>,
    /// Streams without a claim whose last owner was heard after any predecessor had stopped, or
    /// has them from this leader: nobody else can hold them.
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

    /// The scope of what this exposure allows.
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

    /// A stream has lost its last claim, whose owner was the only one.
    pub(super) fn note_known(&mut self, stream: &StreamKey) {
        if !self.workers.is_empty() {
            self.known.insert(stream.clone());
        }
    }

    /// The worker that holds up `set` the longest, of those in a scope.
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
    /// A worker of a predecessor's time; `comes_back` says by when its agent has dialled again, if
    /// it lives. The moments at which it is to be looked at, unless it has reported.
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
        account.unknown = Some(Unknown { slots: exposure.jobs_max, until });
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

    /// A report came of a worker of a predecessor's time: what its journal cannot know of lasts
    /// at most for one more lease, or until the worker is gone. When that is over, if it matters.
    pub(crate) fn heard(
        &mut self,
        key: &WorkerKey,
        memory: ReportedMemory,
        now: Moment,
    ) -> Option<Moment> {
        let mut unheard = self.unheard.remove(key)?;
        if memory.knows_from == Incarnation(0) || mutation::on(Mutation::NoMemoryFrees) {
            return None;
        }
        if !unheard.lost_memory {
            unheard.lost_memory = true;
            // An earlier agent that still lives obeys the predecessor to its end at the most.
            unheard.until = unheard.until.max(now);
        }
        let until = unheard.until;
        self.unheard.insert(key, unheard);
        Some(until)
    }

    /// A worker's agent has dialled again: where it did so in time, plans wait for its report, as
    /// long as its turn takes to come.
    pub(crate) fn await_report(&mut self, key: &WorkerKey, hello_at: Moment) {
        let in_time =
            |unheard: &&UnheardExposure| !unheard.lost_memory && hello_at < unheard.comes_back;
        let Some(unheard) = self.unheard.workers.get(key).filter(in_time) else { return };
        let unheard = UnheardExposure { awaited_until: unheard.until, ..unheard.clone() };
        self.unheard.insert(key, unheard);
    }

    /// A worker's agent is not about to report; whether plans have waited for it.
    pub(crate) fn await_no_report(&mut self, key: &WorkerKey) -> bool {
        let waits = |it: &&UnheardExposure| !it.lost_memory && it.awaited_until > it.comes_back;
        let Some(unheard) = self.unheard.workers.get(key).filter(waits) else { return false };
        let unheard = UnheardExposure { awaited_until: unheard.comes_back, ..unheard.clone() };
        self.unheard.insert(key, unheard);
        true
    }

    /// Until when an agent of a predecessor's time that has not reported may be on its way back.
    pub(crate) fn comes_back_until(&self, key: &WorkerKey) -> Option<Moment> {
        let unheard = self.unheard.workers.get(key).filter(|unheard| !unheard.lost_memory)?;
        Some(unheard.comes_back)
    }

    /// See the mutation.
    pub(crate) fn adopt_at_hello(&mut self, key: &WorkerKey) {
        self.unheard.remove(key);
    }

    /// Forgets what an amnesiac may hold by time, where that time is over and confirmed.
    pub(crate) fn settle_unheard(&mut self, key: &WorkerKey, now: Moment) {
        let Some(unheard) = self.unheard.workers.get(key) else { return };
        let timeless = unheard.exposure.sets.is_timeless();
        let over = unheard.lost_memory && unheard.until <= now && !timeless;
        if over && self.confirmed_since(unheard.until) {
            self.unheard.remove(key);
        }
    }

    /// What a worker may hold unheard of, if anything.
    pub(crate) fn unheard_exposure(&self, key: &WorkerKey) -> Option<&Exposure> {
        self.unheard.workers.get(key).map(|unheard| &unheard.exposure)
    }

    /// Until when what a worker may hold unheard of by time may last, if there is any.
    pub(crate) fn unheard_until(&self, key: &WorkerKey) -> Option<Moment> {
        self.unheard.workers.get(key).map(|unheard| unheard.until)
    }

    /// Until when a worker may have a stream unheard of, if it may: never over where no time ends
    /// it.
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

    /// A worker that may have a stream of this set unheard of, if there is one: of those of the
    /// same scope, the one whose time ends last.
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

    /// Whether nobody unheard of can hold a stream: its set is held by nobody that was not heard,
    /// or the stream had an owner in this term that was the only one.
    pub(crate) fn is_heard_of(&self, stream: &StreamKey, now: Moment) -> bool {
        self.unheard.known.contains(stream) || self.unheard_of(&stream.set, now).is_none()
    }

    /// Until when a cluster neither frees nor grows nor plans: a worker has not reported whose
    /// leases may still last, and whose agent may be on its way. The worker is one of those.
    /// Afterwards what it may hold still counts as held.
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

    /// All clusters that [`Self::held_by`] somebody.
    pub(crate) fn held_clusters(&self, now: Moment) -> BTreeSet<ClusterName> {
        if mutation::on(Mutation::SkipHold) {
            return BTreeSet::new();
        }
        let silent = self.unheard.silent.iter();
        let held = silent.filter(|(_, workers)| workers.last().is_some_and(|last| now < last.0));
        held.map(|(cluster, _)| cluster.clone()).collect()
    }
}
