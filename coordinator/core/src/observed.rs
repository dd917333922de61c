//! The observed state of workers: their agents' connections, drains and silence.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold_types::message::{DrainOrder, DrainPhase, Hello, Report, WorkerFailure};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::share::WorkerAddress;
use leasehold_types::{
    AgentId, GrantNumber, Incarnation, LinkNumber, Moment, Nonce, StreamKey, Version,
};

use crate::event::ConnId;

/// For how long views tell of a refused agent. One that still wants the name dials again at least
/// every second.
const REFUSED_SHOWN_FOR: Duration = Duration::from_secs(10);

/// A worker of a cluster, as observed in this term.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    /// The newest connection, from its hello to its end.
    pub(crate) session: Option<Session>,
    /// The highest incarnation that has said hello.
    pub(crate) incarnation: Incarnation,
    /// The newest link that it has said hello on.
    pub(crate) link: LinkNumber,
    /// The identity of its agent, where names are kept.
    pub(crate) identity: Option<AgentId>,
    /// The identity that its newest agent has named, names kept or not.
    pub(crate) agent: Option<AgentId>,
    /// Since when an agent of this identity has the name; none before the first hello.
    pub(crate) named_at: Option<Moment>,
    /// Where a person finds that agent.
    pub(crate) peer: Option<Arc<str>>,
    /// The last agent that was refused because this one has the name.
    pub(crate) refused: Option<RefusedAgent>,
    pub(crate) generation: u64,
    /// When its newest agent first said hello without remembering an epoch. Since then it may have
    /// learned an epoch only from this leader.
    pub(crate) no_epoch_since: Option<Moment>,
    /// Its newest agent's place among those that wait for a welcome, until it has reported.
    pub(crate) welcome_place: Option<u64>,
    pub(crate) stops_worker: bool,
    /// Where it is reached, as its newest agent says.
    pub(crate) address: Option<WorkerAddress>,
    /// The version of its newest agent's build.
    pub(crate) version: Option<Version>,
    /// Whether any agent of it has reported in this term.
    pub(crate) reported: bool,
    pub(crate) drain: DrainPhase,
    /// Why it takes nothing, if it does not drain but fails its check.
    pub(crate) failure: Option<WorkerFailure>,
    /// What was ordered about its drain; a taken-back order until the agent reports that it works.
    pub(crate) drain_order: Option<DrainOrder>,
    /// Since when this leader has seen it drain, or has been to drain it.
    pub(crate) drains_since: Option<Moment>,
    /// It has been silent for longer than its leases last.
    pub(crate) lost: bool,
    /// The pool size that the plan wants. None before the first plan that covers the worker: until
    /// then it keeps the pool that its agent has reported.
    pub(crate) target: Option<u32>,
    /// Streams that are planned here and not granted yet.
    pub(crate) wants: BTreeSet<StreamKey>,
    /// Streams of the plan that were not free at the last check.
    pub(crate) blocked: BTreeSet<StreamKey>,
    /// Streams that the next grant revokes, or no longer renews.
    pub(crate) revoking: BTreeSet<StreamKey>,
    /// Shares that it holds, and whose routes have changed since they were last sent.
    pub(crate) reroutes: BTreeSet<StreamKey>,
    /// Shares that it was granted, with the grants that it has not acknowledged yet.
    pub(crate) unacknowledged: BTreeSet<(GrantNumber, StreamKey)>,
}

/// An agent that was refused because another one has its worker's name.
#[derive(Clone, Debug)]
pub(crate) struct RefusedAgent {
    pub(crate) identity: Option<AgentId>,
    /// Where a person finds it.
    pub(crate) peer: Option<Arc<str>>,
    /// When it last said hello.
    pub(crate) at: Moment,
}

/// A session that another one has replaced.
#[derive(Debug)]
pub(crate) struct ReplacedSession {
    pub(crate) conn: ConnId,
    /// The other one is of a newer incarnation.
    pub(crate) is_older: bool,
}

/// A change of whether a worker fails its check.
#[derive(Debug)]
pub(crate) enum FailureChange {
    Fails(WorkerFailure),
    Works,
}

/// An agent's connection.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) conn: ConnId,
    pub(crate) link: LinkNumber,
    pub(crate) reported: bool,
    /// The newest report or beat.
    pub(crate) nonce: Nonce,
    /// The newest that a grant has echoed.
    pub(crate) echoed: Nonce,
    /// The connection takes a message now.
    pub(crate) writable: bool,
    /// The next grant is a snapshot.
    pub(crate) snapshot_due: bool,
    /// The order about its drain that was sent.
    pub(crate) drain_sent: Option<DrainOrder>,
}

impl Worker {
    pub(crate) fn new(incarnation: Incarnation) -> Self {
        Self {
            session: None,
            incarnation,
            link: LinkNumber(0),
            identity: None,
            agent: None,
            named_at: None,
            peer: None,
            refused: None,
            generation: 0,
            no_epoch_since: None,
            welcome_place: None,
            stops_worker: true,
            address: None,
            version: None,
            reported: false,
            drain: DrainPhase::Working,
            failure: None,
            drain_order: None,
            drains_since: None,
            lost: false,
            target: None,
            wants: BTreeSet::new(),
            blocked: BTreeSet::new(),
            revoking: BTreeSet::new(),
            reroutes: BTreeSet::new(),
            unacknowledged: BTreeSet::new(),
        }
    }

    /// Whether its agent is connected and has reported.
    pub(crate) fn is_connected(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.reported)
    }

    /// Whether a drain is ordered.
    pub(crate) fn drain_ordered(&self) -> bool {
        self.drain_order == Some(DrainOrder::Drain)
    }

    /// Whether its agent has begun to drain. That its worker fails its check is no drain.
    pub(crate) fn has_begun_drain(&self) -> bool {
        self.drain != DrainPhase::Working && self.failure.is_none()
    }

    /// Whether it drains, or is to drain.
    pub(crate) fn drains(&self) -> bool {
        self.drain_ordered() || self.has_begun_drain()
    }

    /// Whether it may take jobs and streams, as far as anyone knows.
    pub(crate) fn is_working(&self) -> bool {
        self.reported && self.drain == DrainPhase::Working && !self.drain_ordered()
    }

    /// An accepted hello begins a session. Returns the one that it replaces, and whether the worker
    /// has another address.
    pub(crate) fn begin_session(
        &mut self,
        conn: ConnId,
        hello: &Hello,
        now: Moment,
    ) -> (Option<ReplacedSession>, bool) {
        let is_newer = hello.incarnation > self.incarnation;
        if is_newer {
            // The waits of an earlier agent do not apply to this one.
            (self.welcome_place, self.no_epoch_since) = (None, None);
        }
        self.incarnation = hello.incarnation;
        self.link = hello.link;
        self.generation = hello.generation;
        self.stops_worker = hello.stops_worker;
        self.version = hello.version;
        let moved = self.address != hello.address;
        self.address = hello.address.clone();
        if hello.epoch_seen.is_none() {
            // Dialling again does not restart the wait: a later leader cannot have granted this
            // agent anything since its first hello, or the agent would remember that epoch.
            let since = self.no_epoch_since.filter(|_| !mutation::on(Mutation::ConfirmAnewPerLink));
            self.no_epoch_since = Some(since.unwrap_or(now));
        }
        let old = self.session.replace(Session::new(conn, hello.link));
        let replaced = old.map(|old| ReplacedSession { conn: old.conn, is_older: is_newer });
        (replaced, moved)
    }

    /// An agent has the worker's name from now on.
    pub(crate) fn set_name(
        &mut self,
        identity: Option<AgentId>,
        peer: Option<Arc<str>>,
        now: Moment,
    ) {
        if self.identity != identity || self.named_at.is_none() {
            self.named_at = Some(now);
        }
        self.refused.take_if(|refused| refused.identity == identity);
        self.identity = identity;
        self.peer = peer;
    }

    /// Another agent was refused its name. Returns whether that is new: it dials again and again.
    pub(crate) fn set_refused(
        &mut self,
        identity: Option<AgentId>,
        peer: Option<Arc<str>>,
        now: Moment,
    ) -> bool {
        let before = self.refused.replace(RefusedAgent { identity, peer, at: now });
        !before.is_some_and(|before| before.identity == identity && before.is_shown(now))
    }

    /// All of its agent's report is adopted.
    pub(crate) fn adopt_report(&mut self, report: &Report) {
        let Some(session) = self.session.as_mut() else { return };
        session.reported = true;
        session.nonce = report.nonce;
        self.reported = true;
        self.welcome_place = None;
        // The report covers every earlier grant.
        self.unacknowledged.clear();
        self.lost = false;
        self.drain = report.drain;
        if self.drain == DrainPhase::Working && self.drain_order == Some(DrainOrder::Undrain) {
            self.drain_order = None;
        }
    }

    /// Its agent says whether it fails its check. Returns what has changed.
    pub(crate) fn set_failure(&mut self, failure: Option<WorkerFailure>) -> Option<FailureChange> {
        let failed_before = self.failure.is_some();
        self.failure.clone_from(&failure);
        match failure {
            Some(failure) if !failed_before => Some(FailureChange::Fails(failure)),
            None if failed_before && self.is_working() => Some(FailureChange::Works),
            Some(_) | None => None,
        }
    }

    /// Its agent has applied all grants up to this one. Returns the shares that it acknowledges.
    pub(crate) fn acknowledge(&mut self, applied: GrantNumber) -> Vec<StreamKey> {
        let mut shares = Vec::new();
        while self.unacknowledged.first().is_some_and(|(sent_in, _)| *sent_in <= applied) {
            shares.extend(self.unacknowledged.pop_first().map(|(_, stream)| stream));
        }
        shares
    }

    /// Notes since when it drains, if it does.
    pub(crate) fn start_drain(&mut self, now: Moment) {
        self.drains_since = self.drains().then(|| self.drains_since.unwrap_or(now));
    }

    /// Whether it may own streams: a short silence changes nothing.
    pub(crate) fn owns_streams(&self) -> bool {
        self.is_working() && !self.lost
    }
}

impl RefusedAgent {
    /// Whether views still tell of it.
    pub(crate) fn is_shown(&self, now: Moment) -> bool {
        now.since(self.at) < REFUSED_SHOWN_FOR
    }
}

impl Session {
    pub(crate) fn new(conn: ConnId, link: LinkNumber) -> Self {
        Self {
            conn,
            link,
            reported: false,
            nonce: Nonce(0),
            echoed: Nonce(0),
            writable: true,
            snapshot_due: true,
            drain_sent: None,
        }
    }
}
