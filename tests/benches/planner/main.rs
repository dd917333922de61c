//! Times the planner, and holds its plans against the best there are.

mod healing;
mod pipelines;
mod streams;

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::Parser;
use tests::bench;

const COLUMNS: &str = "\
Streams:
  time     median of the runs, one call of the planner
  moved    streams whose owner changes, those of a worker that left included
  minimum  the fewest that any balanced plan moves: '=' exact, '>=' a lower bound
  spread   highest less lowest load of a worker; the promise is at most the heaviest weight

Packing, as workers in use over all batches:
  ours     a batch by descending load, each to the least room that is enough
  arrival  the same, but each as it comes (plain best fit)
  optimum  the fewest workers: '=' by trying everything, '>=' the sum over the capacity
  over     batches in which ours uses more than that, and the most that it is over in one

Pipelines:
  time     median of the runs; 'first' places all of them by descending load, 'lost' those that a
           lost worker served, with what they had on others
  moved    bindings that changed their worker, beside those of the worker that was lost; for
           'make room' (for a load of a quarter, in one class, all workers nine tenths full) the
           shares that would move

Healing:
  workers  of both classes together
  lost     pipelines that the lost worker serves
  rounds   round trips to the agents from the loss of a worker until all that it served is Ready
  time     what the leader's core takes for all of that, median of the runs
  longest  its longest look at the world in the last run";

fn main() {
    let options = bench::options();
    streams::bench(&options);
    pipelines::bench(&options);
    healing::bench(&options);
}

/// Times the planner for fleets and pipelines of several sizes, and holds its plans against the
/// best.
#[derive(Debug, Parser)]
#[command(name = "planner", after_help = COLUMNS)]
struct Options {
    /// How many runs the median is of.
    #[arg(long, default_value_t = 9, value_parser = bench::above_zero)]
    runs: usize,
    /// Leaves the largest out.
    #[arg(long)]
    quick: bool,
}

/// Runs it this many times; the median, and what the last run gave.
fn median<T>(runs: usize, what: &str, mut run: impl FnMut() -> (Duration, T)) -> (Duration, T) {
    let progress = std::io::stderr().is_terminal();
    if progress {
        eprint!("... {what}");
    }
    let (time, mut result) = run();
    let mut times = vec![time];
    for _ in 1..runs {
        let (time, again) = run();
        times.push(time);
        result = again;
    }
    times.sort_unstable();
    if progress {
        eprint!("\r{:60}\r", "");
    }
    (times[times.len() / 2], result)
}

/// Times one call.
fn timed<T>(call: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = call();
    (start.elapsed(), result)
}

fn print_row(row: &str) {
    println!("{row}");
    std::io::stdout().flush().expect("standard output takes a line");
}

fn format_time(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}
