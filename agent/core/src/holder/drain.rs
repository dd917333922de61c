//! A drain: no new job begins, streams are released, jobs end by themselves, and the agent leaves
//! when nothing is left or at the deadline. An agent that stays, or that ends its worker then, says
//! at the deadline what is left, and leaves when nothing is.
//!
//! Shares of pipelines stay in use until the coordinator asks for them, one by one, as other
//! workers have room: a pipeline needs all of its shares. The deadline asks for the rest.

use std::time::Duration;

use leasehold_types::Moment;
use leasehold_types::mutation::{self, Mutation};

use super::{Drain, Held, Holder};
use crate::effect::{DrainCancelled, Effect, Notice, Target, WakeReason, Wakeup};
use crate::journal::{Journal, JournalError, Record};
use crate::lease::Outstanding;

/// The deadline of a drain if neither the agent's flags nor a coordinator has set one.
const DEADLINE_DEFAULT: Duration = Duration::from_secs(2 * 3600);

/// What became of the report that the worker leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goodbye {
    /// No coordinator can count anything for the worker.
    Needless,
    /// No answer came in time.
    Unanswered,
    /// The worker has left; or it was sent to a coordinator that does not answer.
    Answered,
}

impl<J: Journal> Holder<J> {
    /// Begins a drain that is asked for here. If one has begun, it is no longer ended by an order.
    pub fn drain(&mut self, now: Moment) {
        self.drain_requested = true;
        self.begin_drain(now);
    }

    fn begin_drain(&mut self, now: Moment) {
        self.drain_remembered = false;
        if self.draining() {
            return;
        }
        let _ = self.write_or_defer(Record::Draining);
        self.drain = Drain::Draining { since: now, overdue: false };
        self.notice(Notice::DrainStarted);
        let deadline = now + self.drain_deadline();
        self.release_unshown();
        let with_shares = mutation::on(Mutation::DrainAsksForShares);
        let asked = |held: &&mut Held| held.binding.is_none() || with_shares;
        for held in self.streams.values_mut().filter(asked) {
            held.revoked.get_or_insert(deadline);
        }
        self.changed();
        self.beat(now);
        self.check_drain(now);
    }

    /// Asks the worker for the shares that no other worker had room for.
    fn ask_for_shares(&mut self, now: Moment) {
        for held in self.streams.values_mut() {
            held.revoked.get_or_insert(now);
        }
        self.changed();
    }

    /// Begins a drain that the coordinator orders.
    pub(super) fn drain_by_order(&mut self, now: Moment) {
        self.begin_drain(now);
        if !self.drain_ordered {
            self.drain_ordered = true;
            self.write_if_possible(&Record::DrainOrdered);
        }
    }

    /// Ends a drain that the coordinator ordered, and reports on a new link, as after
    /// [`Self::resume`]. One that was asked for here goes on, and so does one that is over, which
    /// may have been reported.
    pub(super) fn take_drain_back(&mut self, now: Moment) {
        let is_ordered = self.drain_ordered && !self.drain_requested;
        if !is_ordered || !matches!(self.drain, Drain::Draining { .. }) {
            return;
        }
        // If this cannot be recorded, the drain goes on until the order comes again.
        if self.end_drain(DrainCancelled::Undrain, now).is_ok() {
            self.effects.push_back(Effect::Resumed);
        }
        self.redial(Target::Next, now);
    }

    /// The worker restarted. Cancels a drain that applied to its previous process: one that a hook
    /// requested from an agent that stays, or one that a previous agent was asked for. A drain that
    /// the coordinator ordered continues.
    pub(super) fn resume(&mut self, now: Moment) -> Result<(), JournalError> {
        let over = self.draining() && !self.drain_ordered && !self.link.is_superseded();
        if !over || !(self.config.stays_after_drain || self.drain_remembered) {
            return Ok(());
        }
        self.end_drain(DrainCancelled::Restart, now)?;
        self.effects.push_back(Effect::Resumed);
        // The coordinator learns of the cancelled drain only from a report.
        self.redial(Target::Next, now);
        Ok(())
    }

    /// All processes of the container have ended in which the drain was requested. Cancels the
    /// drain as a restart of the worker does: the next container is not drained, unless the
    /// coordinator orders it.
    ///
    /// # Errors
    /// If the end of the drain cannot be recorded. It continues then.
    pub fn container_ended(&mut self, now: Moment) -> Result<(), JournalError> {
        self.expire(now);
        let was_draining = self.draining();
        self.resume(now)?;
        if was_draining && !self.draining() {
            self.changed();
        }
        Ok(())
    }

    /// Starts the journal of an agent again that has left: it is no longer complete.
    ///
    /// The coordinator forgets an agent that leaves, and may have admitted another one under this
    /// name since, with any incarnation. This journal does not know that agent's leases.
    pub(super) fn restart_journal_of_leaver(&mut self, now: Moment) {
        if mutation::on(Mutation::LeftStaysComplete) {
            return;
        }
        // If this cannot be recorded, the next start tries again.
        if self.begin_after_goodbye(now).is_err() {
            (self.first, self.begun, self.complete) = (self.config.incarnation, now, false);
        }
    }

    /// Starts the journal again. The coordinator no longer counts what it renewed before, and what
    /// it grants from now on may have a shorter lease time, so the former end applies no longer,
    /// unless a stream is held for which the worker may have read it.
    fn begin_after_goodbye(&mut self, now: Moment) -> Result<(), JournalError> {
        self.restart_journal(self.config.incarnation, now)?;
        if self.streams.is_empty() && now < self.renewed_until {
            self.write(&Record::Renewed { until: now })?;
            self.renewed_until = now;
        }
        Ok(())
    }

    /// Ends the drain, so that the worker may take jobs and streams again. The journal of an agent
    /// that has reported that it leaves is no longer complete, as in
    /// [`Self::restart_journal_of_leaver`].
    pub(super) fn end_drain(
        &mut self,
        why: DrainCancelled,
        now: Moment,
    ) -> Result<(), JournalError> {
        let reported = self.left && !self.deferred.contains(&Record::Left);
        if reported && !mutation::on(Mutation::LeftStaysComplete) {
            self.begin_after_goodbye(now)?;
            self.link.forget_goodbye();
        }
        self.write(&Record::DrainOver)?;
        (self.left, self.left_as, self.drain_remembered) = (false, None, false);
        (self.drain_ordered, self.drain_requested) = (false, false);
        // The pool was reported as not in effect: the coordinator must grant it again.
        if !mutation::on(Mutation::ResumedPool) {
            self.pool = None;
        }
        self.deferred.retain(|record| !matches!(record, Record::Draining | Record::Left));
        self.drain = Drain::Working;
        self.notice(Notice::DrainOver(why));
        Ok(())
    }

    pub(super) fn drain_wakeup(&self) -> Option<Wakeup> {
        let at = match self.drain {
            _ if self.link.is_superseded() => return None,
            Drain::Working | Drain::Left | Drain::Draining { overdue: true, .. } => return None,
            Drain::Draining { since, overdue: false } => since + self.drain_deadline(),
            Drain::Leaving { give_up } => give_up,
        };
        Some(Wakeup { at, reason: WakeReason::DrainDeadline })
    }

    /// What the drain waits for, for people.
    #[must_use]
    pub fn outstanding(&self) -> Outstanding {
        let jobs_known = self.jobs_known || !self.link.has_been_welcomed();
        let shares = self.streams.values().filter(|held| held.binding.is_some()).count();
        Outstanding {
            jobs: jobs_known.then(|| self.running()),
            slots_max: self.pool.map_or(0, |pool| pool.size),
            in_effect: self.count.map_or(0, |count| count.in_effect),
            streams: self.streams.len() - shares,
            shares,
            goodbye: matches!(self.drain, Drain::Leaving { .. }),
            draining: self.draining() && self.drain != Drain::Left,
        }
    }

    /// Ends the drain if nothing is left or the deadline has passed.
    pub(super) fn check_drain(&mut self, now: Moment) {
        match self.drain {
            // The newer agent handles the drain.
            _ if self.link.is_superseded() => {}
            Drain::Working => {}
            Drain::Draining { since, overdue } => {
                let late = since + self.drain_deadline() <= now;
                if late && !overdue && !self.streams.is_empty() {
                    self.ask_for_shares(now);
                }
                self.release_unshown();
                let unwelcomed = !self.link.has_been_welcomed();
                // Without a memory and a welcome, the agent has never admitted a job.
                let idle = !self.jobs_known && unwelcomed;
                // An earlier agent writes the epoch before it reports.
                let unknown = self.epoch.is_none() && unwelcomed && !self.config.insists_on_report;
                let jobs_known = self.jobs_known || idle;
                let empty = jobs_known && self.holds_nothing();
                let waits = self.config.stays_after_drain || self.config.ends_worker;
                if empty && (idle || unknown) {
                    self.leave(Goodbye::Needless);
                } else if empty || (late && !waits) {
                    self.drain = Drain::Leaving { give_up: now + self.config.goodbye_max };
                    self.report_leaving(now);
                } else if late && !overdue {
                    self.drain = Drain::Draining { since, overdue: true };
                    self.effects.push_back(Effect::DrainOverdue { jobs_left: self.running() });
                }
            }
            Drain::Leaving { give_up } if give_up <= now => self.leave(Goodbye::Unanswered),
            // The link may be live by now.
            Drain::Leaving { .. } | Drain::Left => self.report_leaving(now),
        }
    }

    /// Whether no job is known to run, none may start, and no stream is held. A worker that reports
    /// counts may start jobs until it confirms pool size 0.
    fn holds_nothing(&self) -> bool {
        let in_effect = self.count.map_or(0, |count| count.in_effect);
        self.running() == 0 && in_effect == 0 && self.streams.is_empty()
    }

    /// Ends the drain. An agent that stays reports on until it has an answer: a leader may have
    /// ended before it stored that the worker has left, and the next one would count its leases.
    fn leave(&mut self, goodbye: Goodbye) {
        self.drain = Drain::Left;
        self.write_if_possible(&Record::DrainEnded);
        let jobs_left = self.running();
        let reported = goodbye == Goodbye::Answered;
        self.effects.push_back(Effect::DrainEnded { jobs_left, reported });
        if goodbye != Goodbye::Unanswered || !self.config.stays_after_drain {
            self.stop_link();
        }
    }

    /// The report of leaving was sent. Waits for the answer, if there will be one: not from a
    /// coordinator of an earlier release, and not while anything is left.
    pub(super) fn goodbye_sent(&mut self) {
        let is_answered = self.link.goodbye_sent() && self.holds_nothing();
        if !is_answered || mutation::on(Mutation::LeavesUnanswered) {
            self.end_goodbye();
        }
    }

    /// A coordinator says that the worker has left.
    pub(super) fn goodbye_answered(&mut self, now: Moment) {
        if self.link.is_goodbye_sent() {
            self.end_goodbye();
        } else {
            self.protocol_violation("an answer to a goodbye that was not sent", now);
        }
    }

    fn end_goodbye(&mut self) {
        if self.drain == Drain::Left {
            self.stop_link();
        } else {
            self.leave(Goodbye::Answered);
        }
    }

    /// Releases leases that the worker has never seen, and so will never release. Documents reach a
    /// worker that never asks for its shares, so these stay until they are asked for, unless it
    /// fails.
    pub(super) fn release_unshown(&mut self) {
        let is_failing = self.is_failing();
        let unshown = self.streams.iter().filter(|(_, held)| {
            let serves = held.binding.is_some() && held.revoked.is_none() && !is_failing;
            !held.shown && !serves
        });
        let unshown: Vec<_> = unshown.map(|(stream, held)| (stream.clone(), held.token)).collect();
        for (stream, token) in unshown {
            // If this cannot be written, the next check of the drain tries again.
            let _ = self.release(&stream, token);
        }
    }

    /// Reports that the agent leaves, after recording it. If it cannot be recorded in time, nothing
    /// is reported: the leases count until the platform reports that the worker is gone.
    fn report_leaving(&mut self, now: Moment) {
        if !self.link.is_live() || self.link.is_goodbye_sent() {
            return;
        }
        self.write_left();
        let _ = self.write_deferred();
        if self.may_report_leaving() {
            self.beat(now);
            self.goodbye_sent();
        }
    }

    /// Records that the agent is about to report that it leaves.
    pub(super) fn write_left(&mut self) {
        if !std::mem::replace(&mut self.left, true) {
            let _ = self.write_or_defer(Record::Left);
        }
    }

    fn drain_deadline(&self) -> Duration {
        let ordered = self.terms.map(|terms| terms.drain_deadline);
        self.config.drain_deadline.or(ordered).unwrap_or(DEADLINE_DEFAULT)
    }
}
