//! Which shares of pipelines workers have, and what follows from that: for how long a pipeline was
//! not served, and how much of the capacity of a class was used.
//!
//! **Invariant**: what holds is counted up to a moment before anything changes at that moment.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_coordinator_core::desired::{Desired, Pipeline};
use leasehold_types::{Load as DocumentLoad, Moment, NodeName, PipelineName, ShareKey, StreamKey};
use serde::Serialize;

use crate::cell::WorkerNumber;
use crate::load::ClusterLoad;

/// What became of a pipeline.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PipelineFigures {
    /// Its name.
    pub pipeline: String,
    /// Documents that came.
    pub documents: u64,
    /// Of these, those beyond what the workers of some node had shares for when they came.
    pub documents_beyond_shares: u64,
    /// The time in which some node had no worker, in seconds.
    pub unserved_seconds: f64,
    /// The longest such time without a break, in seconds.
    pub unserved_max_seconds: f64,
    /// How often a share went from one worker to another.
    pub moves: u64,
}

/// What became of the shares of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ShareFigures {
    /// How often one went from one worker to another.
    pub(crate) moves: u64,
    /// Their load as a part of the capacity of the workers, over the whole time.
    pub(crate) utilization: f64,
    /// The most load that one worker had, as a part of its capacity.
    pub(crate) worker_load_max: f64,
}

/// The shares of all pipelines, and the workers of all classes.
#[derive(Debug)]
pub(crate) struct ServedShares {
    pipelines: BTreeMap<PipelineName, PipelineState>,
    /// By the places of the classes among the clusters of the load.
    classes: BTreeMap<usize, ClassState>,
    /// Those that run.
    workers: BTreeMap<WorkerNumber, ServingWorker>,
    held: BTreeMap<StreamKey, HeldShare>,
}

/// A share that a worker has.
#[derive(Clone, Copy, Debug)]
struct HeldShare {
    worker: WorkerNumber,
    load: DocumentLoad,
}

#[derive(Clone, Copy, Debug)]
struct ServingWorker {
    class: usize,
    load: DocumentLoad,
}

#[derive(Debug)]
struct ClassState {
    capacity: DocumentLoad,
    workers: u32,
    load: DocumentLoad,
    counted_until: Moment,
    /// Documents that the shares allow, and that the workers could process.
    shared: f64,
    possible: f64,
    worker_load_max: DocumentLoad,
    moves: u64,
}

#[derive(Debug)]
struct PipelineState {
    /// The rate at which documents come.
    rate: DocumentLoad,
    nodes: BTreeMap<NodeName, ServedNode>,
    counted_until: Moment,
    documents: f64,
    beyond: f64,
    /// Since when some node has no worker, if one has none.
    unserved_since: Option<Moment>,
    unserved: Duration,
    unserved_max: Duration,
    moves: u64,
}

/// A node of a pipeline, and what its workers have shares for.
#[derive(Clone, Copy, Debug, Default)]
struct ServedNode {
    shares: u32,
    load: DocumentLoad,
}

impl ServedShares {
    /// The pipelines of these manifests, of which no worker has a share yet.
    pub(crate) fn new(desired: &Desired, clusters: &[ClusterLoad], start: Moment) -> Self {
        let pipelines = desired.pipelines.iter();
        let pipelines =
            pipelines.map(|(name, spec)| (name.clone(), PipelineState::new(spec, start)));
        let classes = clusters.iter().enumerate().filter_map(|(place, cluster)| {
            Some((place, ClassState::new(cluster.class()?.capacity, start)))
        });
        Self {
            pipelines: pipelines.collect(),
            classes: classes.collect(),
            workers: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    /// Documents come to a pipeline at this rate from now on.
    pub(crate) fn set_rate(&mut self, pipeline: &PipelineName, rate: DocumentLoad, now: Moment) {
        if let Some(state) = self.pipelines.get_mut(pipeline) {
            state.count(now);
            state.rate = rate;
        }
    }

    /// A worker of the cluster at this place runs, if that is a class.
    pub(crate) fn add_worker(&mut self, worker: WorkerNumber, cluster: usize, now: Moment) {
        if let Some(class) = self.classes.get_mut(&cluster) {
            class.count(now);
            class.workers += 1;
            self.workers.insert(worker, ServingWorker { class: cluster, load: DocumentLoad::ZERO });
        }
    }

    /// A worker has ended, unless it had: nobody serves its shares.
    pub(crate) fn end_worker(&mut self, worker: WorkerNumber, now: Moment) {
        if !self.workers.contains_key(&worker) {
            return;
        }
        let own = self.held.iter().filter(|(_, share)| share.worker == worker);
        let own: Vec<StreamKey> = own.map(|(stream, _)| stream.clone()).collect();
        own.iter().for_each(|stream| self.freed(worker, stream, now));
        let Some(ServingWorker { class, .. }) = self.workers.remove(&worker) else { return };
        if let Some(class) = self.classes.get_mut(&class) {
            class.count(now);
            class.workers -= 1;
        }
    }

    /// A worker that runs has a share from now on. `moves` if another worker had it before.
    pub(crate) fn granted(
        &mut self,
        worker: WorkerNumber,
        stream: &StreamKey,
        load: DocumentLoad,
        moves: bool,
        now: Moment,
    ) {
        // It may have the share already, under an earlier token.
        if let Some(HeldShare { worker: former, .. }) = self.held.get(stream).copied() {
            self.freed(former, stream, now);
        }
        let (Some(share), Some(serving)) = (ShareKey::of(stream), self.workers.get_mut(&worker))
        else {
            return;
        };
        serving.load += load;
        if let Some(class) = self.classes.get_mut(&serving.class) {
            class.count(now);
            class.load += load;
            class.worker_load_max = class.worker_load_max.max(serving.load);
            class.moves += u64::from(moves);
        }
        if let Some(pipeline) = self.pipelines.get_mut(&share.pipeline) {
            pipeline.count(now);
            pipeline.moves += u64::from(moves);
            let node = pipeline.nodes.entry(share.node).or_default();
            *node = ServedNode { shares: node.shares + 1, load: node.load + load };
            pipeline.note_unserved(now);
        }
        self.held.insert(stream.clone(), HeldShare { worker, load });
    }

    /// A worker has a share no longer, if it had one.
    pub(crate) fn freed(&mut self, worker: WorkerNumber, stream: &StreamKey, now: Moment) {
        let held = self.held.get(stream).copied().filter(|share| share.worker == worker);
        let (Some(share), Some(HeldShare { load, .. })) = (ShareKey::of(stream), held) else {
            return;
        };
        self.held.remove(stream);
        if let Some(serving) = self.workers.get_mut(&worker) {
            serving.load -= load;
            if let Some(class) = self.classes.get_mut(&serving.class) {
                class.count(now);
                class.load -= load;
            }
        }
        if let Some(pipeline) = self.pipelines.get_mut(&share.pipeline) {
            pipeline.count(now);
            let node = pipeline.nodes.entry(share.node).or_default();
            *node = ServedNode { shares: node.shares - 1, load: node.load - load };
            pipeline.note_unserved(now);
        }
    }

    /// The figures of the class at this place, until the end; `None` if a cluster of workers with
    /// slots is there.
    pub(crate) fn of_class(&self, cluster: usize, end: Moment) -> Option<ShareFigures> {
        let class = self.classes.get(&cluster)?;
        let (shared, possible) = class.counted(end);
        Some(ShareFigures {
            moves: class.moves,
            utilization: if possible > 0.0 { shared / possible } else { 0.0 },
            worker_load_max: class.worker_load_max.as_f64() / class.capacity.as_f64(),
        })
    }

    /// What became of all pipelines by name, until the end.
    pub(crate) fn of_pipelines(&self, end: Moment) -> Vec<PipelineFigures> {
        let all = self.pipelines.iter();
        all.map(|(name, pipeline)| pipeline.figures(name, end)).collect()
    }
}

impl ClassState {
    fn new(capacity: DocumentLoad, start: Moment) -> Self {
        Self {
            capacity,
            workers: 0,
            load: DocumentLoad::ZERO,
            counted_until: start,
            shared: 0.0,
            possible: 0.0,
            worker_load_max: DocumentLoad::ZERO,
            moves: 0,
        }
    }

    fn count(&mut self, now: Moment) {
        (self.shared, self.possible) = self.counted(now);
        self.counted_until = now;
    }

    /// The documents that its shares have allowed up to now, and its workers' capacity.
    fn counted(&self, now: Moment) -> (f64, f64) {
        let seconds = now.since(self.counted_until).as_secs_f64();
        let capacity = self.capacity.as_f64() * f64::from(self.workers);
        (self.shared + self.load.as_f64() * seconds, self.possible + capacity * seconds)
    }
}

impl PipelineState {
    fn new(spec: &Pipeline, start: Moment) -> Self {
        let nodes = spec.nodes.keys().map(|node| (node.clone(), ServedNode::default()));
        Self {
            rate: spec.load,
            nodes: nodes.collect(),
            counted_until: start,
            documents: 0.0,
            beyond: 0.0,
            unserved_since: Some(start),
            unserved: Duration::ZERO,
            unserved_max: Duration::ZERO,
            moves: 0,
        }
    }

    fn count(&mut self, now: Moment) {
        (self.documents, self.beyond) = self.counted(now);
        self.counted_until = now;
    }

    /// The documents that have come up to now, and those beyond the shares.
    fn counted(&self, now: Moment) -> (f64, f64) {
        let seconds = now.since(self.counted_until).as_secs_f64();
        let served = self.nodes.values().map(|node| node.load).min().unwrap_or_default();
        let beyond = self.rate.saturating_sub(served);
        (self.documents + self.rate.as_f64() * seconds, self.beyond + beyond.as_f64() * seconds)
    }

    /// Whether some node has no worker may have changed.
    fn note_unserved(&mut self, now: Moment) {
        if self.nodes.values().any(|node| node.shares == 0) {
            self.unserved_since.get_or_insert(now);
            return;
        }
        (self.unserved, self.unserved_max) = self.unserved_until(now);
        self.unserved_since = None;
    }

    /// The time in which some node had no worker up to now, and the longest one.
    fn unserved_until(&self, now: Moment) -> (Duration, Duration) {
        let unserved = self.unserved_since.map_or(Duration::ZERO, |since| now.since(since));
        (self.unserved + unserved, self.unserved_max.max(unserved))
    }

    fn figures(&self, name: &PipelineName, end: Moment) -> PipelineFigures {
        let (documents, beyond) = self.counted(end);
        let (unserved, longest) = self.unserved_until(end);
        PipelineFigures {
            pipeline: name.to_string(),
            documents: documents.round() as u64,
            documents_beyond_shares: beyond.round() as u64,
            unserved_seconds: unserved.as_secs_f64(),
            unserved_max_seconds: longest.as_secs_f64(),
            moves: self.moves,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold_coordinator_core::desired::{Class, Cluster, Node, Rebalance, Spread};
    use leasehold_types::ClusterName;

    use super::*;
    use crate::load::Distribution;

    fn rate(documents: u64) -> DocumentLoad {
        DocumentLoad::per_second(documents).unwrap()
    }

    fn share(node: &str) -> StreamKey {
        let pipeline = PipelineName::new("first").unwrap();
        ShareKey { pipeline, node: NodeName::new(node).unwrap(), index: 0 }.stream()
    }

    /// A class of ten documents a second for each worker, and a pipeline of 4 with two nodes.
    fn shares(start: Moment) -> ServedShares {
        let class = ClusterName::new("blue").unwrap();
        let node = |name: &str| {
            let node = Node { class: class.clone(), next: [].into() };
            (NodeName::new(name).unwrap(), node)
        };
        let pipeline = Pipeline { load: rate(4), nodes: ["a", "b"].map(node).into() };
        let pipelines = [(PipelineName::new("first").unwrap(), Arc::new(pipeline))].into();
        let desired = Desired { pipelines, ..Desired::default() };
        let of_class = Class {
            capacity: rate(10),
            workers_min: 1,
            workers_max: 4,
            utilization: 100,
            spread: Spread::Fewest,
            rebalance: Rebalance::Never,
            handover_deadline: Duration::from_secs(30),
        };
        let cluster = ClusterLoad {
            name: class,
            spec: Cluster { class: Some(of_class), ..Cluster::example() }.into(),
            workers: None,
            startup: Distribution::Constant(Duration::ZERO),
            jobs: None,
            stream_release: Duration::ZERO,
            min_ready: Duration::ZERO,
            stabilization: Duration::ZERO,
        };
        ServedShares::new(&desired, &[cluster], start)
    }

    #[test]
    fn a_pipeline_is_served_while_each_node_has_a_worker_and_documents_beyond_shares_count() {
        let at = |seconds: u64| Moment(1_000) + Duration::from_secs(seconds);
        let mut shares = shares(at(0));
        (0..2).for_each(|worker| shares.add_worker(worker, 0, at(0)));
        shares.granted(0, &share("a"), rate(4), false, at(10));
        shares.granted(1, &share("b"), rate(4), false, at(20));
        // Of 6 a second two are beyond the shares.
        shares.set_rate(&PipelineName::new("first").unwrap(), rate(6), at(30));
        shares.freed(0, &share("b"), at(35));
        shares.end_worker(1, at(40));
        shares.granted(0, &share("b"), rate(6), true, at(45));
        shares.end_worker(1, at(50));
        let pipelines = shares.of_pipelines(at(50));
        assert_eq!(
            pipelines,
            [PipelineFigures {
                pipeline: "first".to_owned(),
                documents: 30 * 4 + 20 * 6,
                documents_beyond_shares: 20 * 4 + 10 * 2 + 5 * 6 + 5 * 2,
                unserved_seconds: 25.0,
                unserved_max_seconds: 20.0,
                moves: 1,
            }]
        );
        let class = shares.of_class(0, at(50)).unwrap();
        // 4 for 10 s, 8 for 20 s, 4 for 5 s, then 10; of 20 for 40 s and 10 for 10 s.
        let shared = 4.0 * 10.0 + 8.0 * 20.0 + 4.0 * 5.0 + 10.0 * 5.0;
        assert_eq!(class.utilization, shared / (20.0 * 40.0 + 10.0 * 10.0));
        assert_eq!((class.worker_load_max, class.moves), (1.0, 1));
    }

    #[test]
    fn a_share_that_is_granted_again_counts_once() {
        let mut shares = shares(Moment(1));
        shares.add_worker(0, 0, Moment(1));
        for load in [4, 7] {
            shares.granted(0, &share("a"), rate(load), false, Moment(2));
        }
        let class = shares.of_class(0, Moment(3)).unwrap();
        assert_eq!(class.worker_load_max, 0.7);
        shares.freed(0, &share("a"), Moment(3));
        shares.freed(0, &share("a"), Moment(3));
        assert_eq!(shares.of_class(0, Moment(4)).unwrap().worker_load_max, 0.7);
    }
}
