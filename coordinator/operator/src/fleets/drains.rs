//! Orders drains, and tracks those of marked pods for their events and deadlines. It ends nothing:
//! a drain that takes too long is reported and continues. A new leader counts deadlines from its
//! election.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::effect::Notice;
use leasehold_driver::access::Caller;
use leasehold_driver::history::FleetChange;
use leasehold_driver::order::{OrderKind, WorkerOrder};
use leasehold_driver::port::{OrderError, Stopped};
use leasehold_platform_kube::pods::PodFacts;
use leasehold_types::{Moment, WorkerKey};
use tokio::sync::broadcast::error::RecvError;

use super::Context;
use super::node_drains::is_taken_back;
use super::worker_pod::{DrainReason, WorkerPod};

/// The drains in progress, by UID.
#[derive(Debug, Default)]
pub(super) struct DrainTracker(BTreeMap<String, Drain>);

#[derive(Clone, Copy, Debug)]
struct Drain {
    since: Moment,
    is_over: bool,
    is_overdue: bool,
}

/// A step of a drain that is worth an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DrainProgress {
    /// An eviction has started it; the webhook, which marks the pod, records no events.
    StartedByEviction,
    /// The worker holds nothing.
    Completed,
    /// The drain takes longer than the cluster's `drain.deadline`.
    Overdue,
}

impl DrainTracker {
    /// Updates a pod; returns a new step of its drain.
    pub(super) fn observe(
        &mut self,
        worker: &WorkerPod,
        deadline: Duration,
        now: Moment,
    ) -> Option<DrainProgress> {
        let uid = &worker.pod.uid;
        if worker.drain_reason.is_none() || !worker.pod.is_active() {
            self.0.remove(uid);
            return None;
        }
        let begun = Drain { since: now, is_over: false, is_overdue: false };
        let is_new = !self.0.contains_key(uid);
        let drain = self.0.entry(uid.clone()).or_insert(begun);
        // Under a new leader the worker of an earlier mark drains already.
        if is_new
            && worker.drain_reason == Some(DrainReason::Eviction)
            && worker.needs_drain_order()
        {
            return Some(DrainProgress::StartedByEviction);
        }
        if worker.is_drained() {
            return (!std::mem::replace(&mut drain.is_over, true))
                .then_some(DrainProgress::Completed);
        }
        drain.is_over = false;
        if now.since(drain.since) < deadline {
            return None;
        }
        (!std::mem::replace(&mut drain.is_overdue, true)).then_some(DrainProgress::Overdue)
    }

    /// When the drain of a pod passes its deadline; `None` if it has, or if nothing drains.
    pub(super) fn due(&self, uid: &str, deadline: Duration) -> Option<Moment> {
        let drain = self.0.get(uid).filter(|drain| !drain.is_over && !drain.is_overdue)?;
        Some(drain.since + deadline)
    }

    /// Whether the drain of a pod has passed its deadline.
    pub(super) fn is_overdue(&self, uid: &str) -> bool {
        self.0.get(uid).is_some_and(|drain| drain.is_overdue)
    }

    /// Forgets a pod that no longer exists.
    pub(super) fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

/// Orders the drain of a marked worker, or of one whose pod terminates, as soon as it joins, or
/// works again: if possible before it is granted anything.
pub(super) async fn drain_on_join(context: Context) -> Result<(), Stopped> {
    let mut changes = context.handle.watch()?;
    loop {
        let change = match changes.recv().await {
            Ok(change) => change,
            // The next reconciliation orders missed drains.
            Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => return Err(Stopped),
        };
        let FleetChange::Notice(Notice::Joined(key)) = &change.change else { continue };
        let goes = |pod: &Arc<PodFacts>| {
            let reason = pod.drain.as_deref().map(DrainReason::parse);
            let is_marked = pod.is_active()
                && reason
                    .is_some_and(|reason| !is_taken_back(pod, reason, &context.nodes.closed()));
            (is_marked || pod.is_terminating()) && pod.cluster.as_ref() == Some(&key.cluster)
        };
        let namespace = key.cluster.parts().0.unwrap_or_default().to_owned();
        let pod = context.pods.find(&namespace, key.worker.as_str());
        if pod.as_ref().is_some_and(goes) {
            order(&context, vec![(OrderKind::Drain, key.clone())]).await?;
        }
    }
}

/// Orders drains, and takes drains back.
pub(super) async fn order(
    context: &Context,
    orders: Vec<(OrderKind, WorkerKey)>,
) -> Result<(), Stopped> {
    if orders.is_empty() {
        return Ok(());
    }
    let order = |(kind, worker)| WorkerOrder { kind, worker, by: Caller::Operator };
    let orders = orders.into_iter().map(order).collect();
    match context.handle.order(move |_, _| (orders, ())).await {
        // The operator of the next leader reconciles everything, and orders missed drains.
        Ok(()) | Err(OrderError::TermEnded) => Ok(()),
        Err(OrderError::Stopped(stopped)) => Err(stopped),
    }
}
