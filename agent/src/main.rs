//! Leasehold's agent as a program: parses its command line and runs, unless it was started in one
//! of the small parts that the adapter `process` gives it.

use std::process::ExitCode;

use leasehold_agent::config::Invocation;
use leasehold_agent::{drain, run};

fn main() -> ExitCode {
    if let Some(code) = run::run_helper() {
        return code;
    }
    match Invocation::parse() {
        Invocation::Run(config) => run::main(*config),
        Invocation::Drain(options) => drain::main(&options),
        Invocation::Leave(config, leave) => run::leave(*config, leave),
    }
}
