//! Checks that the state folder is still the one that this replica started with. An administrator
//! may delete it, replace it or restore it from a copy while replicas run. The content then lacks
//! epochs that were led and workers that hold leases.
//!
//! The folder is identified by its device and inode, and by a random id in a file, because an inode
//! may be reused.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_types::{Epoch, file_system};

use super::epochs::{numbered, sync_folder, write_durably};

/// The file with the folder's id.
const ID_FILE: &str = "folder.id";

/// The state folder as it was when this replica started.
#[derive(Clone, Debug)]
pub(crate) struct StateFolder {
    path: PathBuf,
    identity: FolderIdentity,
    lost: Arc<Mutex<Option<String>>>,
}

/// Identifies a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FolderIdentity {
    device: u64,
    inode: u64,
    id_inode: u64,
    id: Vec<u8>,
}

impl StateFolder {
    /// Creates the folder if it is missing, and gives it an id if it has none. Unless
    /// `trusts_locks`, the folder must be on a file system where a lock proves that the process
    /// that took it runs: the end of a lock means that a leader has ended.
    pub(crate) fn open(path: &Path, trusts_locks: bool) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        if !trusts_locks {
            check_file_system(path)?;
        }
        let file = path.join(ID_FILE);
        if !file.try_exists()? {
            let id = fastrand::u128(..);
            let temporary = path.join(format!("{ID_FILE}.{id:032x}.tmp"));
            write_durably(&temporary, format!("{id:032x}\n").as_bytes())?;
            // If several replicas start together, one of them sets the id.
            let linked = fs::hard_link(&temporary, &file);
            let _ = fs::remove_file(&temporary);
            linked.or_else(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => Ok(()),
                _ => Err(error),
            })?;
            sync_folder(path)?;
        }
        Ok(Self {
            path: path.to_owned(),
            identity: FolderIdentity::of(path)?,
            lost: Arc::default(),
        })
    }

    /// Checks whether it is still the same folder.
    ///
    /// # Errors
    /// Says what is wrong and what to do if it is not. A disk error does not count as another
    /// folder.
    pub(crate) fn check(&self) -> io::Result<()> {
        let what = match FolderIdentity::of(&self.path) {
            Ok(identity) if identity == self.identity => None,
            Ok(_) => Some("was deleted and created again, or replaced by another one"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some("was deleted"),
            Err(error) => return Err(error),
        };
        let text = what.map(|what| self.instructions(what));
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*lost, &text) {
            (None, Some(text)) => tracing::error!("{text}"),
            (Some(_), None) => {
                tracing::warn!("the state folder is back: this replica can lead again")
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
        lost.clone_from(&text);
        text.map_or(Ok(()), |text| Err(io::Error::other(text)))
    }

    /// Why no replica leads, if the last check found another folder.
    pub(crate) fn lost(&self) -> Option<String> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes an empty claim for this epoch into the folder that now has this path, so that no
    /// replica that starts on it leads this epoch or an earlier one again.
    pub(crate) fn mark_led(&self, epoch: Epoch) -> io::Result<()> {
        let epochs = self.path.join("epochs");
        fs::create_dir_all(&epochs)?;
        if numbered(&epochs, "json")?.pop() >= Some(epoch) {
            return Ok(());
        }
        let mut options = OpenOptions::new();
        let claim = epochs.join(format!("{:020}.json", epoch.0));
        match options.write(true).create_new(true).mode(0o644).open(claim) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            Ok(_) => sync_folder(&epochs),
            Err(_) => Ok(()),
        }
    }

    fn instructions(&self, what: &str) -> String {
        format!(
            "the state folder {} {what} while this replica was running: it no longer leads and \
             grants nothing. Restore the same folder, or find the cause and restart every \
             coordinator that uses it: see \"The state folder was deleted beside running \
             coordinators\" in docs/OPERATIONS.md",
            self.path.display()
        )
    }
}

/// Refuses a file system where a lock does not prove that its process runs.
fn check_file_system(path: &Path) -> io::Result<()> {
    let found = rustix::fs::statfs(path)?;
    match file_system::with_unproven_locks(found.f_type) {
        None => Ok(()),
        Some(name) => {
            Err(io::Error::other(file_system::refusal(&path.display().to_string(), name)))
        }
    }
}

impl FolderIdentity {
    fn of(path: &Path) -> io::Result<Self> {
        let (folder, file) = (fs::metadata(path)?, path.join(ID_FILE));
        let (id_inode, id) = (fs::metadata(&file)?.ino(), fs::read(&file)?);
        Ok(Self { device: folder.dev(), inode: folder.ino(), id_inode, id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deleted_emptied_or_replaced_folder_fails_the_check_until_it_is_back() {
        let parent = tempfile::tempdir().unwrap();
        let (path, aside) = (parent.path().join("state"), parent.path().join("aside"));
        let folder = StateFolder::open(&path, false).unwrap();
        assert_eq!(
            StateFolder::open(&path, false).unwrap().identity,
            folder.identity,
            "a second replica"
        );
        folder.check().unwrap();
        fs::rename(&path, &aside).unwrap();
        let error = folder.check().unwrap_err().to_string();
        assert!(error.contains("was deleted") && error.contains("OPERATIONS"), "{error}");
        StateFolder::open(&path, false).unwrap();
        let error = folder.check().unwrap_err().to_string();
        assert!(error.contains("created again"), "{error}");
        assert_eq!(folder.lost(), Some(error));
        fs::remove_dir_all(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
        folder.check().unwrap();
        assert_eq!(folder.lost(), None);
        fs::remove_file(path.join(ID_FILE)).unwrap();
        folder.check().unwrap_err();
    }
}
