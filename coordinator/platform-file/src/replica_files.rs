//! The running replicas that share a state folder: each has a file, and a lock on it for as long as
//! its process runs. Only what people are shown depends on it, so an error only delays it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold_driver::replicas::KnownReplica;
use tokio::sync::watch;
use tokio::time::sleep;

use super::blocking;
use super::epochs::{locked, same_file};

/// The time between two looks.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// The most bytes of a file: names and addresses are at most 512 bytes long.
const BYTES_MAX: u64 = 8 * 1024;

/// This replica's file, and the folder of all.
#[derive(Debug)]
pub(crate) struct ReplicaFiles {
    folder: PathBuf,
    own: KnownReplica,
    path: PathBuf,
    /// The locked file, once it is written.
    file: Option<File>,
}

impl ReplicaFiles {
    /// Writes nothing yet.
    pub(crate) fn new(state_dir: &Path, own: KnownReplica) -> Self {
        let folder = state_dir.join("replicas");
        let path = folder.join(format!("{:016x}.json", fastrand::u64(..)));
        Self { folder, own, path, file: None }
    }

    /// Publishes the running replicas until nobody reads them.
    pub(crate) async fn run(mut self, sender: watch::Sender<Arc<Vec<KnownReplica>>>) {
        let mut last_error = None;
        loop {
            let looked = blocking(move || {
                let running = self.write_own().and_then(|()| self.running());
                (self, running)
            });
            let (files, running) = looked.await;
            self = files;
            match running {
                Ok(running) => {
                    last_error = None;
                    sender.send_if_modified(|last| {
                        let is_new = **last != running;
                        *last = Arc::new(running);
                        is_new
                    });
                }
                Err(error) => {
                    let text = Some(error.to_string());
                    if last_error != text {
                        tracing::debug!(%error, "cannot tell which replicas run");
                        last_error = text;
                    }
                }
            }
            tokio::select! {
                () = sleep(REFRESH_INTERVAL) => {}
                () = sender.closed() => return,
            }
        }
    }

    /// Writes this replica's file, unless it is there. A state folder that was removed is not
    /// created again.
    fn write_own(&mut self) -> io::Result<()> {
        if self.file.as_ref().is_some_and(|file| same_file(file, &self.path)) {
            return Ok(());
        }
        match fs::create_dir(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        // Others read the file once it has its name, and then it is locked and whole.
        let temporary = self.path.with_extension("tmp");
        let mut file = locked(&temporary)?;
        let text = serde_json::to_vec(&self.own).map_err(io::Error::other)?;
        file.set_len(0)?;
        io::Write::write_all(&mut file, &text)?;
        fs::rename(temporary, &self.path)?;
        self.file = Some(file);
        Ok(())
    }

    /// The replicas that run. Removes the files of those that have ended.
    fn running(&self) -> io::Result<Vec<KnownReplica>> {
        let mut running = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path == self.path {
                running.push(self.own.clone());
                continue;
            }
            // Another replica may remove it at the same time.
            let Ok(file) = File::open(&path) else { continue };
            if file.try_lock_shared().is_ok() {
                let _ = fs::remove_file(&path);
            } else if path.extension().is_some_and(|extension| extension == "json")
                && file.metadata()?.len() <= BYTES_MAX
                && let Ok(replica) = serde_json::from_reader(file)
            {
                running.push(replica);
            }
        }
        running.sort();
        Ok(running)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(name: &str) -> KnownReplica {
        KnownReplica::of_this_build(name.into(), format!("{name}:7400"))
    }

    #[test]
    fn replicas_are_listed_while_their_process_has_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let files = |name: &str| ReplicaFiles::new(folder.path(), replica(name));
        let (mut first, mut second) = (files("a"), files("b"));
        first.write_own().unwrap();
        assert_eq!(first.running().unwrap(), [replica("a")]);
        second.write_own().unwrap();
        second.write_own().unwrap();
        assert_eq!(first.running().unwrap(), [replica("a"), replica("b")]);
        assert_eq!(second.running().unwrap(), [replica("a"), replica("b")]);
        let leftover = second.path.clone();
        drop(second);
        assert_eq!(first.running().unwrap(), [replica("a")]);
        assert!(!leftover.exists());

        // Removed by hand: written again. With the state folder: not.
        fs::remove_dir_all(&first.folder).unwrap();
        first.write_own().unwrap();
        assert_eq!(first.running().unwrap(), [replica("a")]);
        let gone = folder.path().join("gone");
        ReplicaFiles::new(&gone, replica("c")).write_own().unwrap_err();
        assert!(!gone.exists());
    }
}
