//! Stream sets: their streams joined from all lists, and their clusters there.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use leasehold_coordinator_core::desired::{Desired, Stream, StreamSet};
use leasehold_types::{ClusterName, SetName, limits};

use super::super::check::SetDraft;
use super::super::problem::Problem;
use super::super::tree::Position;
use super::{ResolvedEntry, StreamFiles, last_cluster};

/// A set with all its streams.
pub(super) struct CompleteSet {
    set: Arc<StreamSet>,
    cluster_at: Position,
}

pub(super) fn join_streams(
    wanted: Vec<ResolvedEntry<SetName, Arc<SetDraft>>>,
    files: &StreamFiles,
    problems: &mut Vec<Problem>,
) -> Vec<ResolvedEntry<SetName, CompleteSet>> {
    let join = |mut set: ResolvedEntry<SetName, Arc<SetDraft>>| {
        let draft = set.wanted.take();
        let joined = draft.and_then(|draft| join_one(&set, &draft, files, problems));
        ResolvedEntry { name: set.name, file: set.file, at: set.at, wanted: joined }
    };
    wanted.into_iter().map(join).collect()
}

/// The streams of one list, each with its place.
struct ListedStreams<'a> {
    file: &'a str,
    streams: &'a [Stream],
    marks: &'a [Position],
    /// The list's field; `None` if each stream is a line.
    field: Option<&'static str>,
}

/// Duplicates that are reported of one set.
const DUPLICATES_MAX: usize = 20;

fn join_one(
    wanted: &ResolvedEntry<SetName, Arc<SetDraft>>,
    draft: &SetDraft,
    files: &StreamFiles,
    problems: &mut Vec<Problem>,
) -> Option<CompleteSet> {
    let SetDraft { set, marks, sources, cluster_at } = draft;
    let inline = ListedStreams {
        file: &wanted.file,
        streams: &set.streams,
        marks,
        field: Some("spec.streams"),
    };
    let mut lists = vec![inline];
    let mut whole = true;
    for source in sources {
        match files.get(&source.file) {
            Some(Some(list)) => lists.push(ListedStreams {
                file: &source.file,
                streams: &list.streams,
                marks: &list.marks,
                field: list.field,
            }),
            Some(None) => whole = false,
            None => {
                let message = format!("names {}, which is not there: create it", source.file);
                problems.push(wanted.problem(source.at, &source.field, message));
                whole = false;
            }
        }
    }
    let count: usize = lists.iter().map(|list| list.streams.len()).sum();
    if count > limits::STREAMS_MAX {
        let message = format!("has {count} streams, more than {}: split it", limits::STREAMS_MAX);
        problems.push(wanted.problem(wanted.at, "spec.streams", message));
        return None;
    }
    let mut seen: HashMap<&str, (&str, Position)> = HashMap::with_capacity(count);
    let mut duplicates = 0;
    for list in &lists {
        for (index, (stream, mark)) in list.streams.iter().zip(list.marks).enumerate() {
            let Some((other, at)) = seen.insert(stream.name.as_str(), (list.file, *mark)) else {
                continue;
            };
            duplicates += 1;
            if duplicates <= DUPLICATES_MAX {
                let place = match at.line {
                    0 => String::new(),
                    line => format!(":{line}:{}", at.column),
                };
                let message = format!(
                    "stream {:?} is there already, in {other}{place}: remove one of them",
                    stream.name.as_str(),
                );
                let field = list.field.map(|field| format!("{field}[{index}]"));
                problems.push(Problem::new(list.file, *mark, field.unwrap_or_default(), message));
            }
        }
    }
    if !whole || duplicates > 0 {
        return None;
    }
    let set = match sources.is_empty() {
        true => set.clone(),
        false => {
            let streams = lists.iter().flat_map(|list| list.streams).cloned().collect();
            Arc::new(StreamSet { streams, ..StreamSet::clone(set) })
        }
    };
    Some(CompleteSet { set, cluster_at: *cluster_at })
}

pub(super) fn take_sets(
    wanted: Vec<ResolvedEntry<SetName, CompleteSet>>,
    classes: &BTreeSet<ClusterName>,
    next: &mut Desired,
    before: &Desired,
    problems: &mut Vec<Problem>,
) {
    // What is in force counts until it is replaced, and what shrinks goes first, so that no order
    // of names decides whether a change that fits is taken.
    let mut total: usize =
        wanted.iter().filter_map(|w| before.sets.get(&w.name)).map(|set| set.streams.len()).sum();
    let mut wanted = wanted;
    wanted.sort_by_key(|w| {
        let old = before.sets.get(&w.name).map(|set| set.streams.len());
        let new = w.wanted.as_ref().map_or(0, |joined| joined.set.streams.len());
        (old.is_none(), new.saturating_sub(old.unwrap_or_default()))
    });
    let there = NameableClusters { clusters: next.clusters.keys().cloned().collect(), classes };
    for mut set in wanted {
        let last = before.sets.get(&set.name);
        let joined = set.wanted.take();
        let new = joined
            .and_then(|new| admit(&set, new, last, &there, next.sets.len(), &mut total, problems));
        let chosen = match (new, last) {
            (Some(new), Some(last)) if new == *last => last.clone(),
            (Some(new), _) => new,
            (None, Some(last)) => last.clone(),
            (None, None) => continue,
        };
        keep_cluster(&chosen.cluster, next, before);
        next.sets.insert(set.name, chosen);
    }
}

/// What a set may name, and what it may not.
struct NameableClusters<'a> {
    clusters: BTreeSet<ClusterName>,
    classes: &'a BTreeSet<ClusterName>,
}

/// The set, if its cluster is there and the limits have room for it.
fn admit(
    wanted: &ResolvedEntry<SetName, CompleteSet>,
    joined: CompleteSet,
    last: Option<&Arc<StreamSet>>,
    there: &NameableClusters<'_>,
    taken: usize,
    total: &mut usize,
    problems: &mut Vec<Problem>,
) -> Option<Arc<StreamSet>> {
    let CompleteSet { set, cluster_at } = joined;
    let mut refuse = |at, field, message: String| {
        problems.push(wanted.problem(at, field, message));
    };
    let stays = last.is_some_and(|last| last.cluster == set.cluster);
    match (there.clusters.contains(&set.cluster), stays) {
        (true, _) => {}
        (false, true) => {
            let message = format!(
                "cluster {:?} is no longer defined; it stays in force while this set names it: \
                 define it again, or remove the set too",
                set.cluster.as_str()
            );
            refuse(cluster_at, "spec.cluster", message);
        }
        (false, false) if there.classes.contains(&set.cluster) => {
            let message = format!(
                "{:?} is a WorkerClass, whose workers serve pipelines: name a WorkerCluster",
                set.cluster.as_str()
            );
            refuse(cluster_at, "spec.cluster", message);
            return None;
        }
        (false, false) => {
            let message = format!(
                "cluster {:?} is not defined by any valid manifest here: define it, or name \
                 another",
                set.cluster.as_str()
            );
            refuse(cluster_at, "spec.cluster", message);
            return None;
        }
    }
    if last.is_none() && taken >= limits::SETS_MAX {
        let message = format!("is one more than {} stream sets", limits::SETS_MAX);
        refuse(wanted.at, "metadata.name", message);
        return None;
    }
    let others = *total - last.map_or(0, |last| last.streams.len());
    if others + set.streams.len() > limits::STREAMS_MAX {
        let message = format!(
            "brings all sets together to more than {} streams: split them over several \
             coordinators",
            limits::STREAMS_MAX
        );
        refuse(wanted.at, "spec.streams", message);
        return None;
    }
    *total = others + set.streams.len();
    Some(set)
}

/// A cluster stays in force for as long as a set in force names it.
fn keep_cluster(name: &ClusterName, next: &mut Desired, before: &Desired) {
    if next.clusters.contains_key(name) {
        return;
    }
    if let Some(cluster) = last_cluster(before, name) {
        next.clusters.insert(name.clone(), cluster.clone());
    }
}
