//! Pool sizes: equal shares of a cluster's budget, the newest generation first.
//!
//! Invariant: the shares' sum is at most the budget, and no share is above the most per worker.

use leasehold_types::WorkerName;

/// What the planner knows of a cluster's pools.
#[derive(Clone, Debug)]
pub struct PoolInput<'a> {
    /// Slots to share out: the budget less what workers outside `workers` hold. 0 where they
    /// hold more than all of it.
    pub budget: u32,
    /// The most that one worker takes, at least 1.
    pub per_worker_max: u32,
    /// The workers that can take jobs, in any order.
    pub workers: &'a [PoolWorker],
}

/// A worker that can take jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolWorker {
    /// Its name, unique in the input.
    pub name: WorkerName,
    /// Its rollout generation; the highest is served first.
    pub generation: u64,
    /// The pool size that it has now: between equals, who has more keeps more.
    pub present: u32,
}

/// The share of each worker, in the order of `input.workers`.
#[must_use]
pub fn plan(input: &PoolInput<'_>) -> Vec<u32> {
    let _ = input;
    Vec::new()
}
