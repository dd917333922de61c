//! `leasehold version` and `leasehold completion`.

use std::io;
use std::process::ExitCode;

use clap::Command;
use clap_complete::{Shell, generate};

use super::connection::ConnectionArgs;
use super::output::print;
use super::run;

/// This program's version.
const OWN: &str = env!("CARGO_PKG_VERSION");

/// Options of `version`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  leasehold version\n  leasehold version --client")]
pub(crate) struct VersionArgs {
    /// Only this program's version: asks no coordinator
    #[arg(long)]
    client: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Options of `completion`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  source <(leasehold completion bash)
  leasehold completion zsh > \"${fpath[1]}/_leasehold\"
  leasehold completion fish > ~/.config/fish/completions/leasehold.fish")]
pub(crate) struct CompletionArgs {
    /// The shell
    shell: Shell,
}

/// Runs `leasehold version`.
///
/// # Errors
/// If no coordinator answers, after this program's version.
pub(crate) fn version(args: &VersionArgs) -> anyhow::Result<ExitCode> {
    print(&format!("leasehold    {OWN}\n"))?;
    if args.client {
        return Ok(ExitCode::SUCCESS);
    }
    run(&args.connection, async |mut coordinator| {
        let status = coordinator.status().await?;
        let address = coordinator.address().to_owned();
        print(&format!("coordinator  {}  at {address}\n", status.version))?;
        if status.version != OWN {
            print("The versions differ: some commands may not work.\n")?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Runs `leasehold completion`.
pub(crate) fn completion(args: &CompletionArgs, mut command: Command, name: &str) -> ExitCode {
    generate(args.shell, &mut command, name, &mut io::stdout());
    ExitCode::SUCCESS
}
