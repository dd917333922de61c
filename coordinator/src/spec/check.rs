//! From one document to one object of the desired state: every rule on single values is here, and
//! each value that breaks one is named with its place.

mod agent;

use std::time::Duration;

use leasehold_coordinator_core::desired::{Cluster, Mode, Moves, Policy, StreamSet};
use leasehold_types::{ClusterName, SetName, WorkerName, limits};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::amount::Amount;
use super::decode::{Unknown, decode, show};
use super::manifest::{
    API_VERSION, ConfigMapKeyRef, Manifest, ModeSpec, PolicySpec, StreamSetSpec, StreamsSource,
    WorkerClusterSpec, WorkloadKind,
};
use super::problem::Problem;
use super::streams::{self, StreamList};
use super::tree::{Mark, Node, Value};

/// Files that one set may take streams from.
pub(crate) const SOURCES_MAX: usize = 1_000;

/// Names an object of either kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ObjectId {
    Cluster(ClusterName),
    Set(SetName),
}

impl ObjectId {
    /// The name, where it is a set's.
    pub(crate) fn set(&self) -> Option<&SetName> {
        match self {
            Self::Cluster(_) => None,
            Self::Set(name) => Some(name),
        }
    }
}

impl std::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cluster(name) => write!(f, "WorkerCluster {name}"),
            Self::Set(name) => write!(f, "StreamSet {name}"),
        }
    }
}

/// What a document says, where it says something valid.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Cluster(Cluster),
    Set(SetDraft),
}

/// A set whose streams are not all read yet.
#[derive(Clone, Debug)]
pub(crate) struct SetDraft {
    /// The set with its inline streams.
    pub(crate) set: StreamSet,
    /// The places of the inline streams.
    pub(crate) marks: Vec<Mark>,
    /// The files that the rest comes from.
    pub(crate) sources: Vec<Source>,
    /// Where it names its cluster.
    pub(crate) cluster_at: Mark,
}

/// A file of streams, as a set names it.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) file: String,
    pub(crate) at: Mark,
    pub(crate) field: String,
}

/// A specification as it is written.
#[derive(Clone, Debug)]
pub(crate) enum Spec {
    Cluster(WorkerClusterSpec),
    Set(StreamSetSpec),
}

/// One document, looked at.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    /// What it defines, if that much can be read.
    pub(crate) id: Option<ObjectId>,
    /// Where it names itself.
    pub(crate) at: Mark,
    /// What it says, as it is written; none where that is no specification at all.
    pub(crate) spec: Option<Spec>,
    /// What it says; none where a problem was reported.
    pub(crate) body: Option<Body>,
}

/// Where a document is from, which decides how its names are meant and what it may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home<'a> {
    /// A manifest file.
    File,
    /// An object in this namespace.
    Namespace(&'a str),
}

impl Home<'_> {
    /// A cluster's name, as it is known everywhere.
    fn cluster(&self, name: &str) -> Result<ClusterName, String> {
        let name = self.plain(name)?;
        match self {
            Self::File => ClusterName::new(name).map_err(|error| error.to_string()),
            Self::Namespace(namespace) => {
                ClusterName::in_namespace(namespace, name).map_err(|error| error.to_string())
            }
        }
    }

    /// A set's name, as it is known everywhere.
    fn set(&self, name: &str) -> Result<SetName, String> {
        self.cluster(name)?;
        match self {
            Self::File => SetName::new(name).map_err(|error| error.to_string()),
            Self::Namespace(namespace) => {
                SetName::in_namespace(namespace, name).map_err(|error| error.to_string())
            }
        }
    }

    /// The name, if it is one without a namespace.
    fn plain<'n>(&self, name: &'n str) -> Result<&'n str, String> {
        match (name.contains('/'), self) {
            (false, _) => Ok(name),
            (true, Self::File) => {
                Err(format!("is {name:?}, but names in files have no namespace: leave out the '/'"))
            }
            (true, Self::Namespace(own)) => Err(format!(
                "is {name:?}, but can only name what is in its own namespace ({own}): leave out \
                 the '/'"
            )),
        }
    }

    fn unknown(&self) -> Unknown {
        match self {
            Self::File => Unknown::Refused,
            Self::Namespace(_) => Unknown::PassedOver,
        }
    }
}

/// Looks at one document of a manifest file, or at one object; `file` is what problems call it.
pub(crate) fn document(
    file: &str,
    home: Home<'_>,
    mut node: Node,
    problems: &mut Vec<Problem>,
) -> Document {
    let kind = node.get("kind").and_then(Node::text).map(str::to_owned);
    let at = name_mark(&node);
    let mut checker = Checker { file, home, at: node.at, problems, wrong: false };
    let (id, spec, body) = match kind.as_deref() {
        Some("WorkerCluster") => {
            let id = name(&node, |name| home.cluster(name)).map(ObjectId::Cluster);
            let spec = checker.shape::<WorkerClusterSpec>(&mut node);
            let body = spec.as_ref().map(|spec| Body::Cluster(checker.cluster(&node, spec)));
            (id, spec.map(Spec::Cluster), body)
        }
        Some("StreamSet") => {
            let id = name(&node, |name| home.set(name)).map(ObjectId::Set);
            let spec = checker.shape::<StreamSetSpec>(&mut node);
            let body = spec.as_ref().and_then(|spec| checker.set(&node, spec)).map(Body::Set);
            (id, spec.map(Spec::Set), body)
        }
        _ => {
            checker.stranger(&node);
            (None, None, None)
        }
    };
    let body = if checker.wrong { None } else { body };
    Document { id, at, spec, body }
}

/// The files of streams that a document names, valid or not.
pub(crate) fn sources(node: &Node) -> impl Iterator<Item = &str> {
    let list = node.get("spec").and_then(|spec| spec.get("streamsFrom"));
    let items = match list.map(|list| &list.value) {
        Some(Value::List(items)) => items.as_slice(),
        _ => &[],
    };
    items.iter().filter_map(|item| item.get("file").and_then(Node::text))
}

fn name<T, E>(node: &Node, make: impl Fn(&str) -> Result<T, E>) -> Option<T> {
    make(node.get("metadata")?.get("name")?.text()?).ok()
}

fn name_mark(node: &Node) -> Mark {
    node.get("metadata").and_then(|m| m.get("name")).map_or(node.at, |name| name.at)
}

/// Gathers what is wrong with one document.
struct Checker<'a> {
    file: &'a str,
    home: Home<'a>,
    at: Mark,
    problems: &'a mut Vec<Problem>,
    wrong: bool,
}

impl Checker<'_> {
    fn report(&mut self, at: Mark, field: impl Into<String>, message: impl Into<String>) {
        self.wrong = true;
        let at = if at.line == 0 { self.at } else { at };
        self.problems.push(Problem::new(self.file, at, field, message));
    }

    /// Blames a field by its path, or the nearest mapping around it where it is left out.
    fn blame(&mut self, root: &Node, path: &str, message: impl Into<String>) {
        let mut node = root;
        for key in path.split('.') {
            match node.get(key) {
                Some(below) => node = below,
                None => break,
            }
        }
        self.report(node.at, path, message);
    }

    fn stranger(&mut self, node: &Node) {
        const KNOWN: &str = "WorkerCluster or StreamSet";
        if !matches!(node.value, Value::Map(_)) || node.get("jobs").is_some() {
            let message = "is no manifest, and no StreamSet names this file in streamsFrom: \
                           name it there, or move it out of the folder";
            return self.report(node.at, "", message);
        }
        match node.get("kind") {
            None => self.report(node.at, "kind", format!("is missing: add {KNOWN}")),
            Some(kind) => match &kind.value {
                Value::Text(text) => {
                    let message = format!("is {text:?}, but must be {KNOWN}");
                    self.report(kind.at, "kind", message);
                }
                _ => self.report(kind.at, "kind", format!("must be {KNOWN}")),
            },
        }
    }

    fn shape<S: DeserializeOwned>(&mut self, node: &mut Node) -> Option<S> {
        let (manifest, misfits) = decode::<Manifest<S>>(node, self.home.unknown());
        for misfit in misfits {
            self.report(misfit.at, show(&misfit.path), misfit.message);
        }
        let manifest = manifest?;
        if manifest.api_version != API_VERSION {
            let message = format!("is {:?}, but must be {API_VERSION:?}", manifest.api_version);
            self.blame(node, "apiVersion", message);
        }
        // Names of clusters and of sets follow the same rule.
        if let Err(error) = self.home.cluster(&manifest.metadata.name) {
            self.blame(node, "metadata.name", error);
        }
        Some(manifest.spec)
    }

    fn within(&mut self, root: &Node, path: &str, value: u32, min: u32, max: u32) {
        if !(min..=max).contains(&value) {
            self.blame(root, path, format!("is {value}, but must be from {min} to {max}"));
        }
    }

    fn cluster(&mut self, root: &Node, spec: &WorkerClusterSpec) -> Cluster {
        self.within(root, "spec.maxJobs", spec.max_jobs, 0, limits::JOBS_MAX);
        let per_worker = spec.max_jobs_per_worker;
        let path = "spec.maxJobsPerWorker";
        self.within(root, path, per_worker, 1, limits::JOBS_PER_WORKER_MAX);
        self.workload(root, spec);
        for (place, message) in spec.agent.as_ref().map(agent::problems).unwrap_or_default() {
            self.blame(root, &format!("spec.agent.{place}"), message);
        }
        let ttl = spec.lease.ttl.0;
        if !(limits::TTL_MIN..=limits::TTL_MAX).contains(&ttl) {
            self.blame(root, "spec.lease.ttl", "must be from 200ms to 10m");
        }
        let floor = spec.lease.floor;
        if floor > per_worker {
            let message = format!("is {floor}, above maxJobsPerWorker ({per_worker}): lower it");
            self.blame(root, "spec.lease.floor", message);
        }
        if spec.drain.deadline.0 == Duration::ZERO {
            self.blame(root, "spec.drain.deadline", "is 0: give workers time to end their jobs");
        }
        Cluster {
            jobs_max: spec.max_jobs,
            jobs_per_worker_max: per_worker,
            drain_deadline: spec.drain.deadline.0,
            ttl,
            floor,
            class: None,
        }
    }

    fn workload(&mut self, root: &Node, spec: &WorkerClusterSpec) {
        if spec.template.is_some() && spec.workload_ref.is_some() {
            let message = "gives both template and workloadRef: keep one";
            self.blame(root, "spec", message);
        }
        if let Some(named) = &spec.workload_ref
            && WorkerName::new(&named.name).is_err()
        {
            let message = format!("is {:?}, which no workload can be called", named.name);
            self.blame(root, "spec.workloadRef.name", message);
        }
        let Some(workload) = &spec.workload else { return };
        if spec.template.is_none() {
            let message = "says how to make a workload, and there is no template: add one";
            self.blame(root, "spec.workload", message);
        }
        let stateful = workload.kind == WorkloadKind::StatefulSet;
        let of_deployments = [
            ("maxSurge", workload.max_surge.is_some()),
            ("maxUnavailable", workload.max_unavailable.is_some()),
        ];
        let of_stateful_sets = [
            ("serviceName", workload.service_name.is_some()),
            ("podManagementPolicy", workload.pod_management_policy.is_some()),
        ];
        let (other, fields) = match stateful {
            true => ("Deployment", of_deployments),
            false => ("StatefulSet", of_stateful_sets),
        };
        for (field, _) in fields.iter().filter(|(_, given)| *given) {
            let message = format!("is for kind {other} only: remove it, or change the kind");
            self.blame(root, &format!("spec.workload.{field}"), message);
        }
        let zero = |amount: &Option<Amount>| amount.is_some_and(|amount| amount.is_zero());
        if zero(&workload.max_surge) && zero(&workload.max_unavailable) {
            let message = "is 0 like maxSurge, so that no rollout could ever begin: raise one";
            self.blame(root, "spec.workload.maxUnavailable", message);
        }
    }

    fn set(&mut self, root: &Node, spec: &StreamSetSpec) -> Option<SetDraft> {
        let cluster = match self.home.cluster(&spec.cluster) {
            Ok(cluster) => Some(cluster),
            Err(error) => {
                self.blame(root, "spec.cluster", error);
                None
            }
        };
        if spec.moves.per_round == Some(0) {
            let message = "is 0, so that no stream could ever move: raise it, or leave it out";
            self.blame(root, "spec.moves.perRound", message);
        }
        if spec.streams.is_empty() && spec.streams_from.is_empty() {
            self.blame(root, "spec", "names no stream: add streams or streamsFrom");
        }
        let body = root.get("spec")?;
        let list = self.inline(body, spec);
        let sources = self.files(body, spec);
        let per_round = spec.moves.per_round.and_then(|n| usize::try_from(n).ok());
        let set = StreamSet {
            cluster: cluster?,
            streams: list.streams,
            policy: match spec.policy {
                PolicySpec::Sticky => Policy::Sticky,
                PolicySpec::Contiguous => Policy::Contiguous,
            },
            mode: match spec.mode {
                ModeSpec::Expiring => Mode::Expiring,
                ModeSpec::Pinned => Mode::Pinned,
            },
            handover_deadline: spec.handover.deadline.0,
            moves: Moves {
                per_round_max: per_round.unwrap_or(usize::MAX),
                cooldown: spec.moves.cooldown.0,
                settle: spec.moves.settle.0,
            },
        };
        let cluster_at = body.get("cluster").map_or(body.at, |node| node.at);
        Some(SetDraft { set, marks: list.marks, sources, cluster_at })
    }

    fn inline(&mut self, body: &Node, spec: &StreamSetSpec) -> StreamList {
        let mut list = StreamList::default();
        let Some(node) = body.get("streams") else { return list };
        for ((index, item), entry) in node.items().zip(&spec.streams) {
            match streams::check(entry) {
                Ok(stream) => {
                    list.streams.push(stream);
                    list.marks.push(item.at);
                }
                Err((field, message)) => {
                    let at = item.get(field).map_or(item.at, |node| node.at);
                    self.report(at, format!("spec.streams[{index}].{field}"), message);
                }
            }
        }
        list
    }

    fn files(&mut self, body: &Node, spec: &StreamSetSpec) -> Vec<Source> {
        let mut sources = Vec::new();
        let Some(node) = body.get("streamsFrom") else { return sources };
        if spec.streams_from.len() > SOURCES_MAX {
            let message = format!("names more than {SOURCES_MAX} files: join them");
            self.report(node.at, "spec.streamsFrom", message);
        }
        for ((index, item), source) in node.items().zip(&spec.streams_from) {
            match self.source(index, item, source) {
                Ok(source) => sources.push(source),
                Err((at, field, message)) => self.report(at, field, message),
            }
        }
        sources
    }

    /// Where one list of streams is, or what is wrong with its name.
    fn source(
        &self,
        index: usize,
        item: &Node,
        source: &StreamsSource,
    ) -> Result<Source, (Mark, String, String)> {
        let below = |field: &str| format!("spec.streamsFrom[{index}].{field}");
        match (self.home, &source.file, &source.config_map_key_ref) {
            (Home::File, Some(file), None) => {
                let base = self.file.rsplit_once('/').map_or("", |(folder, _)| folder);
                let at = item.get("file").map_or(item.at, |node| node.at);
                let outside = || {
                    let message =
                        format!("is {file:?}, outside the manifests' folder: give a path below it");
                    (at, below("file"), message)
                };
                let file = resolve(base, file).ok_or_else(outside)?;
                Ok(Source { file, at, field: below("file") })
            }
            (Home::Namespace(namespace), None, Some(key)) => {
                let file = config_map(namespace, key);
                Ok(Source { file, at: item.at, field: below("configMapKeyRef") })
            }
            (Home::File, None, Some(_)) => {
                let message = "is read on Kubernetes only: name a file here".into();
                Err((item.at, below("configMapKeyRef"), message))
            }
            (Home::Namespace(_), Some(_), None) => {
                let message = "is read in standalone mode only: put the streams into a ConfigMap \
                               and give configMapKeyRef";
                Err((item.at, below("file"), message.into()))
            }
            (_, Some(_), Some(_)) | (_, None, None) => {
                let message = "give exactly one of file and configMapKeyRef".into();
                Err((item.at, below("file"), message))
            }
        }
    }
}

/// What problems call a key of a ConfigMap, and what its list is found by.
pub(crate) fn config_map(namespace: &str, key: &ConfigMapKeyRef) -> String {
    format!("ConfigMap {namespace}/{}[{}]", key.name, key.key)
}

/// A path below the manifests' folder, seen from one of its folders; none where it leaves it.
pub(crate) fn resolve(base: &str, file: &str) -> Option<String> {
    if file.is_empty() || file.starts_with('/') || file.contains('\0') {
        return None;
    }
    let mut parts: Vec<&str> = base.split('/').filter(|part| !part.is_empty()).collect();
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}
