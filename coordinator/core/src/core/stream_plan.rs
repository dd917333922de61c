//! A plan of a cluster's streams, in slices: what it rests on is gathered, then it is made, then it
//! is taken over stream by stream.
//!
//! Invariant: a plan is made from all that was gathered, and nothing is done about it before all of
//! it is taken over. A stream is left as it is if what the plan assumed of it, or of its new
//! worker, is no longer so; its cluster is then planned again.

use std::sync::Arc;

use leasehold_types::limits::STREAMS_PER_WORKER_MAX;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, Moment, SetName, StreamKey, WorkerKey, WorkerName};

use super::slices::{STEP, Walk};
use super::{Core, SetState};
use crate::desired::{Stream, StreamSet};
use crate::ledger::{Claim, Phase};
use crate::planner::streams::{
    Placement, Planning, SetInput, StreamInput, StreamSpec, Unplaced, WorkerIndex,
};

/// So many streams of a plan are placed for one unit of work: it looks at plain numbers only.
const PLACED_PER_UNIT: usize = 8;

#[expect(clippy::disallowed_types, reason = "looked up, never walked: no order is seen")]
type Index = std::collections::HashMap<WorkerName, WorkerIndex>;

/// A plan that is being made.
#[derive(Clone, Debug)]
pub(super) struct StreamPlan {
    pub(super) cluster: ClusterName,
    begun: Moment,
    /// The workers that can own streams, by name, as they were when it was begun.
    owners: Vec<WorkerName>,
    index: Index,
    /// The cluster's sets, as they were desired when it was begun.
    pub(super) sets: Vec<SetPlan>,
    stage: Stage,
    /// The set in hand, and how far it is done.
    set: usize,
    at: usize,
    /// Some streams are left out, since a worker that has not reported may hold them.
    passed_over: bool,
    /// Something has changed since it was gathered.
    is_stale: bool,
    /// When the first frozen stream thaws.
    thaw: Option<Moment>,
}

/// One set of a plan.
#[derive(Clone, Debug)]
pub(super) struct SetPlan {
    pub(super) name: SetName,
    pub(super) spec: Arc<StreamSet>,
    /// The streams that are planned: indices into the set.
    which: Vec<u32>,
    specs: Vec<StreamSpec>,
    /// How many of its streams are on their way from one worker to another.
    moving: usize,
    /// How many streams the plan moves.
    moves: usize,
    /// Those that are planned elsewhere now: indices into the set.
    touched: Vec<u32>,
}

#[derive(Clone, Debug)]
enum Stage {
    /// What is known of the streams is gathered.
    Gather,
    /// It is counted how many are on their way, where moves are limited.
    Count,
    /// The streams are placed.
    Place(Box<Planning>),
    /// The placements are taken over.
    Apply(Vec<Vec<Placement>>),
}

/// What a plan says of one stream.
pub(super) struct PlannedStream<'a> {
    pub(super) set: &'a SetName,
    pub(super) stream: &'a Stream,
    pub(super) on: Result<&'a WorkerName, Unplaced>,
}

/// What is done about one stream.
struct Outcome {
    /// Where it is in its set as it is now, and as it was.
    at: usize,
    former: u32,
    on: Option<WorkerName>,
    unplaced: Option<Unplaced>,
    /// It leaves a living worker.
    moves: bool,
}

impl StreamPlan {
    fn is_gathered(&self) -> bool {
        !matches!(self.stage, Stage::Gather | Stage::Count)
    }

    /// Goes on with the placing, for so many units of work; how many it took.
    fn place(&mut self, units: usize) -> usize {
        let workers: Vec<&str> = self.owners.iter().map(WorkerName::as_str).collect();
        let sets = self.sets.iter().map(|set| set.input(self.passed_over));
        let sets: Vec<_> = sets.collect();
        let input =
            StreamInput { workers: &workers, sets: &sets, per_worker_max: STREAMS_PER_WORKER_MAX };
        if matches!(self.stage, Stage::Gather | Stage::Count) {
            self.stage = Stage::Place(Box::new(Planning::new(&input)));
        }
        let Stage::Place(planning) = &mut self.stage else { return 0 };
        let looked_at = planning.step(&input, units.saturating_mul(PLACED_PER_UNIT));
        if planning.is_done() {
            self.stage = Stage::Apply(planning.take_placements());
        }
        1 + looked_at / PLACED_PER_UNIT
    }

    /// The next streams of the set in hand, so many at the most; the next set is in hand after the
    /// last ones. None after the last set.
    fn some(&mut self, most: usize, all: impl Fn(&SetPlan) -> usize) -> Option<(usize, Range)> {
        let set = self.set;
        let all = all(self.sets.get(set)?);
        let some = self.at..all.min(self.at + most);
        (self.set, self.at) = if some.end == all { (set + 1, 0) } else { (set, some.end) };
        Some((set, some))
    }

    /// All of the plan, once it is made.
    pub(super) fn planned(&self) -> impl Iterator<Item = PlannedStream<'_>> {
        let placements = match &self.stage {
            Stage::Apply(placements) => placements.as_slice(),
            Stage::Gather | Stage::Count | Stage::Place(_) => &[],
        };
        self.sets.iter().zip(placements).flat_map(|(set, placements)| {
            set.which.iter().zip(placements).map(|(at, placement)| PlannedStream {
                set: &set.name,
                stream: &set.spec.streams[*at as usize],
                on: match placement {
                    Placement::On(worker) => Ok(&self.owners[*worker as usize]),
                    Placement::Unplaced(why) => Err(*why),
                },
            })
        })
    }
}

type Range = std::ops::Range<usize>;

impl SetPlan {
    fn moves_max(&self) -> usize {
        self.spec.moves.per_round_max.saturating_sub(self.moving)
    }

    /// What is planned of it. Where streams are left out, nothing moves for balance: with them it
    /// would be another plan, and what moves now would have to go back.
    fn input(&self, passed_over: bool) -> SetInput<'_> {
        let moves_max = if passed_over { 0 } else { self.moves_max() };
        SetInput { policy: self.spec.policy, streams: &self.specs, moves_max }
    }

    /// Whether a set is still to be planned as this plan does.
    fn is_for(&self, set: &SetState) -> bool {
        let same_rules = self.spec.policy == set.spec.policy && self.spec.moves == set.spec.moves;
        Arc::ptr_eq(&self.spec, &set.spec) || (same_rules && self.spec.cluster == set.spec.cluster)
    }

    /// Where a stream of the plan is in the set as it is now.
    fn position(&self, set: &SetState, at: usize) -> Option<usize> {
        if Arc::ptr_eq(&self.spec, &set.spec) {
            return Some(at);
        }
        let stream = &self.spec.streams[at];
        let now = set.position(&stream.name)?;
        (set.spec.streams[now] == *stream).then_some(now)
    }
}

impl Core {
    /// Begins or goes on with the plans of clusters whose streams are due, as far as the budget
    /// goes.
    pub(super) fn plan_streams(&mut self, now: Moment) {
        while self.budget.is_left() {
            let begun = self.stream_plan.take().or_else(|| self.begin_next_plan(now));
            let Some(mut plan) = begun else { return };
            self.go_on_with(&mut plan, now);
            if plan.is_gathered() && plan.set == plan.sets.len() {
                self.end_plan(*plan, now);
            } else {
                self.stream_plan = Some(plan);
            }
        }
    }

    fn begin_next_plan(&mut self, now: Moment) -> Option<Box<StreamPlan>> {
        while let Some(name) = self.plans.pop_front() {
            let Some(cluster) = self.clusters.get_mut(&name) else { continue };
            cluster.plan_waits = false;
            cluster.plan = None;
            if self.sets_of(&name).next().is_none() {
                continue;
            }
            let owners = self.stream_owners(&name);
            let plan = self.begin_plan(&name, owners, now);
            self.budget.spend(1 + plan.owners.len() / PLACED_PER_UNIT + plan.sets.len());
            return Some(plan);
        }
        None
    }

    /// A plan of a cluster's streams over these workers, of which nothing is gathered.
    fn begin_plan(
        &self,
        name: &ClusterName,
        owners: Vec<WorkerName>,
        now: Moment,
    ) -> Box<StreamPlan> {
        let sets = self.sets_of(name).filter_map(|set| self.sets.get_key_value(set));
        let sets = sets.map(|(name, set)| SetPlan {
            name: name.clone(),
            spec: Arc::clone(&set.spec),
            which: Vec::with_capacity(set.streams.len()),
            specs: Vec::with_capacity(set.streams.len()),
            moving: 0,
            moves: 0,
            touched: Vec::new(),
        });
        Box::new(StreamPlan {
            cluster: name.clone(),
            begun: now,
            index: (0..).zip(&owners).map(|(at, worker)| (worker.clone(), at)).collect(),
            owners,
            sets: sets.collect(),
            stage: Stage::Gather,
            set: 0,
            at: 0,
            passed_over: false,
            is_stale: false,
            thaw: None,
        })
    }

    /// What would be planned of a cluster's streams over these workers; changes nothing.
    pub(super) fn imagine_plan(
        &self,
        name: &ClusterName,
        owners: Vec<WorkerName>,
        now: Moment,
    ) -> Box<StreamPlan> {
        let mut plan = self.begin_plan(name, owners, now);
        while !plan.is_gathered() {
            self.gather_some(&mut plan, usize::MAX);
        }
        while !matches!(plan.stage, Stage::Apply(_)) {
            plan.place(usize::MAX);
        }
        plan
    }

    fn go_on_with(&mut self, plan: &mut StreamPlan, now: Moment) {
        let most = STEP.min(self.budget.left());
        let units = match plan.stage {
            Stage::Gather | Stage::Count => {
                let set = plan.set;
                let units = self.gather_some(plan, most);
                self.note_gathered(plan, set);
                units
            }
            Stage::Place(_) => plan.place(self.budget.left()),
            Stage::Apply(_) => self.apply_some(plan, most, now),
        };
        self.budget.spend(units);
    }

    /// Sees to what may change meanwhile without anybody else having the cluster planned again.
    fn note_gathered(&mut self, plan: &StreamPlan, set: usize) {
        if plan.passed_over {
            self.unheard_of.insert(plan.cluster.clone());
        }
        // The end of a move makes room for another.
        if let Some(set) = plan.sets.get(set).filter(|set| set.moving > 0)
            && let Some(set) = self.sets.get_mut(&set.name)
        {
            set.limited = true;
        }
    }

    /// Gathers some more of what a plan rests on; how many streams were looked at.
    fn gather_some(&self, plan: &mut StreamPlan, most: usize) -> usize {
        let counts = matches!(plan.stage, Stage::Count);
        let some = plan.some(most, |set| {
            let all = set.spec.streams.len();
            let is_unlimited = set.spec.moves.per_round_max >= all;
            if counts && is_unlimited { 0 } else { all }
        });
        let Some((at, some)) = some else {
            if counts {
                plan.place(1);
            } else {
                plan.stage = Stage::Count;
            }
            (plan.set, plan.at) = (0, 0);
            return 1;
        };
        let looked_at = 1 + some.len();
        let Some(set) = self.sets.get(&plan.sets[at].name) else { return looked_at };
        if counts {
            let moving = some.filter(|at_set| {
                let now = plan.sets[at].position(set, *at_set);
                now.is_some_and(|now| self.is_moving(&plan.sets[at].name, set, now))
            });
            plan.sets[at].moving += moving.count();
            return looked_at;
        }
        for stream in some {
            let Some(now) = plan.sets[at].position(set, stream) else { continue };
            let spec = self.stream_spec(plan, &plan.sets[at].name, set, now);
            plan.passed_over |= spec == Err(Skipped::Unheard);
            if let Ok(spec) = spec {
                plan.sets[at].which.push(stream as u32);
                plan.sets[at].specs.push(spec);
            }
        }
        looked_at
    }

    /// What a plan is told of a stream.
    fn stream_spec(
        &self,
        plan: &StreamPlan,
        name: &SetName,
        set: &SetState,
        at: usize,
    ) -> Result<StreamSpec, Skipped> {
        let (stream, planned) = (&set.spec.streams[at], &set.streams[at]);
        let on = self.place_of(name, set, at);
        let present = on.and_then(|on| plan.index.get(on).copied());
        if present.is_none() && self.stays(name, set, at) {
            return Err(Skipped::Stays);
        }
        if planned.on.is_none() && present.is_none() && self.is_unheard_of(name, stream) {
            return Err(Skipped::Unheard);
        }
        let cooldown = set.spec.moves.cooldown;
        let moved = planned.moved_at.is_some_and(|moved| plan.begun < moved + cooldown);
        Ok(StreamSpec {
            weight: stream.weight,
            dedicated: stream.dedicated,
            present,
            frozen: moved && present.is_some(),
        })
    }

    /// Takes some more of a plan over; how many streams were looked at.
    fn apply_some(&mut self, plan: &mut StreamPlan, most: usize, now: Moment) -> usize {
        let Some((at, some)) = plan.some(most, |set| set.which.len()) else { return 1 };
        let looked_at = 1 + some.len();
        let (outcomes, is_stale) = self.outcomes(plan, at, some.clone());
        plan.is_stale |= is_stale;
        let set_plan = &mut plan.sets[at];
        let Some(set) = self.sets.get_mut(&set_plan.name) else { return looked_at };
        set.is_planned = true;
        let cooldown = set.spec.moves.cooldown;
        for outcome in outcomes {
            let planned = &mut set.streams[outcome.at];
            planned.unplaced = outcome.unplaced;
            if planned.on != outcome.on {
                if outcome.moves {
                    planned.moved_at = Some(now);
                    set_plan.moves += 1;
                }
                planned.on = outcome.on;
                set_plan.touched.push(outcome.former);
            }
            // It was frozen for this plan if it moved so short a while before it.
            let thaws = planned.moved_at.map(|moved| moved + cooldown);
            plan.thaw = plan.thaw.into_iter().chain(thaws.filter(|at| *at > plan.begun)).min();
        }
        if some.end == set_plan.which.len() {
            // Where nothing may move at all now, what moves already makes room for the rest.
            set.limited = set_plan.moves >= set_plan.moves_max();
        }
        looked_at
    }

    /// What a plan means for some streams as they are now, and whether any is not as it was.
    fn outcomes(&self, plan: &StreamPlan, at: usize, some: Range) -> (Vec<Outcome>, bool) {
        let (set_plan, Stage::Apply(placements)) = (&plan.sets[at], &plan.stage) else {
            return (Vec::new(), false);
        };
        let Some(set) = self.sets.get(&set_plan.name) else { return (Vec::new(), false) };
        if !set_plan.is_for(set) {
            return (Vec::new(), true);
        }
        let mut outcomes = Vec::with_capacity(some.len());
        let mut is_stale = false;
        for place in some {
            let (former, spec) = (set_plan.which[place], set_plan.specs[place]);
            let (on, unplaced) = match placements[at][place] {
                Placement::On(worker) => (Some(&plan.owners[worker as usize]), None),
                Placement::Unplaced(why) => (None, Some(why)),
            };
            let position = set_plan.position(set, former as usize);
            let holds = position.is_some_and(|now| {
                let is_same = self.stream_spec(plan, &set_plan.name, set, now) == Ok(spec)
                    && (spec.present.is_some() || self.is_known_to(plan, &set_plan.name, set, now))
                    && on.is_none_or(|on| self.can_take(plan, set, now, on));
                is_same || mutation::on(Mutation::PlanStale)
            });
            let Some(now) = position.filter(|_| holds) else {
                is_stale = true;
                continue;
            };
            let moves = spec.present.is_some() && on.is_some();
            outcomes.push(Outcome { at: now, former, on: on.cloned(), unplaced, moves });
        }
        (outcomes, is_stale)
    }

    /// Whether a stream is on none of the workers that the plan has not heard of.
    fn is_known_to(&self, plan: &StreamPlan, name: &SetName, set: &SetState, at: usize) -> bool {
        let Some(on) = self.place_of(name, set, at) else { return true };
        plan.index.contains_key(on) || !self.owns_streams(&plan.cluster, on)
    }

    /// Whether a stream may be planned on a worker now.
    fn can_take(&self, plan: &StreamPlan, set: &SetState, at: usize, on: &WorkerName) -> bool {
        set.streams[at].on.as_ref() == Some(on) || self.owns_streams(&plan.cluster, on)
    }

    fn owns_streams(&self, cluster: &ClusterName, worker: &WorkerName) -> bool {
        let worker = self.clusters.get(cluster).and_then(|cluster| cluster.workers.get(worker));
        worker.is_some_and(|worker| worker.owns_streams())
    }

    /// A plan is taken over: what it changes is looked at.
    fn end_plan(&mut self, plan: StreamPlan, now: Moment) {
        let StreamPlan { cluster, sets, is_stale, thaw, .. } = plan;
        for SetPlan { name: set, spec, touched: streams, .. } in sets {
            if streams.is_empty() {
                self.let_go(&set, spec);
            } else {
                self.walks.push_back(Walk::Planned { set, spec, streams, next: 0 });
            }
        }
        if mutation::on(Mutation::PlanStale) {
            self.forget_plan_due(&cluster);
        }
        if is_stale {
            self.plan_at(&cluster, now, now);
        }
        if let Some(at) = thaw {
            self.plan_at(&cluster, at, now);
        }
    }

    /// See the mutation.
    fn forget_plan_due(&mut self, name: &ClusterName) {
        self.plans.retain(|waiting| waiting != name);
        if let Some(cluster) = self.clusters.get_mut(name) {
            (cluster.plan, cluster.plan_waits) = (None, false);
        }
    }

    /// A set's list is not needed here any more. It takes long to drop where nobody else has it.
    pub(super) fn let_go(&mut self, name: &SetName, spec: Arc<StreamSet>) {
        if !self.sets.get(name).is_some_and(|set| Arc::ptr_eq(&set.spec, &spec)) {
            self.garbage.add_spec(spec);
        }
    }

    /// Drops what was begun: the term has ended.
    pub(super) fn drop_walks_and_plans(&mut self) {
        self.plans.clear();
        for walk in std::mem::take(&mut self.walks) {
            if let Walk::Planned { set, spec, .. } = walk {
                self.let_go(&set, spec);
            }
        }
        let plan = self.stream_plan.take();
        for set in plan.into_iter().flat_map(|plan| plan.sets) {
            self.let_go(&set.name, set.spec);
        }
    }

    /// The worker that a stream is planned on; where it is planned nowhere, the one that owns it.
    fn place_of<'a>(
        &'a self,
        name: &SetName,
        set: &'a SetState,
        at: usize,
    ) -> Option<&'a WorkerName> {
        if let Some(on) = &set.streams[at].on {
            return Some(on);
        }
        let stream = set.spec.streams[at].name.clone();
        let claims = self.ledger()?.claims(&StreamKey { set: name.clone(), stream });
        let held = claims
            .iter()
            .filter(|claim| claim.worker.cluster == set.spec.cluster && claim.phase == Phase::Held);
        held.max_by_key(|claim| claim.token).map(|claim| &claim.worker.worker)
    }

    /// Whether a worker that has not reported may hold a stream: planned now, it would move as soon
    /// as that worker is back.
    fn is_unheard_of(&self, set: &SetName, stream: &Stream) -> bool {
        let stream = StreamKey { set: set.clone(), stream: stream.name.clone() };
        self.ledger().is_some_and(|ledger| !ledger.is_heard_of(&stream, self.heard))
    }

    /// Whether a stream stays with a worker that cannot be heard, since its lease there never
    /// ends by time: moving it would only leave it without an owner.
    fn stays(&self, name: &SetName, set: &SetState, at: usize) -> bool {
        let (Some(on), Some(ledger)) = (set.streams[at].on.as_ref(), self.ledger()) else {
            return false;
        };
        let key = WorkerKey { cluster: set.spec.cluster.clone(), worker: on.clone() };
        let Some(worker) = self.observed(&key).filter(|worker| worker.lost) else { return false };
        let stream = set.spec.streams[at].name.clone();
        let stream = StreamKey { set: name.clone(), stream };
        worker.is_working() && ledger.claim(&stream, &key).is_some_and(|claim| claim.timeless)
    }

    /// Whether a stream is on its way from one worker to another.
    fn is_moving(&self, name: &SetName, set: &SetState, at: usize) -> bool {
        let (Some(on), Some(ledger)) = (&set.streams[at].on, self.ledger()) else { return false };
        let stream = set.spec.streams[at].name.clone();
        let key = StreamKey { set: name.clone(), stream };
        let elsewhere = |claim: &Claim| claim.worker.worker != *on;
        ledger.claims(&key).iter().any(elsewhere)
    }
}

/// Why a stream is not planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Skipped {
    /// Its worker cannot be heard, and its lease never ends by time.
    Stays,
    /// A worker that has not reported may hold it.
    Unheard,
}
