//! `leasehold uninject`: takes out of manifests what was injected.

use std::process::ExitCode;

use leasehold_injection::uninject;

use crate::manifests::Aliases;
use crate::{manifests, output, source, yaml};

const EXAMPLES: &str = "\
Examples:
  # The manifests as they were before
  leasehold uninject -f injected.yaml

  # Out of what runs
  kubectl get deployment builds -o yaml | leasehold uninject -f - | kubectl apply -f -

What was injected is known from the pod's annotation leasehold.dev/status; what was not is left
alone. Nothing is written where anything is wrong.";

/// Options of `uninject`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A file with manifests, a folder of such files, or - for stdin; may be repeated
    #[arg(short, long, value_name = "FILE", required = true)]
    filename: Vec<String>,
}

/// Writes the manifests without the sidecar.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let sources = source::read(&args.filename)?;
    let text =
        manifests::rewrite(&sources, Aliases::GivenBack, &mut |_, _, value| uninject(value))?;
    let left = text.lines().filter_map(yaml::marked);
    let warnings: Vec<String> = left
        .map(|alias| {
            let why = "it does not say any more what its anchor says, or that is gone";
            format!("{alias} stays a copy: {why}")
        })
        .collect();
    output::write(&text, &warnings)
}
