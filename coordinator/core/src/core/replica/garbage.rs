//! Values that are no longer needed and take long to drop. They are dropped in slices.

use std::sync::Arc;

use super::{ReplicaState, StreamSlot};
use crate::core::turn_budget::STEP;
use crate::desired::{Stream, StreamSet};
use crate::ledger::Ledger;

/// Values that are still to be dropped.
#[derive(Clone, Debug, Default)]
pub(super) struct Garbage {
    /// Of terms that have ended.
    ledgers: Vec<Ledger>,
    /// Sets that were replaced. Others may still hold a reference to them, or to their streams.
    specs: Vec<Arc<StreamSet>>,
    streams: Vec<Stream>,
    planned: Vec<Vec<StreamSlot>>,
}

impl Garbage {
    pub(super) fn is_empty(&self) -> bool {
        let sets_done = self.specs.is_empty() && self.streams.is_empty();
        sets_done && self.ledgers.is_empty() && self.planned.is_empty()
    }

    pub(super) fn add_ledger(&mut self, ledger: Ledger) {
        self.ledgers.push(ledger);
    }

    pub(super) fn add_spec(&mut self, spec: Arc<StreamSet>) {
        self.specs.push(spec);
    }

    pub(super) fn add_planned(&mut self, planned: Vec<StreamSlot>) {
        self.planned.push(planned);
    }

    /// Drops at most `by` values.
    fn shrink(&mut self, by: usize) {
        if let Some(planned) = self.planned.last_mut() {
            planned.truncate(planned.len().saturating_sub(by));
            if planned.is_empty() {
                self.planned.pop();
            }
        } else if !self.streams.is_empty() {
            self.streams.truncate(self.streams.len().saturating_sub(by));
        } else if let Some(spec) = self.specs.pop() {
            let streams = Arc::into_inner(spec).and_then(|set| Arc::into_inner(set.streams));
            self.streams = streams.unwrap_or_default();
        } else if let Some(ledger) = self.ledgers.last_mut()
            && !ledger.shrink(by)
        {
            self.ledgers.pop();
        }
    }

    /// The most values that the next step drops, given `by`.
    fn next(&self, by: usize) -> usize {
        let planned = self.planned.last().map(Vec::len);
        let streams = (!self.streams.is_empty()).then_some(self.streams.len());
        let spec = (!self.specs.is_empty()).then_some(1);
        planned.or(streams).or(spec).unwrap_or(by).clamp(1, by)
    }
}

impl ReplicaState {
    /// Drops a part of the garbage, as far as the budget goes.
    pub(super) fn drop_garbage(&mut self) {
        while self.budget.is_left() && !self.garbage.is_empty() {
            let most = STEP.min(self.budget.left());
            self.budget.spend(self.garbage.next(most));
            self.garbage.shrink(most);
        }
    }
}
