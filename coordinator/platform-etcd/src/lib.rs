//! The platform on etcd: replicas on several hosts elect a leader and keep the exposures of workers
//! in etcd, and read manifests from there or from a folder of their host. Each write of a leader is
//! a transaction on its term. No lease of etcd and no clock of another host decides who leads
//! safely. A replica takes no term before it has a desired state.

mod candidate;
mod client;
mod connection;
mod election;
mod etcd_error;
#[allow(missing_docs, dead_code, clippy::all, clippy::unwrap_used, unreachable_pub)]
mod etcdserverpb;
mod exposures;
mod keys;
mod manifest_mirror;
mod manifests;
mod records;
mod store_history;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use leasehold_driver::access::Access;
use leasehold_driver::freshness::Freshness;
use leasehold_driver::health::Progress;
use leasehold_driver::platform::{COMMANDS_MAX, EVENTS_MAX, Platform};
use leasehold_platform::campaign::{self, CampaignContext, StoreErrors};
use leasehold_platform::desired_publisher::DesiredPublisher;
use leasehold_platform::last_good_file::LastGoodFile;
use leasehold_platform::manifest_watcher::ManifestWatcher;
use leasehold_types::{CellId, TimeBounds};
use tokio::sync::{mpsc, oneshot, watch};

use self::candidate::{CandidateSettings, EtcdCandidate};
use self::client::EtcdClient;
pub use self::connection::{EtcdConnection, EtcdTls, EtcdUser, MemberUrl};
use self::election::Election;
use self::keys::Keys;
pub use self::keys::PREFIX_BYTES_MAX;
use self::manifests::EtcdManifests;

/// How a replica runs on etcd.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The members, and how this replica proves itself there.
    pub connection: EtcdConnection,
    /// What all keys of the cell begin with.
    pub prefix: String,
    /// A folder of manifests on this host; `None` for those in etcd.
    pub manifests: Option<PathBuf>,
    /// How long a version of the manifests that takes much away waits; zero means not at all.
    pub confirm_removals: Duration,
    /// The folder for the last valid manifests; created if it is missing.
    pub state_dir: PathBuf,
    /// The cell that the prefix is, or becomes, the store of; `None` for the one that it is of, or
    /// a new one.
    pub cell: Option<CellId>,
    /// This replica's name.
    pub identity: String,
    /// Where agents and people reach this replica: HOST:PORT.
    pub address: String,
    /// How long a leader may send no renewal before a standby takes over.
    pub takeover_after: Duration,
    /// How long leadership lasts after a renewal was sent.
    pub leadership: Duration,
    /// How far clocks may drift apart.
    pub bounds: TimeBounds,
}

/// Starts the platform on the present runtime. It waits for etcd as long as etcd does not answer.
///
/// # Errors
/// If the folder of manifests cannot be read, or the state folder is no folder.
pub async fn start(settings: Settings) -> anyhow::Result<Platform> {
    let state_dir = std::path::absolute(&settings.state_dir)
        .with_context(|| format!("--state-dir {:?}: expected a folder", settings.state_dir))?;
    tokio::fs::create_dir_all(&state_dir)
        .await
        .with_context(|| format!("cannot use --state-dir {}", state_dir.display()))?;
    let (event_sender, events) = mpsc::channel(EVENTS_MAX);
    let (commands, command_receiver) = mpsc::channel(COMMANDS_MAX);
    let (problem_sender, problems) = watch::channel(Arc::default());
    let (ready, is_ready) = oneshot::channel();
    let (freshness_sender, freshness) = watch::channel(Freshness::default());
    let (cell_sender, cell) = watch::channel(None);
    let source = match &settings.manifests {
        Some(folder) => format!("the folder {}", folder.display()),
        None => format!("etcd, as a key below manifests/ of the prefix {}", settings.prefix),
    };
    let desired_publisher =
        DesiredPublisher::new(event_sender.clone(), problem_sender, ready, source);
    let last_good_file = LastGoodFile::new(state_dir);
    let client = EtcdClient::new(settings.connection.clone());
    let keys = Keys::new(&settings.prefix);
    let confirm_removals = settings.confirm_removals;
    match &settings.manifests {
        Some(folder) => {
            let root = std::path::absolute(folder)
                .with_context(|| format!("--manifests {folder:?}: expected a folder"))?;
            ensure!(
                root.is_dir(),
                "--manifests {}: expected a folder: create it, correct the path, or leave it out \
                 to read the manifests in etcd",
                root.display()
            );
            let (in_force, _) = watch::channel(None);
            let watcher = ManifestWatcher::new(
                root,
                confirm_removals,
                last_good_file,
                desired_publisher,
                in_force,
                freshness_sender,
            );
            tokio::spawn(watcher.run());
        }
        None => {
            let manifests = EtcdManifests::new(
                client.clone(),
                keys.clone(),
                confirm_removals,
                last_good_file,
                desired_publisher,
                freshness_sender,
            );
            tokio::spawn(manifests.run());
        }
    }
    let progress = Arc::<Progress>::default();
    let errors = StoreErrors::new(true, "etcd works again");
    let driver = Arc::clone(&progress);
    let context = CampaignContext::new(event_sender, command_receiver, driver, is_ready, errors);
    let election =
        Election::new(client, keys, settings.identity, settings.address, settings.leadership);
    let candidate = CandidateSettings {
        cell: settings.cell,
        takeover_after: settings.takeover_after,
        leadership: settings.leadership,
        bounds: settings.bounds,
    };
    let candidate = EtcdCandidate::new(candidate, election, cell_sender);
    tokio::spawn(campaign::run(candidate, context));
    Ok(Platform {
        events,
        commands,
        problems,
        freshness,
        cell,
        replicas: watch::channel(Arc::default()).1,
        access: Access::Open,
        progress,
        handle_sender: None,
    })
}
