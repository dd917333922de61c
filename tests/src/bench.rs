//! What the benchmarks have in common: their options, what they say of the machine, and how a
//! person gives one up.

use clap::Parser;
use rustix::process::{Resource, getrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

use crate::process::give_up;

/// Open files that are not connections of agents.
const OTHER_FILES: usize = 500;

/// The options of the benchmark that runs; where they are wrong or ask for help, it ends here.
#[must_use]
pub fn options<Options: Parser>() -> Options {
    let command = Options::command();
    let called = format!("cargo bench -p tests --bench {} --", command.get_name());
    // Cargo passes --bench to every benchmark.
    let args = std::env::args().filter(|arg| arg != "--bench");
    let matches = command.bin_name(called).get_matches_from(args);
    Options::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// A number above 0, as an option has it.
///
/// # Errors
/// If `text` is not a number above 0.
pub fn above_zero(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "a number above 0 is needed".to_owned())
}

/// The first line of a benchmark of this name: its build and its machine.
#[must_use]
pub fn heading(name: &str) -> String {
    let build = if cfg!(debug_assertions) { "debug build" } else { "optimised build" };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{name}, {build}, {cores} processors, load {}", load())
}

/// How busy the machine is: the mean numbers of processes that ran or waited in the last minute,
/// the last five and the last fifteen.
#[must_use]
pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// As many agents as this process may have connections. A coordinator that keeps files for other
/// work admits fewer.
#[must_use]
pub fn at_most_files(agents: usize) -> usize {
    let most = connections_max();
    if agents > most {
        println!(
            "!!! {agents} agents are cut to {most}, for which `ulimit -n` allows open files here"
        );
    }
    agents.min(most)
}

/// Whether this process may have two connections for each agent: its session, and the one by which
/// it follows who leads.
#[must_use]
pub fn may_follow(agents: usize) -> bool {
    let may = 2 * agents <= connections_max();
    if !may {
        println!(
            "!!! `ulimit -n` allows too few open files for {agents} agents to follow who leads"
        );
    }
    may
}

fn connections_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(OTHER_FILES)
}

/// A number with a comma between thousands.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Ends when a person gives the benchmark up. A task of its own: the benchmark's blocks its thread
/// at times.
///
/// # Panics
/// If signals cannot be received.
#[must_use]
pub fn given_up() -> JoinHandle<()> {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate()];
    let [mut interrupt, mut terminate] =
        kinds.map(|kind| signal(kind).expect("signals can be received"));
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        give_up();
        eprintln!("==> given up");
    })
}
