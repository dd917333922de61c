//! A plan of a cluster's streams, in slices: its input is gathered, then the plan is made, then it
//! is applied stream by stream.
//!
//! Invariant: a plan is made from the whole input, and no stream is reconciled before all of the
//! plan is applied. A stream is left as it is if the facts about it or its new worker have changed
//! since; then its cluster is planned again.

mod apply;
mod input;
mod what_if;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashTable;
use leasehold_types::limits::STREAMS_PER_WORKER_MAX;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, Moment, SetName, WorkerKey, WorkerName};

pub use self::what_if::WhatIfPlan;
use super::Leader;
use super::facts::Facts;
use super::sliced_tasks::SlicedTask;
use crate::core::replica::{PlannedWorker, SetState};
use crate::core::turn_budget::STEP;
use crate::desired::{Stream, StreamSet};
use crate::exposure::AccountId;
use crate::planner::streams::{
    Placement, Planning, SetInput, StreamInput, StreamSpec, Unplaced, WorkerIndex,
};

/// Streams of a plan that are placed per unit of work: placing reads plain numbers only.
const PLACED_PER_UNIT: usize = 8;

/// A plan that is being made.
#[derive(Clone, Debug)]
pub(super) struct StreamPlan {
    cluster: ClusterName,
    begun: Moment,
    /// The workers that can own streams, by name, as they were when it was begun.
    owners: Vec<Arc<PlannedWorker>>,
    /// Those that get nothing new while others have room.
    avoided: Vec<WorkerIndex>,
    /// The owners by their accounts.
    index: HashTable<WorkerIndex>,
    /// The cluster's sets, as they were desired when it was begun.
    sets: Vec<SetPlan>,
    stage: Stage,
    /// The present set, and the position in it.
    set: usize,
    at: usize,
    /// Some streams are left out, because a worker that has not reported may hold them.
    passed_over: bool,
    /// Nothing moves for balance, because a worker is missing.
    pauses_balance: bool,
    /// Something has changed since it was gathered.
    is_stale: bool,
    /// When the cooldown of the first frozen stream ends.
    thaw: Option<Moment>,
}

/// One set of a plan.
#[derive(Clone, Debug)]
struct SetPlan {
    name: SetName,
    spec: Arc<StreamSet>,
    /// The streams that are planned: indices into the set.
    which: Vec<u32>,
    specs: Vec<StreamSpec>,
    /// How many of its streams are moving from one worker to another.
    moving: usize,
    /// How many streams the plan moves.
    moves: usize,
    /// The streams that have another planned worker now: indices into the set.
    touched: Vec<u32>,
}

#[derive(Clone, Debug)]
enum Stage {
    /// The facts about the streams are gathered.
    Gather,
    /// The moving streams are counted, if moves are limited.
    Count,
    /// The streams are placed.
    Place(Box<Planning>),
    /// The placements are applied.
    Apply(Vec<Vec<Placement>>),
}

/// The planned place of one stream.
pub(super) struct PlannedStream<'a> {
    pub(super) set: &'a SetName,
    pub(super) stream: &'a Stream,
    pub(super) on: Result<&'a WorkerName, Unplaced>,
}

impl StreamPlan {
    /// The index of a worker among the owners, if it is one.
    fn index_of(&self, worker: &PlannedWorker) -> Option<WorkerIndex> {
        let is_it = |at: &WorkerIndex| *self.owners[*at as usize] == *worker;
        self.index.find(hash(worker.account_id), is_it).copied()
    }

    fn is_gathered(&self) -> bool {
        !matches!(self.stage, Stage::Gather | Stage::Count)
    }

    /// Continues the placing for at most `units` units of work; returns how many it used.
    fn place(&mut self, units: usize) -> usize {
        let workers: Vec<&str> = self.owners.iter().map(|owner| owner.name.as_str()).collect();
        let stays = self.passed_over || self.pauses_balance;
        let sets = self.sets.iter().map(|set| set.input(stays));
        let sets: Vec<_> = sets.collect();
        let input = StreamInput {
            workers: &workers,
            avoided: &self.avoided,
            sets: &sets,
            per_worker_max: STREAMS_PER_WORKER_MAX,
        };
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

    /// The next streams of the current set, at most `most`. Moves on to the next set after the last
    /// stream; none after the last set.
    fn next_slice(
        &mut self,
        most: usize,
        all: impl Fn(&SetPlan) -> usize,
    ) -> Option<(usize, Range)> {
        let set = self.set;
        let all = all(self.sets.get(set)?);
        let range = self.at..all.min(self.at + most);
        (self.set, self.at) = if range.end == all { (set + 1, 0) } else { (set, range.end) };
        Some((set, range))
    }

    /// The sets that it refers to.
    pub(super) fn into_sets(self) -> impl Iterator<Item = (SetName, Arc<StreamSet>)> {
        self.sets.into_iter().map(|set| (set.name, set.spec))
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
                    Placement::On(worker) => Ok(&self.owners[*worker as usize].name),
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

    /// The planner's input for this set. If streams are left out, or their worker is missing,
    /// nothing moves for balance: with these streams the plan would differ, and moves made now
    /// would have to be undone.
    fn input(&self, stays: bool) -> SetInput<'_> {
        let moves_max = if stays { 0 } else { self.moves_max() };
        SetInput { policy: self.spec.policy, streams: &self.specs, moves_max }
    }

    /// Whether the plan still applies to the set.
    fn is_for(&self, set: &SetState) -> bool {
        let same_rules =
            self.spec.policy == set.spec().policy && self.spec.moves == set.spec().moves;
        Arc::ptr_eq(&self.spec, set.spec())
            || (same_rules && self.spec.cluster == set.spec().cluster)
    }

    /// Where a stream of the plan is in the set as it is now.
    fn position(&self, set: &SetState, at: usize) -> Option<usize> {
        if Arc::ptr_eq(&self.spec, set.spec()) {
            return Some(at);
        }
        let stream = &self.spec.streams[at];
        let now = set.position(&stream.name)?;
        (set.spec().streams[now] == *stream).then_some(now)
    }
}

/// Accounts are numbered one after the other: this spreads their numbers.
fn hash(account_id: AccountId) -> u64 {
    account_id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A new plan of a cluster's streams over these workers, before its input is gathered.
fn begin_plan<'a>(
    name: &ClusterName,
    owners: Vec<Arc<PlannedWorker>>,
    avoided: &BTreeSet<WorkerKey>,
    sets: impl Iterator<Item = (&'a SetName, &'a Arc<StreamSet>)>,
    now: Moment,
) -> Box<StreamPlan> {
    let is_avoided = |worker: &PlannedWorker| {
        let key = WorkerKey { cluster: name.clone(), worker: worker.name.clone() };
        avoided.contains(&key)
    };
    let avoided = (0..).zip(&owners).filter(|(_, worker)| is_avoided(worker));
    let avoided = avoided.map(|(at, _)| at).collect();
    let mut index = HashTable::with_capacity(owners.len());
    for (at, owner) in (0..).zip(&owners) {
        let rehash = |at: &WorkerIndex| hash(owners[*at as usize].account_id);
        index.insert_unique(hash(owner.account_id), at, rehash);
    }
    let sets = sets.map(|(name, spec)| SetPlan {
        name: name.clone(),
        spec: Arc::clone(spec),
        which: Vec::with_capacity(spec.streams.len()),
        specs: Vec::with_capacity(spec.streams.len()),
        moving: 0,
        moves: 0,
        touched: Vec::new(),
    });
    Box::new(StreamPlan {
        cluster: name.clone(),
        begun: now,
        avoided,
        index,
        owners,
        sets: sets.collect(),
        stage: Stage::Gather,
        set: 0,
        at: 0,
        passed_over: false,
        pauses_balance: false,
        is_stale: false,
        thaw: None,
    })
}

impl Leader {
    /// Begins and continues the plans of clusters whose streams are due, as far as the budget goes.
    pub(super) fn plan_streams(&mut self, now: Moment) {
        while self.replica.budget().is_left() {
            let begun = self.plans.take_current().or_else(|| self.begin_next_plan(now));
            let Some(mut plan) = begun else { return };
            self.continue_plan(&mut plan, now);
            if plan.is_gathered() && plan.set == plan.sets.len() {
                self.end_plan(*plan, now);
            } else {
                self.plans.put_current(plan);
            }
        }
    }

    fn begin_next_plan(&mut self, now: Moment) -> Option<Box<StreamPlan>> {
        while let Some(name) = self.plans.next_waiting() {
            let Some(cluster) = self.clusters.get_mut(&name) else { continue };
            cluster.schedule_mut().begin_plan();
            if self.replica.sets_of(&name).next().is_none() {
                continue;
            }
            let owners = stream_owners(&name, self.facts());
            let sets = self
                .replica
                .sets_of(&name)
                .filter_map(|set| self.replica.sets().get_key_value(set));
            let sets = sets.map(|(name, set)| (name, set.spec()));
            let mut plan = begin_plan(&name, owners, self.replica.avoided(), sets, now);
            plan.pauses_balance = self.pauses_balance(&name, now);
            self.replica
                .budget_mut()
                .spend(1 + plan.owners.len() / PLACED_PER_UNIT + plan.sets.len());
            return Some(plan);
        }
        None
    }

    fn continue_plan(&mut self, plan: &mut StreamPlan, now: Moment) {
        let most = STEP.min(self.replica.budget().left());
        let units = match plan.stage {
            Stage::Gather | Stage::Count => {
                let set = plan.set;
                let units = plan.gather_slice(&BTreeMap::new(), most, self.facts());
                if plan.passed_over {
                    self.plans.await_reports(plan.cluster.clone());
                }
                // The end of a move makes room for another.
                if let Some(set) = plan.sets.get(set).filter(|set| set.moving > 0)
                    && let Some(set) = self.replica.set_mut(&set.name)
                {
                    set.set_limited(true);
                }
                units
            }
            Stage::Place(_) => plan.place(self.replica.budget().left()),
            Stage::Apply(_) => {
                plan.apply_slice(most, &mut self.replica, &self.ledger, &self.clusters, now)
            }
        };
        self.replica.budget_mut().spend(units);
    }

    /// The plan is applied: the streams that it changes are reconciled.
    fn end_plan(&mut self, plan: StreamPlan, now: Moment) {
        let StreamPlan { cluster, sets, is_stale, thaw, .. } = plan;
        for SetPlan { name: set, spec, touched: streams, .. } in sets {
            if streams.is_empty() {
                self.replica.drop_spec(&set, spec);
            } else {
                self.sliced_tasks.add(SlicedTask::ReplannedStreams { set, spec, streams, next: 0 });
            }
        }
        if mutation::on(Mutation::PlanStale) {
            self.plans.stop_waiting(&cluster);
            if let Some(cluster) = self.clusters.get_mut(&cluster) {
                cluster.schedule_mut().begin_plan();
            }
        }
        if is_stale {
            self.plan_now(&cluster, now);
        }
        if let Some(at) = thaw {
            self.plan_again_at(&cluster, at);
        }
    }
}

/// The workers of a cluster that can own streams, by name.
fn stream_owners(cluster: &ClusterName, facts: Facts<'_>) -> Vec<Arc<PlannedWorker>> {
    let owners = facts.clusters.stream_owners(cluster).into_iter();
    let owners = owners.filter_map(|name| {
        let account_id = facts.ledger.accounts().id_of(cluster, &name)?;
        Some(Arc::new(PlannedWorker { name, account_id }))
    });
    owners.collect()
}
