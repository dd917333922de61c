//! From what the files define to the next desired state: references between objects, limits over
//! all of them, and the last good version of whatever is wrong now.

mod pipelines;
mod sets;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use leasehold_coordinator_core::desired::{Cluster, Desired};
use leasehold_types::{ClusterName, limits};

use self::sets::{join_streams, take_sets};
use super::check::{ObjectId, ValidSpec};
use super::problem::Problem;
use super::streams::StreamList;
use super::tree::Position;

/// The definition of one object.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub file: String,
    pub at: Position,
    /// `None`: its last good version stays in force.
    pub body: Option<ValidSpec>,
}

/// The list of each file of streams; `None` if it cannot be read.
pub(crate) type StreamFiles = HashMap<String, Option<Arc<StreamList>>>;

/// What happens to a pipeline whose class does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingClass {
    /// It is refused: all manifests are in the same folder.
    Refused,
    /// It waits for the class.
    Awaited,
    /// It was in force before, as it was: without its class, or with a WorkerCluster of that name.
    Kept,
}

/// The next desired state.
pub(crate) fn resolve(
    candidates: BTreeMap<ObjectId, Candidate>,
    files: &StreamFiles,
    missing: MissingClass,
    before: &Desired,
    problems: &mut Vec<Problem>,
) -> Desired {
    let mut clusters = Vec::new();
    let mut sets = Vec::new();
    let mut classes = Vec::new();
    let mut pipelines = Vec::new();
    for (id, Candidate { file, at, body }) in candidates {
        match (id, body) {
            (ObjectId::Cluster(name), Some(ValidSpec::Cluster(cluster))) => {
                clusters.push(ResolvedEntry { name, file, at, wanted: Some(cluster) });
            }
            (ObjectId::Cluster(name), _) => {
                clusters.push(ResolvedEntry { name, file, at, wanted: None })
            }
            (ObjectId::Set(name), Some(ValidSpec::Set(draft))) => {
                sets.push(ResolvedEntry { name, file, at, wanted: Some(draft) });
            }
            (ObjectId::Set(name), _) => sets.push(ResolvedEntry { name, file, at, wanted: None }),
            (ObjectId::Class(name), Some(ValidSpec::Class(class))) => {
                classes.push(ResolvedEntry { name, file, at, wanted: Some(class) });
            }
            (ObjectId::Class(name), _) => {
                classes.push(ResolvedEntry { name, file, at, wanted: None })
            }
            (ObjectId::Pipeline(name), Some(ValidSpec::Pipeline(draft))) => {
                pipelines.push(ResolvedEntry { name, file, at, wanted: Some(draft) });
            }
            (ObjectId::Pipeline(name), _) => {
                pipelines.push(ResolvedEntry { name, file, at, wanted: None });
            }
        }
    }
    let mut next = Desired::default();
    let kept = classes.iter().filter(|class| last_class(before, &class.name).is_some()).count();
    take_clusters(clusters, kept, &mut next, before, problems);
    let sets = join_streams(sets, files, problems);
    let named = classes.iter().map(|class| class.name.clone()).collect();
    take_sets(sets, &named, &mut next, before, problems);
    pipelines::take(classes, pipelines, missing, &mut next, before, problems);
    next
}

struct ResolvedEntry<N, T> {
    name: N,
    file: String,
    at: Position,
    wanted: Option<T>,
}

impl<N, T> ResolvedEntry<N, T> {
    /// What is wanted, apart from whose it is.
    fn split(self) -> (ResolvedEntry<N, ()>, Option<T>) {
        let Self { name, file, at, wanted } = self;
        (ResolvedEntry { name, file, at, wanted: None }, wanted)
    }

    fn problem(&self, at: Position, field: &str, message: impl Into<String>) -> Problem {
        Problem::new(&self.file, at, field, message)
    }
}

/// The WorkerCluster of this name, where one is in force.
fn last_cluster<'a>(before: &'a Desired, name: &ClusterName) -> Option<&'a Arc<Cluster>> {
    before.clusters.get(name).filter(|cluster| cluster.class.is_none())
}

/// The WorkerClass of this name, where one is in force.
fn last_class<'a>(before: &'a Desired, name: &ClusterName) -> Option<&'a Arc<Cluster>> {
    before.clusters.get(name).filter(|cluster| cluster.class.is_some())
}

/// `kept` classes in force have their place beside the clusters.
fn take_clusters(
    wanted: Vec<ResolvedEntry<ClusterName, Arc<Cluster>>>,
    kept: usize,
    next: &mut Desired,
    before: &Desired,
    problems: &mut Vec<Problem>,
) {
    let (old, new): (Vec<_>, Vec<_>) =
        wanted.into_iter().partition(|w| last_cluster(before, &w.name).is_some());
    for mut cluster in old.into_iter().chain(new) {
        let last = last_cluster(before, &cluster.name);
        if last.is_none() && next.clusters.len() + kept >= limits::CLUSTERS_MAX {
            problems.push(cluster.problem(cluster.at, "metadata.name", too_many_clusters()));
            continue;
        }
        let chosen = match (cluster.wanted.take(), last) {
            (Some(wanted), Some(last)) if wanted == *last => last.clone(),
            (Some(wanted), _) => wanted,
            (None, Some(last)) => last.clone(),
            (None, None) => continue,
        };
        next.clusters.insert(cluster.name, chosen);
    }
}

fn too_many_clusters() -> String {
    format!("is one more than {} WorkerClusters and WorkerClasses", limits::CLUSTERS_MAX)
}
