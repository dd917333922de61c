//! The candidate on Kubernetes: it watches the Lease and the leader, and takes the next term when
//! there is no leader. It reads the Lease before each attempt, and takes only what it has read.

use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::watcher::Event;
use leasehold_coordinator_core::campaign::{LeadSettings, TermTaken};
use leasehold_driver::clock;
use leasehold_driver::platform::Command;
use leasehold_driver::replicas::KnownReplica;
use leasehold_driver::trust::Trust;
use leasehold_kube_api::names::LEASE;
use leasehold_platform::campaign::{
    CampaignContext, Candidate, ElectedTerm, Stopped, if_some, release, wait_ready,
};
use leasehold_types::{Epoch, Moment, TermId, TimeBounds};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::leader_connection::{KnownReplicasSender, LeaderConnection};
use crate::leader_failure_detector::{
    LeaderFailureDetector, LeaderSignal, LeaderStatus, Vacancy, renewal_interval,
};
use crate::lease_error::LeaseError;
use crate::lease_lock::{HeldLease, LeaseLock, LeaseRead, LeaseRecord};
use crate::pods::Pods;
use crate::term_stores::{PodExposures, RELEASE_TIMEOUT, TermLease};
use crate::watch_cache::{events, named};

/// Candidates wait for a random part of this, so that one is first.
const JITTER_MAX: Duration = Duration::from_millis(10);
/// The pause after a call to the API server that failed.
const PAUSE: Duration = Duration::from_secs(1);
/// Changes of the Lease that may wait.
const CHANGES_MAX: usize = 4;

/// The most pods that are written at a time.
const WRITES_MAX: usize = 16;

/// The settings of a candidate.
#[derive(Clone, Debug)]
pub(crate) struct CandidateSettings {
    /// This replica, as the leader lists it.
    pub(crate) own: KnownReplica,
    /// Where the replicas that the leader knows of are published.
    pub(crate) known: KnownReplicasSender,
    /// How long a leader may be silent before this replica takes over.
    pub(crate) takeover_after: Duration,
    /// How long leadership lasts.
    pub(crate) leadership: Duration,
    /// How far clocks may be apart.
    pub(crate) bounds: TimeBounds,
    /// How a leader's certificate is checked; `None` for connections without TLS.
    pub(crate) trust: Option<Trust>,
}

/// A replica that takes part in the election on the Lease.
pub(crate) struct LeaseCandidate {
    settings: CandidateSettings,
    lock: LeaseLock,
    pods: Pods,
}

/// The state of a standby.
struct Watch {
    detector: LeaderFailureDetector,
    changes: mpsc::Receiver<LeaseChange>,
    _watcher: JoinSet<()>,
    /// The leader that it connects to: holder and epoch.
    followed: Option<(String, Option<Epoch>)>,
    connection: Option<LeaderConnection>,
    call: Option<Call>,
    /// After a failure: when to retry.
    not_before: Moment,
    why: Vacancy,
}

type Call = Pin<Box<dyn Future<Output = Found> + Send>>;

/// The result of a call to the API server.
enum Found {
    Read(Result<LeaseRead, LeaseError>),
    Taken(Result<Option<(HeldLease, Moment)>, LeaseError>),
}

/// A change of the Lease, or of whether it is watched.
enum LeaseChange {
    /// Its record; none where there is no Lease.
    Read(Option<LeaseRecord>),
    /// It cannot be read.
    Invalid(LeaseError),
    /// The watch has failed, which it has logged, and is tried again.
    NotWatched,
}

impl LeaseChange {
    fn of(lease: Option<Lease>) -> Self {
        match lease.map(LeaseRecord::of).transpose() {
            Ok(record) => Self::Read(record),
            Err(error) => Self::Invalid(error),
        }
    }
}

/// Why a standby woke up.
enum Woken {
    Command(Option<Command>),
    DriverGone,
    Ready(Result<(), Stopped>),
    Found(Found),
    Changed(LeaseChange),
    LeaderSignal(LeaderSignal),
    Time,
}

impl LeaseCandidate {
    pub(crate) fn new(settings: CandidateSettings, lock: LeaseLock, pods: Pods) -> Self {
        Self { settings, lock, pods }
    }
}

impl Candidate for LeaseCandidate {
    type Terms = TermLease;
    type Exposures = PodExposures;

    fn lead_settings(&self) -> LeadSettings {
        let leadership = self.settings.leadership;
        LeadSettings {
            leadership,
            renew_every: renewal_interval(leadership),
            batch_max: 1,
            batches_max: WRITES_MAX,
        }
    }

    async fn stand_by(
        &mut self,
        context: &mut CampaignContext,
    ) -> Result<ElectedTerm<TermLease, PodExposures>, Stopped> {
        let mut watch = self.watch();
        loop {
            let nap = self.evaluate(&mut watch, context).await?;
            let woken = tokio::select! {
                biased;
                command = context.commands.recv() => Woken::Command(command),
                () = context.events.closed() => Woken::DriverGone,
                known = wait_ready(&mut context.ready) => Woken::Ready(known),
                found = if_some(&mut watch.call) => Woken::Found(found),
                Some(change) = watch.changes.recv() => Woken::Changed(change),
                signal = next_signal(&mut watch.connection) => Woken::LeaderSignal(signal),
                () = sleep(nap) => Woken::Time,
            };
            let now = clock::now();
            match woken {
                Woken::Command(None) | Woken::DriverGone => return Err(Stopped),
                Woken::Command(Some(Command::Resign(done))) => {
                    self.resign(watch, context).await;
                    let _ = done.send(());
                    return Err(Stopped);
                }
                // The order is for a term that has ended.
                Woken::Command(Some(Command::Order { order, .. })) => {
                    context.raise_above(order.above());
                }
                Woken::Command(Some(Command::ConfirmEntries { .. })) => {}
                Woken::Ready(ready) => {
                    ready?;
                    context.ready = None;
                }
                Woken::Found(found) => {
                    watch.call = None;
                    if let Some(won) = self.found(&mut watch, found, context, now) {
                        return Ok(won);
                    }
                }
                Woken::Changed(LeaseChange::Read(record)) => {
                    self.lock.note_cell(record.as_ref().and_then(|record| record.cell));
                    watch.detector.on_watch_event(record, now);
                }
                Woken::Changed(LeaseChange::Invalid(error)) => {
                    watch.detector.api_failed();
                    context.errors.report("the Lease is invalid", &error);
                }
                Woken::Changed(LeaseChange::NotWatched) => watch.detector.api_failed(),
                Woken::LeaderSignal(signal) => watch.detector.on_signal(signal, now),
                Woken::Time => {}
            }
            context.raise_above(Some(watch.detector.highest_epoch()));
        }
    }
}

impl LeaseCandidate {
    fn watch(&self) -> Watch {
        let now = clock::now();
        let holder = self.lock.holder().to_owned();
        let (takeover_after, bounds) = (self.settings.takeover_after, self.settings.bounds);
        let (sender, changes) = mpsc::channel(CHANGES_MAX);
        let mut watcher = JoinSet::new();
        watcher.spawn(watch_lease(self.lock.clone(), sender));
        Watch {
            detector: LeaderFailureDetector::new(holder, takeover_after, bounds, now),
            changes,
            _watcher: watcher,
            followed: None,
            connection: None,
            call: None,
            not_before: now,
            why: Vacancy::NoLease,
        }
    }

    /// Connects to the leader, notifies the driver, or starts to take the Lease. Returns how long
    /// to wait.
    async fn evaluate(
        &self,
        watch: &mut Watch,
        context: &mut CampaignContext,
    ) -> Result<Duration, Stopped> {
        let now = clock::now();
        let status = watch.detector.evaluate(now);
        if let Some(record) = watch.detector.leader() {
            let leader = (record.holder.clone().unwrap_or_default(), record.epoch);
            if watch.followed.as_ref() != Some(&leader) {
                let CandidateSettings { own, known, trust, .. } = self.settings.clone();
                watch.connection = record
                    .address
                    .clone()
                    .map(|address| LeaderConnection::start(address, own, trust, known));
                watch.followed = Some(leader);
            }
        }
        match status {
            LeaderStatus::Unknown => Ok(PAUSE),
            LeaderStatus::Alive(nap) => {
                if let Some(record) = watch.detector.leader().cloned() {
                    let leader = self.lock.other_address(&record);
                    let holder = record.holder.as_deref();
                    context.notify_leader(leader, holder, record.epoch).await?;
                }
                Ok(nap)
            }
            LeaderStatus::Vacant(why) => {
                if context.ready.is_some() || watch.call.is_some() {
                    return Ok(PAUSE);
                }
                if now < watch.not_before {
                    return Ok(watch.not_before.since(now));
                }
                watch.why = why;
                let lock = self.lock.clone();
                watch.call = Some(Box::pin(async move {
                    sleep(JITTER_MAX.mul_f64(fastrand::f64())).await;
                    Found::Read(lock.read().await)
                }));
                Ok(PAUSE)
            }
        }
    }

    fn found(
        &self,
        watch: &mut Watch,
        found: Found,
        context: &mut CampaignContext,
        now: Moment,
    ) -> Option<ElectedTerm<TermLease, PodExposures>> {
        match found {
            Found::Read(Ok(read)) => {
                context.errors.recover();
                watch.detector.on_read(&read, now);
                context.raise_above(Some(watch.detector.highest_epoch()));
                if let LeaderStatus::Vacant(why) = watch.detector.evaluate(now)
                    && context.ready.is_none()
                {
                    watch.why = why;
                    watch.call =
                        Some(self.take(read, context.above(), watch.detector.longest_duration()));
                }
                None
            }
            Found::Taken(Ok(Some((held, sent_at)))) => {
                let (epoch, why) = (held.epoch, watch.why);
                tracing::info!(epoch = epoch.0, ?why, "the Lease was taken");
                context.errors.recover();
                let (term, predecessor_end) = (TermId(fastrand::u64(1..)), held.predecessor_end);
                let cell = Some(held.cell);
                let taken = TermTaken { epoch, term, cell, sent_at, predecessor_end };
                let exposures = PodExposures::new(epoch, self.pods.clone());
                Some(ElectedTerm {
                    taken,
                    terms: TermLease::new(self.lock.clone(), held),
                    exposures,
                })
            }
            // Another replica was faster: the next event shows the new leader.
            Found::Taken(Ok(None)) => None,
            Found::Read(Err(error)) | Found::Taken(Err(error)) => {
                watch.detector.api_failed();
                watch.not_before = now + PAUSE;
                context.errors.report("cannot take a term", &error);
                None
            }
        }
    }

    fn take(&self, read: LeaseRead, above: Epoch, unseen: Duration) -> Call {
        let (lock, bounds) = (self.lock.clone(), self.settings.bounds);
        Box::pin(async move { Found::Taken(lock.take(&read, above, bounds, unseen).await) })
    }

    /// Releases a term whose taking is in progress.
    async fn resign(&self, mut watch: Watch, context: &mut CampaignContext) {
        if let Ok(Found::Taken(Ok(Some((held, _))))) =
            timeout(RELEASE_TIMEOUT / 2, if_some(&mut watch.call)).await
        {
            release(TermLease::new(self.lock.clone(), held), context).await;
        }
    }
}

/// Sends each change of the Lease, until the receiver is dropped.
async fn watch_lease(lock: LeaseLock, changes: mpsc::Sender<LeaseChange>) {
    let mut events = pin!(events("the Lease of leadership", lock.api(), named(LEASE)));
    let mut listed = None;
    while let Some(event) = events.next().await {
        let change = match event {
            Ok(Event::Init) => {
                listed = None;
                continue;
            }
            Ok(Event::InitApply(lease)) => {
                listed = Some(lease);
                continue;
            }
            Ok(Event::InitDone) => LeaseChange::of(listed.take()),
            Ok(Event::Apply(lease)) => LeaseChange::of(Some(lease)),
            Ok(Event::Delete(_)) => LeaseChange::Read(None),
            Err(_) => LeaseChange::NotWatched,
        };
        if changes.send(change).await.is_err() {
            return;
        }
    }
}

async fn next_signal(connection: &mut Option<LeaderConnection>) -> LeaderSignal {
    match connection {
        Some(connection) => connection.next().await,
        None => std::future::pending().await,
    }
}
