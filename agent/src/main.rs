//! The agent's program: runs a helper process if an agent started it as one, and otherwise parses
//! the command line and runs it.

use std::process::ExitCode;

use leasehold_agent::config::Invocation;
use leasehold_agent::{drain, pre_stop, probe, run};

fn main() -> ExitCode {
    if let Some(code) = run::run_helper() {
        return code;
    }
    match Invocation::parse() {
        Invocation::Run(config) => run::main(*config),
        Invocation::Drain(options) => drain::main(&options),
        Invocation::PreStop => pre_stop::main(),
        Invocation::Probe(options) => probe::main(&options),
        Invocation::Leave(config, leave) => run::leave(*config, leave),
    }
}
