//! From what the files define to the next desired state: references between objects, limits over
//! all of them, and the last good version of whatever is wrong now.

mod clusters;
mod pipelines;
mod sets;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use leasehold_coordinator_core::desired::{Cluster, Desired};
use leasehold_types::ClusterName;
use leasehold_types::limits::NamespaceShare;

use self::clusters::take_clusters;
use self::sets::{join_streams, take_sets};
use super::check::{ObjectId, ValidSpec};
use super::precedence::Created;
use super::problem::Problem;
use super::streams::StreamList;
use super::tree::Position;

/// The definition of one object.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub file: String,
    pub at: Position,
    /// When the object was created; `None` for one of a file.
    pub created: Option<Created>,
    /// `None`: its last good version stays in force.
    pub body: Option<ValidSpec>,
}

/// The list of each file of streams; `None` if it cannot be read.
pub(crate) type StreamFiles = HashMap<String, Option<Arc<StreamList>>>;

/// The rules that differ between files and an API server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// What happens to a pipeline whose class does not exist.
    pub missing: MissingClass,
    /// The part of each limit that one namespace may use.
    pub share: NamespaceShare,
}

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

impl Rules {
    /// The rules for files, whose objects have no namespace.
    pub(crate) fn of_files(missing: MissingClass) -> Self {
        Self { missing, share: NamespaceShare::WHOLE }
    }
}

/// The next desired state.
pub(crate) fn resolve(
    candidates: BTreeMap<ObjectId, Candidate>,
    files: &StreamFiles,
    rules: Rules,
    before: &Desired,
    problems: &mut Vec<Problem>,
) -> Desired {
    let mut clusters = Vec::new();
    let mut sets = Vec::new();
    let mut classes = Vec::new();
    let mut pipelines = Vec::new();
    for (id, candidate) in candidates {
        let Candidate { file, at, created, body } = candidate;
        let source = EntrySource { file, at, created };
        match (id, body) {
            (ObjectId::Cluster(name), Some(ValidSpec::Cluster(cluster))) => {
                clusters.push(ResolvedEntry { name, source, wanted: Some(cluster) });
            }
            (ObjectId::Cluster(name), _) => {
                clusters.push(ResolvedEntry { name, source, wanted: None });
            }
            (ObjectId::Set(name), Some(ValidSpec::Set(draft))) => {
                sets.push(ResolvedEntry { name, source, wanted: Some(draft) });
            }
            (ObjectId::Set(name), _) => sets.push(ResolvedEntry { name, source, wanted: None }),
            (ObjectId::Class(name), Some(ValidSpec::Class(class))) => {
                classes.push(ResolvedEntry { name, source, wanted: Some(class) });
            }
            (ObjectId::Class(name), _) => {
                classes.push(ResolvedEntry { name, source, wanted: None });
            }
            (ObjectId::Pipeline(name), Some(ValidSpec::Pipeline(draft))) => {
                pipelines.push(ResolvedEntry { name, source, wanted: Some(draft) });
            }
            (ObjectId::Pipeline(name), _) => {
                pipelines.push(ResolvedEntry { name, source, wanted: None });
            }
        }
    }
    let mut next = Desired::default();
    let mut fleets = take_clusters(clusters, classes, rules.share, &mut next, before, problems);
    let sets = join_streams(sets, files, before, problems);
    take_sets(sets, &mut fleets, &mut next, before, problems);
    pipelines::take(fleets.classes, pipelines, rules, &mut next, before, problems);
    next
}

/// Where an object is defined, and since when.
#[derive(Debug)]
struct EntrySource {
    file: String,
    at: Position,
    created: Option<Created>,
}

struct ResolvedEntry<N, T> {
    name: N,
    source: EntrySource,
    wanted: Option<T>,
}

impl<N, T> ResolvedEntry<N, T> {
    /// What is wanted, apart from whose it is.
    fn split(self) -> (ResolvedEntry<N, ()>, Option<T>) {
        let Self { name, source, wanted } = self;
        (ResolvedEntry { name, source, wanted: None }, wanted)
    }

    fn created(&self) -> Option<&Created> {
        self.source.created.as_ref()
    }

    fn problem(&self, at: Position, field: &str, message: impl Into<String>) -> Problem {
        Problem::new(&self.source.file, at, field, message)
    }

    /// A problem of the object itself.
    fn name_problem(&self, message: impl Into<String>) -> Problem {
        self.problem(self.source.at, "metadata.name", message)
    }
}

/// Sorts entries by who came first: by creation. Of files what is in force comes first, and then
/// the order stays as it is.
fn sort_by_precedence<N, T>(entries: &mut [ResolvedEntry<N, T>], is_in_force: impl Fn(&N) -> bool) {
    entries.sort_by(|one, other| {
        let in_force = || is_in_force(&other.name).cmp(&is_in_force(&one.name));
        one.created().cmp(&other.created()).then_with(in_force)
    });
}

/// The WorkerCluster of this name, where one is in force.
fn last_cluster<'a>(before: &'a Desired, name: &ClusterName) -> Option<&'a Arc<Cluster>> {
    before.clusters.get(name).filter(|cluster| cluster.class.is_none())
}

/// The WorkerClass of this name, where one is in force.
fn last_class<'a>(before: &'a Desired, name: &ClusterName) -> Option<&'a Arc<Cluster>> {
    before.clusters.get(name).filter(|cluster| cluster.class.is_some())
}
