//! `leasehold uninject`: removes the sidecar from manifests.

use std::process::ExitCode;

use leasehold_injection::uninject;

use crate::{argument, manifests, source};

const EXAMPLES: &str = "\
Examples:
  # Restore the manifests
  leasehold uninject -f injected.yaml

  # Remove the sidecar from a running Deployment
  kubectl get deployment builds -o yaml | leasehold uninject -f - | kubectl apply -f -

The pod's annotation leasehold.dev/status lists the injected parts; everything else stays. Comments
and layout stay as they do with inject. After an error stdout is empty.";

/// Options of `uninject`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A file with manifests, a folder of such files, or - for stdin; may be repeated
    #[arg(short, long, value_name = "FILE", required = true, value_parser = argument::source)]
    filename: Vec<String>,
}

/// Writes the manifests without the sidecar.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let sources = source::read(&args.filename)?;
    let documents = manifests::parse(&sources)?;
    let rewritten = manifests::rewrite(&documents, &mut |_, pod| uninject(pod.value))?;
    rewritten.print()?;
    Ok(ExitCode::SUCCESS)
}
