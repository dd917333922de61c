//! Publishes the desired state and the problems of the manifests to the driver when they change.

use std::collections::BTreeSet;
use std::sync::Arc;

use leasehold_coordinator_core::desired::Desired;
use leasehold_coordinator_core::event::Event;
use leasehold_manifest::{Problem, Reading, changes};
use tokio::sync::{mpsc, oneshot, watch};

/// The publisher of one source of desired state.
pub struct DesiredPublisher {
    events: mpsc::Sender<Event>,
    problems: watch::Sender<Arc<Vec<Problem>>>,
    /// Resolves when the driver has the first desired state.
    ready: Option<oneshot::Sender<()>>,
    last: Option<Arc<Desired>>,
    /// What was ignored at the last reading.
    ignored: Vec<Problem>,
    /// Where a person adds manifests, for the log.
    source: String,
}

impl DesiredPublisher {
    /// A publisher with these channels; `ready` resolves with the first desired state. `source`
    /// says where a person adds manifests: `the folder /etc/leasehold`.
    pub fn new(
        events: mpsc::Sender<Event>,
        problems: watch::Sender<Arc<Vec<Problem>>>,
        ready: oneshot::Sender<()>,
        source: String,
    ) -> Self {
        Self { events, problems, ready: Some(ready), last: None, ignored: Vec::new(), source }
    }

    /// Whether a desired state was published.
    pub fn has_published(&self) -> bool {
        self.last.is_some()
    }

    /// The desired state that was published last.
    pub fn in_force(&self) -> Option<&Arc<Desired>> {
        self.last.as_ref()
    }

    /// Waits until the driver has ended.
    pub async fn closed(&self) {
        self.events.closed().await;
    }

    /// Publishes a reading; fails if the driver has ended.
    pub async fn publish(&mut self, reading: Reading) -> Result<(), ()> {
        report(&self.problems, reading.problems);
        self.report_ignored(reading.ignored);
        let Some(desired) = reading.desired else { return Ok(()) };
        if self.last.as_ref().is_some_and(|last| Arc::ptr_eq(last, &desired)) {
            return Ok(());
        }
        let (clusters, sets) = (desired.clusters.len(), desired.sets.len());
        let streams: usize = desired.sets.values().map(|set| set.streams.len()).sum();
        let pipelines = desired.pipelines.len();
        let last = self.last.replace(desired.clone());
        self.events.send(Event::Desired(desired.clone())).await.map_err(|_| ())?;
        if let Some(ready) = self.ready.take() {
            // The receiver may be gone.
            let _ = ready.send(());
        }
        // Only the log waits for a comparison of long lists.
        let changed = changes(last, desired).await;
        tracing::info!(clusters, sets, streams, pipelines, changed, "manifests in force");
        if clusters == 0 {
            tracing::warn!(
                "no WorkerCluster is in force, so no worker can join: add one to {}, or correct \
                 what is logged as a manifest problem",
                self.source
            );
        }
        Ok(())
    }

    /// Logs once what is ignored in manifests.
    fn report_ignored(&mut self, ignored: Vec<Problem>) {
        for new in ignored.iter().filter(|new| !self.ignored.contains(new)) {
            let Problem { file, line, column, field, message, .. } = new;
            tracing::info!(file, line, column, field, message, "a field is ignored");
        }
        self.ignored = ignored;
    }
}

/// What differs, in words; none at the first state. A thread of its own compares large lists.
async fn changes(last: Option<Arc<Desired>>, desired: Arc<Desired>) -> Option<String> {
    let last = last?;
    let described = tokio::task::spawn_blocking(move || changes::describe(&last, &desired));
    described.await.ok()
}

/// Publishes the problems, and logs each once when it is resolved and once when it appears: what is
/// wrong now comes last.
fn report(published: &watch::Sender<Arc<Vec<Problem>>>, problems: Vec<Problem>) {
    let old: BTreeSet<Problem> = published.borrow().iter().cloned().collect();
    let new: BTreeSet<Problem> = problems.iter().cloned().collect();
    for problem in old.difference(&new) {
        let Problem { file, line, field, message, .. } = problem;
        let line = (*line > 0).then_some(*line);
        let field = Some(field).filter(|field| !field.is_empty());
        tracing::info!(file, line, field, message, "manifest problem resolved");
    }
    for problem in new.difference(&old) {
        let Problem { file, line, column, field, message, .. } = problem;
        let [line, column] = [line, column].map(|number| (*number > 0).then_some(*number));
        let field = Some(field).filter(|field| !field.is_empty());
        tracing::warn!(file, line, column, field, message, "manifest problem");
    }
    if old != new {
        published.send_replace(Arc::new(problems));
    }
}
