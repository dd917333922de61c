//! Workers that may hold leases nobody here has heard of: those of a predecessor's time that have
//! not reported, and those whose agent has lost its memory.

use std::collections::BTreeSet;

use leasehold_types::message::{Jobs, ReportedMemory};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, GrantNumber, Incarnation, Moment, SetName, WorkerKey};

use super::{Account, Ledger, Unknown};
use crate::event::Exposure;

/// What a worker may hold unheard of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unheard {
    pub(crate) exposure: Exposure,
    /// Until then what ends by time may last.
    pub(crate) until: Moment,
    /// Its agent has reported, but without a memory.
    pub(crate) amnesiac: bool,
}

impl Ledger {
    /// A worker of a predecessor's time.
    pub(super) fn expose(&mut self, key: &WorkerKey, exposure: &Exposure) {
        let until = self.predecessor_end + self.bounds.outlast(exposure.ttl);
        let mut account = Account::new(GrantNumber(0), Moment(0));
        account.exposure = exposure.clone();
        account.ttl = exposure.ttl;
        account.unknown = Some(Unknown { slots: exposure.jobs_max, until });
        account.jobs = Jobs::Unknown;
        self.accounts.insert(key.clone(), account);
        let unheard = Unheard { exposure: exposure.clone(), until, amnesiac: false };
        self.unheard.insert(key.clone(), unheard);
    }

    /// A report came of a worker of a predecessor's time: what its journal cannot know of lasts
    /// at most for one more lease, or until the worker is gone. When that is over, if it matters.
    pub(crate) fn heard(
        &mut self,
        key: &WorkerKey,
        memory: ReportedMemory,
        now: Moment,
    ) -> Option<Moment> {
        let until = now + self.bounds.outlast(self.unheard.get(key)?.exposure.ttl);
        let all = memory.knows_from == Incarnation(0) || mutation::on(Mutation::NoMemoryFrees);
        let unheard = self.unheard.get_mut(key)?;
        if all {
            self.unheard.remove(key);
            return None;
        }
        if !unheard.amnesiac {
            unheard.amnesiac = true;
            // An earlier agent may still live, and obey the predecessor to its end.
            let latest = unheard.until.max(until);
            unheard.until = if memory.aged { unheard.until.max(now) } else { latest };
        }
        Some(unheard.until)
    }

    /// See the mutation.
    pub(crate) fn adopt_at_hello(&mut self, key: &WorkerKey) {
        self.unheard.remove(key);
    }

    /// Forgets what an amnesiac may hold by time, where that time is over and confirmed.
    pub(crate) fn settle_unheard(&mut self, key: &WorkerKey, now: Moment) {
        let Some(unheard) = self.unheard.get(key) else { return };
        let timeless = unheard.exposure.sets.values().any(|timeless| *timeless);
        let over = unheard.amnesiac && unheard.until <= now && !timeless;
        if over && self.confirmed_since(unheard.until) {
            self.unheard.remove(key);
        }
    }

    /// Until when what a worker may hold unheard of by time may last, if there is any.
    pub(crate) fn unheard_until(&self, key: &WorkerKey) -> Option<Moment> {
        self.unheard.get(key).map(|unheard| unheard.until)
    }

    /// The worker that may have a stream of this set unheard of, if there is one.
    pub(crate) fn unheard_of(&self, set: &SetName, now: Moment) -> Option<(&WorkerKey, &Unheard)> {
        if mutation::on(Mutation::SkipHold) {
            return None;
        }
        self.unheard.iter().find(|(_, unheard)| match unheard.exposure.sets.get(set) {
            None => false,
            Some(true) => true,
            Some(false) => now < unheard.until || !self.confirmed_since(unheard.until),
        })
    }

    /// Until when a cluster must neither free nor grow: somebody has not reported whose leases
    /// may still last. The worker is one of those.
    pub(crate) fn held_by(
        &self,
        cluster: &ClusterName,
        now: Moment,
    ) -> Option<(Moment, &WorkerKey)> {
        if mutation::on(Mutation::SkipHold) {
            return None;
        }
        let silent = self.unheard.iter().filter(|(key, unheard)| {
            key.cluster == *cluster && !unheard.amnesiac && now < unheard.until
        });
        silent.map(|(key, unheard)| (unheard.until, key)).max()
    }

    /// All clusters that [`Self::held_by`] somebody.
    pub(crate) fn held_clusters(&self, now: Moment) -> BTreeSet<ClusterName> {
        if mutation::on(Mutation::SkipHold) {
            return BTreeSet::new();
        }
        let silent = self.unheard.iter();
        let silent = silent.filter(|(_, unheard)| !unheard.amnesiac && now < unheard.until);
        silent.map(|(key, _)| key.cluster.clone()).collect()
    }

    /// All that may hold something unheard of.
    pub(crate) fn unheard(&self) -> impl Iterator<Item = (&WorkerKey, &Unheard)> {
        self.unheard.iter()
    }
}
