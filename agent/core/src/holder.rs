//! The holder: everything that one agent holds for its worker. What it has journalled it may use;
//! what it may not use any more it has stopped before anybody else can be granted it.

use std::time::Duration;

use leasehold_types::message::CoordinatorMessage;
use leasehold_types::{
    ClusterName, Incarnation, JobId, LinkNumber, Moment, StartId, StreamKey, Token, WorkerName,
};

use crate::effect::{Effect, Wakeup};
use crate::journal::{Journal, Memory};
use crate::lease::{Lease, Refused};

/// Who the holder is.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cluster that its worker belongs to.
    pub cluster: ClusterName,
    /// Its worker.
    pub worker: WorkerName,
    /// Its incarnation: above every earlier one's as far as anyone here knows.
    pub incarnation: Incarnation,
    /// Its worker's rollout generation.
    pub generation: u64,
    /// Whether it can stop its worker when a lease ends.
    pub stops_worker: bool,
    /// How long a drain may take; the coordinator's word where none is given.
    pub drain_deadline: Option<Duration>,
}

/// The state of one agent.
#[derive(Debug)]
pub struct Holder<J> {
    config: Config,
    journal: J,
}

impl<J: Journal> Holder<J> {
    /// A holder that takes up what `memory` (its predecessors' journal, or nothing) tells, and
    /// dials at once.
    #[must_use]
    pub fn new(config: Config, memory: Memory, journal: J, now: Moment) -> Self {
        let _ = (memory, now);
        Self { config, journal }
    }

    /// The link is open: the hello follows.
    pub fn handle_open(&mut self, link: LinkNumber, now: Moment) {
        let _ = (link, now);
    }

    /// The link could not be opened, or has ended, and why.
    pub fn handle_closed(&mut self, link: LinkNumber, why: &str, now: Moment) {
        let _ = (link, why, now);
    }

    /// A message came on the link.
    pub fn handle_message(&mut self, link: LinkNumber, message: CoordinatorMessage, now: Moment) {
        let _ = (link, message, now);
    }

    /// The wake-up that was asked for, or any moment.
    pub fn handle_wake(&mut self, now: Moment) {
        let _ = now;
    }

    /// The worker's process says that it starts, and how many jobs already run in it. A new
    /// start id ends the jobs of the process before.
    ///
    /// # Errors
    /// [`Refused::Limit`] or [`Refused::Journal`].
    pub fn start_worker(
        &mut self,
        start: StartId,
        running: u32,
        now: Moment,
    ) -> Result<(), Refused> {
        let _ = (start, running, now);
        Ok(())
    }

    /// The worker wants to start a job; twice for one id is once.
    ///
    /// # Errors
    /// Every reason but [`Refused::NotHeld`].
    pub fn begin_job(&mut self, job: JobId, now: Moment) -> Result<(), Refused> {
        let _ = (job, now);
        Ok(())
    }

    /// A job has ended; for an id that does not run it does nothing.
    ///
    /// # Errors
    /// [`Refused::Journal`].
    pub fn end_job(&mut self, job: &JobId, now: Moment) -> Result<(), Refused> {
        let _ = (job, now);
        Ok(())
    }

    /// A worker that asks for no single job tells how many run, and the pool size that it keeps
    /// to from now on. A smaller pool is in effect only when it is told here.
    ///
    /// # Errors
    /// [`Refused::Limit`] or [`Refused::Journal`].
    pub fn report_count(&mut self, running: u32, obeyed: u32, now: Moment) -> Result<(), Refused> {
        let _ = (running, obeyed, now);
        Ok(())
    }

    /// The worker has let a stream go, revoked or of its own will.
    ///
    /// # Errors
    /// [`Refused::NotHeld`] or [`Refused::Journal`].
    pub fn release_stream(
        &mut self,
        stream: &StreamKey,
        token: Token,
        now: Moment,
    ) -> Result<(), Refused> {
        let _ = (stream, token, now);
        Ok(())
    }

    /// Begins a drain; twice is once.
    pub fn drain(&mut self, now: Moment) {
        let _ = now;
    }

    /// What the worker may do now. Marks the streams in it as shown: one that was never shown is
    /// released without asking the worker.
    pub fn lease(&mut self, now: Moment) -> Lease {
        let _ = now;
        unimplemented!("{:?} {:p}", self.config, &raw const self.journal)
    }

    /// The next effect, oldest first.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        None
    }

    /// When to call [`Self::handle_wake`], if at all.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Wakeup> {
        None
    }
}
