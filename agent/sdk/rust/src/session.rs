//! What a worker, its jobs and its leases share: the state, the limit on requests for a slot, and
//! the tasks in the background. It lives as long as any of them.

use std::sync::Arc;
use std::time::Duration;

use leasehold_proto::worker::v1 as wire;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::address::Address;
use crate::clock;
use crate::link::{Link, Notifier, answer};
use crate::state::Shared;

/// At most this many requests for a slot are in flight; more wait here. The agent answers 512
/// requests at once on one connection, and the end of a job must not wait behind requests that
/// wait for a slot.
const SLOT_REQUESTS_MAX: usize = 256;
/// How long [`Session`] waits, once dropped, for the agent to confirm ends and releases.
pub(crate) const CLOSE: Duration = Duration::from_secs(2);
/// How long the last beat may take.
const LAST_BEAT: Duration = Duration::from_secs(1);
/// How often a worker says that it lives, within the time in which it promises to.
const BEATS_WITHIN: u32 = 3;
/// Leases count the time for which a machine is suspended; a timer of tokio's does not.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// A worker's session with its agent.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) slot_requests: Semaphore,
    tasks: Vec<AbortHandle>,
    /// Tells the agent that this process lives.
    beating: Option<AbortHandle>,
}

impl Session {
    /// Starts the background tasks. Without a `start_id`, another process of this worker announces
    /// the start.
    pub(crate) fn start(
        address: Address,
        start_id: Option<String>,
        stop_before: Duration,
        beat_within: Option<Duration>,
    ) -> Self {
        let shared = Arc::new(Shared::new(stop_before));
        let link = Link { address, start_id: start_id.clone(), shared: shared.clone() };
        let notifier = Notifier { start_id, shared: shared.clone() };
        let mut tasks = vec![
            tokio::spawn(link.run()).abort_handle(),
            tokio::spawn(notifier.run()).abort_handle(),
            tokio::spawn(expire_leases(shared.clone())).abort_handle(),
        ];
        let beating =
            beat_within.map(|within| tokio::spawn(beat(shared.clone(), within)).abort_handle());
        tasks.extend(beating.clone());
        let slot_requests = Semaphore::new(SLOT_REQUESTS_MAX);
        Self { shared, slot_requests, tasks, beating }
    }

    /// Tells the agent that no further beat comes, and that nothing follows from that: this process
    /// may have ended well. Does not wait long for an answer.
    pub(crate) async fn take_promise_back(&self) {
        let Some(beating) = &self.beating else { return };
        beating.abort();
        let client = self.shared.lock().client.clone();
        if let Some(mut client) = client {
            let told = client.beat(wire::BeatRequest { within_ms: Some(0) });
            let _ = tokio::time::timeout(LAST_BEAT, told).await;
        }
    }
}

impl Drop for Session {
    /// The agent still learns of the last ends and releases if there is a runtime to send them.
    fn drop(&mut self) {
        let (shared, tasks) = (self.shared.clone(), self.tasks.clone());
        let abort = move || tasks.iter().for_each(AbortHandle::abort);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if shared.lock().has_unconfirmed() => {
                runtime.spawn(async move {
                    let confirmed = shared.until(|state| (!state.has_unconfirmed()).then_some(()));
                    let _ = tokio::time::timeout(CLOSE, confirmed).await;
                    abort();
                });
            }
            _ => abort(),
        }
    }
}

/// Tells the agent that this process lives, and says so again within this time.
async fn beat(shared: Arc<Shared>, within: Duration) {
    let within_ms = Some(u32::try_from(within.as_millis()).unwrap_or(u32::MAX));
    loop {
        let mut client = shared.until(|state| state.client.clone()).await;
        let told = answer(client.beat(wire::BeatRequest { within_ms }), Duration::ZERO).await;
        if let Err(error) = told {
            // An agent of an earlier release does not know the call.
            tracing::debug!(%error, "cannot tell the agent that this worker lives");
        }
        tokio::time::sleep(within / BEATS_WITHIN).await;
    }
}

/// Marks streams and bindings as lost in time, even if the agent does not answer.
async fn expire_leases(shared: Arc<Shared>) {
    let mut changes = shared.changes();
    loop {
        let next = shared.lock().expire(clock::now());
        let changed = changes.changed();
        match next {
            None => drop(changed.await),
            Some(left) => drop(tokio::time::timeout(left.min(SLEEP_MAX), changed).await),
        }
    }
}
