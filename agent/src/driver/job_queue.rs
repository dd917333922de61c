//! Jobs that wait for a slot, in the order of their arrival.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use leasehold_agent_core::{Holder, RequestError};
use leasehold_types::{JobId, Moment, Token};

use super::handle::Reply;
use crate::journal::AgentJournal;
use crate::metrics::Metrics;
use crate::refusal::reason;

/// Jobs that may wait for a slot at once. Each may use a connection of its own; the other
/// connections stay free for requests that end jobs.
const WAITERS_MAX: usize = 512;
/// How long a job waits before the log says so.
const LOGGED_AFTER: Duration = Duration::from_secs(3);

/// A job that waits to begin.
#[derive(Debug)]
pub(super) struct QueuedJob {
    pub(super) job: JobId,
    pub(super) since: Moment,
    pub(super) until: Moment,
    pub(super) reply: Reply<Token>,
}

/// Jobs that wait.
#[derive(Debug, Default)]
pub(super) struct JobQueue {
    queue: VecDeque<QueuedJob>,
    /// A slot may be free: try the queue again.
    recheck: bool,
    /// The worker's slots when the log last said that jobs wait.
    logged_slots: Option<u32>,
}

impl JobQueue {
    /// Begins a job, refuses it, or queues it.
    pub(super) fn begin(
        &mut self,
        holder: &mut Holder<AgentJournal>,
        waiter: QueuedJob,
        metrics: &Arc<Metrics>,
        now: Moment,
    ) {
        let Some(waiter) = attempt(holder, waiter, metrics, now) else { return };
        if self.queue.len() < WAITERS_MAX {
            self.queue.push_back(waiter);
            return;
        }
        let refused = RequestError::Limit { what: "waiting jobs", max: WAITERS_MAX as u64 };
        metrics.count_refused(reason(&refused));
        let _ = waiter.reply.send(Err(refused));
    }

    /// Notes that a slot may be free.
    pub(super) fn recheck(&mut self) {
        self.recheck = true;
    }

    /// When the wait of the next queued job ends.
    pub(super) fn next_end(&self) -> Option<Moment> {
        self.queue.iter().map(|waiter| waiter.until).min()
    }

    /// Logs that jobs wait for a slot, with the number of slots that the worker has been granted:
    /// once, and again where that has changed. A worker that fails its check gets no slot, and the
    /// log says so already.
    pub(super) fn log_wait(&mut self, holder: &Holder<AgentJournal>, now: Moment) {
        let mut present = self.queue.iter().filter(|waiter| !waiter.reply.is_closed());
        let waits = present.any(|waiter| now.since(waiter.since) >= LOGGED_AFTER);
        if !waits || holder.failure().is_some() {
            return;
        }
        let slots = holder.outstanding().slots_max;
        if self.logged_slots != Some(slots) {
            self.logged_slots = Some(slots);
            tracing::info!(slots, "jobs wait for a slot");
        }
    }

    /// Tries the queue again if a slot may be free or a wait has ended. Returns whether it sent the
    /// holder anything.
    pub(super) fn serve(
        &mut self,
        holder: &mut Holder<AgentJournal>,
        metrics: &Arc<Metrics>,
        now: Moment,
    ) -> bool {
        let due = self.next_end().is_some_and(|end| end <= now);
        if !std::mem::take(&mut self.recheck) && !due {
            return false;
        }
        let waiting = std::mem::take(&mut self.queue);
        let asked = !waiting.is_empty();
        // A caller that has disconnected would never end the job.
        let present = waiting.into_iter().filter(|waiter| !waiter.reply.is_closed());
        self.queue = present.filter_map(|waiter| attempt(holder, waiter, metrics, now)).collect();
        asked
    }
}

/// Tries to begin the job. Returns the waiter if it must keep waiting.
fn attempt(
    holder: &mut Holder<AgentJournal>,
    waiter: QueuedJob,
    metrics: &Arc<Metrics>,
    now: Moment,
) -> Option<QueuedJob> {
    let answer = holder.begin_job(waiter.job.clone(), now);
    if let Err(refused) = &answer {
        let may_change = matches!(
            refused,
            RequestError::NoSlot { .. } | RequestError::NoLease { .. } | RequestError::Failing
        );
        if may_change && waiter.until > now {
            return Some(waiter);
        }
        metrics.count_refused(reason(refused));
    }
    let _ = waiter.reply.send(answer);
    None
}
