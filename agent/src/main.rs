//! Leasehold's agent as a program: parses its command line and runs.

use std::process::ExitCode;

use leasehold_agent::config::Invocation;
use leasehold_agent::{drain, run};

fn main() -> ExitCode {
    match Invocation::parse() {
        Invocation::Run(config) => run::main(*config),
        Invocation::Drain(errand) => drain::main(&errand),
    }
}
