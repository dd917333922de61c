//! The command `leasehold-coordinator`: it parses and calls.

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use leasehold_coordinator::config::{Cli, Command};
use leasehold_coordinator::run;

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Run(arguments) => match arguments.settings() {
            Ok(settings) => run::run(settings),
            Err(usage) => {
                Cli::command().error(clap::error::ErrorKind::ArgumentConflict, usage).exit()
            }
        },
        Command::Check(arguments) => Ok(run::check(&arguments.manifests)),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
