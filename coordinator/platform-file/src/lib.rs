//! The standalone platform: manifests in a folder that it watches, and a state folder on a local
//! file system where replicas elect a leader and keep the exposures of workers and the last valid
//! manifests. A replica takes no term before it has a desired state, from the manifests or from the
//! last valid ones: a leader with an empty desired state would revoke every lease.

mod candidate;
mod epochs;
pub mod exposure_log;
mod replica_files;
mod state_folder;

#[cfg(test)]
mod election_tests;
#[cfg(test)]
mod exposure_log_tests;
#[cfg(test)]
#[path = "../../platform/src/test_folder.rs"]
mod test_folder;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context as _, bail};
use leasehold_driver::access::Access;
use leasehold_driver::cell::Cell;
use leasehold_driver::freshness::Freshness;
use leasehold_driver::health::Progress;
use leasehold_driver::platform::{COMMANDS_MAX, EVENTS_MAX, Platform};
use leasehold_driver::replicas::KnownReplica;
use leasehold_manifest::last_good;
use leasehold_platform::campaign::{self, CampaignContext, StoreErrors};
use leasehold_platform::desired_publisher::DesiredPublisher;
use leasehold_platform::disk_io::{blocking, same_file};
use leasehold_platform::last_good_file::LastGoodFile;
use leasehold_platform::manifest_watcher::ManifestWatcher;
use leasehold_types::{CellId, TimeBounds};
use tokio::sync::{mpsc, oneshot, watch};

use self::candidate::{Disk, FileCandidate};
use self::epochs::Epochs;
use self::replica_files::ReplicaFiles;
use self::state_folder::StateFolder;

/// How a replica runs on files.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The manifests' folder.
    pub manifests: PathBuf,
    /// How long a version of the manifests that takes much away waits; zero means not at all.
    pub confirm_removals: Duration,
    /// The folder that the replicas share; created if it is missing.
    pub state_dir: PathBuf,
    /// Whether locks there prove that a process runs, whatever the file system.
    pub trusts_locks: bool,
    /// The cell that the folder is, or becomes, the store of; `None` for the one that it is of, or
    /// a new one.
    pub cell: Option<CellId>,
    /// This replica's name.
    pub identity: String,
    /// Where agents and people reach this replica: HOST:PORT.
    pub address: String,
    /// Where its HTTP port is reached: HOST:PORT.
    pub http_address: String,
    /// How long a leader's heartbeat may stay unchanged before a standby takes over.
    pub takeover_after: Duration,
    /// How long leadership lasts after a renewal was sent.
    pub leadership: Duration,
    /// How far clocks may drift apart.
    pub bounds: TimeBounds,
}

/// Starts the platform on the present runtime.
///
/// # Errors
/// If the state folder cannot be created, or if the manifests cannot be read at the first start.
/// Later errors are logged and retried.
pub async fn start(settings: Settings) -> anyhow::Result<Platform> {
    let manifests = std::path::absolute(&settings.manifests)
        .with_context(|| format!("--manifests {:?}: expected a folder", settings.manifests))?;
    let state_dir = std::path::absolute(&settings.state_dir)
        .with_context(|| format!("--state-dir {:?}: expected a folder", settings.state_dir))?;
    let settings = Settings { state_dir: state_dir.clone(), ..settings };
    let folder_of_manifests = manifests.clone();
    let (trusts_locks, wanted) = (settings.trusts_locks, settings.cell);
    let opened = blocking(move || {
        let opened = File::open(&folder_of_manifests);
        if opened.is_ok_and(|folder| same_file(&folder, &state_dir)) {
            return Err(io::Error::other(
                "--manifests and --state-dir are one folder: expected a folder of its own for the \
                 state, for example --state-dir ./state",
            ));
        }
        if is_watched(&state_dir, &folder_of_manifests) {
            return Err(io::Error::other(
                "it lies in the folder of --manifests, which is read again at every write there: \
                 stop all replicas and move it with its content, for example to ./state",
            ));
        }
        let folder = StateFolder::open(&state_dir, trusts_locks, wanted)?;
        // One folder has one name, however it was given.
        let store = state_dir.canonicalize()?.display().to_string();
        Ok::<_, io::Error>((Epochs::open(&state_dir)?, folder, store))
    });
    let (epochs, folder, store) = opened
        .await
        .with_context(|| format!("cannot use --state-dir {}", settings.state_dir.display()))?;
    check_first_start(&manifests, &settings.state_dir).await?;
    let cell = Cell { id: folder.cell(), store };
    tracing::info!(cell = %cell.id, state_dir = cell.store, "the state folder's cell");
    let (event_sender, events) = mpsc::channel(EVENTS_MAX);
    let (commands, command_receiver) = mpsc::channel(COMMANDS_MAX);
    let (problem_sender, problems) = watch::channel(Arc::default());
    let (ready, is_ready) = oneshot::channel();
    let (freshness_sender, freshness) = watch::channel(Freshness::default());
    let last_good_file = LastGoodFile::new(settings.state_dir.clone());
    let source = format!("the folder {}", manifests.display());
    let desired_publisher =
        DesiredPublisher::new(event_sender.clone(), problem_sender, ready, source);
    let confirm_removals = settings.confirm_removals;
    let (in_force_sender, in_force) = watch::channel(None);
    let manifest_watcher = ManifestWatcher::new(
        manifests,
        confirm_removals,
        last_good_file,
        desired_publisher,
        in_force_sender,
        freshness_sender,
    );
    tokio::spawn(manifest_watcher.run());
    let own = KnownReplica {
        http_address: settings.http_address.clone(),
        ..KnownReplica::of_this_build(settings.identity.clone(), settings.address.clone())
    };
    let (replica_sender, replicas) = watch::channel(Arc::default());
    let replica_files = ReplicaFiles::new(&settings.state_dir, own, confirm_removals, in_force);
    tokio::spawn(replica_files.run(replica_sender));
    let (access, progress) = (Access::Open, Arc::<Progress>::default());
    let driver = Arc::clone(&progress);
    let disk = Disk { folder, epochs };
    let errors = StoreErrors::new(true, "the state folder works again");
    let context = CampaignContext::new(event_sender, command_receiver, driver, is_ready, errors);
    tokio::spawn(campaign::run(FileCandidate::new(settings, disk), context));
    Ok(Platform {
        events,
        commands,
        problems,
        freshness,
        cell: watch::channel(Some(Arc::new(cell))).1,
        replicas,
        access,
        progress,
        handle_sender: None,
    })
}

/// Whether the state folder, which need not exist yet, lies where manifests are looked for.
fn is_watched(state_dir: &Path, manifests: &Path) -> bool {
    let mut missing = Vec::new();
    let existing = state_dir.ancestors().find_map(|path| {
        let found = path.canonicalize().ok();
        missing.extend(found.is_none().then(|| path.file_name()).flatten());
        found
    });
    let whole =
        existing.map(|found| missing.iter().rev().fold(found, |path, name| path.join(name)));
    let below = whole.zip(manifests.canonicalize().ok());
    let below = below.and_then(|(state, root)| Some(state.strip_prefix(root).ok()?.to_owned()));
    // Names that begin with a dot are passed over.
    let is_hidden = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b".");
    below.is_some_and(|below| !below.iter().any(is_hidden))
}

/// Fails if the folder cannot be read at the very first start, most often because of a wrong path.
/// At a later start the last valid manifests stay in force until the folder can be read.
async fn check_first_start(manifests: &Path, state_dir: &Path) -> anyhow::Result<()> {
    let (folder, last_good) = (manifests.to_owned(), state_dir.join(last_good::FILE));
    let wrong =
        blocking(move || if last_good.exists() { None } else { fs::read_dir(folder).err() });
    match wrong.await {
        None => Ok(()),
        Some(error) if error.kind() == io::ErrorKind::NotADirectory => {
            bail!("--manifests {} is a file: expected a folder", manifests.display())
        }
        Some(error) => bail!(
            "--manifests {}: the folder cannot be read ({error}), and there are no last good \
             manifests: create the folder, or correct the path",
            manifests.display()
        ),
    }
}
