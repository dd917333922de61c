//! Pipelines over classes: how well batches are packed, and how long a plan takes.

use leasehold_coordinator_core::desired::Spread;
use leasehold_coordinator_core::planner::pipelines::{
    FreeCapacity, MovableShare, NodeRequest, Part, make_room, place,
};
use leasehold_types::Load;

use crate::{Options, format_time, median, print_row, timed};

/// The load that one worker can take, in thousandths.
const CAPACITY: u64 = 1_000_000;

/// Ranges of loads, in percent of the capacity.
const LOADS: [(u64, u64); 4] = [(1, 100), (10, 50), (20, 40), (1, 250)];

/// Pipelines, of ten nodes each.
const PIPELINES: [usize; 2] = [10_000, 100_000];
const NODES: usize = 10;
/// So few that each may have the most workers there are in a class: 10,000.
const CLASSES: usize = 2;
/// Bindings on one worker, if all were full.
const BINDINGS_PER_WORKER: usize = 50;

/// Prints how batches are packed, then a row for each size and event.
pub(crate) fn bench(options: &Options) {
    println!("\npacking, loads in percent of the capacity");
    print_row(&format!(
        "{:>7} {:>6}  {:<8} {:>7} {:>8} {:>10} {:>14}",
        "batches", "loads", "from-to", "ours", "arrival", "optimum", "over"
    ));
    for (batches, count) in [(2_000, 10), (100, 1_000)] {
        LOADS.iter().for_each(|loads| bench_packing(batches, count, *loads));
    }
    println!("\nplanner of pipelines, {NODES} nodes each, median of {} runs", options.runs);
    print_row(&format!(
        "{:>9} {:>7}  {:<10} {:>12} {:>9} {:>7}",
        "bindings", "workers", "event", "time", "placed", "moved"
    ));
    let sizes = PIPELINES.iter().take(if options.quick { 1 } else { PIPELINES.len() });
    sizes.for_each(|pipelines| bench_fleet(*pipelines, options.runs));
}

fn load(milli: u64) -> Load {
    Load::from_milli(milli).expect("it is below the largest load")
}

/// Batches of random loads.
fn bench_packing(batches: u64, count: usize, (from, to): (u64, u64)) {
    let (mut ours, mut arrival, mut optimum) = (0, 0, 0);
    let (mut over, mut over_most) = (0, 0);
    let is_exact = count <= 10 && to <= 100;
    for seed in 0..batches {
        let mut random = fastrand::Rng::with_seed(seed);
        let load = |_| random.u64(from * CAPACITY / 100..=to * CAPACITY / 100);
        let mut loads: Vec<u64> = (0..count).map(load).collect();
        arrival += in_use(&loads);
        loads.sort_unstable_by(|a, b| b.cmp(a));
        let used = in_use(&loads);
        let sum = loads.iter().sum::<u64>().div_ceil(CAPACITY) as usize;
        let best = if is_exact { fewest(&loads) } else { sum };
        ours += used;
        optimum += best;
        over += usize::from(used > best);
        over_most = over_most.max(used - best);
    }
    print_row(&format!(
        "{batches:>7} {count:>6}  {:<8} {ours:>7} {arrival:>8} {:>10} {:>14}",
        format!("{from}-{to}"),
        format!("{} {optimum}", if is_exact { "=" } else { ">=" }),
        format!("{over}, by {over_most}"),
    ));
}

/// The workers in use when the loads were placed in this order.
fn in_use(loads: &[u64]) -> usize {
    let empty = vec![Load::ZERO; 3 * loads.len()];
    let mut free = [FreeCapacity::new(load(CAPACITY), Spread::Fewest, empty)];
    for milli in loads {
        let request = NodeRequest { class: 0, load: load(*milli), prefers: &[] };
        place(&mut free, &[request]).expect("there are more than enough workers");
    }
    let workers = 0..u32::try_from(free[0].len()).expect("few workers");
    workers.filter(|worker| free[0].used(*worker) > Load::ZERO).count()
}

/// The fewest workers, by trying all sets of loads: the fewest full ones, then the least in the
/// last.
fn fewest(loads: &[u64]) -> usize {
    let mut best = vec![(usize::MAX, 0); 1 << loads.len()];
    best[0] = (1, 0);
    for set in 1..best.len() {
        for (at, load) in loads.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1) {
            let (workers, last) = best[set ^ (1 << at)];
            let fits = last + load <= CAPACITY;
            let with = if fits { (workers, last + load) } else { (workers + 1, *load) };
            best[set] = best[set].min(with);
        }
    }
    best[best.len() - 1].0
}

/// Pipelines by descending load, the class of each node, and where they are.
#[derive(Clone)]
struct Fleet {
    free: Vec<FreeCapacity>,
    pipelines: Vec<(u64, [usize; NODES])>,
    placed: Vec<Vec<Vec<Part>>>,
}

fn bench_fleet(pipelines: usize, runs: usize) {
    let mut random = fastrand::Rng::with_seed(27);
    let workers = pipelines * NODES / CLASSES / BINDINGS_PER_WORKER;
    // About nine tenths of what the workers can take.
    let most = 2 * CAPACITY / BINDINGS_PER_WORKER as u64 * 9 / 10;
    let mut pipeline = |_| (random.u64(1..=most), std::array::from_fn(|_| random.usize(..CLASSES)));
    let empty = FreeCapacity::new(load(CAPACITY), Spread::Fewest, vec![Load::ZERO; workers]);
    let mut fleet = Fleet {
        free: vec![empty; CLASSES],
        pipelines: (0..pipelines).map(&mut pipeline).collect(),
        placed: Vec::new(),
    };
    let row = |event: &str, time, placed: usize, moved: usize| {
        print_row(&format!(
            "{:>9} {:>7}  {event:<10} {:>12} {placed:>9} {moved:>7}",
            pipelines * NODES,
            workers * CLASSES,
            format_time(time),
        ));
    };
    let what = |event: &str| format!("{} bindings, {event}", pipelines * NODES);
    let (time, first) = median(runs, &what("first"), || {
        let mut fleet = fleet.clone();
        timed(|| {
            fleet.place_all();
            fleet
        })
    });
    fleet = first;
    row("first", time, bindings(&fleet.placed), 0);
    let lost = u32::try_from(workers / 2).expect("few workers");
    let served = fleet.served(0, lost);
    let (time, placed) = median(runs, &what("lost"), || {
        let mut fleet = fleet.clone();
        timed(|| fleet.place_again(&served, 0, lost))
    });
    row("lost", time, bindings(&placed), fleet.moved(&served, &placed, lost));
    let (free, tenants) = full_class(workers, &mut random);
    let wanted = load(CAPACITY / 4);
    let (time, moves) = median(runs, &what("make room"), || {
        timed(|| make_room(&free, &tenants, wanted).expect("there is a way"))
    });
    row("make room", time, 1, moves.len());
}

/// Workers that are nine tenths full each, and what they have.
fn full_class(workers: usize, random: &mut fastrand::Rng) -> (FreeCapacity, Vec<MovableShare>) {
    let mut free = FreeCapacity::new(load(CAPACITY), Spread::Fewest, vec![Load::ZERO; workers]);
    let mut tenants = Vec::new();
    for worker in 0..u32::try_from(workers).expect("few workers") {
        while free.used(worker) < load(CAPACITY / 10 * 9) {
            let milli = random.u64(1..=2 * CAPACITY / BINDINGS_PER_WORKER as u64);
            free.take(worker, load(milli));
            tenants.push(MovableShare { worker, load: load(milli), movable: true });
        }
    }
    (free, tenants)
}

fn bindings(placed: &[Vec<Vec<Part>>]) -> usize {
    placed.iter().map(Vec::len).sum()
}

impl Fleet {
    fn place_all(&mut self) {
        self.pipelines.sort_by_key(|(load, _)| std::cmp::Reverse(*load));
        for (milli, classes) in &self.pipelines {
            let request =
                |class: &usize| NodeRequest { class: *class, load: load(*milli), prefers: &[] };
            let requests = classes.each_ref().map(request);
            let placed = place(&mut self.free, &requests);
            self.placed.push(placed.expect("a tenth of the room is to spare"));
        }
    }

    /// The pipelines that a worker serves.
    fn served(&self, class: usize, worker: u32) -> Vec<usize> {
        let is_served = |at: &usize| {
            let mut nodes = self.pipelines[*at].1.iter().zip(&self.placed[*at]);
            nodes.any(|(of, parts)| *of == class && parts.iter().any(|part| part.worker == worker))
        };
        (0..self.pipelines.len()).filter(is_served).collect()
    }

    /// Chooses these again, without that worker.
    fn place_again(&mut self, served: &[usize], class: usize, lost: u32) -> Vec<Vec<Vec<Part>>> {
        for at in served {
            for (of, parts) in self.pipelines[*at].1.iter().zip(&mut self.placed[*at]) {
                parts.iter().for_each(|part| self.free[*of].give(part.worker, part.load));
                parts.retain(|part| *of != class || part.worker != lost);
            }
        }
        // More than it can take: nothing goes there.
        self.free[class].take(lost, load(2 * CAPACITY));
        let mut all = Vec::with_capacity(served.len());
        for at in served {
            let (milli, classes) = &self.pipelines[*at];
            let nodes = classes.iter().zip(&self.placed[*at]);
            let request = |(class, prefers): (&usize, _)| NodeRequest {
                class: *class,
                load: load(*milli),
                prefers,
            };
            let requests: Vec<NodeRequest<'_>> =
                nodes.map(|(class, parts)| request((class, parts.as_slice()))).collect();
            all.push(place(&mut self.free, &requests).expect("a tenth of the room is to spare"));
        }
        all
    }

    /// Bindings that are elsewhere now, and were not on the worker of the first class that was
    /// lost.
    fn moved(&self, served: &[usize], placed: &[Vec<Vec<Part>>], lost: u32) -> usize {
        let nodes = |(at, placed): (&usize, &Vec<Vec<Part>>)| {
            let before = self.pipelines[*at].1.iter().zip(&self.placed[*at]);
            let is_lost = |class, parts: &[Part]| class == 0 && parts[0].worker == lost;
            let moved = before
                .zip(placed)
                .filter(|((class, before), now)| before != now && !is_lost(**class, before));
            moved.count()
        };
        served.iter().zip(placed).map(nodes).sum()
    }
}
