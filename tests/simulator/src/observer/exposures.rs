//! What pods have is in the store of exposures, where the next leader will look for it (S8).
//!
//! Invariant: an entry may cover too much, never too little.

use std::collections::BTreeMap;

use leasehold_coordinator_core::desired::{Desired, Mode};
use leasehold_coordinator_core::exposure::{
    AccountId, Entry, Exposure, SetList, SetScope, SetsVersion,
};
use leasehold_types::{ClusterName, Epoch, SetName, StreamKey, WorkerKey};

use crate::observer::{Checks, Touched};
use crate::system::View;
use crate::system::store::Commit;

/// The lists of sets of all manifests that were handed to a core.
#[derive(Debug, Default)]
pub(crate) struct SetListHistory(BTreeMap<SetsVersion, SetList>);

impl SetListHistory {
    fn note(&mut self, desired: &Desired) {
        let mut clusters: BTreeMap<&ClusterName, Vec<(SetName, bool)>> = BTreeMap::new();
        for (name, set) in &desired.sets {
            let pinned = set.mode == Mode::Pinned;
            clusters.entry(&set.cluster).or_default().push((name.clone(), pinned));
        }
        for (name, cluster) in &desired.clusters {
            if cluster.class.is_some() {
                clusters.entry(name).or_default().push((name.shares(), false));
            }
        }
        for sets in clusters.into_values() {
            let unstoppable = sets.iter().map(|(set, _)| (set.clone(), true)).collect::<SetList>();
            let stoppable = sets.into_iter().collect::<SetList>();
            for list in [unstoppable, stoppable] {
                self.0.insert(list.version(), list);
            }
        }
    }

    /// Whether these sets allow a lease on a stream of this set, which time ends or does not.
    fn allow(&self, sets: SetScope, set: &SetName, timeless: bool) -> bool {
        match sets {
            SetScope::None => false,
            SetScope::Any => true,
            SetScope::Listed { version, .. } => self
                .0
                .get(&version)
                .is_some_and(|list| list.get(set).is_some_and(|allowed| allowed || !timeless)),
        }
    }
}

impl View<'_> {
    /// Whether what a pod has of a stream never expires.
    fn is_timeless_at(&self, pod: usize, stream: &StreamKey) -> bool {
        let node = &self.pods[pod];
        let pinned =
            node.disk.borrow().memory.streams.get(stream).is_some_and(|lease| lease.pinned);
        pinned || !node.worker.stoppable
    }
}

impl Checks<'_> {
    /// Manifests are handed to a core: entries may name their lists from now on.
    pub(crate) fn note_set_lists(&mut self, desired: &Desired) {
        self.observer.set_lists.note(desired);
    }

    /// S8: an entry in the store covers everything that one of these pods has.
    pub(crate) fn check_entries(&mut self, touched: &Touched) {
        if !self.view.is_sampled() {
            return;
        }
        for pod in 0..self.view.pods.len() {
            let node = &self.view.pods[pod];
            // Of a pod whose name another has taken, the entry covers both, unless agents are told
            // apart.
            let touches = touched.entries.iter().any(|key| key.present() == node.key);
            if !self.view.is_judged(pod) || !(touched.pods.contains(&pod) || touches) {
                continue;
            }
            let register = &self.view.store.register;
            let holder = |key: &WorkerKey| register.get(key)?.as_ref()?.exposure.identity;
            let accounts = self.view.accounts_of(pod, holder);
            let entries = accounts.iter().filter_map(|key| register.get(key));
            // An entry that cannot be read covers everything.
            let Some(entries) = entries.cloned().collect::<Option<Vec<_>>>() else { continue };
            let entry = entries.into_iter().reduce(|one, other| {
                let epoch = one.epoch.max(other.epoch);
                Entry { epoch, ..one.join(&other) }
            });
            if let Some(what) = self.missing_in(pod, entry.as_ref()) {
                self.fail("S8", || format!("p{pod} has {what}; what is stored: {entry:?}"));
            }
        }
    }

    /// S8: no leader replaces or removes what a later one wrote, even if it is unreadable
    /// by now.
    pub(crate) fn check_replaced(&mut self, commit: &Commit, before: Option<Epoch>) {
        if let Some(before) = before.filter(|before| *before > commit.epoch) {
            let (key, epoch) = (commit.attempt.change.key().clone(), commit.epoch);
            let now = commit.entry.clone();
            self.fail("S8", || {
                format!("the entry of {key} of term {before} is made {now:?} under {epoch}")
            });
        }
    }

    /// S8: what a leader counts as stored, every later leader has seen.
    pub(crate) fn check_registered(
        &mut self,
        replica: usize,
        said: &[(WorkerKey, AccountId, Exposure)],
    ) {
        let Some((epoch, _)) = self.view.replicas[replica].election.term() else { return };
        let unseen =
            said.iter().find_map(|(key, ..)| Some((key, self.view.store.unseen_by(epoch, key)?)));
        if let Some((key, later)) = unseen {
            let key = key.clone();
            self.fail("S8", || {
                format!("c{replica} counts {key} as stored under {epoch}, unseen by {later}")
            });
        }
    }

    /// What a pod has and its entry does not cover, if anything.
    fn missing_in(&self, pod: usize, entry: Option<&Entry>) -> Option<String> {
        let node = &self.view.pods[pod];
        let size = node.size_in_effect(self.view.local_of_pod(pod));
        if size > entry.map_or(0, |entry| entry.exposure.jobs_max) {
            return Some(format!("a pool of {size}"));
        }
        let streams = self.view.streams_at(pod).into_iter();
        let mut used =
            streams.filter_map(|stream| Some((self.view.token_in_use(pod, &stream)?, stream)));
        let missing = used.find(|(token, stream)| {
            let timeless = self.view.is_timeless_at(pod, stream);
            let allow = |entry: &Entry| {
                // No write of an earlier leader than the one that granted it replaces this entry,
                // unless the store was put back from a copy.
                (entry.epoch >= token.epoch || token.epoch <= self.view.store.replaced_to())
                    && self.observer.set_lists.allow(entry.exposure.sets, &stream.set, timeless)
            };
            !entry.is_some_and(allow)
        });
        missing.map(|(token, stream)| format!("{stream} under {token}"))
    }
}
