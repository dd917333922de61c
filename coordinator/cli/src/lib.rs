//! Leasehold's command line, also a plugin of kubectl (`kubectl leasehold`): [`run`] parses the
//! arguments and calls the subcommand.

mod admin;
mod argument;
mod check;
mod inject;
mod manifest_files;
mod manifests;
mod object;
mod port_forward;
mod simulate;
mod source;
mod uninject;
mod usage;
mod yaml;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use leasehold_types::flag::join_negative_values;

/// Shows, explains and plans what runs where, drains workers, and installs the sidecar.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows the whole fleet on one screen
    Status(admin::status::Args),
    /// Shows the fleet on the full screen, as it changes
    Top(admin::top::Args),
    /// Shows the fleet in a browser on this host, as it changes
    Dashboard(admin::dashboard::Args),
    /// Lists the clusters, each with its budget and what of it is used
    Clusters(admin::lists::ClustersArgs),
    /// Lists the workers
    Workers(admin::lists::WorkersArgs),
    /// Lists the stream sets
    Sets(admin::lists::SetsArgs),
    /// Lists the streams and their owners
    Streams(admin::lists::StreamsArgs),
    /// Lists the pipelines and their states
    Pipelines(admin::lists::PipelinesArgs),
    /// Lists the worker classes with their loads
    Classes(admin::lists::ClassesArgs),
    /// Explains why a cluster, worker, stream or pipeline is as it is, and what to do
    Explain(admin::explain::Args),
    /// Shows what would be planned with another budget or other workers; changes nothing
    Plan(admin::plan::Args),
    /// Simulates a fleet with your manifests and a load that you describe, in simulated time
    Simulate(simulate::Args),
    /// Drains a worker: no new job, streams given back; running jobs end by themselves
    Drain(admin::orders::DrainArgs),
    /// Takes an order to drain back: the worker works again
    Undrain(admin::orders::UndrainArgs),
    /// Declares that nothing of a worker runs any more, and frees what it held
    Gone(admin::orders::GoneArgs),
    /// Shows what has happened, and with --follow what happens
    Events(admin::events::Args),
    /// Adds the sidecar to the pods in manifests, as the webhook does
    Inject(inject::Args),
    /// Removes the sidecar from manifests
    Uninject(uninject::Args),
    /// Checks an installation, or a cluster before the installation, and shows how to fix problems
    Check(check::Args),
    /// Shows the versions of this program, of the coordinators and of the agents
    Version(admin::version::VersionArgs),
    /// Prints a script that completes commands in your shell
    Completion(admin::version::CompletionArgs),
}

/// The command line's definition, for completions and manual pages.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command that `args` name, after the program's name. Exit code: 0 on success, 1 after an
/// error, and 130 after Ctrl-C. Invalid arguments end the process with 2.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = join_negative_values(args);
    let name = program_name(args.first().map(OsStr::new));
    let matches = command().bin_name(name).get_matches_from(args);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let result = match cli.command {
        Command::Status(args) => admin::status::status(&args),
        Command::Top(args) => admin::top::top(&args),
        Command::Dashboard(args) => admin::dashboard::dashboard(&args),
        Command::Clusters(args) => admin::lists::clusters(&args),
        Command::Workers(args) => admin::lists::workers(&args),
        Command::Sets(args) => admin::lists::sets(&args),
        Command::Streams(args) => admin::lists::streams(&args),
        Command::Pipelines(args) => admin::lists::pipelines(&args),
        Command::Classes(args) => admin::lists::classes(&args),
        Command::Explain(args) => admin::explain::explain(&args),
        Command::Plan(args) => admin::plan::plan(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Drain(args) => admin::orders::drain(&args),
        Command::Undrain(args) => admin::orders::undrain(&args),
        Command::Gone(args) => admin::orders::gone(&args),
        Command::Events(args) => admin::events::events(&args),
        Command::Version(args) => admin::version::version(&args),
        Command::Completion(args) => {
            Ok(admin::version::completion(&args, command().bin_name(name), name))
        }
        Command::Inject(args) => inject::run(args),
        Command::Uninject(args) => uninject::run(args),
        Command::Check(args) => check::run(args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        if error.is::<usage::UsageError>() {
            ExitCode::from(usage::EXIT_CODE)
        } else {
            ExitCode::FAILURE
        }
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
    use std::any::TypeId;
    use std::path::PathBuf;

    use clap::Arg;
    use clap::builder::PossibleValue;

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

    /// Every argument that takes a value, of every command, after those before it.
    #[test]
    fn no_argument_takes_an_empty_value() {
        let cli = Cli::command();
        let mut checked = 0;
        for command in cli.get_subcommands() {
            let mut before = vec!["leasehold".to_owned(), command.get_name().to_owned()];
            let takes_value = |arg: &&Arg| arg.get_action().takes_values();
            for arg in command.get_arguments().filter(takes_value) {
                let mut line = before.clone();
                line.extend(arg.get_long().map(|flag| format!("--{flag}")));
                line.push(String::new());
                let parsed = Cli::try_parse_from(&line);
                let text = parsed.map_err(|error| error.to_string()).expect_err(&line.join(" "));
                let shown = arg.get_long().map_or_else(
                    || arg.get_id().as_str().to_uppercase(),
                    |flag| format!("--{flag}"),
                );
                assert!(text.contains("value") && text.contains(&shown), "{line:?}: {text}");
                let is_path = arg.get_value_parser().type_id() == TypeId::of::<PathBuf>();
                let has_choice = !arg.get_possible_values().is_empty();
                let says_what = text.contains("expected ") || text.contains("use a number");
                assert!(is_path || has_choice || says_what, "{line:?}: {text}");
                if arg.is_positional() {
                    let choices = arg.get_possible_values();
                    let choice = choices.first().map_or("a", PossibleValue::get_name);
                    before.push(choice.to_owned());
                }
                checked += 1;
            }
        }
        assert!(checked > 50, "there are more than {checked}");
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
