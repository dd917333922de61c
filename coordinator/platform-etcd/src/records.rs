//! What the election stores, as JSON. A field that a later version adds is passed over.

use std::time::Duration;

use leasehold_types::{CellId, Epoch, TermId};
use serde::{Deserialize, Serialize};

/// The present term.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TermRecord {
    /// The cell that the store is of.
    pub(crate) cell: CellId,
    /// The highest epoch that is in use.
    pub(crate) epoch: u64,
    /// The term's identity, as 16 hexadecimal digits.
    pub(crate) term: String,
    /// A random number of the leader's process, in the same form.
    pub(crate) process: String,
    /// The leader's name.
    pub(crate) identity: String,
    /// Where agents reach the leader.
    pub(crate) address: String,
    /// How long the leader leads after a renewal.
    pub(crate) leadership_ms: u64,
    /// For how long after this write a predecessor may still believe that it leads.
    pub(crate) earlier_ms: u64,
    /// Whether the leader has released the term.
    #[serde(default)]
    pub(crate) released: bool,
}

/// What a leader writes with each renewal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HeartbeatRecord {
    /// The term's identity.
    pub(crate) term: String,
    /// Counts the renewals of the term.
    pub(crate) beats: u64,
    /// For how long after this write a predecessor may still believe that it leads.
    pub(crate) earlier_ms: u64,
}

impl TermRecord {
    /// The epoch.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.epoch)
    }

    /// How long the leader leads after a renewal.
    pub(crate) fn leadership(&self) -> Duration {
        Duration::from_millis(self.leadership_ms)
    }
}

/// A random number as it is stored.
pub(crate) fn hexadecimal(number: u64) -> String {
    format!("{number:016x}")
}

/// An identity as it is stored.
pub(crate) fn term_text(term: TermId) -> String {
    hexadecimal(term.0)
}

/// Whole milliseconds, rounded up.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
