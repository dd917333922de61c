//! Leasehold's command line, also found by kubectl as `kubectl leasehold`.

use clap::Parser;

/// Puts the sidecar into manifests, takes it out, and checks an installation.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, arg_required_else_help = true)]
struct Cli {}

fn main() {
    Cli::parse();
}
