//! The beginning and the end of a term. Invariant: nothing that was known in a term outlives it.

use std::ops::Bound;
use std::sync::Arc;

use leasehold_types::message::RefusalReason;
use leasehold_types::{Moment, WorkerKey};

use super::admission::Admission;
use super::ahead::Ahead;
use super::pipelines::Pipelines;
use super::round_robin::RoundRobin;
use super::slices::STEP;
use super::{Core, Role, Term, Timer};
use crate::desired::Desired;
use crate::effect::{Effect, Notice};
use crate::event::{Elected, Renewed};
use crate::ledger::Ledger;

/// A term that this replica has taken. It begins once the manifest is in force and every registered
/// worker is in its ledger.
#[derive(Clone, Debug)]
pub(super) struct TakenTerm {
    elected: Elected,
    /// The ledger of the term, with the registered workers up to `entered`.
    ledger: Ledger,
    entered: Option<WorkerKey>,
    /// The manifest that was in force when they were entered.
    desired: Arc<Desired>,
    /// Workers that the platform has declared gone meanwhile.
    gone: Vec<WorkerKey>,
}

impl Core {
    /// This replica has the term, which begins at once where there is little to read before.
    pub(super) fn elected(&mut self, elected: Elected, now: Moment) {
        self.leave_term(&None);
        let ledger = Ledger::new(elected.epoch, elected.predecessor_end, self.config.bounds);
        let (desired, gone) = (self.desired.clone(), Vec::new());
        let taken = TakenTerm { elected, ledger, entered: None, desired, gone };
        self.role = Role::Begins(Box::new(taken));
        self.budget.allow(self.config.slice);
        self.begin_term(now);
    }

    /// Continues to begin the term: enters the registered workers into its ledger, then leads. The
    /// hold of the term waits for the agents of every desired cluster, so a manifest that is still
    /// being read must be in force first.
    pub(super) fn begin_term(&mut self, now: Moment) {
        let Role::Begins(taken) = &mut self.role else { return };
        if self.incoming.is_some() {
            return;
        }
        if !Arc::ptr_eq(&taken.desired, &self.desired) {
            // The entries were read under other sets and clusters.
            let Elected { epoch, predecessor_end, .. } = taken.elected;
            let anew = Ledger::new(epoch, predecessor_end, self.config.bounds);
            self.garbage.add_ledger(std::mem::replace(&mut taken.ledger, anew));
            (taken.desired, taken.entered) = (self.desired.clone(), None);
            self.timers.clear();
        }
        while self.budget.is_left() {
            let most = STEP.min(self.budget.left());
            let entered = self.enter(most, now);
            self.budget.spend(entered);
            if entered < most {
                return self.lead(now);
            }
        }
    }

    /// Enters at most so many more registered workers; returns how many.
    fn enter(&mut self, most: usize, now: Moment) -> usize {
        let Role::Begins(taken) = &mut self.role else { return 0 };
        let TakenTerm { elected, ledger, entered, desired, .. } = &mut **taken;
        let after = entered.take().map_or(Bound::Unbounded, Bound::Excluded);
        let mut count = 0;
        for (key, entry) in elected.exposed.range((after, Bound::Unbounded)).take(most) {
            // The shares of a pipeline are planned together, when all of them are known.
            let cluster = desired.clusters.get(&key.cluster).filter(|it| it.class.is_none());
            let outlast = |ttl| now + self.config.bounds.outlast(ttl);
            let comes_back = cluster.map_or(Moment::NEVER, |cluster| outlast(cluster.ttl));
            for at in ledger.expose(key, entry, &self.lists, comes_back) {
                self.timers.insert((at, Timer::Unheard(key.clone())));
            }
            *entered = Some(key.clone());
            count += 1;
        }
        count
    }

    fn lead(&mut self, now: Moment) {
        let role = std::mem::replace(&mut self.role, Role::StandsBy { leader: None });
        let Role::Begins(taken) = role else { return };
        let TakenTerm { elected, ledger, gone, .. } = *taken;
        let (epoch, until) = (elected.epoch, elected.until);
        self.role = Role::Leads(Box::new(Term { ledger, until }));
        self.timers.insert((until, Timer::Term));
        self.pipelines = Pipelines::default();
        self.desire_anew(now);
        self.effects.push_back(Effect::Notice(Notice::Elected(epoch)));
        self.end_accounts(gone);
    }

    /// The platform has declared these workers gone: ends their accounts, one after the other.
    pub(super) fn end_accounts(&mut self, gone: Vec<WorkerKey>) {
        match &mut self.role {
            Role::StandsBy { .. } => {}
            Role::Begins(taken) => taken.gone.extend(gone),
            Role::Leads(_) => {
                for key in gone {
                    self.leaving.entry(key).or_default();
                }
            }
        }
    }

    /// The term lasts longer, and what waited for that goes on.
    pub(super) fn renewed(&mut self, renewed: Renewed) {
        if let Role::Begins(taken) = &mut self.role
            && taken.elected.epoch == renewed.epoch
        {
            taken.elected.until = taken.elected.until.max(renewed.until);
        }
        let Role::Leads(term) = &mut self.role else { return };
        if term.ledger.epoch() != renewed.epoch {
            return;
        }
        self.timers.remove(&(term.until, Timer::Term));
        term.until = term.until.max(renewed.until);
        self.timers.insert((term.until, Timer::Term));
        term.ledger.confirm(renewed.sent_at);
        self.confirming = false;
        for timer in std::mem::take(&mut self.unconfirmed) {
            self.timers.insert((self.heard, timer));
        }
        self.dirty.extend(std::mem::take(&mut self.awaiting));
        self.term_stands(renewed.epoch, renewed.sent_at);
    }

    /// Another replica may lead from now on.
    pub(super) fn deposed(&mut self, leader: Option<String>) {
        self.leave_term(&leader);
        self.role = Role::StandsBy { leader };
    }

    /// Ends the term, if there is one: agents are sent to the leader, or to look for one.
    fn leave_term(&mut self, leader: &Option<String>) {
        let role = Role::StandsBy { leader: leader.clone() };
        let term = match std::mem::replace(&mut self.role, role) {
            Role::StandsBy { .. } => return,
            Role::Begins(taken) => {
                self.timers.clear();
                self.garbage.add_ledger(taken.ledger);
                return;
            }
            Role::Leads(term) => term,
        };
        let epoch = term.ledger.epoch();
        for conn in std::mem::take(&mut self.conns).into_keys() {
            let reason = RefusalReason::NotLeader(leader.clone());
            self.refuse(conn, reason, "this replica leads no more".into());
        }
        for cluster in self.clusters.values_mut() {
            cluster.workers.clear();
        }
        self.admission = Admission::default();
        self.ahead = Ahead::default();
        self.due = RoundRobin::default();
        self.drop_walks_and_plans();
        self.unheard_of.clear();
        self.waiting.clear();
        self.leaving.clear();
        self.held_back.clear();
        self.adoptions.clear();
        self.timers_wait = false;
        self.timers.clear();
        self.unconfirmed.clear();
        self.awaiting.clear();
        self.confirming = false;
        self.dirty = RoundRobin::default();
        self.flushing.clear();
        self.unanswered = RoundRobin::default();
        self.pipelines = Pipelines::default();
        self.garbage.add_ledger(term.ledger);
        self.effects.push_back(Effect::Notice(Notice::Deposed(epoch)));
    }
}
