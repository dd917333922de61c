//! A drain as the driver sees it: who waits for it, and what the log says of it.

use std::time::Duration;

use leasehold_agent_core::Outstanding;
use leasehold_types::{Moment, duration};
use tokio::sync::oneshot;

use super::{Driver, Outcome, outstanding};

/// Callers that may wait for the drain at once.
const DRAIN_WAITERS_MAX: usize = 64;
/// How often the log reports the progress of a drain.
const PROGRESS: Duration = Duration::from_secs(5);

/// The state of a drain, for the log.
#[derive(Debug, Default)]
pub(super) struct Drain {
    /// How long a drain may take, from the command line or else from the coordinator.
    pub(super) limit: Option<Duration>,
    pub(super) fixed: bool,
    pub(super) since: Option<Moment>,
    pub(super) logged_at: Moment,
    /// The deadline has passed, and the agent keeps waiting.
    pub(super) overdue: bool,
    /// The agent keeps running after the drain.
    pub(super) stays_after_drain: bool,
    /// How long the agent then tries to report that it leaves.
    pub(super) goodbye_max: Duration,
    /// The log already says that it tries.
    pub(super) goodbye_logged: bool,
    /// The log says if that failed; `leave` says it in its own error.
    pub(super) warns_unacknowledged: bool,
}

impl Driver {
    pub(super) fn describe_drain(&self, outstanding: &Outstanding, now: Moment) -> String {
        outstanding::describe_drain(outstanding, &self.running_jobs(now))
    }

    pub(super) fn begin_drain(&mut self, ended: Option<oneshot::Sender<u32>>, now: Moment) {
        self.holder.drain(now);
        let Some(ended) = ended else { return };
        let outcome = *self.outcome.borrow();
        match outcome {
            Some(Outcome::Drained { jobs_left, .. }) => {
                let _ = ended.send(jobs_left);
            }
            // Dropping the sender is the answer: the drain will not end.
            Some(Outcome::Superseded) => {}
            None if self.drain.overdue => {
                let _ = ended.send(self.holder.running());
            }
            None => {
                self.drain_waiters.retain(|waiter| !waiter.is_closed());
                if self.drain_waiters.len() < DRAIN_WAITERS_MAX {
                    self.drain_waiters.push(ended);
                }
            }
        }
    }

    pub(super) fn end_drain(&mut self, jobs_left: u32, reported: bool, now: Moment) {
        let took = self.drain.since.map_or(Duration::ZERO, |since| now.since(since));
        let is_unacknowledged =
            !reported && self.drain.goodbye_logged && self.drain.warns_unacknowledged;
        match jobs_left {
            0 if is_unacknowledged => {}
            0 => {
                let took = duration::format_short(took);
                tracing::info!(%took, "the drain has ended: no job runs and no stream is held");
            }
            _ => tracing::warn!(
                jobs_left,
                took = %duration::format_short(took),
                "the drain's deadline has passed: jobs still run, and the agent does not kill them"
            ),
        }
        if is_unacknowledged {
            let took = duration::format_short(took);
            tracing::warn!(%took, "{}", unacknowledged(self.process.state_dir.as_deref()));
        }
        if self.drain.stays_after_drain {
            tracing::info!("the agent stays until it gets a signal");
        }
        self.answer_drain_waiters(jobs_left);
        self.outcome.send_replace(Some(Outcome::Drained { jobs_left, reported }));
    }

    /// Logs once that the drain is done but no coordinator can be reached: it would look like a
    /// hang.
    fn log_goodbye(&mut self) {
        let waits = !self.drain.goodbye_logged && self.holder.outstanding().goodbye;
        if waits && self.outcome.borrow().is_none() {
            self.drain.goodbye_logged = true;
            let at_most = duration::format_short(self.drain.goodbye_max);
            tracing::info!(
                %at_most,
                "draining: nothing is left; waiting for a coordinator, to report that the worker \
                 leaves"
            );
        }
    }

    pub(super) fn answer_drain_waiters(&mut self, jobs_left: u32) {
        for waiter in self.drain_waiters.drain(..) {
            let _ = waiter.send(jobs_left);
        }
    }

    pub(super) fn log_drain_progress(&mut self, now: Moment) {
        if self.notices.draining() && self.drain.since.is_none() {
            self.drain.since = Some(now);
            self.drain.logged_at = now;
        }
        let Some(since) = self.drain.since else { return };
        self.log_goodbye();
        if self.outcome.borrow().is_some() || now.since(self.drain.logged_at) < PROGRESS {
            return;
        }
        self.drain.logged_at = now;
        let outstanding = self.holder.outstanding();
        let left = self.drain.limit.map(|limit| (since + limit).since(now));
        let left = match left {
            _ if self.drain.overdue => "past the deadline".into(),
            None => "no deadline known".into(),
            Some(left) => duration::format_short(left) + " left",
        };
        let (jobs, streams) = (outstanding.jobs, outstanding.streams);
        let what = self.describe_drain(&outstanding, now);
        tracing::info!(jobs, streams, "draining: {what}, {left}");
    }
}

/// The worker leaves, and the coordinators still count it: what frees its slots.
fn unacknowledged(state_dir: Option<&str>) -> String {
    let freed = match state_dir {
        Some(folder) => format!(
            "an agent with --state-dir {folder} is started again, or `leasehold-agent leave` is \
             run with it"
        ),
        None => "`leasehold gone` declares it gone".into(),
    };
    format!(
        "the worker leaves, but no coordinator has acknowledged it: its slots stay counted until \
         {freed} (on Kubernetes: until its pod has ended)"
    )
}
