//! `leasehold uninject`: takes out of manifests what was injected.

use std::process::ExitCode;

use leasehold_injection::uninject;

use crate::{manifests, output, source};

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
    let documents = manifests::parse(&sources)?;
    let rewritten = manifests::rewrite(&documents, &mut |_, pod| uninject(pod.value))?;
    output::write(&rewritten.text, &rewritten.warnings)
}
