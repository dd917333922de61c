//! Explores the scopes of the model, or looks for the shortest path that a deliberate fault of the
//! cores breaks a property on.

use std::fmt::Debug;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use leasehold_model::{
    CASES, Case, Fault, Found, Limits, Outcome, Progress, Scope, explore, find_violation,
};
use leasehold_types::mutation::{self, Mutation};

/// How to run a build that has deliberate faults.
const WITH_FAULTS: &str =
    "tests/tools/with-faults cargo run --release -p leasehold-model -- --mutations";

/// Examples for --help.
const EXAMPLES: &str = "\
Examples:
  cargo run --release -p leasehold-model
  cargo run --release -p leasehold-model -- --scope pool --faults 2

Deliberate faults of the cores exist only in a build of their own:
  tests/tools/with-faults cargo run --release -p leasehold-model -- --mutations
  tests/tools/with-faults cargo run --release -p leasehold-model -- --mutation FreeOnSend";

/// Explores both protocol cores exhaustively in small worlds, and checks the protocol's properties
/// in every state.
#[derive(Parser, Debug)]
#[command(
    name = "model",
    after_help = EXAMPLES
)]
struct Options {
    /// Explore only this scope; an unknown name lists all of them.
    #[arg(long, value_parser = scope)]
    scope: Option<&'static str>,
    /// The most faults on a path, instead of each scope's own number.
    #[arg(long)]
    faults: Option<u8>,
    /// Allow only these faults on a path, each as often as it is given; an unknown name lists all.
    #[arg(long, value_delimiter = ',', value_parser = fault, conflicts_with = "faults")]
    only: Option<Vec<Fault>>,
    /// Turn on this deliberate fault of a core, and print the shortest path with the fewest faults
    /// on which it breaks a property; an unknown name lists all of them.
    #[arg(long, value_parser = mutation)]
    mutation: Option<Mutation>,
    /// Look for every deliberate fault that the model can find, without printing the paths.
    #[arg(long, conflicts_with_all = ["mutation", "scope"])]
    mutations: bool,
    /// Stop a scope after this many states.
    #[arg(long, default_value_t = 20_000_000)]
    states: usize,
}

/// The most faults on a path when the model looks for a mutation without a known case.
const SEARCH_FAULTS: u8 = 1;

fn scope(name: &str) -> Result<&'static str, String> {
    named(name, Scope::all().into_iter().map(|scope| scope.name))
}

fn mutation(name: &str) -> Result<Mutation, String> {
    named(name, Mutation::ALL.iter().copied())
}

fn fault(name: &str) -> Result<Fault, String> {
    named(name, Fault::all().iter().copied())
}

/// The one of that name; the error for a wrong one names them all.
fn named<T: Debug>(name: &str, all: impl Iterator<Item = T> + Clone) -> Result<T, String> {
    let shown = |choice: &T| format!("{choice:?}").trim_matches('"').to_owned();
    all.clone().find(|choice| shown(choice) == name).ok_or_else(|| {
        let names: Vec<_> = all.map(|choice| shown(&choice)).collect();
        format!("expected one of: {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    let options = Options::parse();
    if (options.mutation.is_some() || options.mutations) && !mutation::BUILT_IN {
        eprintln!("model: this build has no deliberate faults. Run: {WITH_FAULTS}");
        return ExitCode::FAILURE;
    }
    let found = match options.mutation {
        _ if options.mutations => return each_mutation(&options),
        Some(mutation) if options.scope.is_none() && options.only.is_none() => {
            let found = look_for(mutation, &options);
            if let Some((_, found)) = &found {
                show(found);
            }
            found.is_some()
        }
        _ => scopes(&options),
    };
    if found { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Whether a property was broken in any scope.
fn scopes(options: &Options) -> bool {
    let mut found = false;
    for scope in Scope::all() {
        if options.scope.is_some_and(|name| name != scope.name) {
            continue;
        }
        let scope = match (&options.only, options.faults) {
            (Some(only), _) => scope.with_only(only),
            (None, Some(faults)) => scope.with_faults(faults),
            (None, None) => scope,
        };
        found |= run(&scope, options).found.is_some();
    }
    found
}

/// Looks for each deliberate fault that is known to show, where it is known to.
fn each_mutation(options: &Options) -> ExitCode {
    let missed = CASES.iter().filter(|case| look_for(case.mutation, options).is_none()).count();
    let others = Mutation::ALL.iter().filter(|mutation| Case::of(**mutation).is_none());
    let others: Vec<_> = others.map(|mutation| format!("{mutation:?}")).collect();
    println!("{missed} of {} deliberate faults were missed", CASES.len());
    println!("only the simulator looks for {} more: {}", others.len(), others.join(", "));
    if missed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn look_for(mutation: Mutation, options: &Options) -> Option<(&'static str, Found)> {
    let begun = Instant::now();
    let limits = Limits { states: options.states };
    let mut progress = |at| progress("", at);
    let found = match Case::of(mutation).filter(|_| options.faults.is_none()) {
        Some(case) => case.find_violation(limits, &mut progress).map(|found| (case.scope, found)),
        None => {
            find_violation(mutation, options.faults.unwrap_or(SEARCH_FAULTS), limits, &mut progress)
        }
    };
    let seconds = begun.elapsed().as_secs_f64();
    match &found {
        Some((scope, Found { violation, faults, steps, .. })) => println!(
            "{mutation:?}: {}, in {scope} after {steps} steps with {faults} faults, {seconds:.1} s",
            violation.property
        ),
        None => println!("{mutation:?}: not found, {seconds:.1} s"),
    }
    found
}

fn progress(scope: &str, at: Progress) {
    if std::io::stderr().is_terminal() {
        eprint!("\r{scope} depth {}, {} states, {} wide   \r", at.depth, at.states, at.width);
        let _ = std::io::stderr().flush();
    }
}

fn show(Found { violation, faults, steps, trace }: &Found) {
    println!("{violation}, after {steps} steps with {faults} faults:");
    trace.iter().for_each(|line| println!("  {line}"));
}

fn run(scope: &Scope, options: &Options) -> Outcome {
    let begun = Instant::now();
    let limits = Limits { states: options.states };
    let outcome = explore(scope, options.mutation, limits, &mut |at| progress(scope.name, at));
    let seconds = begun.elapsed().as_secs_f64();
    let Outcome { states, steps, depth, calls, .. } = outcome;
    let end = match (&outcome.found, outcome.complete) {
        (Some(_), _) => "VIOLATION",
        (None, true) => "complete",
        (None, false) => "stopped at --states",
    };
    println!(
        "{} ({}; {} faults, {} lease times): {end}; {states} states, {steps} steps, depth {depth}, \
         {calls} calls of cores, {seconds:.1} s",
        scope.name,
        scope.about,
        scope.faults(),
        scope.leases(),
    );
    if let Some(found) = &outcome.found {
        show(found);
    }
    outcome
}
