//! Whether etcd still has the history that this replica has seen. A store that was put back from a
//! copy has an earlier revision or an earlier heartbeat, or is another cluster by its identity: it
//! lacks terms that were led and entries of workers that hold leases. The heartbeat shows it, too,
//! where the restore has raised the revision, or other users of etcd have. Invariant: an answer
//! counts only if its revisions are at least those that were known when its request was sent.

use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_driver::clock;
use leasehold_types::Moment;

use crate::etcdserverpb::ResponseHeader;

/// The history of a store, as its answers show it.
#[derive(Debug, Default)]
pub(crate) struct StoreHistory(Mutex<Seen>);

/// What is known of the store at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    cluster: Option<u64>,
    revision: i64,
    /// The revision of the newest heartbeat; 0 before the first one.
    heartbeat: i64,
    /// How often the store was replaced.
    pub(crate) replaced: u64,
    /// When that was noticed last.
    pub(crate) replaced_at: Option<Moment>,
}

impl StoreHistory {
    /// What is known now, before a request is sent.
    pub(crate) fn seen(&self) -> Seen {
        *self.lock()
    }

    /// Takes in the header of an answer to a request that was sent when `before` was known.
    pub(crate) fn note(&self, before: Seen, header: ResponseHeader) {
        let mut seen = self.lock();
        let is_other = seen.cluster.is_some_and(|cluster| cluster != header.cluster_id);
        let is_earlier = before.replaced == seen.replaced && header.revision < before.revision;
        if is_other || is_earlier {
            let was = seen.revision;
            seen.replace(was, header.revision);
            seen.revision = header.revision;
        } else if before.replaced == seen.replaced {
            seen.revision = seen.revision.max(header.revision);
        }
        seen.cluster = Some(header.cluster_id);
    }

    /// Takes in the heartbeat's revision from an answer to a request that was sent when `before`
    /// was known. The revision is 0 if the store has no heartbeat.
    pub(crate) fn note_heartbeat(&self, before: Seen, revision: i64) {
        let mut seen = self.lock();
        if before.replaced != seen.replaced {
            return;
        }
        if revision != 0 && revision < before.heartbeat {
            seen.replace(before.heartbeat, revision);
        }
        seen.heartbeat = seen.heartbeat.max(revision);
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// Notes that the store was replaced: a revision in it `was` higher than it `is`.
    fn replace(&mut self, was: i64, is: i64) {
        tracing::error!(
            revision = was,
            now = is,
            "etcd has lost what it had, as after a restore from a backup, or the members of --etcd \
             are of several clusters: the next leader takes an epoch above all that are known, and \
             the last leader adds the entries that are missing"
        );
        self.replaced += 1;
        self.replaced_at = Some(clock::now());
        self.heartbeat = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(cluster_id: u64, revision: i64) -> ResponseHeader {
        ResponseHeader { cluster_id, revision }
    }

    #[test]
    fn a_lower_revision_or_another_cluster_is_a_replaced_store() {
        let history = StoreHistory::default();
        let begun = history.seen();
        history.note(begun, header(1, 40));
        let before = history.seen();
        history.note(before, header(1, 41));
        // The request was sent before the other one was answered.
        history.note(before, header(1, 40));
        assert_eq!(history.seen().replaced, 0);

        let before = history.seen();
        history.note(before, header(1, 12));
        assert_eq!(history.seen().replaced, 1);
        // A second answer to a request from before says the same once.
        history.note(before, header(1, 12));
        assert_eq!(history.seen().replaced, 1);
        history.note(history.seen(), header(2, 60));
        assert_eq!(history.seen().replaced, 2);
        history.note(history.seen(), header(2, 60));
        assert_eq!(history.seen().replaced, 2);
    }

    #[test]
    fn an_earlier_heartbeat_is_a_replaced_store_whatever_its_revision() {
        let history = StoreHistory::default();
        history.note_heartbeat(history.seen(), 40);
        let before = history.seen();
        history.note_heartbeat(before, 44);
        // The request was sent before the other one was answered.
        history.note_heartbeat(before, 40);
        // The key was removed.
        history.note_heartbeat(history.seen(), 0);
        assert_eq!(history.seen().replaced, 0);

        let before = history.seen();
        history.note(before, header(1, 1_000_000_000));
        history.note_heartbeat(before, 30);
        assert_eq!(history.seen().replaced, 1);
        history.note_heartbeat(before, 44);
        history.note_heartbeat(history.seen(), 30);
        assert_eq!(history.seen().replaced, 1);
    }
}
