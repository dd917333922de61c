//! The simulator as a test: many seeds without a violation, each seed the same every time, what
//! matters really exercised, and every deliberate fault of the cores detected.

use leasehold_simulator::{Mutant, Outcome, STANDARD_SEEDS, detect_all, run_seed, run_seeds};

/// Threads over seeds; each seed runs on one.
const THREADS: usize = 2;
/// Seeds within which a fault must be detected.
const MUTANT_SEEDS: u64 = 2_500;

/// Seeds of a fault's own runs.
const WORLD_SEEDS: u64 = 300;

fn failure_text(outcome: &Outcome) -> String {
    let failure = outcome.failure.as_ref().expect("a failing seed");
    let lines = &outcome.lines[outcome.lines.len().saturating_sub(40)..];
    format!(
        "seed {}: {} does not hold: {}\n{}\nreplay: cargo run --release -p leasehold-simulator -- \
         --seed {} --trace",
        outcome.seed,
        failure.property,
        failure.detail,
        lines.join("\n"),
        outcome.seed
    )
}

#[test]
fn every_property_holds_in_every_seed_and_everything_is_exercised() {
    let summary = run_seeds(0, STANDARD_SEEDS, THREADS, None, 1, &|_, _| ());
    if let Some(failure) = summary.failures.first() {
        panic!("{}", failure_text(&run_seed(failure.seed, None, true)));
    }
    println!("{}{} seeds, {} steps", summary.coverage, summary.seeds, summary.steps);
    let missing = summary.coverage.missing();
    assert!(missing.is_empty(), "happened too rarely (times, at least wanted): {missing:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..20 {
        let (once, twice) = (run_seed(seed, None, false), run_seed(seed, None, true));
        assert_eq!((once.digest, once.steps), (twice.digest, twice.steps), "seed {seed}");
    }
}

/// Runs with the bias of a fault hold without it, so that only the fault breaks a property there.
#[test]
fn properties_hold_in_biased_worlds_without_the_fault() {
    for mutant in Mutant::with_bias() {
        let worlds = Some(mutant.without_fault());
        let summary = run_seeds(0, WORLD_SEEDS, THREADS, worlds, 1, &|_, _| ());
        let failed = summary.failures.first().map(|it| run_seed(it.seed, worlds, true));
        if let Some(failed) = failed {
            panic!("{} --mutation {} --without", failure_text(&failed), mutant.name());
        }
        assert_eq!(summary.seeds, WORLD_SEEDS, "{}", mutant.name());
    }
}

#[test]
fn every_deliberate_fault_is_detected() {
    let mutants: Vec<_> = Mutant::all().collect();
    let detections =
        detect_all(&mutants, &[0], MUTANT_SEEDS, THREADS, &|detection| println!("{detection}"));
    let missed: Vec<_> = detections.iter().filter(|detection| detection.missed()).collect();
    assert!(missed.is_empty(), "missed: {missed:?}");
}
