//! Leasehold's command line, also a plugin of kubectl (`kubectl leasehold`). Parses the arguments
//! and calls the subcommand. Exit code: 0 on success, 1 after an error, 2 for invalid arguments.

mod check;
mod inject;
mod manifests;
mod object;
mod source;
mod uninject;
mod yaml;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Adds the Leasehold sidecar to manifests, removes it, and checks an installation.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Adds the sidecar to the pods in manifests, as the webhook does
    Inject(inject::Args),
    /// Removes the sidecar from manifests
    Uninject(uninject::Args),
    /// Checks an installation, or a cluster before the installation, and shows how to fix problems
    Check(check::Args),
}

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    let name = program_name(args.first().map(OsStr::new));
    let matches = Cli::command().bin_name(name).get_matches_from(args);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let result = match cli.command {
        Command::Inject(args) => inject::run(args),
        Command::Uninject(args) => uninject::run(args),
        Command::Check(args) => check::run(args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// The program's name in help texts: kubectl runs a plugin by its file name.
fn program_name(program: Option<&OsStr>) -> &'static str {
    match program.and_then(|program| Path::new(program).file_stem()) {
        Some(name) if name == "kubectl-leasehold" => "kubectl leasehold",
        _ => "leasehold",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_shows_the_program_name() {
        for (program, name) in [
            ("/usr/local/bin/kubectl-leasehold", "kubectl leasehold"),
            ("./leasehold", "leasehold"),
            ("renamed", "leasehold"),
        ] {
            assert_eq!(program_name(Some(OsStr::new(program))), name);
        }
        assert_eq!(program_name(None), "leasehold");
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
