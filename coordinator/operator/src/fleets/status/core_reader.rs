//! Reads the core of a leading replica without loading its driver: after each read it waits a
//! hundred times as long as the read took.

use std::time::{Duration, Instant};

use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::view::Leadership;
use leasehold_driver::port::{Handle, Stopped};
use leasehold_types::{Epoch, Moment};
use tokio::time::{Instant as Wake, sleep_until};

/// The pause after a read is this many times its duration.
const PAUSE_FACTOR: u32 = 100;
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Reads the core.
pub(super) struct CoreReader {
    handle: Handle,
    paused_until: Wake,
}

impl CoreReader {
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle, paused_until: Wake::now() }
    }

    /// The answer to `question` and the epoch that this replica leads; none if it does not lead.
    ///
    /// # Errors
    /// The driver has ended.
    pub(super) async fn read<T: Send + 'static>(
        &mut self,
        question: impl FnOnce(&Core, Moment) -> T + Send + 'static,
    ) -> Result<Option<(Epoch, T)>, Stopped> {
        sleep_until(self.paused_until).await;
        let (found, took) = self
            .handle
            .ask(|core, now| {
                let start = Instant::now();
                let found = match core.leadership() {
                    Leadership::Leader(epoch) => Some((epoch, question(core, now))),
                    Leadership::Standby(_) => None,
                };
                (found, start.elapsed())
            })
            .await?;
        self.paused_until = Wake::now() + (took * PAUSE_FACTOR).min(PAUSE_MAX);
        Ok(found)
    }
}
