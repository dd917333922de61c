//! The copy of this program that the worker's container can run, whatever its image contains.
//!
//! Invariant: a file that may be running is never written to; it is replaced.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, ErrorKind, Seek};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, bail};

/// The copy's name in its folder.
const NAME: &str = "leasehold-agent";
/// All users may run it; its owner may replace it.
const MODE: u32 = 0o755;
/// Bytes that are compared at once.
const COMPARED_AT_ONCE: usize = 64 * 1024;

/// Copies this program into the folder, unless the folder already contains the same program.
pub(crate) fn install(dir: &Path) -> anyhow::Result<()> {
    if dir.is_file() {
        bail!("is a file: expected a folder");
    }
    std::fs::create_dir_all(dir).context("cannot create the folder")?;
    let mut own = File::open("/proc/self/exe").context("cannot read this program's file")?;
    let path = dir.join(NAME);
    if is_current(&path, &own)? {
        return Ok(());
    }
    own.rewind().context("cannot rewind this program's file")?;
    replace(&path, &mut own).with_context(|| format!("cannot write {}", path.display()))?;
    tracing::info!(path = %path.display(), "copied this program for the worker to run");
    Ok(())
}

/// Whether the folder contains the same program, executable for all users.
fn is_current(path: &Path, own: &File) -> anyhow::Result<bool> {
    let found = match File::open(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).with_context(|| format!("{}", path.display())),
    };
    let (ours, theirs) = (own.metadata()?, found.metadata()?);
    let alike = |metadata: &Metadata| (metadata.is_file(), metadata.len());
    if alike(&ours) != alike(&theirs) || theirs.permissions().mode() & 0o777 != MODE {
        return Ok(false);
    }
    Ok(are_equal(own, &found)?)
}

fn are_equal(one: &File, other: &File) -> std::io::Result<bool> {
    let mut one = BufReader::with_capacity(COMPARED_AT_ONCE, one);
    let mut other = BufReader::with_capacity(COMPARED_AT_ONCE, other);
    loop {
        let (left, right) = (one.fill_buf()?, other.fill_buf()?);
        let len = left.len().min(right.len());
        if left[..len] != right[..len] {
            return Ok(false);
        }
        if len == 0 {
            return Ok(left.len() == right.len());
        }
        one.consume(len);
        other.consume(len);
    }
}

fn replace(path: &Path, own: &mut File) -> std::io::Result<()> {
    let temp = path.with_extension("new");
    // A leftover of an agent that was killed while it wrote.
    match std::fs::remove_file(&temp) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&temp)?;
    std::io::copy(own, &mut file)?;
    file.set_permissions(Permissions::from_mode(MODE))?;
    // A file that is open for writing cannot be executed.
    drop(file);
    std::fs::rename(&temp, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn of(path: &Path) -> (u64, Vec<u8>) {
        let inode = std::fs::metadata(path).expect("it is there").ino();
        (inode, std::fs::read(path).expect("it can be read"))
    }

    #[test]
    fn copies_once_and_again_if_the_copy_differs() {
        let dir = tempfile::tempdir().expect("a folder");
        let (dir, path) = (dir.path().join("bin"), dir.path().join("bin").join(NAME));
        let own = std::fs::read("/proc/self/exe").expect("this test");
        install(&dir).expect("it is copied");
        let first = of(&path);
        assert!(first.1 == own, "the copy differs");
        install(&dir).expect("it is there");
        assert_eq!(of(&path).0, first.0, "a copy that was right was replaced");

        // A file of the same length with other content, a short one, and one that is not
        // executable.
        let mut other = own.clone();
        *other.last_mut().expect("a byte") ^= 1;
        std::fs::write(path.with_extension("new"), "half").expect("it is written");
        for wrong in [&other[..], b"short"] {
            std::fs::write(&path, wrong).expect("it is written");
            install(&dir).expect("it is copied");
            assert!(of(&path).1 == own, "the copy differs");
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("its mode");
        install(&dir).expect("it is copied");
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        assert!(!path.with_extension("new").exists());
    }
}
