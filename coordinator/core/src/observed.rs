//! The observed state of workers: their agents' connections, drains and silence.

use std::mem;

use leasehold_types::message::{Beat, DrainOrder, Hello, Report, WorkerFailure};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::share::WorkerAddress;
use leasehold_types::{Incarnation, LinkNumber, Moment, Version};

use crate::event::ConnId;

mod drain_state;
mod occupant;
mod session;
mod stream_changes;

pub(crate) use drain_state::DrainState;
pub(crate) use occupant::Occupant;
pub(crate) use session::Session;
pub(crate) use stream_changes::StreamChanges;

/// A worker of a cluster, as observed in this term.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    /// The newest connection, from its hello to its end.
    session: Option<Session>,
    /// The highest incarnation that has said hello.
    incarnation: Incarnation,
    /// The newest link that it has said hello on.
    link: LinkNumber,
    occupant: Occupant,
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
    drain: DrainState,
    /// It has been silent for longer than its leases last.
    lost: bool,
    /// The pool size that the plan wants. None before the first plan that covers the worker: until
    /// then it keeps the pool that its agent has reported.
    target: Option<u32>,
    streams: StreamChanges,
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
            occupant: Occupant::default(),
            generation: 0,
            no_epoch_since: None,
            welcome_place: None,
            stops_worker: true,
            address: None,
            version: None,
            reported: false,
            drain: DrainState::default(),
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

    /// The agent that has its name.
    pub(crate) fn occupant(&self) -> &Occupant {
        &self.occupant
    }

    /// The agent that has its name, to be changed.
    pub(crate) fn occupant_mut(&mut self) -> &mut Occupant {
        &mut self.occupant
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

    /// Its drain, and whether it fails its check.
    pub(crate) fn drain(&self) -> &DrainState {
        &self.drain
    }

    /// Its drain, to be changed.
    pub(crate) fn drain_mut(&mut self) -> &mut DrainState {
        &mut self.drain
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

    /// Whether it may take jobs and streams, as far as anyone knows.
    pub(crate) fn is_working(&self) -> bool {
        self.reported && !self.drain.takes_nothing() && !self.drain.is_ordered()
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
        let old = self.session.replace(Session::new(conn, hello));
        let replaced = old.map(|old| ReplacedSession { conn: old.conn(), is_older: is_newer });
        (replaced, moved)
    }

    /// Its newest agent has this place among those that wait for a welcome.
    pub(crate) fn set_welcome_place(&mut self, place: u64) {
        self.welcome_place = Some(place);
    }

    /// All of its agent's report is adopted.
    pub(crate) fn adopt_report(&mut self, report: &Report) {
        let Some(session) = self.session.as_mut() else { return };
        session.report_adopted(report.nonce);
        self.reported = true;
        self.welcome_place = None;
        self.streams.report_adopted();
        self.lost = false;
        self.drain.report_adopted(report.drain);
    }

    /// A beat of its session is accepted.
    pub(crate) fn record_beat(&mut self, beat: &Beat) -> BeatChanges {
        if let Some(session) = self.session.as_mut() {
            session.record_beat(beat);
        }
        BeatChanges {
            is_back: mem::replace(&mut self.lost, false),
            takes_nothing: self.drain.record_beat(beat.drain),
        }
    }

    /// Its leases have ended in silence.
    pub(crate) fn set_lost(&mut self) {
        self.lost = true;
    }

    /// The plan wants this size of its pool; none if the plan does not cover the worker.
    pub(crate) fn set_target(&mut self, target: Option<u32>) {
        self.target = target;
    }

    /// Whether it fails its check. Returns what has changed.
    pub(crate) fn set_failure(&mut self, failure: Option<WorkerFailure>) -> Option<FailureChange> {
        let failed_before = self.drain.failure().is_some();
        self.drain.set_failure(failure.clone());
        match failure {
            Some(failure) if !failed_before => Some(FailureChange::Fails(failure)),
            None if failed_before && self.is_working() => Some(FailureChange::Works),
            Some(_) | None => None,
        }
    }

    /// Takes back the order to drain. The worker works again once its agent reports so: until then
    /// a drain that the agent has begun counts.
    pub(crate) fn take_drain_back(&mut self) {
        let is_unsent = self
            .session
            .as_ref()
            .is_some_and(|session| session.has_reported() && !session.has_sent(DrainOrder::Drain));
        self.drain.take_back(is_unsent);
    }

    /// Whether it may own streams: a short silence changes nothing.
    pub(crate) fn owns_streams(&self) -> bool {
        self.is_working() && !self.lost
    }
}
