//! What a leader reads of the leases that no agent has reported to it.

use std::collections::BTreeSet;

use leasehold_types::{ClusterName, Load, Moment, SetName, StreamKey, WorkerKey};

use super::{StreamScope, UnreportedExposure, UnreportedWorkers};
use crate::exposure::Exposure;
use crate::ledger::{Ledger, faults};

/// The leases that workers may hold and that no agent has reported to this leader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnreportedLeases<'a> {
    ledger: &'a Ledger,
    all: &'a UnreportedWorkers,
}

impl<'a> UnreportedLeases<'a> {
    pub(in crate::ledger) fn new(ledger: &'a Ledger) -> Self {
        Self { ledger, all: &ledger.unreported }
    }

    /// Until when an agent of a predecessor's term that has not reported may still dial again.
    pub(crate) fn comes_back_until(self, key: &WorkerKey) -> Option<Moment> {
        let unreported = self.all.workers.get(key).filter(|unreported| !unreported.lost_memory)?;
        Some(unreported.comes_back)
    }

    /// Whether unreported leases of a worker may last.
    pub(in crate::ledger) fn may_hold(self, key: &WorkerKey, now: Moment) -> bool {
        self.all.workers.get(key).is_some_and(
            |&UnreportedExposure { ref exposure, until, .. }| {
                exposure.sets.is_timeless() || until > now || !self.ledger.confirmed_since(until)
            },
        )
    }

    /// The load of all shares that a name's former agents may hold; none while unreported leases of
    /// one of them may last. An agent that was started without its folder has taken its name from
    /// the one before, and both stand for the same worker.
    pub(crate) fn former_load(self, key: &WorkerKey, now: Moment) -> Option<Load> {
        let mut former = self.ledger.accounts().former_of(key);
        former.try_fold(Load::ZERO, |sum, (former, account)| {
            (!self.may_hold(former, now)).then_some(sum + account.load)
        })
    }

    /// The unreported leases that a worker may hold, if any.
    pub(crate) fn exposure(self, key: &WorkerKey) -> Option<&'a Exposure> {
        self.all.workers.get(key).map(|unreported| &unreported.exposure)
    }

    /// Until when the unreported leases of a worker may last that end by time, if it may hold any.
    pub(crate) fn until(self, key: &WorkerKey) -> Option<Moment> {
        self.all.workers.get(key).map(|unreported| unreported.until)
    }

    /// Until when a worker may have an unreported lease on a stream, if it may have one;
    /// [`Moment::NEVER`] for a lease that never ends by time.
    pub(in crate::ledger) fn stream_until(
        self,
        key: &WorkerKey,
        stream: &StreamKey,
    ) -> Option<Moment> {
        let unreported = self.all.workers.get(key)?;
        let timeless = match unreported.scope.as_ref()? {
            _ if self.all.known.contains(stream) => return None,
            StreamScope::Any { namespace, .. }
                if stream.set.namespace() != namespace.as_deref() =>
            {
                return None;
            }
            StreamScope::Any { timeless, .. } => *timeless,
            scope @ StreamScope::Listed(_) => match &self.all.groups.get(scope)?.list {
                Some(list) => list.get(&stream.set)?,
                None => true,
            },
        };
        Some(if timeless { Moment::NEVER } else { unreported.until })
    }

    /// A worker that may have an unreported lease on a stream of this set, if there is one: of the
    /// workers of the same scope, the one whose time ends last.
    pub(crate) fn of_set(
        self,
        set: &SetName,
        now: Moment,
    ) -> Option<(&'a WorkerKey, &'a UnreportedExposure)> {
        if self.all.workers.is_empty() || faults::skips_hold() {
            return None;
        }
        let is_over = |until: Moment| until <= now && self.ledger.confirmed_since(until);
        let versions = self.all.by_set.get(set).into_iter().flatten();
        let listed = versions.map(|version| StreamScope::Listed(*version));
        let namespace = set.namespace().map(str::to_owned);
        let any = [true, false].map(|timeless| {
            let namespace = namespace.clone();
            StreamScope::Any { namespace, timeless }
        });
        let key = listed.chain(any).find_map(|scope| self.all.last_of(&scope, set, is_over))?;
        self.all.workers.get_key_value(key)
    }

    /// Whether no unreported lease on a stream can exist: no worker may hold an unreported lease on
    /// its set, or the stream had an owner in this term that was its only one.
    pub(crate) fn is_heard_of(self, stream: &StreamKey, now: Moment) -> bool {
        self.all.known.contains(stream) || self.of_set(&stream.set, now).is_none()
    }

    /// Until when a cluster frees, grows and plans nothing, and for which worker: one that has not
    /// reported, whose leases may still last and whose agent may be about to dial. After that
    /// moment the leases that the worker may hold still count as held.
    pub(crate) fn hold_of(self, cluster: &ClusterName, now: Moment) -> Option<(Moment, WorkerKey)> {
        if faults::skips_hold() {
            return None;
        }
        let (until, worker) = self.all.silent.get(cluster)?.last()?;
        let key = WorkerKey { cluster: cluster.clone(), worker: worker.clone() };
        (now < *until).then_some((*until, key))
    }

    /// All clusters for which [`Self::hold_of`] returns a worker.
    pub(crate) fn clusters_on_hold(self, now: Moment) -> BTreeSet<ClusterName> {
        if faults::skips_hold() {
            return BTreeSet::new();
        }
        let silent = self.all.silent.iter();
        let held = silent.filter(|(_, workers)| workers.last().is_some_and(|last| now < last.0));
        held.map(|(cluster, _)| cluster.clone()).collect()
    }
}
