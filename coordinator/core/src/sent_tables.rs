//! The tables of nodes, and which of them were sent to an agent.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold_types::share::{Endpoint, NodeKey, TableChange, TableGrant, TableVersion};

/// How many tables without a share an agent may have, beside twice as many as had one when they
/// were last counted. Counting looks at all shares of the worker.
const UNNEEDED_TABLES_MAX: usize = 16;

/// The workers that serve a node.
#[derive(Clone, Debug)]
pub(crate) struct NodeTable {
    pub(crate) version: TableVersion,
    /// By the worker's name. A name is listed twice if workers of two classes have it.
    pub(crate) endpoints: Arc<[Endpoint]>,
}

impl NodeTable {
    /// What makes this table of an earlier version of it.
    fn change_from(&self, before: &Self) -> TableChange {
        if has_name_twice(&before.endpoints) || has_name_twice(&self.endpoints) {
            return self.whole();
        }
        let (mut changed, mut removed) = (Vec::new(), Vec::new());
        let (mut old, mut new) = (before.endpoints.iter(), self.endpoints.iter());
        let (mut was, mut is) = (old.next(), new.next());
        loop {
            let order = match (was, is) {
                (None, None) => break,
                (None, Some(_)) => Ordering::Greater,
                (Some(_), None) => Ordering::Less,
                (Some(was), Some(is)) => was.worker.cmp(&is.worker),
            };
            if order.is_gt() || (order.is_eq() && was != is) {
                changed.extend(is.cloned());
            }
            if order.is_lt() {
                removed.extend(was.map(|endpoint| endpoint.worker.clone()));
            }
            if order.is_le() {
                was = old.next();
            }
            if order.is_ge() {
                is = new.next();
            }
        }
        if changed.len() + removed.len() >= self.endpoints.len() {
            return self.whole();
        }
        TableChange::Part { from: before.version, version: self.version, changed, removed }
    }

    fn whole(&self) -> TableChange {
        TableChange::Whole { version: self.version, endpoints: self.endpoints.clone() }
    }
}

fn has_name_twice(endpoints: &[Endpoint]) -> bool {
    endpoints.windows(2).any(|pair| pair[0].worker == pair[1].worker)
}

/// The tables that were sent on a connection, and those that are due.
#[derive(Clone, Debug, Default)]
pub(crate) struct SentTables {
    sent: BTreeMap<NodeKey, NodeTable>,
    /// Tables that were not sent, or may have changed since.
    due: BTreeSet<NodeKey>,
    /// Tables that were sent, and that no share leads to.
    ending: BTreeSet<NodeKey>,
    /// How many had a share when they were last counted.
    needed: usize,
}

impl SentTables {
    /// A share that leads to the node is granted, or the node's table has changed.
    pub(crate) fn mark(&mut self, node: NodeKey) {
        self.ending.remove(&node);
        self.due.insert(node);
    }

    /// A snapshot follows: the tables of these nodes are sent whole, and no others count as sent.
    pub(crate) fn start_over(&mut self, nodes: BTreeSet<NodeKey>) {
        *self = Self { needed: nodes.len(), due: nodes, ..Self::default() };
    }

    /// Takes the first table that ends.
    pub(crate) fn next_ended(&mut self) -> Option<TableGrant> {
        let node = self.ending.pop_first()?;
        self.sent.remove(&node);
        Some(TableGrant { node, change: TableChange::Ended })
    }

    /// Takes the first table that is due.
    pub(crate) fn next_due(&mut self) -> Option<NodeKey> {
        self.due.pop_first()
    }

    /// The next message has this table. What the agent needs for it; none if it has the same.
    pub(crate) fn send(&mut self, node: NodeKey, table: &NodeTable) -> Option<TableGrant> {
        let change = match self.sent.get(&node) {
            Some(sent) if sent.endpoints == table.endpoints => return None,
            Some(sent) => table.change_from(sent),
            None => table.whole(),
        };
        self.sent.insert(node.clone(), table.clone());
        Some(TableGrant { node, change })
    }

    /// Whether so many were sent that those without a share are to end.
    pub(crate) fn is_overfull(&self) -> bool {
        self.sent.len() > 2 * self.needed + UNNEEDED_TABLES_MAX
    }

    /// Ends all tables but those of these nodes.
    pub(crate) fn keep(&mut self, needed: &BTreeSet<NodeKey>) {
        self.due.retain(|node| needed.contains(node));
        self.ending = self.sent.keys().filter(|node| !needed.contains(node)).cloned().collect();
        self.needed = self.sent.len() - self.ending.len();
    }
}

#[cfg(test)]
mod tests {
    use leasehold_types::{Load, WorkerName};

    use super::*;

    fn table(version: u64, endpoints: &[(&str, u64)]) -> NodeTable {
        let endpoint = |(worker, milli): &(&str, u64)| Endpoint {
            worker: WorkerName::new(worker).expect("a name"),
            address: None,
            load: Load::from_milli(*milli).expect("a load"),
            draining: false,
        };
        let endpoints = endpoints.iter().map(endpoint).collect();
        NodeTable { version: TableVersion(version), endpoints }
    }

    fn node(name: &str) -> NodeKey {
        NodeKey { pipeline: "first".parse().expect("a name"), node: name.parse().expect("a name") }
    }

    #[test]
    fn one_endpoint_changed_costs_one_line() {
        let all: Vec<_> = (0..1_000).map(|at| (format!("w{at:03}"), 1)).collect();
        let mut all: Vec<_> = all.iter().map(|(name, load)| (name.as_str(), *load)).collect();
        let mut tables = SentTables::default();
        let whole = tables.send(node("out"), &table(1, &all)).expect("it was not sent");
        assert!(
            matches!(whole.change, TableChange::Whole { endpoints, .. } if endpoints.len() == 1_000)
        );
        assert_eq!(tables.send(node("out"), &table(1, &all)), None, "it is sent once");

        all[7].1 = 2;
        all.remove(9);
        let grant = tables.send(node("out"), &table(4, &all)).expect("it has changed");
        let TableChange::Part { from, version, changed, removed } = grant.change else {
            panic!("the whole table again: {grant:?}");
        };
        assert_eq!((from, version), (TableVersion(1), TableVersion(4)));
        assert_eq!(changed, table(0, &[("w007", 2)]).endpoints.to_vec());
        assert_eq!(removed, [WorkerName::new("w009").expect("a name")]);
    }

    #[test]
    fn a_table_that_changes_most_of_its_lines_is_sent_whole() {
        let mut tables = SentTables::default();
        tables.send(node("out"), &table(1, &[("a", 1), ("b", 1)]));
        let grant = tables.send(node("out"), &table(2, &[("c", 1)])).expect("it has changed");
        assert!(matches!(grant.change, TableChange::Whole { .. }), "{grant:?}");
    }

    #[test]
    fn a_name_in_two_classes_makes_the_table_whole() {
        let mut tables = SentTables::default();
        let before = [("a", 1), ("b", 1), ("b", 2), ("c", 1), ("d", 1)];
        tables.send(node("out"), &table(1, &before));
        let after = [("a", 1), ("b", 2), ("c", 1), ("d", 1)];
        let grant = tables.send(node("out"), &table(2, &after)).expect("it has changed");
        assert!(matches!(grant.change, TableChange::Whole { .. }), "{grant:?}");
    }

    #[test]
    fn tables_without_a_share_are_ended_once_there_are_many() {
        let mut tables = SentTables::default();
        let nodes: Vec<_> = (0..=UNNEEDED_TABLES_MAX).map(|at| node(&format!("n{at}"))).collect();
        for (at, node) in nodes.iter().enumerate() {
            assert!(!tables.is_overfull(), "{at} tables");
            tables.send(node.clone(), &table(1, &[("a", 1)]));
        }
        assert!(tables.is_overfull());
        let needed = BTreeSet::from([nodes[3].clone()]);
        tables.keep(&needed);
        let ended: Vec<_> = std::iter::from_fn(|| tables.next_ended()).collect();
        assert_eq!(ended.len(), nodes.len() - 1);
        assert!(ended.iter().all(|grant| grant.change == TableChange::Ended));
        assert!(!tables.is_overfull());
        assert_eq!(tables.send(nodes[3].clone(), &table(1, &[("a", 1)])), None);
        assert!(tables.send(nodes[4].clone(), &table(1, &[("a", 1)])).is_some());
    }
}
