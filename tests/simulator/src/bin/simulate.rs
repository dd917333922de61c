//! Runs the simulator over many seeds, or one seed with its trace.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use leasehold_simulator::{
    Failure, Mutant, Outcome, STANDARD_SEEDS, Search, detect_all, run_seed, run_seeds,
};
use leasehold_types::mutation;

/// The number of lines of a failing seed's trace to print.
const LINES_SHOWN: usize = 40;

/// The distance between the first seeds of two ranges.
const START_GAP: u64 = 1_000_000;

/// How to run a build that has deliberate faults.
const WITH_FAULTS: &str =
    "tests/tools/with-faults cargo run --release -p leasehold-simulator -- --mutations";

/// Examples for --help.
const EXAMPLES: &str = "\
Examples:
  cargo run --release -p leasehold-simulator -- --seeds 100000
  cargo run --release -p leasehold-simulator -- --seed 4711 --trace

Deliberate faults of the cores exist only in a build of their own:
  tests/tools/with-faults cargo run --release -p leasehold-simulator -- --mutations
  tests/tools/with-faults cargo run --release -p leasehold-simulator -- --mutation FreeOnSend";

/// Runs both protocol cores in a simulated world with faults, and checks the protocol's properties
/// after every step.
#[derive(Parser, Debug)]
#[command(name = "simulate", after_help = EXAMPLES)]
struct Options {
    /// The number of seeds to run; with --mutations, the most for each fault and start, 60000
    /// unless it is given.
    #[arg(long, default_value_t = 2_000, default_value_if("mutations", "true", "60000"))]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first_seed: u64,
    /// Run only this seed.
    #[arg(long, conflicts_with_all = ["seeds", "first_seed"])]
    seed: Option<u64>,
    /// Print every step; needs --seed.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Turn on this deliberate fault of a core; an unknown name lists all of them.
    #[arg(long, value_parser = mutant)]
    mutation: Option<Mutant>,
    /// With --mutation: run the same seeds with the same bias, but without the fault.
    #[arg(long, requires = "mutation", conflicts_with = "mutations")]
    without: bool,
    /// Report how many seeds it takes to detect every deliberate fault, or the one of --mutation:
    /// the median and the worst of several ranges of seeds. Fails if a fault is missed.
    #[arg(long, conflicts_with = "seed")]
    mutations: bool,
    /// With --mutations: the number of ranges of seeds.
    #[arg(long, default_value_t = 3)]
    starts: u64,
    /// The number of threads; each seed runs on one.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Stop after this many failing seeds.
    #[arg(long, default_value_t = 1)]
    failures: usize,
}

fn mutant(name: &str) -> Result<Mutant, String> {
    Mutant::named(name).ok_or_else(|| {
        let all: Vec<_> = Mutant::all().map(Mutant::name).collect();
        format!("expected one of: {}", all.join(", "))
    })
}

fn main() -> ExitCode {
    let mut options = Options::parse();
    if (options.mutation.is_some() || options.mutations) && !mutation::BUILT_IN {
        eprintln!("simulate: this build has no deliberate faults. Run: {WITH_FAULTS}");
        return ExitCode::FAILURE;
    }
    if options.without {
        options.mutation = options.mutation.map(Mutant::without_fault);
    }
    match options.seed {
        Some(seed) => one(seed, &options),
        None if options.mutations => detection(&options),
        None => many(&options),
    }
}

fn detection(options: &Options) -> ExitCode {
    let mutants: Vec<_> = match options.mutation {
        Some(mutant) => vec![mutant],
        None => Mutant::all().collect(),
    };
    let first = options.first_seed;
    let starts: Vec<_> = (0..options.starts).map(|start| first + start * START_GAP).collect();
    println!("{:<28} {:>7} {:>7}  property", "deliberate fault", "median", "worst");
    let searches: Vec<_> =
        mutants.into_iter().map(|mutant| Search { mutant, starts: starts.clone() }).collect();
    let detections =
        detect_all(&searches, options.seeds, options.jobs, &|detection| println!("{detection}"));
    let missed = detections.iter().filter(|detection| detection.missed()).count();
    println!(
        "{} of {} faults detected from every start",
        detections.len() - missed,
        detections.len()
    );
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn one(seed: u64, options: &Options) -> ExitCode {
    let outcome = run_seed(seed, options.mutation, true);
    if options.trace {
        outcome.lines.iter().for_each(|line| println!("{line}"));
    }
    println!("seed {seed}: {} steps, digest {:016x}", outcome.steps, outcome.digest);
    match outcome.failure {
        None => ExitCode::SUCCESS,
        Some(_) => {
            report(&outcome, options);
            ExitCode::FAILURE
        }
    }
}

fn many(options: &Options) -> ExitCode {
    let begun = Instant::now();
    let terminal = std::io::stderr().is_terminal();
    let progress = |done: u64, outcome: &Outcome| {
        if let Some(Failure { property, detail }) = &outcome.failure {
            eprintln!("seed {}: {property} does not hold: {detail}", outcome.seed);
        }
        // A log gets a line at intervals, a terminal one line that is overwritten.
        let (every, start, end) = if terminal { (100, "\r", "") } else { (5_000, "", "\n") };
        if done.is_multiple_of(every) {
            let rate = done as f64 / begun.elapsed().as_secs_f64();
            eprint!("{start}{done} of {} seeds, {rate:.0} a second {end}", options.seeds);
            let _ = std::io::stderr().flush();
        }
    };
    let (first, mutant) = (options.first_seed, options.mutation);
    let summary =
        run_seeds(first, options.seeds, options.jobs, mutant, options.failures, &progress);
    if terminal {
        eprintln!();
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{}", summary.coverage);
    println!(
        "{} seeds, {} steps, {seconds:.1} s, {:.0} seeds a second, {} failed",
        summary.seeds,
        summary.steps,
        summary.seeds as f64 / seconds,
        summary.failures.len(),
    );
    for failure in &summary.failures {
        report(&run_seed(failure.seed, mutant, true), options);
    }
    // Only a full run of the real cores must exercise everything.
    let whole = options.seeds >= STANDARD_SEEDS && mutant.is_none();
    let missing = if whole { summary.coverage.missing() } else { Vec::new() };
    for (what, count, least) in &missing {
        println!("NOT EXERCISED: {what:?} happened {count} times, expected at least {least}");
    }
    if summary.failures.is_empty() && missing.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn report(outcome: &Outcome, options: &Options) {
    let Some(failure) = &outcome.failure else { return };
    println!("\nseed {}: {} does not hold: {}", outcome.seed, failure.property, failure.detail);
    let skip = outcome.lines.len().saturating_sub(LINES_SHOWN);
    outcome.lines[skip..].iter().for_each(|line| println!("{line}"));
    let mutation = match options.mutation {
        Some(mutant) if options.without => format!(" --mutation {} --without", mutant.name()),
        Some(mutant) => format!(" --mutation {}", mutant.name()),
        None => String::new(),
    };
    let prefix = if options.mutation.is_some() { "tests/tools/with-faults " } else { "" };
    println!(
        "replay: {prefix}cargo run --release -p leasehold-simulator -- --seed {} --trace{mutation}",
        outcome.seed
    );
}
