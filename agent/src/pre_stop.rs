//! `leasehold-agent pre-stop`: the preStop hook of the agent's own container. A kubelet sends
//! SIGTERM once, when the hook has ended, and the kernel drops a SIGTERM for process 1 of a
//! container until that process has a handler. Without the hook, a pod that is deleted while its
//! agent starts would remain for its whole grace period.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::Signal;

/// The file in which the kernel describes process 1. (proc_pid_status(5))
const STATUS: &str = "/proc/1/status";
/// The time between two readings.
const INTERVAL: Duration = Duration::from_millis(20);
/// How long process 1 may take to install its handler.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs the command and returns the exit code of this process.
#[must_use]
pub fn main() -> ExitCode {
    match wait() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Waits until process 1 handles SIGTERM.
fn wait() -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let status = std::fs::read_to_string(STATUS).context(STATUS)?;
        if handles(&status, Signal::TERM).with_context(|| format!("{STATUS} has no SigCgt"))? {
            return Ok(());
        }
        if begun.elapsed() >= LIMIT {
            let limit = leasehold_types::duration::format_short(LIMIT);
            bail!("process 1 has installed no handler for SIGTERM within {limit}");
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Whether a process with this status has a handler for the signal; `None` if the status does not
/// say so.
fn handles(status: &str, signal: Signal) -> Option<bool> {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
    let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
    Some(caught >> (signal.as_raw() - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_handled_signals() {
        let status = "Name:\tsh\nSigIgn:\t0000000000004000\nSigCgt:\t0000000000004002\n";
        assert_eq!(handles(status, Signal::TERM), Some(true));
        assert_eq!(handles(status, Signal::INT), Some(true));
        assert_eq!(handles(status, Signal::HUP), Some(false));
        assert_eq!(handles("SigIgn:\t0000000000004000\n", Signal::TERM), None);
        assert_eq!(handles("SigCgt:\tmany\n", Signal::TERM), None);
    }
}
