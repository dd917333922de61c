//! Sorts streams by weight, heaviest first, in steps.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::StreamSpec;
use super::step_budget::StepBudget;

/// The length of a run: runs are sorted at once, and then merged.
const RUN: usize = 4_096;

/// A queue that is being sorted. Among equal weights the first in the list comes first.
#[derive(Clone, Debug, Default)]
pub(super) struct Sorting {
    /// Weight and position in one number, which compares without a branch; in sorted runs.
    keys: Vec<u64>,
    /// The least remaining key of each run, and its position.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    merged: usize,
}

impl Sorting {
    /// Makes a further step; returns whether the queue is sorted.
    pub(super) fn step(
        &mut self,
        queue: &mut [u32],
        streams: &[StreamSpec],
        budget: &mut StepBudget,
    ) -> bool {
        let key = |at: &u32| {
            let weight = streams[*at as usize].weight;
            u64::from(u32::MAX - weight) << u32::BITS | u64::from(*at)
        };
        while self.keys.len() < queue.len() {
            if !budget.is_left() {
                return false;
            }
            let start = self.keys.len();
            let run = &queue[start..queue.len().min(start + RUN)];
            self.keys.extend(run.iter().map(key));
            self.keys[start..].sort_unstable();
            self.heads.push(Reverse((self.keys[start], start)));
            budget.spend(run.len());
        }
        for place in budget.next_range(&mut self.merged, queue.len()) {
            let mut head = self.heads.peek_mut().expect("each key is in one run");
            let Reverse((key, at)) = *head;
            queue[place] = key as u32;
            let next = at + 1;
            if next % RUN == 0 || next == self.keys.len() {
                PeekMut::pop(head);
            } else {
                *head = Reverse((self.keys[next], next));
            }
        }
        self.merged == queue.len()
    }
}
