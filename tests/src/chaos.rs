//! `make chaos`: three coordinators and eight agents with their workers, each on a host of its own,
//! under faults that a seed decides; judged by the workers' own journals. Everything lives in
//! namespaces of the run's own, which the kernel ends with it, however that ends.

mod disks;
mod fleet;
pub mod judge;
mod manifests;
mod network;
mod orders;
pub mod plan;
mod run;

use std::path::Path;
use std::process::{Command, Stdio};

pub use run::run;

/// What makes namespaces: all that is in them ends with the process that this becomes.
const UNSHARE: [&str; 9] = [
    "--pdeathsig",
    "KILL",
    "unshare",
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child=KILL",
    "--mount-proc",
];
/// Tried before anything begins; what it makes is gone with it.
const TRIAL: &str = "mount -t tmpfs tmpfs /run && ip netns add trial && \
                     ip link add trial type veth peer name line netns trial && \
                     ip rule add blackhole from 10.77.0.1";

/// The command that runs a program as the first process of namespaces of its own: network, mounts
/// and process ids. It dies with the thread that starts it.
#[must_use]
pub fn confined(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(UNSHARE).arg("--").arg(program);
    command
}

/// Why there can be no run here, or `None` if there can.
#[must_use]
pub fn refusal() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("it makes namespaces, which needs root".to_owned());
    }
    let mut trial = confined(Path::new("sh"));
    match trial.args(["-c", TRIAL]).stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("setpriv: {error}")),
    }
}
