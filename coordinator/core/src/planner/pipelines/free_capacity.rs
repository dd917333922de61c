//! The workers of a class and how much room each has.
//!
//! Invariant: the index lists each worker whose load is within its capacity, by its room.

use std::collections::BTreeSet;

use leasehold_types::Load;

use crate::desired::Spread;

/// A class with the room of each usable worker; workers are indices in the order of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeCapacity {
    capacity: Load,
    spread: Spread,
    used: Vec<Load>,
    /// Room and worker.
    index: BTreeSet<(Load, u32)>,
}

impl FreeCapacity {
    /// A class whose workers have these loads. A worker with more than the capacity (which was
    /// lowered) takes nothing, not even a load of 0.
    ///
    /// # Panics
    /// If the capacity is 0, which no valid class has.
    #[must_use]
    pub fn new(capacity: Load, spread: Spread, used: Vec<Load>) -> Self {
        assert!(capacity > Load::ZERO, "a class has a capacity");
        let free = (0..).zip(&used).filter(|(_, used)| **used <= capacity);
        let index = free.map(|(worker, used)| (capacity - *used, worker)).collect();
        Self { capacity, spread, used, index }
    }

    /// The load that one empty worker can take.
    #[must_use]
    pub fn capacity(&self) -> Load {
        self.capacity
    }

    /// The load that the worker can still take; 0 if it has more than its capacity.
    #[must_use]
    pub fn room(&self, worker: u32) -> Load {
        self.capacity.saturating_sub(self.used(worker))
    }

    /// The load that the worker has.
    #[must_use]
    pub fn used(&self, worker: u32) -> Load {
        self.used[worker as usize]
    }

    /// How many workers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.used.len()
    }

    /// Whether it has no workers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    /// Counts a load that the worker has. The sum may exceed its capacity where that was lowered;
    /// `place` never gives a worker more than its room.
    pub fn take(&mut self, worker: u32, load: Load) {
        self.set(worker, self.used(worker) + load);
    }

    /// Frees a load that was taken before.
    pub fn give(&mut self, worker: u32, load: Load) {
        self.set(worker, self.used(worker) - load);
    }

    /// Whether the worker can take the load.
    pub(super) fn takes(&self, worker: u32, load: Load) -> bool {
        self.used(worker) + load <= self.capacity
    }

    /// How loads above the capacity are cut.
    pub(super) fn spread(&self) -> Spread {
        self.spread
    }

    /// The worker with the least room that is enough; of equal ones the first.
    pub(super) fn best_fit(&self, load: Load) -> Option<u32> {
        self.with_room_for(load).next()
    }

    /// Workers with room for the load, by rising room, then by name.
    pub(super) fn with_room_for(&self, load: Load) -> impl Iterator<Item = u32> {
        self.index.range((load, 0)..).map(|(_, worker)| *worker)
    }

    /// Workers that have any room, by falling room, then by name.
    pub(super) fn largest(&self) -> impl Iterator<Item = (Load, u32)> {
        let below = |limit: (Load, u32)| self.index.range(..limit).next_back().map(|top| top.0);
        let top = self.index.last().map(|top| top.0);
        let levels = std::iter::successors(top, move |level| below((*level, 0)));
        let levels = levels.take_while(|level| *level > Load::ZERO);
        levels.flat_map(|level| self.index.range((level, 0)..=(level, u32::MAX)).copied())
    }

    /// Adds empty workers behind all others.
    pub(super) fn add_empty(&mut self, workers: usize) {
        for worker in (self.used.len()..).take(workers) {
            let worker = u32::try_from(worker).expect("workers are counted in u32");
            self.used.push(Load::ZERO);
            self.index.insert((self.capacity, worker));
        }
    }

    /// Removes the last `workers` workers, which are empty.
    pub(super) fn remove_empty(&mut self, workers: usize) {
        for _ in 0..workers {
            let used = self.used.pop();
            assert_eq!(used, Some(Load::ZERO), "only an empty worker is removed");
            let worker = u32::try_from(self.used.len()).expect("workers are counted in u32");
            self.index.remove(&(self.capacity, worker));
        }
    }

    fn set(&mut self, worker: u32, used: Load) {
        let before = self.used(worker);
        if before == used {
            return;
        }
        if before <= self.capacity {
            self.index.remove(&(self.capacity - before, worker));
        }
        if used <= self.capacity {
            self.index.insert((self.capacity - used, worker));
        }
        self.used[worker as usize] = used;
    }
}
