//! Disk IO that asynchronous code waits for, and what holds of files after it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Runs disk IO on a blocking thread.
pub async fn blocking<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down and will drop this task.
        Err(_) => std::future::pending().await,
    }
}

/// Waits until a folder's names are on disk.
///
/// # Errors
/// If the folder cannot be opened or synchronised.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Whether `path` still names this open file.
#[must_use]
pub fn same_file(file: &File, path: &Path) -> bool {
    let ours = file.metadata().map(|meta| (meta.dev(), meta.ino()));
    let theirs = fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    ours.is_ok_and(|ours| theirs.is_ok_and(|theirs| ours == theirs))
}
