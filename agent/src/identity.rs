//! The identity of an installation of the agent: a random number in the state folder, together with
//! the machine on which it was drawn. A coordinator uses it to distinguish a restart from a second
//! agent with the same name. A copy of the folder on another machine is a second agent.

use std::path::Path;

use leasehold_types::AgentId;

use crate::state_dir::{self, StateDir, boot_id};

/// The file in the state folder.
const FILE: &str = "identity";
/// The most bytes of it that are read: two numbers of 32 digits, or a number and a boot's id.
const BYTES_MAX: u64 = 128;
/// Identifies an installation of the operating system.
const MACHINE_FILE: &str = "/etc/machine-id";
/// The most bytes of it that are read.
const MACHINE_BYTES_MAX: u64 = 64;

/// What the state folder says: the identity, and the machine on which it was drawn, if it says so.
struct Kept {
    identity: AgentId,
    machine: Option<String>,
}

/// Reads the identity from the state folder, or creates one there. Without a folder, or if it
/// cannot be written, it is valid for this process only: a later agent has another identity, and
/// waits for as long as this one may hold anything.
pub(crate) fn of(dir: Option<&StateDir>) -> AgentId {
    on_machine(dir, machine().as_deref())
}

fn on_machine(dir: Option<&StateDir>, machine: Option<&str>) -> AgentId {
    let drawn = AgentId(fastrand::u128(..));
    let Some(dir) = dir else { return drawn };
    let path = dir.file(FILE);
    let kept = match read(&path) {
        Ok(kept) => kept,
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "cannot read the identity");
            None
        }
    };
    let identity = match kept {
        Some(Kept { identity, machine: Some(drawn_on) }) if Some(&*drawn_on) == machine => {
            return identity;
        }
        Some(Kept { machine: Some(drawn_on), .. }) => {
            tracing::warn!(
                path = %path.display(), %drawn_on, machine,
                "this state folder comes from another machine: this agent counts as another one, \
                 and what the agent there may hold stays counted until that agent, `leave` there \
                 or a person says that it has ended"
            );
            drawn
        }
        // Written by a release that did not name the machine.
        Some(Kept { identity, machine: None }) => identity,
        None => drawn,
    };
    // Synced: an agent that a coordinator knows must not return with another identity.
    let line = match machine {
        Some(machine) => format!("{identity} {machine}\n"),
        None => format!("{identity}\n"),
    };
    let written = state_dir::replace(&path, line.as_bytes());
    if let Err(error) = written.and_then(|file| state_dir::sync(&path, &file)) {
        tracing::warn!(
            %error, path = %path.display(),
            "cannot write this agent's identity: an agent that starts later with this folder waits \
             for as long as this one may hold anything"
        );
    }
    identity
}

/// Identifies this machine. Where nothing does, as in most containers, its boot does: then nobody
/// can tell a machine that has rebooted from another one.
fn machine() -> Option<String> {
    let file = state_dir::read(MACHINE_FILE.as_ref(), MACHINE_BYTES_MAX).ok().flatten();
    let text = file.and_then(|file| String::from_utf8(file).ok()).unwrap_or_default();
    let text = text.trim();
    let is_id = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_id { Some(text.to_owned()) } else { boot_id() }
}

/// Reads the file. Returns None where it is missing or holds no identity.
fn read(path: &Path) -> std::io::Result<Option<Kept>> {
    let text = state_dir::read(path, BYTES_MAX)?.unwrap_or_default();
    let text = String::from_utf8(text).unwrap_or_default();
    let mut words = text.split_whitespace();
    let identity = words.next().and_then(|word| word.parse().ok());
    let machine = words.next().map(str::to_owned);
    Ok(identity.map(|identity| Kept { identity, machine }))
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

    #[test]
    fn another_machine_has_another_identity() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = StateDir::open(folder.path(), Locks::Checked).expect("it is locked");
        let first = on_machine(Some(&dir), Some("aa"));
        assert_eq!(on_machine(Some(&dir), Some("aa")), first, "a restart");
        let second = on_machine(Some(&dir), Some("bb"));
        assert_ne!(second, first, "a copy on another machine");
        assert_eq!(on_machine(Some(&dir), Some("bb")), second, "a restart there");
        assert_ne!(on_machine(Some(&dir), None), second, "a machine that cannot be told");
    }

    #[test]
    fn an_identity_without_a_machine_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = StateDir::open(folder.path(), Locks::Checked).expect("it is locked");
        std::fs::write(dir.file(FILE), format!("{}\n", AgentId(7))).expect("written");
        assert_eq!(on_machine(Some(&dir), Some("aa")), AgentId(7));
        assert_ne!(on_machine(Some(&dir), Some("bb")), AgentId(7), "its machine is known now");
    }
}
