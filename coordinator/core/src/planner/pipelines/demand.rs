//! How many workers a class needs.
//!
//! Invariant: all arithmetic is in whole numbers, and rounds up.

use std::collections::BTreeMap;
use std::fmt;

use leasehold_types::{ClusterName, Load, counted, limits};

use crate::desired::{Class, Pipeline};

/// Why no permitted number of a class's workers can serve a pipeline. Shown with the arithmetic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unplaceable {
    /// The nodes of that class need more workers than it may have.
    Workers {
        /// The class.
        class: ClusterName,
        /// How many of the pipeline's nodes are of it.
        nodes: usize,
        /// The load of each.
        load: Load,
        /// The load that one worker can take.
        capacity: Load,
        /// The workers that the nodes need.
        needed: u64,
        /// The workers that the class may have.
        workers_max: u32,
    },
    /// A node would span more workers than one may.
    Shares {
        /// The class.
        class: ClusterName,
        /// The load of the node.
        load: Load,
        /// The load that one worker can take.
        capacity: Load,
        /// The workers that it needs.
        needed: u64,
    },
}

/// How many empty workers these loads need by the rule of placement: `place` finds room for all of
/// them on this many workers if they come by descending load. On workers that were filled in
/// another order some may have to wait; then the number in `CapacityShortage` is needed in
/// addition.
///
/// # Panics
/// If the capacity is 0, which no valid class has.
#[must_use]
pub fn needed(capacity: Load, loads: impl IntoIterator<Item = Load>) -> u32 {
    assert!(capacity > Load::ZERO, "a class has a capacity");
    let mut counts = BTreeMap::<Load, u64>::new();
    loads.into_iter().for_each(|load| *counts.entry(load).or_default() += 1);
    let mut packing = Packing { capacity: capacity.milli(), workers: 0, free: BTreeMap::new() };
    for (load, count) in counts.iter().rev() {
        let (whole, rest) = match load.milli() {
            milli if milli > packing.capacity => {
                (milli / packing.capacity, milli % packing.capacity)
            }
            milli => (0, milli),
        };
        packing.workers = packing.workers.saturating_add(count.saturating_mul(whole));
        if rest > 0 {
            packing.add(rest, *count);
        }
    }
    // A load of 0 needs a worker but no room.
    let least = u64::from(!counts.is_empty());
    u32::try_from(packing.workers.max(least)).unwrap_or(u32::MAX)
}

/// The number of workers that a class is to have: the larger of what the request needs at the
/// target utilisation and what packing needs (see [`needed`]), within the class's bounds.
#[must_use]
pub fn wanted(class: &Class, request: Load, needed: u32) -> u32 {
    let aim = u128::from(class.capacity.milli()) * u128::from(class.utilization);
    let workers = (u128::from(request.milli()) * 100).div_ceil(aim.max(1));
    let workers = u32::try_from(workers).unwrap_or(u32::MAX).max(needed);
    workers.min(class.workers_max).max(class.workers_min)
}

/// Checks that the pipeline can be placed if it is alone and its classes have their maximum of
/// workers. An unknown class is not unplaceable.
///
/// # Errors
/// Each class that is too small, by name.
pub fn fits<'a>(
    pipeline: &Pipeline,
    class_of: impl Fn(&ClusterName) -> Option<&'a Class>,
) -> Result<(), Vec<Unplaceable>> {
    let mut counts = BTreeMap::<&ClusterName, usize>::new();
    for node in pipeline.nodes.values() {
        *counts.entry(&node.class).or_default() += 1;
    }
    let unplaceable = |(name, nodes): (&ClusterName, usize)| {
        let class = class_of(name)?;
        unplaceable(name, class, nodes, pipeline.load)
    };
    let unplaceable: Vec<_> = counts.into_iter().filter_map(unplaceable).collect();
    if unplaceable.is_empty() { Ok(()) } else { Err(unplaceable) }
}

fn unplaceable(name: &ClusterName, class: &Class, nodes: usize, load: Load) -> Option<Unplaceable> {
    let (name, capacity) = (name.clone(), class.capacity);
    let (milli, worker) = (load.milli(), capacity.milli().max(1));
    let spanned = milli.div_ceil(worker);
    if spanned > limits::SHARES_PER_NODE_MAX as u64 {
        return Some(Unplaceable::Shares { class: name, load, capacity, needed: spanned });
    }
    let needed = if load <= capacity {
        // A load of 0 shares its worker with any number of others.
        let together = worker.checked_div(milli).unwrap_or(u64::MAX);
        (nodes as u64).div_ceil(together)
    } else {
        // Loads that are cut fill every worker.
        milli.saturating_mul(nodes as u64).div_ceil(worker)
    };
    let workers_max = class.workers_max;
    let unplaceable =
        Unplaceable::Workers { class: name, nodes, load, capacity, needed, workers_max };
    (needed > u64::from(workers_max)).then_some(unplaceable)
}

/// Workers that are added as they are needed.
struct Packing {
    capacity: u64,
    workers: u64,
    /// The number of workers by their exact room.
    free: BTreeMap<u64, u64>,
}

impl Packing {
    /// Adds equal loads, each to the least room that is enough: that room takes as many as it can
    /// before the next larger one is touched.
    fn add(&mut self, load: u64, mut count: u64) {
        while count > 0 {
            let (room, workers) = self.free.range(load..).next().map_or(
                (self.capacity, count.div_ceil(self.capacity / load)),
                |(room, workers)| (*room, *workers),
            );
            if self.free.remove(&room).is_none() {
                self.workers += workers;
            }
            let each = room / load;
            let filled = workers.min(count / each);
            self.put(room - each * load, filled);
            count -= filled * each;
            let mut untouched = workers - filled;
            if untouched > 0 {
                self.put(room - count * load, 1);
                untouched -= 1;
                count = 0;
            }
            self.put(room, untouched);
        }
    }

    fn put(&mut self, room: u64, workers: u64) {
        if workers > 0 && room > 0 {
            *self.free.entry(room).or_default() += workers;
        }
    }
}

impl fmt::Display for Unplaceable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workers { class, nodes, load, capacity, needed, workers_max } => {
                write!(
                    f,
                    "class {class}: {nodes} of {load} documents per second {need} {needed} of \
                     capacity {capacity}, and maxReplicas is {workers_max}",
                    nodes = counted(*nodes as u64, "node"),
                    need = if *nodes == 1 { "needs" } else { "need" },
                    needed = counted(*needed, "worker"),
                )
            }
            Self::Shares { class, load, capacity, needed } => write!(
                f,
                "class {class}: a node of {load} documents per second needs {needed} workers of \
                 capacity {capacity}, and one node may span {}",
                limits::SHARES_PER_NODE_MAX
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_types::NodeName;

    use super::*;
    use crate::desired::{Node, Rebalance, Spread};

    fn load(documents: u64) -> Load {
        Load::per_second(documents).expect("a load")
    }

    fn class(capacity: u64, workers_min: u32, workers_max: u32) -> Class {
        Class {
            capacity: load(capacity),
            workers_min,
            workers_max,
            utilization: 70,
            spread: Spread::Fewest,
            rebalance: Rebalance::Never,
            handover_deadline: Duration::from_secs(30),
        }
    }

    fn refusal(documents: u64, nodes: usize, class: &Class) -> Option<String> {
        let name = ClusterName::new("blue").expect("a name");
        let node = |number| NodeName::new(&format!("n{number}")).expect("a name");
        let of = || Node { class: name.clone(), next: std::collections::BTreeSet::new() };
        let nodes = (0..nodes).map(|number| (node(number), of())).collect();
        let pipeline = Pipeline { load: load(documents), nodes };
        let unplaceable = fits(&pipeline, |_| Some(class)).err()?;
        Some(unplaceable.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    }

    #[test]
    fn workers_are_asked_for_at_the_target_utilisation() {
        let green = class(15, 1, 10);
        assert_eq!(wanted(&green, load(20), 2), 2);
        // 30 of 2 * 15 are 100 %.
        assert_eq!(wanted(&green, load(30), 3), 3);
        assert_eq!(wanted(&green, load(30), 1), 3);
        // 31.5 of 3 * 15 are 70 %, and a thousandth more is more.
        assert_eq!(wanted(&green, Load::from_milli(31_500).expect("a load"), 1), 3);
        assert_eq!(wanted(&green, Load::from_milli(31_501).expect("a load"), 1), 4);
        // 20 of 3 * 30 are 22 %; one would do.
        assert_eq!(wanted(&class(30, 1, 5), load(20), 1), 1);
        assert_eq!(wanted(&class(30, 3, 5), load(20), 1), 3);
        assert_eq!(wanted(&class(30, 3, 5), load(1_000_000_000), u32::MAX), 5);
        assert_eq!(wanted(&class(30, 0, 5), load(0), 0), 0);
    }

    #[test]
    fn needed_is_what_best_fit_decreasing_packs_into() {
        let of = |capacity, loads: &[u64]| needed(load(capacity), loads.iter().map(|l| load(*l)));
        assert_eq!(of(30, &[10, 10, 10]), 1);
        assert_eq!(of(15, &[10, 10, 10]), 3);
        assert_eq!(of(10, &[6, 3, 7, 4, 5, 5]), 3);
        assert_eq!(of(10, &[3, 3, 3, 7, 7]), 3);
        assert_eq!(of(5, &[10, 10]), 4);
        assert_eq!(of(10, &[25, 15]), 4);
        assert_eq!(of(10, &[16, 16, 16]), 6);
        assert_eq!(of(10, &[]), 0);
        assert_eq!(of(10, &[0, 0]), 1);
        assert_eq!(of(10, &[10, 0]), 1);
    }

    #[test]
    fn a_pipeline_that_can_never_fit_is_refused_with_the_arithmetic() {
        assert_eq!(refusal(100, 3, &class(30, 1, 10)), None);
        assert_eq!(
            refusal(100, 3, &class(30, 1, 9)).as_deref(),
            Some(
                "class blue: 3 nodes of 100 documents per second need 10 workers of capacity 30, \
                 and maxReplicas is 9"
            )
        );
        assert_eq!(
            refusal(31, 1, &class(30, 1, 1)).as_deref(),
            Some(
                "class blue: 1 node of 31 documents per second needs 2 workers of capacity 30, and \
                 maxReplicas is 1"
            )
        );
        // No two share a worker, although their sum would fit on two.
        assert!(refusal(10, 3, &class(15, 1, 2)).is_some());
        assert_eq!(refusal(10, 3, &class(15, 1, 3)), None);
        assert_eq!(refusal(0, 3, &class(15, 1, 1)), None);
        assert_eq!(refusal(1_000, 1, &class(1, 1, 5_000)), None);
        assert_eq!(
            refusal(1_001, 1, &class(1, 1, 5_000)).as_deref(),
            Some(
                "class blue: a node of 1001 documents per second needs 1001 workers of capacity 1, \
                 and one node may span 1000"
            )
        );
    }
}
