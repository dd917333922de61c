//! A call to the API server about the election's Lease: its timeout, and why it failed.

use std::time::Duration;

use leasehold_kube_api::names::{CELL_ANNOTATION, EPOCH_ANNOTATION, LEASE};
use leasehold_platform::campaign::EPOCH_MAX;
use leasehold_types::Epoch;
use tokio::time::timeout;

/// The timeout of one call, so that a hanging API server does not block the replica.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a call failed. A failed write may still have taken effect.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseError {
    /// The API server could not be reached, or rejected the call.
    #[error("{}", describe_error(.0))]
    Api(#[from] kube::Error),
    /// No answer arrived.
    #[error("no answer from the API server within {} s", CALL_TIMEOUT.as_secs())]
    Timeout,
    /// The answer has no resource version that is a number.
    #[error("invalid resourceVersion from the API server: expected a number, as etcd has it")]
    Unversioned,
    /// The epoch was not written by a coordinator: no term is taken or renewed over it.
    #[error(
        "annotation {EPOCH_ANNOTATION} of Lease {lease} is {found}, and at most {EPOCH_MAX} is \
         allowed: another client wrote it; remove the annotation (kubectl annotate lease {lease} \
         {EPOCH_ANNOTATION}-), and the next epoch follows from the API server's revision"
    )]
    EpochTooHigh {
        /// The Lease, with the flag for its namespace.
        lease: String,
        found: Epoch,
    },
    /// The cell was not written by a coordinator, and this replica has not read another one.
    #[error(
        "annotation {CELL_ANNOTATION} of Lease {lease} is {found:?}: expected 32 hexadecimal \
         digits. Write the cell that the logs of agents name (kubectl annotate --overwrite), or \
         remove the annotation to begin another cell, which running agents refuse"
    )]
    UnreadableCell {
        /// The Lease, as NAMESPACE/NAME.
        lease: String,
        found: String,
    },
    /// Another client keeps changing the Lease.
    #[error(
        "another client changes the Lease faster than it can be renewed: see its managedFields \
         (kubectl get lease {LEASE} --show-managed-fields -o yaml) and stop that client"
    )]
    Contended,
}

impl LeaseError {
    /// Whether the write failed because the object has changed or exists already.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.code == 409)
    }

    /// Whether nobody knows what became of the call.
    pub(crate) fn is_unanswered(&self) -> bool {
        match self {
            Self::Api(error) => !matches!(error, kube::Error::Api(_)),
            Self::Timeout => true,
            Self::Unversioned
            | Self::EpochTooHigh { .. }
            | Self::UnreadableCell { .. }
            | Self::Contended => false,
        }
    }

    /// Whether the object does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.code == 404)
    }
}

/// Waits for the answer, at most for [`CALL_TIMEOUT`].
pub(crate) async fn call_api<T>(
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, LeaseError> {
    timeout(CALL_TIMEOUT, call).await.map_err(|_| LeaseError::Timeout)?.map_err(LeaseError::Api)
}

/// An error and its causes in one line.
fn describe_error(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return format!("{} ({} {})", status.message, status.code, status.reason);
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
