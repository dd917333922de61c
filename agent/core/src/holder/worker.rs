//! The worker's requests and reports. No job is admitted without a valid lease.

use leasehold_types::limits::JOBS_PER_WORKER_MAX;
use leasehold_types::mutation::{self, Mutation};
use leasehold_types::{JobId, Moment, StartId, StreamKey, Token};

use super::{Count, Holder};
use crate::effect::Notice;
use crate::journal::{Journal, JournalError, Record};
use crate::lease::{LeaseKinds, RequestError};

/// The most leases that are remembered as released by the worker.
const RELEASED_BY_WORKER_MAX: usize = 256;

impl<J: Journal> Holder<J> {
    /// The worker's process reports its start, and how many jobs already run in it. A new start id
    /// ends the jobs of the previous process, releases its streams, and for an agent that stays
    /// cancels a drain that the coordinator did not order. The same start id with fewer jobs
    /// reports the end of jobs whose ids the agent does not know.
    ///
    /// # Errors
    /// [`RequestError::Limit`] or [`RequestError::Journal`].
    pub fn start_worker(
        &mut self,
        start: StartId,
        running: u32,
        now: Moment,
    ) -> Result<(), RequestError> {
        if self.start.as_ref() == Some(&start) {
            return self.fewer_unnamed(running, now);
        }
        at_most(running)?;
        self.resume(now)?;
        // One record for both, so that a kill between two writes leaves no uncounted jobs.
        self.write(&Record::WorkerStarted { start: start.clone(), running })?;
        self.start = Some(start);
        self.promised = None;
        self.shown = LeaseKinds::NONE;
        self.jobs.clear();
        self.unnamed = running;
        self.asks_for_jobs = false;
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

    fn fewer_unnamed(&mut self, running: u32, now: Moment) -> Result<(), RequestError> {
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

    /// The worker asks to start a job. Idempotent for an id: its token stays that under which it
    /// began.
    ///
    /// # Errors
    /// Every reason but [`RequestError::NotHeld`] and [`RequestError::AsksForJobs`].
    pub fn begin_job(&mut self, job: JobId, now: Moment) -> Result<Token, RequestError> {
        self.expire(now);
        let token = self.pool.map_or(Token::default(), |pool| pool.token);
        if let Some(began) = self.jobs.get(&job) {
            return Ok(began.unwrap_or(token));
        }
        // A job with an id would come on top of the counted ones, which already include it.
        if let Some(Count { running, in_effect }) = self.count {
            return Err(RequestError::Counted { running, in_effect });
        }
        let (size, running) = (self.size(now), self.running());
        if self.draining() && size == 0 {
            return Err(RequestError::Draining);
        }
        if self.is_failing() && size == 0 {
            return Err(RequestError::Failing);
        }
        if self.pool.is_none() || (size == 0 && now >= self.renewed_until) {
            return Err(RequestError::NoLease { newer: self.newer_generation });
        }
        if running >= size {
            return Err(RequestError::NoSlot { size, running, newer: self.newer_generation });
        }
        at_most(running + 1)?;
        // A deferred end of an earlier job with this id must not be written after this begin.
        if !mutation::on(Mutation::JobBeforeOwed) {
            self.write_deferred()?;
        }
        if !mutation::on(Mutation::JobUnwritten) {
            self.write(&Record::JobBegan { job: job.clone(), token: Some(token) })?;
        }
        self.notice(Notice::JobBegan(job.clone()));
        self.asks_for_jobs = true;
        self.jobs.insert(job, Some(token));
        self.changed();
        self.beat_soon(now);
        Ok(token)
    }

    /// A job has ended. Does nothing for an id that does not run.
    ///
    /// # Errors
    /// [`RequestError::Journal`] until it is recorded, although its slot is free at once: a
    /// successor without the record counts the job as running, so the worker must repeat the
    /// report.
    pub fn end_job(&mut self, job: &JobId, now: Moment) -> Result<(), RequestError> {
        self.expire(now);
        let over = self.running() > self.size_in_effect();
        let ended = Record::JobEnded { job: job.clone() };
        if self.jobs.remove(job).is_none() {
            if self.deferred.contains(&ended) {
                self.write_deferred()?;
            }
            return Ok(());
        }
        let written = self.write_or_defer(ended);
        self.notice(Notice::JobEnded(job.clone()));
        self.changed();
        if over {
            // Another worker may wait for the slot.
            self.beat(now);
        } else {
            self.beat_soon(now);
        }
        self.check_drain(now);
        Ok(written?)
    }

    /// A worker that counts its own jobs reports how many run, and the pool size that it uses from
    /// now on. A smaller pool is in effect only once it is reported here.
    ///
    /// # Errors
    /// [`RequestError::AsksForJobs`], [`RequestError::Limit`] or [`RequestError::Journal`].
    pub fn report_count(
        &mut self,
        running: u32,
        in_effect: u32,
        now: Moment,
    ) -> Result<(), RequestError> {
        // Such a worker reports no other count, so the reported size would stay in effect for ever.
        if self.count.is_none() && (self.asks_for_jobs || !self.jobs.is_empty()) {
            return Err(RequestError::AsksForJobs { running: self.running() });
        }
        self.observe_count(running, in_effect, now)
    }

    /// The same from an adapter, which counts the worker's jobs whatever the worker has reported.
    ///
    /// # Errors
    /// [`RequestError::Limit`] or [`RequestError::Journal`].
    pub fn observe_count(
        &mut self,
        running: u32,
        in_effect: u32,
        now: Moment,
    ) -> Result<(), RequestError> {
        at_most(running)?;
        at_most(in_effect)?;
        self.expire(now);
        let count = Count { running, in_effect };
        if self.count == Some(count) {
            return Ok(());
        }
        let before = (self.size_in_effect(), self.running());
        self.write(&Record::Count { running, in_effect })?;
        self.count = Some(count);
        self.unnamed = 0;
        let first = !std::mem::replace(&mut self.jobs_known, true);
        self.changed();
        let after = (self.size_in_effect(), self.running());
        if first || after.0.max(after.1) < before.0.max(before.1) {
            self.beat(now);
        } else {
            self.beat_soon(now);
        }
        self.check_drain(now);
        Ok(())
    }

    /// The worker has released a stream, revoked or not. Idempotent.
    ///
    /// # Errors
    /// [`RequestError::NotHeld`] or [`RequestError::Journal`].
    pub fn release_stream(
        &mut self,
        stream: &StreamKey,
        token: Token,
        now: Moment,
    ) -> Result<(), RequestError> {
        self.expire(now);
        let held = self.streams.get(stream).map(|held| held.token);
        let lease = (stream.clone(), token);
        if held != Some(token) {
            return if self.released_by_worker.contains(&lease) {
                Ok(())
            } else {
                Err(RequestError::NotHeld { held })
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

impl From<JournalError> for RequestError {
    fn from(JournalError(why): JournalError) -> Self {
        Self::Journal(why)
    }
}

fn at_most(jobs: u32) -> Result<(), RequestError> {
    if jobs <= JOBS_PER_WORKER_MAX {
        Ok(())
    } else {
        Err(RequestError::Limit { what: "jobs of a worker", max: u64::from(JOBS_PER_WORKER_MAX) })
    }
}
