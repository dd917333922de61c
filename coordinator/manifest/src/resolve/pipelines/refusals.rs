//! Refuses pipelines that their classes can never serve, and bindings with the same name. Each
//! refusal removes one version from the choice, so the loop ends.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use leasehold_coordinator_core::desired::{Cluster, Pipeline};
use leasehold_coordinator_core::planner::pipelines::{Unplaceable, fits};
use leasehold_types::{ClusterName, NodeName, PipelineName};

use super::super::super::check::binding;
use super::super::super::problem::Problem;
use super::{PipelineChoice, PipelineResolver};

impl PipelineResolver<'_> {
    /// Refuses what can never fit; returns whether it refused anything. Classes come first, since a
    /// pipeline may fit with the old version of a class.
    pub(super) fn refuse_unplaceable(&mut self, problems: &mut Vec<Problem>) -> bool {
        let changed = self.changed_classes();
        let mut of_classes: BTreeMap<ClusterName, (PipelineName, String)> = BTreeMap::new();
        let mut of_pipelines: Vec<(PipelineName, Vec<String>)> = Vec::new();
        for (name, pipeline) in &self.pipelines {
            let Some(current) = pipeline.current() else { continue };
            let is_new = pipeline.new.is_some();
            if !is_new && !current.nodes.values().any(|node| changed.contains(&node.class)) {
                continue;
            }
            let unplaceable = self.unplaceable(current);
            if unplaceable.is_empty() {
                continue;
            }
            let blamed = self.changed_against(pipeline);
            if blamed.is_empty() {
                let why = unplaceable.into_iter().map(|(_, why)| why).collect();
                of_pipelines.push((name.clone(), why));
            }
            for (class, why) in blamed {
                of_classes.entry(class).or_insert_with(|| (name.clone(), why));
            }
        }
        let any = !of_classes.is_empty() || !of_pipelines.is_empty();
        if of_classes.is_empty() {
            for (name, why) in of_pipelines {
                self.refuse_pipeline(&name, why, problems);
            }
        }
        for (class, (pipeline, why)) in of_classes {
            self.refuse_class(&class, &pipeline, &why, problems);
        }
        any
    }

    fn changed_classes(&self) -> BTreeSet<ClusterName> {
        let changed = self.classes.iter().filter(|(_, choice)| choice.new.is_some());
        changed.map(|(name, _)| name.clone()).collect()
    }

    fn unplaceable(&self, pipeline: &Pipeline) -> Vec<(ClusterName, String)> {
        let unplaceable = fits(pipeline, |class| self.class(class)).err().unwrap_or_default();
        let class = |unplaceable: &Unplaceable| match unplaceable {
            Unplaceable::Workers { class, .. } | Unplaceable::Shares { class, .. } => class.clone(),
        };
        unplaceable
            .into_iter()
            .map(|unplaceable| (class(&unplaceable), unplaceable.to_string()))
            .collect()
    }

    /// The classes whose changes leave no room for a pipeline as it is in force.
    fn changed_against(&self, pipeline: &PipelineChoice) -> Vec<(ClusterName, String)> {
        let Some(last) = &pipeline.last else { return Vec::new() };
        let is_change = |class: &ClusterName| {
            self.classes
                .get(class)
                .is_some_and(|choice| choice.new.is_some() && choice.last.is_some())
        };
        let unplaceable = self.unplaceable(last).into_iter();
        unplaceable.filter(|(class, _)| is_change(class)).collect()
    }

    fn refuse_class(
        &mut self,
        class: &ClusterName,
        pipeline: &PipelineName,
        why: &str,
        problems: &mut Vec<Problem>,
    ) {
        let Some(choice) = self.classes.get_mut(class) else { return };
        let figures =
            |class: &Cluster| class.class.as_ref().map(|class| (class.capacity, class.workers_max));
        let old = choice.last.as_deref().and_then(figures);
        let new = choice.new.as_deref().and_then(figures);
        let (at, field) = match (old, new) {
            (Some((_, old)), Some((_, new))) if old > new => (choice.marks.most, "maxReplicas"),
            _ => (choice.marks.capacity, "capacity"),
        };
        let message = format!(
            "can never serve pipeline {:?}, which is in force: {why}; keep it, or lower the load \
             of the pipeline first",
            pipeline.parts().1
        );
        problems.push(choice.entry.problem(at, &format!("spec.{field}"), message));
        choice.refuse();
    }

    fn refuse_pipeline(
        &mut self,
        name: &PipelineName,
        why: Vec<String>,
        problems: &mut Vec<Problem>,
    ) {
        let Some(choice) = self.pipelines.get_mut(name) else { return };
        for why in why {
            let message = format!(
                "can never be served: {why}; lower it, or raise the capacity or maxReplicas"
            );
            let at = choice.marks.load;
            problems.push(choice.entry.problem(at, "spec.documentsPerSecond", message));
        }
        choice.refuse();
    }

    /// Refuses bindings that another pipeline has; returns whether it refused any.
    pub(super) fn refuse_namesakes(&mut self, problems: &mut Vec<Problem>) -> bool {
        let mut refused: BTreeMap<PipelineName, (NodeName, PipelineName, NodeName)> =
            BTreeMap::new();
        for (name, pipeline) in &self.pipelines {
            let Some(current) = pipeline.current() else { continue };
            for (other_name, prefix) in self.beginnings(name) {
                let Some(other) = self.pipelines.get(&other_name) else { continue };
                let Some(other_now) = other.current() else { continue };
                for node in current.nodes.keys() {
                    let theirs = NodeName::new(&format!("{prefix}-{node}")).ok();
                    let theirs = theirs.filter(|theirs| other_now.nodes.contains_key(theirs));
                    let Some(theirs) = theirs else { continue };
                    // The older pipeline has the name. Of files, which have no time of creation,
                    // the one that had the name keeps it, or else the one that is in force.
                    let rank = |choice: &PipelineChoice, node: &NodeName| {
                        let (last, created) =
                            (choice.last.as_ref(), choice.entry.source.created.clone());
                        let had = last.is_some_and(|last| last.nodes.contains_key(node));
                        (Reverse(created), had, last.is_some())
                    };
                    let (loser, loss) = if rank(pipeline, node) > rank(other, &theirs) {
                        (&other_name, (theirs, name.clone(), node.clone()))
                    } else {
                        (name, (node.clone(), other_name.clone(), theirs))
                    };
                    refused.entry(loser.clone()).or_insert(loss);
                }
            }
        }
        let any = !refused.is_empty();
        for (name, (node, other, theirs)) in refused {
            let Some(choice) = self.pipelines.get_mut(&name) else { continue };
            let message = format!(
                "makes a binding called {:?}, and so does node {:?} of pipeline {:?}: rename one \
                 of them",
                binding(name.parts().1, node.as_str()),
                theirs.as_str(),
                other.parts().1,
            );
            let at = choice.marks.nodes.get(&node).map_or(choice.entry.source.at, |(at, _)| *at);
            problems.push(choice.entry.problem(at, &format!("spec.workers.{node}"), message));
            choice.refuse();
        }
        any
    }

    /// The names that could be another pipeline's whose binding is called as one of this one, since
    /// they are what this one begins with, each with what is left of this one.
    fn beginnings<'a>(
        &self,
        name: &'a PipelineName,
    ) -> impl Iterator<Item = (PipelineName, &'a str)> {
        let whole = name.as_str();
        let start = whole.len() - name.parts().1.len();
        let hyphens = whole.match_indices('-').filter(move |(at, _)| *at > start);
        hyphens
            .filter_map(|(at, _)| Some((PipelineName::new(&whole[..at]).ok()?, &whole[at + 1..])))
    }
}
