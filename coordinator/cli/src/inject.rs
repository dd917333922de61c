//! `leasehold inject`.

use std::process::ExitCode;

/// Options of `inject`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A file with manifests, a folder of such files, or - for stdin; may be repeated
    #[arg(short, long, value_name = "FILE", required = true)]
    filename: Vec<String>,
}

/// Writes the manifests with the sidecar in them.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("{} is not read yet", args.filename.join(", "))
}
