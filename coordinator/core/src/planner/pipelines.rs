//! Which workers of its classes serve a pipeline, and with how much of its load each.
//!
//! Invariant: no worker is given more than the room that it has, and a pipeline is placed in all
//! its nodes or in none.
//!
//! A load within one worker's capacity goes to the worker with the least room that is enough (best
//! fit), of equal ones to the first by name, and is never cut. A load above it is cut (`span`). The
//! caller places a batch of pipelines by descending load. Shares that a node has are kept where
//! they fit, before anything new is placed.

mod demand;
mod free_capacity;
mod moves;
mod span;

use leasehold_types::Load;

pub use self::demand::{Unplaceable, fits, needed, wanted};
pub use self::free_capacity::FreeCapacity;
pub use self::moves::{MovableShare, make_room};

/// What one worker takes of a node's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The worker.
    pub worker: u32,
    /// Its part of the load.
    pub load: Load,
}

/// A node that needs workers.
#[derive(Clone, Copy, Debug)]
pub struct NodeRequest<'a> {
    /// Its class, as an index of the slice of free capacities.
    pub class: usize,
    /// The load of the whole node.
    pub load: Load,
    /// The parts that it has on usable workers; their loads do not count as used. Of several parts
    /// on one worker only the largest can be kept.
    pub prefers: &'a [Part],
}

/// A class that lacks room for a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityShortage {
    /// The class, as an index of the slice of free capacities.
    pub class: usize,
    /// How many more empty workers are enough. A node that would span more workers than
    /// `limits::SHARES_PER_NODE_MAX` never fits; then this is the number that its load divided by
    /// the capacity gives.
    pub workers: u32,
}

/// Places all the nodes and takes their room, or places none and takes nothing. The parts are in
/// the order of the nodes, those of a node in the order of its workers' names, each worker once.
///
/// # Errors
/// Each class that is short, by index, and of how many workers.
pub fn place(
    free: &mut [FreeCapacity],
    nodes: &[NodeRequest<'_>],
) -> Result<Vec<Vec<Part>>, Vec<CapacityShortage>> {
    let mut placement = NodePlacement::new(free, nodes);
    if nodes.iter().any(|node| !node.prefers.is_empty()) {
        placement.keep();
        if placement.place_rest() {
            return Ok(placement.parts);
        }
        placement.give_back();
    }
    placement.place_with_more()
}

/// Assigns workers to the nodes of one pipeline.
struct NodePlacement<'a> {
    free: &'a mut [FreeCapacity],
    nodes: &'a [NodeRequest<'a>],
    /// The order in which nodes are placed: those that fit one worker first, since cut ones can use
    /// any room that is left; within each group the larger first.
    turns: Vec<usize>,
    /// The parts that each node has taken.
    parts: Vec<Vec<Part>>,
}

impl<'a> NodePlacement<'a> {
    fn new(free: &'a mut [FreeCapacity], nodes: &'a [NodeRequest<'a>]) -> Self {
        let mut turns: Vec<usize> = (0..nodes.len()).collect();
        let is_cut = |node: &NodeRequest<'_>| node.load > free[node.class].capacity();
        turns.sort_by_key(|at| (is_cut(&nodes[*at]), std::cmp::Reverse(nodes[*at].load)));
        Self { free, nodes, turns, parts: vec![Vec::new(); nodes.len()] }
    }

    /// Takes the parts that nodes have and could keep, so that no other node takes their room.
    fn keep(&mut self) {
        for at in &self.turns {
            let node = &self.nodes[*at];
            let free = &mut self.free[node.class];
            let parts = if node.load > free.capacity() {
                span::keepable(free, node.load, node.prefers)
            } else {
                let worker = stays(free, node);
                worker.map(|worker| Part { worker, load: node.load }).into_iter().collect()
            };
            take(free, &parts);
            self.parts[*at] = parts;
        }
    }

    /// Places the nodes that are not kept; false if one does not fit.
    fn place_rest(&mut self) -> bool {
        (0..self.turns.len()).all(|turn| self.place_node(self.turns[turn]))
    }

    fn place_node(&mut self, at: usize) -> bool {
        let NodeRequest { class, load, .. } = self.nodes[at];
        let free = &mut self.free[class];
        let kept = std::mem::take(&mut self.parts[at]);
        let parts = if load > free.capacity() {
            give(free, &kept);
            span::cut(free, load, &kept)
        } else if kept.is_empty() {
            free.best_fit(load).map(|worker| vec![Part { worker, load }])
        } else {
            self.parts[at] = kept;
            return true;
        };
        let Some(mut parts) = parts else { return false };
        parts.sort_unstable_by_key(|part| part.worker);
        take(free, &parts);
        self.parts[at] = parts;
        true
    }

    fn give_back(&mut self) {
        for (node, parts) in self.nodes.iter().zip(&mut self.parts) {
            give(&mut self.free[node.class], &std::mem::take(parts));
        }
    }

    /// Places all nodes again. Where one does not fit, adds the fewest empty workers that take it;
    /// if any were added, takes everything back in the end.
    fn place_with_more(mut self) -> Result<Vec<Vec<Part>>, Vec<CapacityShortage>> {
        let mut more = std::collections::BTreeMap::<usize, (usize, u64)>::new();
        for turn in 0..self.turns.len() {
            let at = self.turns[turn];
            if self.place_node(at) {
                continue;
            }
            let NodeRequest { class, load, .. } = self.nodes[at];
            let free = &mut self.free[class];
            let (added, counted) = more.entry(class).or_default();
            match span::missing(free, load) {
                Ok(workers) => {
                    free.add_empty(workers);
                    *added += workers;
                    *counted += workers as u64;
                    assert!(self.place_node(at), "a load fits where it was given room");
                }
                Err(workers) => *counted += workers,
            }
        }
        if more.is_empty() {
            return Ok(self.parts);
        }
        self.give_back();
        let short = |(class, (added, counted)): (usize, (usize, u64))| {
            self.free[class].remove_empty(added);
            CapacityShortage { class, workers: u32::try_from(counted).unwrap_or(u32::MAX) }
        };
        Err(more.into_iter().map(short).collect())
    }
}

/// The worker that a node on one worker stays on: preferably one where its lease stays unchanged.
fn stays(free: &FreeCapacity, node: &NodeRequest<'_>) -> Option<u32> {
    let fits = |part: &&Part| free.takes(part.worker, node.load);
    let same = node.prefers.iter().filter(|part| part.load == node.load).find(fits);
    same.or_else(|| node.prefers.iter().find(fits)).map(|part| part.worker)
}

fn take(free: &mut FreeCapacity, parts: &[Part]) {
    parts.iter().for_each(|part| free.take(part.worker, part.load));
}

fn give(free: &mut FreeCapacity, parts: &[Part]) {
    parts.iter().for_each(|part| free.give(part.worker, part.load));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::Spread;

    fn load(documents: u64) -> Load {
        Load::per_second(documents).expect("a load")
    }

    fn class(capacity: u64, spread: Spread, used: &[u64]) -> FreeCapacity {
        FreeCapacity::new(load(capacity), spread, used.iter().map(|used| load(*used)).collect())
    }

    fn request(class: usize, documents: u64, prefers: &[Part]) -> NodeRequest<'_> {
        NodeRequest { class, load: load(documents), prefers }
    }

    fn part(worker: u32, documents: u64) -> Part {
        Part { worker, load: load(documents) }
    }

    #[test]
    fn a_load_goes_to_the_least_room_that_is_enough_and_to_the_first_of_equals() {
        let mut free = [class(30, Spread::Fewest, &[0, 15, 20, 20, 25])];
        let placed =
            place(&mut free, &[request(0, 10, &[]), request(0, 10, &[]), request(0, 10, &[])]);
        assert_eq!(placed, Ok(vec![vec![part(2, 10)], vec![part(3, 10)], vec![part(1, 10)]]));
    }

    #[test]
    fn two_pipelines_share_blue_and_none_shares_green() {
        let mut free = [class(30, Spread::Fewest, &[0; 3]), class(15, Spread::Fewest, &[0; 2])];
        let pipeline = [request(0, 10, &[]), request(1, 10, &[])];
        let first = place(&mut free, &pipeline);
        assert_eq!(first, Ok(vec![vec![part(0, 10)], vec![part(0, 10)]]));
        let second = place(&mut free, &pipeline);
        assert_eq!(second, Ok(vec![vec![part(0, 10)], vec![part(1, 10)]]));
        let before = free.clone();
        assert_eq!(
            place(&mut free, &pipeline),
            Err(vec![CapacityShortage { class: 1, workers: 1 }])
        );
        assert_eq!(free, before);
    }

    #[test]
    fn grey_is_spanned_by_the_fewest_or_by_all() {
        let grey = |spread| [class(5, spread, &[0; 5])];
        let pipeline = [request(0, 10, &[])];
        let mut fewest = grey(Spread::Fewest);
        assert_eq!(place(&mut fewest, &pipeline), Ok(vec![vec![part(0, 5), part(1, 5)]]));
        assert_eq!(place(&mut fewest, &pipeline), Ok(vec![vec![part(2, 5), part(3, 5)]]));
        assert_eq!(
            place(&mut fewest, &pipeline),
            Err(vec![CapacityShortage { class: 0, workers: 1 }])
        );
        let mut even = grey(Spread::Even);
        let all: Vec<Part> = (0..5).map(|worker| part(worker, 2)).collect();
        assert_eq!(place(&mut even, &pipeline), Ok(vec![all.clone()]));
        assert_eq!(place(&mut even, &pipeline), Ok(vec![all]));
    }

    #[test]
    fn equal_parts_go_as_far_as_the_room_does() {
        let mut free = [class(9, Spread::Even, &[8, 0, 9, 2])];
        let placed = place(&mut free, &[request(0, 12, &[])]);
        let half = Load::from_milli(5_500).expect("a load");
        let of = |worker| Part { worker, load: half };
        assert_eq!(placed, Ok(vec![vec![part(0, 1), of(1), of(3)]]));
    }

    #[test]
    fn what_a_node_has_is_kept_where_it_fits() {
        let mut free = [class(30, Spread::Fewest, &[20, 0])];
        // Not to worker 0, although that has the least room that is enough.
        let placed = place(&mut free, &[request(0, 10, &[part(1, 10)])]);
        assert_eq!(placed, Ok(vec![vec![part(1, 10)]]));
        let full = place(&mut free, &[request(0, 20, &[part(0, 20)])]);
        assert_eq!(full, Ok(vec![vec![part(1, 20)]]));
    }

    #[test]
    fn a_node_that_is_cut_keeps_what_costs_no_worker_more() {
        let had = [part(3, 10), part(2, 10), part(0, 5)];
        let of = |documents, used: &[u64]| {
            let mut free = [class(10, Spread::Fewest, used)];
            place(&mut free, &[request(0, documents, &had)])
        };
        let kept = vec![part(0, 5), part(2, 10), part(3, 10)];
        assert_eq!(of(25, &[0; 5]), Ok(vec![kept.clone()]));
        let more = vec![part(0, 5), part(1, 10), part(2, 10), part(3, 10)];
        assert_eq!(of(35, &[0; 5]), Ok(vec![more]));
        let rest = vec![part(0, 8), part(2, 10), part(3, 10)];
        assert_eq!(of(28, &[0; 5]), Ok(vec![rest]));
        assert_eq!(of(15, &[0; 5]), Ok(vec![vec![part(0, 5), part(2, 10)]]));
        let elsewhere = vec![part(0, 5), part(1, 10), part(3, 10)];
        assert_eq!(of(25, &[0, 0, 1, 0, 0]), Ok(vec![elsewhere]));
    }

    #[test]
    fn what_is_short_is_counted_in_empty_workers() {
        let short = |free: FreeCapacity, nodes: &[NodeRequest<'_>]| {
            let mut free = [free];
            place(&mut free, nodes).expect_err("it does not fit")[0].workers
        };
        let none = || class(15, Spread::Fewest, &[]);
        let three = [request(0, 7, &[]), request(0, 7, &[]), request(0, 7, &[])];
        assert_eq!(short(none(), &three), 2);
        assert_eq!(short(none(), &[request(0, 0, &[])]), 1);
        assert_eq!(short(class(15, Spread::Fewest, &[8]), &three), 1);
        assert_eq!(short(class(15, Spread::Fewest, &[10, 10]), &[request(0, 45, &[])]), 3);
        assert_eq!(short(none(), &[request(0, 15_001, &[])]), 1_001);
    }

    #[test]
    fn a_load_of_nothing_needs_a_worker_that_is_not_above_its_capacity() {
        let mut full = [class(10, Spread::Fewest, &[12, 10])];
        assert_eq!(place(&mut full, &[request(0, 0, &[])]), Ok(vec![vec![part(1, 0)]]));
        let mut above = [class(10, Spread::Fewest, &[12])];
        let short = Err(vec![CapacityShortage { class: 0, workers: 1 }]);
        assert_eq!(place(&mut above, &[request(0, 0, &[])]), short);
    }
}
