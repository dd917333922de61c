//! Publishes the desired state and the problems of the manifests to the driver when they change.

use std::collections::BTreeSet;
use std::sync::Arc;

use leasehold_coordinator_core::desired::Desired;
use leasehold_coordinator_core::event::Event;
use leasehold_manifest::{Problem, Reading};
use tokio::sync::{mpsc, oneshot, watch};

/// The publisher of one source of desired state.
pub struct DesiredPublisher {
    events: mpsc::Sender<Event>,
    problems: watch::Sender<Arc<Vec<Problem>>>,
    /// Resolves when the driver has the first desired state.
    ready: Option<oneshot::Sender<()>>,
    last: Option<Arc<Desired>>,
}

impl DesiredPublisher {
    /// A publisher with these channels; `ready` resolves with the first desired state.
    pub fn new(
        events: mpsc::Sender<Event>,
        problems: watch::Sender<Arc<Vec<Problem>>>,
        ready: oneshot::Sender<()>,
    ) -> Self {
        Self { events, problems, ready: Some(ready), last: None }
    }

    /// Whether a desired state was published.
    pub fn has_published(&self) -> bool {
        self.last.is_some()
    }

    /// Waits until the driver has ended.
    pub async fn closed(&self) {
        self.events.closed().await;
    }

    /// Publishes a reading; fails if the driver has ended.
    pub async fn publish(&mut self, reading: Reading) -> Result<(), ()> {
        report(&self.problems, reading.problems);
        let Some(desired) = reading.desired else { return Ok(()) };
        if self.last.as_ref().is_some_and(|last| Arc::ptr_eq(last, &desired)) {
            return Ok(());
        }
        let (clusters, sets) = (desired.clusters.len(), desired.sets.len());
        let streams: usize = desired.sets.values().map(|set| set.streams.len()).sum();
        let pipelines = desired.pipelines.len();
        tracing::info!(clusters, sets, streams, pipelines, "manifests in force");
        self.last = Some(desired.clone());
        self.events.send(Event::Desired(desired)).await.map_err(|_| ())?;
        if let Some(ready) = self.ready.take() {
            // The receiver may be gone.
            let _ = ready.send(());
        }
        Ok(())
    }
}

/// Publishes the problems, and logs each once when it appears and once when it is resolved.
fn report(published: &watch::Sender<Arc<Vec<Problem>>>, problems: Vec<Problem>) {
    let old: BTreeSet<Problem> = published.borrow().iter().cloned().collect();
    let new: BTreeSet<Problem> = problems.iter().cloned().collect();
    for problem in new.difference(&old) {
        let Problem { file, line, column, field, message } = problem;
        tracing::warn!(file, line, column, field, message, "manifest problem");
    }
    for problem in old.difference(&new) {
        let Problem { file, line, field, message, .. } = problem;
        tracing::info!(file, line, field, message, "manifest problem resolved");
    }
    if old != new {
        published.send_replace(Arc::new(problems));
    }
}
