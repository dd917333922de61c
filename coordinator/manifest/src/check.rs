//! From one document to one object of the desired state: every rule on single objects is here and
//! below, and each value that breaks one is named with its place.

mod agent;
mod class;
mod cluster;
mod ignored;
mod pipeline;
mod set;

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_coordinator_core::desired::{Cluster, Pipeline, StreamSet};
use leasehold_types::{ClusterName, NodeName, PipelineName, SetName, did_you_mean};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub(crate) use self::pipeline::binding;
pub(crate) use self::set::{config_map, resolve};
use super::decode::{UnknownFields, decode, show};
use super::manifest::{
    API_VERSION, Manifest, PipelineSpec, StreamSetSpec, WorkerClassSpec, WorkerClusterSpec,
};
use super::marks::Marks;
use super::problem::Problem;
use super::tree::{Node, Position, Value};

/// The kinds of manifests.
pub(crate) const KINDS: [&str; 4] = ["WorkerCluster", "StreamSet", "WorkerClass", "Pipeline"];
/// Files that one set may take streams from.
pub(crate) const SOURCES_MAX: usize = 1_000;

/// Names an object of any kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectId {
    /// A WorkerCluster.
    Cluster(ClusterName),
    /// A StreamSet.
    Set(SetName),
    /// A WorkerClass.
    Class(ClusterName),
    /// A Pipeline.
    Pipeline(PipelineName),
}

impl ObjectId {
    /// Its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Cluster(_) => "WorkerCluster",
            Self::Set(_) => "StreamSet",
            Self::Class(_) => "WorkerClass",
            Self::Pipeline(_) => "Pipeline",
        }
    }

    /// The namespace, where there is one, and the name within it.
    pub fn parts(&self) -> (Option<&str>, &str) {
        match self {
            Self::Cluster(name) | Self::Class(name) => name.parts(),
            Self::Set(name) => name.parts(),
            Self::Pipeline(name) => name.parts(),
        }
    }

    /// The name, where it is a set's.
    pub fn set(&self) -> Option<&SetName> {
        match self {
            Self::Set(name) => Some(name),
            Self::Cluster(_) | Self::Class(_) | Self::Pipeline(_) => None,
        }
    }
}

impl std::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = self.kind();
        match self {
            Self::Cluster(name) | Self::Class(name) => write!(f, "{kind} {name}"),
            Self::Set(name) => write!(f, "{kind} {name}"),
            Self::Pipeline(name) => write!(f, "{kind} {name}"),
        }
    }
}

/// What a valid document defines. A clone copies pointers only.
#[derive(Clone, Debug)]
pub enum ValidSpec {
    Cluster(Arc<Cluster>),
    Set(Arc<SetDraft>),
    Class(ClassDraft),
    Pipeline(PipelineDraft),
}

/// A class, and the positions that a pipeline that does not fit is reported at.
#[derive(Clone, Debug)]
pub struct ClassDraft {
    /// The class.
    pub class: Arc<Cluster>,
    /// The position of its capacity.
    pub capacity_at: Position,
    /// The position of `maxReplicas`.
    pub most_at: Position,
}

/// A pipeline whose classes are not checked yet.
#[derive(Clone, Debug)]
pub struct PipelineDraft {
    /// The pipeline.
    pub pipeline: Arc<Pipeline>,
    /// The position of its load.
    pub load_at: Position,
    /// The position of each node and of its class.
    pub marks: Arc<BTreeMap<NodeName, (Position, Position)>>,
}

/// A set whose streams are not all read yet.
#[derive(Clone, Debug)]
pub struct SetDraft {
    /// The set with its inline streams.
    pub set: Arc<StreamSet>,
    /// The places of the inline streams.
    pub marks: Marks,
    /// The files that the rest comes from.
    pub sources: Vec<Source>,
    /// The position of `cluster`.
    pub cluster_at: Position,
}

/// A file of streams, as a set names it.
#[derive(Clone, Debug)]
pub struct Source {
    pub file: String,
    pub at: Position,
    pub field: String,
    /// What to do if it is not there.
    pub remedy: String,
}

/// A specification as it is written.
#[derive(Clone, Debug)]
pub enum Spec {
    /// A WorkerCluster.
    Cluster(WorkerClusterSpec),
    /// A StreamSet.
    Set(StreamSetSpec),
    /// A WorkerClass.
    Class(WorkerClassSpec),
    /// A Pipeline.
    Pipeline(PipelineSpec),
}

/// One document, checked.
#[derive(Clone, Debug)]
pub struct Document {
    /// The object that it defines, if kind and name can be read.
    pub id: Option<ObjectId>,
    /// The position of its name.
    pub at: Position,
    /// The specification as it is written; `None` if it cannot be decoded.
    pub spec: Option<Spec>,
    /// What it defines; `None` if a problem was reported.
    pub body: Option<ValidSpec>,
    /// What of it is ignored although its author may count on it.
    pub ignored: Vec<Problem>,
}

/// Where a document comes from: decides how names are resolved and which fields are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin<'a> {
    /// A manifest file.
    File,
    /// An object in this namespace.
    Namespace(&'a str),
}

impl Origin<'_> {
    /// A cluster's full name.
    fn cluster(&self, name: &str) -> Result<ClusterName, String> {
        let name = self.plain(name)?;
        match self {
            Self::File => ClusterName::new(name).map_err(|error| error.to_string()),
            Self::Namespace(namespace) => {
                ClusterName::in_namespace(namespace, name).map_err(|error| error.to_string())
            }
        }
    }

    /// A set's full name.
    fn set(&self, name: &str) -> Result<SetName, String> {
        self.cluster(name)?;
        match self {
            Self::File => SetName::new(name).map_err(|error| error.to_string()),
            Self::Namespace(namespace) => {
                SetName::in_namespace(namespace, name).map_err(|error| error.to_string())
            }
        }
    }

    /// A pipeline's full name.
    fn pipeline(&self, name: &str) -> Result<PipelineName, String> {
        let name = self.plain(name)?;
        let made = match self {
            Self::File => PipelineName::new(name),
            Self::Namespace(namespace) => PipelineName::in_namespace(namespace, name),
        };
        made.map_err(|error| error.to_string())
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

    fn unknown(&self) -> UnknownFields {
        match self {
            Self::File => UnknownFields::Refused,
            Self::Namespace(_) => UnknownFields::Ignored,
        }
    }
}

/// Checks one document of a manifest file, or one object; `file` is its name in problems.
pub(crate) fn document(
    file: &str,
    home: Origin<'_>,
    node: Node,
    problems: &mut Vec<Problem>,
) -> Document {
    document_with(home.unknown(), file, home, node, problems)
}

/// The same, where the caller says what becomes of unknown fields.
pub(crate) fn document_with(
    unknown: UnknownFields,
    file: &str,
    home: Origin<'_>,
    mut node: Node,
    problems: &mut Vec<Problem>,
) -> Document {
    let kind = node.get("kind").and_then(Node::text).map(str::to_owned);
    let at = name_mark(&node);
    let mut checker = Checker { file, home, unknown, at: node.at, problems, wrong: false };
    let (id, spec, body) = match kind.as_deref() {
        Some("WorkerCluster") => {
            let id = name(&node, |name| home.cluster(name)).map(ObjectId::Cluster);
            let spec = checker.shape::<WorkerClusterSpec, _>(&mut node, |name| home.cluster(name));
            let body = spec.as_ref().map(|spec| checker.cluster(&node, spec));
            let body = body.map(|cluster| ValidSpec::Cluster(Arc::new(cluster)));
            (id, spec.map(Spec::Cluster), body)
        }
        Some("StreamSet") => {
            let id = name(&node, |name| home.set(name)).map(ObjectId::Set);
            let spec = checker.shape::<StreamSetSpec, _>(&mut node, |name| home.set(name));
            let body = spec.as_ref().and_then(|spec| checker.set(&node, spec));
            let body = body.map(|draft| ValidSpec::Set(Arc::new(draft)));
            (id, spec.map(Spec::Set), body)
        }
        Some("WorkerClass") => {
            let id = name(&node, |name| home.cluster(name)).map(ObjectId::Class);
            let spec = checker.shape::<WorkerClassSpec, _>(&mut node, |name| home.cluster(name));
            let body = spec.as_ref().map(|spec| ValidSpec::Class(checker.class(&node, spec)));
            (id, spec.map(Spec::Class), body)
        }
        Some("Pipeline") => {
            let id = name(&node, |name| home.pipeline(name)).map(ObjectId::Pipeline);
            let spec = checker.shape::<PipelineSpec, _>(&mut node, |name| home.pipeline(name));
            let body = spec.as_ref().and_then(|spec| checker.pipeline(&node, spec));
            (id, spec.map(Spec::Pipeline), body.map(ValidSpec::Pipeline))
        }
        _ => {
            checker.stranger(&node);
            (None, None, None)
        }
    };
    let body = if checker.wrong { None } else { body };
    let ignored = ignored::ignored(file, home, &node, body.as_ref());
    Document { id, at, spec, body, ignored }
}

/// The files of streams that a document names, valid or not.
pub(crate) fn sources(node: &Node) -> impl Iterator<Item = &str> {
    stream_sources(node).filter_map(|source| source.get("file").and_then(Node::text))
}

/// What a document takes streams from, valid or not: files and ConfigMaps.
pub(crate) fn stream_sources(node: &Node) -> impl Iterator<Item = &Node> {
    let list = node.get("spec").and_then(|spec| spec.get("streamsFrom"));
    list.into_iter().flat_map(Node::items).map(|(_, source)| source)
}

fn name<T, E>(node: &Node, make: impl Fn(&str) -> Result<T, E>) -> Option<T> {
    make(node.get("metadata")?.get("name")?.text()?).ok()
}

/// Whether a field of the spec is given. One that is wrong is, and was reported already.
fn is_given(root: &Node, field: &str) -> bool {
    let value = root.get("spec").and_then(|spec| spec.get(field)).map(|node| &node.value);
    match value {
        None | Some(Value::Null) => false,
        Some(Value::List(items)) => !items.is_empty(),
        Some(_) => true,
    }
}

fn name_mark(node: &Node) -> Position {
    node.get("metadata").and_then(|m| m.get("name")).map_or(node.at, |name| name.at)
}

/// Collects the problems of one document.
struct Checker<'a> {
    file: &'a str,
    home: Origin<'a>,
    unknown: UnknownFields,
    at: Position,
    problems: &'a mut Vec<Problem>,
    wrong: bool,
}

impl Checker<'_> {
    fn report(&mut self, at: Position, field: impl Into<String>, message: impl Into<String>) {
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
        const KNOWN: &str = "WorkerCluster, StreamSet, WorkerClass or Pipeline";
        if !matches!(node.value, Value::Map(_)) || node.get("jobs").is_some() {
            let message = "is not a manifest, and no StreamSet names this file in streamsFrom: \
                           name it there, or move it out of the folder";
            return self.report(node.at, "", message);
        }
        match node.get("kind") {
            None => self.report(node.at, "kind", format!("is missing: add {KNOWN}")),
            Some(kind) => match &kind.value {
                Value::Text(text) if text == "PipelineBinding" => {
                    let message = "is PipelineBinding, which the coordinator makes of each node of \
                                   a Pipeline: remove it";
                    self.report(kind.at, "kind", message);
                }
                Value::Text(text) => {
                    let near = did_you_mean(text, KINDS);
                    self.report(kind.at, "kind", format!("is {text:?}, but must be {KNOWN}{near}"));
                }
                _ => self.report(kind.at, "kind", format!("must be {KNOWN}")),
            },
        }
    }

    fn shape<S: DeserializeOwned, N>(
        &mut self,
        node: &mut Node,
        name: impl Fn(&str) -> Result<N, String>,
    ) -> Option<S> {
        let (manifest, errors) = decode::<Manifest<S>>(node, self.unknown);
        for error in errors {
            self.report(error.at, show(&error.path), error.message);
        }
        let manifest = manifest?;
        if manifest.api_version != API_VERSION {
            let message = format!("is {:?}, but must be {API_VERSION:?}", manifest.api_version);
            self.blame(node, "apiVersion", message);
        }
        if let Err(error) = name(&manifest.metadata.name) {
            self.blame(node, "metadata.name", error);
        }
        Some(manifest.spec)
    }

    fn within(&mut self, root: &Node, path: &str, value: u32, min: u32, max: u32) {
        if !(min..=max).contains(&value) {
            self.blame(root, path, format!("is {value}, but must be from {min} to {max}"));
        }
    }
}
