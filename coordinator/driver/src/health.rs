//! Liveness and readiness. A replica is alive while its driver takes turns, whether it leads or
//! not. It is ready when it has read the manifests and knows whether it leads.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_coordinator_core::turn::Watchdog;
use leasehold_types::Moment;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

/// A driver that has taken no turn for longer is not alive: a healthy one takes a turn at least
/// every [`crate::driver::TICK`].
const TURN_MAX: Duration = Duration::from_secs(10);

/// Whether a driver makes progress; reading it never waits for the driver.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    stalled: watch::Sender<bool>,
    /// Why this replica cannot lead until a person fixes something.
    trouble: Mutex<Option<String>>,
}

impl Progress {
    /// Records that the driver took an event, settled, or ran an effect.
    pub fn record(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets why this replica cannot lead until a person fixes something; `None` if it can lead.
    pub fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the driver has done nothing for a second. A leader then does not renew its term, so
    /// that a standby takes over.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        *self.stalled.borrow()
    }

    /// Waits until the driver has done nothing for a second.
    pub async fn stalled(&self) {
        // `self` owns the sender, so the wait cannot fail.
        let _ = self.stalled.subscribe().wait_for(|stalled| *stalled).await;
    }

    /// Runs the watchdog of the driver; never returns.
    pub async fn watch(&self) {
        let mut watchdog = Watchdog::default();
        let mut checks = interval(Watchdog::INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            checks.tick().await;
            self.set_stalled(!watchdog.check(self.done.load(Ordering::Relaxed)));
        }
    }

    /// Every session waits for this value, so only a change wakes them.
    fn set_stalled(&self, stalled: bool) {
        let changed = self.stalled.send_if_modified(|was| mem::replace(was, stalled) != stalled);
        match (changed, stalled) {
            (true, true) => tracing::error!("the driver hangs: all sessions are ended"),
            (true, false) => tracing::warn!("the driver makes progress again"),
            (false, _) => {}
        }
    }
}

/// The health of one replica; the driver updates it.
#[derive(Debug)]
pub struct Health {
    turn: AtomicU64,
    manifests: AtomicBool,
    role: AtomicBool,
    stopping: AtomicBool,
    progress: Arc<Progress>,
}

impl Health {
    /// The health of a driver that starts at `now`.
    #[must_use]
    pub fn new(now: Moment, progress: Arc<Progress>) -> Self {
        Self {
            progress,
            turn: AtomicU64::new(now.0),
            manifests: AtomicBool::new(false),
            role: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        }
    }

    /// Records that the driver took a turn.
    pub fn record_turn(&self, now: Moment) {
        self.turn.store(now.0, Ordering::Relaxed);
    }

    /// Records that the manifests were read.
    pub fn set_manifests_read(&self) {
        self.manifests.store(true, Ordering::Relaxed);
    }

    /// Records that this replica knows whether it leads.
    pub fn set_role_known(&self) {
        self.role.store(true, Ordering::Relaxed);
    }

    /// Records that the process is shutting down.
    pub fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether the process is shutting down.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// The liveness probe.
    ///
    /// # Errors
    /// Why the process should be restarted, for people.
    pub fn alive(&self, now: Moment) -> Result<(), String> {
        let since = now.since(Moment(self.turn.load(Ordering::Relaxed)));
        if since <= TURN_MAX {
            Ok(())
        } else {
            Err(format!("the driver has taken no turn for {} s", since.as_secs()))
        }
    }

    /// The readiness probe.
    ///
    /// # Errors
    /// Why this replica should get no traffic, for people.
    pub fn ready(&self, now: Moment) -> Result<(), String> {
        self.alive(now)?;
        if self.is_stopping() {
            return Err("shutting down".into());
        }
        if !self.manifests.load(Ordering::Relaxed) {
            return Err("the manifests have not been read yet".into());
        }
        if !self.role.load(Ordering::Relaxed) {
            return Err("the leader is not known yet".into());
        }
        if let Some(trouble) = self.progress.trouble() {
            return Err(trouble);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_changed_result_of_the_watchdog_wakes_waiters() {
        let progress = Progress::default();
        let mut waiting = progress.stalled.subscribe();
        for (stalled, wakes) in [(false, false), (true, true), (true, false), (false, true)] {
            progress.set_stalled(stalled);
            assert_eq!(waiting.has_changed().ok(), Some(wakes), "{stalled}");
            waiting.mark_unchanged();
        }
    }

    #[test]
    fn is_ready_with_manifests_and_a_role_until_the_shutdown() {
        let health = Health::new(Moment(0), Arc::default());
        let now = Moment(1);
        assert!(health.ready(now).is_err_and(|why| why.contains("manifests")));
        health.set_manifests_read();
        assert!(health.ready(now).is_err_and(|why| why.contains("leader")));
        health.set_role_known();
        assert_eq!(health.ready(now), Ok(()));
        health.set_stopping();
        assert!(health.ready(now).is_err_and(|why| why.contains("shutting down")));
        assert_eq!(health.alive(now), Ok(()));
    }

    #[test]
    fn a_driver_without_a_turn_is_neither_alive_nor_ready() {
        let health = Health::new(Moment(0), Arc::default());
        health.set_manifests_read();
        health.set_role_known();
        let late = Moment(0) + TURN_MAX + Duration::from_nanos(1);
        assert!(health.alive(late).is_err());
        assert!(health.ready(late).is_err());
        health.record_turn(late);
        assert_eq!(health.ready(late), Ok(()));
    }
}
