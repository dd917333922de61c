//! The views of pipelines that people see.

use std::collections::BTreeMap;
use std::ops::Bound;

use leasehold_types::{Load, NodeName, PipelineName, ShareKey, WorkerKey};

use super::routes::{is_applied, is_draining, leases_of, share_states};
use super::state::{NodeState, PipelineState};
use crate::core::Core;
use crate::core::leader::Query;
use crate::core::leader::facts::Facts;
use crate::core::leader::planned_lease::PlannedLease;
use crate::desired::{Node, Pipeline};
use crate::ledger::Claim;
use crate::view::{BindingPhase, BindingView, PipelinePhase, PipelineView, ShareView};

impl Core {
    /// The pipelines by name, after one of them or all.
    pub fn pipelines<'a>(
        &'a self,
        after: Option<&PipelineName>,
    ) -> impl Iterator<Item = PipelineView> + 'a {
        let from = after.cloned().map_or(Bound::Unbounded, Bound::Excluded);
        let pipelines = self.desired().pipelines.range((from, Bound::Unbounded));
        pipelines.map(|(name, spec)| self.pipeline_view(name, spec))
    }

    /// How many pipelines manifests define.
    #[must_use]
    pub fn pipelines_len(&self) -> usize {
        self.desired().pipelines.len()
    }

    /// One pipeline; none where no manifest defines it.
    #[must_use]
    pub fn pipeline(&self, name: &PipelineName) -> Option<PipelineView> {
        let spec = self.desired().pipelines.get(name)?;
        Some(self.pipeline_view(name, spec))
    }

    fn pipeline_view(&self, name: &PipelineName, spec: &Pipeline) -> PipelineView {
        let view = self.query().and_then(|query| query.pipeline(name));
        view.unwrap_or_else(|| unled(name, spec))
    }

    /// Whether this leader knows which shares of a pipeline workers hold. Until then the last
    /// published state, of a predecessor, is the best one.
    #[must_use]
    pub fn is_recovered(&self, name: &PipelineName) -> bool {
        let state = self.query().and_then(|query| query.pipelines.all.get(name));
        state.is_some_and(|state| state.phase.is_some())
    }
}

impl Query<'_> {
    pub(super) fn pipeline(&self, name: &PipelineName) -> Option<PipelineView> {
        let state = self.pipelines.all.get(name)?;
        let nodes = state.nodes.iter();
        Some(PipelineView {
            name: name.clone(),
            load: state.load_in_force(),
            phase: state.phase.unwrap_or(PipelinePhase::Pending),
            reason: self.reason(name, state),
            waits: state.waits.clone(),
            bindings: nodes.map(|(node, state)| self.binding_view(name, node, state)).collect(),
        })
    }

    /// Why a pipeline is in its state.
    pub(super) fn reason(&self, name: &PipelineName, state: &PipelineState) -> String {
        let recovering = self.pipelines.recovering.contains(name);
        match state.phase {
            _ if recovering || (self.pipelines.is_held(name) && state.reason.is_empty()) => {
                "what of it workers have is not known yet to this leader".into()
            }
            Some(PipelinePhase::Plotted) if state.reason.is_empty() => {
                unserved(name, state, self.facts())
            }
            _ => state.reason.clone(),
        }
    }

    fn binding_view(&self, name: &PipelineName, node: &NodeName, state: &NodeState) -> BindingView {
        BindingView {
            node: node.clone(),
            class: state.class.clone(),
            next: state.next.iter().cloned().collect(),
            phase: state.phase.unwrap_or(BindingPhase::Unset),
            shares: self.share_views(name, node, state),
        }
    }

    /// The shares by index, each with the worker that has it, or its planned worker.
    fn share_views(
        &self,
        name: &PipelineName,
        node: &NodeName,
        state: &NodeState,
    ) -> Vec<ShareView> {
        let mut shares = BTreeMap::new();
        let counts = self
            .pipelines
            .all
            .get(name)
            .is_some_and(|pipeline| self.pipelines.counts(name, pipeline));
        for (index, share) in state.shares.iter().filter(|_| counts) {
            let key = WorkerKey { cluster: state.class.clone(), worker: share.on.clone() };
            let worker = self.observed(&key);
            let planned = ShareView {
                index: *index,
                worker: share.on.clone(),
                load: share.load,
                token: None,
                applied: false,
                address: worker.and_then(|worker| worker.address().cloned()),
                draining: worker.is_none_or(|worker| !worker.is_working()),
            };
            shares.insert(*index, planned);
        }
        for (stream, claim) in leases_of(self.ledger, name, node) {
            let Some(key) = ShareKey::of(stream) else { continue };
            let (index, planned) = (key.index, self.pipelines.planned_lease(&key));
            let view = self.lease_view(claim, planned, index);
            let known = shares.get(&index).is_some_and(|share| share.token > view.token);
            let met = planned.is_some_and(|planned| planned.is_met_by(claim));
            if met || !known {
                shares.insert(index, view);
            }
        }
        shares.into_values().collect()
    }

    fn lease_view(
        &self,
        claim: &Claim,
        planned: Option<PlannedLease<'_>>,
        index: u32,
    ) -> ShareView {
        let worker = self.observed(&claim.worker);
        ShareView {
            index,
            worker: claim.worker.worker.clone(),
            load: claim.load.unwrap_or(Load::ZERO),
            token: Some(claim.token),
            applied: is_applied(claim, self.facts()),
            address: worker.and_then(|worker| worker.address().cloned()),
            draining: is_draining(claim, planned, self.facts()),
        }
    }
}

/// The first share that its worker does not serve yet.
fn unserved(name: &PipelineName, state: &PipelineState, facts: Facts<'_>) -> String {
    for (node, state) in &state.nodes {
        let shares = state.shares.iter().zip(share_states(name, node, state, facts));
        let Some(((index, share), _)) = shares.into_iter().find(|(_, state)| !state.served) else {
            continue;
        };
        let worker = &share.on;
        let key = ShareKey { pipeline: name.clone(), node: node.clone(), index: *index };
        let stream = key.stream();
        let claims = facts.ledger.claims(&stream);
        let owner = state.worker(share);
        return match claims.iter().find(|claim| *claim.worker != owner) {
            Some(claim) => {
                let (holder, ends) = (&claim.worker, ends(claim));
                format!(
                    "{worker} is to have share {index} of node {node}, and {holder} may \
                     still have it{ends}"
                )
            }
            None => format!("{worker} does not serve its share {index} of node {node} yet"),
        };
    }
    String::new()
}

/// What ends a lease beside a release by its worker.
fn ends(claim: &Claim) -> &'static str {
    if claim.timeless { ": it never ends by time" } else { "" }
}

/// The view of a pipeline on a replica that does not lead.
fn unled(name: &PipelineName, pipeline: &Pipeline) -> PipelineView {
    let binding = |(node, Node { class, next }): (&_, &Node)| BindingView {
        node: Clone::clone(node),
        class: class.clone(),
        next: next.iter().cloned().collect(),
        phase: BindingPhase::Unset,
        shares: Vec::new(),
    };
    PipelineView {
        name: name.clone(),
        load: pipeline.load,
        phase: PipelinePhase::Pending,
        reason: "this replica does not lead".into(),
        waits: Vec::new(),
        bindings: pipeline.nodes.iter().map(binding).collect(),
    }
}
