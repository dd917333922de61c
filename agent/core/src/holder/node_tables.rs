//! The tables of nodes that an agent has received.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold_types::share::{Endpoint, NodeKey, ShareKey, TableChange, TableGrant, TableVersion};
use leasehold_types::{Share, WorkerName};

/// How many tables there may be, beside twice as many as were kept when they were last counted.
const UNNEEDED_TABLES_MAX: usize = 16;

/// The workers that serve each of the nodes that shares lead to.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeTables {
    tables: BTreeMap<NodeKey, NodeTable>,
    /// How many were kept when they were last counted.
    kept: usize,
}

#[derive(Clone, Debug)]
struct NodeTable {
    /// None if no change of it may come: it was received on an earlier link, has ended there, or
    /// came with a share, as in protocol 1.
    version: Option<TableVersion>,
    endpoints: Arc<[Endpoint]>,
}

impl NodeTables {
    /// The workers that serve a node; none where no table was received.
    pub(super) fn endpoints(&self, node: &NodeKey) -> Arc<[Endpoint]> {
        self.tables.get(node).map(|table| table.endpoints.clone()).unwrap_or_default()
    }

    /// Whether each change of a table is one of its present version, and no node has two. A
    /// snapshot has no changes.
    pub(super) fn can_apply(&self, grants: &[TableGrant], snapshot: bool) -> bool {
        let mut nodes = BTreeSet::new();
        grants.iter().all(|TableGrant { node, change }| {
            let is_known = match change {
                TableChange::Part { from, .. } => {
                    let version = self.tables.get(node).and_then(|table| table.version);
                    !snapshot && version == Some(*from)
                }
                TableChange::Whole { .. } | TableChange::Ended => true,
            };
            is_known && nodes.insert(node)
        })
    }

    /// Applies a change; returns whether any endpoint has changed.
    pub(super) fn apply(&mut self, grant: &TableGrant) -> bool {
        match &grant.change {
            TableChange::Whole { version, endpoints } => {
                self.set(&grant.node, Some(*version), endpoints.clone())
            }
            TableChange::Part { version, changed, removed, .. } => {
                let endpoints = self.merged(&grant.node, changed, removed);
                self.set(&grant.node, Some(*version), endpoints)
            }
            // A share that the coordinator no longer counts may still be in use.
            TableChange::Ended => {
                if let Some(table) = self.tables.get_mut(&grant.node) {
                    table.version = None;
                }
                false
            }
        }
    }

    /// Takes the endpoints that came with a share, as in protocol 1; returns whether any has
    /// changed.
    pub(super) fn take_routes(&mut self, key: &ShareKey, share: &Share) -> bool {
        let mut has_changed = false;
        for route in &share.next {
            let Some(endpoints) = route.endpoints.clone() else { continue };
            let node = NodeKey { pipeline: key.pipeline.clone(), node: route.node.clone() };
            has_changed |= self.set(&node, None, endpoints);
        }
        has_changed
    }

    /// A snapshot begins. Its coordinator sends whole tables; until then those of before are used.
    pub(super) fn start_over(&mut self) {
        self.tables.values_mut().for_each(|table| table.version = None);
    }

    /// Whether there are so many that those without a share are to be forgotten.
    pub(super) fn is_overfull(&self) -> bool {
        self.tables.len() > 2 * self.kept + UNNEEDED_TABLES_MAX
    }

    /// Forgets all tables without a version but those of these nodes.
    pub(super) fn keep(&mut self, needed: &BTreeSet<NodeKey>) {
        self.tables.retain(|node, table| table.version.is_some() || needed.contains(node));
        self.kept = self.tables.len();
    }

    fn set(
        &mut self,
        node: &NodeKey,
        version: Option<TableVersion>,
        endpoints: Arc<[Endpoint]>,
    ) -> bool {
        let table = NodeTable { version, endpoints: endpoints.clone() };
        let before = self.tables.insert(node.clone(), table);
        before.map(|before| before.endpoints).unwrap_or_default() != endpoints
    }

    /// The endpoints of a node by name, with these in place of those of the same workers.
    fn merged(
        &self,
        node: &NodeKey,
        changed: &[Endpoint],
        removed: &[WorkerName],
    ) -> Arc<[Endpoint]> {
        let before = self.tables.get(node).map_or(&[][..], |table| &table.endpoints);
        let mut endpoints: BTreeMap<_, &Endpoint> =
            before.iter().map(|endpoint| (&endpoint.worker, endpoint)).collect();
        removed.iter().for_each(|worker| _ = endpoints.remove(worker));
        endpoints.extend(changed.iter().map(|endpoint| (&endpoint.worker, endpoint)));
        endpoints.into_values().cloned().collect()
    }
}
