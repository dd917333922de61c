//! One leader's use of its two stores: it renews the term in one, and writes the exposures of
//! workers to the other. Pure: it takes the core's orders and the stores' answers, and gives
//! requests to the stores and events for the core. Both platforms and the simulator run it over
//! stores of their own.
//!
//! Renewals and writes do not wait for each other. Invariant: a change is answered only after a
//! renewal that was sent after it was written. So every successor finds the entry in the store, or
//! this leader has granted nothing under it; and no successor finds an entry whose removal was
//! answered, unless it was written late: by a leader that was deposed before, or by a request that
//! counts as failed.

mod changes;
mod entry;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{CellId, Epoch, Moment, TermId, WorkerKey};

use self::changes::Changes;
pub use self::entry::{EntryAttempt, EntryChange, EntryVersion, EntryWrite, resolve};
use crate::effect::Order;
use crate::event::{Elected, Event, NamespacesRead, Renewed};
use crate::exposure::Entry;

/// How a leader uses its stores.
#[derive(Clone, Copy, Debug)]
pub struct LeadSettings {
    /// How long leadership lasts after a renewal was sent.
    pub leadership: Duration,
    /// The time between two renewals.
    pub renew_every: Duration,
    /// Changes of entries in one request.
    pub batch_max: usize,
    /// Requests with changes in flight.
    pub batches_max: usize,
}

/// A term that was taken.
#[derive(Clone, Copy, Debug)]
pub struct TermTaken {
    /// Its number.
    pub epoch: Epoch,
    /// Its identity: drawn at random, so that no other term has the same.
    pub term: TermId,
    /// The cell whose term it is, if its store says so.
    pub cell: Option<CellId>,
    /// When the request that took it was sent.
    pub sent_at: Moment,
    /// When the predecessor has surely stopped granting by itself.
    pub predecessor_end: Moment,
}

/// What a leader asks of its stores. Each is answered once; where no answer comes, the platform
/// answers with a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreRequest {
    /// Renew the term.
    Renew,
    /// List every entry of these namespaces, as the store has them now.
    List(Namespaces),
    /// Try these changes. At most one change of each worker is in flight.
    Write(Vec<EntryAttempt>),
}

/// The namespaces whose entries are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// All, and what is in no namespace.
    All,
    /// These.
    Only(BTreeSet<String>),
}

/// The entries of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Every worker that may hold anything, but for those of the namespaces below.
    pub exposed: BTreeMap<WorkerKey, Entry>,
    /// The namespaces whose entries the store forbids to read.
    pub unreadable: BTreeSet<String>,
}

/// What a renewal found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalOutcome {
    /// When it was sent, no other term had been taken.
    Leads,
    /// Another replica has the term.
    Deposed,
    /// The store did not answer.
    Unknown,
}

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryOutcome {
    /// It is written.
    Done,
    /// It is not written, or the outcome is unknown: it is tried again.
    Failed,
    /// A later leader has written or adopted the entry.
    Superseded,
    /// The present entry cannot be read, so a later leader may have written it. The change is tried
    /// again once leadership was renewed.
    Unreadable(EntryVersion),
}

/// Why a term has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermEnd {
    /// Another replica has the term.
    Deposed,
    /// It was not renewed in time.
    Expired,
    /// The core gives it up.
    GivenUp {
        /// The next term is to be above this.
        above: Option<Epoch>,
    },
}

/// One term of a leader, with its requests to the stores.
#[derive(Clone, Debug)]
pub struct Lead {
    settings: LeadSettings,
    epoch: Epoch,
    term: TermId,
    cell: Option<CellId>,
    /// When the last renewal that succeeded was sent.
    renewed_at: Moment,
    predecessor_end: Moment,
    /// The core knows of this term.
    elected: bool,
    listing: bool,
    /// The entries are to be listed as soon as the store may be asked again.
    list_at: Option<Moment>,
    /// Namespaces whose entries were not read in this term.
    unreadable: BTreeSet<String>,
    renewing: bool,
    renewal_wanted: bool,
    renew_at: Moment,
    changes: Changes,
    /// Changes that are written and not answered yet, with the moment at which that was known.
    unanswered: BTreeMap<WorkerKey, (Moment, EntryChange)>,
    over: Option<TermEnd>,
    requests: VecDeque<StoreRequest>,
    events: VecDeque<Event>,
}

impl Lead {
    /// Leads a term that was just taken. Lists the entries first; the core leads once it has them.
    #[must_use]
    pub fn new(settings: LeadSettings, taken: TermTaken, now: Moment) -> Self {
        let mut lead = Self {
            settings,
            epoch: taken.epoch,
            term: taken.term,
            cell: taken.cell,
            renewed_at: taken.sent_at,
            predecessor_end: taken.predecessor_end,
            elected: false,
            listing: false,
            list_at: Some(now),
            unreadable: BTreeSet::new(),
            renewing: false,
            renewal_wanted: false,
            renew_at: now + settings.renew_every,
            changes: Changes::default(),
            unanswered: BTreeMap::new(),
            over: None,
            requests: VecDeque::new(),
            events: VecDeque::new(),
        };
        lead.issue_requests(now);
        lead
    }

    /// The term.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// When leadership ends, unless it is renewed.
    #[must_use]
    pub fn until(&self) -> Moment {
        self.renewed_at + self.settings.leadership
    }

    /// Why the term has ended; none while it lasts.
    #[must_use]
    pub fn over(&self) -> Option<TermEnd> {
        self.over
    }

    /// Whether something could not be written when it was last tried.
    #[must_use]
    pub fn has_failed_writes(&self) -> bool {
        self.changes.have_failed()
    }

    /// Whether an ordered change of this worker's entry is not written yet.
    #[must_use]
    pub fn has_pending_change(&self, worker: &WorkerKey) -> bool {
        self.changes.has_pending(worker)
    }

    /// Takes an order that the core gave as the leader of `epoch`. During a long turn a replica may
    /// lose a term and take another before its core learns of it. Orders of the former term are
    /// ignored: they do not apply to the entries that this term has adopted.
    pub fn order(&mut self, epoch: Epoch, order: Order, now: Moment) {
        if epoch != self.epoch && !mutation::on(Mutation::OrderOfAnotherTerm) {
            return;
        }
        match order {
            // A renewal that succeeds also shows that the term stands.
            Order::Confirm | Order::AskTerm { .. } => self.renewal_wanted = true,
            Order::StepDown { above } => {
                self.over.get_or_insert(TermEnd::GivenUp { above });
            }
            Order::Register(entries) => {
                for (key, account_id, exposure) in entries {
                    if !mutation::on(Mutation::RegisteredOfAnotherAccount) {
                        self.unanswered.remove(&key);
                    }
                    self.changes.add(EntryChange::Register(key, account_id, exposure));
                }
            }
            Order::Unregister(keys) => {
                for key in keys {
                    if !mutation::on(Mutation::RegisteredOfAnotherAccount) {
                        self.unanswered.remove(&key);
                    }
                    self.changes.add(EntryChange::Unregister(key));
                }
            }
        }
        self.issue_requests(now);
    }

    /// Time has passed. A leader whose driver makes no progress does not renew, so that another
    /// replica can take over.
    pub fn tick(&mut self, progresses: bool, now: Moment) {
        if now >= self.until() {
            self.over.get_or_insert(TermEnd::Expired);
            return;
        }
        if now >= self.renew_at {
            self.renew_at = now + self.settings.renew_every;
            self.renewal_wanted |= progresses;
            self.changes.retry();
        }
        self.issue_requests(now);
    }

    /// The answer to [`StoreRequest::Renew`], with the moment at which that was sent.
    pub fn renewed(&mut self, standing: RenewalOutcome, sent_at: Moment, now: Moment) {
        self.renewing = false;
        match standing {
            RenewalOutcome::Unknown => {}
            RenewalOutcome::Deposed => {
                self.over.get_or_insert(TermEnd::Deposed);
            }
            RenewalOutcome::Leads => {
                self.renewed_at = self.renewed_at.max(sent_at);
                self.changes.confirm(sent_at);
                if self.elected {
                    self.answer_changes(|known_at| known_at <= sent_at);
                    let renewed = Renewed { epoch: self.epoch, sent_at, until: self.until() };
                    self.events.push_back(Event::Renewed(renewed));
                }
            }
        }
        self.issue_requests(now);
    }

    /// The answer to [`StoreRequest::List`]; none where the store did not give one. The request was
    /// sent after the term was taken, so the list has all that predecessors wrote.
    pub fn listed(&mut self, listing: Option<Listing>, now: Moment) {
        self.listing = false;
        match listing {
            None => {}
            Some(listing) if self.elected => self.read_again(listing),
            Some(Listing { exposed, unreadable }) => {
                self.elected = true;
                self.unreadable = unreadable.clone();
                self.events.push_back(Event::Elected(Elected {
                    epoch: self.epoch,
                    term: self.term,
                    cell: self.cell,
                    until: self.until(),
                    predecessor_end: self.predecessor_end,
                    exposed,
                    unreadable,
                }));
            }
        }
        if !self.elected || !self.unreadable.is_empty() {
            self.list_at = Some(now + self.settings.renew_every);
        }
        self.issue_requests(now);
    }

    /// The entries of namespaces that were unreadable when this replica was elected.
    fn read_again(&mut self, listing: Listing) {
        let Listing { exposed, unreadable } = listing;
        let namespaces: BTreeSet<_> = self.unreadable.difference(&unreadable).cloned().collect();
        self.unreadable = unreadable;
        if !namespaces.is_empty() {
            let epoch = self.epoch;
            let read = NamespacesRead { epoch, namespaces, exposed };
            self.events.push_back(Event::NamespacesRead(read));
        }
    }

    /// The answer to [`StoreRequest::Write`]: the outcome of each of its changes.
    pub fn wrote(&mut self, outcomes: Vec<(EntryChange, EntryOutcome)>, now: Moment) {
        self.changes.answered();
        for (change, written) in outcomes {
            let is_newest = self.changes.end(&change, written, now);
            let is_newest = is_newest || mutation::on(Mutation::RegisteredOfAnotherAccount);
            match written {
                EntryOutcome::Done if is_newest => {
                    self.unanswered.insert(change.key().clone(), (now, change));
                    self.renewal_wanted = true;
                }
                // The store of terms says whether there is a later leader.
                EntryOutcome::Superseded | EntryOutcome::Unreadable(_) => {
                    self.renewal_wanted = true;
                }
                EntryOutcome::Done | EntryOutcome::Failed => {}
            }
        }
        if mutation::on(Mutation::RegisteredWithoutLeadership) {
            self.answer_changes(|_| true);
        }
        self.issue_requests(now);
    }

    /// The next request to a store.
    pub fn poll_request(&mut self) -> Option<StoreRequest> {
        self.requests.pop_front()
    }

    /// The next event for the core.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Self::tick`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Moment {
        let list_at = self.list_at.unwrap_or(self.renew_at);
        self.renew_at.min(self.until()).min(list_at)
    }

    fn answer_changes(&mut self, confirmed: impl Fn(Moment) -> bool) {
        let (mut registered, mut unregistered) = (Vec::new(), Vec::new());
        let answered = self.unanswered.extract_if(.., |_, (known_at, _)| confirmed(*known_at));
        for (_, (_, change)) in answered {
            match change {
                EntryChange::Register(key, account_id, exposure) => {
                    registered.push((key, account_id, exposure));
                }
                EntryChange::Unregister(key) => unregistered.push(key),
            }
        }
        if !registered.is_empty() {
            self.events.push_back(Event::Registered(registered));
        }
        if !unregistered.is_empty() {
            self.events.push_back(Event::Unregistered(unregistered));
        }
    }

    /// Issues the requests that are due, up to the limit of requests in flight.
    fn issue_requests(&mut self, now: Moment) {
        if self.over.is_some() {
            return;
        }
        if self.renewal_wanted && !self.renewing {
            (self.renewal_wanted, self.renewing) = (false, true);
            self.requests.push_back(StoreRequest::Renew);
        }
        if self.list_at.is_some_and(|at| at <= now) {
            (self.list_at, self.listing) = (None, true);
            let namespaces = if self.elected {
                Namespaces::Only(self.unreadable.clone())
            } else {
                Namespaces::All
            };
            self.requests.push_back(StoreRequest::List(namespaces));
        }
        while self.changes.in_flight() < self.settings.batches_max {
            let batch = self.changes.take(self.settings.batch_max);
            if batch.is_empty() {
                break;
            }
            self.requests.push_back(StoreRequest::Write(batch));
        }
    }
}

#[cfg(test)]
#[path = "campaign_tests.rs"]
mod tests;
