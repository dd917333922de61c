//! The last valid manifests, in a file of the state folder, for a replica that starts while a
//! manifest is invalid. Every replica writes the same content for the same manifests. The file is
//! replaced atomically. A failure to read or write it is only logged.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::PathBuf;

use leasehold_manifest::Problem;
use leasehold_manifest::folder::{self, Unreadable};
use leasehold_manifest::last_good::{self, BYTES_MAX, FILE, LastGood};

use crate::disk_io::{same_file, sync_folder};

/// The file of the last good state.
#[derive(Debug)]
pub struct LastGoodFile {
    folder: PathBuf,
    /// The content, as far as this replica knows.
    written: Option<LastGood>,
    /// The last write error that was logged.
    failure: Option<String>,
}

impl LastGoodFile {
    /// The file in a state folder.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, written: None, failure: None }
    }

    /// The state that a replica last wrote; `None` if there is no file or it cannot be used.
    pub fn load(&mut self) -> Option<LastGood> {
        let read = folder::read_text(&self.folder, FILE, BYTES_MAX);
        let read = match read {
            Err(Unreadable::Io(io::ErrorKind::NotFound, _)) => return None,
            Err(unreadable) => Err(unreadable.to_string()),
            Ok(text) => last_good::read(&text),
        };
        match read {
            Ok((state, problems)) => {
                for Problem { file, line, field, message, .. } in problems {
                    tracing::warn!(
                        file,
                        line,
                        field,
                        message,
                        "an object of the last good manifests is invalid and ignored"
                    );
                }
                self.written = Some(state.clone());
                Some(state)
            }
            Err(error) => {
                tracing::warn!(file = FILE, error, "last good manifests ignored");
                None
            }
        }
    }

    /// Writes a state unless the file already holds it. After an error the next call tries again.
    pub fn save(&mut self, state: LastGood) {
        if self.written.as_ref() == Some(&state) {
            return;
        }
        match self.write(&state) {
            Ok(true) => {
                self.written = Some(state);
                if self.failure.take().is_some() {
                    tracing::info!(file = FILE, "last good manifests written again");
                }
            }
            Ok(false) => {}
            Err(error) => {
                let error = error.to_string();
                if self.failure.as_ref() != Some(&error) {
                    let message = "cannot write the last good manifests: a replica that starts \
                                   while a manifest is invalid finds older ones or none";
                    tracing::warn!(file = FILE, error, message);
                }
                self.failure = Some(error);
            }
        }
    }

    /// Returns false if another replica is writing the file.
    fn write(&self, state: &LastGood) -> io::Result<bool> {
        let text = last_good::write(state)?;
        fs::create_dir_all(&self.folder)?;
        let temporary = self.folder.join(format!("{FILE}.tmp"));
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&temporary)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
            // Another replica has renamed it since it was opened.
            Ok(()) if !same_file(&file, &temporary) => return Ok(false),
            Ok(()) => {}
        }
        let placed =
            fill(&file, &text).and_then(|()| fs::rename(&temporary, self.folder.join(FILE)));
        if placed.is_err() {
            // Free the space for epochs and the exposure log.
            let _ = fs::remove_file(&temporary);
        }
        placed?;
        sync_folder(&self.folder)?;
        Ok(true)
    }
}

fn fill(mut file: &File, text: &[u8]) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all(text)?;
    file.sync_all()
}
