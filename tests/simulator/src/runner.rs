//! Runs seeds, each on one thread.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::coverage::Coverage;
use crate::mutant::Mutant;
use crate::observer::Failure;
use crate::system::faults::FaultBias;
use crate::trace::Trace;
use crate::world::World;

/// The outcome of one seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// The hash over all its steps.
    pub digest: u64,
    /// The number of steps.
    pub steps: u64,
    /// The property that did not hold.
    pub failure: Option<Failure>,
    /// What happened.
    pub coverage: Coverage,
    /// The lines of text, if they were asked for.
    pub lines: Vec<String>,
}

/// The outcome of many seeds.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Seeds run.
    pub seeds: u64,
    /// Steps in all of them.
    pub steps: u64,
    /// What happened in all of them.
    pub coverage: Coverage,
    /// The failing seeds, lowest first.
    pub failures: Vec<Outcome>,
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static QUIET: RefCell<bool> = const { RefCell::new(false) };
}

fn hook_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if QUIET.with(|quiet| *quiet.borrow()) {
                PANIC.with(|panic| *panic.borrow_mut() = Some(info.to_string()));
            } else {
                usual(info);
            }
        }));
    });
}

/// Runs one seed; with `text`, keeps a line for each step.
#[must_use]
pub fn run_seed(seed: u64, mutant: Option<Mutant>, text: bool) -> Outcome {
    hook_panics();
    let trace = Trace::new(text);
    let mut coverage = Coverage::default();
    Mutant::put_in_force(mutant);
    QUIET.with(|quiet| *quiet.borrow_mut() = true);
    let result = catch_unwind(AssertUnwindSafe(|| {
        let bias = mutant.map_or_else(FaultBias::default, Mutant::bias);
        let mut world = World::new(seed, bias, trace.clone());
        world.run();
        coverage.add(&world.coverage);
        world.observer.failure.take()
    }));
    QUIET.with(|quiet| *quiet.borrow_mut() = false);
    Mutant::put_in_force(None);
    let failure = result.unwrap_or_else(|_| {
        let detail = PANIC.with(|panic| panic.borrow_mut().take()).unwrap_or_default();
        Some(Failure { property: "panic", detail })
    });
    let (digest, steps) = (trace.digest(), trace.steps());
    Outcome { seed, digest, steps, failure, coverage, lines: trace.lines() }
}

/// Runs `count` seeds from `first` on `threads` threads, until `failures_max` have failed.
/// `progress` is called after each seed with how many are done, and with its outcome.
#[must_use]
pub fn run_seeds(
    first: u64,
    count: u64,
    threads: usize,
    mutant: Option<Mutant>,
    failures_max: usize,
    progress: &(dyn Fn(u64, &Outcome) + Sync),
) -> Summary {
    let next = AtomicU64::new(0);
    let failed = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let work = || {
        let mut summary = Summary::default();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count || failed.load(Ordering::Relaxed) >= failures_max as u64 {
                return summary;
            }
            let outcome = run_seed(first + index, mutant, false);
            summary.seeds += 1;
            summary.steps += outcome.steps;
            summary.coverage.add(&outcome.coverage);
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, &outcome);
            if outcome.failure.is_some() {
                failed.fetch_add(1, Ordering::Relaxed);
                summary.failures.push(outcome);
            }
        }
    };
    let parts = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, Summary>| {
            handle.join().expect("a seed's panic is detected")
        };
        handles.into_iter().map(join).collect::<Vec<_>>()
    });
    let mut all = Summary::default();
    for part in parts {
        all.seeds += part.seeds;
        all.steps += part.steps;
        all.coverage.add(&part.coverage);
        all.failures.extend(part.failures);
    }
    all.failures.sort_by_key(|outcome| outcome.seed);
    all
}
