//! The register: which workers may hold what, written down before they are granted it. One file an
//! epoch, written by that epoch's leader alone; it begins with all that the file before it said.
//!
//! A leader appends, then looks whether it still leads, then says that it is registered. A
//! successor takes its epoch, then reads. So what was said to be registered is always read.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_coordinator_core::event::Exposure;
use leasehold_types::{ClusterName, Epoch, Incarnation, SetName, WorkerKey, WorkerName};
use serde::{Deserialize, Serialize};

use super::terms::{numbered, same_file, sync_folder, write_durably};

/// Logs that are kept: this leader's and the one before.
const LOGS_KEPT: usize = 2;
/// Lines beyond four for each worker after which a log is written anew.
const LINES_SPARE: usize = 10_000;

/// All that is registered.
pub(crate) type Entries = BTreeMap<WorkerKey, Exposure>;

/// A change of one worker's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Enter(WorkerKey, Exposure),
    Strike(WorkerKey),
}

/// One line of a log.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Enter { cluster: ClusterName, worker: WorkerName, exposure: Written },
    Strike { cluster: ClusterName, worker: WorkerName },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    incarnation: Incarnation,
    ttl_ms: u64,
    jobs_max: u32,
    sets: BTreeMap<SetName, bool>,
}

/// The log of one epoch, open for its leader.
#[derive(Debug)]
pub(crate) struct Register {
    folder: PathBuf,
    epoch: Epoch,
    entries: Entries,
    lines: usize,
    /// None until the log has been written for the first time, and after a write that failed.
    file: Option<File>,
}

/// The highest epoch that has a log.
pub(crate) fn highest(state_dir: &Path) -> io::Result<Option<Epoch>> {
    match numbered(&folder(state_dir), "log") {
        Ok(mut epochs) => Ok(epochs.pop()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Register {
    /// Reads what the newest log of an earlier epoch says. The own epoch must have been taken.
    pub(crate) fn open(state_dir: &Path, epoch: Epoch) -> io::Result<Self> {
        let folder = folder(state_dir);
        fs::create_dir_all(&folder)?;
        let earlier = numbered(&folder, "log")?.into_iter().rfind(|log| *log < epoch);
        let entries = match earlier {
            Some(earlier) => read(&log_path(&folder, earlier))?,
            None => Entries::new(),
        };
        Ok(Self { folder, epoch, entries, lines: 0, file: None })
    }

    /// All that is registered.
    pub(crate) fn entries(&self) -> &Entries {
        &self.entries
    }

    /// Writes changes down; they are on disk when this returns. After an error they are in force
    /// here and are written with the next ones.
    pub(crate) fn write(&mut self, changes: &[Change]) -> io::Result<()> {
        let mut text = Vec::new();
        for change in changes {
            self.apply(change);
            append_line(&mut text, change)?;
        }
        let lines = self.lines + changes.len();
        let grown = lines > 4 * self.entries.len() + LINES_SPARE;
        let path = log_path(&self.folder, self.epoch);
        match self.file.take() {
            Some(mut file) if !grown && same_file(&file, &path) => {
                file.write_all(&text)?;
                file.sync_data()?;
                self.lines = lines;
                self.file = Some(file);
                Ok(())
            }
            _ => self.rewrite(),
        }
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Enter(key, exposure) => {
                self.entries.insert(key.clone(), exposure.clone());
            }
            Change::Strike(key) => {
                self.entries.remove(key);
            }
        }
    }

    /// Writes the whole log anew beside the old one, then puts it in its place.
    fn rewrite(&mut self) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let mut text = Vec::new();
        for (key, exposure) in &self.entries {
            append_line(&mut text, &Change::Enter(key.clone(), exposure.clone()))?;
        }
        let path = log_path(&self.folder, self.epoch);
        let temporary = path.with_extension("log.tmp");
        write_durably(&temporary, &text)?;
        fs::rename(&temporary, &path)?;
        sync_folder(&self.folder)?;
        self.lines = self.entries.len();
        self.file = Some(OpenOptions::new().append(true).open(&path)?);
        self.prune()
    }

    fn prune(&self) -> io::Result<()> {
        let logs = numbered(&self.folder, "log")?;
        for log in &logs[..logs.len().saturating_sub(LOGS_KEPT)] {
            fs::remove_file(log_path(&self.folder, *log))?;
        }
        Ok(())
    }
}

fn folder(state_dir: &Path) -> PathBuf {
    state_dir.join("register")
}

fn log_path(folder: &Path, epoch: Epoch) -> PathBuf {
    folder.join(format!("{:020}.log", epoch.0))
}

fn append_line(text: &mut Vec<u8>, change: &Change) -> io::Result<()> {
    let line = match change.clone() {
        Change::Strike(WorkerKey { cluster, worker }) => Line::Strike { cluster, worker },
        Change::Enter(WorkerKey { cluster, worker }, exposure) => {
            // A part of a millisecond counts as a whole one: an entry never says too little.
            let ttl_ms = exposure.ttl.as_nanos().div_ceil(1_000_000);
            let ttl_ms = u64::try_from(ttl_ms).unwrap_or(u64::MAX);
            let Exposure { incarnation, jobs_max, sets, .. } = exposure;
            let exposure = Written { incarnation, ttl_ms, jobs_max, sets };
            Line::Enter { cluster, worker, exposure }
        }
    };
    serde_json::to_writer(&mut *text, &line).map_err(io::Error::other)?;
    text.push(b'\n');
    Ok(())
}

/// What a log says. A last line without its end was never said to be registered, and is passed
/// over; any other that cannot be read is an error, since it may be a worker's.
fn read(path: &Path) -> io::Result<Entries> {
    let text = fs::read(path)?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let mut entries = Entries::new();
    for (number, line) in (1..).zip(text[..whole].split_inclusive(|byte| *byte == b'\n')) {
        let line: Line = serde_json::from_slice(line).map_err(|error| {
            io::Error::other(format!(
                "{}:{number} cannot be read ({error}); remove the file only once no worker of \
                 any cluster holds a lease",
                path.display()
            ))
        })?;
        match line {
            Line::Enter { cluster, worker, exposure } => {
                let Written { incarnation, ttl_ms, jobs_max, sets } = exposure;
                let ttl = Duration::from_millis(ttl_ms);
                let exposure = Exposure { incarnation, ttl, jobs_max, sets };
                entries.insert(WorkerKey { cluster, worker }, exposure);
            }
            Line::Strike { cluster, worker } => {
                entries.remove(&WorkerKey { cluster, worker });
            }
        }
    }
    Ok(entries)
}
