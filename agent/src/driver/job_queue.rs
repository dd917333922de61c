//! Jobs that wait for a slot, first come, first served.

use std::collections::VecDeque;
use std::sync::Arc;

use leasehold_agent_core::{Holder, Refused};
use leasehold_types::{JobId, Moment, Token};

use super::handle::Reply;
use crate::journal::AgentJournal;
use crate::metrics::Metrics;
use crate::refusal::reason;

/// Jobs that may wait for a slot at once: each may have a connection of its own, and the rest of
/// the connections are for what frees slots.
const WAITERS_MAX: usize = 512;

/// A job that wants to begin.
#[derive(Debug)]
pub(super) struct QueuedJob {
    pub(super) job: JobId,
    pub(super) until: Moment,
    pub(super) reply: Reply<Token>,
}

/// Jobs that wait.
#[derive(Debug, Default)]
pub(super) struct JobQueue {
    queue: VecDeque<QueuedJob>,
    /// A slot may have come free.
    recheck: bool,
}

impl JobQueue {
    /// Lets a job begin, refuses it, or lets it wait.
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
        let refused = Refused::Limit { what: "jobs that wait", max: WAITERS_MAX as u64 };
        metrics.count_refused(reason(&refused));
        let _ = waiter.reply.send(Err(refused));
    }

    /// Something has happened that may have freed a slot.
    pub(super) fn recheck(&mut self) {
        self.recheck = true;
    }

    /// When the next of them has waited long enough.
    pub(super) fn next_end(&self) -> Option<Moment> {
        self.queue.iter().map(|waiter| waiter.until).min()
    }

    /// Serves those whose turn or time has come; says whether it asked the holder anything.
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
        // A worker that has hung up must not be given a slot that it will never end.
        let present = waiting.into_iter().filter(|waiter| !waiter.reply.is_closed());
        self.queue = present.filter_map(|waiter| attempt(holder, waiter, metrics, now)).collect();
        asked
    }
}

/// Asks the holder; gives the waiter back where it is to wait on.
fn attempt(
    holder: &mut Holder<AgentJournal>,
    waiter: QueuedJob,
    metrics: &Arc<Metrics>,
    now: Moment,
) -> Option<QueuedJob> {
    let answer = holder.begin_job(waiter.job.clone(), now);
    if let Err(refused) = &answer {
        let may_change = matches!(refused, Refused::NoSlot { .. } | Refused::NoLease);
        if may_change && waiter.until > now {
            return Some(waiter);
        }
        metrics.count_refused(reason(refused));
    }
    let _ = waiter.reply.send(answer);
    None
}
