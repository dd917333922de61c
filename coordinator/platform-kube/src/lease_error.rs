//! Why the election's Lease cannot be read or written.

use leasehold_kube_api::names::{CELL_ANNOTATION, EPOCH_ANNOTATION, LEASE};
use leasehold_platform::campaign::EPOCH_MAX;
use leasehold_types::Epoch;

use crate::api_call::ApiError;

/// Why the Lease was not read or written. A failed write may still have taken effect.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseError {
    /// The call failed.
    #[error(transparent)]
    Api(#[from] ApiError),
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
