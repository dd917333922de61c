//! The only way from generated types to domain types. Every function either gives a valid value
//! or an [`Invalid`] that names the field.

mod session;
mod share;

use std::time::Duration;

use leasehold_types::{
    ClusterName, InvalidName, JobId, NodeName, PipelineName, SetName, ShareKey, StartId, StreamKey,
    StreamName, Token, WorkerKey, WorkerName,
};

pub use self::session::{
    attach_agent_process, attach_job_times, attach_other_cell, check_field_count,
    take_agent_process, take_job_times, take_other_cell, waiting, waits_behind,
};

/// Why a message is invalid: which field, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct Invalid {
    field: &'static str,
    why: String,
}

impl Invalid {
    fn new(field: &'static str, why: impl ToString) -> Self {
        Self { field, why: why.to_string() }
    }

    fn missing(field: &'static str) -> Self {
        Self::new(field, "is missing")
    }
}

/// A cluster's name.
///
/// # Errors
/// [`Invalid`] where the name is invalid.
pub fn cluster_name(field: &'static str, text: &str) -> Result<ClusterName, Invalid> {
    name(field, ClusterName::new(text))
}

/// A worker of a cluster.
///
/// # Errors
/// [`Invalid`] where one of the names is invalid.
pub fn worker_key(cluster: &str, worker: &str) -> Result<WorkerKey, Invalid> {
    Ok(WorkerKey {
        cluster: cluster_name("cluster", cluster)?,
        worker: worker_name("worker", worker)?,
    })
}

/// A worker's name.
///
/// # Errors
/// [`Invalid`] where the name is invalid.
pub fn worker_name(field: &'static str, text: &str) -> Result<WorkerName, Invalid> {
    name(field, WorkerName::new(text))
}

/// A worker's name, as its agent gives it: not that of an earlier agent of a name.
///
/// # Errors
/// [`Invalid`] where the name is invalid.
pub fn present_worker(field: &'static str, text: &str) -> Result<WorkerName, Invalid> {
    name(field, WorkerName::present_name(text))
}

/// A stream set's name.
///
/// # Errors
/// [`Invalid`] where the name is invalid.
pub fn set_name(field: &'static str, text: &str) -> Result<SetName, Invalid> {
    name(field, SetName::new(text))
}

/// A pipeline's name.
///
/// # Errors
/// [`Invalid`] where the name is invalid.
pub fn pipeline_name(field: &'static str, text: &str) -> Result<PipelineName, Invalid> {
    name(field, PipelineName::new(text))
}

/// A stream of a set.
///
/// # Errors
/// [`Invalid`] where one of the names is invalid.
pub fn stream_key(set: &str, stream: &str) -> Result<StreamKey, Invalid> {
    Ok(StreamKey { set: set_name("set", set)?, stream: name("stream", StreamName::new(stream))? })
}

/// A share of a pipeline's node.
///
/// # Errors
/// [`Invalid`] where one of the names is invalid.
pub fn share_key(pipeline: &str, node: &str, index: u32) -> Result<ShareKey, Invalid> {
    let pipeline = pipeline_name("pipeline", pipeline)?;
    Ok(ShareKey { pipeline, node: name("node", NodeName::new(node))?, index })
}

/// A job's id.
///
/// # Errors
/// [`Invalid`] where the name is invalid.
pub fn job_id(text: &str) -> Result<JobId, Invalid> {
    name("job_id", JobId::new(text))
}

/// The id of a worker's start.
///
/// # Errors
/// [`Invalid`] where the name is invalid.
pub fn start_id(text: &str) -> Result<StartId, Invalid> {
    name("start_id", StartId::new(text))
}

/// A token written `EPOCH.SEQ`.
///
/// # Errors
/// [`Invalid`] where the name is invalid.
pub fn token(text: &str) -> Result<Token, Invalid> {
    text.parse().map_err(|error| Invalid::new("token", error))
}

fn name<T>(field: &'static str, name: Result<T, InvalidName>) -> Result<T, Invalid> {
    name.map_err(|error| Invalid::new(field, error))
}

fn at_most(field: &'static str, len: usize, max: usize) -> Result<(), Invalid> {
    if len <= max {
        Ok(())
    } else {
        Err(Invalid::new(field, format!("{len} entries are more than {max}")))
    }
}

fn millis(span: Duration) -> u32 {
    u32::try_from(span.as_millis()).unwrap_or(u32::MAX)
}

fn span(millis: u32) -> Duration {
    Duration::from_millis(u64::from(millis))
}
