//! One replica's way through the election: it stands by, takes a term when there is no leader,
//! leads, and stands by again. It says that it leads only from a look at the disk that it began
//! afterwards at the latest; what it says is over when that time is.

use std::io;
use std::time::Duration;

use leasehold_coordinator_core::event::{Elected, Event, Exposure, Renewed};
use leasehold_types::{Epoch, Moment, WorkerKey};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::Settings;
use super::blocking;
use super::register::{self, Change, Register};
use super::terms::{Claim, Seat, Sight, Standing, Terms};
use crate::clock;
use crate::platform::Command;

/// Signs of life within the time after which a silent leader is replaced.
const BEATS: u32 = 8;
/// Looks in a row that must have found no sign of life, however long they took.
const STILL_LOOKS_MIN: u32 = 4;
/// The longest and the shortest time between two looks at the disk.
const LOOK_MAX: Duration = Duration::from_millis(500);
const LOOK_MIN: Duration = Duration::from_millis(5);
/// Candidates wait for a random part of this, so that one is first.
const JITTER_MAX: Duration = Duration::from_millis(10);
/// The pause after an attempt that the disk did not let happen.
const PAUSE: Duration = Duration::from_secs(1);

/// One replica's campaign.
pub(crate) struct Campaign {
    settings: Settings,
    terms: Terms,
    events: mpsc::Sender<Event>,
    commands: mpsc::Receiver<Command>,
    /// An epoch that agents remember: the next must be above it.
    above: Epoch,
    /// The leader's address that the driver was told last.
    told: Option<String>,
    /// What is wrong with the disk, said once.
    trouble: Option<String>,
}

/// How a replica's time in one role has ended.
enum Next {
    Lead(Box<Lead>),
    StandBy,
    End,
}

/// What a leader has in its hands.
struct Lead {
    seat: Seat,
    register: Register,
    until: Moment,
    /// Written down or about to be, and not yet said to be registered.
    unsaid: Vec<(WorkerKey, Exposure)>,
    /// Changes not yet on disk wait in the register.
    unwritten: bool,
}

/// What a standby has seen of the leader.
#[derive(Clone, Debug)]
struct Watch {
    sight: Sight,
    /// When the last sign of life was seen.
    moved_at: Moment,
    still_looks: u32,
}

/// A term that was won.
struct Won {
    lead: Box<Lead>,
    elected: Elected,
}

impl Campaign {
    pub(crate) fn new(
        settings: Settings,
        terms: Terms,
        events: mpsc::Sender<Event>,
        commands: mpsc::Receiver<Command>,
    ) -> Self {
        let above = Epoch::default();
        Self { settings, terms, events, commands, above, told: None, trouble: None }
    }

    /// Runs until the driver is gone or the replica has resigned. It takes no term before `ready`.
    pub(crate) async fn run(mut self, ready: oneshot::Receiver<()>) {
        let mut ready = Some(ready);
        let mut next = Next::StandBy;
        loop {
            next = match next {
                Next::StandBy => self.stand_by(&mut ready).await,
                Next::Lead(lead) => self.lead(lead).await,
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
                    Some(Command::StepDown { above }) => self.stay_above(above),
                    // Meant for a term that is over.
                    Some(Command::Register(_) | Command::Unregister(_) | Command::Confirm) => {}
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
                    self.fails(&error, "the state folder cannot be read");
                    sleep(PAUSE).await;
                }
                Ok((seen, vacant)) => {
                    if let Some(seen) = &seen {
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

    /// Looks who leads, and whether nobody does any more.
    async fn look(&self, last: Option<Watch>) -> io::Result<(Option<Watch>, bool)> {
        let terms = self.terms.clone();
        let takeover_after = self.settings.takeover_after;
        blocking(move || {
            let Some(sight) = terms.sight()? else { return Ok((None, true)) };
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
        let (terms, over) = (self.terms.clone(), over.clone());
        // A thread of its own: it may wait for as long as the leader lives, and ends with the
        // process. Where it cannot start, the looks find the same a little later.
        let _ = std::thread::Builder::new().name("leader-watch".into()).spawn(move || {
            if terms.wait_for_end(epoch).is_ok() {
                let _ = over.try_send(());
            }
        });
    }

    /// Tells the driver who leads, when that has changed.
    async fn tell(&mut self, sight: &Sight) -> Result<(), ()> {
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
        let (settings, terms, above) = (self.settings.clone(), self.terms.clone(), self.above);
        let won = blocking(move || take_term(&settings, &terms, above, seen.as_ref())).await;
        let Won { lead, elected } = match won {
            Ok(won) => won?,
            Err(error) => {
                self.fails(&error, "no term can be taken");
                sleep(PAUSE).await;
                return None;
            }
        };
        self.recovers();
        let workers = elected.exposed.len();
        tracing::info!(epoch = elected.epoch.0, exposed = workers, "elected");
        match self.events.send(Event::Elected(elected)).await {
            Ok(()) => Some(Next::Lead(lead)),
            Err(_) => Some(Next::End),
        }
    }

    async fn lead(&mut self, mut lead: Box<Lead>) -> Next {
        let period = (self.settings.takeover_after / BEATS).min(self.settings.leadership / 10);
        let period = period.clamp(LOOK_MIN, Duration::from_secs(1));
        let mut beats = interval(period);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                biased;
                _ = beats.tick() => {}
                command = self.commands.recv() => match command {
                    None => return Next::End,
                    Some(command) => batch.push(command),
                },
                () = self.events.closed() => return Next::End,
            }
            while let Ok(command) = self.commands.try_recv() {
                batch.push(command);
            }
            let mut changes = Vec::new();
            for command in batch {
                match command {
                    Command::Confirm => {}
                    Command::Register(entries) => {
                        lead.unsaid.extend(entries.iter().cloned());
                        changes.extend(entries.into_iter().map(|(key, e)| Change::Enter(key, e)));
                    }
                    Command::Unregister(keys) => {
                        changes.extend(keys.into_iter().map(Change::Strike));
                    }
                    Command::StepDown { above } => {
                        self.stay_above(above);
                        tracing::info!(epoch = lead.seat.epoch.0, ?above, "leadership given up");
                        let told = self.events.send(Event::Deposed { leader: None }).await;
                        return if told.is_ok() { Next::StandBy } else { Next::End };
                    }
                    Command::Resign(done) => {
                        tracing::info!(epoch = lead.seat.epoch.0, "resigned");
                        drop(lead);
                        let _ = done.send(());
                        return Next::End;
                    }
                }
            }
            lead = match self.renew(lead, changes).await {
                Ok(lead) => lead,
                Err(next) => return next,
            };
        }
    }

    /// Writes what is to be written, then renews, then says both.
    async fn renew(
        &mut self,
        mut lead: Box<Lead>,
        changes: Vec<Change>,
    ) -> Result<Box<Lead>, Next> {
        let terms = self.terms.clone();
        let (lead_back, sent_at, standing) = blocking(move || {
            let mut written = Ok(());
            if lead.unwritten || !changes.is_empty() {
                written = lead.register.write(&changes);
                lead.unwritten = written.is_err();
            }
            let sent_at = clock::now();
            // What could not be written does not keep the leader from leading.
            let standing = terms.renew(&mut lead.seat);
            (lead, sent_at, standing.map(|standing| (standing, written)))
        })
        .await;
        let mut lead = lead_back;
        let epoch = lead.seat.epoch;
        match standing {
            Ok((Standing::Leads, written)) => {
                lead.until = sent_at + self.settings.leadership;
                let renewed = Renewed { epoch, sent_at, until: lead.until };
                self.events.send(Event::Renewed(renewed)).await.map_err(|_| Next::End)?;
                match written {
                    Err(error) => self.fails(&error, "workers cannot be registered"),
                    Ok(()) => {
                        self.recovers();
                        let said = std::mem::take(&mut lead.unsaid);
                        if !said.is_empty() {
                            let said = Event::Registered(said);
                            self.events.send(said).await.map_err(|_| Next::End)?;
                        }
                    }
                }
                Ok(lead)
            }
            Ok((Standing::Deposed(by), _)) => {
                tracing::info!(epoch = epoch.0, by = by.0, "deposed");
                let_go_at_end(*lead);
                Err(self.deposed().await)
            }
            Err(error) => {
                self.fails(&error, "leadership cannot be renewed");
                if clock::now() < lead.until {
                    return Ok(lead);
                }
                let_go_at_end(*lead);
                Err(self.deposed().await)
            }
        }
    }

    async fn deposed(&mut self) -> Next {
        let terms = self.terms.clone();
        let sight = blocking(move || terms.sight()).await.ok().flatten();
        let leader = sight.and_then(|sight| sight.claim).map(|claim| claim.address);
        let leader = leader.filter(|address| *address != self.settings.address);
        match self.events.send(Event::Deposed { leader }).await {
            Ok(()) => Next::StandBy,
            Err(_) => Next::End,
        }
    }

    fn stay_above(&mut self, above: Option<Epoch>) {
        self.above = self.above.max(above.unwrap_or_default());
    }

    fn fails(&mut self, error: &io::Error, what: &'static str) {
        let text = error.to_string();
        if self.trouble.as_ref() != Some(&text) {
            tracing::error!(error = text, "{what}");
            self.trouble = Some(text);
        }
    }

    fn recovers(&mut self) {
        if self.trouble.take().is_some() {
            tracing::info!("the state folder works again");
        }
    }
}

/// The driver may grant until it has taken in that it is deposed, at most until the term's end.
/// Only then may others take this leader for ended.
fn let_go_at_end(lead: Lead) {
    let left = lead.until.since(clock::now());
    let alive = lead.seat.into_alive();
    tokio::spawn(async move {
        sleep(left).await;
        drop(alive);
    });
}

/// Never ends once it is known what is wanted.
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
    terms: &Terms,
    above: Epoch,
    seen: Option<&Watch>,
) -> io::Result<Option<Won>> {
    let claimed = terms.highest()?.unwrap_or_default();
    let registered = register::highest(&settings.state_dir)?.unwrap_or_default();
    let seen_epoch = seen.map(|watch| watch.sight.epoch).unwrap_or_default();
    if claimed > seen_epoch {
        // Somebody has taken the place since it was seen to be vacant: that one leads.
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
    let Some(mut seat) = terms.take(epoch, &claim)? else { return Ok(None) };
    let mut register = Register::open(&settings.state_dir, epoch)?;
    let predecessor_end = predecessor_end(settings, terms, epoch, seen, claimed < registered)?;
    // Where it cannot be written yet, this leader leads those who are in it, and registers nobody.
    let unwritten = register.write(&[]).is_err();
    if terms.renew(&mut seat)? != Standing::Leads {
        return Ok(None);
    }
    if let Err(error) = terms.prune() {
        tracing::warn!(error = error.to_string(), "old epochs cannot be removed");
    }
    let until = sent_at + settings.leadership;
    let exposed = register.entries().clone();
    let lead = Lead { seat, register, until, unsaid: Vec::new(), unwritten };
    let elected = Elected { epoch, until, predecessor_end, exposed };
    Ok(Some(Won { lead: Box::new(lead), elected }))
}

/// When every earlier leader has surely stopped. One whose process has ended or that has given up
/// its place has stopped already. One that may live renewed for the last time before its last sign
/// of life, if there was none since, else before this epoch was taken.
fn predecessor_end(
    settings: &Settings,
    terms: &Terms,
    epoch: Epoch,
    seen: Option<&Watch>,
    claims_lost: bool,
) -> io::Result<Moment> {
    let lingering = terms.lingering(epoch)?;
    let now = clock::now();
    let mut end = now;
    for (earlier, claim) in lingering {
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
        // The register tells of a leader whose claim somebody has removed.
        end = end.max(now + settings.bounds.outlast(settings.leadership));
    }
    Ok(end)
}
