//! A record of the Travis worker's pause: the worker itself does not report it.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// How far two readings of one process's begin may lie apart, in milliseconds.
const APART_MS_MAX: u64 = 5_000;
/// Bytes of a record that is read.
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
    /// The record in a file, if it holds a valid one.
    pub(super) fn read(path: &Path) -> Option<Self> {
        let bytes = std::fs::read(path).ok().filter(|bytes| bytes.len() <= BYTES_MAX)?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Whether it is of the process that began then.
    pub(super) fn is_of(&self, started_ms: u64) -> bool {
        self.started_ms.abs_diff(started_ms) <= APART_MS_MAX
    }

    /// Writes it in place of the previous one.
    pub(super) fn write(&self, path: &Path) -> std::io::Result<()> {
        let text = serde_json::to_vec(self).expect("it has only plain fields");
        let new = path.with_extension("new");
        std::fs::write(&new, text)?;
        std::fs::rename(&new, path)
    }

    /// The pause was never toggled.
    pub(super) fn remove(path: &Path) {
        // If it stays, the worker may be ordered to end after its jobs: that loses no job.
        let _ = std::fs::remove_file(path);
    }
}
