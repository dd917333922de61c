//! Pool sizes: equal shares of a cluster's budget, the newest generation first.
//!
//! Invariant: the shares' sum is the lesser of the budget and what all workers can take, and no
//! share is above the most per worker.
//!
//! Within a generation shares differ by at most one. The odd slots go to the workers that have
//! more, then by name, never by the order of the input. So a plan is a fixed point: planned again
//! with its own result as the present sizes, it gives the same shares.

mod kept;

use std::cmp::Reverse;

use leasehold_types::WorkerName;

pub use self::kept::KeptShares;

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
    /// The pool size that it has now: among equals, the worker that has more keeps more.
    pub present: u32,
}

/// The share of each worker, in the order of `input.workers`.
#[must_use]
pub fn plan(input: &PoolInput<'_>) -> Vec<u32> {
    let workers = input.workers;
    let mut order: Vec<usize> = (0..workers.len()).collect();
    order.sort_unstable_by_key(|&at| {
        let worker = &workers[at];
        (Reverse(worker.generation), Reverse(worker.present), &worker.name)
    });
    let mut shares = vec![0; workers.len()];
    let mut left = u64::from(input.budget);
    for peers in order.chunk_by(|&a, &b| workers[a].generation == workers[b].generation) {
        let count = peers.len() as u64;
        let slots = left.min(count * u64::from(input.per_worker_max));
        left -= slots;
        for (place, &at) in (0..).zip(peers) {
            let share = slots / count + u64::from(place < slots % count);
            shares[at] = u32::try_from(share).expect("a share is at most the u32 per worker");
        }
    }
    shares
}
