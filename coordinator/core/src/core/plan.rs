//! From what is desired and observed to what the plan wants, cluster by cluster. During a hold
//! nothing is planned, so a failover moves nothing.

use leasehold_types::limits::STREAMS_PER_WORKER_MAX;
use leasehold_types::{ClusterName, Moment, SetName, StreamKey, WorkerKey, WorkerName};

use super::slices::Walk;
use super::{Core, PlanDue, SetState, Timer};
use crate::desired::Stream;
use crate::effect::{Effect, Notice};
use crate::ledger::{Claim, Phase};
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
    /// Some of its streams are left out, since a worker that has not reported may hold them.
    pub(super) is_unheard_of: bool,
}

impl Core {
    /// Plans every cluster for which something has changed.
    pub(super) fn plan(&mut self, now: Moment) {
        self.note_accounts();
        for name in std::mem::take(&mut self.due) {
            let held =
                self.ledger().is_some_and(|ledger| ledger.held_by(&name, self.heard).is_some());
            if held {
                self.due.insert(name);
                continue;
            }
            self.end_hold(&name, now);
            self.plan_pools(&name);
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
        if due.at <= now {
            self.due.insert(name.clone());
        }
    }

    /// Plans a cluster's streams once its joins and drains have settled.
    pub(super) fn plan_soon(&mut self, name: &ClusterName, now: Moment) {
        let sets = self.sets_of(name).filter_map(|set| self.sets.get(set));
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
        let Some(due) = due else { return };
        if due.at > now {
            self.timers.insert((due.at, Timer::Plan(name.clone())));
        } else {
            self.due.insert(name.clone());
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
        self.walks.push_back(Walk::Ending { cluster: name.clone(), slot: 0 });
        self.effects.push_back(Effect::Notice(Notice::HoldEnded(name.clone())));
        self.plan_at(name, now, now);
        self.wake_wants(now);
    }

    fn plan_streams(&mut self, name: &ClusterName, now: Moment) {
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        cluster.plan = None;
        let owners: Vec<_> = self.stream_owners(name);
        let names: Vec<&str> = owners.iter().map(WorkerName::as_str).collect();
        let questions = self.stream_questions(name, &names, now);
        if questions.iter().any(|question| question.is_unheard_of) {
            self.unheard_of.insert(name.clone());
        }
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
        let sets = self.sets_of(name).filter_map(|set| self.sets.get_key_value(set));
        sets.map(|(set_name, set)| {
            let moves = set.spec.moves;
            let mut which = Vec::with_capacity(set.streams.len());
            let mut specs = Vec::with_capacity(set.streams.len());
            let mut is_unheard_of = false;
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
                    is_unheard_of = true;
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
            SetQuestion { name: set_name.clone(), which, specs, moves_max, is_unheard_of }
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
        set.is_planned = true;
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
        if !touched.is_empty() {
            touched.reverse();
            self.walks.push_back(Walk::Planned { set: question.name.clone(), streams: touched });
        }
        thaw
    }
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
