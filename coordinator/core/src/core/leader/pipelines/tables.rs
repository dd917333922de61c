//! The tables that an agent is sent: the workers of the nodes that its shares lead to.

use std::collections::BTreeSet;

use leasehold_types::message::StreamGrant;
use leasehold_types::share::{NodeKey, Route, TableGrant};
use leasehold_types::{ShareKey, WorkerKey};

use super::{Pipelines, RouteBudget};
use crate::ledger::Ledger;
use crate::sent_tables::{NodeTable, SentTables};

impl Pipelines {
    /// The tables of the nodes that these shares lead to, and those that have changed since they
    /// were sent, as far as they fit into one message.
    pub(in crate::core::leader) fn table_grants(
        &self,
        sent: &mut SentTables,
        worker: &WorkerKey,
        snapshot: bool,
        streams: &[StreamGrant],
        budget: &mut RouteBudget,
        ledger: &Ledger,
    ) -> Vec<TableGrant> {
        let nodes = streams.iter().flat_map(nodes_after_share);
        if snapshot {
            sent.start_over(nodes.collect());
        } else {
            nodes.for_each(|node| sent.mark(node));
        }
        if sent.is_overfull() {
            sent.keep(&self.nodes_after(worker, ledger));
        }
        let mut tables = Vec::new();
        while budget.is_left() {
            let next = match sent.next_ended() {
                Some(ended) => Some(ended),
                None => {
                    let Some(node) = sent.next_due() else { break };
                    self.table(&node).and_then(|table| sent.send(node, table))
                }
            };
            next.iter().for_each(|grant| budget.take_table(grant));
            tables.extend(next);
        }
        tables
    }

    /// The table of a node; none before its first observation, and where the node is not there.
    fn table(&self, node: &NodeKey) -> Option<&NodeTable> {
        self.all.get(&node.pipeline)?.nodes.get(&node.node)?.table.as_ref()
    }

    /// The nodes that a worker's shares lead to.
    fn nodes_after(&self, worker: &WorkerKey, ledger: &Ledger) -> BTreeSet<NodeKey> {
        let shares = ledger.streams_of(worker, None).filter_map(ShareKey::of);
        let after = shares.filter_map(|ShareKey { pipeline, node, .. }| {
            let next = &self.all.get(&pipeline)?.nodes.get(&node)?.next;
            Some(
                next.iter()
                    .map(move |node| NodeKey { pipeline: pipeline.clone(), node: node.clone() }),
            )
        });
        after.flatten().collect()
    }
}

/// The nodes that a granted share leads to.
fn nodes_after_share(granted: &StreamGrant) -> Vec<NodeKey> {
    let Some((share, key)) = granted.share.as_ref().zip(ShareKey::of(&granted.stream)) else {
        return Vec::new();
    };
    let node = |route: &Route| NodeKey { pipeline: key.pipeline.clone(), node: route.node.clone() };
    share.next.iter().map(node).collect()
}
