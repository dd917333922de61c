//! The worker's requests and reports. Admission is here: no job starts without a live lease.

use leasehold_types::limits::JOBS_PER_WORKER_MAX;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{JobId, Moment, StartId, StreamKey, Token};

use super::{Count, Holder};
use crate::effect::Notice;
use crate::journal::{Journal, JournalError, Record};
use crate::lease::{Kinds, Refused};

/// Leases of which a holder remembers that its worker has given them back.
const RELEASED_BY_WORKER_MAX: usize = 256;

impl<J: Journal> Holder<J> {
    /// The worker's process says that it starts, and how many jobs already run in it. A new
    /// start id ends the jobs of the previous process, gives its streams back, and beside an agent
    /// that stays ends a drain that the coordinator did not order. The same start id again, with
    /// fewer jobs, reports the end of jobs whose id its agent does not know.
    ///
    /// # Errors
    /// [`Refused::Limit`] or [`Refused::Journal`].
    pub fn start_worker(
        &mut self,
        start: StartId,
        running: u32,
        now: Moment,
    ) -> Result<(), Refused> {
        if self.start.as_ref() == Some(&start) {
            return self.fewer_unnamed(running, now);
        }
        at_most(running)?;
        self.resume(now)?;
        // One record: a process that dies between two must not leave uncounted jobs.
        self.write(&Record::WorkerStarted { start: start.clone(), running })?;
        self.start = Some(start);
        self.shown = Kinds::NONE;
        self.jobs.clear();
        self.unnamed = running;
        self.count = None;
        self.jobs_known = true;
        let shown = self.streams.iter().filter(|(_, held)| held.shown);
        let shown: Vec<_> = shown.map(|(stream, held)| (stream.clone(), held.token)).collect();
        for (stream, token) in shown {
            self.release(&stream, token)?;
        }
        self.changed();
        self.beat(now);
        self.check_drain(now);
        Ok(())
    }

    fn fewer_unnamed(&mut self, running: u32, now: Moment) -> Result<(), Refused> {
        if running >= self.unnamed {
            return Ok(());
        }
        self.write(&Record::Unnamed { running })?;
        self.unnamed = running;
        self.changed();
        self.beat(now);
        self.check_drain(now);
        Ok(())
    }

    /// The worker wants to start a job; twice for one id is once.
    ///
    /// # Errors
    /// Every reason but [`Refused::NotHeld`].
    pub fn begin_job(&mut self, job: JobId, now: Moment) -> Result<Token, Refused> {
        self.expire(now);
        let token = self.pool.map_or(Token::default(), |pool| pool.token);
        if self.jobs.contains(&job) {
            return Ok(token);
        }
        let (size, running) = (self.size(now), self.running());
        if self.draining() && size == 0 {
            return Err(Refused::Draining);
        }
        if self.pool.is_none() || (size == 0 && now >= self.renewed_until) {
            return Err(Refused::NoLease);
        }
        if running >= size {
            return Err(Refused::NoSlot { size, running });
        }
        at_most(running + 1)?;
        // The end of a job of this id that is written after it would be taken for its end.
        if !mutation::on(Mutation::JobBeforeOwed) {
            self.write_deferred()?;
        }
        if !mutation::on(Mutation::JobUnwritten) {
            self.write(&Record::JobBegan { job: job.clone() })?;
        }
        self.notice(Notice::JobBegan(job.clone()));
        self.jobs.insert(job);
        self.changed();
        self.beat_soon(now);
        Ok(token)
    }

    /// A job has ended; for an id that does not run it does nothing.
    ///
    /// # Errors
    /// [`Refused::Journal`] until it is recorded, though its slot is free at once: a successor
    /// that finds no record counts it as running, and the worker must report it, too.
    pub fn end_job(&mut self, job: &JobId, now: Moment) -> Result<(), Refused> {
        self.expire(now);
        let over = self.running() > self.size_in_effect();
        let ended = Record::JobEnded { job: job.clone() };
        if !self.jobs.remove(job) {
            if self.deferred.contains(&ended) {
                self.write_deferred()?;
            }
            return Ok(());
        }
        let written = self.write_or_defer(ended);
        self.notice(Notice::JobEnded(job.clone()));
        self.changed();
        match over {
            // Another worker may wait for the slot.
            true => self.beat(now),
            false => self.beat_soon(now),
        }
        self.check_drain(now);
        Ok(written?)
    }

    /// A worker that asks for no single job reports how many run, and the pool size that it keeps
    /// to from now on. A smaller pool is in effect only when it is reported here.
    ///
    /// # Errors
    /// [`Refused::Limit`] or [`Refused::Journal`].
    pub fn report_count(&mut self, running: u32, obeyed: u32, now: Moment) -> Result<(), Refused> {
        at_most(running)?;
        at_most(obeyed)?;
        self.expire(now);
        let count = Count { running, obeyed };
        if self.count == Some(count) {
            return Ok(());
        }
        let before = (self.size_in_effect(), self.running());
        self.write(&Record::Count { running, obeyed })?;
        self.count = Some(count);
        self.unnamed = 0;
        let first = !std::mem::replace(&mut self.jobs_known, true);
        self.changed();
        let after = (self.size_in_effect(), self.running());
        match first || after.0.max(after.1) < before.0.max(before.1) {
            true => self.beat(now),
            false => self.beat_soon(now),
        }
        self.check_drain(now);
        Ok(())
    }

    /// The worker has released a stream, revoked or of its own will; twice is once.
    ///
    /// # Errors
    /// [`Refused::NotHeld`] or [`Refused::Journal`].
    pub fn release_stream(
        &mut self,
        stream: &StreamKey,
        token: Token,
        now: Moment,
    ) -> Result<(), Refused> {
        self.expire(now);
        let held = self.streams.get(stream).map(|held| held.token);
        let lease = (stream.clone(), token);
        if held != Some(token) {
            return match self.released_by_worker.contains(&lease) {
                true => Ok(()),
                false => Err(Refused::NotHeld { held }),
            };
        }
        self.release(stream, token)?;
        self.released_by_worker.truncate(RELEASED_BY_WORKER_MAX - 1);
        self.released_by_worker.push_front(lease);
        self.changed();
        self.report_released(now);
        self.check_drain(now);
        Ok(())
    }
}

impl From<JournalError> for Refused {
    fn from(JournalError(why): JournalError) -> Self {
        Self::Journal(why)
    }
}

fn at_most(jobs: u32) -> Result<(), Refused> {
    match jobs <= JOBS_PER_WORKER_MAX {
        true => Ok(()),
        false => {
            Err(Refused::Limit { what: "jobs of a worker", max: u64::from(JOBS_PER_WORKER_MAX) })
        }
    }
}
