//! One replica's part in the election: it stands by, takes a term when there is no leader, leads,
//! and stands by again. A term begins only with a write to the Lease that was answered, and lasts
//! from when the last such write was sent.

mod lead;
mod standby;

use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::event::Event;
use leasehold_driver::health::Progress;
use leasehold_driver::platform::Command;
use leasehold_driver::trust::Trust;
use leasehold_types::{Epoch, Moment, TimeBounds};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::lease_lock::{HeldLease, LeaseLock, LeaseRecord};
use super::pods::Pods;

/// How long giving a place up may take: the process that ends waits for it.
const RELEASE_WITHIN: Duration = Duration::from_millis(900);

/// How a replica takes part.
#[derive(Clone, Debug)]
pub(crate) struct CampaignSettings {
    /// This replica's name.
    pub(crate) identity: String,
    /// Where it is reached: HOST:PORT.
    pub(crate) address: String,
    /// How long a leader may be silent.
    pub(crate) takeover_after: Duration,
    /// How long leadership lasts.
    pub(crate) leadership: Duration,
    /// How far clocks may be apart.
    pub(crate) bounds: TimeBounds,
    /// How a leader's certificate is checked; none where leaders are followed without TLS.
    pub(crate) trust: Option<Trust>,
}

/// One replica's campaign.
pub(crate) struct Campaign {
    settings: CampaignSettings,
    election: LeaseLock,
    pods: Pods,
    events: mpsc::Sender<Event>,
    commands: mpsc::Receiver<Command>,
    /// Whether the driver goes on.
    progress: Arc<Progress>,
    /// The highest epoch that this process has seen or heard of: the next must be above it.
    above: Epoch,
    /// The last error that was logged.
    trouble: Option<String>,
}

/// How a replica's time in one role has ended.
enum Next {
    /// A place was taken by a write that was sent then.
    Lead(Box<HeldLease>, Moment),
    StandBy,
    End,
}

impl Campaign {
    pub(crate) fn new(
        settings: CampaignSettings,
        election: LeaseLock,
        pods: Pods,
        events: mpsc::Sender<Event>,
        commands: mpsc::Receiver<Command>,
        progress: Arc<Progress>,
    ) -> Self {
        let above = Epoch::default();
        Self { settings, election, pods, events, commands, progress, above, trouble: None }
    }

    /// Runs until the driver is gone or the replica has resigned. It takes no term before `ready`.
    pub(crate) async fn run(mut self, ready: oneshot::Receiver<()>) {
        let mut ready = Some(ready);
        let mut next = Next::StandBy;
        loop {
            next = match next {
                Next::StandBy => self.stand_by(&mut ready).await,
                Next::Lead(held, sent_at) => self.lead(*held, sent_at).await,
                Next::End => return,
            }
        }
    }

    /// Gives a place up; where that does not succeed in time it runs out.
    async fn release(&mut self, held: HeldLease) {
        let released = timeout(RELEASE_WITHIN, self.election.release(held, self.above)).await;
        match released {
            Ok(Ok(())) => {}
            Ok(Err(trouble)) => {
                self.fails(&trouble, "cannot release leadership: it expires by itself")
            }
            Err(_) => self.fails(&"no answer", "cannot release leadership: it expires by itself"),
        }
    }

    async fn say(&self, event: Event) -> Result<(), Next> {
        self.events.send(event).await.map_err(|_| Next::End)
    }

    fn stay_above(&mut self, above: Option<Epoch>) {
        self.above = self.above.max(above.unwrap_or_default());
    }

    /// Where to send agents by this view of the Lease; not here.
    fn address(&self, record: &LeaseRecord) -> Option<String> {
        record.address.clone().filter(|address| *address != self.settings.address)
    }

    fn fails(&mut self, why: &dyn std::fmt::Display, what: &'static str) {
        let text = format!("{what}: {why}");
        if self.trouble.as_ref() != Some(&text) {
            tracing::warn!(%why, "{what}");
            self.trouble = Some(text);
        }
    }

    fn recovers(&mut self) {
        if self.trouble.take().is_some() {
            tracing::info!("the API server answers again");
        }
    }
}

/// Waits until the desired state is known; for ever where that was heard already.
async fn wait_ready(ready: &mut Option<oneshot::Receiver<()>>) -> Result<(), Next> {
    match ready {
        Some(ready) => ready.await.map_err(|_| Next::End),
        None => std::future::pending().await,
    }
}
