//! What edited manifests would change of pipelines and classes.

use leasehold_proto::admin::v1::{
    Class, PipelinePhase, PlannedClass, PlannedPipeline, PlannedShare, PlannedShareMove,
};
use leasehold_types::counted;

use crate::admin::output::{Column, NONE, TableRow, or_none, table, text};
use crate::admin::words;

/// A share of a pipeline that would have another worker or load.
struct MovedShare {
    pipeline: String,
    one: PlannedShareMove,
}

impl TableRow for PlannedPipeline {
    const PLURAL: &'static str = "pipelines";
    const COLUMNS: &'static [Column<Self>] = &[
        text("PIPELINE", |pipeline| pipeline.name.clone()),
        text("NOW", |pipeline| state(pipeline.before)),
        text("THEN", |pipeline| state(pipeline.after)),
        text("WHY", |pipeline| or_none(&pipeline.reason)),
    ];

    fn name(&self) -> String {
        self.name.clone()
    }
}

impl TableRow for MovedShare {
    const PLURAL: &'static str = "shares";
    const COLUMNS: &'static [Column<Self>] = &[
        text("PIPELINE", |share| share.pipeline.clone()),
        text("NODE", |share| share.one.node.clone()),
        text("SHARE", |share| share.one.index.to_string()),
        text("FROM", |share| place(share.one.from.as_ref())),
        text("TO", |share| place(share.one.to.as_ref())),
    ];

    fn name(&self) -> String {
        format!("{}/{}/{}", self.pipeline, self.one.node, self.one.index)
    }
}

impl TableRow for PlannedClass {
    const PLURAL: &'static str = "classes";
    const COLUMNS: &'static [Column<Self>] = &[
        text("CLASS", |class| class.name()),
        text("CAPACITY", |class| figure(class, |class| words::load(class.capacity))),
        text("REQUEST", |class| figure(class, |class| words::load(class.request))),
        text("PLACED", |class| figure(class, |class| words::load(class.placed))),
        text("WORKERS", |class| figure(class, |class| class.workers.to_string())),
        text("NEEDED", |class| figure(class, |class| class.workers_needed.to_string())),
        text("WANTED", |class| figure(class, |class| class.workers_wanted.to_string())),
        text("WAITING", |class| figure(class, |class| class.pipelines_waiting.to_string())),
    ];

    fn name(&self) -> String {
        let class = self.after.as_ref().or(self.before.as_ref());
        class.map(|class| class.name.clone()).unwrap_or_default()
    }
}

/// `30`, or `30 → 45` where it would be another.
fn figure(class: &PlannedClass, figure: impl Fn(&Class) -> String) -> String {
    let shown = |class: &Option<Class>| class.as_ref().map_or(NONE.to_owned(), &figure);
    let (before, after) = (shown(&class.before), shown(&class.after));
    if before == after { after } else { format!("{before} → {after}") }
}

/// A state of a plan; nothing where there is no pipeline.
fn state(phase: Option<i32>) -> String {
    let phase = phase.map(|phase| PipelinePhase::try_from(phase).unwrap_or_default());
    phase.map_or(NONE.to_owned(), words::pipeline)
}

/// `green-2: 10`.
fn place(share: Option<&PlannedShare>) -> String {
    let shown = |share: &PlannedShare| {
        format!("{}: {}", share.worker, words::load(share.documents_per_second))
    };
    share.map_or(NONE.to_owned(), shown)
}

/// Whether a pipeline that has its workers would lose them, and go on waiting for others.
pub(super) fn is_stopped(pipeline: &PlannedPipeline) -> bool {
    let waits = matches!(pipeline.after(), PipelinePhase::Pending | PipelinePhase::Broken);
    pipeline.before() == PipelinePhase::Ready && waits
}

/// Whether a pipeline would go on as it is, since its change finds no room.
pub(super) fn is_unchanged(pipeline: &PlannedPipeline) -> bool {
    let ready = PipelinePhase::Ready;
    pipeline.before() == ready && pipeline.after() == ready && !pipeline.reason.is_empty()
}

/// The parts of the text about pipelines and classes.
pub(super) fn as_text(pipelines: &[PlannedPipeline], classes: &[PlannedClass]) -> Vec<String> {
    let mut parts = Vec::new();
    let is_shown = |one: &&PlannedPipeline| one.before != one.after || !one.reason.is_empty();
    let states: Vec<_> = pipelines.iter().filter(is_shown).cloned().collect();
    if !states.is_empty() {
        parts.push(table(&states, false));
    }
    let unchanged: Vec<_> = pipelines.iter().filter(|one| is_unchanged(one)).collect();
    if let Some(first) = unchanged.first() {
        let (count, name) = (counted(unchanged.len(), "pipeline"), &first.name);
        parts.push(format!(
            "The change of {count} would not come into force, for example of {name}: the former \
             definition would go on.\n"
        ));
    }
    let shares = pipelines.iter().flat_map(|pipeline| {
        let name = || pipeline.name.clone();
        pipeline.moves.iter().map(move |one| MovedShare { pipeline: name(), one: one.clone() })
    });
    let shares: Vec<_> = shares.collect();
    if !shares.is_empty() {
        let count = counted(shares.len(), "share");
        parts.push(format!("{count} would change:\n{}", table(&shares, false)));
    }
    if !classes.is_empty() {
        parts.push(table(classes, false));
    }
    parts
}
