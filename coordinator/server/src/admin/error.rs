//! Errors of admin calls, and their gRPC status.

use std::time::Duration;

use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::event::KnownLeader;
use leasehold_driver::access::Denied;
use leasehold_driver::port::OrderError;
use leasehold_proto::NOT_LEADING_MESSAGE;
use leasehold_proto::map::Invalid;
use leasehold_types::{ClusterName, PipelineName, SetName, StreamKey, WorkerKey};
use tonic::Status;

use crate::grpc::credentials::{Unauthorized, status_of};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdminError {
    /// Another replica leads.
    #[error("{NOT_LEADING_MESSAGE}; {}", leader(.0))]
    NotLeading(Option<KnownLeader>),
    /// A field of the request is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The worker is connected.
    #[error(
        "worker {0} is connected: what it holds may be in use; end its process first, or drain it"
    )]
    Connected(WorkerKey),
    /// No agent of the worker is connected that could take an order about its drain.
    #[error(
        "worker {0} is not connected, and only its agent can take this order: repeat it once the \
         worker is connected; if nothing of it runs any more, declare it gone"
    )]
    NotConnected(WorkerKey),
    /// The worker has lost its name.
    #[error("worker {0} has lost its name to another agent: its drain cannot be taken back")]
    NameLost(WorkerKey),
    /// The worker has drained.
    #[error("worker {0} has drained, and its agent leaves: start it again")]
    HasDrained(WorkerKey),
    /// The worker is not the one that the caller means.
    #[error(
        "worker {worker} has incarnation {known}, not {declared}: it is not the one that you \
         looked at; call GetWorker again"
    )]
    OtherIncarnation {
        /// The worker.
        worker: WorkerKey,
        /// Its incarnation; 0 if its agent has not reported.
        known: u64,
        /// The one in the request.
        declared: u64,
    },
    /// A named limit is reached.
    #[error("too many {0}: at most {1} at once; try again later")]
    TooMany(&'static str, usize),
    /// It took too long.
    #[error("{0} was not ready within {1:?}; try again later")]
    Late(&'static str, Duration),
    /// Another term has begun meanwhile.
    #[error("leadership has changed meanwhile: call again")]
    OtherTerm,
    /// The caller is refused.
    #[error(transparent)]
    Unauthorized(#[from] Unauthorized),
    /// The process is shutting down.
    #[error("the coordinator is shutting down: call again")]
    Stopped,
}

impl AdminError {
    pub(super) fn cluster_not_found(core: &Core, name: &ClusterName) -> Self {
        Self::NotFound(core.desired().unknown_cluster(name))
    }

    pub(super) fn set_not_found(name: &SetName) -> Self {
        Self::NotFound(format!("no manifest defines stream set {name:?}"))
    }

    pub(super) fn pipeline_not_found(name: &PipelineName) -> Self {
        Self::NotFound(format!("no manifest defines pipeline {name:?}"))
    }

    pub(super) fn worker_not_found(key: &WorkerKey) -> Self {
        Self::NotFound(format!("no worker {:?} is known in cluster {:?}", key.worker, key.cluster))
    }

    pub(super) fn stream_not_found(key: &StreamKey) -> Self {
        Self::NotFound(format!("stream set {:?} has no stream {:?}", key.set, key.stream))
    }
}

fn leader(known: &Option<KnownLeader>) -> String {
    match known {
        Some(leader) => format!("the leader is at {}", leader.address),
        None => "the leader is unknown".into(),
    }
}

impl From<Denied> for AdminError {
    fn from(denied: Denied) -> Self {
        Self::Unauthorized(denied.into())
    }
}

impl From<Invalid> for AdminError {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid.to_string())
    }
}

impl From<OrderError> for AdminError {
    fn from(error: OrderError) -> Self {
        match error {
            OrderError::Stopped(_) => Self::Stopped,
            OrderError::TermEnded => Self::OtherTerm,
        }
    }
}

impl From<AdminError> for Status {
    fn from(refused: AdminError) -> Self {
        let message = refused.to_string();
        match refused {
            AdminError::NotLeading(_)
            | AdminError::Connected(_)
            | AdminError::NotConnected(_)
            | AdminError::NameLost(_)
            | AdminError::HasDrained(_)
            | AdminError::OtherIncarnation { .. } => Self::failed_precondition(message),
            AdminError::Invalid(_) => Self::invalid_argument(message),
            AdminError::NotFound(_) => Self::not_found(message),
            AdminError::TooMany(..) => Self::resource_exhausted(message),
            AdminError::Late(..) => Self::deadline_exceeded(message),
            AdminError::Unauthorized(refused) => status_of(&refused),
            AdminError::OtherTerm | AdminError::Stopped => Self::unavailable(message),
        }
    }
}
