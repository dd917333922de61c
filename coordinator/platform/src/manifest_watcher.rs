//! Keeps the desired state in step with the manifests' folder: reads all of it after every change
//! and publishes the result to the driver. It starts from the last valid manifests on disk, and
//! keeps that file up to date. A file that is being written gives what it gave, and a version that
//! takes much away waits for its grace.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::desired_publisher::DesiredPublisher;
use crate::file_watcher::FileWatcher;
use leasehold_coordinator_core::desired::Desired;
use leasehold_driver::clock;
use leasehold_driver::freshness::Freshness;
use leasehold_manifest::folder::{self, Stamp};
use leasehold_manifest::{Catalog, FolderVersion, Reading};
use leasehold_types::Moment;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use crate::disk_io::blocking;
use crate::last_good_file::LastGoodFile;
use crate::removal_grace::{RemovalGrace, Stamps};

/// Changes are gathered until there was none for this long, because one save is several changes.
const QUIET: Duration = Duration::from_millis(25);
/// The most rounds of gathering: a folder that changes all the time is read nevertheless.
const ROUNDS_MAX: usize = 10;
/// How often every file's stamp is compared.
const RESCAN: Duration = Duration::from_secs(5);

/// Reads one folder for one driver.
pub struct ManifestWatcher {
    state: Box<State>,
    wakes: mpsc::Receiver<()>,
    desired_publisher: DesiredPublisher,
    in_force: watch::Sender<Option<Arc<Desired>>>,
    freshness: watch::Sender<Freshness>,
}

/// The state of the reader, used on the threads for blocking work.
struct State {
    root: PathBuf,
    catalog: Catalog,
    last_good_file: LastGoodFile,
    watcher: FileWatcher,
    /// The files and folders as the last reading found them, without files that were being written.
    stamps: Stamps,
    grace: RemovalGrace,
    /// What could not be read at the last reading.
    unread: Option<String>,
}

impl ManifestWatcher {
    /// A watcher of the folder `root`. A version that takes much away waits `confirm_removals`;
    /// zero means not at all. What is in force goes to the driver by `desired_publisher`, and to
    /// `in_force`.
    pub fn new(
        root: PathBuf,
        confirm_removals: Duration,
        last_good_file: LastGoodFile,
        desired_publisher: DesiredPublisher,
        in_force: watch::Sender<Option<Arc<Desired>>>,
        freshness: watch::Sender<Freshness>,
    ) -> Self {
        let (watcher, wakes) = FileWatcher::new();
        let catalog = Catalog::new(&root);
        let (stamps, unread) = (Stamps::new(), None);
        let grace = RemovalGrace::new(confirm_removals);
        let state =
            Box::new(State { root, catalog, last_good_file, watcher, stamps, grace, unread });
        Self { state, wakes, desired_publisher, in_force, freshness }
    }

    /// Runs until the driver has ended.
    pub async fn run(mut self) {
        let mut rescans = interval(RESCAN);
        rescans.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut woken = true;
        self = self.with_state(State::restore).await;
        loop {
            let mut state = self.state;
            let read_at = clock::now();
            let (state, reading) = blocking(move || {
                let reading = (woken || state.has_changed()).then(|| state.read());
                (state, reading)
            })
            .await;
            self.state = state;
            if let Some(reading) = reading
                && self.desired_publisher.publish(reading).await.is_err()
            {
                return;
            }
            let in_force = self.desired_publisher.in_force();
            self.in_force.send_if_modified(|known| {
                let is_new = known.as_ref().map(Arc::as_ptr) != in_force.map(Arc::as_ptr);
                *known = in_force.cloned();
                is_new
            });
            self.confirm(read_at);
            self = self.with_state(State::keep).await;
            let grace_ends = self.state.grace.ends();
            tokio::select! {
                () = self.desired_publisher.closed() => return,
                _ = rescans.tick() => woken = false,
                () = reached(grace_ends) => woken = true,
                wake = self.wakes.recv() => {
                    woken = true;
                    if wake.is_some() {
                        self.settle().await;
                    } else {
                        // Without notifications the rescans remain.
                        rescans.tick().await;
                    }
                }
            }
        }
    }

    /// A complete read at that moment confirms the desired state; an incomplete one does not.
    fn confirm(&self, read_at: Moment) {
        self.freshness.send_modify(|freshness| {
            *freshness = match &self.state.unread {
                None => Freshness::confirmed(read_at),
                Some(why) => freshness.troubled(why.clone()),
            };
        });
    }

    async fn with_state(mut self, work: fn(&mut State)) -> Self {
        let mut state = self.state;
        self.state = blocking(move || {
            work(&mut state);
            state
        })
        .await;
        self
    }

    async fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            if timeout(QUIET, self.wakes.recv()).await.is_err() {
                return;
            }
        }
    }
}

impl State {
    fn restore(&mut self) {
        if let Some(last_good) = self.last_good_file.load() {
            self.catalog.restore(last_good);
        }
    }

    fn keep(&mut self) {
        if let Some(last_good) = self.catalog.last_good() {
            self.last_good_file.save(last_good);
        }
    }

    fn has_changed(&self) -> bool {
        self.stamps != self.current_stamps()
    }

    /// Reads the folder, and puts in force what it defines unless that takes much away.
    fn read(&mut self) -> Reading {
        let version = self.next_version();
        self.unread = unread(&self.root);
        let (_, files) = self.paths();
        let stamp = |path| Some((path, self.stamps.get(path)?));
        let files = files.iter().filter_map(stamp).map(|(path, stamp)| (path.clone(), *stamp));
        match self.grace.waits(&version, files.collect(), Instant::now()) {
            None => self.catalog.accept(version),
            Some(due) => version.deferred(&self.grace.notice(), due),
        }
    }

    /// Reads the folder, again if it was not watched completely before or was changed meanwhile.
    fn next_version(&mut self) -> FolderVersion {
        let mut rounds = 0;
        loop {
            rounds += 1;
            let before = self.current_stamps();
            let written = self.being_written();
            let version = self.catalog.next_version(&written);
            let (folders, files) = self.paths();
            let is_new = self.watcher.watch(&folders, &files);
            let after = self.current_stamps();
            let changed = |(path, stamp): (&PathBuf, &Stamp)| {
                after.get(path).is_some_and(|after| after != stamp)
            };
            let is_steady = self.being_written().is_subset(&written) && !before.iter().any(changed);
            if rounds < ROUNDS_MAX && (is_new || !is_steady) {
                continue;
            }
            self.stamps = after;
            // Those of before the reading, so that the next check finds a change during it.
            for (path, stamp) in before {
                self.stamps.entry(path).and_modify(|after| *after = stamp);
            }
            for file in &written {
                self.stamps.remove(&self.root.join(file));
            }
            return version;
        }
    }

    /// The files that are being written, by their paths below the root.
    fn being_written(&self) -> BTreeSet<String> {
        let written = self.watcher.being_written().into_iter();
        let below = |path: PathBuf| Some(path.strip_prefix(&self.root).ok()?.to_str()?.to_owned());
        written.filter_map(below).collect()
    }

    fn current_stamps(&self) -> Stamps {
        let (folders, files) = self.paths();
        let paths = folders.into_iter().chain(files);
        paths.map(|path| (path.clone(), Stamp::of(&path))).collect()
    }

    fn paths(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let seen = self.catalog.seen();
        let below =
            |path: &String| if path.is_empty() { self.root.clone() } else { self.root.join(path) };
        let mut folders: Vec<PathBuf> = seen.folders.iter().map(below).collect();
        if !seen.folders.contains("") {
            folders.push(self.root.clone());
        }
        (folders, seen.files.iter().map(below).collect())
    }
}

async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The first file or folder in `root` that cannot be read now. Its last content is still in force,
/// and may be out of date.
fn unread(root: &Path) -> Option<String> {
    let listing = folder::list(root);
    if let Some((_, problem)) = listing.unknown.first() {
        return Some(format!("{}: {}", problem.file, problem.message));
    }
    listing.files.iter().find_map(|file| {
        let error = readable(&root.join(file)).err()?;
        Some(format!("{file}: cannot be read ({error})"))
    })
}

/// Fails if the file cannot be read. Only regular files are opened, since opening a pipe may block.
fn readable(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.is_file() {
        File::open(path)?;
    }
    Ok(())
}
