//! Leading: it renews the Lease and carries out what the core asks for. What it writes down of
//! workers, it says only after a renewal that was sent afterwards: a successor that took the Lease
//! before then has seen it, or its workers were granted nothing that rests on it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;

use leasehold_coordinator_core::event::{Elected, Event, Exposure, Renewed};
use leasehold_types::{Moment, WorkerKey};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::changes::{Change, Changes};
use super::{Campaign, Exposures, Next, if_some};
use crate::clock;
use crate::platform::Command;
use crate::platform::kube::election::{Election, Look, Seat, Standing, Trouble};
use crate::platform::kube::vigil::renewal_interval;

/// Workers that are written down before one renewal.
const CHANGES_MAX: usize = 256;
/// Of those so many at once.
const WRITTEN_AT_ONCE_MAX: usize = 16;
/// How long so many may take.
const CHANGES_WITHIN: Duration = Duration::from_secs(10);
/// How long the list of workers may take.
const LIST_WITHIN: Duration = Duration::from_secs(30);
/// Events that may wait for the driver while leadership is renewed: a driver that hangs must not
/// go on leading.
const WAITING_MAX: usize = 2;

/// What a leader has in its hands.
pub(super) struct Lead {
    seat: Seat,
    /// When the last renewal that succeeded was sent.
    renewed_at: Moment,
    /// When leadership ends unless it is renewed.
    until: Moment,
    /// The driver knows of this term.
    elected: bool,
    /// What is to be written down, or struck where there is none.
    changes: Changes,
    /// Written down, and not yet said to be.
    unsaid: Vec<(WorkerKey, Exposure)>,
    renewal_wanted: bool,
    errand: Option<Errand>,
    /// When the last renewal within an errand that succeeded was sent.
    renewals: watch::Receiver<Moment>,
    renewal_sender: watch::Sender<Moment>,
    listing: Option<Listing>,
}

type Errand = Pin<Box<dyn Future<Output = Done> + Send>>;
type Listing = Pin<Box<dyn Future<Output = Result<BTreeMap<WorkerKey, Exposure>, String>> + Send>>;

/// An errand: changes are written down, then leadership is renewed.
struct Round<X> {
    election: Election,
    exposures: X,
    seat: Seat,
    renewed_at: Moment,
    /// Told of each renewal before the last.
    renewals: watch::Sender<Moment>,
    /// Nothing is written later than this after a renewal.
    fresh: Duration,
    changes: Vec<Change>,
}

/// What has come of an errand.
struct Done {
    seat: Seat,
    written: Vec<(WorkerKey, Exposure)>,
    undone: Vec<Change>,
    standing: Result<Standing, Trouble>,
}

/// Why a leader woke up.
enum Woken {
    Command(Option<Command>),
    DriverGone,
    Beat,
    Done(Box<Done>),
    Renewed,
    Listed(Result<BTreeMap<WorkerKey, Exposure>, String>),
    Over,
}

impl Lead {
    /// A place that was taken by a write sent at `sent_at`.
    pub(super) fn new(seat: Seat, sent_at: Moment, leadership: Duration) -> Self {
        let (renewal_sender, renewals) = watch::channel(sent_at);
        Self {
            seat,
            renewed_at: sent_at,
            until: sent_at + leadership,
            elected: false,
            changes: Changes::default(),
            unsaid: Vec::new(),
            renewal_wanted: false,
            errand: None,
            renewals,
            renewal_sender,
            listing: None,
        }
    }
}

impl<X: Exposures> Campaign<X> {
    pub(super) async fn lead(&mut self, mut lead: Box<Lead>) -> Next {
        let mut beats = interval(renewal_interval(self.settings.leadership));
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        beats.reset();
        lead.listing = Some(self.list());
        loop {
            if lead.errand.is_none() && lead.renewal_wanted {
                lead.errand = Some(self.errand(&mut lead));
            }
            let over = lead.until.since(clock::now());
            let woken = tokio::select! {
                biased;
                command = self.commands.recv() => Woken::Command(command),
                () = self.events.closed() => Woken::DriverGone,
                done = if_some(&mut lead.errand) => Woken::Done(Box::new(done)),
                Ok(()) = lead.renewals.changed() => Woken::Renewed,
                listed = if_some(&mut lead.listing) => Woken::Listed(listed),
                _ = beats.tick() => Woken::Beat,
                () = sleep(over) => Woken::Over,
            };
            let stays = match woken {
                Woken::Command(None) | Woken::DriverGone => Err(Next::End),
                Woken::Command(Some(command)) => self.obey(&mut lead, command).await,
                Woken::Beat => {
                    self.beat(&mut lead);
                    Ok(())
                }
                Woken::Done(done) => {
                    lead.errand = None;
                    self.done(&mut lead, *done).await
                }
                Woken::Renewed => {
                    let sent_at = *lead.renewals.borrow_and_update();
                    self.renewed(&mut lead, sent_at).await
                }
                Woken::Listed(listed) => {
                    lead.listing = None;
                    self.listed(&mut lead, listed).await
                }
                Woken::Over => self.over(&mut lead).await,
            };
            if let Err(next) = stays {
                return next;
            }
        }
    }

    async fn obey(&mut self, lead: &mut Lead, command: Command) -> Result<(), Next> {
        match command {
            Command::Confirm => lead.renewal_wanted = true,
            Command::Register(entries) => {
                lead.changes.ask(entries.into_iter().map(|(key, entry)| (key, Some(entry))));
                lead.renewal_wanted = true;
            }
            Command::Unregister(keys) => {
                lead.changes.ask(keys.into_iter().map(|key| (key, None)));
                lead.renewal_wanted = true;
            }
            Command::StepDown { above } => {
                self.stay_above(above);
                let (epoch, above) = (lead.seat.epoch.0, above.map(|above| above.0));
                tracing::info!(epoch, above, "leadership given up");
                // Whatever is on its way is conditional on what the release changes.
                lead.errand = None;
                self.release(lead.seat.clone()).await;
                self.say(Event::Deposed { leader: None }).await?;
                return Err(Next::StandBy);
            }
            Command::Resign(done) => {
                lead.errand = None;
                self.release(lead.seat.clone()).await;
                tracing::info!(epoch = lead.seat.epoch.0, "resigned");
                let _ = done.send(());
                return Err(Next::End);
            }
        }
        Ok(())
    }

    /// Has leadership renewed, and what could not be written down tried again. Not while the
    /// driver takes nothing in: then the signs of this leader's life are to stop.
    fn beat(&mut self, lead: &mut Lead) {
        let waiting = self.events.max_capacity() - self.events.capacity();
        lead.renewal_wanted |= waiting <= WAITING_MAX;
        lead.changes.retry();
        if !lead.elected && lead.listing.is_none() {
            lead.listing = Some(self.list());
        }
    }

    fn list(&self) -> Listing {
        let exposures = self.exposures.clone();
        Box::pin(async move {
            match timeout(LIST_WITHIN, exposures.list_exposed()).await {
                Ok(listed) => listed.map_err(|error| format!("{error:#}")),
                Err(_) => Err(format!("no answer within {} s", LIST_WITHIN.as_secs())),
            }
        })
    }

    /// The list was begun after the Lease was taken, so it has all that predecessors wrote.
    async fn listed(
        &mut self,
        lead: &mut Lead,
        listed: Result<BTreeMap<WorkerKey, Exposure>, String>,
    ) -> Result<(), Next> {
        let exposed = match listed {
            Ok(exposed) => exposed,
            Err(why) => {
                self.fails(&why, "the workers cannot be listed");
                return Ok(());
            }
        };
        self.recovers();
        let epoch = lead.seat.epoch;
        tracing::info!(epoch = epoch.0, exposed = exposed.len(), "elected");
        lead.elected = true;
        let predecessor_end = lead.seat.earlier_end;
        let elected = Elected { epoch, until: lead.until, predecessor_end, exposed };
        self.say(Event::Elected(elected)).await
    }

    fn errand(&self, lead: &mut Lead) -> Errand {
        lead.renewal_wanted = false;
        let changes = lead.changes.take(CHANGES_MAX);
        // The rest follows in the next.
        lead.renewal_wanted = lead.changes.are_due();
        let round = Round {
            election: self.election.clone(),
            exposures: self.exposures.clone(),
            seat: lead.seat.clone(),
            renewed_at: lead.renewed_at,
            renewals: lead.renewal_sender.clone(),
            fresh: self.settings.takeover_after,
            changes,
        };
        Box::pin(round.run())
    }

    async fn done(&mut self, lead: &mut Lead, done: Done) -> Result<(), Next> {
        let Done { seat, written, undone, standing } = done;
        lead.seat = seat;
        lead.unsaid.extend(written);
        let failed = !undone.is_empty();
        lead.changes.fail(undone);
        let sent_at = match standing {
            Ok(Standing::Leads { sent_at }) => sent_at,
            Ok(Standing::Deposed(look)) => return self.deposed(lead, look).await,
            Err(trouble) => {
                self.fails(&trouble, "leadership cannot be renewed");
                return Ok(());
            }
        };
        match failed {
            true => self.fails(&"their pods were not written", "some workers cannot be registered"),
            false => self.recovers(),
        }
        if lead.elected {
            let said = std::mem::take(&mut lead.unsaid);
            if !said.is_empty() {
                self.say(Event::Registered(said)).await?;
            }
        }
        self.renewed(lead, sent_at).await
    }

    /// A renewal has succeeded that was sent then.
    async fn renewed(&mut self, lead: &mut Lead, sent_at: Moment) -> Result<(), Next> {
        if sent_at <= lead.renewed_at {
            // A later one was quicker to be heard of.
            return Ok(());
        }
        lead.renewed_at = sent_at;
        lead.until = sent_at + self.settings.leadership;
        if lead.elected {
            let renewed = Renewed { epoch: lead.seat.epoch, sent_at, until: lead.until };
            self.say(Event::Renewed(renewed)).await?;
        }
        Ok(())
    }

    async fn deposed(&mut self, lead: &mut Lead, look: Look) -> Result<(), Next> {
        let by = look.sight.as_ref().and_then(|sight| sight.holder.clone());
        let newest = look.sight.as_ref().and_then(|sight| sight.epoch);
        tracing::info!(epoch = lead.seat.epoch.0, by, newest = newest.map(|it| it.0), "deposed");
        self.stay_above(newest);
        let theirs = look.sight.filter(|sight| !self.election.holds(sight));
        let leader = theirs.and_then(|sight| self.address(&sight));
        self.say(Event::Deposed { leader }).await?;
        Err(Next::StandBy)
    }

    /// Leadership was not renewed in its time.
    async fn over(&mut self, lead: &mut Lead) -> Result<(), Next> {
        if clock::now() < lead.until {
            return Ok(());
        }
        tracing::warn!(epoch = lead.seat.epoch.0, "leadership is over: it could not be renewed");
        self.say(Event::Deposed { leader: None }).await?;
        Err(Next::StandBy)
    }
}

impl<X: Exposures> Round<X> {
    /// Writes down what is to be written down, and then renews.
    async fn run(mut self) -> Done {
        let mut written = Vec::new();
        let mut undone = Vec::new();
        let mut changes = std::mem::take(&mut self.changes).into_iter();
        loop {
            let some: Vec<Change> = changes.by_ref().take(WRITTEN_AT_ONCE_MAX).collect();
            if some.is_empty() {
                let standing = self.election.renew(&mut self.seat).await;
                return Done { seat: self.seat, written, undone, standing };
            }
            if let Some(standing) = self.renew_unless_fresh().await {
                undone.extend(some.into_iter().chain(changes));
                return Done { seat: self.seat, written, undone, standing };
            }
            self.write(some, &mut written, &mut undone).await;
        }
    }

    /// A leader that was stopped, or cut off, for so long that it may have a successor asks first:
    /// what it wrote now could undo what that one relies on. Says where it may not write.
    async fn renew_unless_fresh(&mut self) -> Option<Result<Standing, Trouble>> {
        if clock::now().since(self.renewed_at) < self.fresh {
            return None;
        }
        match self.election.renew(&mut self.seat).await {
            Ok(Standing::Leads { sent_at }) => {
                self.renewed_at = sent_at;
                self.renewals.send_replace(sent_at);
                None
            }
            other => Some(other),
        }
    }

    async fn write(
        &self,
        changes: Vec<Change>,
        written: &mut Vec<(WorkerKey, Exposure)>,
        undone: &mut Vec<Change>,
    ) {
        let mut expose = Vec::new();
        let mut conceal = Vec::new();
        for (key, exposure) in changes {
            match exposure {
                Some(exposure) => expose.push((key, exposure)),
                None => conceal.push(key),
            }
        }
        let answers = async {
            let answers = match expose.is_empty() {
                true => Vec::new(),
                false => self.exposures.expose(&expose).await,
            };
            if !conceal.is_empty() {
                self.exposures.conceal(&conceal).await;
            }
            answers
        };
        let answers = timeout(CHANGES_WITHIN, answers).await.unwrap_or_default();
        for (at, (key, exposure)) in expose.into_iter().enumerate() {
            match answers.get(at) {
                Some(true) => written.push((key, exposure)),
                // Not written, or not known to be.
                Some(false) | None => undone.push((key, Some(exposure))),
            }
        }
    }
}

#[cfg(test)]
mod tests;
