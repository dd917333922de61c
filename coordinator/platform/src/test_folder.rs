//! Folders of tests whose tasks write in the background.

use std::cell::RefCell;
use std::path::PathBuf;

use tempfile::TempDir;

thread_local! {
    /// The folders of the test that this thread runs.
    static FOLDERS: RefCell<Vec<TempDir>> = const { RefCell::new(Vec::new()) };
}

/// An empty folder. It is removed when the thread of the test ends: the test's runtime has ended
/// then, and no task writes into the folder while it is removed.
pub(crate) fn test_folder() -> PathBuf {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    FOLDERS.with_borrow_mut(|folders| folders.push(folder));
    path
}
