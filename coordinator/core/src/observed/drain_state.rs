//! A worker's drain: what was ordered, what its agent has reported, and since when.

use leasehold_types::Moment;
use leasehold_types::message::{DrainOrder, DrainPhase, WorkerFailure};

/// Why a worker takes nothing new, if it takes nothing.
#[derive(Clone, Debug)]
pub(crate) struct DrainState {
    phase: DrainPhase,
    /// Why it takes nothing, if it does not drain but fails its check.
    failure: Option<WorkerFailure>,
    /// What was ordered; a taken-back order until the agent reports that it works.
    order: Option<DrainOrder>,
    /// Since when this leader has seen it drain, or has been to drain it.
    since: Option<Moment>,
}

impl Default for DrainState {
    fn default() -> Self {
        Self { phase: DrainPhase::Working, failure: None, order: None, since: None }
    }
}

impl DrainState {
    /// The phase, as last reported.
    pub(crate) fn phase(&self) -> DrainPhase {
        self.phase
    }

    /// Why the worker takes nothing, if it does not drain but fails its check.
    pub(crate) fn failure(&self) -> Option<&WorkerFailure> {
        self.failure.as_ref()
    }

    /// The order that its agent is to be sent or has been sent.
    pub(crate) fn order(&self) -> Option<DrainOrder> {
        self.order
    }

    /// Since when this leader has seen it drain, or has been to drain it.
    pub(crate) fn since(&self) -> Option<Moment> {
        self.since
    }

    /// Whether a drain is ordered.
    pub(crate) fn is_ordered(&self) -> bool {
        self.order == Some(DrainOrder::Drain)
    }

    /// Whether the agent has reported that the worker takes nothing: it drains, or fails its check.
    pub(crate) fn takes_nothing(&self) -> bool {
        self.phase != DrainPhase::Working
    }

    /// Whether the agent has begun to drain. That the worker fails its check is no drain.
    pub(crate) fn has_begun(&self) -> bool {
        self.takes_nothing() && self.failure.is_none()
    }

    /// Whether the worker drains, or is to drain.
    pub(crate) fn drains(&self) -> bool {
        self.is_ordered() || self.has_begun()
    }

    /// The worker is to drain.
    pub(crate) fn set_ordered(&mut self) {
        self.order = Some(DrainOrder::Drain);
    }

    /// The order is taken back: at once if it was never sent and no drain was reported, and
    /// otherwise by an order of its own.
    pub(super) fn take_back(&mut self, is_unsent: bool) {
        let never_began = is_unsent && !self.takes_nothing();
        self.order = (!never_began).then_some(DrainOrder::Undrain);
    }

    /// Records since when the worker drains, if it does.
    pub(crate) fn record_start(&mut self, now: Moment) {
        self.since = self.drains().then(|| self.since.unwrap_or(now));
    }

    pub(super) fn set_failure(&mut self, failure: Option<WorkerFailure>) {
        self.failure = failure;
    }

    pub(super) fn report_adopted(&mut self, phase: DrainPhase) {
        self.phase = phase;
        if !self.takes_nothing() && self.order == Some(DrainOrder::Undrain) {
            self.order = None;
        }
    }

    /// A beat only ever leads further. Returns whether the worker takes nothing from now on.
    pub(super) fn record_beat(&mut self, phase: DrainPhase) -> bool {
        let took_something = !self.takes_nothing();
        self.phase = self.phase.max(phase);
        took_something && self.takes_nothing()
    }
}
