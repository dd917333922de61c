//! The leases of a node, and the routes to the nodes after it.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_types::limits::MESSAGE_BYTES_MAX;
use leasehold_types::message::StreamGrant;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::share::{Endpoint, Route};
use leasehold_types::{
    GrantNumber, Load, Moment, NodeName, PipelineName, Share, ShareKey, StreamKey, StreamName,
    WorkerKey, WorkerName,
};

use super::state::{NodeState, Pipelines};
use crate::core::Leader;
use crate::core::leader::planned_lease::PlannedLease;
use crate::ledger::{Claim, Ledger, Phase};

/// The observed state of a planned share.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShareState {
    /// Its worker has it, with its load, and its agent has acknowledged it.
    pub(super) served: bool,
    /// Its worker may not be granted anything, and does not have the share.
    pub(super) deserted: bool,
}

/// The most bytes of routes in one message: together with all that one worker may hold they are
/// within the limit.
const ROUTE_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 4;
/// The bytes of an endpoint without its texts.
const ENDPOINT_BYTES: usize = 24;

/// The bytes of routes that one message may still contain.
#[derive(Debug)]
pub(in crate::core::leader) struct RouteBudget(usize);

impl Default for RouteBudget {
    fn default() -> Self {
        Self(ROUTE_BYTES_MAX)
    }
}

impl RouteBudget {
    pub(in crate::core::leader) fn is_left(&self) -> bool {
        self.0 > 0
    }

    pub(in crate::core::leader) fn take(&mut self, share: &Share) {
        let endpoints = share.next.iter().flat_map(|route| &route.endpoints);
        let bytes = endpoints.map(|it| {
            let address = it.address.as_ref().map_or(0, |address| address.as_str().len());
            ENDPOINT_BYTES + it.worker.as_str().len() + address
        });
        self.0 = self.0.saturating_sub(bytes.sum());
    }
}

/// The route of a share in a snapshot.
#[derive(Debug)]
pub(in crate::core::leader) struct SnapshotShare {
    pub(in crate::core::leader) share: Option<Arc<Share>>,
    /// The route follows in another message.
    pub(in crate::core::leader) follows: bool,
}

impl Leader {
    /// Has the workers of a share's node checked: their grants may have waited for this share.
    pub(in crate::core::leader) fn recheck_node(&mut self, stream: &StreamKey) {
        let Some(key) = ShareKey::of(stream) else { return };
        let state = self.pipelines.all.get(&key.pipeline);
        let Some(node) = state.and_then(|state| state.nodes.get(&key.node)) else { return };
        let owner =
            |worker: &WorkerName| WorkerKey { cluster: node.class.clone(), worker: worker.clone() };
        self.outgoing.mark_all(node.shares.values().map(|share| owner(&share.on)));
    }

    /// Whether the agent that holds a lease has acknowledged it.
    pub(super) fn is_applied(&self, claim: &Claim) -> bool {
        let account = self.ledger.account(&claim.worker);
        let lost = self.observed(&claim.worker).is_none_or(|worker| worker.lost);
        !lost
            && is_in_use(claim)
            && account.is_some_and(|account| account.acknowledged >= claim.sent_in)
    }

    /// Whether a lease or its worker is on the way out; `planned` is the planned lease of its
    /// stream.
    pub(super) fn is_draining(&self, claim: &Claim, planned: Option<PlannedLease<'_>>) -> bool {
        let working = self.observed(&claim.worker).is_some_and(|worker| worker.is_working());
        let kept = planned.is_some_and(|planned| {
            planned.is_met_by(claim) || (planned.on.is_none() && planned.stays)
        });
        !working || !kept || claim.phase != Phase::Held
    }

    /// The observed state of each of a node's planned shares.
    pub(super) fn share_states(
        &self,
        pipeline: &PipelineName,
        node: &NodeName,
        state: &NodeState,
    ) -> Vec<ShareState> {
        let shares = state.shares.iter().map(|(index, share)| {
            let worker = share.on.clone();
            let key = WorkerKey { cluster: state.class.clone(), worker };
            let stream =
                ShareKey { pipeline: pipeline.clone(), node: node.clone(), index: *index }.stream();
            let claim = self.ledger.claim(&stream, &key);
            let served = claim.is_some_and(|claim| {
                let as_planned = claim.phase == Phase::Held && claim.load == Some(share.load);
                as_planned && self.is_applied(claim)
            });
            let owns = self.observed(&key).is_some_and(|worker| worker.owns_streams());
            ShareState { served, deserted: claim.is_none() && !owns }
        });
        shares.collect()
    }

    /// Sends the nodes before this one its new endpoints, if they have changed.
    pub(super) fn renew_endpoints(&mut self, pipeline: &PipelineName, node: &NodeName) {
        let Some(state) = self.pipelines.all.get(pipeline) else { return };
        let Some(node_state) = state.nodes.get(node) else { return };
        let endpoints = self.endpoints(pipeline, node);
        if node_state.endpoints.as_deref() == Some(&endpoints) {
            return;
        }
        let before = state.nodes.iter().filter(|(_, it)| it.next.contains(node));
        let before: Vec<_> = before.map(|(name, _)| name.clone()).collect();
        if let Some(state) = self.pipelines.node_mut(pipeline, node) {
            state.endpoints = Some(endpoints.into());
        }
        for name in before {
            self.reroute(pipeline, &name);
        }
    }

    /// Sends the route again to all workers with a share of a node.
    pub(super) fn reroute(&mut self, pipeline: &PipelineName, node: &NodeName) {
        let leases = leases_of(&self.ledger, pipeline, node).into_iter();
        let used = leases.filter(|(_, claim)| is_in_use(claim));
        let used: Vec<_> =
            used.map(|(stream, claim)| (stream.clone(), claim.worker.clone())).collect();
        for (stream, key) in used {
            if let Some(worker) = self.worker_mut(&key) {
                worker.reroutes.insert(stream);
                self.outgoing.mark(key);
            }
        }
    }

    /// The workers that serve a node, each once. A draining worker is listed as draining.
    fn endpoints(&self, pipeline: &PipelineName, node: &NodeName) -> Vec<Endpoint> {
        let mut endpoints = BTreeMap::<&WorkerKey, Endpoint>::new();
        for (stream, claim) in leases_of(&self.ledger, pipeline, node) {
            if !self.is_applied(claim) {
                continue;
            }
            let worker = &claim.worker;
            let draining = self.is_draining(claim, self.planned_lease(stream));
            let entry = endpoints.entry(worker).or_insert_with(|| Endpoint {
                worker: worker.worker.clone(),
                address: self.observed(worker).and_then(|worker| worker.address.clone()),
                load: Load::ZERO,
                draining,
            });
            // If a worker serves the node with another share, the share that it gives back does not
            // count.
            if entry.draining && !draining {
                (entry.load, entry.draining) = (Load::ZERO, false);
            }
            if entry.draining == draining {
                entry.load += claim.load.unwrap_or_default();
            }
        }
        endpoints.into_values().collect()
    }

    /// The shares of a worker whose routes have changed, as far as they fit into one message.
    /// Shares that are asked back are included: the worker works on them until it lets go.
    pub(in crate::core::leader) fn route_updates(
        &mut self,
        key: &WorkerKey,
        budget: &mut RouteBudget,
        now: Moment,
    ) -> Vec<StreamGrant> {
        let mut updates = Vec::new();
        while budget.is_left()
            && let Some(stream) = self.worker_mut(key).and_then(|it| it.reroutes.pop_first())
        {
            let ledger = &self.ledger;
            let claim = ledger.claim(&stream, key).filter(|claim| is_in_use(claim));
            let Some((claim, load)) = claim.and_then(|claim| Some((claim, claim.load?))) else {
                continue;
            };
            let (token, state) = (claim.token, claim.state(now));
            if let Some((state, share)) = state.zip(self.pipelines.share_for_grant(&stream, load)) {
                budget.take(&share);
                updates.push(StreamGrant { stream, token, state, share: Some(share) });
            }
        }
        updates
    }

    /// The route of a share in a snapshot. A route that does not fit follows in the next message;
    /// until then the holder keeps the routes that it has, or keeps its documents.
    pub(in crate::core::leader) fn share_for_snapshot(
        &self,
        stream: &StreamKey,
        claim: &Claim,
        budget: &mut RouteBudget,
    ) -> SnapshotShare {
        let share = claim.load.and_then(|load| self.pipelines.share_for_grant(stream, load));
        let Some(share) = share else { return SnapshotShare { share: None, follows: false } };
        if budget.is_left() {
            budget.take(&share);
            return SnapshotShare { share: Some(share), follows: false };
        }
        let known = self.is_applied(claim);
        let unserved = |route: &Route| Route { node: route.node.clone(), endpoints: Vec::new() };
        let closed = || Share { load: share.load, next: share.next.iter().map(unserved).collect() };
        SnapshotShare { share: (!known).then(|| Arc::new(closed())), follows: true }
    }

    /// The route of a share that is asked back, if the route has changed.
    pub(in crate::core::leader) fn changed_route(
        &mut self,
        stream: &StreamKey,
        key: &WorkerKey,
    ) -> Option<Arc<Share>> {
        self.worker_mut(key)?.reroutes.take(stream)?;
        let load = self.ledger.claim(stream, key)?.load?;
        self.pipelines.share_for_grant(stream, load)
    }

    /// A worker has changed in a way that the nodes before it must know.
    pub(in crate::core::leader) fn note_shares_of(&mut self, key: &WorkerKey) {
        let account = self.ledger.account(key);
        let streams = account.map(|account| account.streams.clone()).unwrap_or_default();
        for stream in &streams {
            self.pipelines.note_share(stream);
        }
    }

    /// A worker was granted a stream. A share is served once the worker's agent acknowledges the
    /// grant.
    pub(in crate::core::leader) fn note_granted(&mut self, stream: &StreamKey, key: &WorkerKey) {
        if !stream.set.is_shares() {
            return;
        }
        let claim = self.ledger.claim(stream, key);
        let sent_in = claim.map_or(GrantNumber(0), |claim| claim.sent_in);
        if let Some(worker) = self.worker_mut(key) {
            worker.unacknowledged.insert((sent_in, stream.clone()));
        }
        self.pipelines.note_share(stream);
    }

    /// A worker's agent has applied all grants up to this one.
    pub(in crate::core::leader) fn note_applied(&mut self, key: &WorkerKey, applied: GrantNumber) {
        let Some(worker) = self.worker_mut(key) else { return };
        let mut known = Vec::new();
        while worker.unacknowledged.first().is_some_and(|(sent_in, _)| *sent_in <= applied) {
            known.extend(worker.unacknowledged.pop_first());
        }
        for (_, stream) in known {
            self.pipelines.note_share(&stream);
        }
    }
}

impl Pipelines {
    /// Whether a share may be granted beside the others of its node. Its pipeline must be
    /// recovered, no worker may hold a share of it unheard of, and all shares of the node that may
    /// be in use, whatever the class of their workers, must be within the node's load together with
    /// this one.
    pub(in crate::core::leader) fn is_within_node(
        &self,
        ledger: &Ledger,
        stream: &StreamKey,
        load: Load,
        heard: Moment,
    ) -> bool {
        let node = ShareKey::of(stream).and_then(|key| {
            // The load of a share is known only after recovery.
            (!self.recovering.contains(&key.pipeline)).then_some(())?;
            ledger.unheard_of(&stream.set, heard).is_none().then_some(())?;
            let state = self.all.get(&key.pipeline)?.nodes.get(&key.node)?;
            let leases = leases_of(ledger, &key.pipeline, &key.node).into_iter();
            let counted = leases.filter(|(_, claim)| {
                claim.worker.cluster == state.class || !mutation::on(Mutation::NodeLoadPerClass)
            });
            let leased: Load = counted.filter_map(|(_, claim)| claim.load).sum();
            Some((leased, state.load))
        });
        node.is_some_and(|(leased, most)| leased + load <= most)
            || mutation::on(Mutation::CutBeforeRelease)
    }

    /// The load and routes of a share, for its grant. None while agents may still report shares of
    /// the pipeline: until then the holder keeps the routes that it has.
    pub(in crate::core::leader) fn share_for_grant(
        &self,
        stream: &StreamKey,
        load: Load,
    ) -> Option<Arc<Share>> {
        let key = ShareKey::of(stream)?;
        if self.recovering.contains(&key.pipeline) {
            return None;
        }
        let state = self.all.get(&key.pipeline)?;
        let node = state.nodes.get(&key.node)?;
        let route = |next: &NodeName| {
            let endpoints = state.nodes.get(next).and_then(|node| node.endpoints.as_deref());
            Route { node: next.clone(), endpoints: endpoints.unwrap_or_default().to_vec() }
        };
        Some(Arc::new(Share { load, next: node.next.iter().map(route).collect() }))
    }

    /// A share's leases have changed.
    pub(in crate::core::leader) fn note_share(&mut self, stream: &StreamKey) {
        if let Some(key) = ShareKey::of(stream)
            && self.all.contains_key(&key.pipeline)
        {
            self.note(&key.pipeline, &key.node);
        }
    }
}

/// All leases on a node's shares, whatever the classes of their workers, in the order of their
/// streams' names.
pub(super) fn leases_of<'a>(
    ledger: &'a Ledger,
    pipeline: &PipelineName,
    node: &NodeName,
) -> Vec<(&'a StreamKey, &'a Claim)> {
    let prefix = StreamName::new(&format!("{}/{node}/", pipeline.parts().1))
        .expect("two labels are printable");
    ledger.claims_on(pipeline.shares(), prefix).collect()
}

/// Whether its worker may continue to use it.
fn is_in_use(claim: &Claim) -> bool {
    matches!(claim.phase, Phase::Held | Phase::Revoking { .. })
}
