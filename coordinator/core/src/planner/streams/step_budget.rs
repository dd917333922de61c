//! How far one step of a plan goes.

use std::ops::Range;

use super::worker_loads::WorkerLoads;
use super::{Placement, SetInput};

/// The streams and workers that a step may still read. Invariant: a step continues while anything
/// is left, and work that cannot be divided counts in full.
#[derive(Debug)]
pub(super) struct StepBudget {
    left: usize,
    spent: usize,
}

impl StepBudget {
    /// A budget of this many streams and workers, at least one.
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

    /// The next indices below `all`, starting at `at`, which is moved behind them.
    pub(super) fn next_range(&mut self, at: &mut usize, all: usize) -> Range<usize> {
        let range = *at..at.saturating_add(self.left).min(all);
        self.spend(range.len());
        *at = range.end;
        range
    }
}

/// The present set, and where its streams go.
pub(super) struct SetContext<'a> {
    pub(super) set: &'a SetInput<'a>,
    pub(super) loads: &'a mut WorkerLoads,
    pub(super) placements: &'a mut [Placement],
    pub(super) budget: &'a mut StepBudget,
}
