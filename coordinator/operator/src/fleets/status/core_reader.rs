//! Looks at the core of a replica that leads, and leaves the driver its time: after each look it
//! waits a hundred times as long as that took.

use std::time::{Duration, Instant};

use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::view::Leadership;
use leasehold_driver::port::{Handle, Stopped};
use leasehold_types::{Epoch, Moment};
use tokio::time::{Instant as Wake, sleep_until};

/// A look of some length is followed by a rest of so many times that.
const PAUSE_FACTOR: u32 = 100;
/// The longest rest, whatever a look took.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The way to the core.
pub(super) struct CoreReader {
    handle: Handle,
    paused_until: Wake,
}

impl CoreReader {
    pub(super) fn new(handle: Handle) -> Self {
        Self { handle, paused_until: Wake::now() }
    }

    /// What `question` finds in the core, under the epoch that this replica leads; none where it
    /// does not lead.
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
                    Leadership::Leads(epoch) => Some((epoch, question(core, now))),
                    Leadership::StandsBy(_) => None,
                };
                (found, start.elapsed())
            })
            .await?;
        self.paused_until = Wake::now() + (took * PAUSE_FACTOR).min(PAUSE_MAX);
        Ok(found)
    }
}
