//! The identity of an installation of the agent: a random number in the state folder. A coordinator
//! uses it to distinguish a restart from a second agent with the same name.

use std::path::Path;

use leasehold_types::AgentId;

use crate::state_dir::{self, StateDir};

/// The file in the state folder.
const FILE: &str = "identity";
/// The most bytes of it that are read: an identity has 32.
const BYTES_MAX: u64 = 64;

/// Reads the identity from the state folder, or creates one there. Without a folder, or if it
/// cannot be written, it is valid for this process only: a later agent has another identity, and
/// waits until the leases of this one have expired.
pub(crate) fn of(dir: Option<&StateDir>) -> AgentId {
    let drawn = AgentId(fastrand::u128(..));
    let Some(dir) = dir else { return drawn };
    let path = dir.file(FILE);
    match read(&path) {
        Ok(Some(kept)) => return kept,
        Ok(None) => {}
        Err(error) => tracing::warn!(%error, path = %path.display(), "cannot read the identity"),
    }
    // Synced: an agent that a coordinator knows must not return with another identity.
    let line = format!("{drawn}\n");
    let written = state_dir::replace(&path, line.as_bytes());
    if let Err(error) = written.and_then(|file| state_dir::sync(&path, &file)) {
        tracing::warn!(
            %error, path = %path.display(),
            "cannot write this agent's identity: an agent that starts later with this folder waits \
             until the leases of this one have expired"
        );
    }
    drawn
}

/// Reads the identity from the file. Returns None where the file is missing or holds no identity.
fn read(path: &Path) -> std::io::Result<Option<AgentId>> {
    let text = state_dir::read(path, BYTES_MAX)?;
    Ok(text.and_then(|text| str::from_utf8(&text).ok()?.trim_end().parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_dir::Locks;

    #[test]
    fn keeps_the_identity_of_the_folder_and_replaces_a_damaged_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = StateDir::open(folder.path(), Locks::Checked).expect("it is locked");
        let first = of(Some(&dir));
        assert_eq!(of(Some(&dir)), first, "kept");
        assert_ne!(of(None), first, "without a folder it is random");
        std::fs::write(dir.file(FILE), &first.to_string()[..7]).expect("cut");
        let second = of(Some(&dir));
        assert_ne!(second, first);
        assert_eq!(of(Some(&dir)), second, "written again");
    }
}
