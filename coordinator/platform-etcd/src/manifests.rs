//! Keeps the desired state in step with the manifests in etcd: lists them once, then watches them,
//! and publishes what they define to the driver. After a lost connection the watch goes on where it
//! ended. The keys are listed again after a compaction, and whenever a look at the store, every few
//! seconds, shows that the watch has missed something.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_driver::clock;
use leasehold_driver::freshness::Freshness;
use leasehold_manifest::folder::ENTRIES_MAX;
use leasehold_manifest::{Catalog, MemoryFiles, Reading};
use leasehold_platform::campaign::StoreErrors;
use leasehold_platform::desired_publisher::DesiredPublisher;
use leasehold_platform::disk_io::blocking;
use leasehold_platform::last_good_file::LastGoodFile;
use leasehold_platform::removal_grace::{RemovalGrace, Stamps};
use leasehold_types::Moment;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until};

use crate::client::EtcdClient;
use crate::etcd_error::EtcdError;
use crate::etcdserverpb::{RangeRequest, WatchCreateRequest, WatchResponse};
use crate::keys::{KeyRange, Keys};
use crate::manifest_mirror::ManifestMirror;

/// Changes are gathered for this long, because one save is several changes.
const QUIET: Duration = Duration::from_millis(25);
/// The time between two looks at the store.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// The pause after an error.
const PAUSE: Duration = Duration::from_secs(1);
/// Keys in one answer: so many of the largest values that etcd takes by default fit into it.
const PAGE: i64 = 32;

/// Reads the manifests of one prefix for one driver.
pub(crate) struct EtcdManifests {
    client: EtcdClient,
    keys: Keys,
    state: Arc<Mutex<State>>,
    desired_publisher: DesiredPublisher,
    freshness: watch::Sender<Freshness>,
    errors: StoreErrors,
    /// How often the store had been replaced when the keys were listed.
    replaced: u64,
}

/// The state of the reader, used on the threads for blocking work.
struct State {
    catalog: Catalog,
    grace: RemovalGrace,
    last_good_file: LastGoodFile,
}

/// Why the manifests are no longer followed.
enum FollowEnd {
    /// The driver has ended.
    DriverGone,
    /// The copy lacks a change: the keys are to be listed again.
    Outdated(&'static str),
}

impl EtcdManifests {
    /// A reader of the manifests below a prefix. A version that takes much away waits
    /// `confirm_removals`; zero means not at all.
    pub(crate) fn new(
        client: EtcdClient,
        keys: Keys,
        confirm_removals: Duration,
        last_good_file: LastGoodFile,
        desired_publisher: DesiredPublisher,
        freshness: watch::Sender<Freshness>,
    ) -> Self {
        let state = State {
            catalog: Catalog::in_memory(),
            grace: RemovalGrace::new(confirm_removals),
            last_good_file,
        };
        let errors = StoreErrors::new(false, "the manifests in etcd are read again");
        let state = Arc::new(Mutex::new(state));
        Self { client, keys, state, desired_publisher, freshness, errors, replaced: 0 }
    }

    /// Runs until the driver has ended.
    pub(crate) async fn run(mut self) {
        self.in_background(State::restore).await;
        let mut mirror = None;
        loop {
            match self.follow(&mut mirror).await {
                Ok(FollowEnd::DriverGone) => return,
                Ok(FollowEnd::Outdated(why)) => {
                    tracing::info!(why, "the manifests in etcd are listed again");
                    mirror = None;
                    continue;
                }
                Err(error) => {
                    if error.is_compacted() {
                        mirror = None;
                    }
                    self.errors.report("cannot read the manifests in etcd", &error);
                    let why = error.to_string();
                    self.freshness.send_modify(|known| *known = known.troubled(why));
                }
            }
            tokio::select! {
                () = self.desired_publisher.closed() => return,
                () = sleep(PAUSE) => {}
            }
        }
    }

    /// Lists the manifests, unless a copy is there, and follows them until something fails.
    async fn follow(
        &mut self,
        mirror: &mut Option<ManifestMirror>,
    ) -> Result<FollowEnd, EtcdError> {
        // Changes of a watch that has ended may not be published yet.
        let mut due = mirror.is_some().then(Instant::now);
        let mirror = match mirror {
            Some(mirror) => mirror,
            None => {
                let asked_at = clock::now();
                self.replaced = self.client.seen().replaced;
                let listed = mirror.insert(self.list().await?);
                if listed.len() == 0 {
                    tracing::warn!(
                        prefix = %self.keys,
                        "no key is below manifests/ there: put manifests there, or correct \
                         --etcd-prefix"
                    );
                }
                if self.publish(listed, Some(asked_at)).await.is_err() {
                    return Ok(FollowEnd::DriverGone);
                }
                listed
            }
        };
        let KeyRange { first, end } = self.keys.manifests();
        let start_revision = mirror.revision + 1;
        let create = WatchCreateRequest { key: first, range_end: end, start_revision };
        let mut changes = self.client.watch(create).await?;
        // What a watch that goes on has missed comes first.
        let mut looks = interval_at(Instant::now() + LOOK_INTERVAL, LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let grace_ends = self.lock().grace.ends();
            tokio::select! {
                () = self.desired_publisher.closed() => return Ok(FollowEnd::DriverGone),
                message = changes.next() => {
                    let message = message?;
                    if message.canceled {
                        return canceled(&message);
                    }
                    if !message.events.is_empty() {
                        mirror.apply(message.events);
                        due.get_or_insert_with(|| Instant::now() + QUIET);
                    }
                    continue;
                }
                _ = looks.tick() => {
                    let asked_at = clock::now();
                    let is_same = self.is_same(mirror).await?;
                    if !is_same || self.client.seen().replaced != self.replaced {
                        return Ok(FollowEnd::Outdated("the watch has missed a change"));
                    }
                    self.errors.recover();
                    if due.is_none() {
                        self.freshness.send_replace(Freshness::confirmed(asked_at));
                    }
                    continue;
                }
                () = reached(due) => due = None,
                () = reached(grace_ends) => {}
            }
            if self.publish(mirror, None).await.is_err() {
                return Ok(FollowEnd::DriverGone);
            }
        }
    }

    /// Whether the store has what the copy has.
    async fn is_same(&self, mirror: &mut ManifestMirror) -> Result<bool, EtcdError> {
        let KeyRange { first, end } = self.keys.manifests();
        let request = RangeRequest {
            key: first,
            range_end: end,
            keys_only: true,
            min_mod_revision: mirror.revision + 1,
            ..RangeRequest::default()
        };
        Ok(mirror.confirm(&self.client.range(request).await?))
    }

    /// Reads all keys, at one revision.
    async fn list(&self) -> Result<ManifestMirror, EtcdError> {
        let KeyRange { first, end } = self.keys.manifests();
        let mut request =
            RangeRequest { key: first, range_end: end, limit: PAGE, ..RangeRequest::default() };
        let mut mirror: Option<ManifestMirror> = None;
        loop {
            let answer = self.client.range(request.clone()).await?;
            if usize::try_from(answer.count).is_ok_and(|count| count > ENTRIES_MAX) {
                return Err(EtcdError::Invalid(format!(
                    "{}manifests/ has more than {ENTRIES_MAX} keys: remove those that are no \
                     manifests",
                    self.keys
                )));
            }
            let revision = answer.header.map(|header| header.revision).unwrap_or_default();
            let mirror = mirror.get_or_insert_with(|| ManifestMirror::at(revision));
            request.revision = mirror.revision;
            if let Some(last) = answer.kvs.last() {
                request.key = [last.key.as_slice(), b"\0"].concat();
            }
            let is_last = answer.kvs.is_empty() || !answer.more;
            answer.kvs.into_iter().for_each(|kv| mirror.insert(kv));
            if is_last {
                return Ok(std::mem::take(mirror));
            }
        }
    }

    /// Publishes what the files define, and notes when that was asked for. Fails if the driver has
    /// ended.
    async fn publish(
        &mut self,
        mirror: &ManifestMirror,
        asked_at: Option<Moment>,
    ) -> Result<(), ()> {
        let (files, stamps) = mirror.files(&self.keys);
        let reading = self.in_background(move |state| state.read(files, stamps)).await;
        self.desired_publisher.publish(reading).await?;
        if let Some(asked_at) = asked_at {
            self.errors.recover();
            self.freshness.send_replace(Freshness::confirmed(asked_at));
        }
        self.in_background(State::keep).await;
        Ok(())
    }

    async fn in_background<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut State) -> R + Send + 'static,
    ) -> R {
        let state = Arc::clone(&self.state);
        blocking(move || work(&mut lock(&state))).await
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Puts in force what the files define, unless that takes much away.
    fn read(&mut self, files: MemoryFiles, stamps: Stamps) -> Reading {
        self.catalog.set_files(files);
        let version = self.catalog.next_version(&BTreeSet::new());
        match self.grace.waits(&version, stamps, Instant::now()) {
            None => self.catalog.accept(version),
            Some(due) => version.deferred(&self.grace.notice(), due),
        }
    }
}

/// Why a watch has ended.
fn canceled(message: &WatchResponse) -> Result<FollowEnd, EtcdError> {
    if message.compact_revision == 0 {
        return Err(EtcdError::Invalid(format!("etcd ended the watch: {}", message.cancel_reason)));
    }
    Ok(FollowEnd::Outdated("etcd was compacted beyond what the watch has shown"))
}

async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
