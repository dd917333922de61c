//! `leasehold version` and `leasehold completion`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::process::ExitCode;

use clap::Command;
use clap_complete::{Shell, generate};
use leasehold_proto::admin::v1::Presence;
use leasehold_types::{Version, counted};

use super::connection::{ConnectionArgs, Coordinator};
use super::output::print;
use super::replicas::{self, Replica};
use super::{fetch, run};

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
        let replicas = replicas::all(&mut coordinator).await?;
        for replica in &replicas {
            let version = or_unknown(replica.version());
            print(&format!(
                "coordinator  {version}  at {}: {}\n",
                replica.address(),
                replica.role()
            ))?;
        }
        let agents = agents(&mut coordinator).await?;
        for (version, count) in &agents {
            let agents = counted(*count, "agent");
            print(&format!("agent        {}  {agents}\n", or_unknown(version)))?;
        }
        let coordinators = replicas.iter().map(Replica::version);
        print(&skew(coordinators, agents.keys().map(String::as_str)))?;
        Ok(ExitCode::SUCCESS)
    })
}

/// How many connected agents have each version.
async fn agents(coordinator: &mut Coordinator) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut agents = BTreeMap::new();
    for cluster in fetch::clusters(coordinator).await? {
        for worker in fetch::workers(coordinator, &cluster.name).await? {
            if worker.presence() == Presence::Connected {
                *agents.entry(worker.agent_version).or_default() += 1;
            }
        }
    }
    Ok(agents)
}

fn or_unknown(version: &str) -> &str {
    if version.is_empty() { "?" } else { version }
}

/// What to do about versions that differ; empty where all are the same.
fn skew<'a>(
    coordinators: impl Iterator<Item = &'a str>,
    agents: impl Iterator<Item = &'a str>,
) -> String {
    let others = |version: &&str| !version.is_empty() && *version != OWN;
    let coordinators: BTreeSet<_> = coordinators.filter(|version| !version.is_empty()).collect();
    let mut text = String::new();
    if coordinators.iter().any(others) {
        text.push_str(
            "The versions of this program and of the coordinators differ: some commands may not \
             work.\n",
        );
    }
    if coordinators.len() > 1 {
        text.push_str("The coordinators have several versions: end their upgrade.\n");
    }
    let oldest = coordinators.iter().filter_map(|version| version.parse::<Version>().ok()).min();
    // An agent that says no version is older than the first release that did.
    let is_older = |agent: &str| agent.parse().map_or(true, |agent: Version| Some(agent) < oldest);
    if agents.into_iter().any(is_older) {
        text.push_str(
            "Some agents are older than their coordinators: update them (`leasehold workers -o \
             wide` shows which).\n",
        );
    }
    text
}

/// Runs `leasehold completion`.
pub(crate) fn completion(args: &CompletionArgs, mut command: Command, name: &str) -> ExitCode {
    generate(args.shell, &mut command, name, &mut io::stdout());
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skew_is_named_and_equal_versions_are_not() {
        let said = |coordinators: &[&str], agents: &[&str]| {
            skew(coordinators.iter().copied(), agents.iter().copied())
        };
        assert_eq!(said(&[OWN, OWN, ""], &[OWN, "99.0.0"]), "");
        assert!(said(&["99.0.0"], &["99.0.0"]).contains("this program and of the coordinators"));
        assert!(said(&[OWN, "99.0.0"], &[OWN]).contains("several versions"));
        assert!(said(&[OWN], &[OWN, "0.0.1"]).contains("Some agents are older"));
        assert!(said(&[OWN], &[""]).contains("Some agents are older"));
        assert!(!said(&["0.0.9", "0.0.7"], &["0.0.8"]).contains("Some agents are older"));
    }
}
