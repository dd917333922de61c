//! Wakes the readers of files when something in or around their folders changes, and says which
//! files are being written: a file that is written in place wakes its readers when it is closed.
//! There may be needless wake-ups. A change that the system does not report is found by the
//! reader's slow poll.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leasehold_manifest::folder::{self, Stamp};
use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

/// The most links that are followed from one path.
const LINKS_MAX: usize = 16;
/// How long a file counts as being written, at most: a writer may keep it open for ever, and a file
/// may be cut by its name, which closes nothing.
pub const WRITING_MAX: Duration = Duration::from_secs(10);
/// Files that are noted as being written.
const WRITTEN_MAX: usize = 10_000;

/// Watches the folders of the files.
pub struct FileWatcher {
    system: Option<RecommendedWatcher>,
    /// Watched folders, each with its stamp from when the watch began.
    watched: BTreeMap<PathBuf, Stamp>,
    shared: Arc<Mutex<SharedState>>,
}

/// What the reader and the thread of the notifications share.
#[derive(Default)]
struct SharedState {
    wanted: WatchedNames,
    /// Each place on the way to a file that is read, and the paths that lead through it.
    readers: BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    /// Files that were written and not closed, and since when.
    written: BTreeMap<PathBuf, Instant>,
}

/// The names that matter in each folder; `None` if all do.
type WatchedNames = BTreeMap<PathBuf, Option<BTreeSet<OsString>>>;

impl FileWatcher {
    /// A watcher that watches nothing yet, and the receiver of its wake-ups.
    pub fn new() -> (Self, mpsc::Receiver<()>) {
        let (wake, wakes) = mpsc::channel(1);
        let shared = Arc::<Mutex<SharedState>>::default();
        let noted = shared.clone();
        let system = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if lock(&noted).note(&event, Instant::now()) {
                // If the channel is full, a wake-up is already on its way.
                let _ = wake.try_send(());
            }
        });
        let system = match system {
            Ok(system) => Some(system),
            Err(error) => {
                let error = error.to_string();
                tracing::warn!(error, "no file notifications: changes are found by polling");
                None
            }
        };
        (Self { system, watched: BTreeMap::new(), shared }, wakes)
    }

    /// Watches everything in these folders, and the names of `paths` and of all links on their way.
    /// Returns whether a watch is new: its folder may have changed before.
    pub fn watch(&mut self, folders: &[PathBuf], paths: &[PathBuf]) -> bool {
        let mut wanted = WatchedNames::new();
        let mut readers: BTreeMap<PathBuf, BTreeSet<PathBuf>> = BTreeMap::new();
        for path in folders.iter().chain(paths) {
            for link in links(path) {
                readers.entry(link.clone()).or_default().insert(path.clone());
                let Some((parent, name)) = link.parent().zip(link.file_name()) else { continue };
                let names = wanted.entry(parent.into()).or_insert_with(|| Some(BTreeSet::new()));
                if let Some(names) = names {
                    names.insert(name.into());
                }
            }
        }
        for folder in folders {
            wanted.insert(folder.clone(), None);
        }
        let new = self.follow(&wanted);
        let mut shared = lock(&self.shared);
        (shared.wanted, shared.readers) = (wanted, readers);
        let mut written = std::mem::take(&mut shared.written);
        written.retain(|path, _| shared.matters(path));
        shared.written = written;
        new
    }

    /// The files that are being written, by the paths that are read; of files that are not read yet
    /// their own.
    pub fn being_written(&self) -> BTreeSet<PathBuf> {
        lock(&self.shared).being_written(Instant::now())
    }

    fn follow(&mut self, wanted: &WatchedNames) -> bool {
        let Some(system) = &mut self.system else { return false };
        let mut new = false;
        self.watched.retain(|folder, stamp| {
            let stays = wanted.contains_key(folder) && stamp.same_place(&Stamp::of(folder));
            if !stays {
                // Fails if the folder no longer exists; its watch has then ended, too.
                let _ = system.unwatch(folder);
            }
            stays
        });
        for folder in wanted.keys() {
            if self.watched.contains_key(folder) {
                continue;
            }
            let stamp = Stamp::of(folder);
            // A missing folder is noticed by its name in its parent.
            if system.watch(folder, RecursiveMode::NonRecursive).is_ok() {
                self.watched.insert(folder.clone(), stamp);
                new = true;
            }
        }
        new
    }
}

fn lock(shared: &Mutex<SharedState>) -> MutexGuard<'_, SharedState> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedState {
    /// Takes in a notification. Returns whether it wakes the reader.
    fn note(&mut self, event: &notify::Result<Event>, now: Instant) -> bool {
        let Ok(event) = event else { return true };
        if event.need_rescan() || event.paths.is_empty() {
            // Closings may be among the notifications that were lost.
            self.written.clear();
            return true;
        }
        // Reading a file does not change it.
        let is_closed = event.kind == EventKind::Access(AccessKind::Close(AccessMode::Write));
        if event.kind.is_access() && !is_closed {
            return false;
        }
        let named: Vec<&PathBuf> = event.paths.iter().filter(|path| self.matters(path)).collect();
        let begins = |path: &Path| match event.kind {
            EventKind::Modify(ModifyKind::Data(_)) => true,
            // A link, or a file that was made elsewhere, is complete when it appears.
            EventKind::Create(CreateKind::File) => is_new_and_empty(path),
            _ => false,
        };
        let (writing, changed): (Vec<&PathBuf>, Vec<&PathBuf>) =
            named.into_iter().partition(|path| self.is_read(path) && begins(path));
        // An owner or a mode may change while a file is written.
        let is_about_content = !matches!(event.kind, EventKind::Modify(ModifyKind::Metadata(_)));
        for path in changed.iter().filter(|_| is_about_content) {
            self.written.remove(*path);
        }
        let mut wakes = !changed.is_empty();
        for path in writing {
            if self.written.len() < WRITTEN_MAX || self.written.contains_key(path) {
                let since = *self.written.entry(path.clone()).or_insert(now);
                wakes |= now.duration_since(since) >= WRITING_MAX;
            } else {
                wakes = true;
            }
        }
        wakes
    }

    /// Whether it is a watched folder itself, or a name in one that matters.
    fn matters(&self, path: &Path) -> bool {
        let inside = path.parent().and_then(|parent| self.wanted.get(parent));
        let named = |names: &Option<BTreeSet<OsString>>| match (names, path.file_name()) {
            (Some(names), Some(name)) => names.contains(name),
            _ => true,
        };
        self.wanted.get(path).is_some_and(Option::is_none) || inside.is_none_or(named)
    }

    /// Whether the file is read, or will be since it is new and a manifest by its name.
    fn is_read(&self, path: &Path) -> bool {
        self.readers.contains_key(path) || folder::is_manifest(path)
    }

    fn being_written(&self, now: Instant) -> BTreeSet<PathBuf> {
        let young = self.written.iter().filter(|(_, since)| now - **since < WRITING_MAX);
        let paths = |(path, _): (&PathBuf, &Instant)| match self.readers.get(path) {
            Some(paths) => paths.clone(),
            None => BTreeSet::from([path.clone()]),
        };
        young.flat_map(paths).collect()
    }
}

/// Whether the file was made by a writer that has not written anything yet.
fn is_new_and_empty(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() == 0)
}

/// A path, and the targets of the links on its way, one after the other.
fn links(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![path.to_path_buf()];
    let mut current = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        let Some((link, target)) = first_link(&current) else { break };
        let rest = current.strip_prefix(&link).map(Path::to_path_buf).unwrap_or_default();
        let base = link.parent().unwrap_or(Path::new("/"));
        current = if rest.as_os_str().is_empty() {
            base.join(target)
        } else {
            base.join(target).join(rest)
        };
        found.push(link);
        found.push(current.clone());
    }
    found
}

fn first_link(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let mut prefixes: Vec<&Path> = path.ancestors().collect();
    prefixes.reverse();
    prefixes
        .into_iter()
        .find_map(|prefix| Some((prefix.to_path_buf(), fs::read_link(prefix).ok()?)))
}
