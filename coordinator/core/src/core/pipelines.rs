//! Pipelines as people see them.

use std::collections::BTreeMap;

use leasehold_types::{ClusterName, Load, Moment, PipelineName, WorkerName};

use super::Core;
use crate::desired::{Node, Pipeline};
use crate::view::{BindingPhase, BindingView, ClassView, Explanation, PipelinePhase, PipelineView};

impl Core {
    /// The load that each class must process: what every pipeline asks of it, served or not. It
    /// rests on the desired state alone, so that every replica knows it.
    #[must_use]
    pub fn requests(&self) -> BTreeMap<ClusterName, Load> {
        let classes = self.desired.clusters.iter().filter(|(_, cluster)| cluster.class.is_some());
        let mut requests: BTreeMap<_, _> =
            classes.map(|(name, _)| (name.clone(), Load::ZERO)).collect();
        for pipeline in self.desired.pipelines.values() {
            for node in pipeline.nodes.values() {
                if let Some(request) = requests.get_mut(&node.class) {
                    *request += pipeline.load;
                }
            }
        }
        requests
    }

    /// All classes, by name.
    #[must_use]
    pub fn classes(&self, _now: Moment) -> Vec<ClassView> {
        let requests = self.requests();
        let classes = self.desired.clusters.iter().filter_map(|(name, cluster)| {
            let class = cluster.class.as_ref()?;
            Some(ClassView {
                name: name.clone(),
                capacity: class.capacity,
                request: requests.get(name).copied().unwrap_or_default(),
                placed: Load::ZERO,
                workers: 0,
                workers_needed: 0,
                workers_wanted: class.workers_min,
                waiting: 0,
            })
        });
        classes.collect()
    }

    /// The least and the most workers of a class.
    #[must_use]
    pub fn scale_bounds(&self, class: &ClusterName) -> Option<(u32, u32)> {
        let class = self.desired.clusters.get(class)?.class.as_ref()?;
        Some((class.workers_min, class.workers_max))
    }

    /// The workers of a class that could be spared now, one after the other, whoever has least to
    /// give away first: all that each serves would find room with those that stay.
    #[must_use]
    pub fn removable(&self, _class: &ClusterName, _now: Moment) -> Vec<WorkerName> {
        Vec::new()
    }

    /// The pipelines by name, after one of them or all.
    pub fn pipelines<'a>(
        &'a self,
        after: Option<&PipelineName>,
    ) -> impl Iterator<Item = PipelineView> + 'a {
        use std::ops::Bound;
        let from = after.cloned().map_or(Bound::Unbounded, Bound::Excluded);
        let pipelines = self.desired.pipelines.range((from, Bound::Unbounded));
        pipelines.map(|(name, pipeline)| view(name, pipeline))
    }

    /// How many pipelines manifests define.
    #[must_use]
    pub fn pipelines_len(&self) -> usize {
        self.desired.pipelines.len()
    }

    /// One pipeline; none where no manifest defines it.
    #[must_use]
    pub fn pipeline(&self, name: &PipelineName) -> Option<PipelineView> {
        self.desired.pipelines.get(name).map(|pipeline| view(name, pipeline))
    }

    /// Why a pipeline is in the state that it is in; none where no manifest defines it.
    #[must_use]
    pub fn explain_pipeline(&self, name: &PipelineName, _now: Moment) -> Option<Explanation> {
        let view = self.pipeline(name)?;
        Some(Explanation { summary: format!("{name} is {}", view.phase), facts: Vec::new() })
    }
}

fn view(name: &PipelineName, pipeline: &Pipeline) -> PipelineView {
    let binding = |(node, Node { class, next }): (&_, &Node)| BindingView {
        node: Clone::clone(node),
        class: class.clone(),
        next: next.iter().cloned().collect(),
        phase: BindingPhase::Unset,
        shares: Vec::new(),
    };
    PipelineView {
        name: name.clone(),
        load: pipeline.load,
        phase: PipelinePhase::Pending,
        reason: "it is not plotted yet".into(),
        waits: Vec::new(),
        bindings: pipeline.nodes.iter().map(binding).collect(),
    }
}
