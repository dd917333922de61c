//! Connections whose agents have reported that they leave, until the store no longer has an entry
//! for them.
//!
//! Invariant: a goodbye is answered only when no successor of this leader can find an entry of the
//! agent that this leader has written. An agent without an answer reports again, to that successor.

use std::collections::BTreeMap;

use leasehold_types::WorkerKey;

use crate::event::ConnId;

/// The connections that wait, at most one of a worker's name.
#[derive(Clone, Debug, Default)]
pub(super) struct Goodbyes {
    conns: BTreeMap<WorkerKey, ConnId>,
    keys: BTreeMap<ConnId, WorkerKey>,
}

impl Goodbyes {
    /// The entry of this worker is to be removed. Returns the connection of an earlier agent that
    /// waited for the same.
    pub(super) fn begin(&mut self, key: WorkerKey, conn: ConnId) -> Option<ConnId> {
        self.keys.insert(conn, key.clone());
        let earlier = self.conns.insert(key, conn)?;
        self.keys.remove(&earlier);
        Some(earlier)
    }

    /// The store has no entry of the agent that said goodbye. Returns its connection.
    pub(super) fn take(&mut self, key: &WorkerKey) -> Option<ConnId> {
        let conn = self.conns.remove(key)?;
        self.keys.remove(&conn);
        Some(conn)
    }

    /// The connection has ended.
    pub(super) fn end(&mut self, conn: ConnId) {
        if let Some(key) = self.keys.remove(&conn) {
            self.conns.remove(&key);
        }
    }

    /// All connections that wait.
    pub(super) fn into_conns(self) -> impl Iterator<Item = ConnId> {
        self.keys.into_keys()
    }
}
