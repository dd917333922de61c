//! From what is desired and observed to what the plan wants, cluster by cluster. During a hold
//! nothing is planned, so a failover moves nothing.

use std::collections::BTreeMap;

use leasehold_types::limits::STREAMS_PER_WORKER_MAX;
use leasehold_types::message::Jobs;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{ClusterName, Moment, SetName, StreamKey, WorkerKey, WorkerName};

use super::{Core, PlanDue, SetState, Timer};
use crate::desired::Stream;
use crate::effect::{Effect, Notice};
use crate::ledger::{Account, Claim, Phase};
use crate::observed::Worker;
use crate::planner::pools::{self, PoolInput, PoolWorker};
use crate::planner::streams::{self, Placement, SetInput, StreamInput, StreamSpec};

/// Joins and drains that keep coming are gathered for at most so many times the settle time.
const SETTLE_TIMES_MAX: u32 = 5;

/// What the planner is asked about one set.
pub(super) struct SetQuestion {
    pub(super) name: SetName,
    /// The streams that are planned: indices into the set.
    pub(super) which: Vec<u32>,
    pub(super) specs: Vec<StreamSpec>,
    pub(super) moves_max: usize,
}

impl Core {
    /// Plans every cluster for which something has changed.
    pub(super) fn plan(&mut self, now: Moment) {
        let due = self.clusters.iter().filter(|(_, cluster)| {
            cluster.pools_dirty || cluster.plan.is_some_and(|plan| plan.at <= now)
        });
        let due: Vec<_> = due.map(|(name, _)| name.clone()).collect();
        for name in due {
            let held =
                self.ledger().is_some_and(|ledger| ledger.held_by(&name, self.heard).is_some());
            if held {
                continue;
            }
            self.end_hold(&name, now);
            if self.clusters.get(&name).is_some_and(|cluster| cluster.pools_dirty) {
                self.plan_pools(&name);
            }
            let plan = self.clusters.get(&name).and_then(|cluster| cluster.plan);
            if plan.is_some_and(|plan| plan.at <= now) {
                self.plan_streams(&name, now);
            }
        }
    }

    /// Plans a cluster's streams at `at`, unless they are planned before that anyway.
    pub(super) fn plan_at(&mut self, name: &ClusterName, at: Moment, now: Moment) {
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        let due = cluster.plan.get_or_insert(PlanDue { at, first: now });
        due.at = due.at.min(at);
        self.timers.insert((due.at, Timer::Plan(name.clone())));
    }

    /// Plans a cluster's streams once its joins and drains have settled.
    pub(super) fn plan_soon(&mut self, name: &ClusterName, now: Moment) {
        let sets = self.sets.values().filter(|set| set.spec.cluster == *name);
        let Some(settle) = sets.map(|set| set.spec.moves.settle).max() else { return };
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        let at = match cluster.plan {
            None => now + settle,
            Some(due) if due.at <= now => due.at,
            Some(due) => (now + settle).min(due.first + settle * SETTLE_TIMES_MAX).max(due.at),
        };
        let first = cluster.plan.map_or(now, |due| due.first);
        cluster.plan = Some(PlanDue { at, first });
        self.timers.insert((at, Timer::Plan(name.clone())));
    }

    /// A reminder to plan: later joins may have put it off.
    pub(super) fn plan_due(&mut self, name: &ClusterName, now: Moment) {
        let due = self.clusters.get(name).and_then(|cluster| cluster.plan);
        if let Some(due) = due.filter(|due| due.at > now) {
            self.timers.insert((due.at, Timer::Plan(name.clone())));
        }
    }

    fn end_hold(&mut self, name: &ClusterName, now: Moment) {
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        if std::mem::replace(&mut cluster.hold_ended, true) {
            return;
        }
        let lost = cluster.workers.iter().filter(|(_, worker)| worker.lost);
        let lost: Vec<_> = lost.map(|(worker, _)| worker.clone()).collect();
        for worker in lost {
            let key = WorkerKey { cluster: name.clone(), worker };
            self.timers.insert((self.heard, Timer::Silence(key)));
        }
        // What came to its end meanwhile was not freed.
        let ending = self.ledger().map(|ledger| ledger.ending_in(name)).unwrap_or_default();
        let heard = self.heard;
        self.timers.extend(ending.into_iter().map(|stream| (heard, Timer::Claim(stream))));
        self.effects.push_back(Effect::Notice(Notice::HoldEnded(name.clone())));
        self.pools_dirty(name);
        self.plan_at(name, now, now);
        self.wake_wants();
    }

    fn plan_pools(&mut self, name: &ClusterName) {
        let shares = self.pool_shares(name, None);
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        cluster.pools_dirty = false;
        let floor = cluster.spec.floor;
        for (worker, state) in &mut cluster.workers {
            let key = WorkerKey { cluster: name.clone(), worker: worker.clone() };
            let super::Role::Leads(term) = &self.role else { return };
            let account = term.ledger.account(&key);
            let share = shares.get(worker).copied();
            // Nothing can be sent to a silent worker: what it has, it keeps.
            let silent = state.is_working() && share.is_none();
            let kept = account.filter(|_| silent).map_or(0, Account::size);
            state.target = share.unwrap_or(kept);
            let pool = account.and_then(|account| account.pool);
            let size = pool.map_or(0, |pool| pool.size);
            let floor_differs = pool.is_some_and(|pool| pool.floor != floor.min(state.target));
            let unsure = account.is_some_and(|account| account.size_unsure);
            if size != state.target || floor_differs || unsure {
                self.dirty.insert(key);
            }
        }
    }

    /// The pool size of each worker that can take jobs; for a look at another budget, with that.
    pub(super) fn pool_shares(
        &self,
        name: &ClusterName,
        what_if: Option<&crate::view::WhatIf>,
    ) -> BTreeMap<WorkerName, u32> {
        let (Some(cluster), Some(ledger)) = (self.clusters.get(name), self.ledger()) else {
            return BTreeMap::new();
        };
        let removed = |worker: &WorkerName| what_if.is_some_and(|it| it.remove.contains(worker));
        let mut workers = Vec::new();
        let mut elsewhere = 0u32;
        for (key, account) in ledger.accounts_of(name) {
            let state = cluster.workers.get(&key.worker);
            match state.filter(|worker| takes_jobs(worker, account)) {
                Some(_) | None if removed(&key.worker) => {}
                Some(worker) => workers.push(PoolWorker {
                    name: key.worker.clone(),
                    generation: worker.generation,
                    present: account.size(),
                }),
                None if mutation::on(Mutation::GrowOverBudget) => {}
                None => elsewhere = elsewhere.saturating_add(account.committed()),
            }
        }
        let newest = workers.iter().map(|worker| worker.generation).max().unwrap_or(0);
        let added = what_if.into_iter().flat_map(|it| it.add.iter()).map(|name| PoolWorker {
            name: name.clone(),
            generation: newest,
            present: 0,
        });
        workers.extend(added);
        let jobs_max = what_if.and_then(|it| it.jobs_max).unwrap_or(cluster.spec.jobs_max);
        let shares = pools::plan(&PoolInput {
            budget: jobs_max.saturating_sub(elsewhere),
            per_worker_max: cluster.spec.jobs_per_worker_max,
            workers: &workers,
        });
        workers.into_iter().map(|worker| worker.name).zip(shares).collect()
    }

    fn plan_streams(&mut self, name: &ClusterName, now: Moment) {
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        cluster.plan = None;
        let owners: Vec<_> = self.stream_owners(name);
        let names: Vec<&str> = owners.iter().map(WorkerName::as_str).collect();
        let questions = self.stream_questions(name, &names, now);
        let planned = self.sets.values().filter(|set| set.spec.cluster == *name);
        self.worked(planned.map(|set| set.streams.len()).sum());
        let placements = ask(&names, &questions, &self.sets);
        let mut thaw: Option<Moment> = None;
        for (question, placements) in questions.into_iter().zip(placements) {
            let set_thaw = self.place(&question, &placements, &owners, now);
            thaw = thaw.into_iter().chain(set_thaw).min();
        }
        if let Some(at) = thaw {
            self.plan_at(name, at, now);
        }
    }

    /// The workers that can own streams, by name.
    pub(super) fn stream_owners(&self, name: &ClusterName) -> Vec<WorkerName> {
        let workers = self.clusters.get(name).into_iter().flat_map(|it| it.workers.iter());
        workers.filter(|(_, it)| it.owns_streams()).map(|(worker, _)| worker.clone()).collect()
    }

    /// What to ask the planner about each set of a cluster.
    pub(super) fn stream_questions(
        &self,
        name: &ClusterName,
        owners: &[&str],
        now: Moment,
    ) -> Vec<SetQuestion> {
        #[expect(clippy::disallowed_types, reason = "looked up, never walked: no order is seen")]
        let index: std::collections::HashMap<&str, u32> =
            owners.iter().enumerate().map(|(at, worker)| (*worker, at as u32)).collect();
        let sets = self.sets.iter().filter(|(_, set)| set.spec.cluster == *name);
        sets.map(|(set_name, set)| {
            let moves = set.spec.moves;
            let mut which = Vec::with_capacity(set.streams.len());
            let mut specs = Vec::with_capacity(set.streams.len());
            for (at, (stream, planned)) in set.spec.streams.iter().zip(&set.streams).enumerate() {
                let on = match &planned.on {
                    Some(on) => Some(on.clone()),
                    None => self.holder(set_name, set, at),
                };
                let present = on.and_then(|on| index.get(on.as_str()).copied());
                if present.is_none() && self.stays(set_name, set, at) {
                    continue;
                }
                if planned.on.is_none() && present.is_none() && self.is_unheard_of(set_name, stream)
                {
                    continue;
                }
                let moved = planned.moved_at.is_some_and(|moved| now < moved + moves.cooldown);
                which.push(at as u32);
                specs.push(StreamSpec {
                    weight: stream.weight,
                    dedicated: stream.dedicated,
                    present,
                    frozen: moved && present.is_some(),
                });
            }
            let moving = match moves.per_round_max < set.streams.len() {
                true => self.moving(set_name, set),
                false => 0,
            };
            let moves_max = moves.per_round_max.saturating_sub(moving);
            SetQuestion { name: set_name.clone(), which, specs, moves_max }
        })
        .collect()
    }

    /// The worker that owns a stream which is planned nowhere.
    fn holder(&self, name: &SetName, set: &SetState, at: usize) -> Option<WorkerName> {
        let stream = set.spec.streams[at].name.clone();
        let claims = self.ledger()?.claims(&StreamKey { set: name.clone(), stream });
        let held = claims
            .iter()
            .filter(|claim| claim.worker.cluster == set.spec.cluster && claim.phase == Phase::Held);
        held.max_by_key(|claim| claim.token).map(|claim| claim.worker.worker.clone())
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

    /// Streams of a set that are on their way from one worker to another.
    fn moving(&self, name: &SetName, set: &SetState) -> usize {
        let Some(ledger) = self.ledger() else { return 0 };
        let streams = set.spec.streams.iter().zip(&set.streams);
        let moving = streams.filter(|(stream, planned)| {
            let key = StreamKey { set: name.clone(), stream: stream.name.clone() };
            let elsewhere = |claim: &Claim| Some(&claim.worker.worker) != planned.on.as_ref();
            planned.on.is_some() && ledger.claims(&key).iter().any(elsewhere)
        });
        moving.count()
    }

    /// Takes a set's placements over. When the first of its frozen streams thaws, if one is.
    fn place(
        &mut self,
        question: &SetQuestion,
        placements: &[Placement],
        owners: &[WorkerName],
        now: Moment,
    ) -> Option<Moment> {
        let set = self.sets.get_mut(&question.name)?;
        let cooldown = set.spec.moves.cooldown;
        let mut thaw: Option<Moment> = None;
        let mut touched = Vec::new();
        let mut moves = 0;
        for ((at, spec), placement) in question.which.iter().zip(&question.specs).zip(placements) {
            let planned = &mut set.streams[*at as usize];
            let (on, unplaced) = match placement {
                Placement::On(worker) => (Some(owners[*worker as usize].clone()), None),
                Placement::Unplaced(why) => (None, Some(*why)),
            };
            planned.unplaced = unplaced;
            if planned.on != on {
                if spec.present.is_some() && on.is_some() {
                    planned.moved_at = Some(now);
                    moves += 1;
                }
                planned.on = on;
                touched.push(set.spec.streams[*at as usize].name.clone());
            }
            let thaws = planned.moved_at.map(|moved| moved + cooldown).filter(|at| *at > now);
            thaw = thaw.into_iter().chain(thaws).min();
        }
        // Where nothing may move at all now, what moves already makes room for the rest.
        set.limited = moves >= question.moves_max;
        for stream in touched {
            self.touch(&StreamKey { set: question.name.clone(), stream }, now);
        }
        thaw
    }
}

/// Whether a worker can take jobs now.
fn takes_jobs(worker: &Worker, account: &Account) -> bool {
    worker.is_working()
        && worker.is_connected()
        && !worker.lost
        && account.unknown.is_none()
        && account.jobs != Jobs::Unknown
}

/// The planner's answer, set by set.
pub(super) fn ask(
    owners: &[&str],
    questions: &[SetQuestion],
    sets: &std::collections::BTreeMap<SetName, SetState>,
) -> Vec<Vec<Placement>> {
    let inputs: Vec<_> = questions
        .iter()
        .filter_map(|question| {
            let set = sets.get(&question.name)?;
            Some(SetInput {
                policy: set.spec.policy,
                streams: &question.specs,
                moves_max: question.moves_max,
            })
        })
        .collect();
    streams::plan(&StreamInput {
        workers: owners,
        sets: &inputs,
        per_worker_max: STREAMS_PER_WORKER_MAX,
    })
}
