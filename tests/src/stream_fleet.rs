//! Workers and the streams of one set, as the planner gets them: what benchmarks of the planner
//! have in common.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use leasehold_coordinator_core::desired::Policy;
use leasehold_coordinator_core::planner::streams::{
    Placement, SetInput, StreamInput, StreamSpec, WorkerIndex, plan,
};

/// Workers, by name, and streams that each have at most one worker.
#[derive(Clone, Debug)]
pub struct StreamFleet {
    workers: BTreeSet<String>,
    streams: Vec<StreamSpec>,
}

impl StreamFleet {
    /// Workers with these names, and a stream of each weight, which has no worker yet.
    #[must_use]
    pub fn new(
        workers: impl IntoIterator<Item = String>,
        weights: impl IntoIterator<Item = u32>,
    ) -> Self {
        let stream = |weight| StreamSpec { weight, dedicated: false, present: None, frozen: false };
        Self {
            workers: workers.into_iter().collect(),
            streams: weights.into_iter().map(stream).collect(),
        }
    }

    /// The names of the workers. The index of a worker is its place among them.
    #[must_use]
    pub fn workers(&self) -> &BTreeSet<String> {
        &self.workers
    }

    /// The streams, and where they are.
    #[must_use]
    pub fn streams(&self) -> &[StreamSpec] {
        &self.streams
    }

    /// A plan by the policy `Sticky`, with no limit on moves: how long one call of the planner
    /// took, and the placement of each stream.
    #[must_use]
    pub fn plan(&self) -> (Duration, Vec<Placement>) {
        let workers: Vec<&str> = self.workers.iter().map(String::as_str).collect();
        let set =
            SetInput { policy: Policy::Sticky, streams: &self.streams, moves_max: usize::MAX };
        let sets = [set];
        let per_worker_max = usize::MAX;
        let input = StreamInput { workers: &workers, avoided: &[], sets: &sets, per_worker_max };
        let start = Instant::now();
        let mut placements = plan(&input);
        (start.elapsed(), placements.remove(0))
    }

    /// Puts each stream where a plan places it.
    pub fn settle(&mut self, placements: &[Placement]) {
        for (stream, place) in self.streams.iter_mut().zip(placements) {
            stream.present = match place {
                Placement::On(worker) => Some(*worker),
                Placement::Unplaced(_) => None,
            };
        }
    }

    /// Changes the workers; `change` returns whether it did. The streams' owners keep their names,
    /// so their indexes change.
    ///
    /// # Panics
    /// If nothing changes.
    pub fn change_workers(&mut self, change: impl FnOnce(&mut BTreeSet<String>) -> bool) {
        let before = self.workers.clone();
        assert!(change(&mut self.workers), "the change is one");
        let after: Vec<&String> = self.workers.iter().collect();
        let number = |name: &String| after.binary_search(&name).ok();
        let numbers: Vec<Option<WorkerIndex>> =
            before.iter().map(|name| number(name).map(|at| at as WorkerIndex)).collect();
        for stream in &mut self.streams {
            stream.present = stream.present.and_then(|worker| numbers[worker as usize]);
        }
    }

    /// How many streams each worker has.
    #[must_use]
    pub fn owned(&self) -> Vec<usize> {
        let mut owned = vec![0; self.workers.len()];
        for worker in self.streams.iter().filter_map(|stream| stream.present) {
            owned[worker as usize] += 1;
        }
        owned
    }

    /// How many streams have a worker and are placed on another one.
    #[must_use]
    pub fn moved(&self, placements: &[Placement]) -> usize {
        let is_moved = |(stream, place): &(&StreamSpec, &Placement)| {
            stream.present.is_some_and(|worker| **place != Placement::On(worker))
        };
        self.streams.iter().zip(placements).filter(is_moved).count()
    }
}

/// The fewest streams that must go from one worker to another so that no worker has two more than
/// another one. `owned` has the number of each worker's streams, and `streams` is that of all,
/// those without a worker included.
///
/// # Panics
/// If there is no worker.
#[must_use]
pub fn moves_min(mut owned: Vec<usize>, streams: usize) -> usize {
    owned.sort_unstable_by(|a, b| b.cmp(a));
    // The workers that have most may keep one more, where not all can have the same number.
    let (share, odd) = (streams / owned.len(), streams % owned.len());
    let quotas = (0..).map(|place| share + usize::from(place < odd));
    owned.iter().zip(quotas).map(|(count, quota)| count.saturating_sub(quota)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fleet of three settled workers with two streams each.
    fn settled() -> StreamFleet {
        let names = ["a", "c", "d"].map(str::to_owned);
        let mut fleet = StreamFleet::new(names, [1; 6]);
        fleet.settle(&fleet.plan().1);
        assert_eq!(fleet.owned(), [2, 2, 2]);
        fleet
    }

    #[test]
    fn streams_keep_their_worker_where_another_one_leaves_or_joins() {
        let mut left = settled();
        left.change_workers(|names| names.remove("c"));
        assert_eq!(left.owned(), [2, 2], "those of the worker that left have none");
        assert_eq!(left.moved(&left.plan().1), 0);
        let mut joined = settled();
        joined.change_workers(|names| names.insert("b".to_owned()));
        assert_eq!(joined.owned(), [2, 0, 2, 2]);
        assert_eq!(joined.moved(&joined.plan().1), 1);
    }

    #[test]
    fn the_fewest_moves_leave_one_more_to_the_workers_that_have_most() {
        assert_eq!(moves_min(vec![2, 2], 6), 0, "streams without a worker do not move");
        assert_eq!(moves_min(vec![2, 0, 2, 2], 6), 1);
        assert_eq!(moves_min(vec![3, 3, 0], 6), 2);
        assert_eq!(moves_min(vec![0, 5], 5), 2);
    }
}
