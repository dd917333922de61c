//! Output of a subcommand: manifests to stdout, warnings to stderr.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use anyhow::Context;

/// Writes the manifests, then the warnings. A reader that closes the pipe early is no error.
pub(crate) fn write(text: &str, warnings: &[String]) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            return Err(error).context("cannot write to stdout");
        }
        _ => {}
    }
    let mut stderr = io::stderr().lock();
    for warning in warnings {
        // If stderr is closed, there is nowhere left to report it.
        let _ = writeln!(stderr, "warning: {warning}");
    }
    Ok(ExitCode::SUCCESS)
}
