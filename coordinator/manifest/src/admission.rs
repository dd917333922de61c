//! Checks an object before it is stored, by the rules by which objects come into force. It changes
//! nothing.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Bound;

use leasehold_coordinator_core::desired::{Desired, Node, Pipeline};
use leasehold_types::limits::NamespaceShare;
use leasehold_types::{ClusterName, NodeName, PipelineName};
use serde_json::Value;

use super::check::{Document, ObjectId, ValidSpec};
use super::collection::{called, document};
use super::problem::Problem;
use super::resolve::{Candidate, MissingClass, Rules, StreamFiles, resolve};
use super::tree::Position;

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct AdmissionResult {
    /// What keeps it from coming into force.
    pub problems: Vec<Problem>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Checks an object that is to be stored against what is in force.
/// The object comes last: what is in force keeps its names and places.
pub fn opinion(
    in_force: &Desired,
    share: NamespaceShare,
    id: &ObjectId,
    spec: Value,
) -> AdmissionResult {
    let mut problems = Vec::new();
    let Document { body, .. } = document(id, spec, &mut problems);
    let Some(body) = body else { return AdmissionResult { problems, warnings: Vec::new() } };
    let before = beside(in_force, id);
    let mut warnings = match &body {
        ValidSpec::Pipeline(draft) => unknown_classes(&before, &draft.pipeline),
        ValidSpec::Cluster(_) | ValidSpec::Set(_) | ValidSpec::Class(_) => Vec::new(),
    };
    let mut candidates = candidates(&before);
    let file = called(id);
    candidates.insert(id.clone(), candidate(file.clone(), Some(body)));
    let rules = Rules { missing: MissingClass::Awaited, share };
    resolve(candidates, &StreamFiles::new(), rules, &before, &mut problems);
    problems.sort();
    let (own, others): (Vec<_>, Vec<_>) =
        problems.into_iter().partition(|problem| problem.file == file);
    warnings.extend(others.iter().map(Problem::to_string));
    AdmissionResult { problems: own, warnings }
}

/// The pipelines in force that name a class; empty if the class is not in force.
pub fn users<'a>(
    in_force: &'a Desired,
    class: &'a ClusterName,
) -> impl Iterator<Item = &'a PipelineName> {
    let is_class = in_force.clusters.get(class).is_some_and(|cluster| cluster.class.is_some());
    let prefix = prefix(class.parts().0);
    let pipelines = below(&in_force.pipelines, prefix).filter(move |_| is_class);
    let names = |pipeline: &Pipeline| pipeline.nodes.values().any(|node| node.class == *class);
    pipelines.filter(move |(_, pipeline)| names(pipeline)).map(|(name, _)| name)
}

/// What is in force in the namespace of an object, which is all that the object can touch.
fn beside(in_force: &Desired, id: &ObjectId) -> Desired {
    let prefix = prefix(id.parts().0);
    let copied = |(name, cluster): (&_, &_)| (Clone::clone(name), Clone::clone(cluster));
    let clusters = below(&in_force.clusters, prefix.clone()).map(copied).collect();
    let copied = |(name, pipeline): (&_, &_)| (Clone::clone(name), Clone::clone(pipeline));
    let pipelines = below(&in_force.pipelines, prefix).map(copied).collect();
    Desired { clusters, pipelines, ..Desired::default() }
}

fn prefix(namespace: Option<&str>) -> String {
    format!("{}/", namespace.unwrap_or_default())
}

fn below<N, T>(all: &BTreeMap<N, T>, prefix: String) -> impl Iterator<Item = (&N, &T)>
where
    N: Ord + Borrow<str>,
{
    let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
    let range = all.range::<str, _>(from);
    range.take_while(move |(name, _)| Borrow::<str>::borrow(*name).starts_with(&prefix))
}

/// Everything but the sets as it is in force.
pub(crate) fn candidates(before: &Desired) -> BTreeMap<ObjectId, Candidate> {
    let clusters = before.clusters.iter().map(|(name, cluster)| match &cluster.class {
        Some(_) => ObjectId::Class(name.clone()),
        None => ObjectId::Cluster(name.clone()),
    });
    let pipelines = before.pipelines.keys().cloned().map(ObjectId::Pipeline);
    let kept = |id: ObjectId| {
        let candidate = candidate(called(&id), None);
        (id, candidate)
    };
    clusters.chain(pipelines).map(kept).collect()
}

pub(crate) fn candidate(file: String, body: Option<ValidSpec>) -> Candidate {
    Candidate { file, at: Position::default(), created: None, body }
}

fn unknown_classes(before: &Desired, pipeline: &Pipeline) -> Vec<String> {
    let unknown =
        pipeline.nodes.iter().filter(|(_, node)| !before.clusters.contains_key(&node.class));
    let warn = |(name, node): (&NodeName, &Node)| {
        format!(
            "spec.workers.{name}.class: WorkerClass {:?} does not exist yet: the pipeline waits \
             for it",
            node.class.parts().1
        )
    };
    unknown.map(warn).collect()
}
