//! Leasehold's agent as a program: parses its command line and runs.

use std::process::ExitCode;

use leasehold_agent::{config, run};

fn main() -> ExitCode {
    run::main(config::Config::parse())
}
