//! Namespaces that could not be read when this leader was elected: it does not know what their
//! workers may hold.
//!
//! Invariant: no agent of such a namespace has a session, so nothing is granted there. What its
//! workers hold ends by time, and no other namespace waits for it.

use std::collections::BTreeSet;

use leasehold_types::message::RefusalReason;
use leasehold_types::{ClusterName, Moment};

use super::Leader;
use super::hello::HelloRefusal;
use super::registered_workers::{enter, is_passed_on};
use crate::event::NamespacesRead;

/// The namespaces that could not be read.
#[derive(Clone, Debug)]
pub(super) struct UnreadableNamespaces(BTreeSet<String>);

impl UnreadableNamespaces {
    pub(super) fn new(namespaces: BTreeSet<String>) -> Self {
        Self(namespaces)
    }

    /// Refuses the agents of a cluster in such a namespace.
    pub(super) fn check(&self, cluster: &ClusterName) -> Result<(), HelloRefusal> {
        let Some(namespace) = cluster.parts().0.filter(|namespace| self.0.contains(*namespace))
        else {
            return Ok(());
        };
        let message = format!(
            "the coordinator may not list the pods of namespace {namespace}, so it does not know \
             what its workers hold, and serves none of them: restore its rights there"
        );
        Err((RefusalReason::GoAway, message))
    }

    /// Namespaces were read.
    fn remove(&mut self, read: &BTreeSet<String>) {
        self.0.retain(|namespace| !read.contains(namespace));
    }
}

impl Leader {
    /// Namespaces were read: their workers are entered as at the begin of the term, and their
    /// agents are accepted.
    pub(in crate::core) fn namespaces_read(&mut self, read: &NamespacesRead, now: Moment) {
        if self.ledger.epoch() != read.epoch {
            return;
        }
        let mut passed_on = Vec::new();
        for (key, entry) in &read.exposed {
            if is_passed_on(&read.exposed, key, entry) {
                passed_on.push(key.clone());
            } else {
                enter(&mut self.ledger, &mut self.timers, &self.replica, (key, entry), now);
            }
        }
        self.forget_entries(passed_on);
        self.unreadable.remove(&read.namespaces);
        let is_read = |cluster: &&ClusterName| {
            cluster.parts().0.is_some_and(|namespace| read.namespaces.contains(namespace))
        };
        let clusters: Vec<_> =
            self.replica.desired().clusters.keys().filter(is_read).cloned().collect();
        for cluster in &clusters {
            self.plan_now(cluster, now);
        }
    }
}
