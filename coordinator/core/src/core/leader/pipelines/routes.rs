//! The leases of a node, and the routes to the nodes after it.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_types::limits::MESSAGE_BYTES_MAX;
use leasehold_types::message::StreamGrant;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::share::{Endpoint, NodeKey, Route, TableChange, TableGrant};
use leasehold_types::{
    Load, Moment, NodeName, PipelineName, Share, ShareKey, StreamKey, StreamName, WorkerKey,
};

use super::Pipelines;
use super::changes::Reroute;
use super::state::NodeState;
use crate::core::leader::facts::Facts;
use crate::core::leader::planned_lease::PlannedLease;
use crate::ledger::{Claim, Ledger, Phase};
use crate::observed::Worker;
use crate::sent_tables::NodeTable;

/// The observed state of a planned share.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShareState {
    /// Its worker has it, with its load, and its agent has acknowledged it.
    pub(super) served: bool,
    /// Its worker may not be granted anything, and does not have the share.
    pub(super) deserted: bool,
}

/// The most bytes of routes and tables in one message, but for the last one: together with all that
/// one worker may hold they are within the limit.
const ROUTE_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 4;
/// The bytes of an endpoint, a route or a table without its texts.
const FIELDS_BYTES: usize = 32;

/// The form in which one message has routes, and the bytes of them that it may still contain.
#[derive(Debug)]
pub(in crate::core::leader) struct RouteBudget {
    left: usize,
    /// Tables of nodes have the endpoints; otherwise each share has those of its routes.
    by_table: bool,
}

impl RouteBudget {
    pub(in crate::core::leader) fn new(by_table: bool) -> Self {
        Self { left: ROUTE_BYTES_MAX, by_table }
    }

    pub(in crate::core::leader) fn is_left(&self) -> bool {
        self.left > 0
    }

    pub(in crate::core::leader) fn take_table(&mut self, TableGrant { node, change }: &TableGrant) {
        self.take(node.pipeline.as_str());
        self.take(node.node.as_str());
        match change {
            TableChange::Whole { endpoints, .. } => self.take_endpoints(endpoints),
            TableChange::Part { changed, removed, .. } => {
                self.take_endpoints(changed);
                removed.iter().for_each(|worker| self.take(worker.as_str()));
            }
            TableChange::Ended => {}
        }
    }

    fn take_share(&mut self, share: &Share) {
        for route in &share.next {
            self.take(route.node.as_str());
            self.take_endpoints(route.endpoints.as_deref().unwrap_or_default());
        }
    }

    fn take_endpoints(&mut self, endpoints: &[Endpoint]) {
        for Endpoint { worker, address, .. } in endpoints {
            self.take(worker.as_str());
            self.take(address.as_ref().map_or("", |address| address.as_str()));
        }
    }

    /// Takes a text and what goes with it.
    fn take(&mut self, text: &str) {
        self.left = self.left.saturating_sub(FIELDS_BYTES + text.len());
    }
}

/// The route of a share in a snapshot.
#[derive(Debug)]
pub(in crate::core::leader) struct SnapshotShare {
    /// None if the agent has the share, and its route is not known yet or follows.
    pub(in crate::core::leader) share: Option<Arc<Share>>,
    /// The route follows in another message.
    pub(in crate::core::leader) follows: bool,
}

impl Pipelines {
    /// The workers of a share's node: their grants may have waited for this share.
    pub(in crate::core::leader) fn workers_beside(
        &self,
        stream: &StreamKey,
    ) -> impl Iterator<Item = WorkerKey> {
        let node =
            ShareKey::of(stream).and_then(|key| self.all.get(&key.pipeline)?.nodes.get(&key.node));
        node.into_iter().flat_map(|node| node.shares.values().map(|share| node.worker(share)))
    }

    /// Sends the nodes before this one its new table, if its endpoints have changed.
    pub(super) fn renew_table(
        &mut self,
        pipeline: &PipelineName,
        node: &NodeName,
        facts: Facts<'_>,
    ) {
        let Some(state) = self.all.get(pipeline) else { return };
        let Some(node_state) = state.nodes.get(node) else { return };
        let endpoints = self.endpoints(pipeline, node, facts);
        if node_state.table.as_ref().is_some_and(|table| *table.endpoints == *endpoints) {
            return;
        }
        let before = state.nodes.iter().filter(|(_, before)| before.next.contains(node));
        let before: Vec<_> = before.map(|(name, _)| name.clone()).collect();
        self.table_version.0 += 1;
        let table = NodeTable { version: self.table_version, endpoints: endpoints.into() };
        if let Some(state) = self.node_mut(pipeline, node) {
            state.table = Some(table);
        }
        let changed = NodeKey { pipeline: pipeline.clone(), node: node.clone() };
        for name in before {
            self.reroute_leases(pipeline, &name, Some(&changed), facts);
        }
    }

    /// Sends the route again to all workers with a share of a node.
    pub(super) fn reroute(&mut self, pipeline: &PipelineName, node: &NodeName, facts: Facts<'_>) {
        self.reroute_leases(pipeline, node, None, facts);
    }

    /// The same; where only the table of a next node has changed, `changed` names that node.
    fn reroute_leases(
        &mut self,
        pipeline: &PipelineName,
        node: &NodeName,
        changed: Option<&NodeKey>,
        facts: Facts<'_>,
    ) {
        let leases = leases_of(facts.ledger, pipeline, node).into_iter();
        let used = leases.filter(|(_, claim)| is_in_use(claim));
        self.changes.reroutes.extend(used.map(|(share, claim)| Reroute {
            share: share.clone(),
            worker: WorkerKey::clone(&claim.worker),
            changed_table: changed.cloned(),
        }));
    }

    /// The workers that serve a node, each once, by name. A draining worker is listed as draining.
    fn endpoints(
        &self,
        pipeline: &PipelineName,
        node: &NodeName,
        facts: Facts<'_>,
    ) -> Vec<Endpoint> {
        let mut endpoints = BTreeMap::<&WorkerKey, Endpoint>::new();
        for (stream, claim) in leases_of(facts.ledger, pipeline, node) {
            if !is_applied(claim, facts) {
                continue;
            }
            let worker: &WorkerKey = &claim.worker;
            let planned = ShareKey::of(stream).and_then(|share| self.planned_lease(&share));
            let draining = is_draining(claim, planned, facts);
            let entry = endpoints.entry(worker).or_insert_with(|| Endpoint {
                worker: worker.worker.clone(),
                address: facts.observed(worker).and_then(|worker| worker.address().cloned()),
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
        let mut endpoints: Vec<_> = endpoints.into_values().collect();
        // Leases on workers of a former class are among them.
        endpoints.sort_by(|one, other| one.worker.cmp(&other.worker));
        endpoints
    }

    /// A share with its route for a worker that may use it, as far as the message has room; none
    /// where the worker has no such lease any longer.
    pub(in crate::core::leader) fn route_update(
        &self,
        stream: StreamKey,
        key: &WorkerKey,
        budget: &mut RouteBudget,
        ledger: &Ledger,
        now: Moment,
    ) -> Option<StreamGrant> {
        let claim = ledger.claim(&stream, key).filter(|claim| is_in_use(claim))?;
        let share = self.share_for_grant(&stream, claim.load?, budget);
        let (state, share) = claim.state(now).zip(share)?;
        Some(StreamGrant { stream, token: claim.token, state, share: Some(share) })
    }

    /// The route of a share in a snapshot. A route that does not fit follows in the next message;
    /// until then the holder keeps the routes that it has, or keeps its documents.
    pub(in crate::core::leader) fn share_for_snapshot(
        &self,
        stream: &StreamKey,
        claim: &Claim,
        budget: &mut RouteBudget,
        facts: Facts<'_>,
    ) -> SnapshotShare {
        let fits = budget.is_left();
        let share = claim.load.and_then(|load| self.share_for_grant(stream, load, budget));
        let Some(share) = share else { return SnapshotShare { share: None, follows: false } };
        if fits {
            return SnapshotShare { share: Some(share), follows: false };
        }
        if is_applied(claim, facts) {
            return SnapshotShare { share: None, follows: true };
        }
        // The agent needs the load, and where its documents will go.
        let unserved = |route: &Route| Route {
            node: route.node.clone(),
            endpoints: (!budget.by_table).then(Arc::default),
        };
        let closed = Share { load: share.load, next: share.next.iter().map(unserved).collect() };
        SnapshotShare { share: Some(Arc::new(closed)), follows: !budget.by_table }
    }

    /// Whether a share may be granted beside the others of its node. Its pipeline must be
    /// recovered, no worker may hold a share of it that it has not reported, and all shares of the
    /// node that may be in use, whatever the class of their workers, must be within the node's load
    /// together with this one.
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
            ledger.unreported().of_set(&stream.set, heard).is_none().then_some(())?;
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
        budget: &mut RouteBudget,
    ) -> Option<Arc<Share>> {
        let key = ShareKey::of(stream)?;
        if self.recovering.contains(&key.pipeline) {
            return None;
        }
        let state = self.all.get(&key.pipeline)?;
        let node = state.nodes.get(&key.node)?;
        let endpoints = |next: &NodeName| {
            let table = state.nodes.get(next).and_then(|node| node.table.as_ref());
            table.map(|table| table.endpoints.clone()).unwrap_or_default()
        };
        let route = |next: &NodeName| Route {
            node: next.clone(),
            endpoints: (!budget.by_table).then(|| endpoints(next)),
        };
        let share = Share { load, next: node.next.iter().map(route).collect() };
        budget.take_share(&share);
        Some(Arc::new(share))
    }
}

/// Whether the agent that holds a lease has acknowledged it.
pub(super) fn is_applied(claim: &Claim, facts: Facts<'_>) -> bool {
    let account = facts.ledger.account(&claim.worker);
    let lost = facts.observed(&claim.worker).is_none_or(Worker::is_lost);
    !lost
        && is_in_use(claim)
        && account.is_some_and(|account| account.has_acknowledged(claim.sent_in))
}

/// Whether a lease or its worker is on the way out; `planned` is the planned lease of its stream.
pub(super) fn is_draining(
    claim: &Claim,
    planned: Option<PlannedLease<'_>>,
    facts: Facts<'_>,
) -> bool {
    let working = facts.observed(&claim.worker).is_some_and(|worker| worker.is_working());
    let kept = planned
        .is_some_and(|planned| planned.is_met_by(claim) || (planned.on.is_none() && planned.stays));
    !working || !kept || claim.phase != Phase::Held
}

/// The observed state of each of a node's planned shares.
pub(super) fn share_states(
    pipeline: &PipelineName,
    node: &NodeName,
    state: &NodeState,
    facts: Facts<'_>,
) -> Vec<ShareState> {
    let shares = state.shares.iter().map(|(index, share)| {
        let key = state.worker(share);
        let stream =
            ShareKey { pipeline: pipeline.clone(), node: node.clone(), index: *index }.stream();
        let claim = facts.ledger.claim(&stream, &key);
        let served = claim.is_some_and(|claim| {
            let as_planned = claim.phase == Phase::Held && claim.load == Some(share.load);
            as_planned && is_applied(claim, facts)
        });
        let owns = facts.observed(&key).is_some_and(|worker| worker.owns_streams());
        ShareState { served, deserted: claim.is_none() && !owns }
    });
    shares.collect()
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
    ledger.claim_table().shares_of(pipeline.shares(), prefix).collect()
}

/// Whether its worker may continue to use it.
fn is_in_use(claim: &Claim) -> bool {
    matches!(claim.phase, Phase::Held | Phase::Revoking { .. })
}
