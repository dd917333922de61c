//! One replica's way through the election: it stands by, takes a term when there is no leader,
//! leads, and stands by again. It leads only from a check of the disk that began after it took the
//! term, and for a limited time after each check.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_coordinator_core::campaign::{
    EntryAttempt, EntryChange, EntryOutcome, LeadSettings, RenewalOutcome, TermTaken,
};
use leasehold_coordinator_core::exposure::Entry;
use leasehold_driver::campaign::{
    Answer, Candidate, ExposureStore, Loss, Replica, Stopped, Successor, TermStore, Won, wait_ready,
};
use leasehold_driver::clock;
use leasehold_driver::health::Progress;
use leasehold_driver::platform::Command;
use leasehold_types::{Epoch, Moment, WorkerKey};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::epochs::{self, Claim, EpochState, Epochs, HeldEpoch};
use super::exposure_log::{self, ExposureLog};
use super::state_folder::StateFolder;
use super::{Settings, blocking};

/// Signs of life within the time after which a silent leader is replaced.
const BEATS: u32 = 8;
/// Checks in a row that must have found no heartbeat, however long they took.
const UNCHANGED_CHECKS_MIN: u32 = 4;
/// The longest and the shortest time between two checks of the disk.
const CHECK_MAX: Duration = Duration::from_millis(500);
const CHECK_MIN: Duration = Duration::from_millis(5);
/// Candidates wait for a random part of this, so that one is first.
const JITTER_MAX: Duration = Duration::from_millis(10);
/// The pause after an attempt that the disk did not let happen.
const PAUSE: Duration = Duration::from_secs(1);
/// The most changes in one write to the exposure log.
const BATCH_MAX: usize = 4_096;

/// What replicas share on disk.
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

/// What a standby has seen of the leader.
#[derive(Clone, Debug)]
struct Watch {
    state: EpochState,
    /// When the last sign of life was seen.
    heartbeat_at: Moment,
    unchanged_checks: u32,
}

/// The claim of one term, as its leader has it open. The exposure log is apart: a slow write to the
/// log delays no heartbeat.
pub(crate) struct TermFiles {
    address: String,
    disk: Disk,
    held: Arc<Mutex<HeldEpoch>>,
    log: Arc<Mutex<ExposureLog>>,
    progress: Arc<Progress>,
}

/// The exposure log of one term, as its leader has it open.
pub(crate) struct ExposureFiles {
    folder: StateFolder,
    log: Arc<Mutex<ExposureLog>>,
    /// The entries of the log, and whether all of them are in this term's log.
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
        replica: &mut Replica,
    ) -> Result<Won<TermFiles, ExposureFiles>, Stopped> {
        let period = (self.settings.takeover_after / BEATS).clamp(CHECK_MIN, CHECK_MAX);
        let mut checks = interval(period);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (over, mut overs) = mpsc::channel(1);
        let mut watch: Option<Watch> = None;
        let mut awaited = None;
        loop {
            tokio::select! {
                biased;
                command = replica.commands.recv() => match command {
                    None => return Err(Stopped),
                    Some(Command::Resign(done)) => {
                        let _ = done.send(());
                        return Err(Stopped);
                    }
                    // Meant for a term that is over.
                    Some(Command::Order { order, .. }) => replica.raise_above(order.above()),
                },
                () = replica.events.closed() => return Err(Stopped),
                _ = overs.recv() => awaited = None,
                _ = checks.tick() => {}
                ready = wait_ready(&mut replica.ready) => {
                    ready?;
                    replica.ready = None;
                }
            }
            match self.check(watch.take(), replica.above()).await {
                Err(error) => {
                    // A replaced folder was logged already.
                    if self.disk.folder.lost().is_none() {
                        replica.errors.report("cannot read the state folder", &error);
                    }
                    self.set_health(replica);
                    sleep(PAUSE).await;
                }
                Ok((seen, vacant)) => {
                    self.set_health(replica);
                    if let Some(seen) = &seen {
                        replica.raise_above(Some(seen.state.epoch));
                        if awaited != Some(seen.state.epoch) && !vacant {
                            self.await_end(seen.state.epoch, &over);
                            awaited = Some(seen.state.epoch);
                        }
                        if !vacant {
                            notify(replica, &seen.state).await?;
                        }
                    }
                    if vacant
                        && replica.ready.is_none()
                        && let Some(won) = self.try_to_lead(seen.clone(), replica).await
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
            // The first time the leader, which knows more, is left to write it down.
            let was_lost = folder.lost().is_some();
            folder.check().inspect_err(|_| {
                if was_lost {
                    mark_led(&folder, above);
                }
            })?;
            let Some(state) = epochs.latest()? else { return Ok((None, true)) };
            let over = epochs.is_over(state.epoch);
            let now = clock::now();
            let watch = match last {
                Some(last) if last.state == state => {
                    Watch { unchanged_checks: last.unchanged_checks + 1, ..last }
                }
                _ => Watch { state, heartbeat_at: now, unchanged_checks: 0 },
            };
            let still = now.since(watch.heartbeat_at) >= takeover_after;
            let hung = still && watch.unchanged_checks >= UNCHANGED_CHECKS_MIN;
            Ok((Some(watch), over || hung))
        })
        .await
    }

    /// Has the end of a leader's process wake the standby at once.
    fn await_end(&self, epoch: Epoch, over: &mpsc::Sender<()>) {
        let (epochs, over) = (self.disk.epochs.clone(), over.clone());
        // A thread of its own: it may wait for as long as the leader lives, and ends with the
        // process. If the thread cannot start, the checks find the same a little later.
        let _ = std::thread::Builder::new().name("leader-watch".into()).spawn(move || {
            if epochs.wait_for_end(epoch).is_ok() {
                let _ = over.try_send(());
            }
        });
    }

    async fn try_to_lead(
        &self,
        seen: Option<Watch>,
        replica: &mut Replica,
    ) -> Option<Won<TermFiles, ExposureFiles>> {
        sleep(JITTER_MAX.mul_f64(fastrand::f64())).await;
        let (settings, disk, above) = (self.settings.clone(), self.disk.clone(), replica.above());
        let taken = blocking(move || take_term(&settings, &disk, above, seen.as_ref())).await;
        match taken {
            Ok(term) => {
                let TakenTerm { taken, held, log, entries } = term?;
                replica.errors.recover();
                let log = Arc::new(Mutex::new(log));
                let terms = TermFiles {
                    address: self.settings.address.clone(),
                    disk: self.disk.clone(),
                    held: Arc::new(Mutex::new(held)),
                    log: Arc::clone(&log),
                    progress: Arc::clone(&replica.progress),
                };
                let folder = self.disk.folder.clone();
                Some(Won { taken, terms, exposures: ExposureFiles { folder, log, entries } })
            }
            Err(error) => {
                replica.errors.report("cannot take a term", &error);
                sleep(PAUSE).await;
                None
            }
        }
    }

    fn set_health(&self, replica: &Replica) {
        set_health(&replica.progress, &self.disk.folder);
    }
}

/// Sets the health probes: whether the folder is still the one that this replica began with.
fn set_health(progress: &Progress, folder: &StateFolder) {
    progress.set_trouble(folder.lost());
}

/// Notifies the driver of the leader, if its claim can be read.
async fn notify(replica: &mut Replica, state: &EpochState) -> Result<(), Stopped> {
    let Some(Claim { identity, address, .. }) = &state.claim else { return Ok(()) };
    replica.notify_leader(Some(address.clone()), Some(identity), Some(state.epoch)).await
}

impl TermStore for TermFiles {
    fn renew(&mut self) -> Answer<(Moment, Result<RenewalOutcome, String>)> {
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

    async fn lost(self, loss: Loss, until: Moment) -> Successor {
        let epoch = self.held.lock().unwrap_or_else(PoisonError::into_inner).epoch;
        tracing::info!(epoch = epoch.0, ?loss, "no longer leads");
        set_health(&self.progress, &self.disk.folder);
        let Self { address: own, disk, held, .. } = self;
        let_go_at_end(held, until);
        let latest = blocking(move || disk.epochs.latest()).await.ok().flatten();
        let address = latest.and_then(|latest| latest.claim).map(|claim| claim.address);
        Successor { address: address.filter(|address| *address != own), epoch: None }
    }

    /// Closes the files, which unlocks them.
    async fn release(self, _above: Epoch) -> Result<(), String> {
        Ok(())
    }
}

impl ExposureStore for ExposureFiles {
    fn list(&mut self) -> Answer<Result<BTreeMap<WorkerKey, Entry>, String>> {
        let entries = std::mem::take(&mut self.entries);
        Box::pin(std::future::ready(Ok(entries)))
    }

    /// Writes to this term's own log, which no other leader writes to: entries that could not be
    /// read in the one before it were adopted when this one was begun.
    fn write(&mut self, attempts: Vec<EntryAttempt>) -> Answer<Vec<(EntryChange, EntryOutcome)>> {
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

/// The folder is another one: what a leader knows is written into what is there now, so that a
/// replica that starts on it takes no epoch again, and knows which workers may hold what.
fn save_to_current_folder(folder: &StateFolder, epoch: Epoch, log: &Mutex<ExposureLog>) {
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = log.write_to_current_folder() {
        tracing::error!(
            error = error.to_string(),
            "the exposure log is lost with the state folder"
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
        tracing::warn!(epoch, error, "cannot write the last epoch into the folder");
    }
}

/// The driver may grant until it has taken in that it is deposed, at most until the term's end.
/// Only then may others take this leader for ended.
fn let_go_at_end(held: Arc<Mutex<HeldEpoch>>, until: Moment) {
    let left = until.since(clock::now());
    tokio::spawn(async move {
        sleep(left).await;
        drop(held);
    });
}

/// Takes the next epoch, then reads what its predecessors left. None where another was faster.
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
    let epoch = claimed.max(registered).max(seen_epoch).max(above).next();
    let leadership_ms = u64::try_from(settings.leadership.as_millis()).unwrap_or(u64::MAX);
    let claim = Claim {
        identity: settings.identity.clone(),
        address: settings.address.clone(),
        leadership_ms,
        id: fastrand::u64(..),
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
    // Proves that everything above was read from the folder that this replica began with.
    folder.check()?;
    if let Err(error) = epochs.prune() {
        tracing::warn!(error = error.to_string(), "cannot remove old epochs");
    }
    let entry = |exposure: &_| Entry { epoch: adopted, exposure: Clone::clone(exposure) };
    let entries = log.entries().iter();
    let entries = entries.map(|(key, exposure)| (key.clone(), entry(exposure))).collect();
    let taken = TermTaken { epoch, sent_at, predecessor_end };
    Ok(Some(TakenTerm { taken, held, log, entries }))
}

/// When every earlier leader has surely stopped. One whose process has ended or that has given up
/// its place has stopped already. One that may live renewed for the last time before its last sign
/// of life, if there was none since, else before this epoch was taken.
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
        let still = seen.zip(claim.as_ref()).filter(|(seen, claim)| {
            seen.state.epoch == earlier
                && seen.state.claim.as_ref() == Some(claim)
                && epochs.heartbeat(earlier, claim) == seen.state.heartbeat
        });
        let renewed_before = still.map_or(now, |(seen, _)| seen.heartbeat_at);
        end = end.max(renewed_before + settings.bounds.outlast(leadership));
    }
    if claims_lost {
        // The log proves a leader whose claim was removed by hand.
        end = end.max(now + settings.bounds.outlast(settings.leadership));
    }
    Ok(end)
}
