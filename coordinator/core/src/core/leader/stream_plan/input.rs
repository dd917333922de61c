//! The input of a plan of streams: each stream as it is now.

use std::borrow::Cow;
use std::collections::BTreeMap;

use leasehold_types::{SetName, StreamKey, WorkerKey};

use super::{SetState, Stage, StreamPlan};
use crate::core::leader::facts::Facts;
use crate::core::replica::PlannedWorker;
use crate::desired::Stream;
use crate::ledger::{Claim, Phase};
use crate::planner::streams::StreamSpec;

/// Why a stream is not planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Skipped {
    /// Its worker is lost, and its lease never ends by time.
    Stays,
    /// A worker that has not reported may hold it.
    Unreported,
}

impl StreamPlan {
    /// Gathers a further slice of the plan's input; returns how many streams it read. A set in
    /// `assumed` counts in place of the one that is in force.
    pub(super) fn gather_slice(
        &mut self,
        assumed: &BTreeMap<SetName, SetState>,
        most: usize,
        facts: Facts<'_>,
    ) -> usize {
        let counts = matches!(self.stage, Stage::Count);
        let range = self.next_slice(most, |set| {
            let all = set.spec.streams.len();
            let is_unlimited = set.spec.moves.per_round_max >= all;
            if counts && is_unlimited { 0 } else { all }
        });
        let Some((at, range)) = range else {
            if counts {
                self.place(1);
            } else {
                self.stage = Stage::Count;
            }
            (self.set, self.at) = (0, 0);
            return 1;
        };
        let handled = 1 + range.len();
        let name = &self.sets[at].name;
        let set = assumed.get(name).or_else(|| facts.replica.sets().get(name));
        let Some(set) = set else { return handled };
        if counts {
            let moving = range.filter(|at_set| {
                let now = self.sets[at].position(set, *at_set);
                now.is_some_and(|now| is_moving(name, set, now, facts))
            });
            self.sets[at].moving += moving.count();
            return handled;
        }
        for stream in range {
            let Some(now) = self.sets[at].position(set, stream) else { continue };
            let spec = self.stream_spec(&self.sets[at].name, set, now, facts);
            self.passed_over |= spec == Err(Skipped::Unreported);
            if let Ok(spec) = spec {
                self.sets[at].which.push(stream as u32);
                self.sets[at].specs.push(spec);
            }
        }
        handled
    }

    /// The plan's input for one stream.
    pub(super) fn stream_spec(
        &self,
        name: &SetName,
        set: &SetState,
        at: usize,
        facts: Facts<'_>,
    ) -> Result<StreamSpec, Skipped> {
        let (stream, planned) = (&set.spec().streams[at], set.slot(at));
        let on = self.place_of(name, set, at, facts);
        let present = on.and_then(|on| self.index_of(&on));
        if present.is_none() && stays(name, set, at, facts) {
            return Err(Skipped::Stays);
        }
        if present.is_none()
            && planned.planned_on(&set.spec().cluster, facts.ledger).is_none()
            && is_unreported_of(name, stream, facts)
        {
            return Err(Skipped::Unreported);
        }
        let cooldown = set.spec().moves.cooldown;
        let moved = planned.moved_at().is_some_and(|moved| self.begun < moved + cooldown);
        Ok(StreamSpec {
            weight: stream.weight,
            dedicated: stream.dedicated,
            present,
            frozen: moved && present.is_some(),
        })
    }

    /// The worker that a stream is planned on; where it is planned nowhere, the one that owns it.
    pub(super) fn place_of<'a>(
        &self,
        name: &SetName,
        set: &'a SetState,
        at: usize,
        facts: Facts<'_>,
    ) -> Option<Cow<'a, PlannedWorker>> {
        let planned = set.slot(at);
        // Workers of the plan have accounts, and if one ends, its cluster is planned again.
        let in_plan = planned.on().filter(|on| self.index_of(on).is_some());
        if let Some(on) = in_plan.or_else(|| planned.planned_on(&set.spec().cluster, facts.ledger))
        {
            return Some(Cow::Borrowed(on));
        }
        let stream = set.spec().streams[at].name.clone();
        let claims = facts.ledger.claims(&StreamKey { set: name.clone(), stream });
        let held = claims.iter().filter(|claim| {
            claim.worker.cluster == set.spec().cluster && claim.phase == Phase::Held
        });
        let owner = &held.max_by_key(|claim| claim.token)?.worker;
        let account_id = facts.ledger.account(owner)?.id();
        Some(Cow::Owned(PlannedWorker { name: owner.worker.clone(), account_id }))
    }
}

/// Whether a worker that has not reported may hold a stream. Planned now, the stream would move
/// again as soon as that worker is back.
fn is_unreported_of(set: &SetName, stream: &Stream, facts: Facts<'_>) -> bool {
    let stream = StreamKey { set: set.clone(), stream: stream.name.clone() };
    !facts.ledger.unreported().is_heard_of(&stream, facts.replica.heard())
}

/// Whether a stream stays with a lost worker because its lease there never ends by time: a move
/// would only leave it without an owner.
fn stays(name: &SetName, set: &SetState, at: usize, facts: Facts<'_>) -> bool {
    let Some(on) = set.slot(at).planned_on(&set.spec().cluster, facts.ledger) else {
        return false;
    };
    let key = WorkerKey { cluster: set.spec().cluster.clone(), worker: on.name.clone() };
    let Some(worker) = facts.observed(&key).filter(|worker| worker.is_lost()) else {
        return false;
    };
    let stream = set.spec().streams[at].name.clone();
    let stream = StreamKey { set: name.clone(), stream };
    worker.is_working() && facts.ledger.claim(&stream, &key).is_some_and(|claim| claim.timeless)
}

/// Whether a stream is moving from one worker to another.
fn is_moving(name: &SetName, set: &SetState, at: usize, facts: Facts<'_>) -> bool {
    let Some(on) = set.slot(at).planned_on(&set.spec().cluster, facts.ledger) else {
        return false;
    };
    let stream = set.spec().streams[at].name.clone();
    let key = StreamKey { set: name.clone(), stream };
    let elsewhere = |claim: &Claim| claim.worker.worker != on.name;
    facts.ledger.claims(&key).iter().any(elsewhere)
}
