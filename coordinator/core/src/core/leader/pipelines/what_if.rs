//! Pipelines under another desired state or with other workers, which is shown and never applied.
//! The core is only read, slice by slice, to copy its classes and pipelines into a leader of their
//! own. That one puts the other state in force by the code by which this one would, and sends
//! nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use leasehold_types::message::DrainOrder;
use leasehold_types::{ClusterName, Epoch, Incarnation, Moment, PipelineName, ShareKey, WorkerKey};

use super::class_views::class_views;
use super::state::{PipelineState, PlannedShare};
use crate::core::leader::Timers;
use crate::core::replica::Replica;
use crate::core::{Core, Leader};
use crate::desired::Desired;
use crate::event::Elected;
use crate::ledger::Ledger;
use crate::observed::Worker;
use crate::view::{
    ClassChange, ClassView, PipelinePhase, PipelinesPlan, PlannedPipeline, ShareMove, SharePlace,
};

/// A plan of all pipelines that is being made for another desired state.
#[derive(Clone, Debug)]
pub struct PipelinesWhatIf {
    /// The term whose state it copies.
    epoch: Epoch,
    /// The other desired state.
    desired: Arc<Desired>,
    /// Workers of classes that join.
    joining: Vec<WorkerKey>,
    /// Workers of classes that drain and leave.
    leaving: Vec<WorkerKey>,
    /// The clusters in which nothing is planned yet.
    held: BTreeSet<ClusterName>,
    /// A leader with the classes and pipelines that are copied so far.
    copy: Box<Leader>,
    next: Next,
    /// What was planned before the other state was in force in the copy; none until it is.
    before: Option<PlannedAll>,
}

/// What is copied next.
#[derive(Clone, Debug)]
enum Next {
    /// The workers after this one.
    Workers(Option<WorkerKey>),
    /// The pipelines after this one.
    Pipelines(Option<PipelineName>),
    Nothing,
}

/// All pipelines and classes in a plan.
#[derive(Clone, Debug, Default)]
struct PlannedAll {
    pipelines: BTreeMap<PipelineName, Planned>,
    classes: BTreeMap<ClusterName, ClassView>,
}

/// A pipeline in a plan.
#[derive(Clone, Debug)]
struct Planned {
    phase: PipelinePhase,
    reason: String,
    shares: BTreeMap<ShareKey, SharePlace>,
}

impl Core {
    /// A plan of all pipelines under another desired state, before its input is gathered. None if
    /// this replica does not lead.
    #[must_use]
    pub fn begin_pipelines_what_if(&self, desired: Arc<Desired>) -> Option<PipelinesWhatIf> {
        Some(self.leader()?.begin_pipelines_what_if(desired))
    }

    /// Gathers about `most` more workers, pipelines and shares. Returns whether the input is whole;
    /// none if the term has ended in which the plan began.
    #[must_use]
    pub fn gather_pipelines_what_if(
        &self,
        what_if: &mut PipelinesWhatIf,
        most: usize,
    ) -> Option<bool> {
        let leader = self.leader().filter(|leader| leader.ledger.epoch() == what_if.epoch)?;
        Some(leader.gather_pipelines_what_if(what_if, most))
    }
}

impl Leader {
    fn begin_pipelines_what_if(&self, desired: Arc<Desired>) -> PipelinesWhatIf {
        let mut replica = Replica::new(self.replica.config);
        replica.desired = self.replica.desired.clone();
        replica.heard = self.replica.heard;
        let epoch = self.ledger.epoch();
        let elected = Elected {
            epoch,
            term: self.term,
            cell: self.cell,
            until: self.renewal.until(),
            predecessor_end: self.began_at,
            exposed: BTreeMap::new(),
            unreadable: Default::default(),
        };
        let ledger = Ledger::new(epoch, self.began_at, self.ledger.bounds);
        let began_at = self.began_at;
        let mut copy = Self::new(Box::new(replica), ledger, &elected, Timers::default(), began_at);
        let is_class = |name: &ClusterName| {
            self.replica.class(name).is_some()
                || desired.clusters.get(name).is_some_and(|cluster| cluster.class.is_some())
        };
        copy.clusters = self.clusters.without_workers(is_class);
        let held = self.pipelines.held.clone();
        copy.pipelines.held = held.clone();
        let next = Next::Workers(None);
        PipelinesWhatIf {
            epoch,
            desired,
            joining: Vec::new(),
            leaving: Vec::new(),
            held,
            copy: Box::new(copy),
            next,
            before: None,
        }
    }

    fn gather_pipelines_what_if(&self, what_if: &mut PipelinesWhatIf, most: usize) -> bool {
        let PipelinesWhatIf { copy, next, .. } = what_if;
        match next {
            Next::Workers(after) => match self.copy_workers(copy, after.as_ref(), most) {
                Some(last) => *after = Some(last),
                None => *next = Next::Pipelines(None),
            },
            Next::Pipelines(after) => match self.copy_pipelines(copy, after.as_ref(), most) {
                Some(last) => *after = Some(last),
                None => *next = Next::Nothing,
            },
            Next::Nothing => {}
        }
        matches!(next, Next::Nothing)
    }

    /// Copies the workers of classes, and what all others hold of shares. Returns the last one that
    /// was looked at; none if all were.
    fn copy_workers(
        &self,
        copy: &mut Self,
        after: Option<&WorkerKey>,
        most: usize,
    ) -> Option<WorkerKey> {
        let mut copied = 0;
        for (key, account) in self.ledger.accounts_after(after) {
            copied += 1;
            let class = copy.clusters.get_mut(&key.cluster);
            let has_shares = account.sets.keys().any(|set| set.is_shares());
            if class.is_some() || has_shares {
                copied += copy.ledger.copy_shares(&self.ledger, key);
            }
            if let Some((class, worker)) = class.zip(self.observed(key)) {
                class.insert_worker(key.worker.clone(), worker.clone());
            }
            if self.pipelines.draining.contains(key) {
                copy.pipelines.draining.insert(key.clone());
            }
            if copied >= most {
                return Some(key.clone());
            }
        }
        None
    }

    /// Copies pipelines. Returns the last one; none if all are copied.
    fn copy_pipelines(
        &self,
        copy: &mut Self,
        after: Option<&PipelineName>,
        most: usize,
    ) -> Option<PipelineName> {
        let mut copied = 0;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        for (name, state) in self.pipelines.all.range::<PipelineName, _>((from, Bound::Unbounded)) {
            let recovers = self.pipelines.recovering.contains(name);
            copied += 1 + copy.pipelines.insert_copy(name, state, recovers);
            if copied >= most {
                return Some(name.clone());
            }
        }
        None
    }

    /// A worker joins, without anything to do.
    fn join(&mut self, key: &WorkerKey, now: Moment) {
        let Some(class) = self.clusters.get_mut(&key.cluster) else { return };
        let worker = Worker { reported: true, ..Worker::new(Incarnation(0)) };
        class.insert_worker(key.worker.clone(), worker);
        self.ledger.open(key, now);
        self.recheck_class(&key.cluster);
    }

    /// A worker drains, by an order.
    fn drain(&mut self, key: &WorkerKey) {
        if let Some(worker) = self.worker_mut(key) {
            worker.drain_order = Some(DrainOrder::Drain);
            self.note_draining(key);
        }
    }

    /// Takes all that is planned as served, whereupon more may move to make room; whether anything
    /// was not served before.
    fn serve_all(&mut self) -> bool {
        let all = self.pipelines.all.iter();
        let unserved = all.filter(|(_, state)| state.phase == Some(PipelinePhase::Plotted));
        let unserved: Vec<_> = unserved
            .map(|(name, state)| (name.clone(), state.reason.clone(), state.waits.clone()))
            .collect();
        let any = !unserved.is_empty();
        for (name, reason, waits) in unserved {
            self.set_pipeline(&name, PipelinePhase::Ready, reason, waits);
        }
        any
    }

    /// All as it is planned.
    fn planned_all(&self) -> PlannedAll {
        let pipelines = self.pipelines.all.iter();
        let classes = class_views(&self.replica, Some(self)).into_iter();
        PlannedAll {
            pipelines: pipelines
                .map(|(name, state)| (name.clone(), self.planned_pipeline(name, state)))
                .collect(),
            classes: classes.map(|class| (class.name.clone(), class)).collect(),
        }
    }

    fn planned_pipeline(&self, name: &PipelineName, state: &PipelineState) -> Planned {
        let counts = self.pipelines.counts(name, state);
        let shares = state.shares(name).into_iter().filter(|_| counts);
        let place = |(key, cluster, share): (_, _, PlannedShare)| {
            let worker = WorkerKey { cluster, worker: share.on };
            (key, SharePlace { worker, load: share.load })
        };
        Planned {
            phase: match state.phase {
                _ if state.in_force => PipelinePhase::Ready,
                Some(PipelinePhase::Broken) => PipelinePhase::Broken,
                _ => PipelinePhase::Pending,
            },
            reason: if state.in_force && state.reason.is_empty() {
                String::new()
            } else {
                self.pipeline_reason(name, state)
            },
            shares: shares.map(place).collect(),
        }
    }
}

impl PipelinesWhatIf {
    /// The same, with other workers of classes: these join, and those drain and leave.
    #[must_use]
    pub fn with_workers(self, joining: Vec<WorkerKey>, leaving: Vec<WorkerKey>) -> Self {
        Self { joining, leaving, ..self }
    }

    /// Continues the plan by one pass of the leader, once the input is whole. Returns whether it is
    /// made.
    #[must_use]
    pub fn place(&mut self, now: Moment) -> bool {
        let copy = &mut self.copy;
        if self.before.is_none() {
            self.before = Some(copy.planned_all());
            let desired = Arc::clone(&self.desired);
            let in_force = std::mem::replace(&mut copy.replica.desired, desired);
            copy.apply_cluster_specs();
            copy.apply_pipeline_specs(&in_force, now);
            self.joining.iter().for_each(|key| copy.join(key, now));
            self.leaving.iter().for_each(|key| copy.drain(key));
        }
        copy.plan_pipelines_beside(self.held.clone(), now);
        // One pass heals only some of the Broken pipelines.
        let healed = copy.pipelines.broken.iter().all(|name| copy.pipelines.is_held(name));
        if !healed || copy.serve_all() {
            return false;
        }
        // Others have taken what they have room for. The rest goes with the workers.
        let leaving = std::mem::take(&mut self.leaving);
        leaving.iter().for_each(|key| copy.gone(key, now));
        leaving.is_empty()
    }

    /// The plan, once it is made.
    #[must_use]
    pub fn into_view(self) -> PipelinesPlan {
        let mut after = self.copy.planned_all();
        let mut before = self.before.unwrap_or_default();
        let pipelines = names(&before.pipelines, &after.pipelines).into_iter().filter_map(|name| {
            let before = before.pipelines.remove(&name);
            let after = after.pipelines.remove(&name);
            changed_pipeline(name, before, after)
        });
        let pipelines = pipelines.collect();
        let classes = names(&before.classes, &after.classes).into_iter().map(|name| ClassChange {
            before: before.classes.remove(&name),
            after: after.classes.remove(&name),
        });
        let classes = classes.filter(|class| class.before != class.after).collect();
        PipelinesPlan { pipelines, classes }
    }
}

/// The names that either has.
fn names<N: Ord + Clone, V>(one: &BTreeMap<N, V>, other: &BTreeMap<N, V>) -> BTreeSet<N> {
    one.keys().chain(other.keys()).cloned().collect()
}

/// How a pipeline would differ; none if it would not.
fn changed_pipeline(
    name: PipelineName,
    before: Option<Planned>,
    after: Option<Planned>,
) -> Option<PlannedPipeline> {
    let parts = |planned: Option<Planned>| match planned {
        Some(Planned { phase, reason, shares }) => (Some((phase, reason)), shares),
        None => (None, BTreeMap::new()),
    };
    let (before, mut shares_before) = parts(before);
    let (after, shares_after) = parts(after);
    let mut moves = Vec::new();
    for (key, to) in shares_after {
        let from = shares_before.remove(&key);
        if from.as_ref() != Some(&to) {
            moves.push(ShareMove { node: key.node, index: key.index, from, to: Some(to) });
        }
    }
    moves.extend(shares_before.into_iter().map(|(key, from)| ShareMove {
        node: key.node,
        index: key.index,
        from: Some(from),
        to: None,
    }));
    moves.sort_by(|one, two| (&one.node, one.index).cmp(&(&two.node, two.index)));
    if moves.is_empty() && before == after {
        return None;
    }
    let before = before.map(|(phase, _)| phase);
    let (after, reason) = after.unzip();
    let reason = reason.unwrap_or_default();
    Some(PlannedPipeline { name, before, after, reason, moves })
}
