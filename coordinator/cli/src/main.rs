//! Leasehold's command line, also found by kubectl as `kubectl leasehold`: parses, and calls what
//! the subcommand's own file does. Exit: 0, 1 after an error, 2 for a command line that makes no
//! sense.

mod check;
mod inject;
mod manifests;
mod object;
mod output;
mod source;
mod uninject;
mod yaml;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Puts the sidecar into manifests, takes it out, and checks an installation.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Puts the sidecar into the pods of manifests, as the webhook does
    Inject(inject::Args),
    /// Takes the sidecar out of manifests again
    Uninject(uninject::Args),
    /// Checks an installation, or a cluster before one, and says how to mend what is wrong
    Check(check::Args),
}

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    let called = called(args.first().map(OsStr::new));
    let matches = Cli::command().bin_name(called).get_matches_from(args);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let done = match cli.command {
        Command::Inject(args) => inject::run(args),
        Command::Uninject(args) => uninject::run(args),
        Command::Check(args) => check::run(args),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// The name that help shows: kubectl calls its plugins by a file's name.
fn called(program: Option<&OsStr>) -> &'static str {
    match program.and_then(|program| Path::new(program).file_stem()) {
        Some(name) if name == "kubectl-leasehold" => "kubectl leasehold",
        _ => "leasehold",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_shows_the_name_that_it_was_called_by() {
        for (program, name) in [
            ("/usr/local/bin/kubectl-leasehold", "kubectl leasehold"),
            ("./leasehold", "leasehold"),
            ("renamed", "leasehold"),
        ] {
            assert_eq!(called(Some(OsStr::new(program))), name);
        }
        assert_eq!(called(None), "leasehold");
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
