//! What pods have is in the store of exposures, where the next leader will look for it (S8).
//!
//! Invariant: an entry may say too much, never too little.

use std::collections::BTreeMap;

use leasehold_coordinator_core::desired::{Desired, Mode};
use leasehold_coordinator_core::exposure::{SetList, Sets, SetsVersion};
use leasehold_types::{ClusterName, SetName, StreamKey};

use super::world::World;

/// The lists of sets that manifests have ever given rise to.
#[derive(Debug, Default)]
pub(super) struct KnownLists {
    lists: BTreeMap<SetsVersion, SetList>,
    /// The version of the manifests that they were taken from last.
    version: u64,
}

impl KnownLists {
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
                self.lists.insert(list.version(), list);
            }
        }
    }

    fn allow(&self, sets: Sets, set: &SetName) -> bool {
        match sets {
            Sets::None => false,
            Sets::Any => true,
            // A list of an edit that was made and undone between two looks is not known here.
            Sets::Listed { version, .. } => {
                self.lists.get(&version).is_none_or(|list| list.get(set).is_some())
            }
        }
    }
}

impl World {
    /// S8: whatever one of these pods has, an entry in the store tells a new leader of.
    pub(super) fn check_entries(&mut self, touched: &[usize]) {
        if self.observer.lists.version != self.manifests.version {
            self.observer.lists.version = self.manifests.version;
            let desired = self.manifests.desired();
            self.observer.lists.note(&desired);
        }
        let changed = std::mem::take(&mut self.store.changed);
        for pod in 0..self.pods.len() {
            let node = &self.pods[pod];
            // Of a pod whose name another has taken, the entry speaks of both.
            let counts = !node.dead && !node.twin && !node.replaced;
            if !counts || !(touched.contains(&pod) || changed.contains(&node.key)) {
                continue;
            }
            let streams: Vec<StreamKey> = self.streams_at(pod);
            let used = streams.into_iter().find(|stream| {
                self.token_in_use(pod, stream).is_some() && !self.is_in_entry(pod, stream)
            });
            if let Some(stream) = used {
                let key = self.pods[pod].key.clone();
                let entry = self.store.register.get(&key).cloned();
                self.fail("S8", || format!("p{pod} has {stream}; what is written down: {entry:?}"));
            }
        }
    }

    fn is_in_entry(&self, pod: usize, stream: &StreamKey) -> bool {
        match self.store.register.get(&self.pods[pod].key) {
            None => false,
            Some(None) => true,
            Some(Some(entry)) => self.observer.lists.allow(entry.exposure.sets, &stream.set),
        }
    }
}
