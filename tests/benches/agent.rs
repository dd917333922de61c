//! What an agent costs: the size of its program and image, and what a running one takes of memory
//! and processor, idle and with a thousand streams, beside a real coordinator.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use leasehold_release::Program;
use tests::agent_cost::{AgentCost, MeasuredAgent, size_mb};
use tests::bench;
use tests::process::eventually;
use tests::toolbox;

const ROWS: &str = "\
Rows:
  program      the agent's file; the aim is 10 MB
  image        an archive of it, packed as `make images` does
  resident     what of it is in memory; the aim is 8 MiB
  of its own   of that, what no file stands behind
  processor    share of one core while nothing happens but its lease's renewal; the aim is 0.1 %
  wake-ups     how often it was run in that time, a second";

/// Streams of the agent that has many.
const STREAMS: usize = 1_000;

fn main() -> Result<()> {
    let Options { program, seconds } = bench::options();
    let program = match program {
        // Cargo runs this in the tests' folder.
        Some(program) => toolbox::root().join(program),
        None => toolbox::binary("leasehold-agent"),
    };
    println!("agent, each looked at for {seconds} s\n");
    size("program", &program)?;
    let folder = tempfile::tempdir()?;
    let image = folder.path().join("leasehold-agent.tar");
    Program::Agent.image(&program).pack(&image)?;
    size("image", &image)?;
    for (name, streams) in [("idle", 0), ("1,000 streams", STREAMS)] {
        let agent = MeasuredAgent::start(&program, streams);
        eventually("all leases", || agent.has_leases().then_some(()));
        let before = agent.used()?;
        std::thread::sleep(Duration::from_secs(seconds));
        print_cost(name, &agent.cost_since(before)?);
    }
    Ok(())
}

/// Measures what an agent costs, with the command that shows each figure.
#[derive(Debug, Parser)]
#[command(name = "agent", after_help = ROWS)]
struct Options {
    /// The agent's program [default: the one that was built beside this].
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// How long to look at each agent, in seconds.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

fn print_cost(name: &str, cost: &AgentCost) {
    let AgentCost { resident_kib, own_kib, processor_percent, wakeups_per_second } = cost;
    println!("\n{name}");
    let mib = |kib: &u64| format!("{:.1} MiB", *kib as f64 / 1024.0);
    let status = "/proc/PID/status";
    let rows = [
        ("resident", mib(resident_kib), format!("grep VmRSS {status}")),
        ("of its own", mib(own_kib), format!("grep RssAnon {status}")),
        (
            "processor",
            format!("{processor_percent:.3} %"),
            "cut -d' ' -f1 /proc/PID/schedstat".into(),
        ),
        ("wake-ups", format!("{wakeups_per_second:.1} /s"), format!("grep ctxt {status}")),
    ];
    for (what, figure, command) in rows {
        row(what, &figure, &command);
    }
}

fn size(what: &str, file: &Path) -> Result<()> {
    let figure = format!("{:.1} MB", size_mb(file)?);
    let shown = file.strip_prefix(toolbox::root()).unwrap_or(file);
    row(what, &figure, &format!("stat -c %s {}", shown.display()));
    Ok(())
}

fn row(what: &str, figure: &str, command: &str) {
    println!("  {what:<12} {figure:>11}   {command}");
}
