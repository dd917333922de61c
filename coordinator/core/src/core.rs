//! The core of one cell. It takes events, and it alone decides who holds what. Invariant: all state
//! that only a leader has is in [`Leader`], and is dropped with the term.

mod config;
mod leader;
mod replica;
mod term;
mod turn_budget;

use std::sync::Arc;

use leasehold_types::message::Hello;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{Moment, WorkerKey};

use crate::desired::Desired;
use crate::effect::{Effect, Wakeup};
use crate::event::{ConnId, Event};
use crate::view::Leadership;
pub use config::Config;
use leader::Leader;
pub use leader::{PipelinesWhatIf, WhatIfPlan};
use replica::Replica;
use term::{Candidate, Standby};

/// One cell's state.
#[derive(Clone, Debug)]
pub struct Core {
    role: Role,
}

/// The role of this replica. Each role owns the state that outlives it, and hands it on to the next
/// role.
#[derive(Clone, Debug)]
enum Role {
    StandsBy(Standby),
    /// This replica has taken the term, which begins once its manifest is read.
    Begins(Box<Candidate>),
    Leads(Box<Leader>),
}

impl Core {
    /// A core that stands by, with an empty desired state.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let replica = Box::new(Replica::new(config));
        Self { role: Role::StandsBy(Standby { replica, leader: None }) }
    }

    /// Takes an event that arrived at `at`: leases are counted from that moment, even if the event
    /// is taken later. Effects follow at [`Self::settle`], so that events that arrive together are
    /// planned together.
    pub fn handle(&mut self, event: Event, at: Moment) {
        self.replica_mut().budget.count(1 + size(&event));
        match event {
            Event::Hello(conn, hello, peer) => self.hello(conn, hello, peer, at),
            Event::Desired(desired) => self.receive(desired, at),
            Event::Elected(elected) => self.elected(elected, at),
            Event::Renewed(renewed) => match &mut self.role {
                Role::StandsBy(_) => {}
                Role::Begins(candidate) => candidate.renewed(renewed),
                Role::Leads(leader) => leader.renewed(renewed),
            },
            Event::Deposed { leader } => self.stand_by(leader),
            Event::Gone(workers) => match &mut self.role {
                Role::StandsBy(_) => {}
                Role::Begins(candidate) => candidate.gone(workers),
                Role::Leads(leader) => leader.end_accounts(workers),
            },
            // Only a leader has agents.
            Event::Removed(workers) => self.if_leads(|it| it.end_sessions(workers)),
            Event::Report(conn, report) => self.if_leads(|it| it.report(conn, report, at)),
            Event::Beat(conn, beat) => self.if_leads(|it| it.beat(conn, beat, at)),
            Event::Closed(conn) => self.if_leads(|it| it.closed(conn)),
            Event::Sent(conn) => self.if_leads(|it| it.sent(conn)),
            Event::TermStands { epoch, asked_at } => {
                self.if_leads(|it| it.term_stands(epoch, asked_at));
            }
            Event::Registered(workers) => self.if_leads(|it| it.registered(workers)),
            Event::Drain(key) => self.if_leads(|it| it.order_drain(&key, at)),
            Event::Undrain(key) => self.if_leads(|leader| leader.take_drain_back(&key, at)),
            Event::Wake => {}
        }
    }

    fn hello(&mut self, conn: ConnId, hello: Hello, peer: Option<Arc<str>>, at: Moment) {
        match &mut self.role {
            Role::StandsBy(standby) => standby.refuse(conn),
            Role::Begins(candidate) => candidate.refuse(conn),
            Role::Leads(leader) => {
                leader.hello(conn, hello, peer, at);
                if leader.steps_down_for_agent() {
                    self.stand_by(None);
                }
            }
        }
    }

    /// Plans what has changed, and decides what is granted, asked back and freed. Every message
    /// that had arrived before `heard` has been handled. So silence is measured up to `heard` and
    /// not up to `now`: a message of the worker may still wait.
    pub fn settle(&mut self, now: Moment, heard: Moment) {
        let heard = if mutation::on(Mutation::HearUnread) { now } else { heard };
        self.replica_mut().begin_turn(heard.min(now));
        self.read_manifest(now);
        self.begin_term(now);
        if let Role::Leads(leader) = &mut self.role {
            match leader.is_term_over(now) {
                true => {
                    leader.step_down();
                    self.stand_by(None);
                }
                false => leader.settle(now),
            }
        }
    }

    /// Takes a manifest in place of any other that is not in force yet; puts it in force at once if
    /// it is short.
    fn receive(&mut self, desired: Arc<Desired>, now: Moment) {
        if let Some(enforced) = self.replica_mut().receive(desired) {
            self.if_leads(|leader| leader.apply_manifest(enforced, now));
        }
    }

    /// Reads further of a manifest, as far as the budget goes.
    fn read_manifest(&mut self, now: Moment) {
        while let Some(enforced) = self.replica_mut().read_manifest() {
            self.if_leads(|leader| leader.apply_manifest(enforced, now));
        }
    }

    /// Whether work is left for another turn. That turn is to follow at once, after the waiting
    /// events are taken.
    #[must_use]
    pub fn has_more(&self) -> bool {
        let has_more = match &self.role {
            Role::StandsBy(_) => false,
            Role::Begins(_) => true,
            Role::Leads(leader) => leader.has_more(),
        };
        has_more || self.replica().has_more()
    }

    /// Whether this worker was declared gone and not all that it held is freed yet, or the removal
    /// of its entry is not ordered yet. Until then it is still in the answers of queries, of this
    /// leader or of the next one.
    #[must_use]
    pub fn is_ending(&self, worker: &WorkerKey) -> bool {
        self.leader()
            .is_some_and(|leader| leader.is_ending(worker) || leader.has_entry_to_remove(worker))
    }

    /// The units of work done since the last call.
    pub fn take_cost(&mut self) -> u32 {
        self.replica_mut().budget.take_spent()
    }

    /// The next effect, oldest first.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.replica_mut().effects.pop_front()
    }

    /// When to send [`Event::Wake`], if at all.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Wakeup> {
        self.leader()?.next_wakeup()
    }

    /// Whether this replica leads.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        match &self.role {
            Role::StandsBy(standby) => Leadership::StandsBy(standby.leader.clone()),
            Role::Begins(_) => Leadership::StandsBy(None),
            Role::Leads(leader) => Leadership::Leads(leader.ledger.epoch()),
        }
    }

    fn if_leads(&mut self, act: impl FnOnce(&mut Leader)) {
        match &mut self.role {
            Role::StandsBy(_) | Role::Begins(_) => {}
            Role::Leads(leader) => act(leader),
        }
    }

    fn leader(&self) -> Option<&Leader> {
        match &self.role {
            Role::StandsBy(_) | Role::Begins(_) => None,
            Role::Leads(leader) => Some(leader),
        }
    }

    fn replica(&self) -> &Replica {
        match &self.role {
            Role::StandsBy(standby) => &standby.replica,
            Role::Begins(candidate) => &candidate.replica,
            Role::Leads(leader) => &leader.replica,
        }
    }

    fn replica_mut(&mut self) -> &mut Replica {
        match &mut self.role {
            Role::StandsBy(standby) => &mut standby.replica,
            Role::Begins(candidate) => &mut candidate.replica,
            Role::Leads(leader) => &mut leader.replica,
        }
    }
}

/// How many units of work an event takes.
fn size(event: &Event) -> usize {
    match event {
        Event::Report(_, report) => report.streams.len(),
        Event::Beat(_, beat) => beat.released.len(),
        Event::Registered(workers) => workers.len(),
        Event::Gone(workers) | Event::Removed(workers) => workers.len(),
        Event::Hello(..)
        | Event::Closed(_)
        | Event::Sent(_)
        | Event::Renewed(_)
        | Event::Deposed { .. }
        | Event::Drain(_)
        | Event::Undrain(_)
        | Event::TermStands { .. }
        | Event::Wake => 0,
        // They are counted while they are read.
        Event::Desired(_) | Event::Elected(_) => 0,
    }
}
