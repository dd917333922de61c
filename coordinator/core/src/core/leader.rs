//! All state of one term. [`Leader`] is the whole of its owners: each has private fields, and the
//! leader applies what one of them answers to the others. [`Leader::settle`] is the order of a
//! turn. `lib.rs` draws the owners and what passes between them.
//!
//! Invariant: it is made when the term begins and dropped when the term ends, so no knowledge of
//! one term is used in another.

mod absence;
mod account_end;
mod admission;
mod adoption;
mod agent_messages;
mod agent_rules;
mod claim_expiry;
mod cluster_plan;
mod clusters;
mod drains;
mod epoch_ahead;
mod explain;
mod facts;
mod goodbyes;
mod grant_composer;
mod grant_rules;
mod grants;
mod hello;
mod manifest;
mod outgoing;
mod pending_frees;
mod pipeline_changes;
mod pipelines;
mod plan_queue;
mod plan_schedule;
mod planned_lease;
mod pool_targets;
mod pools;
mod reconcile;
mod registered_workers;
mod registration;
mod renewal;
mod report_adoption;
mod round_robin;
mod session_end;
mod sessions;
mod sliced_tasks;
mod sliced_work;
mod stream_plan;
mod timers;
mod unreadable;
mod views;
mod welcomes;
mod worker_names;

use leasehold_types::message::RefusalReason;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{CellId, Epoch, Moment, TermId, WorkerKey};

use super::Core;
use super::replica::ReplicaState;
use crate::effect::{Notice, Order, Wakeup};
use crate::event::{Elected, KnownLeader, Renewed};
use crate::ledger::Ledger;
use crate::observed::Worker;
use clusters::Clusters;
use epoch_ahead::{EpochAhead, TermQuery};
use facts::Facts;
use goodbyes::Goodbyes;
use outgoing::Outgoing;
use pending_frees::PendingFrees;
use pipelines::Pipelines;
pub use pipelines::PipelinesWhatIf;
use plan_queue::PlanQueue;
pub(super) use registered_workers::{enter, is_passed_on};
use renewal::{AwaitingRenewal, Renewal};
use sessions::Sessions;
use sliced_tasks::SlicedTasks;
pub use stream_plan::WhatIfPlan;
pub(super) use timers::{Timer, Timers};
use unreadable::UnreadableNamespaces;

/// A replica that leads.
#[derive(Clone, Debug)]
pub(super) struct Leader {
    /// What outlives the term.
    pub(super) replica: Box<ReplicaState>,
    pub(super) ledger: Ledger,
    /// The identity of the term.
    term: TermId,
    cell: Option<CellId>,
    /// When the term began: nothing was heard of any agent before.
    began_at: Moment,
    renewal: Renewal,
    clusters: Clusters,
    pipelines: Pipelines,
    sessions: Sessions,
    goodbyes: Goodbyes,
    unreadable: UnreadableNamespaces,
    epoch_ahead: EpochAhead,
    timers: Timers,
    outgoing: Outgoing,
    plans: PlanQueue,
    pending_frees: PendingFrees,
    sliced_tasks: SlicedTasks,
}

/// What queries are answered from: the owners that they read, between two turns. The answers are
/// made beside their subjects, in `views`, `explain`, `stream_plan` and `pipelines`.
#[derive(Clone, Copy, Debug)]
struct Query<'a> {
    replica: &'a ReplicaState,
    ledger: &'a Ledger,
    clusters: &'a Clusters,
    pipelines: &'a Pipelines,
}

impl Core {
    /// Answers what only a leader can answer; none if this replica does not lead.
    fn query(&self) -> Option<Query<'_>> {
        let Leader { replica, ledger, clusters, pipelines, .. } = self.leader()?;
        Some(Query { replica, ledger, clusters, pipelines })
    }
}

impl<'a> Query<'a> {
    /// The same owners, without the pipelines.
    fn facts(&self) -> Facts<'a> {
        Facts { replica: self.replica, ledger: self.ledger, clusters: self.clusters }
    }

    /// A worker, as observed in this term.
    fn observed(&self, key: &WorkerKey) -> Option<&'a Worker> {
        self.clusters.worker(key)
    }
}

impl Leader {
    /// A term with this ledger, in which nothing has happened.
    pub(super) fn new(
        replica: Box<ReplicaState>,
        ledger: Ledger,
        elected: &Elected,
        timers: Timers,
        now: Moment,
    ) -> Self {
        Self {
            replica,
            ledger,
            term: elected.term,
            cell: elected.cell,
            began_at: now,
            renewal: Renewal::new(elected.until),
            clusters: Clusters::default(),
            pipelines: Pipelines::default(),
            sessions: Sessions::default(),
            goodbyes: Goodbyes::default(),
            unreadable: UnreadableNamespaces::new(elected.unreadable.clone()),
            epoch_ahead: EpochAhead::default(),
            timers,
            outgoing: Outgoing::default(),
            plans: PlanQueue::default(),
            pending_frees: PendingFrees::default(),
            sliced_tasks: SlicedTasks::default(),
        }
    }

    /// The leader's part of a turn, in the order in which its facts depend on each other: what has
    /// ended, what agents hold, what is planned, what is sent. Each part has a share of the turn's
    /// budget. A part that spends it continues in the next turn, and the parts after it still run.
    pub(super) fn settle(&mut self, now: Moment) {
        let quarter = self.replica.config().slice / 4;

        // Time: silence, expired claims, and plans that are due.
        self.replica.budget_mut().allow(quarter);
        self.run_timers(now);

        // What agents hold: the accounts of workers that are gone end, and reports are adopted.
        self.replica.budget_mut().allow(2 * quarter);
        self.end_accounts_of_gone(now);
        self.adopt();
        self.welcome_waiting(now);
        self.run_sliced_tasks(now);

        // The plan: pools, and whose streams are due; then streams, one cluster after the other;
        // then pipelines.
        self.replica.budget_mut().allow(quarter);
        self.plan(now);
        self.replica.budget_mut().allow(2 * quarter);
        self.plan_streams(now);
        self.plan_pipelines(now);
        // What the plans have changed is reconciled, so that the messages of this turn have it.
        self.run_sliced_tasks(now);

        // Messages.
        self.replica.budget_mut().allow(quarter);
        self.flush(now);
        // Grants and revocations may change the routes of the nodes before.
        if self.pipelines.has_changed() {
            self.plan_pipelines(now);
            self.flush(now);
        }
        // Beats are answered however long the messages of others are.
        self.replica.budget_mut().allow(quarter);
        self.renew(now);

        // What the turn has decided that others wait for.
        for notice in self.pipelines.take_notices() {
            self.replica.notice(notice);
        }
        self.request_renewal();
    }

    /// Runs the timers that are due, as far as the budget goes.
    fn run_timers(&mut self, now: Moment) {
        let heard = self.replica.heard();
        while let Some(timer) = self.timers.next_due(now, heard, self.replica.budget_mut()) {
            match timer {
                Timer::Unreported(key) => self.unreported_due(&key, now),
                Timer::Silence(key) => self.silence_due(&key, now),
                Timer::GiveUp(key) => self.give_up_due(&key),
                Timer::Claim(stream) => self.claim_due(&stream, now),
                Timer::Plan(cluster) => self.plan_due(&cluster, now),
                Timer::AskTerm => self.ask_term(now),
                Timer::Unserved(conn) => self.unserved_due(conn),
                // Each turn checks these.
                Timer::Term | Timer::Heal | Timer::Credit => {}
            }
        }
    }

    /// Requests a renewal of leadership if something waits for one.
    fn request_renewal(&mut self) {
        if self.renewal.begin_request() {
            self.order(Order::Confirm);
        }
    }

    /// Whether work is left for another turn.
    pub(super) fn has_more(&self) -> bool {
        let tasks_done = self.sliced_tasks.is_empty() && self.pending_frees.has_no_account();
        let all_done = self.sessions.are_adopted() && tasks_done && self.outgoing.is_empty();
        self.timers.has_more() || !all_done || !self.plans.is_empty()
    }

    /// Whether an agent's message waits until its last one is written.
    pub(super) fn holds_back(&self) -> bool {
        self.sessions.holds_back()
    }

    /// When the next timer is due.
    pub(super) fn next_wakeup(&self) -> Option<Wakeup> {
        self.timers.next_wakeup()
    }

    /// Leadership was renewed: the term lasts longer, and work that waited for a renewal continues.
    pub(super) fn renewed(&mut self, renewed: Renewed) {
        if self.ledger.epoch() != renewed.epoch {
            return;
        }
        self.timers.cancel(self.renewal.until(), Timer::Term);
        let AwaitingRenewal { workers, timers } = self.renewal.succeed(renewed.until);
        self.timers.set(self.renewal.until(), Timer::Term);
        self.ledger.confirm(renewed.sent_at);
        for timer in timers {
            self.timers.set(self.replica.heard(), timer);
        }
        self.outgoing.mark_all(workers);
        self.term_stands(renewed.epoch, renewed.sent_at);
    }

    /// Asks the store whether this term stands, if an agent remembers a later one.
    fn ask_term(&mut self, now: Moment) {
        match self.epoch_ahead.query(now) {
            TermQuery::NotNeeded => {}
            TermQuery::Now { seen } => self.order(Order::AskTerm { seen }),
            TermQuery::At(at) => self.timers.set(at, Timer::AskTerm),
        }
    }

    /// The term stood in the store at that moment.
    pub(super) fn term_stands(&mut self, epoch: Epoch, asked_at: Moment) {
        if self.ledger.epoch() == epoch {
            for notice in self.epoch_ahead.term_stands(asked_at) {
                self.replica.notice(notice);
            }
        }
    }

    /// Whether leadership has ended unrenewed.
    pub(super) fn is_term_over(&self, now: Moment) -> bool {
        now >= self.renewal.until() && !mutation::on(Mutation::GrantAfterTerm)
    }

    /// Has the platform give leadership up.
    pub(super) fn step_down(&mut self) {
        self.order(Order::StepDown { above: None });
    }

    /// Has the platform give leadership up if an agent needs a term with a higher number; returns
    /// whether it does.
    pub(super) fn steps_down_for_agent(&mut self) -> bool {
        let above = self.epoch_ahead.take_wanted_above();
        if above.is_some() {
            self.order(Order::StepDown { above });
        }
        above.is_some()
    }

    /// Ends the term: agents are sent to the leader, or to look for one. Large values are dropped
    /// in slices.
    pub(super) fn end(self: Box<Self>, leader: Option<&KnownLeader>) -> Box<ReplicaState> {
        let Self { mut replica, ledger, sessions, goodbyes, sliced_tasks, plans, .. } = *self;
        let epoch = ledger.epoch();
        for conn in sessions.into_conns().chain(goodbyes.into_conns()) {
            let address = leader.map(|leader| leader.address.clone());
            let reason = RefusalReason::NotLeader(address);
            replica.refuse(conn, reason, "this replica no longer leads".into());
        }
        for (set, spec) in sliced_tasks.into_sets().chain(plans.into_sets()) {
            replica.drop_spec(&set, spec);
        }
        replica.drop_ledger(ledger);
        replica.notice(Notice::Deposed(epoch));
        replica
    }

    /// Has entries removed that stand for nothing.
    pub(super) fn forget_entries(&mut self, keys: Vec<WorkerKey>) {
        if !keys.is_empty() {
            self.order(Order::Unregister(keys));
        }
    }

    /// Gives the platform an order for the present term.
    fn order(&mut self, order: Order) {
        let epoch = self.ledger.epoch();
        self.replica.order(epoch, order);
    }

    fn observed(&self, key: &WorkerKey) -> Option<&Worker> {
        self.clusters.worker(key)
    }

    fn worker_mut(&mut self, key: &WorkerKey) -> Option<&mut Worker> {
        self.clusters.worker_mut(key)
    }
}
