//! The one link to the coordinator: dialling, the handshake, beats, and its end.

mod named;
mod refusal;
mod sent;
mod welcome;

use std::time::Duration;

use leasehold_types::limits::RELEASED_MAX;
use leasehold_types::message::{
    AgentMessage, Beat, CoordinatorMessage, DrainPhase, HeldStream, Hello, Jobs, Report,
    ReportedMemory, Terms,
};
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::protocol::ProtocolRange;
use leasehold_types::{
    Epoch, GrantNumber, Incarnation, LinkNumber, Moment, Nonce, TermId, Version,
};

use self::named::NamedLeader;
use self::sent::Sent;
use super::{Drain, Holder};
use crate::effect::{Effect, Notice, Target, WakeReason, Wakeup};
use crate::journal::{Journal, JournalError, Record};

/// The time between two beats if no coordinator has set it yet.
const BEAT_DEFAULT: Duration = Duration::from_secs(5);
/// The least time between two beats that no other worker waits for.
const BEAT_GAP_MIN: Duration = Duration::from_millis(100);
/// How long the acknowledgment of a grant that only adds leases may wait for another message. No
/// other worker waits for it, and a change of a whole fleet reaches the last agent sooner if the
/// first ones do not answer before.
const ADDED_ACKNOWLEDGED_WITHIN: Duration = Duration::from_millis(250);

/// The newest link.
#[derive(Clone, Debug)]
pub(super) struct Link {
    number: LinkNumber,
    stage: Stage,
    /// When the last message of the coordinator arrived, or the stage began.
    last_message_at: Moment,
    /// The leader at its other end, if a replica has named it and no leader has welcomed the agent.
    named: Option<NamedLeader>,
    /// Attempts that have failed in a row.
    attempt: u32,
    /// The nonce of the next report or beat.
    nonce: Nonce,
    sent: Sent,
    /// The newest report or beat that a grant has answered.
    answered: Nonce,
    beat_at: Moment,
    /// Whether some coordinator has welcomed this process.
    welcomed: bool,
    /// The highest term to which an agent of this incarnation has reported.
    reported_to: Option<(Epoch, TermId)>,
    /// The newest grant that was applied in this epoch.
    pub(super) applied: GrantNumber,
    /// When the newest grant that named leases was applied.
    pub(super) changed_at: Moment,
    /// A grant is missing, and a snapshot was requested.
    pub(super) gap: bool,
    goodbye: LinkGoodbye,
}

/// The report of leaving, on the newest link.
#[derive(Clone, Copy, Debug, Default)]
struct LinkGoodbye {
    /// The coordinator has said that it answers this report.
    is_answered: bool,
    is_sent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Dialling,
    Greeting,
    /// Reported, and waiting for the snapshot.
    Reported,
    Live,
    /// Until the worker is restarted.
    Stopped,
    /// A newer agent has taken over the worker: permanent.
    Superseded,
}

impl Link {
    pub(super) fn first(now: Moment) -> Self {
        Self {
            number: LinkNumber(0),
            stage: Stage::Dialling,
            last_message_at: now,
            named: None,
            attempt: 0,
            nonce: Nonce(1),
            sent: Sent::default(),
            answered: Nonce(0),
            beat_at: Moment::NEVER,
            welcomed: false,
            reported_to: None,
            applied: GrantNumber(0),
            changed_at: now,
            gap: false,
            goodbye: LinkGoodbye::default(),
        }
    }

    pub(super) fn is_live(&self) -> bool {
        self.stage == Stage::Live
    }

    /// Whether its messages are ignored.
    fn is_stopped(&self) -> bool {
        self.is_superseded() || self.stage == Stage::Stopped
    }

    pub(super) fn is_superseded(&self) -> bool {
        self.stage == Stage::Superseded
    }

    /// Whether grants are valid: a leader grants nothing before the report.
    pub(super) fn has_reported(&self) -> bool {
        matches!(self.stage, Stage::Reported | Stage::Live) || mutation::on(Mutation::ListenOldLink)
    }

    pub(super) fn has_been_welcomed(&self) -> bool {
        self.welcomed
    }

    /// Whether the report of leaving was sent.
    pub(super) fn is_goodbye_sent(&self) -> bool {
        self.goodbye.is_sent
    }

    /// The report of leaving was sent. Returns whether the coordinator answers it.
    pub(super) fn goodbye_sent(&mut self) -> bool {
        self.goodbye.is_sent = true;
        self.goodbye.is_answered
    }

    /// The journal was begun anew since the report of leaving.
    pub(super) fn forget_goodbye(&mut self) {
        self.goodbye = LinkGoodbye::default();
    }

    pub(super) fn set_live(&mut self) {
        self.stage = Stage::Live;
        self.gap = false;
    }

    /// A time at or shortly before the report or beat with this nonce was sent, if that is
    /// remembered.
    pub(super) fn sent_at(&self, nonce: Nonce) -> Option<Moment> {
        self.sent.at(nonce).filter(|_| nonce < self.nonce)
    }

    /// When the newest report or beat was sent.
    pub(super) fn sent_last(&self) -> Option<Moment> {
        self.sent.last
    }

    /// A grant has answered this report or beat.
    pub(super) fn answered(&mut self, nonce: Nonce) {
        self.answered = self.answered.max(nonce);
    }

    /// Whether a report or beat, or its answer, is in flight.
    fn awaits_answer(&self) -> bool {
        self.answered.next() < self.nonce
    }

    pub(super) fn wakeup(&self, terms: Option<&Terms>) -> Option<Wakeup> {
        let dead = Wakeup { at: self.dead_at(terms)?, reason: WakeReason::LinkDead };
        Some(dead.min(Wakeup { at: self.beat_at, reason: WakeReason::Beat }))
    }

    /// When a live link counts as dead although the connection is open: by then the leases have
    /// ended. For a welcome or a snapshot an agent waits as long as the connection is open: a
    /// leader that is slow because many agents report at once would otherwise make them all report
    /// again.
    fn dead_at(&self, terms: Option<&Terms>) -> Option<Moment> {
        match (self.stage, terms) {
            (Stage::Live, Some(terms)) => Some(self.last_message_at + terms.ttl),
            (Stage::Live, None) => None,
            (Stage::Dialling | Stage::Greeting | Stage::Reported, _) => None,
            (Stage::Stopped | Stage::Superseded, _) => None,
        }
    }

    fn next_nonce(&mut self, ttl: Duration, now: Moment) -> Nonce {
        let nonce = self.nonce;
        self.nonce = nonce.next();
        self.sent.note(nonce, ttl, now);
        nonce
    }
}

impl<J: Journal> Holder<J> {
    /// The link is open: the hello follows.
    pub fn handle_open(&mut self, link: LinkNumber, now: Moment) {
        if link != self.link.number || self.link.stage != Stage::Dialling {
            return;
        }
        if self.begun_is_deferred() && self.write_deferred().is_err() {
            self.notice(Notice::Unlinked("the agent's start is not in its journal yet".into()));
            self.redial(Target::Next, now);
            return;
        }
        self.link.stage = Stage::Greeting;
        self.link.last_message_at = now;
        let epoch_seen = self.epoch.filter(|_| self.was_granted());
        let hello = Hello {
            protocol: ProtocolRange::OWN,
            cluster: self.config.cluster.clone(),
            worker: self.config.worker.clone(),
            incarnation: self.config.incarnation,
            link,
            epoch_seen,
            term_seen: epoch_seen.map(|_| self.term).unwrap_or_default(),
            stops_worker: self.config.stops_worker,
            generation: self.config.generation,
            address: self.config.address.clone(),
            identity: self.config.identity,
            // Only until the first welcome, so that two agents with this flag do not replace each
            // other for ever.
            take_over: self.config.take_over && !self.link.welcomed,
            knows_from: self.knows_from(),
            version: Some(Version::own()),
            cell: self.cell,
        };
        self.effects.push_back(Effect::Send(link, AgentMessage::Hello(hello)));
    }

    /// The link could not be opened, or has ended, and why.
    pub fn handle_closed(&mut self, link: LinkNumber, why: &str, now: Moment) {
        if link != self.link.number || self.link.is_stopped() {
            return;
        }
        self.notice(Notice::Unlinked(why.into()));
        self.redial(self.target_after_end(now), now);
    }

    /// A replica says that another one has come to lead than the one that link `over` leads to. A
    /// leader that hangs ends no connection, so the agent leaves that link, and a later one on
    /// which it waits for a welcome, unless that leads to the new leader: `dialled` is the address
    /// of the newest link. Returns whether the agent dials the new leader.
    pub fn handle_successor(
        &mut self,
        over: LinkNumber,
        leader: String,
        dialled: Option<&str>,
        now: Moment,
    ) -> bool {
        let is_over = over == self.link.number
            || match self.link.stage {
                Stage::Dialling => true,
                Stage::Greeting => dialled != Some(leader.as_str()),
                Stage::Reported | Stage::Live | Stage::Stopped | Stage::Superseded => false,
            };
        if !is_over || self.link.is_stopped() {
            return false;
        }
        self.notice(Notice::Unlinked(format!("{leader} has come to lead")));
        // There is nothing to wait for before this dial.
        self.link.attempt = 0;
        self.redial(Target::Leader(leader), now);
        true
    }

    /// A message arrived on the link.
    pub fn handle_message(&mut self, link: LinkNumber, message: CoordinatorMessage, now: Moment) {
        let old = link != self.link.number && !mutation::on(Mutation::ListenOldLink);
        if old || self.link.is_stopped() {
            return;
        }
        self.expire(now);
        self.link.last_message_at = now;
        match (message, self.link.stage) {
            (CoordinatorMessage::Welcome(welcome), Stage::Greeting) => self.welcome(welcome, now),
            (CoordinatorMessage::Refusal(refusal), _) => self.refused(refusal, now),
            (CoordinatorMessage::Grant(grant), _) => self.grant(&grant, now),
            (CoordinatorMessage::Welcome(_), _) => {
                self.protocol_violation("a welcome without a hello", now);
            }
        }
    }

    pub(super) fn dial_first(&mut self) {
        self.link.number = self.link.number.next();
        let (link, target, attempt) = (self.link.number, Target::Next, 0);
        self.effects.push_back(Effect::Dial { link, target, attempt });
    }

    /// Closes the link and opens the next one. The wait before it grows with each attempt since the
    /// last snapshot.
    pub(super) fn redial(&mut self, target: Target, now: Moment) {
        let was_live = self.link.is_live();
        self.effects.push_back(Effect::Hangup(self.link.number));
        self.link.number = self.link.number.next();
        self.link.set_target(&target, now);
        self.link.stage = Stage::Dialling;
        self.link.last_message_at = now;
        self.link.beat_at = Moment::NEVER;
        if std::mem::take(&mut self.link.goodbye).is_sent {
            self.left_as.get_or_insert(self.config.incarnation);
            self.restart_journal_of_leaver(now);
        }
        let (link, attempt) = (self.link.number, self.link.attempt);
        self.effects.push_back(Effect::Dial { link, target, attempt });
        self.link.attempt = attempt.saturating_add(1);
        if was_live {
            self.changed();
        }
    }

    /// The coordinator violated the protocol: the link is closed.
    pub(super) fn protocol_violation(&mut self, rule: &'static str, now: Moment) {
        self.notice(Notice::ProtocolViolation(rule));
        self.redial(Target::Next, now);
    }

    /// Whether a leader of this epoch has granted anything. A deposed leader that does not know it
    /// welcomes agents too, but grants nothing to an agent without an epoch.
    fn was_granted(&self) -> bool {
        self.renewed_until > Moment::EARLIEST && !mutation::on(Mutation::ObeyLowerEpoch)
    }

    /// Sends a beat at once, if the link is live.
    pub(super) fn beat(&mut self, now: Moment) {
        if !self.link.is_live() {
            return;
        }
        // If this fails, the next beat tries again.
        let _ = self.write_deferred();
        let (ttl, interval) =
            self.terms.map_or((Duration::ZERO, BEAT_DEFAULT), |terms| (terms.ttl, terms.beat));
        let told = match self.drain_phase() {
            // The report of leaving says that nothing is held.
            DrainPhase::Leaving => self.released.len(),
            DrainPhase::Working | DrainPhase::Draining => self.released.len().min(RELEASED_MAX),
        };
        let beat = Beat {
            epoch: self.epoch.unwrap_or_default(),
            nonce: self.link.next_nonce(ttl, now),
            applied: self.link.applied,
            changed_ago: now.since(self.link.changed_at),
            pool: self.held_pool(),
            jobs: self.reported_jobs(),
            drain: self.drain_phase(),
            failure: self.reported_failure().cloned(),
            released: self.released.drain(..told).collect(),
            wants_snapshot: self.link.gap,
        };
        self.link.beat_at = now + interval;
        self.effects.push_back(Effect::Send(self.link.number, AgentMessage::Beat(beat)));
        if !self.released.is_empty() {
            self.beat_soon(now);
        }
    }

    /// Reports released leases at once, or soon if a beat is in flight. A worker may release
    /// thousands of streams one by one, and a beat for each would delay the beats of other agents.
    pub(super) fn report_released(&mut self, now: Moment) {
        match self.link.awaits_answer() {
            _ if self.released.is_empty() => {}
            false => self.beat(now),
            true => self.beat_soon(now),
        }
    }

    /// Sends a beat soon. No other worker waits for it, but the state shown to people stays fresh.
    pub(super) fn beat_soon(&mut self, now: Moment) {
        let last = self.link.sent_last().unwrap_or(Moment::EARLIEST);
        let soon = now.max(last + BEAT_GAP_MIN);
        self.link.beat_at = self.link.beat_at.min(soon);
    }

    /// The next beat is sent in time to acknowledge a grant that only adds leases.
    pub(super) fn acknowledge_added(&mut self, now: Moment) {
        self.link.beat_at = self.link.beat_at.min(now + ADDED_ACKNOWLEDGED_WITHIN);
    }

    pub(super) fn check_link(&mut self, now: Moment) {
        let dead = self.link.dead_at(self.terms.as_ref()).is_some_and(|at| at <= now);
        if dead {
            self.notice(Notice::Unlinked(
                "no message from the coordinator within a lease time".into(),
            ));
            self.redial(Target::Next, now);
        } else if self.link.is_live() && self.link.beat_at <= now {
            self.beat(now);
        }
    }

    pub(super) fn stop_link(&mut self) {
        self.effects.push_back(Effect::Hangup(self.link.number));
        self.link.stage = Stage::Stopped;
    }

    fn reported_jobs(&self) -> Jobs {
        match self.jobs_known {
            // Without a pool lease there is no other field for a size that the worker still uses.
            true if self.pool.is_none() && !mutation::on(Mutation::UnknownForgotten) => {
                Jobs::Running(self.running().max(self.count.map_or(0, |count| count.in_effect)))
            }
            true => Jobs::Running(self.running()),
            false if mutation::on(Mutation::UnknownJobsTold) => Jobs::Running(self.running()),
            false => Jobs::Unknown,
        }
    }

    fn report(&mut self, terms: Terms, now: Moment) {
        // If this fails, the first beat tries again.
        let _ = self.write_deferred();
        // A report lists everything that is held, so released leases are implied.
        self.released.clear();
        let leaves = matches!(self.drain, Drain::Leaving { .. } | Drain::Left);
        if leaves {
            self.write_left();
        }
        let streams = self.streams.iter().map(|(stream, held)| HeldStream {
            stream: stream.clone(),
            token: held.token,
            pinned: held.pinned,
            revoked: held.revoked.is_some(),
            load: held.load(),
        });
        let report = Report {
            epoch: self.epoch.unwrap_or_default(),
            nonce: self.link.next_nonce(terms.ttl, now),
            memory: self.memory(terms, now),
            pool: self.held_pool(),
            streams: streams.collect(),
            jobs: self.reported_jobs(),
            drain: self.drain_phase(),
            failure: self.reported_failure().cloned(),
        };
        self.effects.push_back(Effect::Send(self.link.number, AgentMessage::Report(report)));
        if leaves && self.may_report_leaving() {
            self.goodbye_sent();
        }
    }

    /// How far back the journal reaches. A journal that is younger than a lease may have been begun
    /// while the leases of an earlier incarnation were valid.
    fn memory(&self, terms: Terms, now: Moment) -> ReportedMemory {
        let old = now.since(self.begun) > terms.reserve;
        let knows_from = self.knows_from();
        let aged = knows_from == Incarnation(0) || old;
        ReportedMemory { knows_from, aged, left: self.left_as }
    }

    /// The first incarnation for which the journal is complete.
    fn knows_from(&self) -> Incarnation {
        if self.complete || mutation::on(Mutation::YoungJournalSpeaks) {
            Incarnation(0)
        } else {
            self.first
        }
    }

    /// Starts the journal again under a higher incarnation: another agent of this name may have
    /// leases that this journal does not list.
    pub(super) fn restart_journal(
        &mut self,
        newer: Incarnation,
        now: Moment,
    ) -> Result<(), JournalError> {
        let above = newer.max(self.config.incarnation);
        let offset = if mutation::on(Mutation::RaiseByOne) {
            1
        } else {
            self.config.incarnation_offset.max(1)
        };
        let incarnation = Incarnation(above.0.saturating_add(offset));
        let begun = Record::Begun { incarnation, begun: now, first: incarnation };
        self.write(&begun)?;
        self.deferred.retain(|record| !matches!(record, Record::Begun { .. }));
        self.config.incarnation = incarnation;
        if !mutation::on(Mutation::RaisedJournalSpeaks) {
            (self.first, self.begun, self.complete) = (incarnation, now, false);
        }
        Ok(())
    }

    pub(super) fn reset_attempts(&mut self) {
        self.link.attempt = 0;
    }

    pub(super) fn schedule_beat(&mut self, at: Moment) {
        self.link.beat_at = at;
    }
}
