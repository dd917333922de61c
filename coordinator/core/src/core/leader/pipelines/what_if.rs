//! Pipelines under another desired state or with other workers, which is shown and never applied.
//! The core is only read, slice by slice, to copy its classes and pipelines. The other state is put
//! in force in the copy by the code by which the leader would do so, and nothing is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use leasehold_types::{ClusterName, Epoch, Moment, PipelineName, ShareKey, WorkerKey};

use super::class_views::class_views;
use super::state::{PipelineState, PlannedShare};
use super::{PipelineChanges, Pipelines};
use crate::core::Core;
use crate::core::leader::Query;
use crate::core::leader::clusters::Clusters;
use crate::core::leader::facts::Facts;
use crate::core::replica::ReplicaState;
use crate::desired::Desired;
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
    copy: Box<PipelinesCopy>,
    next: Next,
    /// What was planned before the other state was in force in the copy; none until it is.
    before: Option<PlannedAll>,
}

/// The classes and pipelines of a leader that are copied so far.
#[derive(Clone, Debug)]
struct PipelinesCopy {
    replica: ReplicaState,
    ledger: Ledger,
    clusters: Clusters,
    pipelines: Pipelines,
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

impl PipelinesWhatIf {
    /// A plan of all pipelines under another desired state, before its input is gathered. None if
    /// this replica does not lead.
    #[must_use]
    pub fn begin(core: &Core, desired: Arc<Desired>) -> Option<Self> {
        Some(core.query()?.begin_pipelines_what_if(desired))
    }

    /// Gathers about `most` more workers, pipelines and shares. Returns whether the input is whole;
    /// none if the term has ended in which the plan began.
    #[must_use]
    pub fn gather(&mut self, core: &Core, most: usize) -> Option<bool> {
        let query = core.query().filter(|query| query.ledger.epoch() == self.epoch)?;
        Some(query.gather_pipelines_what_if(self, most))
    }
}

impl Query<'_> {
    fn begin_pipelines_what_if(&self, desired: Arc<Desired>) -> PipelinesWhatIf {
        let replica = self.replica.copy_desired();
        let is_class = |name: &ClusterName| {
            self.replica.class(name).is_some()
                || desired.clusters.get(name).is_some_and(|cluster| cluster.class.is_some())
        };
        let epoch = self.ledger.epoch();
        let copy = PipelinesCopy {
            ledger: Ledger::new(epoch, self.replica.heard(), self.replica.config().bounds),
            replica,
            clusters: self.clusters.without_workers(is_class),
            pipelines: Pipelines {
                on_hold: self.pipelines.on_hold.clone(),
                ..Pipelines::default()
            },
        };
        PipelinesWhatIf {
            epoch,
            desired,
            joining: Vec::new(),
            leaving: Vec::new(),
            copy: Box::new(copy),
            next: Next::Workers(None),
            before: None,
        }
    }

    fn gather_pipelines_what_if(&self, what_if: &mut PipelinesWhatIf, most: usize) -> bool {
        let PipelinesWhatIf { copy, next, .. } = what_if;
        match next {
            Next::Workers(after) => {
                match copy.take_workers(self.pipelines, self.facts(), after.as_ref(), most) {
                    Some(last) => *after = Some(last),
                    None => *next = Next::Pipelines(None),
                }
            }
            Next::Pipelines(after) => {
                match copy.take_pipelines(self.pipelines, after.as_ref(), most) {
                    Some(last) => *after = Some(last),
                    None => *next = Next::Nothing,
                }
            }
            Next::Nothing => {}
        }
        matches!(next, Next::Nothing)
    }
}

impl PipelinesCopy {
    fn query(&self) -> Query<'_> {
        let Self { replica, ledger, clusters, pipelines } = self;
        Query { replica, ledger, clusters, pipelines }
    }

    /// Changes the pipelines. Nothing is sent, so what follows from the change is dropped.
    fn change(&mut self, change: impl FnOnce(&mut Pipelines, Facts<'_>) -> PipelineChanges) {
        let Self { replica, ledger, clusters, pipelines } = self;
        drop(change(pipelines, Facts { replica, ledger, clusters }));
    }

    /// Copies the workers of classes, and what all others hold of shares. Returns the last one that
    /// was looked at; none if all were.
    fn take_workers(
        &mut self,
        pipelines: &Pipelines,
        facts: Facts<'_>,
        after: Option<&WorkerKey>,
        most: usize,
    ) -> Option<WorkerKey> {
        let mut copied = 0;
        for (key, account) in facts.ledger.accounts().after(after) {
            copied += 1;
            let class = self.clusters.get_mut(&key.cluster);
            let has_shares = account.sets().any(|(set, _)| set.is_shares());
            if class.is_some() || has_shares {
                copied += self.ledger.copy_shares(facts.ledger, key);
            }
            if let Some((class, worker)) = class.zip(facts.observed(key)) {
                class.insert_worker(key.worker.clone(), worker.clone());
            }
            if pipelines.draining.contains(key) {
                self.pipelines.draining.insert(key.clone());
            }
            if copied >= most {
                return Some(key.clone());
            }
        }
        None
    }

    /// Copies pipelines. Returns the last one; none if all are copied.
    fn take_pipelines(
        &mut self,
        pipelines: &Pipelines,
        after: Option<&PipelineName>,
        most: usize,
    ) -> Option<PipelineName> {
        let mut copied = 0;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        for (name, _) in pipelines.all.range::<PipelineName, _>((from, Bound::Unbounded)) {
            copied += 1 + self.pipelines.copy_from(pipelines, name);
            if copied >= most {
                return Some(name.clone());
            }
        }
        None
    }

    /// Puts the other desired state in force.
    fn apply(&mut self, desired: Arc<Desired>) {
        let before = self.replica.replace_desired(desired);
        self.clusters.apply(self.replica.desired());
        self.change(|pipelines, facts| pipelines.apply_specs(&before, facts));
    }

    /// A worker joins, without anything to do.
    fn join(&mut self, key: &WorkerKey, now: Moment) {
        let Some(class) = self.clusters.get_mut(&key.cluster) else { return };
        class.insert_worker(key.worker.clone(), Worker::assumed());
        self.ledger.open(key, now);
        self.pipelines.recheck_class(&key.cluster, &self.replica);
    }

    /// A worker drains, by an order.
    fn drain(&mut self, key: &WorkerKey) {
        let Self { replica, ledger, clusters, pipelines } = self;
        if let Some(worker) = clusters.worker_mut(key) {
            worker.drain_mut().set_ordered();
            pipelines.drain_changed(key, Facts { replica, ledger, clusters });
        }
    }

    /// A worker is gone.
    fn remove(&mut self, key: &WorkerKey) {
        self.change(|pipelines, facts| pipelines.lose_worker(key, facts));
        for lease in self.ledger.gone(key) {
            self.pipelines.leases_changed(&lease.stream);
        }
        if let Some(cluster) = self.clusters.get_mut(&key.cluster) {
            cluster.remove_worker(&key.worker);
        }
    }

    /// Takes all that is planned as served; then more may move to make room. Returns whether
    /// anything was not served before.
    fn serve_all(&mut self) -> bool {
        let Self { replica, ledger, clusters, pipelines } = self;
        let all = pipelines.all.iter();
        let unserved = all.filter(|(_, state)| state.phase == Some(PipelinePhase::Plotted));
        let unserved: Vec<_> = unserved
            .map(|(name, state)| (name.clone(), state.reason.clone(), state.waits.clone()))
            .collect();
        let any = !unserved.is_empty();
        let facts = Facts { replica, ledger, clusters };
        for (name, reason, waits) in unserved {
            pipelines.set_pipeline(&name, PipelinePhase::Ready, reason, waits, facts);
        }
        any
    }

    /// All as it is planned.
    fn planned_all(&self) -> PlannedAll {
        let pipelines = self.pipelines.all.iter();
        let classes = class_views(&self.replica, Some(self.query())).into_iter();
        PlannedAll {
            pipelines: pipelines
                .map(|(name, state)| (name.clone(), self.planned_pipeline(name, state)))
                .collect(),
            classes: classes.map(|class| (class.name.clone(), class)).collect(),
        }
    }

    fn planned_pipeline(&self, name: &PipelineName, state: &PipelineState) -> Planned {
        let counts = self.pipelines.counts(name, state);
        let shares = state.shares(name).filter(|_| counts);
        let place = |(key, class, share): (_, &ClusterName, &PlannedShare)| {
            let worker = WorkerKey { cluster: class.clone(), worker: share.on.clone() };
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
                self.query().reason(name, state)
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
            copy.apply(Arc::clone(&self.desired));
            self.joining.iter().for_each(|key| copy.join(key, now));
            self.leaving.iter().for_each(|key| copy.drain(key));
        }
        let on_hold = copy.pipelines.on_hold.clone();
        copy.change(|pipelines, facts| pipelines.plan(on_hold, facts));
        // One pass heals only some of the Broken pipelines.
        if !copy.pipelines.is_healed() || copy.serve_all() {
            return false;
        }
        // Others have taken what they have room for. The rest goes with the workers.
        let leaving = std::mem::take(&mut self.leaving);
        leaving.iter().for_each(|key| copy.remove(key));
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

impl Pipelines {
    /// Takes a pipeline over from another leader, as it is there; how many shares it has.
    fn copy_from(&mut self, other: &Self, name: &PipelineName) -> usize {
        let Some(state) = other.all.get(name) else { return 0 };
        if other.recovering.contains(name) {
            self.recovering.insert(name.clone());
        }
        let counts = other.counts(name, state);
        self.broken.keep(name, other.broken.kept_by(name).to_vec());
        self.all.insert(name.clone(), state.clone());
        if counts {
            self.count_all(name, true);
        }
        self.update_indexes(name);
        state.nodes.values().map(|node| node.shares.len()).sum()
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
