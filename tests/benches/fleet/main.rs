//! Fleets at their declared limits: two real coordinators and all agents of a fleet, taken through
//! every change that touches the whole of it. It fails on a second election, a lost lease, a second
//! owner, a needless move, a pool that a failover changes, and, of times, on the one that is
//! promised: agents of up to 2,000 are back within 5 s of a failover.

mod questions;
mod scenario;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use scenario::Size;
use tests::toolbox;

const HELP: &str = "\
Takes whole fleets of agents through every change: two real coordinators, and each agent's core
with a gRPC connection of its own. All of it shares this machine's processors.

Usage: cargo bench -p tests --bench fleet [-- OPTIONS]

Options:
  --agents N --streams N  this fleet alone (default: 2,000 agents with 4,000 streams; 1,000 agents
                          with 1,000,000 streams; 50 agents with as many; 20,000 agents with 40,000
                          streams, or as many agents as may have open files here)
  --ttl SECONDS           how long a lease lasts (default 10; twice as long for the 20,000 agents,
                          all of which dial on the processors of this one machine)
  --failovers N           kill the leader so often (default 1)
  --patience SECONDS      a phase that takes longer is given up, and failed (default 600)
  -h, --help              print this

Columns:
  time       from the phase's change to the state that it leads to
  elections  leaders elected in the phase; more than one where the leader is killed, or any
             elsewhere, is a failure
  lost       leases that ended because no renewal came in time: a failure
  moved      streams that went from one worker to another; more than the minimum is a failure
  turn       the longest turn of a coordinator, or the bucket that it fell into
  lease age  how much of its time the oldest lease had used when its renewal came

Before the last phase it says how long `leasehold workers` and `leasehold status` take to show it.";

/// Open files that are not connections of agents.
const OTHER_FILES: usize = 500;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("fleet: {message} (try --help)");
            return ExitCode::from(2);
        }
    };
    let build = if cfg!(debug_assertions) { "debug build" } else { "optimised build" };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    println!("fleet, {build}, {cores} processors");
    // A program that was not built shows now and not after the failovers.
    for program in ["leasehold-coordinator", "leasehold"] {
        let _: PathBuf = toolbox::binary(program);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.min(4))
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

struct Options {
    agents: Option<usize>,
    streams: Option<usize>,
    ttl: Duration,
    patience: Duration,
    failovers: usize,
}

impl Options {
    fn parse(args: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let (ttl, patience) = (Duration::from_secs(10), Duration::from_secs(600));
        let mut options = Self { agents: None, streams: None, ttl, patience, failovers: 1 };
        // Cargo passes --bench to every benchmark.
        let mut args = args.filter(|arg| arg != "--bench");
        while let Some(arg) = args.next() {
            if ["-h", "--help"].contains(&arg.as_str()) {
                return Ok(None);
            }
            let value = args.next().and_then(|text| text.parse::<u32>().ok());
            let value = value.filter(|value| *value > 0);
            let value = value.ok_or_else(|| format!("{arg} wants a number above 0"));
            match arg.as_str() {
                "--agents" => options.agents = Some(value? as usize),
                "--streams" => options.streams = Some(value? as usize),
                "--ttl" => options.ttl = Duration::from_secs(value?.into()),
                "--failovers" => options.failovers = value? as usize,
                "--patience" => options.patience = Duration::from_secs(value?.into()),
                other => return Err(format!("unknown option {other:?}")),
            }
        }
        match (options.agents, options.streams) {
            (Some(0..2), _) => Err("--agents must be at least 2".into()),
            (_, Some(0..10)) => Err("--streams must be at least 10".into()),
            (Some(_), None) | (None, Some(_)) => Err("--agents and --streams go together".into()),
            (Some(_), Some(_)) | (None, None) => Ok(Some(options)),
        }
    }

    fn sizes(&self) -> Vec<Size> {
        let size = |agents, streams, ttl| Size {
            agents: at_most_files(agents),
            streams,
            ttl,
            patience: self.patience,
            failovers: self.failovers,
        };
        match self.agents.zip(self.streams) {
            Some((agents, streams)) => vec![size(agents, streams, self.ttl)],
            None => vec![
                size(2_000, 4_000, self.ttl),
                size(1_000, 1_000_000, self.ttl),
                size(50, 1_000_000, self.ttl),
                size(20_000, 40_000, self.ttl * 2),
            ],
        }
    }
}

/// As many agents as this process and a coordinator may have connections.
fn at_most_files(agents: usize) -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(OTHER_FILES);
    if agents > most {
        println!(
            "!!! {agents} agents are cut to {most}: `ulimit -n` allows a process {limit} open files"
        );
    }
    agents.min(most)
}
