//! Runs the simulator over many seeds, or one seed with its trace.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use leasehold_simulator::{
    Failure, Mutant, Outcome, STANDARD_SEEDS, catch_all, run_seed, run_seeds,
};
use leasehold_types::mutation;

/// Lines of a failing seed's trace that are shown.
const LINES_SHOWN: usize = 40;

/// Ranges of seeds begin so far apart.
const START_GAP: u64 = 1_000_000;

/// Runs both protocol cores in a simulated world with faults, and checks the protocol's
/// properties after every step.
/// How to get a build with them.
const WITH_FAULTS: &str =
    "run `tests/tools/with-faults cargo run --release -p leasehold-simulator -- ...`";

#[derive(Parser, Debug)]
#[command(
    name = "simulate",
    after_help = "Examples:\n  simulate --seeds 100000\n  simulate --seed 4711 --trace\n  \
                  simulate --seeds 500 --mutation FreeOnSend\n  simulate --mutations"
)]
struct Options {
    /// How many seeds to run.
    #[arg(long, default_value_t = 2_000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    first_seed: u64,
    /// Run this seed alone.
    #[arg(long, conflicts_with_all = ["seeds", "first_seed"])]
    seed: Option<u64>,
    /// With --seed: print every step.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Break a core on purpose; a wrong name lists them all.
    #[arg(long, value_parser = mutant)]
    mutation: Option<Mutant>,
    /// With --mutation: run the worlds in which it is looked for, without the fault itself.
    #[arg(long, requires = "mutation", conflicts_with = "mutations")]
    without: bool,
    /// For every deliberate fault, or the one of --mutation: how many seeds it takes to notice it,
    /// at the median and at worst over some disjoint ranges of seeds. A miss is a failure.
    #[arg(long, conflicts_with = "seed")]
    mutations: bool,
    /// With --mutations: so many ranges of seeds.
    #[arg(long, default_value_t = 5)]
    starts: u64,
    /// Threads; each seed runs on one.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Stop after so many failing seeds.
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
        eprintln!("simulate: this build has no deliberate faults: {WITH_FAULTS}");
        return ExitCode::FAILURE;
    }
    if options.without {
        options.mutation = options.mutation.map(Mutant::worlds);
    }
    match options.seed {
        Some(seed) => one(seed, &options),
        None if options.mutations => hunt(&options),
        None => many(&options),
    }
}

fn hunt(options: &Options) -> ExitCode {
    let mutants: Vec<_> = match options.mutation {
        Some(mutant) => vec![mutant],
        None => Mutant::all().collect(),
    };
    let first = options.first_seed;
    let starts: Vec<_> = (0..options.starts).map(|start| first + start * START_GAP).collect();
    println!("{:<28} {:>7} {:>7}  noticed by", "deliberate fault", "median", "worst");
    let hunts =
        catch_all(&mutants, &starts, options.seeds, options.jobs, &|hunt| println!("{hunt}"));
    let missed = hunts.iter().filter(|hunt| hunt.missed()).count();
    println!("{} of {} faults noticed from every start", hunts.len() - missed, hunts.len());
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
        // A log gets a line now and then, a terminal one that changes.
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
    // A broken core, or a few seeds, need not see everything.
    let whole = options.seeds >= STANDARD_SEEDS && mutant.is_none();
    let missing = if whole { summary.coverage.missing() } else { Vec::new() };
    for (what, count, least) in &missing {
        println!("NOT EXERCISED: {what:?} happened {count} times, at least {least} are wanted");
    }
    match summary.failures.is_empty() && missing.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
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
    println!(
        "replay: cargo run -p leasehold-simulator -- --seed {} --trace{mutation}",
        outcome.seed
    );
}
