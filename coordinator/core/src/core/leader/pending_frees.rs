//! What is over and not freed yet: the accounts of workers that are gone, which end in slices, and
//! streams whose claims have expired while their cluster was on hold.
//!
//! Invariant: an account leaves this list only when it has ended, and a stream only when the hold
//! of its cluster has ended.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_types::{ClusterName, StreamKey, WorkerKey};

/// What is over and not freed yet.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingFrees {
    /// The workers that are gone, and whether the end of their accounts has begun.
    accounts: BTreeMap<WorkerKey, bool>,
    /// Streams with expired claims, by the cluster that is on hold.
    on_hold: BTreeMap<ClusterName, BTreeSet<StreamKey>>,
}

impl PendingFrees {
    /// The account of this worker has to end.
    pub(super) fn add_account(&mut self, key: WorkerKey) {
        self.accounts.entry(key).or_default();
    }

    /// Whether the account of this worker has to end and has not ended yet.
    pub(super) fn has_account(&self, key: &WorkerKey) -> bool {
        self.accounts.contains_key(key)
    }

    /// The account that ends next, and whether its end has begun.
    pub(super) fn next_account(&self) -> Option<(WorkerKey, bool)> {
        self.accounts.first_key_value().map(|(key, begun)| (key.clone(), *begun))
    }

    /// The end of this account begins.
    pub(super) fn begin_account(&mut self, key: &WorkerKey) {
        self.accounts.insert(key.clone(), true);
    }

    /// This account has ended, or ends at once. Returns whether it was in the list.
    pub(super) fn remove_account(&mut self, key: &WorkerKey) -> bool {
        self.accounts.remove(key).is_some()
    }

    /// Whether no account is left to end. Streams wait for their holds and not for a turn.
    pub(super) fn has_no_account(&self) -> bool {
        self.accounts.is_empty()
    }

    /// A claim on this stream has expired while the cluster of its worker was on hold.
    pub(super) fn hold_back(&mut self, cluster: ClusterName, stream: StreamKey) {
        self.on_hold.entry(cluster).or_default().insert(stream);
    }

    /// The hold of this cluster has ended: takes the streams whose claims have expired meanwhile.
    pub(super) fn take_held_back(&mut self, cluster: &ClusterName) -> BTreeSet<StreamKey> {
        self.on_hold.remove(cluster).unwrap_or_default()
    }
}
