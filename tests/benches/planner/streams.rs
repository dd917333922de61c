//! Streams over a fleet: times, and moves against the minimum.
//!
//! The minimum is exact for equal weights. With weights it is a lower bound: finding the true
//! minimum is as hard as packing bins.

use std::collections::BTreeSet;

use leasehold_coordinator_core::desired::Policy;
use leasehold_coordinator_core::planner::streams::{
    Placement, SetInput, StreamInput, StreamSpec, WorkerIndex, plan,
};

use crate::{Options, format_time, median, print_row, timed};

const FLEETS: [(usize, usize); 3] = [(10_000, 1_000), (100_000, 1_000), (1_000_000, 10_000)];

const WEIGHT_MAX: u32 = 100;

/// Prints a row for each size, weights and event.
pub(crate) fn bench(options: &Options) {
    println!("planner, policy Sticky, median of {} runs", options.runs);
    println!(
        "{:>9} {:>7}  {:<8} {:<10} {:>11} {:>9} {:>12} {:>7} {:>9}",
        "streams", "workers", "weights", "event", "time", "moved", "minimum", "spread", "heaviest"
    );
    let fleets = FLEETS.iter().take(if options.quick { 2 } else { FLEETS.len() });
    for &(streams, workers) in fleets {
        for weighted in [false, true] {
            bench_fleet(streams, workers, weighted, options.runs);
        }
    }
}

/// Workers, by name, and streams as the planner gets them.
#[derive(Clone)]
struct Fleet {
    workers: BTreeSet<String>,
    streams: Vec<StreamSpec>,
}

fn bench_fleet(streams: usize, workers: usize, weighted: bool, runs: usize) {
    let mut random = fastrand::Rng::with_seed(27);
    let mut weight = || if weighted { random.u32(1..=WEIGHT_MAX) } else { 1 };
    let stream = |weight| StreamSpec { weight, dedicated: false, present: None, frozen: false };
    let mut fleet = Fleet {
        workers: (0..workers).map(|number| format!("worker-{number}")).collect(),
        streams: (0..streams).map(|_| stream(weight())).collect(),
    };
    fleet.settle(fleet.row("fresh", weighted, runs));
    fleet.row("no change", weighted, runs);
    let mut left = fleet.clone();
    let leaver = format!("worker-{}", workers / 2);
    left.change_workers(|names| names.remove(&leaver));
    left.row("one leaves", weighted, runs);
    fleet.change_workers(|names| names.insert(format!("worker-{workers}")));
    fleet.row("one joins", weighted, runs);
}

impl Fleet {
    /// Times a plan and prints what it does.
    fn row(&self, event: &str, weighted: bool, runs: usize) -> Vec<Placement> {
        let names: Vec<&str> = self.workers.iter().map(String::as_str).collect();
        let set =
            SetInput { policy: Policy::Sticky, streams: &self.streams, moves_max: usize::MAX };
        let sets = [set];
        let input =
            StreamInput { workers: &names, avoided: &[], sets: &sets, per_worker_max: usize::MAX };
        let what = format!("{} x {}, {event}", self.streams.len(), self.workers.len());
        let (time, mut placements) = median(runs, &what, || timed(|| plan(&input)));
        let placed = placements.remove(0);
        let changed = |(stream, place): (&StreamSpec, &Placement)| match (stream.present, place) {
            (Some(worker), place) => *place != Placement::On(worker),
            (None, _) => event == "one leaves",
        };
        let moved = self.streams.iter().zip(&placed).filter(|pair| changed(*pair)).count();
        let orphans = self.streams.iter().filter(|stream| stream.present.is_none()).count();
        let orphans = if event == "one leaves" { orphans } else { 0 };
        let minimum = orphans + self.moves_min(weighted);
        let (low, high) = ends(&self.loads(&placed));
        let heaviest = self.streams.iter().map(|stream| stream.weight).max().unwrap_or(0);
        print_row(&format!(
            "{:>9} {:>7}  {:<8} {:<10} {:>11} {:>9} {:>12} {:>7} {:>9}",
            self.streams.len(),
            self.workers.len(),
            if weighted { format!("1-{WEIGHT_MAX}") } else { "equal".into() },
            event,
            format_time(time),
            moved,
            format!("{}{minimum}", if weighted { ">= " } else { "= " }),
            high - low,
            heaviest,
        ));
        placed
    }

    fn settle(&mut self, placements: Vec<Placement>) {
        for (stream, place) in self.streams.iter_mut().zip(placements) {
            stream.present = match place {
                Placement::On(worker) => Some(worker),
                Placement::Unplaced(_) => None,
            };
        }
    }

    /// Changes the workers; the streams' owners keep their names, so their numbers change.
    fn change_workers(&mut self, change: impl FnOnce(&mut BTreeSet<String>) -> bool) {
        let before = self.workers.clone();
        assert!(change(&mut self.workers), "the change is one");
        let after: Vec<&String> = self.workers.iter().collect();
        let number = |name: &String| after.binary_search(&name).ok();
        let numbers: Vec<Option<WorkerIndex>> =
            before.iter().map(|name| number(name).map(|at| at as WorkerIndex)).collect();
        for stream in &mut self.streams {
            stream.present = stream.present.and_then(|worker| numbers[worker as usize]);
        }
    }

    fn loads(&self, placements: &[Placement]) -> Vec<u64> {
        let mut loads = vec![0; self.workers.len()];
        for (stream, place) in self.streams.iter().zip(placements) {
            match place {
                Placement::On(worker) => loads[*worker as usize] += u64::from(stream.weight),
                Placement::Unplaced(why) => panic!("a stream is not placed: {why:?}"),
            }
        }
        loads
    }

    /// The fewest streams that move between living workers, or a number that is surely no larger.
    fn moves_min(&self, weighted: bool) -> usize {
        let mut owned: Vec<Vec<u64>> = vec![Vec::new(); self.workers.len()];
        for stream in &self.streams {
            if let Some(worker) = stream.present {
                owned[worker as usize].push(u64::from(stream.weight));
            }
        }
        if weighted { self.moves_bound(owned) } else { self.moves_exact(&owned) }
    }

    /// Balanced loads are known up to who has one more; it is best had by who has most.
    fn moves_exact(&self, owned: &[Vec<u64>]) -> usize {
        let mut counts: Vec<usize> = owned.iter().map(Vec::len).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let (share, odd) = (self.streams.len() / counts.len(), self.streams.len() % counts.len());
        let quotas = (0..).map(|place| share + usize::from(place < odd));
        counts.iter().zip(quotas).map(|(count, quota)| count.saturating_sub(quota)).sum()
    }

    /// Balanced loads lie within some `low..=low + heaviest`: what is above must be taken away,
    /// heaviest first at best; what is below must be filled, by the heaviest at best.
    fn moves_bound(&self, mut owned: Vec<Vec<u64>>) -> usize {
        owned.iter_mut().for_each(|weights| weights.sort_unstable_by(|a, b| b.cmp(a)));
        let loads: Vec<u64> = owned.iter().map(|weights| weights.iter().sum()).collect();
        let weights = self.streams.iter().map(|stream| u64::from(stream.weight));
        let (heaviest, all): (u64, u64) =
            weights.fold((1, 0), |(heaviest, all), weight| (heaviest.max(weight), all + weight));
        let fresh = self.streams.iter().filter(|stream| stream.present.is_none()).count();
        let workers = loads.len() as u64;
        let out = |high: u64| -> usize {
            let of_one = |(load, weights): (&u64, &Vec<u64>)| {
                let mut left = *load;
                let leaves = |weight: &&u64| {
                    let above = left > high;
                    left -= **weight;
                    above
                };
                weights.iter().take_while(leaves).count()
            };
            loads.iter().zip(&owned).map(of_one).sum()
        };
        let into = |low: u64| -> usize {
            let wanted = loads.iter().map(|load| low.saturating_sub(*load).div_ceil(heaviest));
            (wanted.sum::<u64>() as usize).saturating_sub(fresh)
        };
        // `into` rises with `low`, `out` falls: the least of the larger is where they cross.
        let (mut low, mut high) = (all.div_ceil(workers).saturating_sub(heaviest), all / workers);
        let least = low;
        while low < high {
            let middle = low + (high - low) / 2;
            if into(middle) >= out(middle + heaviest) { high = middle } else { low = middle + 1 }
        }
        let at = |low: u64| into(low).max(out(low + heaviest));
        if low > least { at(low).min(at(low - 1)) } else { at(low) }
    }
}

fn ends(loads: &[u64]) -> (u64, u64) {
    loads.iter().fold((u64::MAX, 0), |(low, high), load| (low.min(*load), high.max(*load)))
}
