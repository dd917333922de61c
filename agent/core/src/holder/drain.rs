//! A drain: no new job, streams released, jobs end by themselves, and the agent leaves, empty
//! or at the deadline. One that stays says at the deadline what is left, and leaves when all is
//! done.

use std::time::Duration;

use leasehold_types::Moment;
use leasehold_types::mutation::{self, Mutation};

use super::{Drain, Holder};
use crate::effect::{Effect, Notice, Target, WakeReason, Wakeup};
use crate::journal::{Journal, JournalError, Record};
use crate::lease::Outstanding;

/// The drain's deadline where neither the agent's flags nor a coordinator has given one.
const DEADLINE_DEFAULT: Duration = Duration::from_secs(2 * 3600);
impl<J: Journal> Holder<J> {
    /// Begins a drain; twice is once.
    pub fn drain(&mut self, now: Moment) {
        self.drain_remembered = false;
        if self.draining() {
            return;
        }
        let _ = self.write_or_defer(Record::Draining);
        self.drain = Drain::Draining { since: now, overdue: false };
        self.notice(Notice::DrainStarted);
        let deadline = now + self.drain_deadline();
        self.release_unshown();
        for held in self.streams.values_mut() {
            held.revoked.get_or_insert(deadline);
        }
        self.changed();
        self.beat(now);
        self.check_drain(now);
    }

    /// The coordinator wants a drain.
    pub(super) fn drain_by_order(&mut self, now: Moment) {
        self.drain(now);
        if !self.drain_ordered {
            self.drain_ordered = true;
            self.write_if_possible(&Record::DrainOrdered);
        }
    }

    /// The worker was restarted. A drain that its hook began, beside an agent that stays, was
    /// for the previous process, which did not end with its pod; and so was one that an agent
    /// before this one was asked for. One that the coordinator wants goes on.
    pub(super) fn resume(&mut self, now: Moment) -> Result<(), JournalError> {
        let over = self.draining() && !self.drain_ordered && !self.link.is_superseded();
        if !over || !(self.config.stays || self.drain_remembered) {
            return Ok(());
        }
        self.end_drain(now)?;
        self.effects.push_back(Effect::Resumed);
        // Only a report ends a drain for the coordinator.
        self.redial(Target::Next, now);
        Ok(())
    }

    /// The worker works again.
    pub(super) fn end_drain(&mut self, now: Moment) -> Result<(), JournalError> {
        // The coordinator forgets an agent that leaves, and may have admitted another one under
        // this name since, with any incarnation. This journal does not know that agent's leases.
        let reported = self.left && !self.deferred.contains(&Record::Left);
        if reported && !mutation::on(Mutation::LeftStaysComplete) {
            self.restart_journal(self.config.incarnation, now)?;
        }
        self.write(&Record::DrainOver)?;
        (self.left, self.drain_remembered) = (false, false);
        // It was reported as not in effect: the coordinator must grant it again.
        if !mutation::on(Mutation::ResumedPool) {
            self.pool = None;
        }
        self.deferred.retain(|record| !matches!(record, Record::Draining | Record::Left));
        self.drain = Drain::Working;
        self.notice(Notice::DrainOver);
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

    /// What keeps the worker from being done, for people.
    #[must_use]
    pub fn outstanding(&self) -> Outstanding {
        let jobs_known = self.jobs_known || !self.link.has_been_welcomed();
        Outstanding {
            jobs: jobs_known.then(|| self.running()),
            slots_max: self.pool.map_or(0, |pool| pool.size),
            obeyed: self.count.map_or(0, |count| count.obeyed),
            streams: self.streams.len(),
            goodbye: matches!(self.drain, Drain::Leaving { .. }),
            draining: self.draining() && self.drain != Drain::Left,
        }
    }

    /// Ends the drain where nothing is left, or its time is over.
    pub(super) fn check_drain(&mut self, now: Moment) {
        match self.drain {
            // The other agent reports its end.
            _ if self.link.is_superseded() => {}
            Drain::Working | Drain::Left => {}
            Drain::Draining { since, overdue } => {
                self.release_unshown();
                // An agent that was never welcomed, and remembers nothing, has let nothing begin.
                let idle = !self.jobs_known && !self.link.has_been_welcomed();
                let jobs_known = self.jobs_known || idle;
                // One that reports counts may start jobs until it says that it keeps to 0.
                let obeyed = self.count.map_or(0, |count| count.obeyed);
                let empty =
                    jobs_known && self.running() == 0 && obeyed == 0 && self.streams.is_empty();
                let late = since + self.drain_deadline() <= now;
                if empty && idle {
                    self.leave(false);
                } else if empty || (late && !self.config.stays) {
                    self.drain = Drain::Leaving { give_up: now + self.config.goodbye_max };
                    self.report_leaving(now);
                } else if late && !overdue {
                    self.drain = Drain::Draining { since, overdue: true };
                    self.effects.push_back(Effect::DrainOverdue { jobs_left: self.running() });
                }
            }
            Drain::Leaving { give_up } if give_up <= now => self.leave(false),
            // The link has come to life since.
            Drain::Leaving { .. } => self.report_leaving(now),
        }
    }

    /// The drain is over, and a coordinator was `reported` or could not be.
    pub(super) fn leave(&mut self, reported: bool) {
        self.drain = Drain::Left;
        self.write_if_possible(&Record::DrainEnded);
        let jobs_left = self.running();
        self.effects.push_back(Effect::DrainEnded { jobs_left, reported });
        self.stop_link();
    }

    /// Releases what the worker never saw, and so will never let go.
    fn release_unshown(&mut self) {
        let unshown = self.streams.iter().filter(|(_, held)| !held.shown);
        let unshown: Vec<_> = unshown.map(|(stream, held)| (stream.clone(), held.token)).collect();
        for (stream, token) in unshown {
            // What cannot be written now is released when the drain is looked at again.
            let _ = self.release(&stream, token);
        }
    }

    /// Says that nothing is left, once that is recorded. Where it cannot be before the agent
    /// gives up, it reports nothing: what it held counts until the platform says that it is gone.
    fn report_leaving(&mut self, now: Moment) {
        if !self.link.is_live() {
            return;
        }
        self.write_left();
        let _ = self.write_deferred();
        if self.may_report_leaving() {
            self.beat(now);
            self.leave(true);
        }
    }

    /// Records that it is about to report that it leaves.
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
