//! A leader's task, the same on every platform: it sends the campaign's requests to the stores of
//! the term, their answers to the campaign, and events to the driver. It never blocks on one of
//! them: a slow store or driver delays only its own requests.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use leasehold_coordinator_core::campaign::{
    EntryChange, EntryOutcome, Lead, LeadSettings, Listing, RenewalOutcome, StoreRequest, TermEnd,
    TermTaken,
};
use leasehold_coordinator_core::effect::Order;
use leasehold_coordinator_core::event::Event;
use leasehold_types::{Epoch, Moment, WorkerKey};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::{CampaignContext, ExposureStore, StoreErrors, TermStore, if_some};
use leasehold_driver::clock;
use leasehold_driver::health::Progress;
use leasehold_driver::platform::Command;

/// The longest time between two checks of the clock and of the driver.
const CHECK_MAX: Duration = Duration::from_millis(250);

/// How a term has ended.
#[derive(Debug)]
pub(super) enum LeadEnd {
    /// The driver no longer takes events.
    DriverGone,
    /// Another replica has the term.
    Deposed,
    /// It could not be renewed in time.
    Expired,
    /// The core gives it up.
    GivenUp {
        /// The next epoch must be above this.
        above: Option<Epoch>,
    },
    /// The process ends; the sender confirms that the term was released.
    Resign(oneshot::Sender<()>),
}

/// The task of a leader in one term.
pub(super) struct Leading<'a, T, E> {
    lead: Lead,
    terms: &'a mut T,
    exposures: &'a mut E,
    errors: &'a mut StoreErrors,
    events: &'a mpsc::Sender<Event>,
    commands: &'a mut mpsc::Receiver<Command>,
    renewing: Option<BoxFuture<'static, (Moment, Result<RenewalOutcome, String>)>>,
    listing: Option<BoxFuture<'static, Result<Listing, String>>>,
    writing: FuturesUnordered<BoxFuture<'static, Vec<(EntryChange, EntryOutcome)>>>,
    /// Requests to confirm entries.
    awaiting_entries: Vec<AwaitingEntries>,
    /// Events for which the driver has no room yet.
    queued_events: VecDeque<Event>,
    /// Whether the driver makes progress: a leader whose driver hangs must not renew.
    progress: &'a Progress,
}

/// A request to confirm the entries of some workers.
struct AwaitingEntries {
    workers: Vec<WorkerKey>,
    /// When all of them were written. A later leader may have read older ones, unless this term is
    /// renewed after that.
    written_at: Option<Moment>,
    done: oneshot::Sender<()>,
}

enum LeaderEvent {
    Command(Option<Command>),
    DriverGone,
    EventSent,
    Renewed(Moment, Result<RenewalOutcome, String>),
    Listed(Result<Listing, String>),
    Wrote(Vec<(EntryChange, EntryOutcome)>),
    Time,
}

impl<'a, T: TermStore, E: ExposureStore> Leading<'a, T, E> {
    /// A leader of the term that was taken.
    pub(super) fn new(
        settings: LeadSettings,
        taken: TermTaken,
        terms: &'a mut T,
        exposures: &'a mut E,
        context: &'a mut CampaignContext,
    ) -> Self {
        let now = clock::now();
        Self {
            lead: Lead::new(settings, taken, now),
            terms,
            exposures,
            errors: &mut context.errors,
            events: &context.events,
            commands: &mut context.commands,
            renewing: None,
            listing: None,
            writing: FuturesUnordered::new(),
            awaiting_entries: Vec::new(),
            queued_events: VecDeque::new(),
            progress: &context.progress,
        }
    }

    /// When leadership ends, unless it is renewed.
    pub(super) fn until(&self) -> Moment {
        self.lead.until()
    }

    /// Leads until the term has ended.
    pub(super) async fn run(&mut self) -> LeadEnd {
        loop {
            self.dispatch();
            match self.lead.over() {
                Some(TermEnd::Deposed) => return LeadEnd::Deposed,
                Some(TermEnd::Expired) => return LeadEnd::Expired,
                Some(TermEnd::GivenUp { above }) => {
                    let epoch = self.lead.epoch().0;
                    tracing::info!(
                        epoch,
                        above = above.map(|epoch| epoch.0),
                        "leadership released"
                    );
                    return LeadEnd::GivenUp { above };
                }
                None => {}
            }
            let nap = self.lead.poll_timeout().since(clock::now()).min(CHECK_MAX);
            let woken = tokio::select! {
                biased;
                command = self.commands.recv() => LeaderEvent::Command(command),
                () = self.events.closed() => LeaderEvent::DriverGone,
                (sent_at, standing) = if_some(&mut self.renewing) => {
                    LeaderEvent::Renewed(sent_at, standing)
                }
                listed = if_some(&mut self.listing) => LeaderEvent::Listed(listed),
                Some(outcomes) = self.writing.next() => LeaderEvent::Wrote(outcomes),
                room = self.events.reserve(), if !self.queued_events.is_empty() => match room {
                    Ok(room) => {
                        if let Some(event) = self.queued_events.pop_front() {
                            room.send(event);
                        }
                        LeaderEvent::EventSent
                    }
                    Err(_) => LeaderEvent::DriverGone,
                },
                () = sleep(nap) => LeaderEvent::Time,
            };
            let now = clock::now();
            match woken {
                LeaderEvent::Command(None) | LeaderEvent::DriverGone => return LeadEnd::DriverGone,
                LeaderEvent::Command(Some(command)) => {
                    if let Some(ended) = self.run_command(command, now) {
                        return ended;
                    }
                }
                LeaderEvent::Renewed(sent_at, standing) => {
                    self.renewing = None;
                    let standing = standing.unwrap_or_else(|why| {
                        self.errors.report("cannot renew leadership", &why);
                        RenewalOutcome::Unknown
                    });
                    if standing == RenewalOutcome::Leads && !self.lead.has_failed_writes() {
                        self.errors.recover();
                    }
                    if standing == RenewalOutcome::Leads {
                        self.answer_entries_written_before(sent_at);
                    }
                    self.lead.renewed(standing, sent_at, now);
                }
                LeaderEvent::Listed(listed) => {
                    self.listing = None;
                    if let Err(why) = &listed {
                        self.errors.report("cannot list the workers", &why);
                    }
                    self.lead.listed(listed.ok(), now);
                }
                LeaderEvent::Wrote(outcomes) => self.wrote(outcomes, now),
                LeaderEvent::EventSent | LeaderEvent::Time => {}
            }
            self.confirm_written_entries(now);
            self.lead.tick(!self.progress.is_stalled(), now);
        }
    }

    /// Orders a renewal of the term if awaited entries have been written.
    fn confirm_written_entries(&mut self, now: Moment) {
        let lead = &self.lead;
        let mut are_written = false;
        for awaiting in &mut self.awaiting_entries {
            let is_pending = awaiting.workers.iter().any(|worker| lead.has_pending_change(worker));
            if awaiting.written_at.is_none() && !is_pending {
                awaiting.written_at = Some(now);
                are_written = true;
            }
        }
        if are_written {
            self.lead.order(self.lead.epoch(), Order::Confirm, now);
        }
    }

    /// Confirms entries that were written before `moment`, at which the term stood: later leaders
    /// read them.
    fn answer_entries_written_before(&mut self, moment: Moment) {
        let is_confirmed = |awaiting: &mut AwaitingEntries| {
            awaiting.written_at.is_some_and(|written_at| written_at <= moment)
        };
        for confirmed in self.awaiting_entries.extract_if(.., is_confirmed) {
            // The caller may have gone meanwhile.
            let _ = confirmed.done.send(());
        }
    }

    fn run_command(&mut self, command: Command, now: Moment) -> Option<LeadEnd> {
        match command {
            Command::Order { epoch, order } => self.lead.order(epoch, order, now),
            Command::ConfirmEntries { epoch, workers, done } => {
                if epoch == self.lead.epoch() {
                    let awaiting = AwaitingEntries { workers, written_at: None, done };
                    self.awaiting_entries.push(awaiting);
                }
            }
            Command::Resign(done) => return Some(LeadEnd::Resign(done)),
        }
        None
    }

    fn wrote(&mut self, outcomes: Vec<(EntryChange, EntryOutcome)>, now: Moment) {
        let failed = outcomes.iter().filter(|(_, written)| *written == EntryOutcome::Failed);
        if let Some((change, _)) = failed.clone().next() {
            let why = format!("{} and {} more", change.key(), failed.count() - 1);
            self.errors.report("cannot register some workers", &why);
        }
        let superseded = outcomes.iter().find(|(_, written)| *written == EntryOutcome::Superseded);
        if let Some((change, _)) = superseded {
            let why = format!("the entry of {} is of a later term", change.key());
            self.errors.report("cannot write the exposure of a worker", &why);
        }
        self.lead.wrote(outcomes, now);
    }

    /// Runs the campaign's requests.
    fn dispatch(&mut self) {
        while let Some(request) = self.lead.poll_request() {
            match request {
                StoreRequest::Renew => self.renewing = Some(self.terms.renew()),
                StoreRequest::List(namespaces) => {
                    self.listing = Some(self.exposures.list(namespaces));
                }
                StoreRequest::Write(attempts) => self.writing.push(self.exposures.write(attempts)),
            }
        }
        while let Some(event) = self.lead.poll_event() {
            if let Event::Elected(elected) = &event {
                let (epoch, exposed) = (elected.epoch.0, elected.exposed.len());
                tracing::info!(epoch, exposed, "elected");
                if !elected.unreadable.is_empty() {
                    tracing::error!(
                        namespaces = ?elected.unreadable,
                        "the coordinator may not list the pods of some namespaces: it serves none \
                         of their workers until its rights there are restored"
                    );
                }
            }
            if let Event::NamespacesRead(read) = &event {
                let (namespaces, exposed) = (&read.namespaces, read.exposed.len());
                tracing::info!(?namespaces, exposed, "the workers of namespaces are served again");
            }
            // A driver that is behind needs only the newest renewal.
            match (&event, self.queued_events.back_mut()) {
                (Event::Renewed(_), Some(last @ Event::Renewed(_))) => *last = event,
                _ => self.queued_events.push_back(event),
            }
        }
    }
}
