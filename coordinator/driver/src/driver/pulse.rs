//! How far the sessions' tasks have read what has arrived: a task beside them beats, and what keeps
//! them from reading keeps it from beating. Another looks after the driver from there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_coordinator_core::turn::{PULSE, Pulse};
use leasehold_types::Moment;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::clock;
use crate::health::Progress;

/// The pulse of the readers, as long as this lives.
#[derive(Debug)]
pub(super) struct PulseGuard {
    read: Arc<AtomicU64>,
    task: JoinHandle<()>,
    watch: JoinHandle<()>,
}

impl PulseGuard {
    /// Begins to beat, and to look whether the driver makes progress, on the runtime that the
    /// caller runs on.
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

    /// Everything that had arrived before this moment was read, and given to the driver.
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
