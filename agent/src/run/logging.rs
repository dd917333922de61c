//! Log lines on stderr, and an exit of the whole process when a task panics.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Starts the log; `level` applies unless LEASEHOLD_LOG is set.
pub(super) fn start(format: LogFormat, level: &str) {
    let filter = EnvFilter::try_from_env("LEASEHOLD_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // In tests one process may start it twice: the first log stays in use.
    let _ = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        // An agent with a dead task must not run on: its leases expire, and its successor reads the
        // journal.
        std::process::exit(1);
    }));
}
