//! The simulator as a test: many seeds without a violation, each seed the same every time, what
//! matters really exercised, and every deliberate fault of the cores noticed.

use leasehold_simulator::{Mutant, Outcome, run_seed, run_seeds};

/// Seeds that must hold.
const SEEDS: u64 = 2_000;
/// Threads over seeds; each seed runs on one.
const THREADS: usize = 2;
/// Seeds within which a fault must be noticed.
const MUTANT_SEEDS: u64 = 1_500;

/// What a seed set that proves anything must have seen, and how often at least.
const EXERCISED: [(&str, u64); 72] = [
    ("agent began: journal", 500),
    ("agent began: no journal", 200),
    ("agent resumed", 20),
    ("agent superseded", 20),
    ("agent's pool expired", 500),
    ("agent's stream expired", 500),
    ("checked: a failover moves nothing", 200),
    ("checked: a join moves the fewest", 100),
    ("checked: healthy pipelines stay as they are", 50),
    ("checked: a leave moves only its own", 100),
    ("confirm wanted", 500),
    ("converged and still", 1_000),
    ("coordinator saw an offence", 100),
    ("deposed", 500),
    ("drain ended", 500),
    ("drain overdue", 20),
    ("drain: jobs left", 20),
    ("drained agent resumed", 20),
    ("edit: a class less", 5),
    ("edit: another class", 50),
    ("edit: another graph", 50),
    ("edit: another load", 80),
    ("elected", 2_000),
    ("fault: agent died right after a write", 500),
    ("fault: agent stopped", 500),
    ("fault: driver hangs", 100),
    ("fault: edit", 500),
    ("fault: journal fails", 200),
    ("fault: leadership taken while the leader lives", 500),
    ("fault: link broken after hello", 500),
    ("fault: long turn", 2_000),
    ("fault: message doubled", 500),
    ("fault: message dropped", 500),
    ("fault: message reordered", 500),
    ("fault: one-way cut", 500),
    ("fault: pod killed", 300),
    ("fault: replica crashed", 300),
    ("fault: replica stopped", 300),
    ("fault: rollout", 50),
    ("fault: split leadership", 100),
    ("fault: store cut off", 300),
    ("fault: twin appeared", 30),
    ("fault: worker and agent crashed", 50),
    ("fault: worker crashed", 300),
    ("fault: worker ignored a revoke", 100),
    ("gap seen: snapshot wanted", 200),
    ("grant stopped at the writer", 20),
    ("hold ended", 1_000),
    ("incarnation raised", 20),
    ("job ran", 50_000),
    ("pipeline: Broken to Pending", 300),
    ("pipeline: Broken to Plotted", 400),
    ("pipeline: Pending to Plotted", 700),
    ("pipeline: Plotted to Broken", 400),
    ("pipeline: Plotted to Ready", 700),
    ("pipeline: Ready to Broken", 200),
    ("pipeline: Ready to Plotted", 200),
    ("pipeline: adopted, Broken", 50),
    ("pipeline: adopted, Ready", 200),
    ("pipeline: deleted", 40),
    ("pool granted", 5_000),
    ("refused: newer link", 200),
    ("registered", 1_000),
    ("report claims streams", 1_000),
    ("report of a closed link left out", 1_000),
    ("stale message came", 200),
    ("stepped down", 50),
    ("stream freed: expired", 500),
    ("stream freed: gone", 200),
    ("stream freed: released", 2_000),
    ("stream granted", 10_000),
    ("worker lost", 500),
];

fn told(outcome: &Outcome) -> String {
    let failure = outcome.failure.as_ref().expect("a failing seed");
    let lines = &outcome.lines[outcome.lines.len().saturating_sub(40)..];
    format!(
        "seed {}: {} does not hold: {}\n{}\nreplay: cargo run -p leasehold-simulator -- \
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
    let summary = run_seeds(0, SEEDS, THREADS, None, 1, &|_| ());
    if let Some(failure) = summary.failures.first() {
        panic!("{}", told(&run_seed(failure.seed, None, true)));
    }
    println!("{}{} seeds, {} steps", summary.coverage, summary.seeds, summary.steps);
    for (what, least) in EXERCISED {
        let count = summary.coverage.count(what);
        assert!(count >= least, "{what:?} happened {count} times, at least {least} were wanted");
    }
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..20 {
        let (once, twice) = (run_seed(seed, None, false), run_seed(seed, None, true));
        assert_eq!((once.digest, once.steps), (twice.digest, twice.steps), "seed {seed}");
    }
}

#[test]
fn every_deliberate_fault_is_noticed() {
    let mut missed = Vec::new();
    for mutant in Mutant::all() {
        let seen = (0..MUTANT_SEEDS).find_map(|seed| {
            let failure = run_seed(seed, Some(mutant), false).failure?;
            mutant.breaks().contains(&failure.property).then_some((seed, failure.property))
        });
        match seen {
            Some((seed, property)) => {
                println!("{:<22} {property:<4} after {} seeds", mutant.name(), seed + 1);
            }
            None => missed.push(mutant.name()),
        }
    }
    assert!(missed.is_empty(), "nobody noticed {missed:?}");
}
