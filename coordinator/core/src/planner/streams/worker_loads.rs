//! The workers as they fill up, set by set.
//!
//! Invariant: work over all workers is done once and not once per set, so that many small sets cost
//! as little as one large set.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{StreamInput, StreamSpec, WorkerIndex};

/// Marks a worker that the present set does not touch.
const UNTOUCHED: u32 = u32::MAX;

/// The owner of a stream that is not dedicated, before its set is planned.
pub(super) enum PresentOwner {
    /// On a worker that may keep it.
    Kept(WorkerIndex),
    /// On a worker that is reserved now.
    Evicted,
    /// On no worker.
    Fresh,
}

/// The workers' loads.
#[derive(Clone, Debug)]
pub(super) struct WorkerLoads {
    per_worker_max: u32,
    reserved: Vec<bool>,
    /// Per worker: it gets what no other has room for.
    avoided: Vec<bool>,
    /// How many workers are not reserved.
    open: usize,
    /// Load and number of streams per worker, of the sets that are settled.
    total: Vec<u64>,
    count: Vec<u32>,
    /// Workers that the settled sets have filled up, and the streams on all of them.
    full: usize,
    placed: usize,
    /// Open workers, those that are avoided last, by load of the settled sets. Entries with an
    /// outdated load are skipped.
    idle: BinaryHeap<Reverse<(bool, u64, WorkerIndex)>>,
    /// Load and number of streams per worker, of the present set.
    load: Vec<u64>,
    owned: Vec<u32>,
    /// The workers that the present set touches, and the position of each in that list.
    touched: Vec<WorkerIndex>,
    slot: Vec<u32>,
}

impl WorkerLoads {
    /// Empty workers.
    pub(super) fn new(input: &StreamInput<'_>, reserved: Vec<bool>) -> Self {
        let workers = reserved.len();
        let mut avoided = vec![false; workers];
        input.avoided.iter().for_each(|worker| avoided[*worker as usize] = true);
        let open: Vec<_> = (0..).zip(&reserved).filter(|(_, reserved)| !**reserved).collect();
        let idle = open.iter().map(|(worker, _)| (avoided[*worker as usize], 0, *worker));
        Self {
            per_worker_max: u32::try_from(input.per_worker_max).unwrap_or(u32::MAX),
            open: open.len(),
            idle: idle.map(Reverse).collect(),
            avoided,
            reserved,
            total: vec![0; workers],
            count: vec![0; workers],
            full: 0,
            placed: 0,
            load: vec![0; workers],
            owned: vec![0; workers],
            touched: Vec::new(),
            slot: vec![UNTOUCHED; workers],
        }
    }

    /// Whether the worker exists and takes streams that are not dedicated.
    pub(super) fn is_open(&self, worker: WorkerIndex) -> bool {
        self.reserved.get(worker as usize).is_some_and(|reserved| !reserved)
    }

    /// Whether the worker gets only what no other has room for.
    pub(super) fn is_avoided(&self, worker: WorkerIndex) -> bool {
        self.avoided[worker as usize]
    }

    /// The present owner of a stream.
    pub(super) fn present_owner(&self, stream: &StreamSpec) -> PresentOwner {
        match stream.present {
            Some(worker) if self.is_open(worker) => PresentOwner::Kept(worker),
            Some(worker) if (worker as usize) < self.reserved.len() => PresentOwner::Evicted,
            _ => PresentOwner::Fresh,
        }
    }

    /// The most streams of the present set that the worker may own.
    pub(super) fn cap(&self, worker: WorkerIndex) -> u32 {
        self.per_worker_max - self.count[worker as usize]
    }

    /// Whether the worker may own one more.
    pub(super) fn has_room(&self, worker: WorkerIndex) -> bool {
        self.owned[worker as usize] < self.cap(worker)
    }

    /// How many streams beside the settled ones the open workers may own.
    pub(super) fn free(&self) -> usize {
        (self.open.saturating_mul(self.per_worker_max as usize)).saturating_sub(self.placed)
    }

    /// How many workers the settled sets have filled up.
    pub(super) fn full(&self) -> usize {
        self.full
    }

    /// The worker's load in the present set.
    pub(super) fn load(&self, worker: WorkerIndex) -> u64 {
        self.load[worker as usize]
    }

    /// The worker's load in the sets that are settled.
    pub(super) fn total(&self, worker: WorkerIndex) -> u64 {
        self.total[worker as usize]
    }

    /// How many streams of the present set the worker owns.
    pub(super) fn owned(&self, worker: WorkerIndex) -> u32 {
        self.owned[worker as usize]
    }

    /// The workers that the present set touches.
    pub(super) fn touched(&self) -> &[WorkerIndex] {
        &self.touched
    }

    /// The worker's place among [`WorkerLoads::touched`], which it must be among.
    pub(super) fn slot(&self, worker: WorkerIndex) -> usize {
        self.slot[worker as usize] as usize
    }

    /// Counts the worker among those that the present set touches.
    pub(super) fn touch(&mut self, worker: WorkerIndex) {
        let slot = &mut self.slot[worker as usize];
        if *slot == UNTOUCHED {
            *slot = u32::try_from(self.touched.len()).expect("workers are counted in u32");
            self.touched.push(worker);
        }
    }

    /// Gives the worker a stream of the present set.
    pub(super) fn add(&mut self, worker: WorkerIndex, weight: u32) {
        self.touch(worker);
        self.load[worker as usize] += u64::from(weight);
        self.owned[worker as usize] += 1;
    }

    /// Takes a stream of the present set from the worker.
    pub(super) fn take(&mut self, worker: WorkerIndex, weight: u32) {
        self.load[worker as usize] -= u64::from(weight);
        self.owned[worker as usize] -= 1;
    }

    /// Of the open workers with room that the present set does not touch, the one with the least
    /// load in the settled sets; one that is avoided only if there is no other.
    pub(super) fn least_untouched(&mut self) -> Option<WorkerIndex> {
        if self.touched.len() == self.open {
            return None;
        }
        while let Some(&Reverse((_, total, worker))) = self.idle.peek() {
            let at = worker as usize;
            let stale = self.total[at] != total || self.slot[at] != UNTOUCHED;
            if !stale && self.cap(worker) > 0 {
                return Some(worker);
            }
            self.idle.pop();
        }
        None
    }

    /// Ends the present set: its streams count as those of a settled set from here on.
    pub(super) fn settle(&mut self) {
        for worker in self.touched.drain(..) {
            let at = worker as usize;
            self.total[at] += std::mem::take(&mut self.load[at]);
            self.placed += self.owned[at] as usize;
            let had_room = self.count[at] < self.per_worker_max;
            self.count[at] += std::mem::take(&mut self.owned[at]);
            self.slot[at] = UNTOUCHED;
            if self.count[at] < self.per_worker_max {
                self.idle.push(Reverse((self.avoided[at], self.total[at], worker)));
            } else if had_room {
                self.full += 1;
            }
        }
    }
}
