//! One replica's way through the election: it stands by, takes a term when there is no leader,
//! leads, and stands by again. It leads only from a check of the disk that began after it took the
//! term, and for a limited time after each check.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_coordinator_core::campaign::{
    Attempt, Change, LeadSettings, Standing, Taken, Written,
};
use leasehold_coordinator_core::event::Event;
use leasehold_coordinator_core::exposure::Entry;
use leasehold_driver::clock;
use leasehold_driver::health::Progress;
use leasehold_driver::leading::{Answer, Ended, Leading, Stores};
use leasehold_driver::platform::Command;
use leasehold_types::{Epoch, Moment, WorkerKey};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::epochs::{self, Claim, EpochState, Epochs, HeldEpoch};
use super::exposure_log::{self, ExposureLog};
use super::state_folder::StateFolder;
use super::{Settings, blocking};

/// Signs of life within the time after which a silent leader is replaced.
const BEATS: u32 = 8;
/// Checks in a row that must have found no heartbeat, however long they took.
const STILL_LOOKS_MIN: u32 = 4;
/// The longest and the shortest time between two checks of the disk.
const LOOK_MAX: Duration = Duration::from_millis(500);
const LOOK_MIN: Duration = Duration::from_millis(5);
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
    pub(crate) terms: Epochs,
}

/// One replica's campaign.
pub(crate) struct Campaign {
    settings: Settings,
    disk: Disk,
    events: mpsc::Sender<Event>,
    commands: mpsc::Receiver<Command>,
    /// Whether the driver goes on.
    progress: Arc<Progress>,
    /// The highest epoch that agents remember or that this replica has seen: the next must be
    /// above it, whatever the folder says by then.
    above: Epoch,
    /// The leader's address that was last sent to the driver.
    told: Option<String>,
    /// The last disk error that was logged.
    trouble: Trouble,
}

/// How a replica's time in one role has ended.
enum Next {
    Lead(Box<Won>),
    StandBy,
    End,
}

/// What a standby has seen of the leader.
#[derive(Clone, Debug)]
struct Watch {
    sight: EpochState,
    /// When the last sign of life was seen.
    moved_at: Moment,
    still_looks: u32,
}

/// A term that was won.
struct Won {
    taken: Taken,
    stores: TermFiles,
}

/// The files of one term, as its leader has them open. The claim and the exposure log are apart: a
/// slow write to the log delays no heartbeat.
struct TermFiles {
    disk: Disk,
    held: Arc<Mutex<HeldEpoch>>,
    register: Arc<Mutex<ExposureLog>>,
    /// The entries of the log, and whether all of them are in this term's log.
    entries: BTreeMap<WorkerKey, Entry>,
    trouble: Trouble,
}

/// The last disk error that was logged.
#[derive(Clone, Debug, Default)]
struct Trouble(Option<String>);

impl Campaign {
    pub(crate) fn new(
        settings: Settings,
        disk: Disk,
        events: mpsc::Sender<Event>,
        commands: mpsc::Receiver<Command>,
        progress: Arc<Progress>,
    ) -> Self {
        let above = Epoch::default();
        let trouble = Trouble::default();
        Self { settings, disk, events, commands, progress, above, told: None, trouble }
    }

    /// Runs until the driver is gone or the replica has resigned. It takes no term before `ready`.
    pub(crate) async fn run(mut self, ready: oneshot::Receiver<()>) {
        let mut ready = Some(ready);
        let mut next = Next::StandBy;
        loop {
            next = match next {
                Next::StandBy => self.stand_by(&mut ready).await,
                Next::Lead(won) => self.lead(*won).await,
                Next::End => return,
            }
        }
    }

    async fn stand_by(&mut self, ready: &mut Option<oneshot::Receiver<()>>) -> Next {
        let period = (self.settings.takeover_after / BEATS).clamp(LOOK_MIN, LOOK_MAX);
        let mut looks = interval(period);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (over, mut overs) = mpsc::channel(1);
        let mut watch: Option<Watch> = None;
        let mut awaited = None;
        self.told = None;
        loop {
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    None => return Next::End,
                    Some(Command::Resign(done)) => {
                        let _ = done.send(());
                        return Next::End;
                    }
                    // Meant for a term that is over.
                    Some(Command::Order { order, .. }) => self.stay_above(order.above()),
                },
                () = self.events.closed() => return Next::End,
                _ = overs.recv() => awaited = None,
                _ = looks.tick() => {}
                manifests = wait_ready(ready) => match manifests {
                    Ok(()) => *ready = None,
                    Err(_) => return Next::End,
                },
            }
            match self.look(watch.take()).await {
                Err(error) => {
                    // A replaced folder was logged already.
                    if self.disk.folder.lost().is_none() {
                        self.trouble.fails(&error, "cannot read the state folder");
                    }
                    self.tell_health();
                    sleep(PAUSE).await;
                }
                Ok((seen, vacant)) => {
                    self.tell_health();
                    if let Some(seen) = &seen {
                        self.stay_above(Some(seen.sight.epoch));
                        if awaited != Some(seen.sight.epoch) && !vacant {
                            self.await_end(seen.sight.epoch, &over);
                            awaited = Some(seen.sight.epoch);
                        }
                        if !vacant && self.tell(&seen.sight).await.is_err() {
                            return Next::End;
                        }
                    }
                    if vacant && ready.is_none() {
                        match self.try_to_lead(seen.clone()).await {
                            None => {}
                            Some(next) => return next,
                        }
                    }
                    watch = seen;
                }
            }
        }
    }

    /// Reads who leads, and whether that leader has failed.
    async fn look(&self, last: Option<Watch>) -> io::Result<(Option<Watch>, bool)> {
        let (Disk { folder, terms }, above) = (self.disk.clone(), self.above);
        let takeover_after = self.settings.takeover_after;
        blocking(move || {
            // The first time the leader, which knows more, is left to write it down.
            let was_lost = folder.lost().is_some();
            folder.check().inspect_err(|_| {
                if was_lost {
                    mark_led(&folder, above);
                }
            })?;
            let Some(sight) = terms.latest()? else { return Ok((None, true)) };
            let over = terms.is_over(sight.epoch);
            let now = clock::now();
            let watch = match last {
                Some(last) if last.sight == sight => {
                    Watch { still_looks: last.still_looks + 1, ..last }
                }
                _ => Watch { sight, moved_at: now, still_looks: 0 },
            };
            let still = now.since(watch.moved_at) >= takeover_after;
            let hung = still && watch.still_looks >= STILL_LOOKS_MIN;
            Ok((Some(watch), over || hung))
        })
        .await
    }

    /// Has the end of a leader's process wake the standby at once.
    fn await_end(&self, epoch: Epoch, over: &mpsc::Sender<()>) {
        let (terms, over) = (self.disk.terms.clone(), over.clone());
        // A thread of its own: it may wait for as long as the leader lives, and ends with the
        // process. If the thread cannot start, the checks find the same a little later.
        let _ = std::thread::Builder::new().name("leader-watch".into()).spawn(move || {
            if terms.wait_for_end(epoch).is_ok() {
                let _ = over.try_send(());
            }
        });
    }

    /// Notifies the driver of the leader when it has changed.
    async fn tell(&mut self, sight: &EpochState) -> Result<(), ()> {
        let leader = sight.claim.as_ref().map(|claim| claim.address.clone());
        if leader.is_none() || leader == self.told {
            return Ok(());
        }
        self.told.clone_from(&leader);
        tracing::info!(leader, epoch = sight.epoch.0, "another replica leads");
        self.events.send(Event::Deposed { leader }).await.map_err(|_| ())
    }

    async fn try_to_lead(&mut self, seen: Option<Watch>) -> Option<Next> {
        sleep(JITTER_MAX.mul_f64(fastrand::f64())).await;
        let (settings, disk, above) = (self.settings.clone(), self.disk.clone(), self.above);
        let won = blocking(move || take_term(&settings, &disk, above, seen.as_ref())).await;
        match won {
            Ok(won) => {
                let won = won?;
                self.trouble.recovers();
                Some(Next::Lead(Box::new(won)))
            }
            Err(error) => {
                self.trouble.fails(&error, "cannot take a term");
                sleep(PAUSE).await;
                None
            }
        }
    }

    async fn lead(&mut self, won: Won) -> Next {
        let Won { taken, mut stores } = won;
        self.stay_above(Some(taken.epoch));
        let period = (self.settings.takeover_after / BEATS).min(self.settings.leadership / 10);
        let settings = LeadSettings {
            leadership: self.settings.leadership,
            renew_every: period.clamp(LOOK_MIN, Duration::from_secs(1)),
            batch_max: BATCH_MAX,
            batches_max: 1,
        };
        let (events, commands) = (&self.events, &mut self.commands);
        let mut leading =
            Leading::new(settings, taken, &mut stores, events, commands, &self.progress);
        let ended = leading.run().await;
        let until = leading.until();
        match ended {
            Ended::DriverGone => Next::End,
            Ended::Deposed | Ended::Expired => {
                tracing::info!(epoch = taken.epoch.0, ?ended, "no longer leads");
                self.tell_health();
                let_go_at_end(stores.held, until);
                self.deposed().await
            }
            Ended::GivenUp { above } => {
                self.stay_above(above);
                let told = self.events.send(Event::Deposed { leader: None }).await;
                if told.is_ok() { Next::StandBy } else { Next::End }
            }
            Ended::Resign(done) => {
                tracing::info!(epoch = taken.epoch.0, "resigned");
                drop(stores);
                let _ = done.send(());
                Next::End
            }
        }
    }

    async fn deposed(&mut self) -> Next {
        let terms = self.disk.terms.clone();
        let sight = blocking(move || terms.latest()).await.ok().flatten();
        let leader = sight.and_then(|sight| sight.claim).map(|claim| claim.address);
        let leader = leader.filter(|address| *address != self.settings.address);
        match self.events.send(Event::Deposed { leader }).await {
            Ok(()) => Next::StandBy,
            Err(_) => Next::End,
        }
    }

    /// Sets the health probes: whether the folder is still the one that this replica began with.
    fn tell_health(&self) {
        self.progress.set_trouble(self.disk.folder.lost());
    }

    fn stay_above(&mut self, above: Option<Epoch>) {
        self.above = self.above.max(above.unwrap_or_default());
    }
}

impl Trouble {
    fn fails(&mut self, error: &dyn std::fmt::Display, what: &'static str) {
        let text = error.to_string();
        if self.0.as_ref() != Some(&text) {
            tracing::error!(error = text, "{what}");
            self.0 = Some(text);
        }
    }

    fn recovers(&mut self) {
        if self.0.take().is_some() {
            tracing::info!("the state folder works again");
        }
    }
}

impl Stores for TermFiles {
    fn renew(&mut self) -> Answer<(Moment, Result<Standing, String>)> {
        let Disk { folder, terms } = self.disk.clone();
        let (held, register) = (Arc::clone(&self.held), Arc::clone(&self.register));
        Box::pin(blocking(move || {
            let sent_at = clock::now();
            let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
            if folder.check().is_err() && folder.lost().is_some() {
                leave_behind(&folder, held.epoch, &register);
                return (sent_at, Ok(Standing::Deposed));
            }
            let standing = terms.renew(&mut held).map(|standing| match standing {
                epochs::RenewOutcome::Leads => Standing::Leads,
                epochs::RenewOutcome::Deposed(by) => {
                    tracing::info!(epoch = held.epoch.0, by = by.0, "deposed");
                    Standing::Deposed
                }
            });
            (sent_at, standing.map_err(|error| error.to_string()))
        }))
    }

    fn list(&mut self) -> Answer<Result<BTreeMap<WorkerKey, Entry>, String>> {
        let entries = std::mem::take(&mut self.entries);
        Box::pin(std::future::ready(Ok(entries)))
    }

    /// Writes to this term's own log, which no other leader writes to: what could not be read in
    /// the one before it was adopted when this one was begun.
    fn write(&mut self, attempts: Vec<Attempt>) -> Answer<Vec<(Change, Written)>> {
        let (register, folder) = (Arc::clone(&self.register), self.disk.folder.clone());
        let changes: Vec<_> = attempts.into_iter().map(|attempt| attempt.change).collect();
        Box::pin(blocking(move || {
            let mut register = register.lock().unwrap_or_else(PoisonError::into_inner);
            let written = match folder.check().and_then(|()| register.write(&changes)) {
                Ok(()) => Written::Done,
                Err(error) => {
                    tracing::warn!(error = error.to_string(), "cannot write the exposure log");
                    Written::Failed
                }
            };
            changes.into_iter().map(|change| (change, written)).collect()
        }))
    }

    fn fails(&mut self, what: &'static str, why: &str) {
        self.trouble.fails(&why, what);
    }

    fn works(&mut self) {
        self.trouble.recovers();
    }
}

/// The folder is another one: what a leader knows is written into what is there now, so that a
/// replica that starts on it takes no epoch again, and knows which workers may hold what.
fn leave_behind(folder: &StateFolder, epoch: Epoch, register: &Mutex<ExposureLog>) {
    let mut register = register.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = register.leave_behind() {
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

/// Waits for the first desired state; never resolves after that.
async fn wait_ready(
    ready: &mut Option<oneshot::Receiver<()>>,
) -> Result<(), oneshot::error::RecvError> {
    match ready {
        Some(ready) => ready.await,
        None => std::future::pending().await,
    }
}

/// Takes the next epoch, then reads what its predecessors left. None where another was faster.
fn take_term(
    settings: &Settings,
    disk: &Disk,
    above: Epoch,
    seen: Option<&Watch>,
) -> io::Result<Option<Won>> {
    let Disk { folder, terms } = disk;
    let claimed = terms.highest()?.unwrap_or_default();
    let registered = exposure_log::highest(&settings.state_dir)?.unwrap_or_default();
    let seen_epoch = seen.map(|watch| watch.sight.epoch).unwrap_or_default();
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
    let Some(mut held) = terms.take(epoch, &claim)? else { return Ok(None) };
    let mut register = ExposureLog::open(&settings.state_dir, epoch)?;
    let predecessor_end = predecessor_end(settings, terms, epoch, seen, claimed < registered)?;
    // If the log cannot be written, this leader keeps its entries and adds none.
    let adopted = if register.write(&[]).is_ok() { epoch } else { Epoch::default() };
    if terms.renew(&mut held)? != epochs::RenewOutcome::Leads {
        return Ok(None);
    }
    // Proves that everything above was read from the folder that this replica began with.
    folder.check()?;
    if let Err(error) = terms.prune() {
        tracing::warn!(error = error.to_string(), "cannot remove old epochs");
    }
    let entry = |exposure: &_| Entry { epoch: adopted, exposure: Clone::clone(exposure) };
    let entries = register.entries().iter();
    let entries = entries.map(|(key, exposure)| (key.clone(), entry(exposure))).collect();
    let stores = TermFiles {
        disk: disk.clone(),
        held: Arc::new(Mutex::new(held)),
        register: Arc::new(Mutex::new(register)),
        entries,
        trouble: Trouble::default(),
    };
    Ok(Some(Won { taken: Taken { epoch, sent_at, predecessor_end }, stores }))
}

/// When every earlier leader has surely stopped. One whose process has ended or that has given up
/// its place has stopped already. One that may live renewed for the last time before its last sign
/// of life, if there was none since, else before this epoch was taken.
fn predecessor_end(
    settings: &Settings,
    terms: &Epochs,
    epoch: Epoch,
    seen: Option<&Watch>,
    claims_lost: bool,
) -> io::Result<Moment> {
    let unfinished_before = terms.unfinished_before(epoch)?;
    let now = clock::now();
    let mut end = now;
    for (earlier, claim) in unfinished_before {
        let leadership = claim.as_ref().map_or(settings.leadership, Claim::leadership);
        let still = seen.zip(claim.as_ref()).filter(|(seen, claim)| {
            seen.sight.epoch == earlier
                && seen.sight.claim.as_ref() == Some(claim)
                && terms.heartbeat(earlier, claim) == seen.sight.heartbeat
        });
        let renewed_before = still.map_or(now, |(seen, _)| seen.moved_at);
        end = end.max(renewed_before + settings.bounds.outlast(leadership));
    }
    if claims_lost {
        // The log proves a leader whose claim was removed by hand.
        end = end.max(now + settings.bounds.outlast(settings.leadership));
    }
    Ok(end)
}
