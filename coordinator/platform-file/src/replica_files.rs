//! The running replicas that share a state folder: each has a file, and a lock on it for as long as
//! its process runs. A file has a digest of the manifests that its replica has in force, so that
//! others notice if a failover would put other ones in force. Only what people are shown depends on
//! it, so an error only delays it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::desired::Desired;
use leasehold_driver::clock;
use leasehold_driver::replicas::KnownReplica;
use leasehold_manifest::last_good;
use leasehold_types::Moment;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::sleep;

use super::epochs::locked;
use leasehold_platform::disk_io::blocking;
use leasehold_platform::disk_io::same_file;

/// The time between two looks.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// The most bytes of a file: names and addresses are at most 512 bytes long.
const BYTES_MAX: u64 = 8 * 1024;
/// How long two replicas may read one change of the manifests apart, beside the grace of removals.
const SETTLE: Duration = Duration::from_secs(10);

/// This replica's file, and the folder of all.
#[derive(Debug)]
pub(crate) struct ReplicaFiles {
    folder: PathBuf,
    own: ReplicaFile,
    path: PathBuf,
    /// The locked file, once it is written.
    file: Option<File>,
    in_force: watch::Receiver<Option<Arc<Desired>>>,
    /// For how long another replica's manifests may differ.
    settle: Duration,
    /// Since when they do, by the replica's file.
    differ_since: BTreeMap<PathBuf, Moment>,
    /// The warnings that the log has, by the replica's file.
    warned: BTreeMap<PathBuf, String>,
}

/// The content of a replica's file. It keeps its length, so that one write replaces it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct ReplicaFile {
    #[serde(flatten)]
    replica: KnownReplica,
    /// The digest of the manifests in force.
    #[serde(default)]
    manifests: Digest,
}

/// The checksum of a desired state, as 16 hexadecimal digits; zeros before the first state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
struct Digest(String);

impl Default for Digest {
    fn default() -> Self {
        Self::of(None)
    }
}

impl Digest {
    fn of(desired: Option<&Desired>) -> Self {
        // A state that cannot be written has no file of last good manifests either, and the log
        // has the reason.
        let sum = desired.and_then(|desired| last_good::checksum_of(desired).ok());
        Self(format!("{:016x}", sum.unwrap_or_default()))
    }

    fn is_known(&self) -> bool {
        *self != Self::default()
    }
}

/// A running replica, and its file.
struct Running {
    written: ReplicaFile,
    path: PathBuf,
}

impl ReplicaFiles {
    /// Writes nothing yet. `in_force` is what this replica has in force, and `grace` how long a
    /// removal waits.
    pub(crate) fn new(
        state_dir: &Path,
        own: KnownReplica,
        grace: Duration,
        in_force: watch::Receiver<Option<Arc<Desired>>>,
    ) -> Self {
        let folder = state_dir.join("replicas");
        let path = folder.join(format!("{:016x}.json", fastrand::u64(..)));
        Self {
            folder,
            own: ReplicaFile { replica: own, manifests: Digest::default() },
            path,
            file: None,
            in_force,
            settle: grace + SETTLE,
            differ_since: BTreeMap::new(),
            warned: BTreeMap::new(),
        }
    }

    /// Publishes the running replicas until nobody reads them.
    pub(crate) async fn run(mut self, sender: watch::Sender<Arc<Vec<KnownReplica>>>) {
        let mut last_error = None;
        loop {
            let looked = blocking(move || {
                self.note_in_force();
                let running = self.write_own().and_then(|()| self.running());
                let running = running.map(|running| self.compare(running, clock::now()));
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

    /// Takes the digest of what is in force, if that is new.
    fn note_in_force(&mut self) {
        if !self.in_force.has_changed().unwrap_or_default() {
            return;
        }
        let in_force = self.in_force.borrow_and_update().clone();
        self.own.manifests = Digest::of(in_force.as_deref());
        if let (Some(file), Ok(text)) = (&self.file, serde_json::to_vec(&self.own)) {
            // If this fails, others see what was in force before, and may warn.
            let _ = file.write_all_at(&text, 0);
        }
    }

    /// The running replicas, each with what is wrong with it beside this one.
    fn compare(&mut self, running: Vec<Running>, now: Moment) -> Vec<KnownReplica> {
        let last = std::mem::take(&mut self.differ_since);
        let warned = std::mem::take(&mut self.warned);
        let mut known = Vec::new();
        for Running { written, path } in running {
            let mut replica = written.replica.clone();
            if path != self.path {
                if self.has_other_manifests(&written) {
                    let since = last.get(&path).copied().unwrap_or(now);
                    self.differ_since.insert(path.clone(), since);
                }
                replica.warning = self.warning(&written, &path, now);
            }
            if !replica.warning.is_empty() {
                let KnownReplica { address, identity, warning, .. } = &replica;
                if warned.get(&path) != Some(warning) {
                    tracing::warn!(replica = address, identity, warning, "another replica");
                }
                self.warned.insert(path, warning.clone());
            }
            known.push(replica);
        }
        known
    }

    /// What is wrong with another replica; empty if nothing is.
    fn warning(&self, other: &ReplicaFile, path: &Path, now: Moment) -> String {
        let (own, other) = (&self.own.replica, &other.replica);
        let differs_since = self.differ_since.get(path);
        if other.address == own.address {
            "has the address of another replica: give each an --advertise of its own, or --listen"
                .into()
        } else if other.identity == own.identity {
            format!(
                "has the name of the replica at {}: give each an --identity of its own",
                own.address
            )
        } else if differs_since.is_some_and(|since| now.since(*since) >= self.settle) {
            format!(
                "has other manifests in force than the replica at {}: whichever leads decides \
                 which count; give all replicas the same --manifests",
                own.address
            )
        } else {
            String::new()
        }
    }

    /// Replicas of two versions may write one state in two ways.
    fn has_other_manifests(&self, other: &ReplicaFile) -> bool {
        let is_comparable = self.own.manifests.is_known()
            && other.manifests.is_known()
            && other.replica.version == self.own.replica.version;
        is_comparable && other.manifests != self.own.manifests
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
    fn running(&self) -> io::Result<Vec<Running>> {
        let mut running = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path == self.path {
                running.push(Running { written: self.own.clone(), path });
                continue;
            }
            // Another replica may remove it at the same time.
            let Ok(file) = File::open(&path) else { continue };
            if file.try_lock_shared().is_ok() {
                let _ = fs::remove_file(&path);
            } else if path.extension().is_some_and(|extension| extension == "json")
                && file.metadata()?.len() <= BYTES_MAX
                && let Ok(written) = serde_json::from_reader(file)
            {
                running.push(Running { written, path });
            }
        }
        running.sort_by(|one, other| one.written.cmp(&other.written));
        Ok(running)
    }
}

#[cfg(test)]
mod tests {
    use leasehold_coordinator_core::desired::Cluster;
    use leasehold_types::ClusterName;

    use super::*;

    fn replica(name: &str) -> KnownReplica {
        KnownReplica::of_this_build(name.into(), format!("{name}:7400"))
    }

    fn files(
        state_dir: &Path,
        own: KnownReplica,
    ) -> (ReplicaFiles, watch::Sender<Option<Arc<Desired>>>) {
        let (sender, in_force) = watch::channel(None);
        (ReplicaFiles::new(state_dir, own, Duration::ZERO, in_force), sender)
    }

    /// The names of the replicas that run.
    fn names(files: &ReplicaFiles) -> Vec<String> {
        let running = files.running().unwrap().into_iter();
        running.map(|replica| replica.written.replica.identity).collect()
    }

    /// What one replica sees of those at this address at this time.
    fn warning(files: &mut ReplicaFiles, of: &str, now: Moment) -> String {
        files.note_in_force();
        files.write_own().unwrap();
        let running = files.running().unwrap();
        let known = files.compare(running, now).into_iter();
        let known = known.filter(|replica| replica.address == of);
        known.map(|replica| replica.warning).collect()
    }

    #[test]
    fn other_manifests_are_named_once_they_last_and_a_name_that_two_have_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let (mut first, first_has) = files(folder.path(), replica("a"));
        let (mut second, second_has) = files(folder.path(), replica("b"));
        let at = |seconds| Moment(0) + Duration::from_secs(seconds);
        let desired = |jobs_max: u32| {
            let cluster = Cluster {
                jobs_max,
                jobs_per_worker_max: 1,
                drain_deadline: SETTLE,
                ttl: SETTLE,
                ..Cluster::example()
            };
            let name = ClusterName::new("builds").unwrap();
            let clusters = BTreeMap::from([(name, Arc::new(cluster))]);
            Some(Arc::new(Desired { clusters, ..Desired::default() }))
        };
        first_has.send_replace(desired(8));
        assert_eq!(warning(&mut second, "b:7400", at(1)), "");
        assert_eq!(warning(&mut first, "b:7400", at(1)), "", "it has read nothing yet");
        second_has.send_replace(desired(80));
        assert_eq!(warning(&mut second, "a:7400", at(2)), "");
        assert_eq!(warning(&mut first, "b:7400", at(2)), "");
        let why = warning(&mut first, "b:7400", at(12));
        assert!(why.starts_with("has other manifests in force"), "{why}");
        assert_ne!(warning(&mut second, "a:7400", at(12)), "");
        second_has.send_replace(desired(8));
        assert_eq!(warning(&mut second, "a:7400", at(13)), "");
        assert_eq!(warning(&mut first, "b:7400", at(13)), "");

        let twin = KnownReplica { address: "c:7400".into(), ..replica("a") };
        let (mut twin, _sender) = files(folder.path(), twin);
        let why = warning(&mut twin, "a:7400", at(14));
        assert!(why.starts_with("has the name of the replica at c:7400"), "{why}");
        let elsewhere = KnownReplica { identity: "d".into(), ..replica("b") };
        let (mut elsewhere, _sender) = files(folder.path(), elsewhere);
        let why = warning(&mut elsewhere, "b:7400", at(15));
        assert!(why.starts_with("has the address of another replica"), "{why}");
    }

    #[test]
    fn replicas_are_listed_while_their_process_has_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str| files(folder.path(), replica(name)).0;
        let (mut first, mut second) = (of("a"), of("b"));
        first.write_own().unwrap();
        assert_eq!(names(&first), ["a"]);
        second.write_own().unwrap();
        second.write_own().unwrap();
        assert_eq!(names(&first), ["a", "b"]);
        assert_eq!(names(&second), ["a", "b"]);
        let leftover = second.path.clone();
        drop(second);
        assert_eq!(names(&first), ["a"]);
        assert!(!leftover.exists());

        // Removed by hand: written again. With the state folder: not.
        fs::remove_dir_all(&first.folder).unwrap();
        first.write_own().unwrap();
        assert_eq!(names(&first), ["a"]);
        let gone = folder.path().join("gone");
        files(&gone, replica("c")).0.write_own().unwrap_err();
        assert!(!gone.exists());
    }
}
