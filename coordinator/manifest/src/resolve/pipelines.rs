//! Classes, and the pipelines that are laid over them. Where a change would leave a pipeline that
//! its classes can never satisfy, or two bindings of one name, what was in force stays, of that
//! object alone whose change it is: of the class where a pipeline in force no longer fits, of the
//! pipeline otherwise.

mod refusals;

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_coordinator_core::desired::{Class, Cluster, Desired, Pipeline};
use leasehold_types::{ClusterName, NodeName, PipelineName, limits};

use super::super::check::{ClassDraft, PipelineDraft};
use super::super::places::Places;
use super::super::problem::Problem;
use super::super::tree::Position;
use super::{MissingClass, ResolvedEntry, Rules, last_class, sort_by_precedence};

/// The chosen version of an object: the newest, or the one that is in force.
struct VersionChoice<N, T, M> {
    entry: ResolvedEntry<N, ()>,
    /// `None` if it equals what is in force, or is refused.
    new: Option<Arc<T>>,
    last: Option<Arc<T>>,
    /// The places in the newest version.
    marks: M,
}

type ClassChoice = VersionChoice<ClusterName, Cluster, ClassPositions>;
type PipelineChoice = VersionChoice<PipelineName, Pipeline, PipelinePositions>;

#[derive(Default)]
struct ClassPositions {
    capacity: Position,
    most: Position,
}

#[derive(Default)]
struct PipelinePositions {
    load: Position,
    /// Where each node is, and where it names its class.
    nodes: Arc<BTreeMap<NodeName, (Position, Position)>>,
}

impl<N, T: PartialEq, M> VersionChoice<N, T, M> {
    fn new(
        entry: ResolvedEntry<N, ()>,
        new: Option<Arc<T>>,
        last: Option<&Arc<T>>,
        marks: M,
    ) -> Self {
        let new = new.filter(|new| last != Some(new));
        Self { entry, new, last: last.cloned(), marks }
    }

    fn current(&self) -> Option<&Arc<T>> {
        self.new.as_ref().or(self.last.as_ref())
    }

    /// Falls back to the version in force; if that one is refused, to none.
    fn refuse(&mut self) {
        if self.new.take().is_none() {
            self.last = None;
        }
    }
}

/// Takes classes that have a place, and pipelines, into force.
pub(super) fn take(
    classes: Vec<ResolvedEntry<ClusterName, ClassDraft>>,
    pipelines: Vec<ResolvedEntry<PipelineName, PipelineDraft>>,
    rules: Rules,
    next: &mut Desired,
    before: &Desired,
    problems: &mut Vec<Problem>,
) {
    let Rules { missing, share } = rules;
    let classes = choose_classes(classes, next, before, problems);
    let mut choices =
        PipelineResolver { classes, pipelines: BTreeMap::new(), missing, next, before };
    let places = Places::new("pipelines", limits::PIPELINES_MAX, share);
    choices.choose_pipelines(pipelines, places, problems);
    while choices.refuse_unplaceable(problems) || choices.refuse_namesakes(problems) {}
    choices.put_in_force();
}

fn choose_classes(
    wanted: Vec<ResolvedEntry<ClusterName, ClassDraft>>,
    next: &Desired,
    before: &Desired,
    problems: &mut Vec<Problem>,
) -> BTreeMap<ClusterName, ClassChoice> {
    let mut chosen: BTreeMap<ClusterName, ClassChoice> = BTreeMap::new();
    for class in wanted {
        let (entry, draft) = class.split();
        let last = last_class(before, &entry.name);
        if next.clusters.contains_key(&entry.name) {
            // Nothing defines that cluster any more: a set that names it keeps it.
            let message = format!(
                "is the name of a WorkerCluster too, which keeps it, since workers name either by \
                 --cluster {0:?}: rename one of them",
                entry.name.parts().1
            );
            problems.push(entry.name_problem(message));
            continue;
        }
        let (new, marks) = match draft {
            Some(ClassDraft { class, capacity_at, most_at }) => {
                (Some(class), ClassPositions { capacity: capacity_at, most: most_at })
            }
            None => (None, ClassPositions::default()),
        };
        chosen.insert(entry.name.clone(), VersionChoice::new(entry, new, last, marks));
    }
    chosen
}

struct PipelineResolver<'a> {
    classes: BTreeMap<ClusterName, ClassChoice>,
    pipelines: BTreeMap<PipelineName, PipelineChoice>,
    missing: MissingClass,
    next: &'a mut Desired,
    before: &'a Desired,
}

impl PipelineResolver<'_> {
    fn choose_pipelines(
        &mut self,
        mut wanted: Vec<ResolvedEntry<PipelineName, PipelineDraft>>,
        mut places: Places,
        problems: &mut Vec<Problem>,
    ) {
        let before = self.before;
        sort_by_precedence(&mut wanted, |name| before.pipelines.contains_key(name));
        for pipeline in wanted {
            let (entry, draft) = pipeline.split();
            let last = before.pipelines.get(&entry.name);
            if let Err(no_place) = places.take(entry.name.parts().0, 1) {
                problems.push(entry.name_problem(no_place.of_one()));
                continue;
            }
            let draft = draft.filter(|draft| self.knows_classes(&entry, draft, last, problems));
            let (new, marks) = match draft {
                Some(PipelineDraft { pipeline, load_at, marks }) => {
                    (Some(pipeline), PipelinePositions { load: load_at, nodes: marks })
                }
                None => (None, PipelinePositions::default()),
            };
            self.pipelines.insert(entry.name.clone(), VersionChoice::new(entry, new, last, marks));
        }
    }

    /// Whether each node's class is one, or may be waited for.
    fn knows_classes(
        &self,
        entry: &ResolvedEntry<PipelineName, ()>,
        draft: &PipelineDraft,
        last: Option<&Arc<Pipeline>>,
        problems: &mut Vec<Problem>,
    ) -> bool {
        let mut all = true;
        for (name, node) in &draft.pipeline.nodes {
            let class = &node.class;
            let named =
                |last: &&Arc<Pipeline>| last.nodes.values().any(|node| node.class == *class);
            let stays = last.is_some_and(|last| named(&last)) && self.class(class).is_some();
            let shown = class.parts().1;
            let is_there = self.classes.get(class).is_some_and(|choice| choice.current().is_some());
            let message = if is_there || self.missing == MissingClass::Kept {
                continue;
            } else if self.next.clusters.contains_key(class) {
                all = false;
                format!("{shown:?} is a WorkerCluster, whose workers run jobs: name a WorkerClass")
            } else if self.missing == MissingClass::Awaited {
                continue;
            } else if stays {
                format!(
                    "class {shown:?} is no longer defined; it stays in force while this pipeline \
                     names it: define it again, or remove the pipeline too"
                )
            } else {
                all = false;
                format!(
                    "class {shown:?} is not defined by any valid manifest here: define it, or \
                     name another"
                )
            };
            let at = draft.marks.get(name).map_or(entry.source.at, |(_, class_at)| *class_at);
            problems.push(entry.problem(at, &format!("spec.workers.{name}.class"), message));
        }
        all
    }

    /// The class as it is chosen, or as it stays in force for a pipeline that names it.
    fn class(&self, name: &ClusterName) -> Option<&Class> {
        let chosen = self.classes.get(name).and_then(VersionChoice::current);
        let kept = || {
            let free =
                self.missing == MissingClass::Refused && !self.next.clusters.contains_key(name);
            last_class(self.before, name).filter(|_| free)
        };
        chosen.or_else(kept)?.class.as_ref()
    }

    fn put_in_force(self) {
        let Self { classes, pipelines, missing, next, before } = self;
        let classes = classes
            .into_iter()
            .filter_map(|(name, choice)| Some((name, choice.current()?.clone())));
        next.clusters.extend(classes);
        let pipelines = pipelines
            .into_iter()
            .filter_map(|(name, choice)| Some((name, choice.current()?.clone())));
        next.pipelines = pipelines.collect();
        if missing != MissingClass::Refused {
            return;
        }
        for node in next.pipelines.values().flat_map(|pipeline| pipeline.nodes.values()) {
            if !next.clusters.contains_key(&node.class)
                && let Some(class) = last_class(before, &node.class)
            {
                next.clusters.insert(node.class.clone(), class.clone());
            }
        }
    }
}
