//! The manifests: what the fleet is to do, and what edits make of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::plan::{BUDGET, Edit, JOB_NODES, STREAMS};

/// The cluster of the workers that take jobs and streams.
pub(super) const JOBS: &str = "jobs";
/// The classes of the other workers, half of them each.
const CLASSES: [&str; 2] = ["blue", "green"];
/// Jobs that one worker takes at most.
pub(super) const JOBS_PER_WORKER: u32 = 3;
/// Documents per second that one worker of a class can take.
pub(super) const CAPACITY: u32 = 30;
/// How long a lease lasts: short, so that faults outlast it.
const LEASE: &str = "lease: {ttl: 2s}";
/// The load of the first pipeline.
const LOAD: u32 = 12;

const HEAD: &str = "---\napiVersion: leasehold.dev/v1alpha1\n";

/// What the manifests say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChaosManifests {
    /// The budget.
    pub(super) budget: u32,
    more: usize,
    set: bool,
    pipeline: bool,
    swapped: bool,
    load: u32,
}

impl ChaosManifests {
    /// What they say at the beginning and at the end.
    pub(super) fn new() -> Self {
        let (more, set, pipeline, swapped) = (0, false, false, false);
        Self { budget: BUDGET, more, set, pipeline, swapped, load: LOAD }
    }

    /// Makes an edit, or takes it back.
    pub(super) fn edit(&mut self, edit: Edit, on: bool) {
        let before = Self::new();
        match edit {
            Edit::Budget(jobs) => self.budget = if on { jobs } else { before.budget },
            Edit::Streams(more) => self.more = if on { more } else { before.more },
            Edit::Set => self.set = on,
            Edit::Pipeline => self.pipeline = on,
            Edit::Classes => self.swapped = on,
            Edit::Load(load) => self.load = if on { load } else { before.load },
        }
    }

    /// Writes the manifests atomically, so that no reader sees half of them.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let (file, hidden) = (folder.join("wanted.yaml"), folder.join(".wanted"));
        std::fs::write(&hidden, self.text())?;
        Ok(std::fs::rename(hidden, file)?)
    }

    /// Every stream, as `SET/STREAM`.
    pub(super) fn streams(&self) -> BTreeSet<String> {
        let of = |(set, _, count): (&str, &str, usize)| {
            let set = set.to_owned();
            (0..count).map(move |stream| format!("{set}/s{stream}"))
        };
        self.sets().into_iter().flat_map(of).collect()
    }

    /// The load of each node of each pipeline, in thousandths, by `PIPELINE/NODE`.
    pub(super) fn loads(&self) -> BTreeMap<String, u64> {
        let of = |(pipeline, load, nodes): (&str, u32, [(&str, &str); 2])| {
            let pipeline = pipeline.to_owned();
            let load = u64::from(load) * 1_000;
            nodes.map(move |(node, _)| (format!("{pipeline}/{node}"), load))
        };
        self.pipelines().into_iter().flat_map(of).collect()
    }

    fn sets(&self) -> Vec<(&'static str, &'static str, usize)> {
        let count = STREAMS + self.more;
        let mut sets = vec![("expiring", "Expiring", count), ("pinned", "Pinned", count)];
        sets.extend(self.set.then_some(("more", "Expiring", STREAMS)));
        sets
    }

    fn pipelines(&self) -> Vec<Pipeline> {
        let [first, second] = CLASSES;
        let (front, back) = if self.swapped { (second, first) } else { (first, second) };
        let mut pipelines = vec![("news", self.load, [("front", front), ("back", back)])];
        pipelines.extend(self.pipeline.then_some((
            "archive",
            7,
            [("scan", first), ("store", second)],
        )));
        pipelines
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{HEAD}kind: WorkerCluster\nmetadata: {{name: {JOBS}}}\nspec: {{maxJobs: {}, \
             maxJobsPerWorker: {JOBS_PER_WORKER}, {LEASE}, drain: {{deadline: 5s}}}}\n",
            self.budget
        );
        for class in CLASSES {
            let _ = write!(
                text,
                "{HEAD}kind: WorkerClass\nmetadata: {{name: {class}}}\nspec: {{capacity: \
                 {CAPACITY}, maxReplicas: 5, {LEASE}, drain: {{deadline: 5s}}}}\n"
            );
        }
        for (set, mode, count) in self.sets() {
            let streams: Vec<_> = (0..count).map(|stream| format!("{{name: s{stream}}}")).collect();
            let _ = write!(
                text,
                "{HEAD}kind: StreamSet\nmetadata: {{name: {set}}}\nspec: {{cluster: {JOBS}, mode: \
                 {mode}, moves: {{cooldown: 0s}}, handover: {{deadline: 2s}}, streams: [{}]}}\n",
                streams.join(", ")
            );
        }
        for (pipeline, load, [(front, first), (back, second)]) in self.pipelines() {
            let _ = write!(
                text,
                "{HEAD}kind: Pipeline\nmetadata: {{name: {pipeline}}}\nspec: \
                 {{documentsPerSecond: {load}, workers: {{{front}: {{class: {first}, next: \
                 [{back}]}}, {back}: {{class: {second}}}}}}}\n"
            );
        }
        text
    }
}

/// The cluster or class that a node's worker belongs to.
pub(super) fn cluster_of(node: usize) -> &'static str {
    match node.checked_sub(JOB_NODES) {
        None => JOBS,
        Some(other) => CLASSES[other % CLASSES.len()],
    }
}

/// The folder of the manifests.
pub(super) fn folder(of: &Path) -> PathBuf {
    of.join("manifests")
}

/// A pipeline's name, its load, and its nodes, each with its class.
type Pipeline = (&'static str, u32, [(&'static str, &'static str); 2]);
