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
use replica::ReplicaState;
use term::{Standby, StartingLeader};

/// One cell's state.
#[derive(Clone, Debug)]
pub struct Core {
    role: Role,
}

/// The role of this replica. Each role owns the state that outlives it, and hands it on to the next
/// role.
#[derive(Clone, Debug)]
enum Role {
    Standby(Standby),
    /// This replica has taken the term, and leads once its manifest is read.
    Starting(Box<StartingLeader>),
    Leader(Box<Leader>),
}

impl Core {
    /// A core that stands by, with an empty desired state.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let replica = Box::new(ReplicaState::new(config));
        Self { role: Role::Standby(Standby { replica, leader: None }) }
    }

    /// Takes an event that arrived at `at`: leases are counted from that moment, even if the event
    /// is taken later. Effects follow at [`Self::settle`], so that events that arrive together are
    /// planned together.
    pub fn handle(&mut self, event: Event, at: Moment) {
        self.replica_mut().budget_mut().count(1 + size(&event));
        match event {
            Event::Hello(conn, hello, peer) => self.hello(conn, hello, peer, at),
            Event::Desired(desired) => self.receive(desired, at),
            Event::Elected(elected) => self.become_starting(elected, at),
            Event::NamespacesRead(read) => match &mut self.role {
                Role::Standby(_) => {}
                Role::Starting(starting) => starting.namespaces_read(read),
                Role::Leader(leader) => leader.namespaces_read(&read, at),
            },
            Event::Renewed(renewed) => match &mut self.role {
                Role::Standby(_) => {}
                Role::Starting(starting) => starting.renewed(renewed),
                Role::Leader(leader) => leader.renewed(renewed),
            },
            Event::Deposed { leader } => self.become_standby(leader),
            Event::Gone(workers) => match &mut self.role {
                Role::Standby(_) => {}
                Role::Starting(starting) => starting.gone(workers),
                Role::Leader(leader) => leader.end_accounts(workers),
            },
            // Only a leader has agents.
            Event::Removed(workers) => self.if_leads(|leader| leader.end_sessions(workers)),
            Event::Report(conn, report) => self.if_leads(|leader| leader.report(conn, report, at)),
            Event::Beat(conn, beat) => self.if_leads(|leader| leader.beat(conn, beat, at)),
            Event::Closed(conn) => self.if_leads(|leader| leader.closed(conn)),
            Event::Sent(conn) => self.if_leads(|leader| leader.sent(conn)),
            Event::TermStands { epoch, asked_at } => {
                self.if_leads(|leader| leader.term_stands(epoch, asked_at));
            }
            Event::Registered(workers) => self.if_leads(|leader| leader.registered(workers)),
            Event::Unregistered(workers) => self.if_leads(|leader| leader.unregistered(workers)),
            Event::Drain(key) => self.if_leads(|leader| leader.order_drain(&key, at)),
            Event::Undrain(key) => self.if_leads(|leader| leader.take_drain_back(&key, at)),
            Event::Avoid(workers) => {
                let before = self.replica_mut().replace_avoided(workers);
                self.if_leads(|leader| leader.avoidance_changed(&before, at));
            }
            Event::Wake => {}
        }
    }

    fn hello(&mut self, conn: ConnId, hello: Hello, peer: Option<Arc<str>>, at: Moment) {
        match &mut self.role {
            Role::Standby(standby) => standby.refuse(conn),
            Role::Starting(starting) => starting.refuse(conn),
            Role::Leader(leader) => {
                leader.hello(conn, hello, peer, at);
                if leader.steps_down_for_agent() {
                    self.become_standby(None);
                }
            }
        }
    }

    /// Plans what has changed, and decides what is granted, revoked and freed.
    ///
    /// `received_up_to` is the receive watermark: all messages that arrived before it have been
    /// handled. Silence is measured up to it and not up to `now`, because a later message may still
    /// be queued.
    pub fn settle(&mut self, now: Moment, received_up_to: Moment) {
        let unread = mutation::on(Mutation::HearUnread);
        let received_up_to = if unread { now } else { received_up_to };
        self.replica_mut().begin_turn(received_up_to.min(now));
        self.read_manifest(now);
        self.continue_start(now);
        if let Role::Leader(leader) = &mut self.role {
            if leader.is_term_over(now) {
                leader.step_down();
                self.become_standby(None);
            } else {
                leader.settle(now);
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
            Role::Standby(_) => false,
            Role::Starting(_) => true,
            Role::Leader(leader) => leader.has_more(),
        };
        has_more || self.replica().has_more()
    }

    /// Whether an agent's next message may wait until its last one is written. Where none does,
    /// [`Event::Sent`] may come together with other events: nothing is sent before those.
    #[must_use]
    pub fn holds_back(&self) -> bool {
        self.leader().is_some_and(Leader::holds_back)
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
        self.replica_mut().budget_mut().take_spent()
    }

    /// The effects that wait to be taken, oldest first.
    pub fn effects(&self) -> impl Iterator<Item = &Effect> {
        self.replica().effects()
    }

    /// The next effect, oldest first.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.replica_mut().next_effect()
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
            Role::Standby(standby) => Leadership::Standby(standby.leader.clone()),
            Role::Starting(_) => Leadership::Standby(None),
            Role::Leader(leader) => Leadership::Leader(leader.ledger.epoch()),
        }
    }

    fn if_leads(&mut self, act: impl FnOnce(&mut Leader)) {
        match &mut self.role {
            Role::Standby(_) | Role::Starting(_) => {}
            Role::Leader(leader) => act(leader),
        }
    }

    fn leader(&self) -> Option<&Leader> {
        match &self.role {
            Role::Standby(_) | Role::Starting(_) => None,
            Role::Leader(leader) => Some(leader),
        }
    }

    fn replica(&self) -> &ReplicaState {
        match &self.role {
            Role::Standby(standby) => &standby.replica,
            Role::Starting(starting) => &starting.replica,
            Role::Leader(leader) => &leader.replica,
        }
    }

    fn replica_mut(&mut self) -> &mut ReplicaState {
        match &mut self.role {
            Role::Standby(standby) => &mut standby.replica,
            Role::Starting(starting) => &mut starting.replica,
            Role::Leader(leader) => &mut leader.replica,
        }
    }
}

/// How many units of work an event takes.
fn size(event: &Event) -> usize {
    match event {
        Event::Report(_, report) => report.streams.len(),
        Event::Beat(_, beat) => beat.released.len(),
        Event::Registered(workers) => workers.len(),
        Event::NamespacesRead(read) => read.exposed.len(),
        Event::Gone(workers) | Event::Removed(workers) | Event::Unregistered(workers) => {
            workers.len()
        }
        Event::Avoid(workers) => workers.len(),
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
