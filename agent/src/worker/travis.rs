//! The adapter `travis`: an unmodified Travis worker, controlled through its remote controller.
//!
//! Invariant: the worker's pause is toggled at most once per process, except for a drain: a second
//! toggle ends the process.

pub(crate) mod controller;
pub(crate) mod pool;
mod record;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use tokio::time::Instant;

use super::polled::Polled;
use super::sizing::{Adjustment, Observation, Target};
use crate::clock;
use crate::config::TravisAdapter;
use controller::{Info, OrderResult};
use pool::{Pause, Pool};
use record::Record;

/// Refused connections in a row after which the worker's process counts as ended.
const REFUSALS: u32 = 2;
/// The tolerance for a clock adjustment in the worker's uptime.
const SLACK: Duration = Duration::from_secs(2);

/// One Travis worker.
#[derive(Debug)]
pub(crate) struct Travis {
    adapter: TravisAdapter,
    /// The file that records that the pause was toggled.
    record: Option<PathBuf>,
    pool: Pool,
    /// A worker has answered this agent or the previous one.
    seen: bool,
    /// The time of the last poll, and the uptime that it returned.
    last: Option<(Instant, Option<Duration>)>,
    refusals: u32,
}

impl Travis {
    /// A worker that may run `bound` jobs by the orders of a previous agent.
    pub(crate) fn new(adapter: TravisAdapter, record: Option<PathBuf>, bound: Option<u32>) -> Self {
        let pool = bound.map_or_else(Pool::default, Pool::inherited);
        Self { adapter, record, pool, seen: bound.is_some(), last: None, refusals: 0 }
    }

    /// Connection refused: the worker has not started, or its process has exited.
    fn note_refused(&mut self) -> anyhow::Result<Observation> {
        self.refusals = self.refusals.saturating_add(1);
        if !self.seen || self.refusals < REFUSALS {
            bail!("{}: connection refused: nothing listens there", self.adapter.url);
        }
        self.last = None;
        if self.refusals == REFUSALS {
            tracing::info!("the worker's process has exited, and its jobs with it");
            self.pool = self.pool.for_next_process();
        }
        Ok(Observation::Ended)
    }

    /// Checks whether this is the process of the last poll.
    fn identify_process(&mut self, info: &Info, asked: Instant) {
        let another = match (self.last, info.uptime) {
            (Some((then, Some(before))), Some(now)) => {
                // The uptime may have any value.
                let since = asked.saturating_duration_since(then);
                now.saturating_add(SLACK) < before.saturating_add(since)
            }
            _ => false,
        };
        if another {
            tracing::info!("the worker has restarted: the jobs of the previous process have ended");
            self.pool = self.pool.for_next_process();
        }
        if another || self.last.is_none() {
            self.note_new_process(info);
        }
        self.last = Some((asked, info.uptime));
    }

    /// Handles a process that this agent has not polled before.
    fn note_new_process(&mut self, info: &Info) {
        self.seen = true;
        let record = self.record.as_deref().and_then(Record::read);
        let same = |record: &Record| info.uptime.is_some_and(|up| record.is_of(started_ms(up)));
        if let Some(record) = record.filter(same) {
            let pause = if record.confirmed { Pause::Toggled } else { Pause::Asked };
            self.pool.set_pause(pause);
        } else if info.figures.expected > 0 {
            let processors = info.figures.expected;
            tracing::warn!(
                processors,
                "the worker runs processors that this agent did not ask for: its environment \
                 should have TRAVIS_WORKER_POOL_SIZE=0"
            );
        }
    }

    /// Records a change of the pause for the next agent.
    fn note_change(&self, before: Pause) {
        if self.pool.pause() == before {
            return;
        }
        let (Some(path), Some((_, Some(uptime)))) = (&self.record, self.last) else { return };
        let confirmed = match self.pool.pause() {
            Pause::Never => return Record::remove(path),
            Pause::Asked => false,
            Pause::Toggled => true,
        };
        let written = Record { started_ms: started_ms(uptime), confirmed }.write(path);
        if let Err(error) = written {
            // A successor may toggle it again, which ends the worker after its jobs.
            let path = path.display();
            tracing::warn!(%error, %path, "cannot record that the worker is paused");
        }
    }
}

impl Polled for Travis {
    async fn poll(&mut self) -> anyhow::Result<Observation> {
        let asked = Instant::now();
        let Some(info) = controller::poll(&self.adapter).await? else {
            return self.note_refused();
        };
        self.refusals = 0;
        self.identify_process(&info, asked);
        let before = self.pool.pause();
        let observation = self.pool.observe(info.figures);
        self.note_change(before);
        Ok(observation)
    }

    fn adjustment(&self, target: Target) -> Adjustment {
        self.pool.adjustment(target)
    }

    async fn order(&mut self, size: u32, target: Target) -> anyhow::Result<()> {
        let order = self.pool.order(size, target.draining);
        let before = self.pool.clone();
        self.pool.sending(order);
        self.note_change(before.pause());
        let asked = self.pool.pause();
        let result = controller::order(&self.adapter, order).await;
        let outcome = match result {
            OrderResult::Done => {
                tracing::info!(?order, "set the worker's number of processors");
                self.pool.answered(order);
                Ok(())
            }
            OrderResult::NotDone(error) => {
                self.pool.not_sent(&before);
                Err(error)
            }
            OrderResult::Unknown(error) => {
                self.pool.answer_lost(order);
                Err(error)
            }
        };
        self.note_change(asked);
        outcome
    }
}

/// When a process with this uptime started, in milliseconds since 1970.
fn started_ms(uptime: Duration) -> u64 {
    let uptime = u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX);
    clock::unix_millis().saturating_sub(uptime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Secret, TravisAuth};
    use pool::Figures;

    fn travis() -> Travis {
        let url = "http://127.0.0.1:1".parse().expect("a URL");
        let auth = TravisAuth::Given(Secret::from("a:b"));
        let adapter = TravisAdapter { url, auth, interval: Duration::from_secs(1) };
        Travis::new(adapter, None, None)
    }

    #[test]
    fn identifies_a_process_by_its_uptime_even_if_the_value_is_absurd() {
        let info = |uptime| Info { figures: Figures::default(), uptime: Some(uptime) };
        let mut travis = travis();
        let begin = Instant::now();
        travis.identify_process(&info(Duration::MAX), begin);
        let later = begin + Duration::from_secs(3600);
        travis.pool.set_pause(Pause::Toggled);
        travis.identify_process(&info(Duration::MAX), later);
        assert_eq!(travis.pool.pause(), Pause::Toggled, "the same process");
        travis.identify_process(&info(Duration::ZERO), later);
        assert_eq!(travis.pool.pause(), Pause::Never, "a new process");
    }
}
