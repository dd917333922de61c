//! Measures up to which moment the sessions' tasks have read what arrived: a task on the same
//! runtime beats, and whatever keeps them from reading keeps it from beating. Another task runs the
//! driver's watchdog.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_coordinator_core::turn::{PULSE, Pulse};
use leasehold_types::Moment;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::clock;
use crate::health::Progress;

/// Runs the pulse and the watchdog until it is dropped.
#[derive(Debug)]
pub(super) struct PulseGuard {
    read: Arc<AtomicU64>,
    task: JoinHandle<()>,
    watch: JoinHandle<()>,
}

impl PulseGuard {
    /// Starts the pulse and the watchdog on the caller's runtime.
    pub(super) fn start(progress: Arc<Progress>) -> Self {
        let read = Arc::new(AtomicU64::new(0));
        let shown = Arc::clone(&read);
        let task = tokio::spawn(async move {
            let mut pulse = Pulse::new(clock::now());
            let mut beats = interval(PULSE);
            beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                beats.tick().await;
                pulse.beat(clock::now());
                shown.store(pulse.read().0, Ordering::Release);
            }
        });
        let watch = tokio::spawn(async move { progress.watch().await });
        Self { read, task, watch }
    }

    /// Everything that had arrived before this moment was read and queued for the driver.
    pub(super) fn read(&self) -> Moment {
        Moment(self.read.load(Ordering::Acquire))
    }
}

impl Drop for PulseGuard {
    fn drop(&mut self) {
        self.task.abort();
        self.watch.abort();
    }
}
