//! Loss and healing: a pipeline that loses a worker is Broken, and Broken ones are plotted anew one
//! after the other, by name.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold_types::{ClusterName, Load, Moment, NodeName, PipelineName, ShareKey, WorkerKey};

use super::super::{Core, Timer};
use super::phases::waits_for;
use super::plot::wishes;
use super::state::Turn;
use crate::view::{BindingPhase, PipelinePhase};

/// So long a pipeline has to be Ready again before the next one's turn comes: one slow agent does
/// not keep the others.
const TURN: Duration = Duration::from_millis(200);

impl Core {
    /// A worker is lost: each pipeline that it served is Broken, and no other.
    pub(in crate::core) fn lose_shares(&mut self, key: &WorkerKey, now: Moment) {
        self.pipelines.leaving.remove(key);
        self.look_at_class(&key.cluster);
        let shares = self.pipelines.tenancies.get(key).map(|tenancy| tenancy.shares.clone());
        self.lose(&shares.unwrap_or_default(), &format!("worker {key} is lost"), now);
    }

    /// These shares have lost their workers.
    fn lose(&mut self, shares: &BTreeSet<ShareKey>, why: &str, now: Moment) {
        let mut lost = BTreeMap::<&PipelineName, BTreeSet<NodeName>>::new();
        for share in shares {
            lost.entry(&share.pipeline).or_default().insert(share.node.clone());
            if self.pipelines.unjudged.contains(&share.pipeline) {
                self.pipelines.disown(share);
            }
        }
        for (pipeline, nodes) in lost {
            if !self.pipelines.unjudged.contains(pipeline) {
                self.break_up(pipeline, &nodes, why.into(), now);
            }
        }
    }

    /// A pipeline in force has lost workers of these nodes: nothing of it counts any more, and who
    /// still has a share of it keeps that until its turn comes.
    pub(super) fn break_up(
        &mut self,
        name: &PipelineName,
        dead: &BTreeSet<NodeName>,
        why: String,
        now: Moment,
    ) {
        self.pipelines.count_all(name, false);
        if let Some(state) = self.pipelines.all.get_mut(name) {
            (state.in_force, state.changes) = (false, false);
        }
        for node in self.node_names(name) {
            let to = match dead.contains(&node) {
                true => BindingPhase::DeadEnd,
                false => BindingPhase::Unset,
            };
            self.set_binding(name, &node, to);
        }
        self.set_pipeline(name, PipelinePhase::Broken, why, Vec::new());
        self.touch_pipeline(name, now);
    }

    /// Gives the turn to the next Broken pipeline, where it is nobody's; whether it did.
    pub(super) fn next_turn(&mut self, now: Moment) -> bool {
        if let Some(turn) = &self.pipelines.turn {
            let state = self.pipelines.all.get(&turn.pipeline);
            let plotted = state.is_some_and(|it| it.phase == Some(PipelinePhase::Plotted));
            if plotted && now < turn.until {
                return false;
            }
            self.pipelines.turn = None;
        }
        let next = self.pipelines.broken.iter().find(|name| !self.is_held(name)).cloned();
        let Some(name) = next else { return false };
        self.heal(&name, now);
        true
    }

    /// Chooses all workers of a Broken pipeline anew; those that it has are preferred.
    fn heal(&mut self, name: &PipelineName, now: Moment) {
        let mut field = self.field_of([name].into_iter());
        let Some(state) = self.pipelines.all.get(name) else { return };
        let (nodes, wishes) = wishes(state, |_| true);
        match field.place(&wishes) {
            Ok(placed) => {
                self.plot(name, nodes.into_iter().zip(placed).collect(), now);
                let until = now + TURN;
                self.pipelines.turn = Some(Turn { pipeline: name.clone(), until });
                self.timers.insert((until, Timer::Turn));
            }
            Err(waits) => {
                let why = waits_for(&waits);
                self.unplot(name, waits, why, now);
                self.pipelines.look = true;
            }
        }
    }

    /// A class has another capacity, or is no more: what is above it on its workers is given up,
    /// that of the last pipelines by name first.
    pub(super) fn shed(&mut self, class: &ClusterName, now: Moment) {
        let capacity = self.class(class).map(|class| class.capacity);
        let why = match capacity {
            Some(capacity) => format!("a worker of class {class} takes {capacity} at the most"),
            None => format!("no manifest defines class {class} any more"),
        };
        let over = self.pipelines.tenancies_of(class).filter(|(_, it)| exceeds(it.load, capacity));
        let over: Vec<_> = over.map(|(key, _)| key.clone()).collect();
        for worker in over {
            while let Some(tenancy) = self.pipelines.tenancies.get(&worker)
                && exceeds(tenancy.load, capacity)
                && let Some(last) = tenancy.shares.last().map(|share| share.pipeline.clone())
            {
                let shares = tenancy.shares.iter().filter(|share| share.pipeline == last);
                let shares = shares.cloned().collect();
                self.lose(&shares, &why, now);
            }
        }
    }
}

fn exceeds(load: Load, capacity: Option<Load>) -> bool {
    capacity.is_none_or(|capacity| load > capacity)
}
