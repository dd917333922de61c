//! What a subcommand says: manifests to stdout, warnings to stderr.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use anyhow::Context;

/// Writes a whole text, and then the warnings. A reader that has gone has read what it wanted.
pub(crate) fn write(text: &str, warnings: &[String]) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            return Err(error).context("cannot write to stdout");
        }
        _ => {}
    }
    let mut told = io::stderr().lock();
    for warning in warnings {
        // Nobody can be told that nobody can be told.
        let _ = writeln!(told, "warning: {warning}");
    }
    Ok(ExitCode::SUCCESS)
}
