//! The store of a cell: the term of leadership, and what workers may hold. On Kubernetes it is the
//! API server, which may be away.
//!
//! **Invariant**: an order is carried out only for the present leader's term.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_coordinator_core::effect::Order;
use leasehold_coordinator_core::event::{Elected, Event, Renewed};
use leasehold_coordinator_core::exposure::Entry;
use leasehold_types::{Epoch, Moment, TermId, WorkerKey};

/// How long leadership lasts without renewal on Kubernetes.
const LEADERSHIP: Duration = Duration::from_secs(300);

/// The store. Its moments are those of the cores' clock.
#[derive(Debug)]
pub(super) struct Store {
    /// The newest term, and whether its leader has it still.
    epoch: Epoch,
    is_led: bool,
    /// Until when the newest leader may grant.
    until: Moment,
    entries: BTreeMap<WorkerKey, Entry>,
    is_away: bool,
    /// Orders that were given while it is away.
    waiting: Vec<(Epoch, Order)>,
}

impl Store {
    /// An empty store, of which nobody has taken a term.
    pub(super) fn new(now: Moment) -> Self {
        Self {
            epoch: Epoch(0),
            is_led: false,
            until: now,
            entries: BTreeMap::new(),
            is_away: false,
            waiting: Vec::new(),
        }
    }

    /// Whether a coordinator has the newest term.
    pub(super) fn is_led(&self) -> bool {
        self.is_led
    }

    /// Whether it does not answer.
    pub(super) fn is_away(&self) -> bool {
        self.is_away
    }

    /// It does not answer from now on.
    pub(super) fn go_away(&mut self) {
        self.is_away = true;
    }

    /// It answers again. Returns the orders that have waited.
    pub(super) fn come_back(&mut self) -> Vec<(Epoch, Order)> {
        self.is_away = false;
        std::mem::take(&mut self.waiting)
    }

    /// The workers that may hold something.
    pub(super) fn workers(&self) -> impl Iterator<Item = &WorkerKey> {
        self.entries.keys()
    }

    /// A coordinator takes the next term.
    pub(super) fn elect(&mut self, now: Moment) -> Elected {
        let predecessor_end = self.until;
        self.epoch = self.epoch.next();
        (self.is_led, self.until) = (true, now + LEADERSHIP);
        Elected {
            epoch: self.epoch,
            term: TermId(self.epoch.0),
            cell: None,
            until: self.until,
            predecessor_end,
            exposed: self.entries.clone(),
            unreadable: [].into(),
        }
    }

    /// The leader's process is killed, which cannot say that it grants nothing any more.
    pub(super) fn lose_leader(&mut self) {
        self.is_led = false;
    }

    /// The leader gives its term up.
    pub(super) fn step_down(&mut self, now: Moment) {
        (self.is_led, self.until) = (false, now);
    }

    /// Renews the leader's term. None if there is no leader, or the store is away.
    pub(super) fn renew(&mut self, now: Moment) -> Option<Event> {
        if !self.is_led || self.is_away {
            return None;
        }
        self.until = now + LEADERSHIP;
        let renewed = Renewed { epoch: self.epoch, sent_at: now, until: self.until };
        Some(Event::Renewed(renewed))
    }

    /// Carries an order of this term out. Returns the answer; none if the term is over, or the
    /// order waits.
    pub(super) fn carry_out(&mut self, epoch: Epoch, order: Order, now: Moment) -> Option<Event> {
        if self.is_away {
            self.waiting.push((epoch, order));
            return None;
        }
        if !self.is_led || epoch != self.epoch {
            return None;
        }
        match order {
            Order::Register(workers) => {
                for (key, _, exposure) in &workers {
                    let entry = Entry { epoch, exposure: exposure.clone() };
                    self.entries.insert(key.clone(), entry);
                }
                Some(Event::Registered(workers))
            }
            Order::Unregister(workers) => {
                for key in &workers {
                    self.entries.remove(key);
                }
                Some(Event::Unregistered(workers))
            }
            Order::Confirm | Order::AskTerm { .. } => self.renew(now),
            Order::StepDown { .. } => {
                self.step_down(now);
                None
            }
        }
    }
}
