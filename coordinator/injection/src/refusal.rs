//! Why a pod cannot be injected: each reason names the field and what to do.

use thiserror::Error;

use crate::edit::{Place, Step};
use crate::names::{CLUSTER, CONFIG, CONTAINER, STATUS};

/// Why nothing was injected or removed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// Neither the pod nor the settings name the worker's cluster.
    #[error(
        "metadata.labels: {CLUSTER} is missing: set it to the name of the WorkerCluster or \
         WorkerClass whose worker this is"
    )]
    NoCluster,
    /// The cluster's name is invalid.
    #[error("{CLUSTER}: {0}")]
    Cluster(String),
    /// A field of the pod has the wrong type.
    #[error("{field} is not {wanted}")]
    Shape {
        /// Where.
        field: String,
        /// The expected value.
        wanted: &'static str,
    },
    /// No container could be the worker.
    #[error("spec.containers is empty: the worker's container is missing")]
    NoContainers,
    /// The container that was named as the worker's does not exist.
    #[error("{by} names the container {name:?}, which does not exist: use one of {known}")]
    NoSuchContainer {
        /// Which annotation.
        by: String,
        /// The name.
        name: String,
        /// The names of the containers.
        known: String,
    },
    /// The setting does not exist.
    #[error("{what} is unknown{}", meant(.nearest))]
    Unknown {
        /// The annotation or flag.
        what: String,
        /// The most similar setting.
        nearest: Option<String>,
    },
    /// Users may not set this one.
    #[error("{what} cannot be set: {why}")]
    Reserved {
        /// The annotation or flag.
        what: String,
        /// What decides it.
        why: &'static str,
    },
    /// An invalid value.
    #[error("{what}: {why}")]
    Value {
        /// The annotation or flag.
        what: String,
        /// Its value, what is wrong with it, and what to write.
        why: String,
    },
    /// A name or a path that the sidecar needs belongs to something else.
    #[error("{field} is taken: {why}")]
    Taken {
        /// Where.
        field: String,
        /// What the sidecar needs it for.
        why: &'static str,
    },
    /// The record of the injection cannot be read.
    #[error(
        "metadata.annotations: cannot read {STATUS} ({0}): remove the container {CONTAINER} and \
         this annotation yourself"
    )]
    Status(String),
}

impl Refusal {
    /// The field of the pod that causes the refusal.
    #[must_use]
    pub fn field(&self) -> String {
        match self {
            Self::NoCluster => "metadata.labels".into(),
            Self::Cluster(_) => format!("metadata.labels[{CLUSTER}]"),
            Self::Shape { field, .. } | Self::Taken { field, .. } => field.clone(),
            Self::NoContainers => "spec.containers".into(),
            Self::NoSuchContainer { by: what, .. }
            | Self::Unknown { what, .. }
            | Self::Reserved { what, .. }
            | Self::Value { what, .. } => format!("metadata.annotations[{what}]"),
            Self::Status(_) => format!("metadata.annotations[{STATUS}]"),
        }
    }

    pub(crate) fn shape(path: &[Step], wanted: &'static str) -> Self {
        let field = match path {
            [] => "the pod".to_owned(),
            path => Place(path).to_string(),
        };
        Self::Shape { field, wanted }
    }
}

fn meant(nearest: &Option<String>) -> String {
    match nearest {
        Some(name) => format!("; did you mean {name}?"),
        None => format!("; docs/SIDECAR.md lists every setting of {CONFIG}"),
    }
}
