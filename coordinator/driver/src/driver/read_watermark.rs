//! Measures up to which moment the sessions' tasks have read what arrived: a task on the same
//! runtime ticks, and whatever keeps them from reading keeps it from ticking. Another task runs the
//! driver's watchdog.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_coordinator_core::turn::{ReadWatermark, WATERMARK_TICK};
use leasehold_types::Moment;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::clock;
use crate::health::Progress;

/// Runs the watermark and the watchdog until it is dropped.
#[derive(Debug)]
pub(super) struct WatermarkTask {
    read: Arc<AtomicU64>,
    task: JoinHandle<()>,
    watch: JoinHandle<()>,
}

impl WatermarkTask {
    /// Starts the watermark and the watchdog on the caller's runtime.
    pub(super) fn start(progress: Arc<Progress>) -> Self {
        let read = Arc::new(AtomicU64::new(0));
        let shown = Arc::clone(&read);
        let task = tokio::spawn(async move {
            let mut watermark = ReadWatermark::new(clock::now());
            let mut ticks = interval(WATERMARK_TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                watermark.tick(clock::now());
                shown.store(watermark.read().0, Ordering::Release);
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

impl Drop for WatermarkTask {
    fn drop(&mut self) {
        self.task.abort();
        self.watch.abort();
    }
}
