//! The observed state of workers: their agents' connections, drains and silence.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use leasehold_types::message::{Beat, DrainOrder, DrainPhase, Hello, Report, WorkerFailure};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::share::WorkerAddress;
use leasehold_types::{AgentId, Incarnation, LinkNumber, Moment, Version};

use crate::event::ConnId;

mod session;
mod stream_changes;

pub(crate) use session::Session;
pub(crate) use stream_changes::StreamChanges;

/// For how long views tell of a refused agent. One that still wants the name dials again at least
/// every second.
const REFUSED_SHOWN_FOR: Duration = Duration::from_secs(10);

/// A worker of a cluster, as observed in this term.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    /// The newest connection, from its hello to its end.
    session: Option<Session>,
    /// The highest incarnation that has said hello.
    incarnation: Incarnation,
    /// The newest link that it has said hello on.
    link: LinkNumber,
    /// The identity of its agent, where names are kept.
    identity: Option<AgentId>,
    /// The identity that its newest agent has named, names kept or not.
    agent: Option<AgentId>,
    /// Since when an agent of this identity has the name; none before the first hello.
    named_at: Option<Moment>,
    /// Where a person finds that agent.
    peer: Option<Arc<str>>,
    /// The last agent that was refused because this one has the name.
    refused: Option<RefusedAgent>,
    /// Of the newest rollout generation, the highest number, workers get slots first.
    generation: u64,
    /// When its newest agent first said hello without remembering an epoch. Since then it may have
    /// learned an epoch only from this leader.
    no_epoch_since: Option<Moment>,
    /// Its newest agent's place among those that wait for a welcome, until it has reported.
    welcome_place: Option<u64>,
    stops_worker: bool,
    /// Where it is reached, as its newest agent says.
    address: Option<WorkerAddress>,
    /// The version of its newest agent's build.
    version: Option<Version>,
    /// Whether any agent of it has reported in this term.
    reported: bool,
    drain: DrainPhase,
    /// Why it takes nothing, if it does not drain but fails its check.
    failure: Option<WorkerFailure>,
    /// What was ordered about its drain; a taken-back order until the agent reports that it works.
    drain_order: Option<DrainOrder>,
    /// Since when this leader has seen it drain, or has been to drain it.
    drains_since: Option<Moment>,
    /// It has been silent for longer than its leases last.
    lost: bool,
    /// The pool size that the plan wants. None before the first plan that covers the worker: until
    /// then it keeps the pool that its agent has reported.
    target: Option<u32>,
    streams: StreamChanges,
}

/// An agent that was refused because another one has its worker's name.
#[derive(Clone, Debug)]
pub(crate) struct RefusedAgent {
    identity: Option<AgentId>,
    /// Where a person finds it.
    peer: Option<Arc<str>>,
    /// When it last said hello.
    at: Moment,
}

/// A session that another one has replaced.
#[derive(Debug)]
pub(crate) struct ReplacedSession {
    pub(crate) conn: ConnId,
    /// The other one is of a newer incarnation.
    pub(crate) is_older: bool,
}

/// What a beat has changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BeatChanges {
    /// The worker was lost until now.
    pub(crate) is_back: bool,
    /// It has begun to take nothing: it drains, or fails its check.
    pub(crate) takes_nothing: bool,
}

/// A change of whether a worker fails its check.
#[derive(Debug)]
pub(crate) enum FailureChange {
    Fails(WorkerFailure),
    Works,
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
            streams: StreamChanges::default(),
        }
    }

    /// A worker that has reported and has nothing: one that a what-if adds.
    pub(crate) fn assumed() -> Self {
        Self { reported: true, ..Self::new(Incarnation(0)) }
    }

    /// Its connection.
    pub(crate) fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    /// Its connection, to record what is sent and written.
    pub(crate) fn session_mut(&mut self) -> Option<&mut Session> {
        self.session.as_mut()
    }

    /// The connection has ended.
    pub(crate) fn end_session(&mut self) -> Option<Session> {
        self.session.take()
    }

    /// The highest incarnation that has said hello.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The newest link that it has said hello on.
    pub(crate) fn link(&self) -> LinkNumber {
        self.link
    }

    /// The identity of its agent, where names are kept.
    pub(crate) fn identity(&self) -> Option<AgentId> {
        self.identity
    }

    /// The identity that its newest agent has named, names kept or not.
    pub(crate) fn agent(&self) -> Option<AgentId> {
        self.agent
    }

    /// Since when an agent of this identity has the name; none before the first hello.
    pub(crate) fn named_at(&self) -> Option<Moment> {
        self.named_at
    }

    /// Where a person finds its agent.
    pub(crate) fn peer(&self) -> Option<&str> {
        self.peer.as_deref()
    }

    /// The last agent that was refused because this one has the name.
    pub(crate) fn refused(&self) -> Option<&RefusedAgent> {
        self.refused.as_ref()
    }

    /// Its rollout generation.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// When its newest agent first said hello without an epoch.
    pub(crate) fn no_epoch_since(&self) -> Option<Moment> {
        self.no_epoch_since
    }

    /// Its newest agent's place among those that wait for a welcome, until it has reported.
    pub(crate) fn welcome_place(&self) -> Option<u64> {
        self.welcome_place
    }

    /// Whether its agent stops the worker when a lease ends.
    pub(crate) fn stops_worker(&self) -> bool {
        self.stops_worker
    }

    /// Where it is reached.
    pub(crate) fn address(&self) -> Option<&WorkerAddress> {
        self.address.as_ref()
    }

    /// The version of its newest agent's build.
    pub(crate) fn version(&self) -> Option<Version> {
        self.version
    }

    /// Whether any agent of it has reported in this term.
    pub(crate) fn has_reported(&self) -> bool {
        self.reported
    }

    /// Its drain, as last reported.
    pub(crate) fn drain(&self) -> DrainPhase {
        self.drain
    }

    /// Why it takes nothing, if it does not drain but fails its check.
    pub(crate) fn failure(&self) -> Option<&WorkerFailure> {
        self.failure.as_ref()
    }

    /// The order about its drain that its agent is to be sent or has been sent.
    pub(crate) fn drain_order(&self) -> Option<DrainOrder> {
        self.drain_order
    }

    /// Since when this leader has seen it drain, or has been to drain it.
    pub(crate) fn drains_since(&self) -> Option<Moment> {
        self.drains_since
    }

    /// Whether it has been silent for longer than its leases last.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    /// The pool size that the plan wants; none before the first plan that covers the worker.
    pub(crate) fn target(&self) -> Option<u32> {
        self.target
    }

    /// What further grants change in its streams.
    pub(crate) fn streams(&self) -> &StreamChanges {
        &self.streams
    }

    /// What further grants change in its streams, to be changed.
    pub(crate) fn streams_mut(&mut self) -> &mut StreamChanges {
        &mut self.streams
    }

    /// Whether its agent is connected and has reported.
    pub(crate) fn is_connected(&self) -> bool {
        self.session.as_ref().is_some_and(Session::has_reported)
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
        let replaced = old.map(|old| ReplacedSession { conn: old.conn(), is_older: is_newer });
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

    /// The newest agent has named this identity.
    pub(crate) fn set_agent(&mut self, agent: Option<AgentId>) {
        self.agent = agent;
    }

    /// Its newest agent has this place among those that wait for a welcome.
    pub(crate) fn set_welcome_place(&mut self, place: u64) {
        self.welcome_place = Some(place);
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
        session.report_adopted(report.nonce);
        self.reported = true;
        self.welcome_place = None;
        self.streams.report_adopted();
        self.lost = false;
        self.drain = report.drain;
        if self.drain == DrainPhase::Working && self.drain_order == Some(DrainOrder::Undrain) {
            self.drain_order = None;
        }
    }

    /// A beat of its session is accepted.
    pub(crate) fn record_beat(&mut self, beat: &Beat) -> BeatChanges {
        if let Some(session) = self.session.as_mut() {
            session.record_beat(beat);
        }
        let was = self.drain;
        self.drain = was.max(beat.drain);
        BeatChanges {
            is_back: mem::replace(&mut self.lost, false),
            takes_nothing: was == DrainPhase::Working && self.drain != DrainPhase::Working,
        }
    }

    /// Its leases have ended in silence.
    pub(crate) fn set_lost(&mut self) {
        self.lost = true;
    }

    /// It is to drain.
    pub(crate) fn order_drain(&mut self) {
        self.drain_order = Some(DrainOrder::Drain);
    }

    /// The order to drain is taken back. The worker works again once its agent reports so: until
    /// then a drain that the agent has begun counts.
    pub(crate) fn take_drain_back(&mut self) {
        let is_unsent = self
            .session
            .as_ref()
            .is_some_and(|session| session.has_reported() && !session.has_sent(DrainOrder::Drain));
        let never_began = is_unsent && self.drain == DrainPhase::Working;
        self.drain_order = (!never_began).then_some(DrainOrder::Undrain);
    }

    /// The plan wants this size of its pool; none if the plan does not cover the worker.
    pub(crate) fn set_target(&mut self, target: Option<u32>) {
        self.target = target;
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
    /// Where a person finds it.
    pub(crate) fn peer(&self) -> Option<Arc<str>> {
        self.peer.clone()
    }

    /// How long ago it last said hello.
    pub(crate) fn ago(&self, now: Moment) -> Duration {
        now.since(self.at)
    }

    /// Whether views still tell of it.
    pub(crate) fn is_shown(&self, now: Moment) -> bool {
        self.ago(now) < REFUSED_SHOWN_FOR
    }
}
