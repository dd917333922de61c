//! Options of the adapter `file`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use leasehold_types::flag::{DurationRange, duration};
use rustix::process::Signal;

use super::first_given;

/// How long after a change the worker is assumed to have reloaded.
const SETTLE: Duration = Duration::from_secs(1);

/// The adapter `file`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileAdapter {
    /// The file.
    pub path: PathBuf,
    /// The signal after a change, and its receiver.
    pub signal: Option<(Signal, SignalTo)>,
    /// How the agent knows that the worker has reloaded.
    pub reload_check: ReloadCheck,
    /// Set if the file also contains the pool size.
    pub pool: Option<FilePool>,
}

/// The pool of a worker that reads its pool size from the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePool {
    /// The file with the number of running jobs; without it every slot counts as used.
    pub count: Option<PathBuf>,
}

/// The receiver of the signal after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignalTo {
    /// The process whose id is in this file.
    PidFile(PathBuf),
    /// The child.
    Child,
}

/// How the agent knows that the worker has reloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReloadCheck {
    /// It has reloaded this long after the change.
    After(Duration),
    /// It has reloaded when this command exits with 0.
    Command(String),
}

/// Options of the adapter `file`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Adapter file")]
pub(super) struct FileArgs {
    /// The file that lists the worker's streams, in k8s-swarm's format. The agent overwrites it
    #[arg(long, env = "LEASEHOLD_FILE_PATH", value_name = "FILE")]
    file_path: Option<PathBuf>,
    /// The signal to send after each change, to the process in --file-pid or to COMMAND
    #[arg(long, env = "LEASEHOLD_FILE_SIGNAL", value_name = "SIGNAL")]
    file_signal: Option<String>,
    /// The file with the process id for --file-signal
    #[arg(long, env = "LEASEHOLD_FILE_PID", value_name = "FILE", requires = "file_signal")]
    file_pid: Option<PathBuf>,
    /// Run with sh -c after each change; exits with 0 once the worker has reloaded
    #[arg(long, env = "LEASEHOLD_FILE_COMMAND", value_name = "COMMAND")]
    file_command: Option<String>,
    /// Without --file-command: how long after a change the worker is assumed to have reloaded
    /// [default: 1s]
    #[arg(long, env = "LEASEHOLD_FILE_SETTLE", value_name = "DURATION")]
    #[arg(value_parser = duration(DurationRange::GRACE))]
    #[arg(conflicts_with = "file_command")]
    file_settle: Option<Duration>,
    /// Also write the pool size into the file, as poolSize
    #[arg(long, env = "LEASEHOLD_FILE_POOL")]
    file_pool: bool,
    /// The file in which the worker writes the number of running jobs. Without it, a worker must
    /// have ended the excess jobs when it reloads a smaller pool size
    #[arg(long, env = "LEASEHOLD_FILE_COUNT", value_name = "FILE", requires = "file_pool")]
    file_count: Option<PathBuf>,
}

impl FileArgs {
    /// The first option of this adapter that is set.
    pub(super) fn given(&self) -> Option<&'static str> {
        first_given(&[
            ("--file-path", self.file_path.is_some()),
            ("--file-signal", self.file_signal.is_some()),
            ("--file-command", self.file_command.is_some()),
            ("--file-settle", self.file_settle.is_some()),
            ("--file-pool", self.file_pool),
        ])
    }

    /// Validates the options.
    pub(super) fn check(self, has_child: bool) -> Result<FileAdapter, String> {
        let Self { file_path, file_signal, file_pid, file_command, file_settle, .. } = self;
        let pool = self.file_pool.then_some(FilePool { count: self.file_count });
        let path = file_path.ok_or("--adapter file needs --file-path: the file to write")?;
        if path.file_name().is_none() {
            return Err(format!(
                "--file-path {} is not the path of a file: give a path that ends with a file name",
                path.display()
            ));
        }
        let signal = match (file_signal, file_pid) {
            (None, _) => None,
            (Some(signal), Some(pid)) => Some((signal_named(&signal)?, SignalTo::PidFile(pid))),
            (Some(signal), None) if has_child => Some((signal_named(&signal)?, SignalTo::Child)),
            (Some(_), None) => {
                return Err("--file-signal needs --file-pid, or a COMMAND to send it to".into());
            }
        };
        let reload_check = match file_command {
            Some(command) => ReloadCheck::Command(command),
            None => ReloadCheck::After(file_settle.unwrap_or(SETTLE)),
        };
        Ok(FileAdapter { path, signal, reload_check, pool })
    }
}

fn signal_named(name: &str) -> Result<Signal, String> {
    match name.strip_prefix("SIG").unwrap_or(name) {
        "HUP" => Ok(Signal::HUP),
        "INT" => Ok(Signal::INT),
        "USR1" => Ok(Signal::USR1),
        "USR2" => Ok(Signal::USR2),
        "TERM" => Ok(Signal::TERM),
        "WINCH" => Ok(Signal::WINCH),
        _ => Err(format!("invalid --file-signal {name}: use HUP, INT, USR1, USR2, TERM or WINCH")),
    }
}
