//! Broken pipelines: the classes that are kept for them, and what they still hold.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_types::{ClusterName, Load, PipelineName, WorkerKey};

/// All Broken pipelines of a term.
#[derive(Clone, Debug, Default)]
pub(super) struct BrokenPipelines {
    /// The classes of each: other pipelines are placed there after it.
    classes: BTreeMap<PipelineName, BTreeSet<ClusterName>>,
    /// How many of them each class has to serve.
    reserved: BTreeMap<ClusterName, usize>,
    /// The loads of the shares that each has kept.
    kept: BTreeMap<PipelineName, Vec<(WorkerKey, Load)>>,
    /// The sums of these loads by worker.
    outstanding: BTreeMap<WorkerKey, Load>,
}

impl BrokenPipelines {
    /// Their names, in order.
    pub(super) fn names(&self) -> impl Iterator<Item = &PipelineName> {
        self.classes.keys()
    }

    /// A pipeline is Broken, and has these classes. Returns whether a class is free that was
    /// reserved before.
    pub(super) fn insert(&mut self, name: &PipelineName, classes: BTreeSet<ClusterName>) -> bool {
        for class in &classes {
            *self.reserved.entry(class.clone()).or_default() += 1;
        }
        let before = self.classes.insert(name.clone(), classes);
        self.unreserve(before.unwrap_or_default())
    }

    /// A pipeline is not Broken, or is gone. Returns whether a class is free that was reserved
    /// before.
    pub(super) fn remove(&mut self, name: &PipelineName) -> bool {
        let before = self.classes.remove(name);
        self.unreserve(before.unwrap_or_default())
    }

    /// Whether a class has to serve any of them first.
    pub(super) fn reserves(&self, class: &ClusterName) -> bool {
        self.reserved.contains_key(class)
    }

    fn unreserve(&mut self, classes: BTreeSet<ClusterName>) -> bool {
        let mut any = false;
        for class in classes {
            let Some(count) = self.reserved.get_mut(&class) else { continue };
            *count -= 1;
            if *count == 0 {
                self.reserved.remove(&class);
                any = true;
            }
        }
        any
    }

    /// A pipeline breaks: these loads of its shares are outstanding until it is placed again.
    pub(super) fn keep(&mut self, name: &PipelineName, loads: Vec<(WorkerKey, Load)>) {
        self.release(name);
        for (worker, load) in &loads {
            *self.outstanding.entry(worker.clone()).or_default() += *load;
        }
        self.kept.insert(name.clone(), loads);
    }

    /// Nothing of a pipeline is outstanding any longer.
    pub(super) fn release(&mut self, name: &PipelineName) {
        for (worker, load) in self.kept.remove(name).unwrap_or_default() {
            let Some(sum) = self.outstanding.get_mut(&worker) else { continue };
            *sum -= load;
            if *sum == Load::ZERO {
                self.outstanding.remove(&worker);
            }
        }
    }

    /// What a pipeline has kept.
    pub(super) fn kept_by(&self, name: &PipelineName) -> &[(WorkerKey, Load)] {
        self.kept.get(name).map_or(&[], Vec::as_slice)
    }

    /// What all have kept.
    pub(super) fn outstanding(&self) -> impl Iterator<Item = (&WorkerKey, Load)> {
        self.outstanding.iter().map(|(worker, load)| (worker, *load))
    }
}
