//! A pod and the state of its worker, read at the same time.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_coordinator_core::view::{Presence, WorkerView};
use leasehold_kube_api::names::{
    DRAIN_FOR_EVICTION, DRAIN_FOR_NODE, DRAIN_FOR_RESTART, DRAIN_FOR_SCALE_IN,
};
use leasehold_platform_kube::pods::PodFacts;

/// The deletion cost that a scale-in gives a drained pod: below usual values.
pub(super) const DRAINED_POD_COST: i32 = -1_000;

/// Why the operator drains a pod; written to its annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DrainReason {
    /// A scale-in removes it.
    ScaleIn,
    /// Its node is cordoned, or goes soon.
    Node,
    /// Its eviction was asked for while it ran jobs. The webhook writes this mark.
    Eviction,
    /// A new pod replaces it.
    Restart,
}

/// A pod and its worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerPod {
    pub(crate) pod: Arc<PodFacts>,
    /// Why it is being drained, if it is.
    pub(super) drain_reason: Option<DrainReason>,
    /// Whether it may end although its jobs still run: its drain has passed the deadline, and its
    /// fleet says `afterDeadline: Release`.
    pub(super) is_released: bool,
    /// The core's view of its worker; none if the worker holds nothing and has not reported.
    pub(super) view: Option<WorkerView>,
}

impl DrainReason {
    /// The value of the annotation.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::ScaleIn => DRAIN_FOR_SCALE_IN,
            Self::Node => DRAIN_FOR_NODE,
            Self::Eviction => DRAIN_FOR_EVICTION,
            Self::Restart => DRAIN_FOR_RESTART,
        }
    }

    /// Reads the annotation. Any other text was written by a user and asks for a new pod.
    pub(super) fn parse(text: &str) -> Self {
        match text {
            DRAIN_FOR_SCALE_IN => Self::ScaleIn,
            DRAIN_FOR_NODE => Self::Node,
            DRAIN_FOR_EVICTION => Self::Eviction,
            _ => Self::Restart,
        }
    }

    /// The note for users.
    pub(super) fn why(self) -> &'static str {
        match self {
            Self::ScaleIn => "fewer workers are needed",
            Self::Node => "its node is cordoned or goes soon",
            Self::Eviction => "an eviction of its pod was asked for",
            Self::Restart => "its pod will be replaced",
        }
    }
}

impl WorkerPod {
    /// A pod, the mark on it or its end, which the annotation may not show yet, and its worker.
    pub(super) fn new(
        pod: Arc<PodFacts>,
        drain_marks: &BTreeMap<String, Option<DrainReason>>,
        view: Option<WorkerView>,
    ) -> Self {
        let written = pod.drain.as_deref().map(DrainReason::parse);
        let drain_reason = drain_marks.get(&pod.uid).copied().unwrap_or(written);
        Self { pod, drain_reason, is_released: false, view }
    }

    /// The jobs that it runs, as reported; if unknown, the most that it may run.
    pub(super) fn jobs(&self) -> u32 {
        let jobs = |view: &WorkerView| view.running.unwrap_or(view.committed.max(1));
        self.view.as_ref().map_or(0, jobs)
    }

    /// Whether it may be running a job now. Unused slots of a connected worker do not count.
    pub(super) fn is_busy(&self) -> bool {
        self.view.as_ref().is_some_and(|view| match (view.presence, view.running) {
            (Presence::Connected, Some(running)) => running > 0,
            (_, Some(running)) => running.max(view.committed) > 0,
            (_, None) => true,
        })
    }

    /// Whether it holds nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.view
            .as_ref()
            .is_none_or(|view| view.committed == 0 && view.running == Some(0) && view.streams == 0)
    }

    /// Whether its worker drains, or is to drain.
    pub(super) fn is_draining(&self) -> bool {
        self.view.as_ref().is_some_and(WorkerView::drains)
    }

    /// Whether it is marked, holds nothing, and gets nothing new; or need not be waited for.
    pub(super) fn is_drained(&self) -> bool {
        let is_empty = self.is_empty() && (self.view.is_none() || self.is_draining());
        self.drain_reason.is_some() && (is_empty || self.is_released)
    }

    /// Whether its drain has to be ordered: it is marked, or its pod terminates, which the worker
    /// may not know.
    pub(super) fn needs_drain_order(&self) -> bool {
        let connected = self.view.as_ref().is_some_and(|view| view.presence == Presence::Connected);
        let goes = if self.pod.is_active() {
            self.drain_reason.is_some()
        } else {
            self.pod.is_terminating() && !self.pod.over
        };
        goes && connected && !self.is_draining()
    }

    /// Whether the end of its drain has to be ordered, for the first time or because a drain was
    /// ordered again since.
    pub(super) fn needs_undrain_order(&self, was_ordered: bool) -> bool {
        let drain_ordered = self.view.as_ref().is_some_and(|view| view.drain_ordered);
        drain_ordered || (self.is_draining() && !was_ordered)
    }

    /// Whether a fleet has left a mark on the pod, besides that of a busy one.
    pub(super) fn has_marks(&self) -> bool {
        let has_cost = self.pod.deletion_cost == Some(DRAINED_POD_COST);
        self.drain_reason.is_some() || self.pod.streams.is_some() || has_cost
    }

    /// Whether a controller creates another pod when this one is deleted.
    pub(super) fn has_controller(&self) -> bool {
        self.pod.owner.is_some()
    }
}
