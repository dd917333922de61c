//! What probes get as an answer: a replica is alive while its driver makes progress, whether it
//! leads or not; it is ready when it knows its manifests and its role.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_coordinator_core::turn::Watchdog;
use leasehold_types::Moment;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

/// The longest that a driver that works stays without a turn: it takes one at least every
/// [`crate::driver::TICK`].
const TURN_MAX: Duration = Duration::from_secs(10);

/// How much a driver has done, and whether it goes on; reading it never waits for the driver.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    stalled: watch::Sender<bool>,
    /// Why the platform cannot let this replica lead, where a person has to do something.
    trouble: Mutex<Option<String>>,
}

impl Progress {
    /// The driver did something: it took an event, or settled, or carried an effect out.
    pub fn made(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// The platform says why this replica cannot lead before a person has done something; none
    /// where it can.
    pub fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the driver has done nothing for a second. A leader then renews nothing: who waits
    /// for its sign of life must take over.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        *self.stalled.borrow()
    }

    /// Waits until the driver has done nothing for a second.
    pub async fn stalled(&self) {
        // The sender lives as long as this does.
        let _ = self.stalled.subscribe().wait_for(|stalled| *stalled).await;
    }

    /// Looks after the driver, for ever.
    pub async fn watch(&self) {
        let mut watchdog = Watchdog::default();
        let mut looks = interval(Watchdog::LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.found(!watchdog.look(self.done.load(Ordering::Relaxed)));
        }
    }

    /// Every session waits for it: what stays the same wakes none of them.
    fn found(&self, stalled: bool) {
        let changed = self.stalled.send_if_modified(|was| mem::replace(was, stalled) != stalled);
        match (changed, stalled) {
            (true, true) => tracing::error!("the driver hangs: its sessions are ended"),
            (true, false) => tracing::warn!("the driver goes on"),
            (false, _) => {}
        }
    }
}

/// One replica's health, written by its driver.
#[derive(Debug)]
pub struct Health {
    turn: AtomicU64,
    manifests: AtomicBool,
    role: AtomicBool,
    stopping: AtomicBool,
    progress: Arc<Progress>,
}

impl Health {
    /// Health of a driver that starts at `now`.
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

    /// The driver took a turn.
    pub fn turned(&self, now: Moment) {
        self.turn.store(now.0, Ordering::Relaxed);
    }

    /// The manifests were read.
    pub fn manifests_read(&self) {
        self.manifests.store(true, Ordering::Relaxed);
    }

    /// It is known whether this replica leads.
    pub fn role_known(&self) {
        self.role.store(true, Ordering::Relaxed);
    }

    /// The process ends.
    pub fn stops(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether the process ends.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Ok, or why the process should be restarted.
    ///
    /// # Errors
    /// One sentence for people.
    pub fn alive(&self, now: Moment) -> Result<(), String> {
        let since = now.since(Moment(self.turn.load(Ordering::Relaxed)));
        match since <= TURN_MAX {
            true => Ok(()),
            false => Err(format!("the driver has taken no turn for {} s", since.as_secs())),
        }
    }

    /// Ok, or why this replica should get no traffic.
    ///
    /// # Errors
    /// One sentence for people.
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
    fn only_another_finding_of_the_watchdog_wakes_those_that_wait() {
        let progress = Progress::default();
        let mut waiting = progress.stalled.subscribe();
        for (stalled, wakes) in [(false, false), (true, true), (true, false), (false, true)] {
            progress.found(stalled);
            assert_eq!(waiting.has_changed().ok(), Some(wakes), "{stalled}");
            waiting.mark_unchanged();
        }
    }

    #[test]
    fn ready_wants_manifests_and_a_role_and_ends_with_the_shutdown() {
        let health = Health::new(Moment(0), Arc::default());
        let now = Moment(1);
        assert!(health.ready(now).is_err_and(|why| why.contains("manifests")));
        health.manifests_read();
        assert!(health.ready(now).is_err_and(|why| why.contains("leader")));
        health.role_known();
        assert_eq!(health.ready(now), Ok(()));
        health.stops();
        assert!(health.ready(now).is_err_and(|why| why.contains("shutting down")));
        assert_eq!(health.alive(now), Ok(()));
    }

    #[test]
    fn a_driver_without_a_turn_is_neither_alive_nor_ready() {
        let health = Health::new(Moment(0), Arc::default());
        health.manifests_read();
        health.role_known();
        let late = Moment(0) + TURN_MAX + Duration::from_nanos(1);
        assert!(health.alive(late).is_err());
        assert!(health.ready(late).is_err());
        health.turned(late);
        assert_eq!(health.ready(late), Ok(()));
    }
}
