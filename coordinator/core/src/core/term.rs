//! The beginning and the end of a term. Invariant: nothing that was known in a term outlives it.

use leasehold_types::message::RefusalReason;
use leasehold_types::{Moment, WorkerKey};

use super::admission::Admission;
use super::ahead::Ahead;
use super::pipelines::Pipelines;
use super::round_robin::RoundRobin;
use super::{Core, Role, Term, Timer};
use crate::effect::{Effect, Notice};
use crate::event::{Elected, Renewed};
use crate::ledger::Ledger;

/// A term that was taken, and begins as soon as what is desired is known.
#[derive(Clone, Debug)]
pub(super) struct TakenTerm {
    elected: Elected,
    /// Workers that were said to be gone meanwhile.
    gone: Vec<WorkerKey>,
}

impl Core {
    /// This replica has the term. It may have to read its manifest to the end before.
    pub(super) fn elected(&mut self, elected: Elected, now: Moment) {
        self.leave_term(&None);
        self.role = Role::Begins(Box::new(TakenTerm { elected, gone: Vec::new() }));
        self.begin_term(now);
    }

    /// Begins the term that was taken: what its leader knows is what is written down. Its hold
    /// waits for agents of all clusters that are desired now, so a manifest that is being read
    /// must be in force.
    pub(super) fn begin_term(&mut self, now: Moment) {
        if self.incoming.is_some() || !matches!(self.role, Role::Begins(_)) {
            return;
        }
        let role = std::mem::replace(&mut self.role, Role::StandsBy { leader: None });
        let Role::Begins(taken) = role else { return };
        let TakenTerm { elected, gone } = *taken;
        let bounds = self.config.bounds;
        // The shares of a pipeline are planned together, when all of them are known.
        let clusters = &self.desired.clusters;
        let plain = |name: &_| clusters.get(name).filter(|cluster| cluster.class.is_none());
        let comes_back = |name: &_| match plain(name) {
            Some(cluster) => now + bounds.outlast(cluster.ttl),
            None => Moment::NEVER,
        };
        let (epoch, until) = (elected.epoch, elected.until);
        let ledger = Ledger::new(elected, bounds, &self.lists, comes_back);
        let timer = |at, key: &WorkerKey| (at, Timer::Unheard(key.clone()));
        let awaited = ledger.unheard().map(|(key, it)| timer(it.awaited_until, key));
        let lasting = ledger.unheard().map(|(key, it)| timer(it.until, key));
        // Sets that are filled in order take a fraction of the time.
        self.timers.append(&mut awaited.chain(lasting).collect());
        self.role = Role::Leads(Box::new(Term { ledger, until }));
        self.timers.insert((until, Timer::Term));
        self.pipelines = Pipelines::default();
        self.desire_anew(now);
        self.effects.push_back(Effect::Notice(Notice::Elected(epoch)));
        self.end_accounts(gone);
    }

    /// The platform says that these workers are gone: their accounts end, one after the other.
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
        let Role::Leads(term) = &self.role else { return };
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
        let role = Role::StandsBy { leader: leader.clone() };
        if let Role::Leads(term) = std::mem::replace(&mut self.role, role) {
            self.garbage.add_ledger(term.ledger);
        }
        self.effects.push_back(Effect::Notice(Notice::Deposed(epoch)));
    }
}
