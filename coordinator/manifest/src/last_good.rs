//! The last good state as text, so that it outlives the process. Objects are written as manifests
//! and read by the very rules that people's manifests are read by, so nothing comes back that could
//! not have been put in force; a checksum detects a damaged file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::desired::{
    Class, Cluster, Desired, Mode, Moves, Node, Pipeline, Policy, Rebalance, RolloutOrder, Spread,
    Stream, StreamSet,
};
use leasehold_types::{ClusterName, NodeName, PipelineName, SetName};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

use super::check::{self, Document, ObjectId, Origin, ValidSpec};
use super::manifest::API_VERSION;
use super::problem::Problem;
use super::resolve::{Candidate, MissingClass, Rules, StreamFiles, resolve};
use super::streams::Item;
use super::tree::{self, Position};
use super::values::Rate;

/// What problems of the text call it, and the file that it is kept in.
pub const FILE: &str = "manifests.good";
/// Bytes of the text: 1,000,000 streams with the longest names take about half of it.
pub const BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// What one file gave, or still gives by rule 2.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileContribution {
    pub(crate) objects: BTreeSet<ObjectId>,
    pub(crate) sources: BTreeSet<String>,
}

/// What the next reading builds on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastGood {
    /// What is in force.
    pub desired: Arc<Desired>,
    /// What each file gave at the last reading.
    pub gave: BTreeMap<String, FileContribution>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum WrittenRecord<'a> {
    File { path: &'a str, gave: &'a FileContribution },
    Object { manifest: Value, streams: WrittenStreams<'a> },
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ReadRecord {
    File { path: String, gave: FileContribution },
    Object { manifest: Value, streams: Vec<Item> },
}

/// The text of a state: a heading with the checksum of the rest, then one line of JSON for each
/// file and object.
pub fn write(state: &LastGood) -> serde_json::Result<Vec<u8>> {
    let mut body = Vec::new();
    for (path, gave) in &state.gave {
        append(&mut body, &WrittenRecord::File { path, gave })?;
    }
    append_objects(&mut body, &state.desired)?;
    let mut text = heading(&body).into_bytes();
    text.push(b'\n');
    text.append(&mut body);
    Ok(text)
}

/// A checksum of the objects of a state, which two replicas of one build can compare. It does not
/// depend on the files that the objects are in.
pub fn checksum_of(desired: &Desired) -> serde_json::Result<u64> {
    let mut objects = Vec::new();
    append_objects(&mut objects, desired)?;
    Ok(checksum(&objects))
}

/// The state that a text holds, and what of it no longer is a valid object: that is left out.
///
/// # Errors
/// Why nothing of it can be used.
pub fn read(text: &str) -> Result<(LastGood, Vec<Problem>), String> {
    let (head, body) = text.split_once('\n').unwrap_or((text, ""));
    if head != heading(body.as_bytes()) {
        return Err("is damaged, or was written by another version".into());
    }
    let mut gave = BTreeMap::new();
    let mut candidates = BTreeMap::new();
    let mut problems = Vec::new();
    for (number, line) in (2..).zip(body.lines()) {
        let wrong = |why: String| format!("has a line {number} that cannot be read: {why}");
        match serde_json::from_str(line).map_err(|error| wrong(error.to_string()))? {
            ReadRecord::File { path, gave: given } => {
                gave.insert(path, given);
            }
            ReadRecord::Object { manifest, streams } => {
                let at = Position { line: number, column: 0 };
                let found = object(&manifest, streams, at, &mut problems).map_err(wrong)?;
                candidates.extend(found);
            }
        }
    }
    let nothing = Desired::default();
    let lists = StreamFiles::new();
    let rules = Rules::of_files(MissingClass::Kept);
    let desired = resolve(candidates, &lists, rules, &nothing, &mut problems);
    Ok((LastGood { desired: Arc::new(desired), gave }, problems))
}

/// The first line, with the checksum of all others.
fn heading(body: &[u8]) -> String {
    format!("{API_VERSION} last good state, format 1, checksum {:016x}", checksum(body))
}

/// FNV-1a, 64 bits.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// One line for each object.
fn append_objects(text: &mut Vec<u8>, desired: &Desired) -> serde_json::Result<()> {
    for (name, cluster) in &desired.clusters {
        let manifest = cluster_manifest(name, cluster);
        append(text, &WrittenRecord::Object { manifest, streams: WrittenStreams(&[]) })?;
    }
    for (name, pipeline) in &desired.pipelines {
        let manifest = pipeline_manifest(name, pipeline);
        append(text, &WrittenRecord::Object { manifest, streams: WrittenStreams(&[]) })?;
    }
    for (name, set) in &desired.sets {
        let manifest = set_manifest(name, set);
        append(text, &WrittenRecord::Object { manifest, streams: WrittenStreams(&set.streams) })?;
    }
    Ok(())
}

fn append(text: &mut Vec<u8>, line: &WrittenRecord<'_>) -> serde_json::Result<()> {
    serde_json::to_writer(&mut *text, line)?;
    text.push(b'\n');
    Ok(())
}

fn object(
    manifest: &Value,
    streams: Vec<Item>,
    at: Position,
    problems: &mut Vec<Problem>,
) -> Result<Option<(ObjectId, Candidate)>, String> {
    let mut found = Vec::new();
    let nodes = tree::parse(&manifest.to_string()).map_err(|fault| fault.message)?;
    let node = nodes.into_iter().next().ok_or("it is empty")?;
    let Document { id, body, .. } = check::document(FILE, Origin::File, node, &mut found);
    let body = match body {
        Some(ValidSpec::Set(draft)) => {
            let mut draft = Arc::unwrap_or_clone(draft);
            let streams = taken(streams, at, &mut found);
            draft.marks = streams.iter().map(|_| at).collect();
            Arc::make_mut(&mut draft.set).streams = Arc::new(streams);
            draft.sources.clear();
            draft.cluster_at = at;
            Some(ValidSpec::Set(Arc::new(draft)))
        }
        other => other,
    };
    let body = body.filter(|_| found.is_empty());
    let placed = |problem: Problem| Problem { line: at.line, column: at.column, ..problem };
    problems.extend(found.into_iter().map(placed));
    Ok(id.map(|id| (id, Candidate { file: FILE.into(), at, created: None, body })))
}

fn taken(streams: Vec<Item>, at: Position, problems: &mut Vec<Problem>) -> Vec<Stream> {
    let mut good = Vec::with_capacity(streams.len());
    for item in streams {
        match item {
            Item::Good(stream) => good.push(stream),
            Item::Bad(field, why) => problems.push(Problem::new(FILE, at, field, why)),
        }
    }
    if good.is_empty() {
        problems.push(Problem::new(FILE, at, "streams", "names no stream"));
    }
    good
}

fn manifest(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn millis(span: Duration) -> String {
    format!("{}ms", span.as_millis())
}

pub(crate) fn cluster_manifest(name: &ClusterName, cluster: &Cluster) -> Value {
    // Taken apart, so that no field can be forgotten here.
    let Cluster {
        jobs_max,
        jobs_per_worker_max,
        drain_deadline,
        ttl,
        floor,
        lost_after,
        rollout_order,
        class,
    } = cluster;
    let mut spec = match class {
        Some(class) => class_spec(class),
        None => json!({"maxJobs": jobs_max, "maxJobsPerWorker": jobs_per_worker_max}),
    };
    spec["drain"] = json!({"deadline": millis(*drain_deadline)});
    spec["lease"] = json!({"ttl": millis(*ttl)});
    if let Some(after) = lost_after {
        spec["lost"] = json!({"after": millis(*after)});
    }
    if *rollout_order == RolloutOrder::Fair {
        spec["rollout"] = json!({"order": "Fair"});
    }
    let kind = match class {
        Some(_) => "WorkerClass",
        None => {
            spec["lease"]["floor"] = json!(floor);
            "WorkerCluster"
        }
    };
    manifest(kind, name.as_str(), spec)
}

fn class_spec(class: &Class) -> Value {
    let Class {
        capacity,
        workers_min,
        workers_max,
        utilization,
        spread,
        rebalance,
        handover_deadline,
    } = class;
    json!({
        "capacity": Rate(*capacity),
        "minReplicas": workers_min,
        "maxReplicas": workers_max,
        "scaling": {"targetUtilization": utilization},
        "spread": match spread {
            Spread::Fewest => "Fewest",
            Spread::Even => "Even",
        },
        "rebalance": match rebalance {
            Rebalance::Never => "Never",
            Rebalance::WhenBlocked => "WhenBlocked",
        },
        "handover": {"deadline": millis(*handover_deadline)},
    })
}

pub(crate) fn pipeline_manifest(name: &PipelineName, pipeline: &Pipeline) -> Value {
    let Pipeline { load, nodes } = pipeline;
    let node = |(name, Node { class, next }): (&NodeName, &Node)| {
        (name.to_string(), json!({"class": class, "next": next}))
    };
    let workers: serde_json::Map<String, Value> = nodes.iter().map(node).collect();
    let spec = json!({"documentsPerSecond": Rate(*load), "workers": workers});
    manifest("Pipeline", name.as_str(), spec)
}

/// The manifest of a set. Its streams are written beside it: there may be more of them than one
/// manifest can hold.
pub(crate) fn set_manifest(name: &SetName, set: &StreamSet) -> Value {
    let StreamSet { cluster, streams: _, policy, mode, handover_deadline, moves } = set;
    let Moves { per_round_max, cooldown, settle } = moves;
    let mut moves = json!({"cooldown": millis(*cooldown), "settle": millis(*settle)});
    if *per_round_max != usize::MAX {
        moves["perRound"] = json!(per_round_max);
    }
    let spec = json!({
        "cluster": cluster.as_str(),
        "streamsFrom": [{"file": "streams"}],
        "policy": match policy {
            Policy::Sticky => "Sticky",
            Policy::Contiguous => "Contiguous",
        },
        "mode": match mode {
            Mode::Expiring => "Expiring",
            Mode::Pinned => "Pinned",
        },
        "handover": {"deadline": millis(*handover_deadline)},
        "moves": moves,
    });
    manifest("StreamSet", name.as_str(), spec)
}

/// Streams as in a list of a file: a name, or a mapping where there is more to say.
struct WrittenStreams<'a>(&'a [Stream]);

#[derive(Serialize)]
#[serde(untagged)]
enum WrittenStream<'a> {
    Name(&'a str),
    Whole { name: &'a str, weight: u32, dedicated: bool },
}

impl Serialize for WrittenStreams<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|Stream { name, weight, dedicated }| {
            let name = name.as_str();
            match (*weight, *dedicated) {
                (1, false) => WrittenStream::Name(name),
                (weight, dedicated) => WrittenStream::Whole { name, weight, dedicated },
            }
        }))
    }
}
