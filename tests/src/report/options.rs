//! The options of the report.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;

use crate::{bench, toolbox};

/// The rows that `--only` takes.
const ROWS: &str = "\
Rows:
  1   an edit of the pool size of all of 2,000 agents, beside a broadcast and an etcd watch
  2   the same edit of 10,000 agents
  3   connect and first grant of 2,000 and of 10,000 agents
  4   kill -9 of the leader until all of 2,000 and of 10,000 agents are renewed
  5   SIGSTOP of the leader until all of 1,000 agents are renewed
  6   1,000 agents with 1,000,000 streams: owned, failover, memory of a stream
  7   memory of an agent
  8   an idle leader of 1,000 agents
  9   an edit of one line of a list of 1,000,000 streams until the first agent has it
  10  failovers in a row of 2,000 agents: the longest, and what moved
  11  where 100,000 streams go when one of 1,000 workers leaves or joins, beside Kafka
  12  slots unused in a rollout that replaces 100 workers, beside worker-operator's formula
  13  an agent: its program, its memory, its share of a core
  14  one agent joins 2,000 with 100,000 streams, beside a host that joins Dapr's placement

Example:
  make bench
  cargo run --release -p tests --bin bench_report -- --only 1 --only 2 --rounds 5";

/// Measures every figure that has a goal, and prints one report: a table, and JSON and plots in the
/// folder `bench` of the target folder. Two real coordinators, the real core of each agent with a
/// connection of its own, and the peers share this machine's processors. Takes some minutes.
///
/// A missed goal fails nothing: the table names it.
#[derive(Debug, Parser)]
#[command(name = "bench_report", after_help = ROWS)]
pub struct Options {
    /// Measures small fleets, to which no goal applies: whether the report works.
    #[arg(long)]
    pub(super) short: bool,
    /// Cuts each fleet to this many agents.
    #[arg(long, value_name = "N", value_parser = bench::above_zero)]
    pub(super) agents_max: Option<usize>,
    /// Measures the rows of this number only; may be repeated.
    #[arg(long, value_name = "ROW", value_parser = clap::value_parser!(u8).range(1..=14))]
    pub(super) only: Vec<u8>,
    /// How often each edit and assignment is made, and how many agents join; the median counts
    /// [default: 10, or 2 with --short].
    #[arg(long, value_name = "N", value_parser = bench::above_zero)]
    pub(super) rounds: Option<usize>,
    /// How often the leader of row 10 is killed [default: 100, or 2 with --short].
    #[arg(long, value_name = "N", value_parser = bench::above_zero)]
    pub(super) failovers: Option<usize>,
    /// The folder for JSON and plots [default: `bench` in the target folder].
    #[arg(long, value_name = "DIR")]
    pub(super) output: Option<PathBuf>,
    /// A document whose table of the report is replaced by that of this run.
    #[arg(long, value_name = "FILE")]
    pub(super) document: Option<PathBuf>,
    /// The agent's program as it is built for the image, to which the goals of row 13 apply
    /// [default: the program that was built beside this, without goals].
    #[arg(long, value_name = "FILE")]
    pub(super) image_agent: Option<PathBuf>,
    /// Serves the broadcast at this address: the report starts itself with it.
    #[arg(long, value_name = "ADDRESS", hide = true)]
    pub broadcast: Option<SocketAddr>,
}

impl Options {
    /// The folder for JSON and plots.
    pub(super) fn folder(&self) -> PathBuf {
        let target = || match std::env::var_os("CARGO_TARGET_DIR") {
            Some(target) => PathBuf::from(target),
            None => toolbox::root().join("target"),
        };
        self.output.clone().unwrap_or_else(|| target().join("bench"))
    }
}
