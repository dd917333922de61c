//! A worker that fails its check: it gets no job, and gives its streams up as in a drain, but its
//! agent stays. Running jobs are counted and never ended.
//!
//! Invariant: a pool that was reported as ended is not used again, whatever the check says later.

use std::time::Duration;

use leasehold_types::Moment;
use leasehold_types::message::WorkerFailure;
use leasehold_types::mutation::{self, Mutation};

use super::{Drain, Holder};
use crate::effect::{Notice, Target};
use crate::journal::{Journal, JournalError, Record};

/// What an agent says of a worker that has failed its check under an earlier agent, until it has
/// checked the worker itself.
pub(super) fn of_earlier_agent() -> WorkerFailure {
    WorkerFailure::new("it failed its check before its agent restarted")
        .expect("the text is not empty")
}

impl<J: Journal> Holder<J> {
    /// The worker fails its check. Until [`Self::recover`] it gets nothing, and the coordinator
    /// asks its streams back: those that the worker does not release end by time, where they may.
    pub fn fail(&mut self, failure: WorkerFailure, now: Moment) {
        self.expire(now);
        if self.failure.as_ref() == Some(&failure) {
            return;
        }
        let before = self.failure.replace(failure.clone());
        if before.as_ref().is_none_or(|before| *before == of_earlier_agent()) {
            self.notice(Notice::Failing(failure));
        }
        if before.is_some() {
            // Only the reason has changed.
            return self.beat_soon(now);
        }
        if !mutation::on(Mutation::FailureUnwritten) {
            let _ = self.write_or_defer(Record::Failing);
        }
        self.check_failure();
        self.changed();
        self.beat(now);
    }

    /// The worker passes its check. The coordinator must grant it a pool again.
    ///
    /// # Errors
    /// If it cannot be recorded: the worker counts as failing until it can.
    pub fn recover(&mut self, now: Moment) -> Result<(), JournalError> {
        self.expire(now);
        if self.failure.is_none() {
            return Ok(());
        }
        self.write(&Record::Recovered)?;
        self.failure = None;
        self.deferred.retain(|record| *record != Record::Failing);
        if !mutation::on(Mutation::RecoveredPool) {
            self.pool = None;
        }
        self.notice(Notice::Recovered);
        self.changed();
        if self.drain == Drain::Working && self.link.has_reported() {
            // The coordinator learns from a report that the worker takes jobs and streams again.
            self.redial(Target::Next, now);
        }
        Ok(())
    }

    /// What the worker promises of its calls: within which time it makes the next one. The next
    /// agent has to know it, too; without the record it expects no call.
    pub fn note_promise(&mut self, within: Option<Duration>) {
        if std::mem::replace(&mut self.promised, within) != within {
            self.write_if_possible(&Record::Promised { within });
        }
    }

    /// Why the worker fails its check; none if it passes.
    #[must_use]
    pub fn failure(&self) -> Option<&WorkerFailure> {
        self.failure.as_ref()
    }

    /// Whether the worker fails its check.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.failure.is_some()
    }

    /// Why the worker takes nothing, if it does so for no other reason.
    pub(super) fn reported_failure(&self) -> Option<&WorkerFailure> {
        let is_told = self.drain == Drain::Working && !mutation::on(Mutation::FailureUntold);
        self.failure.as_ref().filter(|_| is_told)
    }

    /// Whether the journal says that the pool is not in effect, so that no successor uses it.
    pub(super) fn failure_is_in_effect(&self) -> bool {
        self.is_failing() && !self.deferred.contains(&Record::Failing)
    }

    /// Releases what the worker has not seen: a worker that fails releases nothing itself.
    pub(super) fn check_failure(&mut self) {
        if self.is_failing() {
            self.release_unshown();
        }
    }
}
