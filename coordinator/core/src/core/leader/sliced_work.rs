//! Work that grows with the fleet is done in slices, so that no turn is long. Invariant: a slice
//! decides about each stream by the state at that moment, so events between two slices do no harm.

use leasehold_types::{Moment, StreamKey, WorkerKey};

use super::Leader;
use super::sliced_tasks::{ClaimCheck, SlicedTask};
use crate::core::turn_budget::STEP;

/// Units that one connection costs when the desired state has changed.
const UNITS_PER_CONN: usize = 4;
/// Claim slots that are scanned per unit.
const SLOTS_PER_UNIT: usize = 16;

impl Leader {
    /// Continues the tasks, as far as the budget goes.
    pub(super) fn run_sliced_tasks(&mut self, now: Moment) {
        while self.replica.budget().is_left()
            && let Some(task) = self.sliced_tasks.next()
        {
            if let Some(rest) = self.step(task, now) {
                self.sliced_tasks.add(rest);
            }
        }
    }

    /// Does the next slice of a task; returns the rest of the task.
    fn step(&mut self, task: SlicedTask, now: Moment) -> Option<SlicedTask> {
        let most = STEP.min(self.replica.budget().left());
        match task {
            SlicedTask::ClaimsOfWorker { key, after, check } => {
                self.ledger.account(&key)?;
                let streams = self.ledger.streams_of(&key, after.as_ref());
                let streams: Vec<_> = streams.take(most).cloned().collect();
                self.replica.budget_mut().spend(streams.len().max(1));
                for stream in &streams {
                    match check {
                        ClaimCheck::Plan => self.reconcile_stream(stream, now),
                        ClaimCheck::Expiry => self.claim_due(stream, now),
                        ClaimCheck::PlanAndExpiry => {
                            self.reconcile_stream(stream, now);
                            self.ending_due(stream, now);
                        }
                    }
                }
                let ended = streams.len() < most;
                let after = streams.into_iter().next_back();
                (!ended).then_some(SlicedTask::ClaimsOfWorker { key, after, check })
            }
            SlicedTask::ClaimsOfSets { sets, slot } => {
                let ledger = &self.ledger;
                let end = (slot + most * SLOTS_PER_UNIT).min(ledger.claim_table().len());
                let claimed = ledger.claim_table().slots(slot..end).map(|(stream, _)| stream);
                let claimed = claimed.filter(|stream| sets.contains(&stream.set));
                let claimed: Vec<_> = claimed.cloned().collect();
                let is_over = end >= ledger.claim_table().len();
                self.replica.budget_mut().spend(claimed.len() + 1 + (end - slot) / SLOTS_PER_UNIT);
                for stream in &claimed {
                    self.reconcile_stream(stream, now);
                }
                (!is_over).then_some(SlicedTask::ClaimsOfSets { sets, slot: end })
            }
            SlicedTask::ReplannedStreams { set, spec, streams, next } => {
                let end = streams.len().min(next + most);
                self.replica.budget_mut().spend(end - next);
                for at in &streams[next..end] {
                    let stream = spec.streams[*at as usize].name.clone();
                    self.reconcile_stream(&StreamKey { set: set.clone(), stream }, now);
                }
                if end < streams.len() {
                    return Some(SlicedTask::ReplannedStreams { set, spec, streams, next: end });
                }
                self.replica.drop_spec(&set, spec);
                None
            }
            SlicedTask::PoolTargets { cluster, mut workers } => {
                let next = workers.split_off(workers.len().saturating_sub(most));
                self.replica.budget_mut().spend(next.len().max(1));
                for worker in next {
                    self.retarget(WorkerKey { cluster: cluster.clone(), worker });
                }
                if !workers.is_empty() {
                    return Some(SlicedTask::PoolTargets { cluster, workers });
                }
                self.hand_out_free(&cluster);
                None
            }
            SlicedTask::Connections { after } => {
                let most = most.div_ceil(UNITS_PER_CONN);
                let conns = self.sessions.after(after, most);
                self.replica.budget_mut().spend(UNITS_PER_CONN * conns.len().max(1));
                let ended = conns.len() < most;
                let after = conns.last().map(|(conn, _)| *conn);
                for (_, key) in conns {
                    self.register_if_needed(&key);
                    self.outgoing.mark(key);
                }
                (!ended).then_some(SlicedTask::Connections { after })
            }
            SlicedTask::BlockedWorkers { after } => {
                let waiting = self.outgoing.blocked_after(after.as_ref(), most);
                self.replica.budget_mut().spend(waiting.len().max(1));
                for key in &waiting {
                    self.unblock(key);
                }
                let ended = waiting.len() < most;
                let after = waiting.into_iter().next_back();
                (!ended).then_some(SlicedTask::BlockedWorkers { after })
            }
        }
    }

    /// Has the grants of a worker that waits for streams tried again.
    pub(super) fn unblock(&mut self, key: &WorkerKey) {
        self.outgoing.unblock(key);
        if let Some(worker) = self.worker_mut(key)
            && worker.streams_mut().unblock()
        {
            self.outgoing.mark(key.clone());
        }
    }
}
