//! The position of a journal: a second file, which names the journal file that is in use and says
//! how far it was written. It is written after each record and before the record takes effect.
//!
//! Invariant: the journal file that was written last agrees with it whenever the process is killed,
//! and no older copy of that file does. So the replacement of either file by an older copy is
//! detected, or changes nothing; that of both files together is not detected.

use std::fs::File;
use std::io::Result;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::text::{self, End, JournalHeader, JournalId};
use crate::state_dir;

/// The most bytes of the file that are read.
const BYTES_MAX: u64 = 4096;

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    /// The journal file in use; none for one of an earlier version.
    current: Option<JournalId>,
    /// The boot under which it was begun.
    boot_id: String,
    /// Its end.
    end: End,
    /// The file that is about to take its place.
    next: Option<JournalId>,
    /// The file whose place it took.
    previous: Option<JournalId>,
}

/// The file, and its content.
#[derive(Debug)]
pub(super) struct PositionFile {
    path: PathBuf,
    /// None if there is no file, or if it cannot be written yet.
    file: Option<File>,
    found: Found,
    position: Position,
}

/// The file as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Missing,
    Damaged,
    Intact,
}

impl PositionFile {
    /// Reads the file, if there is one.
    pub(super) fn open(path: PathBuf) -> Result<Self> {
        let bytes = state_dir::read(&path, BYTES_MAX)?;
        let line = bytes.as_deref().map(|bytes| {
            let line = bytes.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
            text::parse_line::<Position>(line)
        });
        let (found, position) = match line {
            None => (Found::Missing, None),
            Some(None) => (Found::Damaged, None),
            Some(position) => (Found::Intact, position),
        };
        let file = state_dir::open(&path).ok().filter(|_| found != Found::Missing);
        Ok(Self { path, file, found, position: position.unwrap_or_default() })
    }

    /// The end of the journal file in use, which its lines must reach.
    pub(super) fn end(&self) -> End {
        self.position.end
    }

    /// Why a journal is not the one that was written last. `reaches_end`: it has every line up to
    /// [`Self::end`].
    pub(super) fn refusal(
        &self,
        journal: &JournalHeader,
        reaches_end: bool,
        boot_id: &str,
    ) -> Option<String> {
        let (id, position) = (journal.id.as_ref(), &self.position);
        let name = self.path.file_name().unwrap_or_default().display();
        match self.found {
            // Written by an earlier version.
            Found::Missing if id.is_none() => return None,
            Found::Missing => return Some(format!("{name}, which belongs to it, is missing")),
            Found::Damaged => return Some(format!("{name}, which belongs to it, is damaged")),
            Found::Intact => {}
        }
        let is_next = id.is_some() && id == position.next.as_ref();
        // A power loss may have taken the end of the file, or restored the file before it. Under a
        // later boot nothing of them counts but the epoch and the incarnation.
        let of_earlier_boot = position.boot_id != boot_id;
        let is_current = id == position.current.as_ref() && (reaches_end || of_earlier_boot);
        let is_previous = id.is_some() && id == position.previous.as_ref() && of_earlier_boot;
        if is_next || is_current || is_previous {
            None
        } else {
            Some(format!("it is an older copy: {name} names a later state"))
        }
    }

    /// Takes a journal that was read as the one in use.
    pub(super) fn adopt(&mut self, journal: &JournalHeader, end: End) {
        let was_next = journal.id.is_some() && journal.id == self.position.next;
        if was_next {
            self.position.previous = self.position.current.take();
        }
        self.position.current.clone_from(&journal.id);
        self.position.boot_id.clone_from(&journal.owner.boot_id);
        (self.position.end, self.position.next) = (end, None);
    }

    /// Notes durably that a file with this id is about to take the journal's place.
    pub(super) fn announce(&mut self, next: &JournalId) -> Result<()> {
        let before = self.position.next.replace(next.clone());
        let written = self.write().and_then(|()| match &self.file {
            Some(file) => state_dir::sync(&self.path, file),
            None => Ok(()),
        });
        if written.is_err() {
            self.position.next = before;
        }
        written
    }

    /// The announced file has taken the journal's place. If that cannot be written now, it is
    /// written before the next record takes effect: until then the file is the announced one.
    pub(super) fn settle(&mut self, current: JournalId, boot_id: &str, end: End) {
        let previous = self.position.current.take();
        let (current, boot_id) = (Some(current), boot_id.to_owned());
        self.position = Position { current, boot_id, end, next: None, previous };
        if let Err(error) = self.write() {
            tracing::debug!(%error, path = %self.path.display(), "cannot write the position yet");
        }
    }

    /// The journal ends here.
    pub(super) fn advance(&mut self, end: End) -> Result<()> {
        let before = std::mem::replace(&mut self.position.end, end);
        let written = self.write();
        if written.is_err() {
            self.position.end = before;
        }
        written
    }

    fn write(&mut self) -> Result<()> {
        let line = text::write_line(&self.position);
        match &self.file {
            Some(file) => file.write_all_at(&line, 0),
            None => {
                self.file = Some(state_dir::replace(&self.path, &line)?);
                Ok(())
            }
        }
    }
}
