//! The worker classes and pipelines of a run: what it begins with, and how they are edited.
//!
//! Invariant: what a platform would refuse is never desired: each graph is acyclic, and each
//! pipeline fits on its classes' most workers if it is alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fastrand::Rng;
use leasehold_coordinator_core::desired::{
    Class, Cluster, Desired, Node, Pipeline, Rebalance, Spread,
};
use leasehold_coordinator_core::planner::pipelines::fits;
use leasehold_types::share::WorkerAddress;
use leasehold_types::{ClusterName, Load, NodeName, PipelineName};

use crate::system::profile::{Profile, pick};

/// Pipelines that a run has at most.
const PIPELINES_MAX: usize = 12;

fn class_name(index: usize) -> ClusterName {
    ClusterName::new(&format!("c{index}")).expect("a name")
}

pub(crate) fn class(rng: &mut Rng, profile: &Profile) -> Cluster {
    let class = Class {
        capacity: milli(*pick(rng, &[5_000, 7_500, 10_000, 15_000, 30_000])),
        workers_min: 0,
        workers_max: rng.u32(2..=8),
        utilization: 70,
        spread: if rng.u8(0..3) == 0 { Spread::Even } else { Spread::Fewest },
        rebalance: if rng.u8(0..3) == 0 { Rebalance::WhenBlocked } else { Rebalance::Never },
        handover_deadline: profile.ttl * rng.u32(1..=4) / 2,
    };
    Cluster {
        jobs_max: 0,
        jobs_per_worker_max: 1,
        drain_deadline: profile.ttl * rng.u32(2..=8),
        ttl: profile.ttl,
        class: Some(class),
        ..Cluster::example()
    }
}

/// Adds what a seed begins with.
pub(crate) fn begin(desired: &mut Desired, rng: &mut Rng, profile: &Profile) {
    if rng.u8(0..5) == 0 {
        return begin_dense(desired, rng, profile);
    }
    for index in 0..rng.usize(1..=2) {
        desired.clusters.insert(class_name(index), Arc::new(class(rng, profile)));
    }
    for index in 0..rng.usize(1..=5) {
        let pipeline = pipeline(desired, rng);
        desired.pipelines.insert(pipeline_name(index), Arc::new(pipeline));
    }
}

/// Many small pipelines of one class, so that a lost worker breaks several at once, and what they
/// have on others fills these to different heights.
fn begin_dense(desired: &mut Desired, rng: &mut Rng, profile: &Profile) {
    let mut cluster = class(rng, profile);
    cluster.class.as_mut().expect("a class").workers_max = 8;
    let capacity = cluster.class.as_ref().expect("a class").capacity.milli();
    desired.clusters.insert(class_name(0), Arc::new(cluster));
    for index in 0..rng.usize(8..=PIPELINES_MAX) {
        let mut pipeline = pipeline(desired, rng);
        pipeline.load = milli(capacity * rng.u64(1..=8) / 20);
        shrink(desired, &mut pipeline);
        desired.pipelines.insert(pipeline_name(index), Arc::new(pipeline));
    }
}

/// Changes one thing.
pub(crate) fn edit(desired: &mut Desired, rng: &mut Rng, profile: &Profile) -> &'static str {
    let pipelines: Vec<_> = desired.pipelines.keys().cloned().collect();
    let one = rng.choice(&pipelines).cloned();
    match (rng.u8(0..24), one) {
        (0..=2, Some(name)) if pipelines.len() > 1 => {
            desired.pipelines.remove(&name);
            "edit: a pipeline less"
        }
        (3..=6, Some(name)) => {
            let mut changed = (*desired.pipelines[&name]).clone();
            changed.load = load(desired, rng);
            shrink(desired, &mut changed);
            desired.pipelines.insert(name, Arc::new(changed));
            "edit: another load"
        }
        (7..=9, Some(name)) => {
            let mut changed = pipeline(desired, rng);
            changed.load = desired.pipelines[&name].load;
            shrink(desired, &mut changed);
            desired.pipelines.insert(name, Arc::new(changed));
            "edit: another graph"
        }
        (14..=22, Some(name)) if classes(desired).len() > 1 => {
            let name = cut(desired).map_or(name, Clone::clone);
            let mut changed = (*desired.pipelines[&name]).clone();
            reclass(desired, rng, &mut changed);
            shrink(desired, &mut changed);
            desired.pipelines.insert(name, Arc::new(changed));
            "edit: nodes of another class"
        }
        (10..=12, _) => {
            let name = class_name(rng.usize(0..2));
            let class = class(rng, profile);
            desired.clusters.insert(name, Arc::new(class));
            refuse(desired);
            "edit: another class"
        }
        (13, _) if classes(desired).len() > 1 => {
            let name = pick(rng, &classes(desired)).clone();
            desired.clusters.remove(&name);
            "edit: a class less"
        }
        _ => {
            let free = (0..PIPELINES_MAX).map(pipeline_name);
            let free = free.into_iter().find(|name| !desired.pipelines.contains_key(name));
            if let Some(name) = free {
                let pipeline = pipeline(desired, rng);
                desired.pipelines.insert(name, Arc::new(pipeline));
            }
            "edit: a pipeline more"
        }
    }
}

/// Brings classes back that the pods of a run belong to.
pub(crate) fn restore(
    desired: &mut Desired,
    rng: &mut Rng,
    profile: &Profile,
    lived_in: &BTreeSet<ClusterName>,
) {
    for name in lived_in {
        if !desired.clusters.contains_key(name) {
            desired.clusters.insert(name.clone(), Arc::new(class(rng, profile)));
        }
    }
    refuse(desired);
}

/// Every class.
pub(crate) fn classes(desired: &Desired) -> Vec<ClusterName> {
    let classes = desired.clusters.iter().filter(|(_, cluster)| cluster.class.is_some());
    classes.map(|(name, _)| name.clone()).collect()
}

/// The class of that name.
pub(crate) fn class_of<'a>(desired: &'a Desired, name: &ClusterName) -> Option<&'a Class> {
    desired.clusters.get(name)?.class.as_ref()
}

/// Where a pod's worker is reached; every fourth does not say.
pub(crate) fn address(pod: usize) -> Option<WorkerAddress> {
    let text = format!("p{pod}:7000");
    (pod % 4 != 3).then(|| WorkerAddress::new(&text).expect("a name and a port"))
}

fn pipeline_name(index: usize) -> PipelineName {
    PipelineName::new(&format!("l{index}")).expect("a name")
}

/// A load within the capacity of some class or above it.
pub(crate) fn load(desired: &Desired, rng: &mut Rng) -> Load {
    let known = classes(desired);
    let capacity = match rng.choice(&known) {
        Some(name) => class_of(desired, name).expect("it was listed").capacity.milli(),
        None => 10_000,
    };
    let (times, of) = *pick(
        rng,
        &[(1, 6), (1, 4), (1, 3), (2, 5), (1, 2), (2, 3), (1, 1), (3, 2), (2, 1), (5, 2)],
    );
    match rng.u8(0..24) {
        0 => Load::ZERO,
        _ => milli(capacity * times / of),
    }
}

/// A pipeline that could be served.
pub(crate) fn pipeline(desired: &Desired, rng: &mut Rng) -> Pipeline {
    let mut known = classes(desired);
    if rng.u8(0..24) == 0 {
        // Of a class that may be defined later, or never.
        known.push(class_name(2));
    }
    let count = rng.usize(1..=4);
    let node = |index| NodeName::new(&format!("n{index}")).expect("a name");
    let mut nodes = BTreeMap::new();
    for index in 0..count {
        let class = rng.choice(&known).cloned().unwrap_or_else(|| class_name(0));
        let next = (index + 1..count).filter(|_| rng.bool()).map(node).collect();
        nodes.insert(node(index), Node { class, next });
    }
    let mut pipeline = Pipeline { load: load(desired, rng), nodes };
    shrink(desired, &mut pipeline);
    pipeline
}

/// The first pipeline with a node that is more than one worker can take.
pub(crate) fn cut(desired: &Desired) -> Option<&PipelineName> {
    let is_cut = |pipeline: &Pipeline| {
        let mut classes = pipeline.nodes.values().filter_map(|node| class_of(desired, &node.class));
        classes.any(|class| pipeline.load > class.capacity)
    };
    desired.pipelines.iter().find(|(_, pipeline)| is_cut(pipeline)).map(|(name, _)| name)
}

/// Has some nodes of a pipeline served by another class, and leaves all else as it is.
fn reclass(desired: &Desired, rng: &mut Rng, pipeline: &mut Pipeline) {
    let known = classes(desired);
    for node in pipeline.nodes.values_mut() {
        if rng.bool() {
            node.class = pick(rng, &known).clone();
        }
    }
}

/// Takes load and then nodes away until the pipeline could be served.
fn shrink(desired: &Desired, pipeline: &mut Pipeline) {
    while fits(pipeline, |name| class_of(desired, name)).is_err() {
        pipeline.load = milli(pipeline.load.milli() / 2);
    }
}

/// Removes pipelines that no longer fit: a platform would not put them in force.
fn refuse(desired: &mut Desired) {
    let mut pipelines = std::mem::take(&mut desired.pipelines);
    pipelines.retain(|_, pipeline| fits(pipeline, |name| class_of(desired, name)).is_ok());
    desired.pipelines = pipelines;
}

fn milli(milli: u64) -> Load {
    Load::from_milli(milli).expect("a small load")
}
