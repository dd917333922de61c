//! A record of the Travis worker's pause, which the worker itself does not report.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// The tolerance for two readings of the start time of one process, in milliseconds.
const APART_MS_MAX: u64 = 5_000;
/// The most bytes of a record.
const BYTES_MAX: usize = 1024;

/// The pause of one process was toggled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// When the process started, in milliseconds since 1970.
    #[serde(rename = "born_ms")]
    pub(super) started_ms: u64,
    /// The worker confirmed it; otherwise the request may have been lost.
    #[serde(rename = "heard")]
    pub(super) confirmed: bool,
}

impl Record {
    /// Reads the record, if the file contains a valid one.
    pub(super) fn read(path: &Path) -> Option<Self> {
        let bytes = std::fs::read(path).ok().filter(|bytes| bytes.len() <= BYTES_MAX)?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Whether it belongs to the process that started then.
    pub(super) fn is_of(&self, started_ms: u64) -> bool {
        self.started_ms.abs_diff(started_ms) <= APART_MS_MAX
    }

    /// Replaces the record atomically.
    pub(super) fn write(&self, path: &Path) -> std::io::Result<()> {
        let text = serde_json::to_vec(self).expect("it has only plain fields");
        let new = path.with_extension("new");
        std::fs::write(&new, text)?;
        std::fs::rename(&new, path)
    }

    /// Removes the record: the pause was not toggled.
    pub(super) fn remove(path: &Path) {
        // If this fails, a drain may end the worker after its jobs, which loses no job.
        let _ = std::fs::remove_file(path);
    }
}
