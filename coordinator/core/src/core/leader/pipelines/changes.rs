//! What follows from a change of the pipelines.

use std::collections::BTreeSet;

use leasehold_types::share::NodeKey;
use leasehold_types::{StreamKey, WorkerKey};

use crate::effect::Notice;

/// What the leader has to do after a change of the pipelines.
#[derive(Clone, Debug, Default)]
#[must_use]
pub(in crate::core::leader) struct PipelineChanges {
    /// In their order.
    pub(in crate::core::leader) notices: Vec<Notice>,
    /// Shares that have another planned lease: their claims are compared with it.
    pub(in crate::core::leader) shares: BTreeSet<StreamKey>,
    /// Leases whose workers are sent their routes again.
    pub(in crate::core::leader) reroutes: Vec<Reroute>,
    /// One pass has not healed all: another follows after the messages that came meanwhile.
    pub(in crate::core::leader) more_to_heal: bool,
}

/// A worker is sent the route of a share again.
#[derive(Clone, Debug)]
pub(in crate::core::leader) struct Reroute {
    pub(in crate::core::leader) share: StreamKey,
    pub(in crate::core::leader) worker: WorkerKey,
    /// Only the table of this next node has changed.
    pub(in crate::core::leader) changed_table: Option<NodeKey>,
}
