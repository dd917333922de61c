//! The election in the state folder, for one replica: it stands by, takes a term when there is no
//! leader, leads, and stands by again. It leads only after a check of the disk that began after it
//! took the term, and for a limited time after each check.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use leasehold_coordinator_core::campaign::{
    EntryAttempt, EntryChange, EntryOutcome, LeadSettings, Listing, Namespaces, RenewalOutcome,
    TermTaken,
};
use leasehold_coordinator_core::exposure::Entry;
use leasehold_driver::clock;
use leasehold_driver::health::Progress;
use leasehold_driver::platform::Command;
use leasehold_platform::campaign::{
    CampaignContext, Candidate, ElectedTerm, ExposureStore, LossReason, Stopped, Successor,
    TermStore, wait_ready,
};
use leasehold_types::{Epoch, Moment, TermId, WorkerKey};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::Settings;
use super::epochs::{self, Claim, EpochState, Epochs, HeldEpoch};
use super::exposure_log::{self, ExposureLog};
use super::state_folder::StateFolder;
use leasehold_platform::disk_io::blocking;

/// The heartbeats that a leader writes within the time after which a silent one is replaced.
const BEATS: u32 = 8;
/// A leader counts as failed only after this many checks in a row without a new heartbeat.
const UNCHANGED_CHECKS_MIN: u32 = 4;
/// The longest and the shortest time between two checks of the disk.
const CHECK_MAX: Duration = Duration::from_millis(500);
const CHECK_MIN: Duration = Duration::from_millis(5);
/// Each candidate waits for a random part of this, so that one of them is first.
const JITTER_MAX: Duration = Duration::from_millis(10);
/// The pause after a disk error.
const PAUSE: Duration = Duration::from_secs(1);
/// The most changes in one write to the exposure log.
const BATCH_MAX: usize = 4_096;

/// The state folder, which replicas share.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    pub(crate) folder: StateFolder,
    pub(crate) epochs: Epochs,
}

/// A replica that stands for election on the state folder.
pub(crate) struct FileCandidate {
    settings: Settings,
    disk: Disk,
}

/// The last state of the leader that a standby has seen.
#[derive(Clone, Debug)]
struct Watch {
    state: EpochState,
    /// When the last new heartbeat was seen.
    heartbeat_at: Moment,
    unchanged_checks: u32,
}

/// The open files of one term's claim. The exposure log has its own lock: a slow write to the log
/// delays no heartbeat.
pub(crate) struct TermFiles {
    address: String,
    disk: Disk,
    held: Arc<Mutex<HeldEpoch>>,
    log: Arc<Mutex<ExposureLog>>,
    progress: Arc<Progress>,
}

/// The open exposure log of one term.
pub(crate) struct ExposureFiles {
    folder: StateFolder,
    log: Arc<Mutex<ExposureLog>>,
    /// The entries of the log; each has this term's epoch if it was written to this term's log.
    entries: BTreeMap<WorkerKey, Entry>,
}

/// A term that was taken, and its files.
struct TakenTerm {
    taken: TermTaken,
    held: HeldEpoch,
    log: ExposureLog,
    entries: BTreeMap<WorkerKey, Entry>,
}

impl FileCandidate {
    pub(crate) fn new(settings: Settings, disk: Disk) -> Self {
        Self { settings, disk }
    }
}

impl Candidate for FileCandidate {
    type Terms = TermFiles;
    type Exposures = ExposureFiles;

    fn lead_settings(&self) -> LeadSettings {
        let period = (self.settings.takeover_after / BEATS).min(self.settings.leadership / 10);
        LeadSettings {
            leadership: self.settings.leadership,
            renew_every: period.clamp(CHECK_MIN, Duration::from_secs(1)),
            batch_max: BATCH_MAX,
            batches_max: 1,
        }
    }

    async fn stand_by(
        &mut self,
        context: &mut CampaignContext,
    ) -> Result<ElectedTerm<TermFiles, ExposureFiles>, Stopped> {
        let period = (self.settings.takeover_after / BEATS).clamp(CHECK_MIN, CHECK_MAX);
        let mut checks = interval(period);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (ended, mut ended_leaders) = mpsc::channel(1);
        let mut watch: Option<Watch> = None;
        let mut awaited = None;
        loop {
            tokio::select! {
                biased;
                command = context.commands.recv() => match command {
                    None => return Err(Stopped),
                    Some(Command::Resign(done)) => {
                        let _ = done.send(());
                        return Err(Stopped);
                    }
                    // An order for a term that has ended.
                    Some(Command::Order { order, .. }) => context.raise_above(order.above()),
                    Some(Command::ConfirmEntries { .. }) => {}
                },
                () = context.events.closed() => return Err(Stopped),
                _ = ended_leaders.recv() => awaited = None,
                _ = checks.tick() => {}
                ready = wait_ready(&mut context.ready) => {
                    ready?;
                    context.ready = None;
                }
            }
            match self.check(watch.take(), context.above()).await {
                Err(error) => {
                    // A replaced folder has already been logged.
                    if self.disk.folder.lost().is_none() {
                        context.errors.report("cannot read the state folder", &error);
                    }
                    self.set_health(context);
                    sleep(PAUSE).await;
                }
                Ok((seen, vacant)) => {
                    self.set_health(context);
                    if let Some(seen) = &seen {
                        context.raise_above(Some(seen.state.epoch));
                        if awaited != Some(seen.state.epoch) && !vacant {
                            self.await_end(seen.state.epoch, &ended);
                            awaited = Some(seen.state.epoch);
                        }
                        if !vacant {
                            notify(context, &seen.state).await?;
                        }
                    }
                    if vacant
                        && context.ready.is_none()
                        && let Some(won) = self.try_to_lead(seen.clone(), context).await
                    {
                        return Ok(won);
                    }
                    watch = seen;
                }
            }
        }
    }
}

impl FileCandidate {
    /// Reads who leads, and whether that leader has failed.
    async fn check(&self, last: Option<Watch>, above: Epoch) -> io::Result<(Option<Watch>, bool)> {
        let Disk { folder, epochs } = self.disk.clone();
        let takeover_after = self.settings.takeover_after;
        blocking(move || {
            // At the first failure the leader writes the epoch, because it knows the entries, too.
            let was_lost = folder.lost().is_some();
            folder.check().inspect_err(|_| {
                if was_lost {
                    mark_led(&folder, above);
                }
            })?;
            let Some(state) = epochs.latest()? else { return Ok((None, true)) };
            let has_ended = epochs.has_ended(state.epoch);
            let now = clock::now();
            let watch = match last {
                Some(last) if last.state == state => {
                    Watch { unchanged_checks: last.unchanged_checks + 1, ..last }
                }
                _ => Watch { state, heartbeat_at: now, unchanged_checks: 0 },
            };
            let is_silent = now.since(watch.heartbeat_at) >= takeover_after;
            let has_failed = is_silent && watch.unchanged_checks >= UNCHANGED_CHECKS_MIN;
            Ok((Some(watch), has_ended || has_failed))
        })
        .await
    }

    /// Wakes the standby as soon as the leader's process ends.
    fn await_end(&self, epoch: Epoch, ended: &mpsc::Sender<()>) {
        let (epochs, ended) = (self.disk.epochs.clone(), ended.clone());
        // A separate thread, because it blocks for as long as the leader lives; it ends with the
        // process. If the thread cannot start, the checks notice the end a little later.
        let _ = std::thread::Builder::new().name("leader-watch".into()).spawn(move || {
            if epochs.wait_for_end(epoch).is_ok() {
                let _ = ended.try_send(());
            }
        });
    }

    async fn try_to_lead(
        &self,
        seen: Option<Watch>,
        context: &mut CampaignContext,
    ) -> Option<ElectedTerm<TermFiles, ExposureFiles>> {
        sleep(JITTER_MAX.mul_f64(fastrand::f64())).await;
        let (settings, disk, above) = (self.settings.clone(), self.disk.clone(), context.above());
        let taken = blocking(move || take_term(&settings, &disk, above, seen.as_ref())).await;
        match taken {
            Ok(term) => {
                let TakenTerm { taken, held, log, entries } = term?;
                context.errors.recover();
                let log = Arc::new(Mutex::new(log));
                let terms = TermFiles {
                    address: self.settings.address.clone(),
                    disk: self.disk.clone(),
                    held: Arc::new(Mutex::new(held)),
                    log: Arc::clone(&log),
                    progress: Arc::clone(&context.progress),
                };
                let folder = self.disk.folder.clone();
                Some(ElectedTerm {
                    taken,
                    terms,
                    exposures: ExposureFiles { folder, log, entries },
                })
            }
            Err(error) => {
                context.errors.report("cannot take a term", &error);
                sleep(PAUSE).await;
                None
            }
        }
    }

    fn set_health(&self, context: &CampaignContext) {
        set_health(&context.progress, &self.disk.folder);
    }
}

/// Fails the readiness probe while the state folder is not the one that this replica started with.
fn set_health(progress: &Progress, folder: &StateFolder) {
    progress.set_trouble(folder.lost());
}

/// Notifies the driver of the leader, if its claim can be read.
async fn notify(context: &mut CampaignContext, state: &EpochState) -> Result<(), Stopped> {
    let Some(Claim { identity, address, .. }) = &state.claim else { return Ok(()) };
    context.notify_leader(Some(address.clone()), Some(identity), Some(state.epoch)).await
}

impl TermStore for TermFiles {
    fn renew(&mut self) -> BoxFuture<'static, (Moment, Result<RenewalOutcome, String>)> {
        let Disk { folder, epochs } = self.disk.clone();
        let (held, log) = (Arc::clone(&self.held), Arc::clone(&self.log));
        Box::pin(blocking(move || {
            let sent_at = clock::now();
            let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
            if folder.check().is_err() && folder.lost().is_some() {
                save_to_current_folder(&folder, held.epoch, &log);
                return (sent_at, Ok(RenewalOutcome::Deposed));
            }
            let standing = epochs.renew(&mut held).map(|standing| match standing {
                epochs::RenewOutcome::Leads => RenewalOutcome::Leads,
                epochs::RenewOutcome::Deposed(by) => {
                    tracing::info!(epoch = held.epoch.0, by = by.0, "deposed");
                    RenewalOutcome::Deposed
                }
            });
            (sent_at, standing.map_err(|error| error.to_string()))
        }))
    }

    async fn on_lost(self, reason: LossReason, until: Moment) -> Successor {
        let epoch = self.held.lock().unwrap_or_else(PoisonError::into_inner).epoch;
        tracing::info!(epoch = epoch.0, ?reason, "no longer leads");
        set_health(&self.progress, &self.disk.folder);
        let Self { address: own, disk, held, .. } = self;
        unlock_at_end(held, until);
        let latest = blocking(move || disk.epochs.latest()).await.ok().flatten();
        let Some(EpochState { epoch, claim, .. }) = latest else { return Successor::default() };
        let address = claim.map(|claim| claim.address).filter(|address| *address != own);
        Successor { address, epoch: Some(epoch) }
    }

    /// Closes the files, which unlocks them.
    async fn release(self, _above: Epoch) -> Result<(), String> {
        Ok(())
    }
}

impl ExposureStore for ExposureFiles {
    /// A folder has no namespaces: it is asked for all entries, once.
    fn list(&mut self, _: Namespaces) -> BoxFuture<'static, Result<Listing, String>> {
        let exposed = std::mem::take(&mut self.entries);
        Box::pin(std::future::ready(Ok(Listing { exposed, unreadable: BTreeSet::new() })))
    }

    /// Writes to this term's own log, which no other leader writes to. The entries of the log
    /// before it were adopted when this one was opened.
    fn write(
        &mut self,
        attempts: Vec<EntryAttempt>,
    ) -> BoxFuture<'static, Vec<(EntryChange, EntryOutcome)>> {
        let (log, folder) = (Arc::clone(&self.log), self.folder.clone());
        let changes: Vec<_> = attempts.into_iter().map(|attempt| attempt.change).collect();
        Box::pin(blocking(move || {
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            let written = match folder.check().and_then(|()| log.write(&changes)) {
                Ok(()) => EntryOutcome::Done,
                Err(error) => {
                    tracing::warn!(error = error.to_string(), "cannot write the exposure log");
                    EntryOutcome::Failed
                }
            };
            changes.into_iter().map(|change| (change, written)).collect()
        }))
    }
}

/// Writes the leader's epoch and exposures into the folder that has replaced the state folder. A
/// replica that starts on it then takes no epoch twice, and knows what workers may hold.
fn save_to_current_folder(folder: &StateFolder, epoch: Epoch, log: &Mutex<ExposureLog>) {
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = log.write_to_current_folder() {
        tracing::error!(
            error = error.to_string(),
            "the state folder was replaced, and the exposure log cannot be written to the new one"
        );
    }
    mark_led(folder, epoch);
}

fn mark_led(folder: &StateFolder, epoch: Epoch) {
    if folder.lost().is_none() || epoch == Epoch::default() {
        return;
    }
    if let Err(error) = folder.mark_led(epoch) {
        let (epoch, error) = (epoch.0, error.to_string());
        tracing::warn!(epoch, error, "cannot write the last epoch into the new state folder");
    }
}

/// Unlocks the claim at the end of the term. The driver may grant until it has handled the
/// deposition, at most until then; an unlocked claim means that this leader has stopped.
fn unlock_at_end(held: Arc<Mutex<HeldEpoch>>, until: Moment) {
    let left = until.since(clock::now());
    tokio::spawn(async move {
        sleep(left).await;
        drop(held);
    });
}

/// Takes the next epoch, then reads its predecessors' exposures. `None` if another replica was
/// faster.
fn take_term(
    settings: &Settings,
    disk: &Disk,
    above: Epoch,
    seen: Option<&Watch>,
) -> io::Result<Option<TakenTerm>> {
    let Disk { folder, epochs } = disk;
    let claimed = epochs.highest()?.unwrap_or_default();
    let registered = exposure_log::highest(&settings.state_dir)?.unwrap_or_default();
    let seen_epoch = seen.map(|watch| watch.state.epoch).unwrap_or_default();
    if claimed > seen_epoch {
        // Another replica has taken the term since the leader failed.
        return Ok(None);
    }
    let known = claimed.max(registered).max(seen_epoch).max(above);
    let epoch = known.max(folder.before_first_epoch()).next();
    let leadership_ms = u64::try_from(settings.leadership.as_millis()).unwrap_or(u64::MAX);
    let claim = Claim {
        identity: settings.identity.clone(),
        address: settings.address.clone(),
        leadership_ms,
        id: fastrand::u64(1..),
    };
    let sent_at = clock::now();
    let Some(mut held) = epochs.take(epoch, &claim)? else { return Ok(None) };
    let mut log = ExposureLog::open(&settings.state_dir, epoch)?;
    let predecessor_end = predecessor_end(settings, epochs, epoch, seen, claimed < registered)?;
    // If the log cannot be written, this leader keeps its entries and adds none.
    let adopted = if log.write(&[]).is_ok() { epoch } else { Epoch::default() };
    if epochs.renew(&mut held)? != epochs::RenewOutcome::Leads {
        return Ok(None);
    }
    // Proves that everything above was read from the folder that this replica started with.
    folder.check()?;
    if let Err(error) = epochs.prune() {
        tracing::warn!(error = error.to_string(), "cannot remove old epochs");
    }
    let entry = |exposure: &_| Entry { epoch: adopted, exposure: Clone::clone(exposure) };
    let entries = log.entries().iter();
    let entries = entries.map(|(key, exposure)| (key.clone(), entry(exposure))).collect();
    let (term, cell) = (TermId(claim.id), Some(folder.cell()));
    let taken = TermTaken { epoch, term, cell, sent_at, predecessor_end };
    Ok(Some(TakenTerm { taken, held, log, entries }))
}

/// When every earlier leader has surely stopped. A leader whose process has ended or that has
/// unlocked its claim has stopped already. Any other one renewed for the last time before its last
/// heartbeat if that has not changed since, else before this epoch was taken.
fn predecessor_end(
    settings: &Settings,
    epochs: &Epochs,
    epoch: Epoch,
    seen: Option<&Watch>,
    claims_lost: bool,
) -> io::Result<Moment> {
    let unfinished_before = epochs.unfinished_before(epoch)?;
    let now = clock::now();
    let mut end = now;
    for (earlier, claim) in unfinished_before {
        let leadership = claim.as_ref().map_or(settings.leadership, Claim::leadership);
        let unchanged = seen.zip(claim.as_ref()).filter(|(seen, claim)| {
            seen.state.epoch == earlier
                && seen.state.claim.as_ref() == Some(claim)
                && epochs.heartbeat(earlier, claim) == seen.state.heartbeat
        });
        let renewed_before = unchanged.map_or(now, |(seen, _)| seen.heartbeat_at);
        end = end.max(renewed_before + settings.bounds.outlast(leadership));
    }
    if claims_lost {
        // The log proves a leader whose claim was removed by hand.
        end = end.max(now + settings.bounds.outlast(settings.leadership));
    }
    Ok(end)
}
