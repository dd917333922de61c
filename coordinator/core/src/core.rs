//! The core of one cell: it owns what is desired, what is observed and the ledger, and is driven
//! by events. It stays the only one that decides who holds what.

mod admission;
mod adopt;
mod ahead;
mod config;
mod explain;
mod garbage;
mod lost;
mod manifest;
mod names;
mod pipelines;
mod places;
mod plan;
mod pools;
mod reconcile;
mod register;
mod round_robin;
mod send;
mod session;
mod slices;
mod stream_plan;
mod term;
mod time;
mod views;
mod wanted;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use leasehold_types::message::{CoordinatorMessage, Refusal, RefusalReason, Terms};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, Moment, SetName, StreamKey, WorkerKey, WorkerName};

use crate::desired::{Cluster, Desired, StreamSet};
use crate::effect::{Effect, Freed, Notice, Order, Wakeup};
use crate::event::{ConnId, Event};
use crate::exposure::{SetList, SetLists};
use crate::ledger::{Ended, Ledger};
use crate::observed::Worker;
use crate::planner::streams::Unplaced;
use crate::view::Leadership;
use admission::Admission;
use adopt::Adoption;
use ahead::Ahead;
pub use config::Config;
use garbage::Garbage;
use manifest::Incoming;
use pipelines::Pipelines;
use places::Places;
use pools::Pools;
use round_robin::RoundRobin;
use slices::{Budget, Walk};
use stream_plan::StreamPlan;
use term::TakenTerm;
use time::Timer;

/// One cell's state.
#[derive(Clone, Debug)]
pub struct Core {
    config: Config,
    role: Role,
    desired: Arc<Desired>,
    /// What is desired next, and not read to its end yet.
    incoming: Option<Incoming>,
    clusters: BTreeMap<ClusterName, ClusterState>,
    sets: BTreeMap<SetName, SetState>,
    pipelines: Pipelines,
    /// The lists of sets that were in force.
    lists: SetLists,
    conns: BTreeMap<ConnId, WorkerKey>,
    admission: Admission,
    /// Agents that remember a later term.
    ahead: Ahead,
    timers: BTreeSet<(Moment, Timer)>,
    /// What waits for a confirmed leadership.
    unconfirmed: BTreeSet<Timer>,
    /// Agents that are granted nothing before a leadership is confirmed that is later than their
    /// hello.
    awaiting: BTreeSet<WorkerKey>,
    /// A renewal was asked for, and has not come yet.
    confirming: bool,
    /// Workers that may have a message to get.
    dirty: RoundRobin<WorkerKey>,
    /// Those of them whose turn has come, the first one first.
    flushing: VecDeque<WorkerKey>,
    /// Workers whose newest beat is not answered.
    unanswered: RoundRobin<WorkerKey>,
    /// Clusters whose pools or streams may be to be planned.
    due: RoundRobin<ClusterName>,
    /// Clusters whose streams are to be planned, in that order, and the plan that is being made.
    plans: VecDeque<ClusterName>,
    stream_plan: Option<Box<StreamPlan>>,
    /// The sets of each cluster.
    cluster_sets: BTreeMap<ClusterName, BTreeSet<SetName>>,
    /// The handover deadlines of sets that are gone, and of which streams are still claimed.
    former_handovers: BTreeMap<SetName, Duration>,
    /// Clusters with streams that a worker of which nothing was heard may hold: they are planned
    /// when more is known.
    unheard_of: BTreeSet<ClusterName>,
    /// Workers that wait for streams that were not free.
    waiting: BTreeSet<WorkerKey>,
    /// Workers that are gone, and whose accounts are not ended yet; whether that has begun.
    leaving: BTreeMap<WorkerKey, bool>,
    /// Streams with claims that came to their end while their worker's cluster was held, by that
    /// cluster: nothing is freed there before the end of the hold.
    held_back: BTreeMap<ClusterName, BTreeSet<StreamKey>>,
    /// What goes on in slices, and what a turn may still do of it.
    walks: VecDeque<Walk>,
    /// Reports that are not adopted whole yet.
    adoptions: BTreeMap<ConnId, Adoption>,
    garbage: Garbage,
    budget: Budget,
    /// Some reminders that are due wait for the next turn.
    timers_wait: bool,
    /// Everything that had arrived before this moment has been taken in: silence is judged by it.
    heard: Moment,
    effects: VecDeque<Effect>,
}

#[derive(Clone, Debug)]
enum Role {
    StandsBy {
        leader: Option<String>,
    },
    /// The term is this replica's, and begins once its manifest is read.
    Begins(Box<TakenTerm>),
    Leads(Box<Term>),
}

#[derive(Clone, Debug)]
struct Term {
    ledger: Ledger,
    until: Moment,
}

/// A cluster and its workers.
#[derive(Clone, Debug)]
struct ClusterState {
    /// As desired; with no budget, where it is desired no more.
    spec: Arc<Cluster>,
    defined: bool,
    workers: BTreeMap<WorkerName, Worker>,
    pools: Pools,
    /// Streams are to be planned, and since when.
    plan: Option<PlanDue>,
    /// When they are to be planned again though nothing has changed: what kept some from moving is
    /// over then.
    plan_again: Option<Moment>,
    /// Since when nothing moves for balance, because a worker is missing.
    balance_waits: Option<Moment>,
    /// It waits in the queue of those whose streams are planned next.
    plan_waits: bool,
    /// The sets of which a worker may own streams, where its agent cannot stop it and where it can.
    lists: [Arc<SetList>; 2],
    /// Whoever keeps it from planning was waited for.
    hold_ended: bool,
}

#[derive(Clone, Copy, Debug)]
struct PlanDue {
    at: Moment,
    first: Moment,
}

/// A stream set and where its streams are planned.
#[derive(Clone, Debug)]
struct SetState {
    spec: Arc<StreamSet>,
    places: Places,
    streams: Vec<Planned>,
    /// Something may be planned of it.
    is_planned: bool,
    /// The last plan moved as many streams as may move at once: more may follow.
    limited: bool,
}

#[derive(Clone, Debug, Default)]
struct Planned {
    on: Option<WorkerName>,
    /// When it was last moved away from a worker that could have kept it.
    moved_at: Option<Moment>,
    unplaced: Option<Unplaced>,
}

impl Core {
    /// A core that stands by and wants nothing yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            role: Role::StandsBy { leader: None },
            desired: Arc::default(),
            incoming: None,
            clusters: BTreeMap::new(),
            sets: BTreeMap::new(),
            pipelines: Pipelines::default(),
            lists: SetLists::default(),
            conns: BTreeMap::new(),
            admission: Admission::default(),
            ahead: Ahead::default(),
            timers: BTreeSet::new(),
            unconfirmed: BTreeSet::new(),
            awaiting: BTreeSet::new(),
            confirming: false,
            dirty: RoundRobin::default(),
            flushing: VecDeque::new(),
            unanswered: RoundRobin::default(),
            due: RoundRobin::default(),
            plans: VecDeque::new(),
            stream_plan: None,
            cluster_sets: BTreeMap::new(),
            former_handovers: BTreeMap::new(),
            unheard_of: BTreeSet::new(),
            waiting: BTreeSet::new(),
            leaving: BTreeMap::new(),
            held_back: BTreeMap::new(),
            walks: VecDeque::new(),
            adoptions: BTreeMap::new(),
            garbage: Garbage::default(),
            budget: Budget::default(),
            timers_wait: false,
            heard: Moment(0),
            effects: VecDeque::new(),
        }
    }

    /// Takes one event in, which arrived at `at`: leases are counted from there, however much
    /// later it is taken. Effects follow at [`Self::settle`], so that many events that are there
    /// together are planned together.
    pub fn handle(&mut self, event: Event, at: Moment) {
        self.worked(1 + size(&event));
        match event {
            Event::Hello(conn, hello, peer) => self.hello(conn, hello, peer, at),
            Event::Report(conn, report) => self.report(conn, report, at),
            Event::Beat(conn, beat) => self.beat(conn, beat, at),
            Event::Closed(conn) => self.closed(conn),
            Event::Sent(conn) => self.sent(conn),
            Event::Desired(desired) => self.receive(desired, at),
            Event::Elected(elected) => self.elected(elected, at),
            Event::Renewed(renewed) => self.renewed(renewed),
            Event::TermStands { epoch, asked_at } => self.term_stands(epoch, asked_at),
            Event::Deposed { leader } => self.deposed(leader),
            Event::Registered(workers) => self.registered(workers),
            Event::Gone(workers) => self.end_accounts(workers),
            Event::Drain(key) => self.order_drain(&key, at),
            Event::Wake => {}
        }
    }

    /// Plans what has changed, and decides what is granted, asked back and freed. Everything that
    /// had arrived before `heard` has been handled: a worker's silence is judged up to that moment
    /// and never up to `now`, because a message of it may still wait.
    pub fn settle(&mut self, now: Moment, heard: Moment) {
        let heard = if mutation::on(Mutation::HearUnread) { now } else { heard };
        self.heard = self.heard.max(heard.min(now));
        self.budget.allow(self.config.slice);
        self.drop_garbage();
        self.read_manifest(now);
        self.begin_term(now);
        let Role::Leads(term) = &self.role else { return };
        if now >= term.until && !mutation::on(Mutation::GrantAfterTerm) {
            self.order(Order::StepDown { above: None });
            self.deposed(None);
            return;
        }
        let quarter = self.config.slice / 4;
        self.budget.allow(quarter);
        self.run_timers(now);
        self.budget.allow(2 * quarter);
        self.end_gone(now);
        self.adopt();
        self.welcome_waiting(now);
        self.walk(now);
        self.budget.allow(quarter);
        self.plan(now);
        self.budget.allow(2 * quarter);
        self.plan_streams(now);
        self.plan_pipelines(now);
        self.walk(now);
        self.budget.allow(quarter);
        self.flush(now);
        // What was granted or asked back may be news for those before it.
        if self.pipelines.has_changed() {
            self.plan_pipelines(now);
            self.flush(now);
        }
        self.budget.allow(quarter);
        self.renew(now);
        self.tell_endpoints();
        self.ask_confirmation();
    }

    /// Whether work was left for another turn, which is to follow at once after what waits was
    /// taken.
    #[must_use]
    pub fn has_more(&self) -> bool {
        let begins = matches!(self.role, Role::Begins(_));
        let is_read = self.incoming.is_none() && self.adoptions.is_empty() && !begins;
        let walks_done = self.walks.is_empty() && self.leaving.is_empty();
        let all_done = is_read && walks_done && self.garbage.is_empty() && self.is_all_told();
        let plans_done = self.plans.is_empty() && self.stream_plan.is_none();
        // A replica that stands by plans nothing.
        let is_planned = (self.due.is_empty() && plans_done) || self.ledger().is_none();
        self.timers_wait || !all_done || !is_planned
    }

    /// The units of work that were done since this was last asked.
    pub fn take_cost(&mut self) -> u32 {
        self.budget.take_spent()
    }

    fn worked(&mut self, units: usize) {
        self.budget.count(units);
    }

    /// The next effect, oldest first.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When to send [`Event::Wake`], if at all.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Wakeup> {
        let Role::Leads(_) = &self.role else { return None };
        let (at, timer) = self.timers.first()?;
        Some(Wakeup { at: *at, reason: timer.reason() })
    }

    /// Whether this replica leads.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        match &self.role {
            Role::StandsBy { leader } => Leadership::StandsBy(leader.clone()),
            Role::Begins(_) => Leadership::StandsBy(None),
            Role::Leads(term) => Leadership::Leads(term.ledger.epoch()),
        }
    }

    /// Ends a worker's account: it has left, or the platform says that it is gone.
    fn gone(&mut self, key: &WorkerKey, now: Moment) {
        self.leaving.remove(key);
        self.waiting.remove(key);
        let Role::Leads(term) = &mut self.role else { return };
        let known = term.ledger.account(key).is_some();
        self.lose_shares(key, now);
        let Role::Leads(term) = &mut self.role else { return };
        let ended = term.ledger.gone(key);
        self.ended(ended, Freed::Gone, now);
        let cluster = self.clusters.get_mut(&key.cluster);
        let worker = cluster.and_then(|cluster| cluster.workers.remove(&key.worker));
        let conn = worker.as_ref().and_then(|worker| worker.session.as_ref());
        if let Some(conn) = conn.map(|session| session.conn) {
            self.forget_conn(conn);
            let message = format!("worker {key} was declared gone");
            self.refuse(conn, RefusalReason::GoAway, message);
        }
        if !known && worker.is_none() {
            return;
        }
        self.dirty.remove(key);
        self.unanswered.remove(key);
        self.forget_ahead(key);
        self.order(Order::Unregister(vec![key.clone()]));
        self.effects.push_back(Effect::Notice(Notice::Gone(key.clone())));
        self.pool_changed(key);
        self.plan_now(&key.cluster, now);
        self.wake_wants(now);
    }

    /// Asks something of the platform, for the present term.
    fn order(&mut self, order: Order) {
        if let Role::Leads(term) = &self.role {
            let epoch = term.ledger.epoch();
            self.effects.push_back(Effect::Order { epoch, order });
        }
    }

    fn order_drain(&mut self, key: &WorkerKey, now: Moment) {
        let Some(worker) = self.worker_mut(key) else { return };
        worker.drain_ordered = true;
        self.dirty.insert(key.clone());
        self.note_leaving(key);
        self.pool_changed(key);
        self.plan_soon(&key.cluster, now);
    }

    /// Tells of leases that have ended, and sees to the streams that are free now.
    fn ended(&mut self, ended: Vec<Ended>, how: Freed, now: Moment) {
        for Ended { stream, worker, token } in ended {
            self.touch(&stream, now);
            self.note_one_owner(&stream, now);
            if stream.set.is_shares() {
                // What it is to have may have waited for the capacity.
                self.dirty.insert(worker.clone());
                self.wake_node(&stream);
            }
            let notice = Notice::StreamFreed { worker, stream, token, how };
            self.effects.push_back(Effect::Notice(notice));
        }
    }

    fn refuse(&mut self, conn: ConnId, reason: RefusalReason, message: String) {
        let message = CoordinatorMessage::Refusal(Refusal { reason, message });
        self.effects.push_back(Effect::Send { conn, message });
        self.effects.push_back(Effect::Close(conn));
    }

    fn ledger(&self) -> Option<&Ledger> {
        match &self.role {
            Role::StandsBy { .. } | Role::Begins(_) => None,
            Role::Leads(term) => Some(&term.ledger),
        }
    }

    fn observed(&self, key: &WorkerKey) -> Option<&Worker> {
        self.clusters.get(&key.cluster)?.workers.get(&key.worker)
    }

    fn worker_mut(&mut self, key: &WorkerKey) -> Option<&mut Worker> {
        self.clusters.get_mut(&key.cluster)?.workers.get_mut(&key.worker)
    }

    /// The times that hold for a cluster's agents.
    fn terms(&self, cluster: &Cluster) -> Terms {
        Terms {
            ttl: cluster.ttl,
            beat: (cluster.ttl / BEATS_PER_TTL).min(BEAT_MAX),
            reserve: self.config.bounds.outlast(cluster.ttl),
            drain_deadline: cluster.drain_deadline,
        }
    }

    /// The stream's set and its place in it, where it is desired.
    fn planned(&self, stream: &StreamKey) -> Option<(&SetState, &Planned)> {
        let set = self.sets.get(&stream.set)?;
        let at = set.position(&stream.stream)?;
        Some((set, &set.streams[at]))
    }

    fn planned_mut(&mut self, stream: &StreamKey) -> Option<&mut Planned> {
        let set = self.sets.get_mut(&stream.set)?;
        let at = set.position(&stream.stream)?;
        set.is_planned = true;
        Some(&mut set.streams[at])
    }
}

/// So many beats fit into a lease: an agent that misses three answers, and then asks two replicas
/// in vain, still has time left.
const BEATS_PER_TTL: u32 = 5;
/// The longest time between two beats.
const BEAT_MAX: Duration = Duration::from_secs(2);

/// How much there is to be looked at in an event.
fn size(event: &Event) -> usize {
    match event {
        Event::Report(_, report) => report.streams.len(),
        Event::Beat(_, beat) => beat.released.len(),
        Event::Registered(workers) => workers.len(),
        Event::Gone(workers) => workers.len(),
        Event::Hello(..)
        | Event::Closed(_)
        | Event::Sent(_)
        | Event::Renewed(_)
        | Event::Deposed { .. }
        | Event::Drain(_)
        | Event::TermStands { .. }
        | Event::Wake => 0,
        // They are counted as they are read.
        Event::Desired(_) | Event::Elected(_) => 0,
    }
}
