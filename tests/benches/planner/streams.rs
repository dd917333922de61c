//! Streams over a fleet: times, and moves against the minimum.
//!
//! The minimum is exact for equal weights. With weights it is a lower bound: finding the true
//! minimum is as hard as packing bins.

use leasehold_coordinator_core::planner::streams::Placement;
use leasehold_types::limits::WEIGHT_MAX;
use tests::stream_fleet::{StreamFleet, moves_min};

use crate::{Options, format_time, median, print_row};

const FLEETS: [(usize, usize); 3] = [(10_000, 1_000), (100_000, 1_000), (1_000_000, 10_000)];

/// Prints a row for each size, weights and event.
pub(crate) fn bench(options: &Options) {
    println!("planner, policy Sticky, median of {} runs", options.runs);
    println!(
        "{:>9} {:>7}  {:<9} {:<10} {:>11} {:>9} {:>12} {:>7} {:>9}",
        "streams", "workers", "weights", "event", "time", "moved", "minimum", "spread", "heaviest"
    );
    let fleets = FLEETS.iter().take(if options.quick { 2 } else { FLEETS.len() });
    for &(streams, workers) in fleets {
        for weighted in [false, true] {
            bench_fleet(streams, workers, weighted, options.runs);
        }
    }
}

fn bench_fleet(streams: usize, workers: usize, weighted: bool, runs: usize) {
    let mut random = fastrand::Rng::with_seed(27);
    let mut weight = || if weighted { random.u32(1..=WEIGHT_MAX) } else { 1 };
    let names = (0..workers).map(|number| format!("worker-{number}"));
    let mut fleet = StreamFleet::new(names, (0..streams).map(|_| weight()));
    fleet.settle(&row(&fleet, "fresh", weighted, runs));
    row(&fleet, "no change", weighted, runs);
    let mut left = fleet.clone();
    let leaver = format!("worker-{}", workers / 2);
    left.change_workers(|names| names.remove(&leaver));
    row(&left, "one leaves", weighted, runs);
    fleet.change_workers(|names| names.insert(format!("worker-{workers}")));
    row(&fleet, "one joins", weighted, runs);
}

/// Times a plan and prints what it does.
fn row(fleet: &StreamFleet, event: &str, weighted: bool, runs: usize) -> Vec<Placement> {
    let (streams, workers) = (fleet.streams(), fleet.workers().len());
    let what = format!("{} x {workers}, {event}", streams.len());
    let (time, placed) = median(runs, &what, || fleet.plan());
    let orphans = streams.iter().filter(|stream| stream.present.is_none()).count();
    let orphans = if event == "one leaves" { orphans } else { 0 };
    let moved = orphans + fleet.moved(&placed);
    let between =
        if weighted { moves_bound(fleet) } else { moves_min(fleet.owned(), streams.len()) };
    let minimum = orphans + between;
    let (low, high) = ends(&loads(fleet, &placed));
    let heaviest = streams.iter().map(|stream| stream.weight).max().unwrap_or(0);
    print_row(&format!(
        "{:>9} {workers:>7}  {:<9} {:<10} {:>11} {:>9} {:>12} {:>7} {:>9}",
        streams.len(),
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

fn loads(fleet: &StreamFleet, placements: &[Placement]) -> Vec<u64> {
    let mut loads = vec![0; fleet.workers().len()];
    for (stream, place) in fleet.streams().iter().zip(placements) {
        match place {
            Placement::On(worker) => loads[*worker as usize] += u64::from(stream.weight),
            Placement::Unplaced(why) => panic!("a stream is not placed: {why:?}"),
        }
    }
    loads
}

/// A number that is surely no larger than the fewest streams that move between living workers.
///
/// Balanced loads lie within some `low..=low + heaviest`: what is above must be taken away,
/// heaviest first at best; what is below must be filled, by the heaviest at best.
fn moves_bound(fleet: &StreamFleet) -> usize {
    let streams = fleet.streams();
    let mut owned: Vec<Vec<u64>> = vec![Vec::new(); fleet.workers().len()];
    for stream in streams {
        if let Some(worker) = stream.present {
            owned[worker as usize].push(u64::from(stream.weight));
        }
    }
    owned.iter_mut().for_each(|weights| weights.sort_unstable_by(|a, b| b.cmp(a)));
    let loads: Vec<u64> = owned.iter().map(|weights| weights.iter().sum()).collect();
    let weights = streams.iter().map(|stream| u64::from(stream.weight));
    let (heaviest, all): (u64, u64) =
        weights.fold((1, 0), |(heaviest, all), weight| (heaviest.max(weight), all + weight));
    let fresh = streams.iter().filter(|stream| stream.present.is_none()).count();
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

fn ends(loads: &[u64]) -> (u64, u64) {
    loads.iter().fold((u64::MAX, 0), |(low, high), load| (low.min(*load), high.max(*load)))
}
