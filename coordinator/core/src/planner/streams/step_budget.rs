//! How far one step of a plan goes.

use std::ops::Range;

use super::worker_loads::WorkerLoads;
use super::{Placement, SetInput};

/// What a step may still look at. Invariant: a step goes on as long as anything is left, and a
/// piece of work that cannot be divided counts in full.
#[derive(Debug)]
pub(super) struct StepBudget {
    left: usize,
    spent: usize,
}

impl StepBudget {
    /// So many streams and workers, at least one.
    pub(super) fn new(most: usize) -> Self {
        Self { left: most.max(1), spent: 0 }
    }

    pub(super) fn is_left(&self) -> bool {
        self.left > 0
    }

    pub(super) fn spend(&mut self, units: usize) {
        self.left = self.left.saturating_sub(units);
        self.spent += units;
    }

    pub(super) fn spent(&self) -> usize {
        self.spent
    }

    /// The next ones of `all`, from `at` on, which moves behind them.
    pub(super) fn next_range(&mut self, at: &mut usize, all: usize) -> Range<usize> {
        let range = *at..at.saturating_add(self.left).min(all);
        self.spend(range.len());
        *at = range.end;
        range
    }
}

/// The set in hand, and where its streams go.
pub(super) struct SetContext<'a> {
    pub(super) set: &'a SetInput<'a>,
    pub(super) loads: &'a mut WorkerLoads,
    pub(super) placements: &'a mut [Placement],
    pub(super) budget: &'a mut StepBudget,
}
