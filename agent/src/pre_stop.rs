//! `leasehold-agent pre-stop`: the preStop hook of the agent's own container. A kubelet sends
//! SIGTERM once, when the hook has ended, and the kernel drops a SIGTERM for process 1 of a
//! container until that process has a handler. Without the hook, a pod that is deleted while its
//! agent starts would remain for its whole grace period.
//!
//! On a busy machine the hook may run before process 1 has become the agent. Until then it is the
//! container runtime's own process, whose handlers (it is a program in Go, which handles every
//! signal) end when it becomes the agent, and with them a SIGTERM that came meanwhile.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::Signal;

/// The files in which the kernel describes process 1 and this one. (proc_pid_status(5))
const STATUS: &str = "/proc/1/status";
const OWN_STATUS: &str = "/proc/self/status";
/// The files that name the control groups of process 1 and of this one, which are the container's.
const GROUP: &str = "/proc/1/cgroup";
const OWN_GROUP: &str = "/proc/self/cgroup";
/// The time between two readings.
const INTERVAL: Duration = Duration::from_millis(20);
/// How long process 1 may take to become the agent and to install its handler.
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

/// Waits until process 1 is the agent and handles SIGTERM. Where all containers of the pod share a
/// process namespace, the agent is not process 1, and the kernel drops no signal for it.
fn wait() -> anyhow::Result<()> {
    if read(GROUP)? != read(OWN_GROUP)? {
        return Ok(());
    }
    let own = read(OWN_STATUS)?;
    let begun = Instant::now();
    loop {
        let status = read(STATUS)?;
        let handles = handles(&status, Signal::TERM);
        let handles = handles.with_context(|| format!("{STATUS} has no SigCgt"))?;
        if handles && name(&status) == name(&own) {
            return Ok(());
        }
        if begun.elapsed() >= LIMIT {
            let limit = leasehold_types::duration::format_short(LIMIT);
            let one = name(&status).unwrap_or_default();
            bail!("process 1 ({one}) has not become an agent that handles SIGTERM within {limit}");
        }
        std::thread::sleep(INTERVAL);
    }
}

fn read(file: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(file).context(file.to_owned())
}

/// The name of the program of a process with this status.
fn name(status: &str) -> Option<&str> {
    status.lines().find_map(|line| line.strip_prefix("Name:")).map(str::trim)
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
        assert_eq!(name(status), Some("sh"));
        assert_eq!(handles("SigIgn:\t0000000000004000\n", Signal::TERM), None);
        assert_eq!(handles("SigCgt:\tmany\n", Signal::TERM), None);
    }
}
