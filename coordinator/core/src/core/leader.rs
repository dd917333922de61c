//! All state of one term. Invariant: it is made when the term begins and dropped when the term
//! ends, so no knowledge of one term is used in another.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use leasehold_types::message::RefusalReason;
use leasehold_types::{ClusterName, Epoch, Moment, StreamKey, WorkerKey, WorkerName};

use super::admission::Admission;
use super::epoch_ahead::EpochAhead;
use super::pipelines::Pipelines;
use super::pools::Pools;
use super::replica::Replica;
use super::report_adoption::Adoption;
use super::round_robin::RoundRobin;
use super::sliced_work::SlicedTask;
use super::stream_plan::StreamPlan;
use super::timers::Timer;
use crate::desired::Cluster;
use crate::effect::{Effect, Freed, Notice, Order, Wakeup};
use crate::event::ConnId;
use crate::ledger::{EndedLease, Ledger};
use crate::observed::Worker;

/// A replica that leads.
#[derive(Clone, Debug)]
pub(super) struct Leader {
    /// What outlives the term.
    pub(super) replica: Box<Replica>,
    pub(super) ledger: Ledger,
    /// When leadership ends unless it is renewed.
    pub(super) until: Moment,
    pub(super) clusters: BTreeMap<ClusterName, ClusterState>,
    pub(super) pipelines: Pipelines,
    pub(super) conns: BTreeMap<ConnId, WorkerKey>,
    pub(super) admission: Admission,
    /// Agents that remember a later term.
    pub(super) epoch_ahead: EpochAhead,
    pub(super) timers: BTreeSet<(Moment, Timer)>,
    /// Some reminders that are due wait for the next turn.
    pub(super) timers_wait: bool,
    /// Timers that run again once leadership is renewed.
    pub(super) timers_awaiting_renewal: BTreeSet<Timer>,
    /// Workers whose agents are granted nothing before leadership is renewed by a request sent
    /// after their hello.
    pub(super) workers_awaiting_renewal: BTreeSet<WorkerKey>,
    /// A renewal was asked for, and has not come yet.
    pub(super) renewal_requested: bool,
    /// Workers that may have a message to get.
    pub(super) dirty: RoundRobin<WorkerKey>,
    /// Those of them whose turn has come, in order.
    pub(super) flushing: VecDeque<WorkerKey>,
    /// Workers whose newest beat is not answered.
    pub(super) unanswered: RoundRobin<WorkerKey>,
    /// Clusters whose pools or streams may need a plan.
    pub(super) due: RoundRobin<ClusterName>,
    /// Clusters whose streams wait for a plan, in order, and the plan in the making.
    pub(super) plan_queue: VecDeque<ClusterName>,
    pub(super) stream_plan: Option<Box<StreamPlan>>,
    /// Clusters with streams that a worker may hold that has not reported. They are planned again
    /// when more is known.
    pub(super) awaiting_reports: BTreeSet<ClusterName>,
    /// Workers that wait for streams that were not free.
    pub(super) blocked_workers: BTreeSet<WorkerKey>,
    /// Workers that are gone, and whose accounts still have to end; whether that has begun.
    pub(super) ending_accounts: BTreeMap<WorkerKey, bool>,
    /// Streams with claims that ended during the hold of their worker's cluster, by cluster:
    /// nothing is freed there before the end of the hold.
    pub(super) ended_during_hold: BTreeMap<ClusterName, BTreeSet<StreamKey>>,
    /// Tasks that go on in slices.
    pub(super) sliced_tasks: VecDeque<SlicedTask>,
    /// Reports that are not adopted whole yet.
    pub(super) adoptions: BTreeMap<ConnId, Adoption>,
    /// See the mutation `HelloDeposes`: the epoch that an agent named.
    pub(super) deposed_by: Option<Epoch>,
}

/// A cluster and its workers.
#[derive(Clone, Debug)]
pub(super) struct ClusterState {
    /// As desired; with no budget, where it is no longer desired.
    pub(super) spec: Arc<Cluster>,
    pub(super) defined: bool,
    pub(super) workers: BTreeMap<WorkerName, Worker>,
    pub(super) pools: Pools,
    /// When its streams are due for a plan.
    pub(super) plan: Option<PlanDue>,
    /// When they are planned again although nothing has changed: the reason that kept some from
    /// moving is over then.
    pub(super) plan_again: Option<Moment>,
    /// Since when nothing moves for balance, because a worker is missing.
    pub(super) balance_waits: Option<Moment>,
    /// It is in `Leader::plan_queue`.
    pub(super) plan_waits: bool,
    /// The hold has ended.
    pub(super) hold_ended: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PlanDue {
    pub(super) at: Moment,
    pub(super) first: Moment,
}

impl ClusterState {
    /// A cluster without workers.
    pub(super) fn new(spec: Arc<Cluster>) -> Self {
        Self {
            spec,
            defined: true,
            workers: BTreeMap::new(),
            pools: Pools::default(),
            plan: None,
            plan_again: None,
            balance_waits: None,
            plan_waits: false,
            hold_ended: false,
        }
    }
}

impl Leader {
    /// A term with this ledger, in which nothing has happened.
    pub(super) fn new(
        replica: Box<Replica>,
        ledger: Ledger,
        until: Moment,
        timers: BTreeSet<(Moment, Timer)>,
    ) -> Self {
        Self {
            replica,
            ledger,
            until,
            clusters: BTreeMap::new(),
            pipelines: Pipelines::default(),
            conns: BTreeMap::new(),
            admission: Admission::default(),
            epoch_ahead: EpochAhead::default(),
            timers,
            timers_wait: false,
            timers_awaiting_renewal: BTreeSet::new(),
            workers_awaiting_renewal: BTreeSet::new(),
            renewal_requested: false,
            dirty: RoundRobin::default(),
            flushing: VecDeque::new(),
            unanswered: RoundRobin::default(),
            due: RoundRobin::default(),
            plan_queue: VecDeque::new(),
            stream_plan: None,
            awaiting_reports: BTreeSet::new(),
            blocked_workers: BTreeSet::new(),
            ending_accounts: BTreeMap::new(),
            ended_during_hold: BTreeMap::new(),
            sliced_tasks: VecDeque::new(),
            adoptions: BTreeMap::new(),
            deposed_by: None,
        }
    }

    /// The leader's part of a turn.
    pub(super) fn settle(&mut self, now: Moment) {
        let quarter = self.replica.config.slice / 4;
        self.replica.budget.allow(quarter);
        self.run_timers(now);
        self.replica.budget.allow(2 * quarter);
        self.end_accounts_of_gone(now);
        self.adopt();
        self.welcome_waiting(now);
        self.run_sliced_tasks(now);
        self.replica.budget.allow(quarter);
        self.plan(now);
        self.replica.budget.allow(2 * quarter);
        self.plan_streams(now);
        self.plan_pipelines(now);
        self.run_sliced_tasks(now);
        self.replica.budget.allow(quarter);
        self.flush(now);
        // What was granted or asked back may change the routes of the nodes before.
        if self.pipelines.has_changed() {
            self.plan_pipelines(now);
            self.flush(now);
        }
        self.replica.budget.allow(quarter);
        self.renew(now);
        self.notify_endpoints();
        self.ask_confirmation();
    }

    /// Whether work was left for another turn.
    pub(super) fn has_more(&self) -> bool {
        let walks_done = self.sliced_tasks.is_empty() && self.ending_accounts.is_empty();
        let plans_done = self.plan_queue.is_empty() && self.stream_plan.is_none();
        let all_done = self.adoptions.is_empty() && walks_done && self.is_all_sent();
        self.timers_wait || !all_done || !self.due.is_empty() || !plans_done
    }

    /// Whether nothing may be freed, grown or planned in a cluster yet.
    pub(super) fn is_cluster_held(&self, name: &ClusterName) -> bool {
        self.ledger.held_by(name, self.replica.heard).is_some()
    }

    /// When the next reminder is due.
    pub(super) fn next_wakeup(&self) -> Option<Wakeup> {
        let (at, timer) = self.timers.first()?;
        Some(Wakeup { at: *at, reason: timer.reason() })
    }

    /// Ends a worker's account: it has left, or the platform says that it is gone.
    pub(super) fn gone(&mut self, key: &WorkerKey, now: Moment) {
        self.ending_accounts.remove(key);
        self.blocked_workers.remove(key);
        let known = self.ledger.account(key).is_some();
        self.lose_worker(key, now);
        let ended = self.ledger.gone(key);
        self.ended(ended, Freed::Gone, now);
        let cluster = self.clusters.get_mut(&key.cluster);
        let worker = cluster.and_then(|cluster| cluster.workers.remove(&key.worker));
        let conn = worker.as_ref().and_then(|worker| worker.session.as_ref());
        if let Some(conn) = conn.map(|session| session.conn) {
            self.forget_conn(conn);
            let message = format!("worker {key} was declared gone");
            self.replica.refuse(conn, RefusalReason::GoAway, message);
        }
        if !known && worker.is_none() {
            return;
        }
        self.dirty.remove(key);
        self.unanswered.remove(key);
        self.forget_epoch_ahead(key);
        self.order(Order::Unregister(vec![key.clone()]));
        self.replica.notice(Notice::Gone(key.clone()));
        self.pool_changed(key);
        self.plan_now(&key.cluster, now);
        self.recheck_blocked(now);
    }

    /// Asks something of the platform, for the present term.
    pub(super) fn order(&mut self, order: Order) {
        let epoch = self.ledger.epoch();
        self.replica.effects.push_back(Effect::Order { epoch, order });
    }

    pub(super) fn order_drain(&mut self, key: &WorkerKey, now: Moment) {
        let Some(worker) = self.worker_mut(key) else { return };
        worker.drain_ordered = true;
        self.dirty.insert(key.clone());
        self.note_draining(key);
        self.pool_changed(key);
        self.plan_soon(&key.cluster, now);
    }

    /// Gives notices of ended leases, and reconciles the streams that are free now.
    pub(super) fn ended(&mut self, ended: Vec<EndedLease>, how: Freed, now: Moment) {
        for EndedLease { stream, worker, token } in ended {
            self.reconcile_stream(&stream, now);
            self.note_single_owner(&stream, now);
            if stream.set.is_shares() {
                // Its other shares may have waited for the capacity.
                self.dirty.insert(worker.clone());
                self.recheck_node(&stream);
            }
            let notice = Notice::StreamFreed { worker, stream, token, how };
            self.replica.notice(notice);
        }
    }

    pub(super) fn observed(&self, key: &WorkerKey) -> Option<&Worker> {
        self.clusters.get(&key.cluster)?.workers.get(&key.worker)
    }

    pub(super) fn worker_mut(&mut self, key: &WorkerKey) -> Option<&mut Worker> {
        self.clusters.get_mut(&key.cluster)?.workers.get_mut(&key.worker)
    }
}
