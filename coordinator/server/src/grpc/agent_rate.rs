//! How fast one worker's agent may send. An agent that sends faster waits: its messages stay in its
//! own connection. The rate belongs to the worker, so that dialling again does not renew it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_types::WorkerKey;
use leasehold_types::limits::{
    JOBS_PER_WORKER_MAX, MESSAGE_BYTES_MAX, STREAMS_PER_WORKER_MAX, WORKERS_MAX,
};
use tokio::time::Instant;

/// Messages that an agent may send at once: each end of a job may be one, and all jobs of a worker
/// may end together.
const MESSAGES_BURST: u32 = JOBS_PER_WORKER_MAX;
/// The time that earns one more message: 500 a second, as if the jobs of the largest pool took 20 s
/// each. An agent that reports what nobody waits for sends 10 a second.
const MESSAGE_PERIOD: Duration = Duration::from_millis(2);
/// The cost of a new session in messages: its report and its snapshot list everything.
const SESSION_COST: u32 = 100;
/// Releases that an agent may send at once: twice all that it may own.
const RELEASES_BURST: u32 = 2 * STREAMS_PER_WORKER_MAX as u32;
/// The time that earns one more release: 2,000 a second.
const RELEASE_PERIOD: Duration = Duration::from_micros(500);
/// KiB that an agent may send at once: the longest message.
const KIB_BURST: u32 = (MESSAGE_BYTES_MAX >> 10) as u32;
/// The time that earns one more KiB: 1 MiB a second.
const KIB_PERIOD: Duration = Duration::from_micros(1_000_000 >> 10);
/// The most workers whose rates are remembered. Rates of agents that were quiet are forgotten.
const AGENTS_MAX: usize = 2 * WORKERS_MAX;
/// There is at most one warning about an agent in this time.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The rates of all agents.
#[derive(Debug, Default)]
pub(crate) struct AgentRates(Mutex<HashMap<WorkerKey, Arc<Mutex<Used>>>>);

/// How fast one agent may send.
#[derive(Clone, Debug)]
pub(crate) struct AgentRate(Arc<Mutex<Used>>);

/// What an agent has used.
#[derive(Debug)]
struct Used {
    messages: Allowance,
    releases: Allowance,
    kib: Allowance,
    warned_at: Option<Instant>,
}

impl Used {
    fn nothing(now: Instant) -> Self {
        let messages = Allowance::new(MESSAGES_BURST, MESSAGE_PERIOD, now);
        let releases = Allowance::new(RELEASES_BURST, RELEASE_PERIOD, now);
        let kib = Allowance::new(KIB_BURST, KIB_PERIOD, now);
        Self { messages, releases, kib, warned_at: None }
    }

    fn is_nothing(&self, now: Instant) -> bool {
        [&self.messages, &self.releases, &self.kib].iter().all(|used| used.is_unused(now))
    }
}

impl AgentRates {
    /// The rate of a worker's agent that opens a session now.
    pub(crate) fn open(&self, worker: &WorkerKey, now: Instant) -> AgentRate {
        let mut rates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = rates.get(worker) {
            return AgentRate(Arc::clone(known));
        }
        if rates.len() >= AGENTS_MAX {
            rates.retain(|_, used| {
                let used = used.lock().unwrap_or_else(PoisonError::into_inner);
                !used.is_nothing(now)
            });
        }
        let rate = Arc::new(Mutex::new(Used::nothing(now)));
        if rates.len() < AGENTS_MAX {
            rates.insert(worker.clone(), Arc::clone(&rate));
        }
        AgentRate(rate)
    }
}

impl AgentRate {
    /// Whether to warn that the agent must wait.
    pub(crate) fn should_warn(&self, now: Instant) -> bool {
        self.used(|used| {
            let is_due = used.warned_at.is_none_or(|last| now - last >= WARNING_INTERVAL);
            if is_due {
                used.warned_at = Some(now);
            }
            is_due
        })
    }

    /// Counts a new session. Returns until when it must wait, if it must.
    pub(crate) fn session(&self, now: Instant) -> Option<Instant> {
        self.used(|used| used.messages.take(SESSION_COST, now))
    }

    /// Counts a message of this many bytes that releases this many streams. Returns until when the
    /// next one must wait, if it must.
    pub(crate) fn message(&self, bytes: usize, releases: usize, now: Instant) -> Option<Instant> {
        let releases = u32::try_from(releases).unwrap_or(u32::MAX);
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
        self.used(|used| {
            let messages = used.messages.take(1, now);
            messages.max(used.releases.take(releases, now)).max(used.kib.take(kib, now))
        })
    }

    fn used<T>(&self, take: impl FnOnce(&mut Used) -> T) -> T {
        take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A number that may be used at once, and is earned again one by one (the generic cell rate
/// algorithm).
#[derive(Debug)]
struct Allowance {
    burst: u32,
    period: Duration,
    /// When all that was used is earned again.
    earned_at: Instant,
}

impl Allowance {
    fn new(burst: u32, period: Duration, now: Instant) -> Self {
        Self { burst, period, earned_at: now }
    }

    /// Uses some of it. Returns when that much is there, if it is not there now.
    fn take(&mut self, count: u32, now: Instant) -> Option<Instant> {
        self.earned_at = self.earned_at.max(now) + self.period.saturating_mul(count);
        let there = self.earned_at.checked_sub(self.period.saturating_mul(self.burst))?;
        (there > now).then_some(there)
    }

    fn is_unused(&self, now: Instant) -> bool {
        self.earned_at <= now
    }
}

#[cfg(test)]
mod tests {
    use leasehold_types::{ClusterName, WorkerName};

    use super::*;

    fn worker(name: &str) -> WorkerKey {
        let cluster = ClusterName::new("builds").expect("a name");
        WorkerKey { cluster, worker: WorkerName::new(name).expect("a name") }
    }

    /// Long after the clock began.
    fn start() -> Instant {
        Instant::now() + Duration::from_secs(3_600)
    }

    #[test]
    fn a_burst_is_free_and_what_follows_waits_its_turn() {
        let (rates, now) = (AgentRates::default(), start());
        let rate = rates.open(&worker("w-0"), now);
        let free = (0..MESSAGES_BURST).all(|_| rate.message(0, 0, now).is_none());
        assert!(free, "every job of a worker may end at once");
        assert_eq!(rate.message(0, 0, now), Some(now + MESSAGE_PERIOD));
        // Dialling again does not help, and no other agent waits.
        let again = rates.open(&worker("w-0"), now);
        assert_eq!(again.session(now), Some(now + MESSAGE_PERIOD * (1 + SESSION_COST)));
        assert_eq!(rates.open(&worker("w-1"), now).session(now), None);
        let later = now + MESSAGE_PERIOD * (2 + SESSION_COST);
        assert_eq!(rate.message(0, 0, later), None, "what was used is earned again");
    }

    #[test]
    fn a_worker_may_release_all_its_streams_at_once() {
        let (rates, now) = (AgentRates::default(), start());
        let rate = rates.open(&worker("w-0"), now);
        for _ in 0..2 {
            assert_eq!(rate.message(0, STREAMS_PER_WORKER_MAX, now), None);
        }
        assert_eq!(rate.message(0, 4, now), Some(now + RELEASE_PERIOD * 4));
    }

    #[test]
    fn an_agent_may_send_the_longest_message_at_once_and_then_waits() {
        let (rates, now) = (AgentRates::default(), start());
        let rate = rates.open(&worker("w-0"), now);
        assert_eq!(rate.message(MESSAGE_BYTES_MAX, 0, now), None);
        assert_eq!(rate.message(10 << 10, 0, now), Some(now + KIB_PERIOD * 10));
    }

    #[test]
    fn quiet_agents_are_forgotten() {
        let (rates, now) = (AgentRates::default(), start());
        for number in 0..AGENTS_MAX {
            rates.open(&worker(&format!("w-{number}")), now).session(now);
        }
        rates.open(&worker("late"), now);
        assert_eq!(rates.0.lock().expect("the lock").len(), AGENTS_MAX);
        rates.open(&worker("late"), now + MESSAGE_PERIOD * SESSION_COST);
        assert_eq!(rates.0.lock().expect("the lock").len(), 1);
    }
}
