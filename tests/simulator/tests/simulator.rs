//! The simulator as a test: many seeds without a violation, each seed the same every time, what
//! matters really exercised, and every deliberate fault of the cores detected.

use leasehold_simulator::{
    Mutant, Outcome, STANDARD_SEEDS, Search, detect_all, is_in_shard, run_seed, run_seeds,
};

/// Threads over seeds; each seed runs on one.
const THREADS: usize = 2;
/// Seeds within which a fault must be detected.
const MUTANT_SEEDS: u64 = 2_500;

/// The first seed that detects each of the faults that need a hundred seeds or more. The search
/// starts there, which saves minutes. After a change of the cores another seed may be the first;
/// the search then goes on from this one. `simulate --mutations` starts at seed 0.
const DETECTED_AT: [(&str, u64); 15] = [
    ("ActOnHalfManifest", 4_700),
    ("JobBeforeOwed", 1_700),
    ("LateReportHeld", 1_000),
    ("HeldBackForgotten", 726),
    ("BootForgivesAll", 710),
    ("PlanStale", 279),
    ("GoodbyeForgetsUnreported", 264),
    ("FormerModeHolds", 244),
    ("NodeLoadPerClass", 213),
    ("KnownBeforeEnd", 201),
    ("UnsureSizeKept", 167),
    ("RenewedBeforeOwed", 152),
    ("RegisteredOfAnotherAccount", 149),
    ("GapUnnoticed", 132),
    ("PassedOverForgotten", 108),
];

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
    let all = Mutant::with_bias().enumerate();
    let selected: Vec<_> =
        all.filter(|(number, _)| is_in_shard(*number)).map(|(_, mutant)| mutant).collect();
    assert!(!selected.is_empty(), "there are fewer faults with a bias than shards");
    for mutant in selected {
        let worlds = Some(mutant.without_fault());
        let summary = run_seeds(0, WORLD_SEEDS, THREADS, worlds, 1, &|_, _| ());
        let failed = summary.failures.first().map(|failure| run_seed(failure.seed, worlds, true));
        if let Some(failed) = failed {
            panic!("{} --mutation {} --without", failure_text(&failed), mutant.name());
        }
        assert_eq!(summary.seeds, WORLD_SEEDS, "{}", mutant.name());
    }
}

#[test]
fn every_deliberate_fault_is_detected() {
    let start = |mutant: Mutant| {
        let entry = DETECTED_AT.iter().find(|(name, _)| *name == mutant.name());
        entry.map_or(0, |(_, seed)| *seed)
    };
    let named = |name: &str| Mutant::all().any(|mutant| mutant.name() == name);
    let in_shard = Mutant::all().enumerate().filter(|(number, _)| is_in_shard(*number));
    let searches: Vec<_> =
        in_shard.map(|(_, mutant)| Search { mutant, starts: vec![start(mutant)] }).collect();
    assert!(!searches.is_empty(), "there are fewer faults than shards");
    assert!(DETECTED_AT.iter().all(|(name, _)| named(name)), "DETECTED_AT names unknown faults");
    let detections =
        detect_all(&searches, MUTANT_SEEDS, THREADS, &|detection| println!("{detection}"));
    let missed: Vec<_> = detections.iter().filter(|detection| detection.missed()).collect();
    assert!(missed.is_empty(), "missed: {missed:?}");
}
