//! The exposure log: the most that each worker may hold, written before it is granted. Each epoch
//! has its own file, which only its leader writes; it begins with all entries of the previous one.
//!
//! A leader appends, then checks whether it still leads, then reports the entry as registered. A
//! successor takes its epoch, then reads. So it reads every entry that was reported as registered.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use leasehold_coordinator_core::campaign::EntryChange;
use leasehold_coordinator_core::exposure::Exposure;
use leasehold_platform::exposure_record::ExposureRecord;
use leasehold_types::{ClusterName, Epoch, WorkerKey, WorkerName};
use serde::{Deserialize, Serialize};

use super::epochs::{numbered, write_durably};
use leasehold_platform::disk_io::{same_file, sync_folder};

/// Logs that are kept: this leader's and the one before.
const LOGS_KEPT: usize = 2;
/// A log is rewritten when it has four lines per worker and this many more.
const LINES_SPARE: usize = 10_000;

/// All registered exposures.
pub type Entries = BTreeMap<WorkerKey, Exposure>;

/// One line of a log.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Enter {
        cluster: ClusterName,
        worker: WorkerName,
        exposure: serde_json::Value,
    },
    #[serde(rename = "strike")]
    Remove {
        cluster: ClusterName,
        worker: WorkerName,
    },
}

/// The log of one epoch, open for its leader.
#[derive(Debug)]
pub(crate) struct ExposureLog {
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

impl ExposureLog {
    /// Reads the newest log of an earlier epoch. `epoch` must have been taken before.
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

    /// All registered exposures.
    pub(crate) fn entries(&self) -> &Entries {
        &self.entries
    }

    /// Writes changes; they are on disk when this returns. After an error they are kept in memory
    /// and written with the next ones.
    pub(crate) fn write(&mut self, changes: &[EntryChange]) -> io::Result<()> {
        let mut text = Vec::new();
        for change in changes {
            self.apply(change);
            append_line(&mut text, &line(change)?)?;
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

    /// Writes all registered exposures into the folder that now has this path, merged with the
    /// newest log there.
    pub(crate) fn write_to_current_folder(&mut self) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let newest = numbered(&self.folder, "log")?.pop();
        let found = newest.map_or(Ok(Entries::new()), |log| read(&log_path(&self.folder, log)))?;
        for (key, exposure) in found {
            // If two leaders granted to this worker, the sum of both grants is unknown.
            let same = self.entries.get(&key).is_none_or(|known| *known == exposure);
            self.entries.insert(key, if same { exposure } else { Exposure::anything() });
        }
        self.rewrite()
    }

    fn apply(&mut self, change: &EntryChange) {
        match change {
            EntryChange::Register(key, _, exposure) => {
                self.entries.insert(key.clone(), exposure.clone());
            }
            EntryChange::Unregister(key) => {
                self.entries.remove(key);
            }
        }
    }

    /// Writes the whole log to a temporary file, then replaces the old one.
    fn rewrite(&mut self) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let text = text_of(&self.entries)?;
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

fn line(change: &EntryChange) -> io::Result<Line> {
    match change {
        EntryChange::Register(key, _, exposure) => enter(key, exposure),
        EntryChange::Unregister(WorkerKey { cluster, worker }) => {
            Ok(Line::Remove { cluster: cluster.clone(), worker: worker.clone() })
        }
    }
}

fn enter(key: &WorkerKey, exposure: &Exposure) -> io::Result<Line> {
    let exposure = serde_json::to_value(ExposureRecord::from(exposure));
    let exposure = exposure.map_err(io::Error::other)?;
    let WorkerKey { cluster, worker } = key.clone();
    Ok(Line::Enter { cluster, worker, exposure })
}

/// The text of a log with these entries and no others.
///
/// # Errors
/// If an entry cannot be written as JSON.
pub fn text_of(entries: &Entries) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for (key, exposure) in entries {
        append_line(&mut text, &enter(key, exposure)?)?;
    }
    Ok(text)
}

fn append_line(text: &mut Vec<u8>, line: &Line) -> io::Result<()> {
    serde_json::to_writer(&mut *text, line).map_err(io::Error::other)?;
    text.push(b'\n');
    Ok(())
}

/// Reads a log. A last line without its newline was never reported as registered and is skipped;
/// any other line that cannot be decoded is an error, since it may be any worker's. If only the
/// exposure cannot be decoded, the worker may hold anything.
fn read(path: &Path) -> io::Result<Entries> {
    parse(path, &fs::read(path)?)
}

/// Reads the text of the log at `path`.
///
/// # Errors
/// If a whole line cannot be decoded; it may be any worker's.
pub fn parse(path: &Path, text: &[u8]) -> io::Result<Entries> {
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let mut entries = Entries::new();
    for (number, line) in (1..).zip(text[..whole].split_inclusive(|byte| *byte == b'\n')) {
        let line: Line = serde_json::from_slice(line).map_err(|error| {
            io::Error::other(format!(
                "{}:{number} cannot be read ({error}); remove the file only when no worker of \
                 any cluster holds a lease",
                path.display()
            ))
        })?;
        match line {
            Line::Enter { cluster, worker, exposure } => {
                let written = serde_json::from_value::<ExposureRecord>(exposure);
                let exposure = written.map_or_else(|_| Exposure::anything(), Exposure::from);
                entries.insert(WorkerKey { cluster, worker }, exposure);
            }
            Line::Remove { cluster, worker } => {
                entries.remove(&WorkerKey { cluster, worker });
            }
        }
    }
    Ok(entries)
}
