//! Which clusters are planned next.
//!
//! A cluster is marked when its pools or streams may need a plan. Its pools are planned at once.
//! Its streams, once their plan is due, wait for their turn, because one plan of streams is made at
//! a time:
//!
//! ```text
//!         mark             next_marked            its streams are due        next_waiting
//!   (all) ────▶ marked ─────────────────▶ pools ─────────────────▶ waiting ─────────────▶ current
//! ```
//!
//! A cluster whose plan leaves streams out, because a worker that has not reported may hold them,
//! is planned again when an unreported lease has changed.
//!
//! Invariant: at most one plan of streams is current, and it is dropped only with the term.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use leasehold_types::{ClusterName, SetName};

use super::round_robin::RoundRobin;
use super::stream_plan::StreamPlan;
use crate::desired::StreamSet;

/// The clusters that wait for a plan, and the plan in the making.
#[derive(Clone, Debug, Default)]
pub(super) struct PlanQueue {
    /// Clusters whose pools or streams may need a plan.
    marked: RoundRobin<ClusterName>,
    /// Clusters whose streams wait for a plan, in order.
    waiting: VecDeque<ClusterName>,
    current: Option<Box<StreamPlan>>,
    /// Clusters with streams that a worker that has not reported may hold.
    awaiting_reports: BTreeSet<ClusterName>,
}

impl PlanQueue {
    /// The cluster's pools or streams may need a plan.
    pub(super) fn mark(&mut self, name: ClusterName) {
        self.marked.insert(name);
    }

    /// Takes the cluster that is handled next.
    pub(super) fn next_marked(&mut self) -> Option<ClusterName> {
        self.marked.next()
    }

    /// The cluster's streams are due for a plan. Their schedule says whether they wait already.
    pub(super) fn enqueue(&mut self, name: ClusterName) {
        self.waiting.push_back(name);
    }

    /// Takes the cluster whose streams are planned next.
    pub(super) fn next_waiting(&mut self) -> Option<ClusterName> {
        self.waiting.pop_front()
    }

    /// See [`leasehold_types::mutation::Mutation::PlanStale`].
    pub(super) fn stop_waiting(&mut self, name: &ClusterName) {
        self.waiting.retain(|waiting| waiting != name);
    }

    /// Takes the plan in the making, to continue it.
    pub(super) fn take_current(&mut self) -> Option<Box<StreamPlan>> {
        self.current.take()
    }

    /// Puts the plan in the making back.
    pub(super) fn put_current(&mut self, plan: Box<StreamPlan>) {
        self.current = Some(plan);
    }

    /// The cluster's plan leaves streams out that a worker that has not reported may hold.
    pub(super) fn await_reports(&mut self, name: ClusterName) {
        self.awaiting_reports.insert(name);
    }

    /// Takes the clusters whose plans have left streams out.
    pub(super) fn take_awaiting_reports(&mut self) -> BTreeSet<ClusterName> {
        std::mem::take(&mut self.awaiting_reports)
    }

    /// The sets that the plan in the making refers to, when it is not continued any more.
    pub(super) fn into_sets(self) -> impl Iterator<Item = (SetName, Arc<StreamSet>)> {
        self.current.into_iter().flat_map(|plan| plan.into_sets())
    }

    /// Whether nothing is to be planned now.
    pub(super) fn is_empty(&self) -> bool {
        self.marked.is_empty() && self.waiting.is_empty() && self.current.is_none()
    }
}
