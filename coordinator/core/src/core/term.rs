//! The states of a replica and its transitions: [`Core::become_standby`],
//! [`Core::become_starting`], [`Core::become_leader`]. No other code changes the role.
//!
//! Invariant: a role hands on what outlives it, and everything else of it is dropped.

use std::ops::Bound;
use std::sync::Arc;

use leasehold_types::message::RefusalReason;
use leasehold_types::{Moment, WorkerKey};

use super::leader::{Leader, Timer, Timers, enter, is_passed_on};
use super::replica::ReplicaState;
use super::turn_budget::STEP;
use super::{Core, Role};
use crate::desired::Desired;
use crate::effect::Notice;
use crate::event::{ConnId, Elected, KnownLeader, NamespacesRead, Renewed};
use crate::ledger::Ledger;

/// A replica that does not lead.
#[derive(Clone, Debug)]
pub(super) struct Standby {
    pub(super) replica: Box<ReplicaState>,
    /// The leader, where it is known.
    pub(super) leader: Option<KnownLeader>,
}

/// A replica that has taken a term. It leads once the manifest is in force and every registered
/// worker is in its ledger.
#[derive(Clone, Debug)]
pub(super) struct StartingLeader {
    pub(super) replica: Box<ReplicaState>,
    elected: Elected,
    /// The ledger of the term, with the registered workers up to `entered`.
    ledger: Ledger,
    entered: Option<WorkerKey>,
    /// Timers for the end of what these workers may hold.
    timers: Timers,
    /// The manifest that was in force when they were entered.
    desired: Arc<Desired>,
    /// Workers that the platform has declared gone meanwhile.
    gone: Vec<WorkerKey>,
    /// Names whose entry is of an agent that another one has displaced.
    passed_on: Vec<WorkerKey>,
}

impl Core {
    /// Another replica may lead from now on: ends the term, if there is one.
    pub(super) fn become_standby(&mut self, leader: Option<KnownLeader>) {
        self.change_role(|role| {
            let replica = role.end_term(leader.as_ref());
            Role::Standby(Standby { replica, leader })
        });
    }

    /// This replica has taken a term: ends the one before, if there is one. It leads at once if
    /// little is to be read first.
    pub(super) fn become_starting(&mut self, elected: Elected, now: Moment) {
        self.change_role(|role| {
            let mut replica = role.end_term(None);
            let slice = replica.config().slice;
            replica.budget_mut().allow(slice);
            Role::Starting(Box::new(StartingLeader::new(replica, elected)))
        });
        self.continue_start(now);
    }

    /// Continues to start the term, and leads when that is done. The hold of the term waits for
    /// the agents of every desired cluster, so a manifest that is still being read must be in
    /// force first.
    pub(super) fn continue_start(&mut self, now: Moment) {
        if let Role::Starting(starting) = &mut self.role
            && !starting.replica.is_reading_manifest()
            && starting.enter_all(now)
        {
            self.become_leader(now);
        }
    }

    /// The manifest is in force and every registered worker is entered: this replica leads.
    fn become_leader(&mut self, now: Moment) {
        self.change_role(|role| match role {
            Role::Starting(starting) => Role::Leader(Box::new(starting.lead(now))),
            Role::Standby(_) | Role::Leader(_) => role,
        });
    }

    fn change_role(&mut self, next: impl FnOnce(Role) -> Role) {
        let config = self.replica().config();
        let placeholder = Standby { replica: Box::new(ReplicaState::new(config)), leader: None };
        let role = std::mem::replace(&mut self.role, Role::Standby(placeholder));
        self.role = next(role);
    }
}

impl Role {
    /// Ends the term, if there is one; returns what outlives it.
    fn end_term(self, leader: Option<&KnownLeader>) -> Box<ReplicaState> {
        match self {
            Self::Standby(standby) => standby.replica,
            Self::Starting(starting) => {
                let StartingLeader { mut replica, ledger, .. } = *starting;
                replica.drop_ledger(ledger);
                replica
            }
            Self::Leader(leading) => leading.end(leader),
        }
    }
}

impl Standby {
    /// Sends an agent to the leader, or to look for one.
    pub(super) fn refuse(&mut self, conn: ConnId) {
        let address = self.leader.as_ref().map(|leader| leader.address.clone());
        let reason = RefusalReason::NotLeader(address);
        self.replica.refuse(conn, reason, "this replica does not lead".into());
    }
}

impl StartingLeader {
    fn new(replica: Box<ReplicaState>, elected: Elected) -> Self {
        let bounds = replica.config().bounds;
        Self {
            ledger: Ledger::new(elected.epoch, elected.predecessor_end, bounds),
            elected,
            entered: None,
            timers: Timers::default(),
            desired: replica.desired().clone(),
            gone: Vec::new(),
            passed_on: Vec::new(),
            replica,
        }
    }

    /// Refuses an agent, which dials again.
    pub(super) fn refuse(&mut self, conn: ConnId) {
        let message = "this replica has not read its manifests yet: dial again";
        self.replica.refuse(conn, RefusalReason::NotLeader(None), message.into());
    }

    /// The platform has declared these workers gone.
    pub(super) fn gone(&mut self, workers: Vec<WorkerKey>) {
        self.gone.extend(workers);
    }

    /// The term lasts longer.
    pub(super) fn renewed(&mut self, renewed: Renewed) {
        if self.elected.epoch == renewed.epoch {
            self.elected.until = self.elected.until.max(renewed.until);
        }
    }

    /// Namespaces that could not be read at the election were read: their workers are entered,
    /// too.
    pub(super) fn namespaces_read(&mut self, read: NamespacesRead) {
        if self.elected.epoch == read.epoch {
            self.elected.exposed.extend(read.exposed);
            self.elected.unreadable.retain(|namespace| !read.namespaces.contains(namespace));
            self.enter_anew();
        }
    }

    /// Begins to enter the registered workers from the first one.
    fn enter_anew(&mut self) {
        let Elected { epoch, predecessor_end, .. } = self.elected;
        let fresh = Ledger::new(epoch, predecessor_end, self.replica.config().bounds);
        self.replica.drop_ledger(std::mem::replace(&mut self.ledger, fresh));
        (self.desired, self.entered) = (self.replica.desired().clone(), None);
        self.passed_on.clear();
        self.timers = Timers::default();
    }

    /// Enters the registered workers into the ledger, as far as the budget goes; returns whether
    /// all are entered.
    fn enter_all(&mut self, now: Moment) -> bool {
        if !Arc::ptr_eq(&self.desired, self.replica.desired()) {
            // The entries were read under other sets and clusters.
            self.enter_anew();
        }
        while self.replica.budget().is_left() {
            let most = STEP.min(self.replica.budget().left());
            let entered = self.enter(most, now);
            self.replica.budget_mut().spend(entered);
            if entered < most {
                return true;
            }
        }
        false
    }

    /// Enters up to `most` more registered workers; returns how many.
    fn enter(&mut self, most: usize, now: Moment) -> usize {
        let after = self.entered.take().map_or(Bound::Unbounded, Bound::Excluded);
        let mut count = 0;
        for (key, entry) in self.elected.exposed.range((after, Bound::Unbounded)).take(most) {
            self.entered = Some(key.clone());
            count += 1;
            if is_passed_on(&self.elected.exposed, key, entry) {
                self.passed_on.push(key.clone());
                continue;
            }
            enter(&mut self.ledger, &mut self.timers, &self.replica, (key, entry), now);
        }
        count
    }

    fn lead(self, now: Moment) -> Leader {
        let Self { replica, elected, ledger, mut timers, gone, passed_on, .. } = self;
        timers.set(elected.until, Timer::Term);
        let mut leader = Leader::new(replica, ledger, &elected, timers, now);
        leader.begin_with_desired(now);
        leader.replica.notice(Notice::Elected(elected.epoch));
        leader.forget_entries(passed_on);
        leader.end_accounts(gone);
        leader
    }
}
