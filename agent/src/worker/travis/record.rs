//! What an agent keeps of its Travis worker's pause: the worker itself does not tell.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// How far two readings of one process's begin may lie apart, in milliseconds.
const APART_MS_MAX: u64 = 5_000;
/// Bytes of a record that is read.
const BYTES_MAX: usize = 1024;

/// The pause of one process was toggled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// When the process began, in milliseconds since 1970.
    pub(super) born_ms: u64,
    /// It was heard; otherwise the order may have been lost.
    pub(super) heard: bool,
}

impl Record {
    /// The record in a file; none where there is none that makes sense.
    pub(super) fn read(path: &Path) -> Option<Self> {
        let bytes = std::fs::read(path).ok().filter(|bytes| bytes.len() <= BYTES_MAX)?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Whether it tells of the process that began then.
    pub(super) fn is_of(&self, born_ms: u64) -> bool {
        self.born_ms.abs_diff(born_ms) <= APART_MS_MAX
    }

    /// Writes it in place of the one before.
    pub(super) fn write(&self, path: &Path) -> std::io::Result<()> {
        let text = serde_json::to_vec(self).expect("it has only plain fields");
        let new = path.with_extension("new");
        std::fs::write(&new, text)?;
        std::fs::rename(&new, path)
    }

    /// There is nothing to tell of.
    pub(super) fn remove(path: &Path) {
        // Should it stay, the worker may be told to end after its jobs: none is lost by that.
        let _ = std::fs::remove_file(path);
    }
}
