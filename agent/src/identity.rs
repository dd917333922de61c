//! Which installation of an agent this is: a number drawn at random, which stays in the state
//! folder. A coordinator tells by it a restart from a second agent that somebody has started under
//! the same name.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use leasehold_types::AgentId;

use crate::journal::StateDir;

/// The file in the state folder.
const FILE: &str = "identity";
/// Bytes of it that are read: an identity has 32.
const BYTES_MAX: u64 = 64;

/// The identity in the state folder, or a new one, which is written there. Without a folder, or
/// where it cannot be written, it lasts as long as this process: an agent started later is another
/// one, and waits until the leases of this one are over.
pub(crate) fn of(dir: Option<&StateDir>) -> AgentId {
    let drawn = AgentId(fastrand::u128(..));
    let Some(dir) = dir else { return drawn };
    let path = dir.file(FILE);
    match read(&path) {
        Ok(Some(kept)) => return kept,
        Ok(None) => {}
        Err(error) => tracing::warn!(%error, path = %path.display(), "the identity cannot be read"),
    }
    if let Err(error) = write(&path, drawn) {
        tracing::warn!(
            %error, path = %path.display(),
            "this agent's identity cannot be written: a later start with this folder waits until \
             the leases of this one are over"
        );
    }
    drawn
}

/// What the file says; none where there is none, or it was cut short by a full disk or a crash.
fn read(path: &Path) -> std::io::Result<Option<AgentId>> {
    // A pipe under this name must not hold the start.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = match OpenOptions::new().read(true).custom_flags(nonblock).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text)?;
    Ok(text.trim_end().parse().ok())
}

/// Writes it beside the old file and puts it in its place, durably: an agent that a coordinator has
/// heard of must not come back as another one.
fn write(path: &Path, identity: AgentId) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&temporary)?;
    file.write_all(format!("{identity}\n").as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    File::open(path.parent().expect("a file in a state folder"))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_stays_with_its_folder_and_a_damaged_one_is_drawn_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = StateDir::open(folder.path()).expect("it is locked");
        let first = of(Some(&dir));
        assert_eq!(of(Some(&dir)), first, "kept");
        assert_ne!(of(None), first, "without a folder it is another one");
        std::fs::write(dir.file(FILE), &first.to_string()[..7]).expect("cut");
        let second = of(Some(&dir));
        assert_ne!(second, first);
        assert_eq!(of(Some(&dir)), second, "written again");
    }
}
