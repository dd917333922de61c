//! The program `leasehold-coordinator`: parses the command line and runs the command.

use std::process::ExitCode;

use clap::error::ErrorKind;
use leasehold_coordinator::config::{Cli, Command, Settings, UsageError};
use leasehold_coordinator::run;

fn main() -> ExitCode {
    let outcome = match Cli::read(std::env::args_os()).unwrap_or_else(|error| error.exit()).command
    {
        Command::Run(arguments) => run_with(arguments.settings()),
        #[cfg(feature = "kubernetes")]
        Command::Operator(arguments) => run_with(arguments.settings()),
        Command::Check(arguments) => Ok(run::check(&arguments.manifests)),
        #[cfg(not(feature = "kubernetes"))]
        Command::Operator(_) => Err(anyhow::anyhow!(
            "this program was built without Kubernetes, for the demo: run `make binaries` to build \
             one with it"
        )),
        #[cfg(feature = "kubernetes")]
        Command::Crds(_) => leasehold_coordinator::kubernetes::crds(),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_with(settings: Result<Settings, UsageError>) -> anyhow::Result<ExitCode> {
    match settings {
        Ok(settings) => run::run(settings),
        // The usage says nothing about what is wrong here.
        Err(usage) => clap::Error::raw(ErrorKind::ArgumentConflict, format!("{usage}\n")).exit(),
    }
}
