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
use std::time::Duration;

use leasehold_driver::clock;
use leasehold_types::state_dir::{AGENT_FILE, COORDINATOR_FILE};
use leasehold_types::{CellId, Epoch, file_system};
use serde::{Deserialize, Serialize};

use super::epochs::{numbered, write_durably};
use leasehold_platform::disk_io::sync_folder;

/// The file with the identity of the cell. It belongs to what is in the folder, and stays the same
/// in a copy; the folder's id and its inodes tell a copy from the folder.
const CELL_FILE: &str = "cell.json";

/// The epochs that a cell may begin with in one second.
const FIRST_EPOCHS_PER_SECOND: u64 = 1_000_000;

/// The state folder as it was when this replica started.
#[derive(Clone, Debug)]
pub(crate) struct StateFolder {
    path: PathBuf,
    identity: FolderIdentity,
    cell: CellFile,
    lost: Arc<Mutex<Option<String>>>,
}

/// The cell that a state folder is the store of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CellFile {
    /// Its identity.
    pub(crate) id: CellId,
    /// Its first epoch: the seconds of its beginning, and six random digits. So tokens of two cells
    /// differ, also where both began at once, and those of the later one are higher.
    first_epoch: u64,
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
    ///
    /// A folder without a cell is of `cell` from now on, which takes a second, or begins one of its
    /// own.
    ///
    /// # Errors
    /// If it cannot be used, or is the folder of another cell.
    pub(crate) fn open(path: &Path, trusts_locks: bool, cell: Option<CellId>) -> io::Result<Self> {
        if path.is_file() {
            return Err(io::Error::other("it is a file: expected a folder"));
        }
        if path.join(AGENT_FILE).exists() && !path.join(COORDINATOR_FILE).exists() {
            return Err(io::Error::other(format!(
                "it is the state folder of an agent ({AGENT_FILE} is in it): give the coordinators \
                 a folder of their own, for example ./state"
            )));
        }
        fs::create_dir_all(path)?;
        if !trusts_locks {
            check_file_system(path)?;
        }
        // The folder's id.
        create(path, COORDINATOR_FILE, || {
            Ok(format!("{:032x}\n", fastrand::u128(..)).into_bytes())
        })?;
        create(path, CELL_FILE, || CellFile::begin(cell).text())?;
        let found = CellFile::read(path)?;
        match cell.filter(|cell| *cell != found.id) {
            Some(cell) => Err(io::Error::other(format!(
                "it is the folder of cell {}, and --cell names {cell}: correct --state-dir, or \
                 leave --cell out",
                found.id
            ))),
            None => Ok(Self {
                path: path.to_owned(),
                identity: FolderIdentity::of(path)?,
                cell: found,
                lost: Arc::default(),
            }),
        }
    }

    /// The cell that the folder is the store of.
    pub(crate) fn cell(&self) -> CellId {
        self.cell.id
    }

    /// The epoch above which the first one of the cell is taken.
    pub(crate) fn before_first_epoch(&self) -> Epoch {
        Epoch(self.cell.first_epoch.saturating_sub(1))
    }

    /// Checks whether it is still the same folder.
    ///
    /// # Errors
    /// Says what is wrong and what to do if it is not. A disk error does not count as another
    /// folder.
    pub(crate) fn check(&self) -> io::Result<()> {
        let what = match FolderIdentity::of(&self.path) {
            Ok(identity) if identity == self.identity => self.check_cell()?,
            Ok(_) => Some("was deleted and created again, or replaced by another one"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some("was deleted"),
            Err(error) => return Err(error),
        };
        let text = what.map(|what| self.instructions(what));
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*lost, &text) {
            (Some(last), Some(text)) if last == text => {}
            (_, Some(text)) => tracing::error!("{text}"),
            (Some(_), None) => {
                tracing::warn!("the state folder is back: this replica can lead again");
            }
            (None, None) => {}
        }
        lost.clone_from(&text);
        text.map_or(Ok(()), |text| Err(io::Error::other(text)))
    }

    /// Checks that the folder is still of this replica's cell. A removed file is restored.
    fn check_cell(&self) -> io::Result<Option<&'static str>> {
        match CellFile::read(&self.path) {
            Ok(found) if found == self.cell => Ok(None),
            Ok(_) => Ok(Some("was given to another cell")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create(&self.path, CELL_FILE, || self.cell.text()).map(|()| None)
            }
            Err(error) => Err(error),
        }
    }

    /// Why no replica leads, if the last check found another folder.
    pub(crate) fn lost(&self) -> Option<String> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes the cell, and an empty claim for this epoch, into the folder that now has this path,
    /// so that a replica that starts on it serves the same agents, and leads neither this epoch nor
    /// an earlier one again.
    pub(crate) fn mark_led(&self, epoch: Epoch) -> io::Result<()> {
        let epochs = self.path.join("epochs");
        fs::create_dir_all(&epochs)?;
        create(&self.path, CELL_FILE, || self.cell.text())?;
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
        let own = self.cell.id;
        let other = CellFile::read(&self.path).ok().filter(|found| found.id != own);
        let other = other.map_or_else(String::new, |found| {
            format!(
                ". The folder there now is of cell {}, which the agents of {own} refuse: move it \
                 away, and start the first coordinator with --cell {own}",
                found.id
            )
        });
        format!(
            "the state folder {} {what} while this replica was running: it no longer leads and \
             grants nothing. Restore the same folder, once one that is there now is moved away, or \
             find the cause and restart every coordinator that uses it: see \"The state folder was \
             deleted beside running coordinators\" in docs/OPERATIONS.md{other}",
            self.path.display()
        )
    }
}

/// Writes a file of the folder, unless it has one of this name. If several replicas start together,
/// one of them sets its content.
fn create(
    folder: &Path,
    name: &str,
    content: impl FnOnce() -> io::Result<Vec<u8>>,
) -> io::Result<()> {
    let file = folder.join(name);
    if file.try_exists()? {
        return Ok(());
    }
    let temporary = folder.join(format!("{name}.{:032x}.tmp", fastrand::u128(..)));
    write_durably(&temporary, &content()?)?;
    let linked = fs::hard_link(&temporary, &file);
    let _ = fs::remove_file(&temporary);
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => sync_folder(folder),
    }
}

/// Refuses a file system where a lock does not prove that its process runs.
fn check_file_system(path: &Path) -> io::Result<()> {
    let found = rustix::fs::statfs(path)?;
    match file_system::with_untested_locks(found.f_type) {
        None => Ok(()),
        Some(name) => {
            Err(io::Error::other(file_system::refusal(&path.display().to_string(), name)))
        }
    }
}

impl CellFile {
    /// The file of a new folder, which continues a cell whose folder is lost, or begins one.
    fn begin(continued: Option<CellId>) -> Self {
        let mut second = clock::time_of_day().as_secs();
        if continued.is_some() {
            // The lost folder may have begun in this second with a higher epoch, and agents that
            // have seen it refuse lower ones. So this folder begins in the next second.
            std::thread::sleep(Duration::from_secs(1));
            second += 1;
        }
        Self {
            id: continued.unwrap_or_else(|| CellId(fastrand::u128(..))),
            first_epoch: second * FIRST_EPOCHS_PER_SECOND
                + fastrand::u64(..FIRST_EPOCHS_PER_SECOND),
        }
    }

    fn text(self) -> io::Result<Vec<u8>> {
        let mut text = serde_json::to_vec(&self).map_err(io::Error::other)?;
        text.push(b'\n');
        Ok(text)
    }

    fn read(folder: &Path) -> io::Result<Self> {
        let path = folder.join(CELL_FILE);
        serde_json::from_slice(&fs::read(&path)?).map_err(|error| {
            io::Error::other(format!(
                "{}: expected the cell as its first replica wrote it, found: {error}. Put the file \
                 back from a copy, or remove it and start one replica with --cell ID, as the log \
                 of an agent names the cell",
                path.display()
            ))
        })
    }
}

impl FolderIdentity {
    fn of(path: &Path) -> io::Result<Self> {
        let (folder, file) = (fs::metadata(path)?, path.join(COORDINATOR_FILE));
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
        let folder = StateFolder::open(&path, false, None).unwrap();
        assert_eq!(
            StateFolder::open(&path, false, None).unwrap().identity,
            folder.identity,
            "a second replica"
        );
        folder.check().unwrap();
        fs::rename(&path, &aside).unwrap();
        let error = folder.check().unwrap_err().to_string();
        assert!(error.contains("was deleted") && error.contains("OPERATIONS"), "{error}");
        StateFolder::open(&path, false, None).unwrap();
        let error = folder.check().unwrap_err().to_string();
        assert!(error.contains("created again"), "{error}");
        assert_eq!(folder.lost(), Some(error));
        fs::remove_dir_all(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
        folder.check().unwrap();
        assert_eq!(folder.lost(), None);
        fs::remove_file(path.join(COORDINATOR_FILE)).unwrap();
        folder.check().unwrap_err();
    }

    /// Agents refuse epochs below those that they have seen.
    #[test]
    fn a_folder_that_continues_a_lost_one_has_higher_epochs_however_soon() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("state");
        let mut lost = StateFolder::open(&path, false, None).unwrap();
        for _ in 0..4 {
            fs::remove_dir_all(&path).unwrap();
            let next = StateFolder::open(&path, false, Some(lost.cell())).unwrap();
            assert!(next.before_first_epoch() > lost.before_first_epoch(), "{lost:?} {next:?}");
            lost = next;
        }
    }

    #[test]
    fn a_folder_keeps_its_cell_also_as_a_copy_and_two_folders_are_two() {
        let parent = tempfile::tempdir().unwrap();
        let open = |name: &str, cell| StateFolder::open(&parent.path().join(name), false, cell);
        let first = open("first", None).unwrap();
        assert_eq!(open("first", None).unwrap().cell, first.cell);
        let other = open("other", None).unwrap();
        assert_ne!(other.cell(), first.cell());
        assert!(first.before_first_epoch() > Epoch(1_700_000_000_000_000), "{:?}", first.cell);
        let names = ["first", "copy"].map(|name| parent.path().join(name).join(CELL_FILE));
        fs::create_dir(parent.path().join("copy")).unwrap();
        fs::copy(&names[0], &names[1]).unwrap();
        assert_eq!(open("copy", Some(first.cell())).unwrap().cell, first.cell);

        let error = open("copy", Some(other.cell())).unwrap_err().to_string();
        assert!(error.contains(&format!("the folder of cell {}", first.cell())), "{error}");
        assert_eq!(open("new", Some(other.cell())).unwrap().cell(), other.cell(), "continued");
        // A removed file is restored, and another cell is noticed.
        fs::remove_file(&names[0]).unwrap();
        first.check().unwrap();
        assert_eq!(open("first", None).unwrap().cell, first.cell);
        fs::copy(parent.path().join("other").join(CELL_FILE), &names[0]).unwrap();
        let error = first.check().unwrap_err().to_string();
        let other_cell = format!("is of cell {}, which the agents", other.cell());
        assert!(
            error.contains("was given to another cell") && error.contains(&other_cell),
            "{error}"
        );
        fs::copy(&names[1], &names[0]).unwrap();
        first.check().unwrap();

        fs::write(&names[1], "{}").unwrap();
        let error = open("copy", None).unwrap_err().to_string();
        assert!(error.contains("cell.json: expected the cell"), "{error}");
    }
}
