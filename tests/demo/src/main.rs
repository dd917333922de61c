//! `make demo`: see [`leasehold_demo`].

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use clap::{Args, Parser, Subcommand};
use leasehold_demo::children;
use leasehold_demo::run::{self, Options};

/// Plays Leasehold's demo with real processes on this machine: two coordinators, six agents with
/// their workers, a rolling replacement, scaling, edits, kills, a frozen agent and one that is
/// started again. Exits with 0 only if every check held; the last line is one JSON object.
#[derive(Debug, Parser)]
#[command(name = "demo", args_conflicts_with_subcommands = true)]
#[command(after_help = "Example: target/debug/demo --short --json measured.json")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    demo: Demo,
}

#[derive(Debug, Args)]
struct Demo {
    /// Stay up after the last phase, to look around with curl and leasehold, until Ctrl-C.
    #[arg(long, env = "KEEP", value_parser = FalseyValueParser::new())]
    keep: bool,
    /// Play a short form with fixed times, which `leasehold simulate` is compared with. It
    /// measures, and checks nothing.
    #[arg(long)]
    short: bool,
    /// Write the JSON object into this file, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The folder with the manifests and the workers; `deploy/standalone` by default.
    #[arg(long, value_name = "DIR", default_value_os_t = default_deploy())]
    #[arg(hide_default_value = true)]
    deploy: PathBuf,
    /// Where the work folder is made; `demo` beside the folder of this program by default.
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// The Python that runs the workers, 3.9 or newer.
    #[arg(long, value_name = "PROGRAM", env = "PYTHON", default_value = "python3")]
    python: String,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a command that dies with its parent.
    #[command(name = children::TETHER, hide = true)]
    Tether {
        /// The parent's process id.
        parent: u32,
        /// The command.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

fn default_deploy() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/standalone"))
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Some(Command::Tether { parent, command }) => {
            children::become_tethered(parent, &command).map(|()| ExitCode::SUCCESS)
        }
        None => run::run(Options {
            keep: cli.demo.keep,
            short: cli.demo.short,
            json: cli.demo.json,
            deploy: cli.demo.deploy,
            work: cli.demo.work,
            python: cli.demo.python,
        }),
    };
    result.unwrap_or_else(|error| {
        eprintln!("demo: {error:#}");
        ExitCode::FAILURE
    })
}
