//! Fleets at their declared limits: two real coordinators and all agents of a fleet, taken through
//! every change that touches the whole of it. It fails on a second election, a lost lease, a second
//! owner, a needless move, a pool that a failover changes, and, of times, on the one that is
//! promised: agents of up to 2,000 are back within 5 s of a failover.

mod questions;
mod scenario;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use leasehold_server::file_shares::FileShares;
use rustix::process::{Resource, getrlimit};
use scenario::Size;
use tests::{bench, toolbox};

const COLUMNS: &str = "\
Columns:
  time       from the phase's change to the state that it leads to
  elections  leaders elected in the phase; more than one where the leader is killed, or any
             elsewhere, is a failure
  lost       leases that ended because no renewal came in time: a failure
  moved      streams that went from one worker to another; more than the minimum is a failure
  turn       the longest turn of a coordinator, or the bucket that it fell into
  lease age  how much of its time the oldest lease had used when its renewal came

Before the last phase it says how long `leasehold workers` and `leasehold status` take to show it.";

fn main() -> ExitCode {
    let options: Options = bench::options();
    println!("{}", bench::heading("fleet"));
    // A program that was not built shows now and not after the failovers.
    for program in ["leasehold-coordinator", "leasehold"] {
        let _: PathBuf = toolbox::binary(program);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(1, |cores| cores.get().min(4)))
        .enable_all()
        .build()
        .expect("a runtime");
    let mut failures = 0;
    for size in options.sizes() {
        failures += runtime.block_on(scenario::play(size));
    }
    if failures > 0 {
        println!("\nfleet: {failures} failures");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Takes whole fleets of agents through every change: two real coordinators, and each agent's core
/// with a gRPC connection of its own. All of it shares this machine's processors.
///
/// Without `--agents` and `--streams`: 2,000 agents with 4,000 streams; 1,000 agents with 1,000,000
/// streams; 50 agents with as many; 20,000 agents with 40,000 streams, or as many agents as the
/// limits of open files allow here.
#[derive(Debug, Parser)]
#[command(name = "fleet", after_help = COLUMNS)]
struct Options {
    /// Agents of the only fleet.
    #[arg(long, requires = "streams", value_parser = clap::value_parser!(u32).range(2..))]
    agents: Option<u32>,
    /// Streams of the only fleet.
    #[arg(long, requires = "agents", value_parser = clap::value_parser!(u32).range(10..))]
    streams: Option<u32>,
    /// How long a lease lasts, in seconds; twice as long for the 20,000 agents, all of which dial
    /// on the processors of this one machine.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    ttl: u64,
    /// How often the leader is killed.
    #[arg(long, default_value_t = 1, value_parser = bench::above_zero)]
    failovers: usize,
    /// A phase that takes longer, in seconds, is given up, and failed.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    patience: u64,
}

/// As many agents as a coordinator admits. It raises its limit of open files to the hard one.
fn admitted(agents: usize) -> usize {
    let files = getrlimit(Resource::Nofile).maximum.and_then(|files| usize::try_from(files).ok());
    let most = FileShares::of(files.unwrap_or(usize::MAX)).sessions(agents);
    if most < agents {
        println!(
            "!!! {agents} agents are cut to {most}, which a coordinator admits with the open files \
             that `ulimit -Hn` allows here"
        );
    }
    most
}

impl Options {
    fn sizes(&self) -> Vec<Size> {
        let size = |agents, streams, ttl| Size {
            agents: admitted(bench::at_most_files(agents)),
            streams,
            ttl,
            patience: Duration::from_secs(self.patience),
            failovers: self.failovers,
        };
        let ttl = Duration::from_secs(self.ttl);
        match self.agents.zip(self.streams) {
            Some((agents, streams)) => vec![size(agents as usize, streams as usize, ttl)],
            None => vec![
                size(2_000, 4_000, ttl),
                size(1_000, 1_000_000, ttl),
                size(50, 1_000_000, ttl),
                size(20_000, 40_000, ttl * 2),
            ],
        }
    }
}
