//! Stream sets: their streams joined from all lists, and their clusters there.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use leasehold_coordinator_core::desired::{Desired, Stream, StreamSet};
use leasehold_types::{ClusterName, SetName, limits};

use super::super::changed_part::{common_prefix, common_suffix};
use super::super::check::SetDraft;
use super::super::marks::Marks;
use super::super::places::Places;
use super::super::problem::Problem;
use super::super::tree::Position;
use super::clusters::FleetPlaces;
use super::{ResolvedEntry, StreamFiles, last_cluster, sort_by_precedence};

/// A set with all its streams.
pub(super) struct CompleteSet {
    set: Arc<StreamSet>,
    cluster_at: Position,
}

pub(super) fn join_streams(
    wanted: Vec<ResolvedEntry<SetName, Arc<SetDraft>>>,
    files: &StreamFiles,
    before: &Desired,
    problems: &mut Vec<Problem>,
) -> Vec<ResolvedEntry<SetName, CompleteSet>> {
    let join = |mut set: ResolvedEntry<SetName, Arc<SetDraft>>| {
        let draft = set.wanted.take();
        let last = before.sets.get(&set.name);
        let joined = draft.and_then(|draft| join_one(&set, &draft, files, last, problems));
        ResolvedEntry { name: set.name, source: set.source, wanted: joined }
    };
    wanted.into_iter().map(join).collect()
}

/// The streams of one list, each with its place.
struct ListedStreams<'a> {
    file: &'a str,
    streams: &'a Arc<Vec<Stream>>,
    marks: &'a Marks,
    /// The list's field; `None` if each stream is a line.
    field: Option<&'static str>,
}

/// Duplicates that are reported of one set.
const DUPLICATES_MAX: usize = 20;
/// Streams that an edit may add where only these are looked for in the rest of the set.
const ADDED_MAX: usize = 100;

fn join_one(
    wanted: &ResolvedEntry<SetName, Arc<SetDraft>>,
    draft: &SetDraft,
    files: &StreamFiles,
    last: Option<&Arc<StreamSet>>,
    problems: &mut Vec<Problem>,
) -> Option<CompleteSet> {
    let SetDraft { set, marks, sources, cluster_at } = draft;
    let inline = ListedStreams {
        file: &wanted.source.file,
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
                let message =
                    format!("names {}, which is not there: {}", source.file, source.remedy);
                problems.push(wanted.problem(source.at, &source.field, message));
                whole = false;
            }
        }
    }
    let count: usize = lists.iter().map(|list| list.streams.len()).sum();
    if count > limits::STREAMS_MAX {
        let message = format!("has {count} streams, more than {}: split it", limits::STREAMS_MAX);
        problems.push(wanted.problem(wanted.source.at, "spec.streams", message));
        return None;
    }
    let joined = whole.then(|| {
        if sources.is_empty() {
            return set.clone();
        }
        let mut filled = lists.iter().filter(|list| !list.streams.is_empty());
        let streams = match (filled.next(), filled.next()) {
            (Some(only), None) => Arc::clone(only.streams),
            _ => Arc::new(lists.iter().flat_map(|list| &**list.streams).cloned().collect()),
        };
        Arc::new(StreamSet { streams, ..StreamSet::clone(set) })
    });
    let is_checked = joined
        .as_ref()
        .zip(last)
        .is_some_and(|(set, last)| adds_no_duplicate(&last.streams, &set.streams));
    if !is_checked && report_duplicates(&lists, count, problems) > 0 {
        return None;
    }
    joined.map(|set| CompleteSet { set, cluster_at: *cluster_at })
}

/// Whether all names in `after` differ, given that all in `before` do. False also if more was added
/// than is looked for in the rest.
fn adds_no_duplicate(before: &[Stream], after: &[Stream]) -> bool {
    let first = common_prefix(before, after);
    let last = common_suffix(&before[first..], &after[first..]);
    let (first, rest) = after.split_at(first);
    let (added, last) = rest.split_at(rest.len() - last);
    if added.len() > ADDED_MAX {
        return false;
    }
    // By length first: to compare it reads no text, and those of a million names are far apart.
    let mut names: Vec<(usize, &str)> = added.iter().map(length_and_name).collect();
    names.sort_unstable();
    let is_added = |stream: &Stream| names.binary_search(&length_and_name(stream)).is_ok();
    let are_distinct = names.windows(2).all(|pair| pair[0] != pair[1]);
    are_distinct && (names.is_empty() || !first.iter().chain(last).any(is_added))
}

fn length_and_name(stream: &Stream) -> (usize, &str) {
    let name = stream.name.as_str();
    (name.len(), name)
}

/// Reports the names that come more than once; returns how many.
fn report_duplicates(
    lists: &[ListedStreams<'_>],
    count: usize,
    problems: &mut Vec<Problem>,
) -> usize {
    let mut seen: HashMap<&str, (&str, Position)> = HashMap::with_capacity(count);
    let mut duplicates = 0;
    for list in lists {
        for (index, (stream, mark)) in list.streams.iter().zip(list.marks.iter()).enumerate() {
            let Some((other, at)) = seen.insert(stream.name.as_str(), (list.file, mark)) else {
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
                problems.push(Problem::new(list.file, mark, field.unwrap_or_default(), message));
            }
        }
    }
    duplicates
}

/// Takes the sets into force that have a place, a cluster, and room for their streams.
pub(super) fn take_sets(
    mut wanted: Vec<ResolvedEntry<SetName, CompleteSet>>,
    fleets: &mut FleetPlaces,
    next: &mut Desired,
    before: &Desired,
    problems: &mut Vec<Problem>,
) {
    let share = fleets.left.share();
    sort_by_precedence(&mut wanted, |name| before.sets.contains_key(name));
    let mut places = Places::new("stream sets", limits::SETS_MAX, share);
    wanted.retain(|set| match places.take(set.name.parts().0, 1) {
        Ok(()) => true,
        Err(no_place) => {
            problems.push(set.name_problem(no_place.of_one()));
            false
        }
    });
    // In files what is in force counts until it is replaced, and what shrinks goes first, so that
    // no order of names decides whether a change that fits is taken.
    let last_count = |name: &SetName| before.sets.get(name).map_or(0, |set| set.streams.len());
    wanted.sort_by_key(|set| match set.created() {
        Some(_) => (false, 0),
        None => {
            let new = set.wanted.as_ref().map_or(0, |joined| joined.set.streams.len());
            let is_new = !before.sets.contains_key(&set.name);
            (is_new, new.saturating_sub(last_count(&set.name)))
        }
    });
    let mut streams = Places::new("streams", limits::STREAMS_MAX, share);
    let reserved = |set: &ResolvedEntry<SetName, CompleteSet>| match set.created() {
        Some(_) => 0,
        None => last_count(&set.name),
    };
    for set in &wanted {
        streams.reserve(set.name.parts().0, reserved(set));
    }
    let FleetPlaces { classes, refused, left } = fleets;
    let mut resolver = SetResolver {
        there: next.clusters.keys().cloned().collect(),
        classes: classes.iter().map(|class| class.name.clone()).collect(),
        refused,
        clusters: left,
        streams,
        next,
        before,
        problems,
    };
    let refused: Vec<_> = wanted
        .into_iter()
        .filter_map(|set| {
            let reserved = reserved(&set);
            resolver.take(set, reserved)
        })
        .collect();
    for (set, reserved) in refused {
        resolver.keep(&set, reserved);
    }
}

/// Chooses the version of each set.
struct SetResolver<'a> {
    /// The clusters that a set may name.
    there: BTreeSet<ClusterName>,
    /// The classes, which a set may not name.
    classes: BTreeSet<ClusterName>,
    /// The clusters that are defined, but not in force.
    refused: &'a BTreeSet<ClusterName>,
    /// The places of clusters that are left.
    clusters: &'a mut Places,
    streams: Places,
    next: &'a mut Desired,
    before: &'a Desired,
    problems: &'a mut Vec<Problem>,
}

type SetEntry = ResolvedEntry<SetName, ()>;

impl SetResolver<'_> {
    /// Puts a set in force, in its newest valid version. Returns it if there is no room for that
    /// version's streams. `reserved` is the room that it has so far.
    fn take(
        &mut self,
        set: ResolvedEntry<SetName, CompleteSet>,
        reserved: usize,
    ) -> Option<(SetEntry, usize)> {
        let last = self.before.sets.get(&set.name);
        let (entry, joined) = set.split();
        let new = joined.and_then(|new| self.with_cluster(&entry, new, last));
        let chosen = match (new, last) {
            (Some(new), Some(last)) if new == *last => last.clone(),
            (Some(new), _) => new,
            (None, Some(last)) => last.clone(),
            (None, None) => return None,
        };
        let namespace = entry.name.parts().0;
        self.streams.give_back(namespace, reserved);
        if let Err(no_place) = self.streams.take(namespace, chosen.streams.len()) {
            self.streams.reserve(namespace, reserved);
            let at = entry.source.at;
            self.problems.push(entry.problem(at, "spec.streams", no_place.of_many()));
            return Some((entry, reserved));
        }
        self.put_in_force(&entry, chosen);
        None
    }

    /// Keeps the version in force of a set that was refused, if the others leave room for it.
    fn keep(&mut self, set: &SetEntry, reserved: usize) {
        let namespace = set.name.parts().0;
        self.streams.give_back(namespace, reserved);
        if let Some(last) = self.before.sets.get(&set.name)
            && self.streams.take(namespace, last.streams.len()).is_ok()
        {
            self.put_in_force(set, last.clone());
        }
    }

    /// The set, if it may name its cluster.
    fn with_cluster(
        &mut self,
        entry: &SetEntry,
        joined: CompleteSet,
        last: Option<&Arc<StreamSet>>,
    ) -> Option<Arc<StreamSet>> {
        let CompleteSet { set, cluster_at } = joined;
        let name = set.cluster.as_str();
        let is_class = self.classes.contains(&set.cluster);
        let named = last.is_some_and(|last| last.cluster == set.cluster);
        let stays = named && self.may_stay(entry, &set.cluster);
        let message = match (self.there.contains(&set.cluster), stays) {
            (true, _) => return Some(set),
            (false, true) => format!(
                "cluster {name:?} is no longer defined; it stays in force while this set names it: \
                 define it again, or remove the set too"
            ),
            (false, false) if is_class => format!(
                "{name:?} is a WorkerClass, whose workers serve pipelines: name a WorkerCluster"
            ),
            (false, false) if self.refused.contains(&set.cluster) => format!(
                "cluster {name:?} is not in force: see the problem of that object, or name another"
            ),
            (false, false) => format!(
                "cluster {name:?} is not defined by any valid manifest here: define it, or name \
                 another"
            ),
        };
        self.problems.push(entry.problem(cluster_at, "spec.cluster", message));
        stays.then_some(set)
    }

    /// Whether a cluster that is not in force otherwise may stay for a set. On an API server the
    /// objects decide who has a name, also where this process remembers another one.
    fn may_stay(&self, entry: &SetEntry, cluster: &ClusterName) -> bool {
        let is_class = entry.created().is_some() && self.classes.contains(cluster);
        !is_class && !self.refused.contains(cluster)
    }

    /// Puts a set in force. Its cluster stays in force for as long, if it has a place.
    fn put_in_force(&mut self, entry: &SetEntry, set: Arc<StreamSet>) {
        if !self.next.clusters.contains_key(&set.cluster)
            && let Some(cluster) = last_cluster(self.before, &set.cluster)
        {
            if !self.may_stay(entry, &set.cluster) {
                return;
            }
            if let Err(no_place) = self.clusters.take(set.cluster.parts().0, 1) {
                let message = format!(
                    "cluster {:?} is no longer defined, and {}",
                    set.cluster.as_str(),
                    no_place.of_one()
                );
                let at = entry.source.at;
                self.problems.push(entry.problem(at, "spec.cluster", message));
                return;
            }
            self.next.clusters.insert(set.cluster.clone(), cluster.clone());
        }
        self.next.sets.insert(entry.name.clone(), set);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use leasehold_types::StreamName;

    use super::*;

    fn streams(names: &[u32]) -> Vec<Stream> {
        let name = |name: &u32| StreamName::new(&format!("s{name}")).expect("a name");
        let stream = |number| Stream { name: name(number), weight: 1, dedicated: false };
        names.iter().map(stream).collect()
    }

    #[test]
    fn duplicates_are_found_by_what_was_added() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut found = 0;
        for _ in 0..2_000 {
            let mut names: Vec<u32> = (0..rng.u32(0..20)).collect();
            rng.shuffle(&mut names);
            let before = streams(&names);
            for _ in 0..rng.usize(0..4) {
                let at = rng.usize(0..=names.len());
                match rng.u8(0..3) {
                    0 => names.insert(at, rng.u32(0..40)),
                    1 if at < names.len() => _ = names.remove(at),
                    _ if at < names.len() => names[at] = rng.u32(0..40),
                    _ => {}
                }
            }
            let is_unique = names.iter().collect::<HashSet<_>>().len() == names.len();
            found += u32::from(!is_unique);
            assert_eq!(adds_no_duplicate(&before, &streams(&names)), is_unique, "{names:?}");
        }
        assert!((100..1_900).contains(&found), "{found} of 2000 lists have duplicates");
    }

    #[test]
    fn many_added_streams_are_not_looked_for_one_by_one() {
        let (before, after) = (streams(&[0]), streams(&(0..200).collect::<Vec<_>>()));
        assert!(!adds_no_duplicate(&before, &after));
    }
}
