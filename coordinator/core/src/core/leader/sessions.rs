//! The sessions of agents: each connection from its accepted hello to its end.
//!
//! ```text
//!         await_welcome            welcome           begin_adoption              end_adoption
//!   hello ─────────────▶ a place ─────────▶ a credit ──────────────▶ an adoption ────────────▶
//! ```
//!
//! Places and credits are those of [`Admission`]; the reports are [`Adoption`]s. A credit that has
//! expired no longer counts, and its agent may still report.
//!
//! Invariant: the end of a session frees its place, its credit and its adoption.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{Moment, WorkerKey};

use super::admission::Admission;
use super::adoption::Adoption;
use crate::core::Config;
use crate::event::ConnId;

/// The sessions of all agents.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions {
    workers: BTreeMap<ConnId, WorkerKey>,
    admission: Admission,
    /// Reports that are not adopted whole yet.
    adoptions: BTreeMap<ConnId, Adoption>,
    /// Sessions that may have a message to get, and whose last one is not written.
    held_back: BTreeSet<ConnId>,
}

/// A session that has ended.
#[derive(Debug)]
pub(super) struct EndedSession {
    pub(super) key: WorkerKey,
    /// Its agent waited for a welcome, or was expected to report soon.
    pub(super) was_awaited: bool,
    /// The rest of its report, if that is not adopted whole.
    pub(super) adoption: Option<Adoption>,
}

impl Sessions {
    /// A session begins, or its worker has another name now.
    pub(super) fn begin(&mut self, conn: ConnId, key: WorkerKey) {
        self.workers.insert(conn, key);
    }

    /// The agent waits for its welcome, in this place or in a new one. Returns the place.
    pub(super) fn await_welcome(
        &mut self,
        conn: ConnId,
        key: &WorkerKey,
        place: Option<u64>,
    ) -> u64 {
        self.admission.wait(place, conn, key)
    }

    /// Ends a session.
    pub(super) fn end(&mut self, conn: ConnId) -> Option<EndedSession> {
        let key = self.workers.remove(&conn)?;
        let was_awaited = self.admission.awaits(conn);
        self.admission.end(conn);
        self.held_back.remove(&conn);
        Some(EndedSession { key, was_awaited, adoption: self.adoptions.remove(&conn) })
    }

    /// The worker of a session.
    pub(super) fn worker(&self, conn: ConnId) -> Option<&WorkerKey> {
        self.workers.get(&conn)
    }

    /// The workers of all sessions.
    pub(super) fn workers(&self) -> impl Iterator<Item = &WorkerKey> {
        self.workers.values()
    }

    /// The sessions after this one, at most `most`.
    pub(super) fn after(&self, after: Option<ConnId>, most: usize) -> Vec<(ConnId, WorkerKey)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let sessions = self.workers.range((from, Bound::Unbounded)).take(most);
        sessions.map(|(conn, key)| (*conn, key.clone())).collect()
    }

    /// The connections of all sessions.
    pub(super) fn into_conns(self) -> impl Iterator<Item = ConnId> {
        self.workers.into_keys()
    }

    /// The session may have another message to get once its last one is written.
    pub(super) fn hold_back(&mut self, conn: ConnId) {
        self.held_back.insert(conn);
    }

    /// The session's last message is written. Returns whether it may have another one to get.
    pub(super) fn written(&mut self, conn: ConnId) -> bool {
        self.held_back.remove(&conn)
    }

    /// Whether any session's message waits until its last one is written.
    pub(super) fn holds_back(&self) -> bool {
        !self.held_back.is_empty()
    }

    /// Whether the agent waits for a welcome, or was welcomed and is expected to report soon.
    pub(super) fn awaits(&self, conn: ConnId) -> bool {
        self.admission.awaits(conn)
    }

    /// Takes the session that is welcomed next, if there is a credit for it.
    pub(super) fn next_welcome(&mut self, config: &Config) -> Option<(ConnId, WorkerKey)> {
        // A report that is being adopted still counts as waiting.
        let has_credit = self.admission.has_credit(self.adoptions.len(), config);
        (has_credit || mutation::on(Mutation::CreditsIgnored)).then(|| self.admission.next())?
    }

    /// The agent is welcomed: it uses up a credit until it has reported, or until then.
    pub(super) fn welcome(&mut self, conn: ConnId, until: Moment) {
        self.admission.lend(conn, until);
    }

    /// Takes back the credits of agents that have not reported before `heard`. Returns their
    /// workers.
    pub(super) fn end_credits(&mut self, heard: Moment) -> Vec<WorkerKey> {
        let ended = self.admission.end_credits(heard).into_iter();
        ended.filter_map(|conn| self.workers.get(&conn).cloned()).collect()
    }

    /// When the next credit ends, if a session waits for one.
    pub(super) fn next_credit_end(&self) -> Option<Moment> {
        self.admission.next_credit_end()
    }

    /// The agent has reported: its report takes the place of its credit.
    pub(super) fn begin_adoption(&mut self, conn: ConnId, adoption: Adoption) {
        self.admission.reported(conn, adoption.report().streams.len());
        self.adoptions.insert(conn, adoption);
    }

    /// The report of a session that is being adopted.
    pub(super) fn adoption(&self, conn: ConnId) -> Option<&Adoption> {
        self.adoptions.get(&conn)
    }

    /// The same, to continue it.
    pub(super) fn adoption_mut(&mut self, conn: ConnId) -> Option<&mut Adoption> {
        self.adoptions.get_mut(&conn)
    }

    /// The session whose report is adopted next.
    pub(super) fn next_adoption(&self) -> Option<ConnId> {
        self.adoptions.keys().next().copied()
    }

    /// The report is adopted, or dropped.
    pub(super) fn end_adoption(&mut self, conn: ConnId) -> Option<Adoption> {
        self.adoptions.remove(&conn)
    }

    /// Whether no report is left to adopt.
    pub(super) fn are_adopted(&self) -> bool {
        self.adoptions.is_empty()
    }
}
