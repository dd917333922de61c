//! Wakes the readers of files when something in or around their folders changes. There may be
//! needless wake-ups. A change that the system does not report is found by the reader's slow poll.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use leasehold_manifest::folder::Stamp;
use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

/// The most links that are followed from one path.
const LINKS_MAX: usize = 16;

/// Watches the folders of the files.
pub struct Watcher {
    system: Option<RecommendedWatcher>,
    /// Watched folders, each with its stamp from when the watch began.
    watched: BTreeMap<PathBuf, Stamp>,
    wanted: Arc<Mutex<WatchedNames>>,
}

/// The names that matter in each folder; `None` if all do.
type WatchedNames = BTreeMap<PathBuf, Option<BTreeSet<OsString>>>;

impl Watcher {
    /// A watcher that watches nothing yet, and the receiver of its wake-ups.
    pub fn new() -> (Self, mpsc::Receiver<()>) {
        let (wake, wakes) = mpsc::channel(1);
        let wanted = Arc::new(Mutex::new(WatchedNames::new()));
        let names = wanted.clone();
        let system = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if matters(&event, &names) {
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
        (Self { system, watched: BTreeMap::new(), wanted }, wakes)
    }

    /// Watches everything in these folders, and the names of `paths` and of all links on their way.
    /// Returns whether a watch is new: its folder may have changed before.
    pub fn watch(&mut self, folders: &[PathBuf], paths: &[PathBuf]) -> bool {
        let mut wanted = WatchedNames::new();
        for path in folders.iter().chain(paths) {
            for link in links(path) {
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
        *self.wanted.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = wanted;
        new
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

fn matters(event: &notify::Result<Event>, wanted: &Mutex<WatchedNames>) -> bool {
    let Ok(event) = event else { return true };
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => {}
        // Reading a file does not change it.
        EventKind::Access(_) => return false,
        _ => {}
    }
    if event.need_rescan() || event.paths.is_empty() {
        return true;
    }
    let wanted = wanted.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    event.paths.iter().any(|path| {
        // An event on a watched folder itself, or on a name in one.
        let inside = path.parent().and_then(|parent| wanted.get(parent));
        let named = |names: &Option<BTreeSet<OsString>>| match (names, path.file_name()) {
            (Some(names), Some(name)) => names.contains(name),
            _ => true,
        };
        wanted.get(path).is_some_and(Option::is_none) || inside.is_none_or(named)
    })
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
