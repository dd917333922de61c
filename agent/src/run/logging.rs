//! Log lines on stderr, and an end of the whole process where an invariant is broken.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Starts the log; `level` counts where LEASEHOLD_LOG does not say.
pub(super) fn start(format: LogFormat, level: &str) {
    let filter = EnvFilter::try_from_env("LEASEHOLD_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second log in one process (in tests) is no error: the first one stays.
    let _ = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        // Half an agent is worse than none: leases end by time, a successor reads the journal.
        std::process::exit(1);
    }));
}
