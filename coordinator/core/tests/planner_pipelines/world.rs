//! Classes, workers and pipelines as a core would keep them, and the checks of each plan.

use std::collections::BTreeMap;

use leasehold_coordinator_core::desired::Spread;
use leasehold_coordinator_core::planner::pipelines::{
    CapacityShortage, FreeCapacity, NodeRequest, Part, place,
};

use crate::milli;

/// A class and its workers: each has a number that stays its own when others leave, and numbers
/// are in the order of names.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) capacity: u64,
    pub(crate) spread: Spread,
    pub(crate) workers: Vec<u32>,
}

/// The load of a node on a worker, by the worker's number.
pub(crate) type Shares = Vec<(u32, u64)>;

/// A pipeline: every node has its load; its shares where it is placed, by node.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    pub(crate) load: u64,
    pub(crate) classes: Vec<usize>,
    pub(crate) shares: Option<Vec<Shares>>,
}

/// All classes and pipelines.
#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    pub(crate) classes: Vec<Class>,
    pub(crate) pipelines: BTreeMap<u32, Pipeline>,
}

impl World {
    /// The load of each worker of a class.
    pub(crate) fn used(&self, class: usize) -> BTreeMap<u32, u64> {
        let mut used: BTreeMap<u32, u64> =
            self.classes[class].workers.iter().map(|worker| (*worker, 0)).collect();
        for pipeline in self.pipelines.values() {
            let nodes = pipeline.classes.iter().zip(pipeline.shares.iter().flatten());
            for (_, shares) in nodes.filter(|(of, _)| **of == class) {
                for (worker, load) in shares {
                    *used.get_mut(worker).expect("the owner of a share is there") += load;
                }
            }
        }
        used
    }

    pub(crate) fn free(&self) -> Vec<FreeCapacity> {
        let free = |(at, class): (usize, &Class)| {
            let used = self.used(at).into_values().map(milli).collect();
            FreeCapacity::new(milli(class.capacity), class.spread, used)
        };
        self.classes.iter().enumerate().map(free).collect()
    }

    /// The pipelines that wait, in the order in which a batch goes.
    pub(crate) fn waiting(&self) -> Vec<u32> {
        let waiting = self.pipelines.iter().filter(|(_, pipeline)| pipeline.shares.is_none());
        let mut names: Vec<u32> = waiting.map(|(name, _)| *name).collect();
        names.sort_by_key(|name| (std::cmp::Reverse(self.pipelines[name].load), *name));
        names
    }

    /// Places a pipeline that has no shares in the plan, with its preferred shares, and checks the
    /// result.
    pub(crate) fn place(&mut self, name: u32, prefers: &[Shares]) -> bool {
        let pipeline = self.pipelines[&name].clone();
        let parts: Vec<Vec<Part>> = (0..pipeline.classes.len())
            .map(|node| {
                let class = &self.classes[pipeline.classes[node]];
                let index =
                    |number: &u32| class.workers.binary_search(number).expect("it is there");
                let part = |(number, load): &(u32, u64)| Part {
                    worker: index(number) as u32,
                    load: milli(*load),
                };
                prefers.get(node).into_iter().flatten().map(part).collect()
            })
            .collect();
        let request = |(class, prefers): (&usize, _)| NodeRequest {
            class: *class,
            load: milli(pipeline.load),
            prefers,
        };
        let prefers = parts.iter().map(Vec::as_slice);
        let requests: Vec<NodeRequest<'_>> =
            pipeline.classes.iter().zip(prefers).map(request).collect();
        let before = self.free();
        let mut free = before.clone();
        let placed = place(&mut free, &requests);
        assert_eq!(place(&mut before.clone(), &requests), placed, "one input, two plans");
        let shortages = self.shortages(&pipeline);
        match placed {
            Err(short) => {
                assert_eq!(short, shortages, "what is short is counted");
                assert_eq!(free, before, "what does not fit takes nothing");
                false
            }
            Ok(placed) => {
                assert_eq!(shortages, [], "it fits where there is no room");
                self.settle(name, &placed);
                assert_eq!(free, self.free(), "the free are what the shares leave");
                self.check(name, parts.iter().all(Vec::is_empty));
                true
            }
        }
    }

    fn settle(&mut self, name: u32, placed: &[Vec<Part>]) {
        let classes = &self.classes;
        let pipeline = self.pipelines.get_mut(&name).expect("it is there");
        let shares = pipeline.classes.iter().zip(placed).map(|(class, parts)| {
            let number = |part: &Part| classes[*class].workers[part.worker as usize];
            parts.iter().map(|part| (number(part), part.load.milli())).collect()
        });
        pipeline.shares = Some(shares.collect());
    }

    /// The missing workers by counting: all nodes of a pipeline have one load, so a worker takes as
    /// many of them as fit in its room; cut nodes use any room.
    fn shortages(&self, pipeline: &Pipeline) -> Vec<CapacityShortage> {
        let load = pipeline.load;
        let short = |(class, of): (usize, &Class)| {
            let nodes = pipeline.classes.iter().filter(|of| **of == class).count() as u64;
            let used = self.used(class).into_values().filter(|used| *used <= of.capacity);
            let mut free = used.map(|used| of.capacity - used);
            let workers = if load == 0 {
                u64::from(nodes > 0 && free.next().is_none())
            } else if load <= of.capacity {
                let places: u64 = free.map(|room| room / load).sum();
                nodes.saturating_sub(places).div_ceil(of.capacity / load)
            } else {
                (nodes * load).saturating_sub(free.sum()).div_ceil(of.capacity)
            };
            (workers > 0).then_some(CapacityShortage { class, workers: workers as u32 })
        };
        self.classes.iter().enumerate().filter_map(short).collect()
    }

    /// Checks that no worker is above capacity, no load is lost, no worker is used in vain, and
    /// parts are equal with `Spread::Even`.
    fn check(&self, name: u32, is_fresh: bool) {
        for (class, of) in self.classes.iter().enumerate() {
            let most = self.used(class).into_values().max().unwrap_or(0);
            assert!(most <= of.capacity, "{most} is above the capacity {}", of.capacity);
        }
        let pipeline = &self.pipelines[&name];
        let nodes = pipeline.classes.iter().zip(pipeline.shares.iter().flatten());
        for (class, shares) in nodes {
            let of = &self.classes[*class];
            assert_eq!(shares.iter().map(|share| share.1).sum::<u64>(), pipeline.load);
            assert!(shares.is_sorted_by(|a, b| a.0 < b.0), "{shares:?}: each worker once");
            if pipeline.load <= of.capacity {
                assert_eq!(shares.len(), 1, "a load within the capacity is not cut");
                continue;
            }
            assert!(shares.iter().all(|share| share.1 > 0), "{shares:?}");
            let mut free: BTreeMap<u32, u64> = self.used(*class);
            free.values_mut().for_each(|used| *used = of.capacity - *used);
            shares.iter().for_each(|(worker, load)| {
                *free.get_mut(worker).expect("it is there") += load;
            });
            match of.spread {
                Spread::Fewest => {
                    let fewest = fewest(free.into_values().collect(), pipeline.load);
                    assert_eq!(shares.len(), fewest, "{shares:?}: no worker too many");
                }
                Spread::Even if is_fresh => check_even(&free, shares),
                Spread::Even => {}
            }
        }
    }
}

/// How many workers with the most room take the load.
pub(crate) fn fewest(mut free: Vec<u64>, load: u64) -> usize {
    free.sort_unstable_by(|a, b| b.cmp(a));
    let sums = free.iter().scan(0, |sum, room| {
        *sum += room;
        Some(*sum)
    });
    sums.take_while(|sum| *sum < load).count() + 1
}

/// No worker has less than another by more than one thousandth, unless its room is used up.
fn check_even(free: &BTreeMap<u32, u64>, shares: &Shares) {
    let shares: BTreeMap<u32, u64> = shares.iter().copied().collect();
    let most = shares.values().max().copied().unwrap_or(0);
    for (worker, room) in free {
        let has = shares.get(worker).copied().unwrap_or(0);
        assert!(has + 1 >= most || has == *room, "{shares:?} of {free:?}");
    }
}

/// The load as documents per second, or in fine steps.
pub(crate) fn random_load(random: &mut fastrand::Rng, documents_max: u64) -> u64 {
    match random.u8(0..8) {
        0 => 0,
        1 => random.u64(1..=documents_max * 1_000),
        _ => random.u64(1..=documents_max) * 1_000,
    }
}
