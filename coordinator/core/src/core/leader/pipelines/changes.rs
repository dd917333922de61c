//! What follows from a change of the pipelines.

use std::collections::BTreeSet;

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
    /// Leases whose workers are sent the share's route again.
    pub(in crate::core::leader) reroutes: Vec<(StreamKey, WorkerKey)>,
    /// One pass has not healed all: another follows after the messages that came meanwhile.
    pub(in crate::core::leader) more_to_heal: bool,
}
