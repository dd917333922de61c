//! The rules on a Pipeline by itself: the names of its nodes, and its graph, which ends somewhere
//! on every way through it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold_coordinator_core::desired::{Node as PipelineNode, Pipeline};
use leasehold_types::{NodeName, limits};

use super::super::manifest::{NodeSpec, PipelineSpec};
use super::super::tree::{Node, Position};
use super::{Checker, Origin, PipelineDraft};

/// Nodes that a message names.
const NAMED_MAX: usize = 10;

impl Checker<'_> {
    pub(super) fn pipeline(&mut self, root: &Node, spec: &PipelineSpec) -> Option<PipelineDraft> {
        let name = root.get("metadata")?.get("name")?.text()?.to_owned();
        let is_letter = |c: char| c.is_ascii_lowercase();
        if matches!(self.home, Origin::Namespace(_)) && !name.starts_with(is_letter) {
            let message =
                format!("is {name:?}, but Services are called by it: begin with a letter");
            self.blame(root, "metadata.name", message);
        }
        let (least, most) = (1, limits::NODES_MAX);
        let count = spec.workers.len();
        if count < least {
            self.blame(root, "spec.workers", "names no node: add one");
        }
        if count > most {
            let message = format!("has {count} nodes, more than {most}: split the pipeline");
            self.blame(root, "spec.workers", message);
        }
        let body = root.get("spec")?;
        let workers = body.get("workers")?;
        let mut nodes = BTreeMap::new();
        let mut marks = BTreeMap::new();
        for (key, node) in &spec.workers {
            let Some((place, below)) = workers.entry(key) else { continue };
            let whole = self.node_name(place, &name, key);
            let class_at = below.get("class").map_or(below.at, |node| node.at);
            let class = self.home.cluster(&node.class);
            if let Err(error) = &class {
                self.report(class_at, format!("spec.workers.{key}.class"), error);
            }
            let next = self.next(spec, key, node, below);
            if let (Some(whole), Ok(class)) = (whole, class) {
                marks.insert(whole.clone(), (place.at, class_at));
                nodes.insert(whole, PipelineNode { class, next });
            }
        }
        if !self.wrong {
            self.cycle(workers, &nodes);
        }
        let load_at = body.get("documentsPerSecond").map_or(body.at, |node| node.at);
        let pipeline = Arc::new(Pipeline { load: spec.documents_per_second.0, nodes });
        Some(PipelineDraft { pipeline, load_at, marks: Arc::new(marks) })
    }

    fn node_name(&mut self, place: &Node, pipeline: &str, key: &str) -> Option<NodeName> {
        let field = || format!("spec.workers.{key}");
        let name = match NodeName::new(key) {
            Ok(name) => name,
            Err(error) => {
                self.report(place.at, field(), error.to_string());
                return None;
            }
        };
        let binding = binding(pipeline, key);
        if binding.len() > limits::LABEL_BYTES_MAX {
            let message = format!(
                "makes a binding called {binding:?}, whose {} characters are more than {}: shorten \
                 the name of the node or that of the pipeline",
                binding.len(),
                limits::LABEL_BYTES_MAX,
            );
            self.report(place.at, field(), message);
        }
        Some(name)
    }

    /// The nodes that a node names, each of which is there, another, and named once.
    fn next(
        &mut self,
        spec: &PipelineSpec,
        key: &str,
        node: &NodeSpec,
        below: &Node,
    ) -> BTreeSet<NodeName> {
        let mut next = BTreeSet::new();
        let Some(list) = below.get("next") else { return next };
        for ((index, item), named) in list.items().zip(&node.next) {
            let is_new = NodeName::new(named).is_ok_and(|named| next.insert(named));
            let message = if named == key {
                "is the node itself: name another, or remove it".to_owned()
            } else if !spec.workers.contains_key(named) {
                let there = listed(spec.workers.keys());
                format!("is {named:?}, which is not a node of this pipeline: use one of {there}")
            } else if !is_new {
                format!("names {named:?} a second time: remove it")
            } else {
                continue;
            };
            self.report(item.at, format!("spec.workers.{key}.next[{index}]"), message);
        }
        next
    }

    /// Names the first cycle, in the order of names, where there is one.
    fn cycle(&mut self, workers: &Node, nodes: &BTreeMap<NodeName, PipelineNode>) {
        let Some(cycle) = find_cycle(nodes) else { return };
        let [.., last, first] = cycle.as_slice() else { return };
        let shown: Vec<&str> = cycle.iter().map(|node| node.as_str()).collect();
        let message = format!(
            "closes a cycle, {}, so that documents would go round for ever: remove one of its \
             steps",
            shown.join(" -> ")
        );
        let (at, field) = place_of_step(workers, last, first);
        self.report(at, field, message);
    }
}

/// What the binding of a node is called, and its Service.
pub(crate) fn binding(pipeline: &str, node: &str) -> String {
    format!("{pipeline}-{node}")
}

/// Where a node names another one.
fn place_of_step(workers: &Node, from: &NodeName, to: &NodeName) -> (Position, String) {
    let list = workers.get(from.as_str()).and_then(|node| node.get("next"));
    let step =
        list.and_then(|list| list.items().find(|(_, item)| item.text() == Some(to.as_str())));
    match step {
        Some((index, item)) => (item.at, format!("spec.workers.{from}.next[{index}]")),
        None => (workers.at, format!("spec.workers.{from}.next")),
    }
}

/// A cycle: its first node is repeated at the end.
fn find_cycle(nodes: &BTreeMap<NodeName, PipelineNode>) -> Option<Vec<NodeName>> {
    let mut done: BTreeSet<&NodeName> = BTreeSet::new();
    for start in nodes.keys() {
        // The way to where the search is, each node with those of its next that are left.
        let mut way = vec![(start, nodes[start].next.iter())];
        while let Some((_, rest)) = way.last_mut() {
            let Some(next) = rest.next() else {
                done.extend(way.pop().map(|(node, _)| node));
                continue;
            };
            if let Some(first) = way.iter().position(|(node, _)| *node == next) {
                let cycle = way[first..].iter().map(|(node, _)| *node);
                return Some(cycle.chain([next]).cloned().collect());
            }
            if let Some(node) = nodes.get(next).filter(|_| !done.contains(next)) {
                way.push((next, node.next.iter()));
            }
        }
    }
    None
}

/// Names for people, not more than they can read.
fn listed<'a>(names: impl ExactSizeIterator<Item = &'a String>) -> String {
    let more = names.len().saturating_sub(NAMED_MAX);
    let mut named: Vec<String> = names.take(NAMED_MAX).map(|name| format!("{name:?}")).collect();
    if more > 0 {
        named.push(format!("{more} more"));
    }
    named.join(", ")
}
