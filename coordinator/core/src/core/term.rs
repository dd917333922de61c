//! The beginning and the end of a term: standby, candidate, leader.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use leasehold_types::message::RefusalReason;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{Moment, WorkerKey};

use super::leader::Leader;
use super::replica::Replica;
use super::sliced_work::{STEP, SlicedTask};
use super::{Core, Role, Timer};
use crate::desired::Desired;
use crate::effect::{Notice, Order};
use crate::event::{ConnId, Elected, Renewed};
use crate::ledger::Ledger;

/// A replica that does not lead.
#[derive(Clone, Debug)]
pub(super) struct Standby {
    pub(super) replica: Box<Replica>,
    /// The leader's address, where it is known.
    pub(super) leader: Option<String>,
}

/// A replica that has taken a term. It leads once the manifest is in force and every registered
/// worker is in its ledger.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) replica: Box<Replica>,
    elected: Elected,
    /// The ledger of the term, with the registered workers up to `entered`.
    ledger: Ledger,
    entered: Option<WorkerKey>,
    /// Timers for the end of what these workers may hold.
    timers: BTreeSet<(Moment, Timer)>,
    /// The manifest that was in force when they were entered.
    desired: Arc<Desired>,
    /// Workers that the platform has declared gone meanwhile.
    gone: Vec<WorkerKey>,
}

impl Core {
    /// This replica has the term, which begins at once where there is little to read before.
    pub(super) fn elected(&mut self, elected: Elected, now: Moment) {
        self.change_role(|role| {
            let mut replica = role.end_term(&None);
            replica.budget.allow(replica.config.slice);
            Role::Begins(Box::new(Candidate::new(replica, elected)))
        });
        self.begin_term(now);
    }

    /// Continues to begin the term, and leads when that is done. The hold of the term waits for
    /// the agents of every desired cluster, so a manifest that is still being read must be in
    /// force first.
    pub(super) fn begin_term(&mut self, now: Moment) {
        if let Role::Begins(candidate) = &mut self.role
            && candidate.replica.incoming.is_none()
            && candidate.enter_all(now)
        {
            self.change_role(|role| match role {
                Role::Begins(candidate) => Role::Leads(Box::new(candidate.lead(now))),
                role => role,
            });
        }
    }

    /// Another replica may lead from now on: ends the term, if there is one.
    pub(super) fn stand_by(&mut self, leader: Option<String>) {
        self.change_role(|role| {
            let replica = role.end_term(&leader);
            Role::StandsBy(Standby { replica, leader })
        });
    }

    fn change_role(&mut self, next: impl FnOnce(Role) -> Role) {
        let config = self.replica().config;
        let nobody = Standby { replica: Box::new(Replica::new(config)), leader: None };
        let role = std::mem::replace(&mut self.role, Role::StandsBy(nobody));
        self.role = next(role);
    }
}

impl Role {
    /// Ends the term, if there is one; returns what outlives it.
    fn end_term(self, leader: &Option<String>) -> Box<Replica> {
        match self {
            Self::StandsBy(standby) => standby.replica,
            Self::Begins(candidate) => {
                let Candidate { mut replica, ledger, .. } = *candidate;
                replica.garbage.add_ledger(ledger);
                replica
            }
            Self::Leads(term) => term.end(leader),
        }
    }
}

impl Standby {
    /// Sends an agent to the leader, or to look for one.
    pub(super) fn refuse(&mut self, conn: ConnId) {
        let reason = RefusalReason::NotLeader(self.leader.clone());
        self.replica.refuse(conn, reason, "this replica does not lead".into());
    }
}

impl Candidate {
    fn new(replica: Box<Replica>, elected: Elected) -> Self {
        let bounds = replica.config.bounds;
        Self {
            ledger: Ledger::new(elected.epoch, elected.predecessor_end, bounds),
            elected,
            entered: None,
            timers: BTreeSet::new(),
            desired: replica.desired.clone(),
            gone: Vec::new(),
            replica,
        }
    }

    /// Has an agent dial again.
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

    /// Enters the registered workers into the ledger, as far as the budget goes; whether all of
    /// them are.
    fn enter_all(&mut self, now: Moment) -> bool {
        if !Arc::ptr_eq(&self.desired, &self.replica.desired) {
            // The entries were read under other sets and clusters.
            let Elected { epoch, predecessor_end, .. } = self.elected;
            let fresh = Ledger::new(epoch, predecessor_end, self.replica.config.bounds);
            self.replica.garbage.add_ledger(std::mem::replace(&mut self.ledger, fresh));
            (self.desired, self.entered) = (self.replica.desired.clone(), None);
            self.timers.clear();
        }
        while self.replica.budget.is_left() {
            let most = STEP.min(self.replica.budget.left());
            let entered = self.enter(most, now);
            self.replica.budget.spend(entered);
            if entered < most {
                return true;
            }
        }
        false
    }

    /// Enters up to `most` more registered workers; returns how many.
    fn enter(&mut self, most: usize, now: Moment) -> usize {
        let bounds = self.replica.config.bounds;
        let after = self.entered.take().map_or(Bound::Unbounded, Bound::Excluded);
        let mut count = 0;
        for (key, entry) in self.elected.exposed.range((after, Bound::Unbounded)).take(most) {
            // The shares of a pipeline are planned together, when all of them are known.
            let cluster = self.desired.clusters.get(&key.cluster).filter(|it| it.class.is_none());
            let comes_back =
                cluster.map_or(Moment::NEVER, |cluster| now + bounds.outlast(cluster.ttl));
            for at in self.ledger.expose(key, entry, &self.replica.lists, comes_back) {
                self.timers.insert((at, Timer::Unheard(key.clone())));
            }
            self.entered = Some(key.clone());
            count += 1;
        }
        count
    }

    fn lead(self, now: Moment) -> Leader {
        let Self { replica, elected, ledger, timers, gone, .. } = self;
        let mut leader = Leader::new(replica, ledger, elected.until, timers);
        leader.timers.insert((elected.until, Timer::Term));
        leader.begin_with_desired(now);
        leader.replica.notice(Notice::Elected(elected.epoch));
        leader.end_accounts(gone);
        leader
    }
}

impl Leader {
    /// The platform has declared these workers gone: ends their accounts, one after the other.
    pub(super) fn end_accounts(&mut self, gone: Vec<WorkerKey>) {
        for key in gone {
            self.ending_accounts.entry(key).or_default();
        }
    }

    /// The term lasts longer, and what waited for that goes on.
    pub(super) fn renewed(&mut self, renewed: Renewed) {
        if self.ledger.epoch() != renewed.epoch {
            return;
        }
        self.timers.remove(&(self.until, Timer::Term));
        self.until = self.until.max(renewed.until);
        self.timers.insert((self.until, Timer::Term));
        self.ledger.confirm(renewed.sent_at);
        self.renewal_requested = false;
        for timer in std::mem::take(&mut self.timers_awaiting_renewal) {
            self.timers.insert((self.replica.heard, timer));
        }
        self.dirty.extend(std::mem::take(&mut self.workers_awaiting_renewal));
        self.term_stands(renewed.epoch, renewed.sent_at);
    }

    /// Whether leadership has ended unrenewed.
    pub(super) fn is_term_over(&self, now: Moment) -> bool {
        now >= self.until && !mutation::on(Mutation::GrantAfterTerm)
    }

    /// Has the platform give leadership up.
    pub(super) fn step_down(&mut self) {
        self.order(Order::StepDown { above: None });
    }

    /// See the mutation: an agent's word alone ends the term.
    pub(super) fn deposed_by_hello(&mut self) -> bool {
        let above = self.deposed_by.take();
        if above.is_some() {
            self.order(Order::StepDown { above });
        }
        above.is_some()
    }

    /// Ends the term: agents are sent to the leader, or to look for one. What takes long to drop is
    /// dropped in slices.
    fn end(self: Box<Self>, leader: &Option<String>) -> Box<Replica> {
        let Self { mut replica, ledger, conns, sliced_tasks, stream_plan, .. } = *self;
        let epoch = ledger.epoch();
        for conn in conns.into_keys() {
            let reason = RefusalReason::NotLeader(leader.clone());
            replica.refuse(conn, reason, "this replica no longer leads".into());
        }
        for task in sliced_tasks {
            if let SlicedTask::ReplannedStreams { set, spec, .. } = task {
                replica.drop_spec(&set, spec);
            }
        }
        for set in stream_plan.into_iter().flat_map(|plan| plan.sets) {
            replica.drop_spec(&set.name, set.spec);
        }
        replica.garbage.add_ledger(ledger);
        replica.notice(Notice::Deposed(epoch));
        replica
    }
}
