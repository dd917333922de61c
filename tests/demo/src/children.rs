//! Child processes that do not outlive the demo, however that ends: they are killed when their
//! guard is dropped, and by the kernel when the demo's process dies. Children are named by process
//! id only.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

use crate::clock::POLL;

/// The name of the hidden subcommand that runs a command which dies with its parent.
pub const TETHER: &str = "tether";

/// Becomes `command`, to be killed when `parent` dies. Returns only an error.
///
/// # Errors
/// If the parent is dead already, or the command cannot be run.
pub fn become_tethered(parent: u32, command: &[String]) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot ask to die with the parent")?;
    let now = rustix::process::getppid().map(Pid::as_raw_nonzero);
    if now.and_then(|pid| u32::try_from(pid.get()).ok()) != Some(parent) {
        bail!("the parent is gone");
    }
    let (program, args) = command.split_first().context("no command")?;
    let error = Command::new(program).args(args).exec();
    Err(error).with_context(|| format!("cannot run {program}"))
}

/// A child process and all that it started.
#[derive(Debug)]
pub struct Process {
    /// Its name, for people.
    pub name: String,
    child: Child,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts `command` with its output in the file `log`. It leads a process group of its own, so
    /// that Ctrl-C on the terminal reaches the demo alone.
    ///
    /// Must be called from the process's main thread: the kernel kills a tethered child when the
    /// *thread* that started it ends.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(
        name: &str,
        command: &[String],
        env: &[(&str, String)],
        log: &Path,
    ) -> Result<Self> {
        let output = File::options().create(true).append(true).open(log)?;
        let mut tethered = Command::new(std::env::current_exe()?);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LEASEHOLD_") {
                // What the user's shell sets for another agent is not meant for these.
                tethered.env_remove(name);
            }
        }
        let child = tethered
            .arg(TETHER)
            .arg(std::process::id().to_string())
            .arg("--")
            .args(command)
            .envs(env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name: name.to_owned(), child, status: None })
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended; none while it lives.
    ///
    /// # Errors
    /// If the system call fails.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    /// Sends it, and it alone, a signal. A process that has ended gets none.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.ended()?.is_none() {
            rustix::process::kill_process(pid(self.id())?, signal)
                .with_context(|| format!("cannot signal {}", self.name))?;
        }
        Ok(())
    }

    /// Kills it with everything that it started, and waits until all of that is dead.
    ///
    /// # Errors
    /// If something does not die.
    pub fn kill(&mut self) -> Result<()> {
        let mut family = descendants(self.id());
        // The head first, so that it starts no more processes.
        self.signal(Signal::KILL)?;
        self.status = Some(self.child.wait()?);
        family.extend(family.clone().into_iter().flat_map(descendants));
        for id in &family {
            // It may have died with its parent.
            let _ = rustix::process::kill_process(pid(*id)?, Signal::KILL);
        }
        let deadline = Instant::now() + Duration::from_secs(5);
        while family.iter().any(|id| is_alive(*id)) {
            if Instant::now() > deadline {
                bail!("a child of {} still runs after SIGKILL", self.name);
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("{}: {error:#}", self.name);
        }
    }
}

/// An exit status in words.
#[must_use]
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no exit code".to_owned(),
    }
}

fn pid(id: u32) -> Result<Pid> {
    i32::try_from(id)
        .ok()
        .and_then(Pid::from_raw)
        .with_context(|| format!("{id} is not a process id"))
}

/// The processes that `id` started, and those that they started, and so on.
fn descendants(id: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|id| Some((id, stat(id)?.1)))
        .collect();
    let mut family = vec![id];
    let mut next = 0;
    while next < family.len() {
        let parent = family[next];
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(id, _)| *id));
        next += 1;
    }
    family.split_off(1)
}

fn is_alive(id: u32) -> bool {
    stat(id).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

/// A process's state and its parent, as proc(5) writes them.
fn stat(id: u32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name before may contain anything, a closing bracket too.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_descendants() {
        let mut child = Command::new("sh").args(["-c", "sleep 30 & wait"]).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut family = Vec::new();
        while family.is_empty() && Instant::now() < deadline {
            family = descendants(child.id());
        }
        assert_eq!(family.len(), 1);
        assert!(descendants(std::process::id()).contains(&family[0]));
        assert!(is_alive(family[0]));
        child.kill().unwrap();
        child.wait().unwrap();
        rustix::process::kill_process(pid(family[0]).unwrap(), Signal::KILL).unwrap();
        while is_alive(family[0]) && Instant::now() < deadline {}
        assert!(!is_alive(family[0]));
    }
}
