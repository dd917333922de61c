//! What makes a fleet due.

use std::sync::Arc;

use leasehold_coordinator_core::effect::Notice;
use leasehold_driver::clock;
use leasehold_driver::history::FleetChange;
use leasehold_driver::port::Stopped;
use leasehold_platform_kube::desired::Objects;
use leasehold_platform_kube::pods::{PodChange, PodName};
use leasehold_types::ClusterName;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use super::super::action::ObjectRef;
use super::super::pod_index::PodUpdate;
use super::FleetReconciler;

impl FleetReconciler {
    /// These fleets are due now.
    pub(super) fn enqueue<'a>(&mut self, names: impl IntoIterator<Item = &'a ClusterName>) {
        let now = clock::now();
        names.into_iter().for_each(|name| self.queue.add(name.clone(), now));
    }

    /// Every fleet is due now, and every deleted one that has pods.
    pub(super) fn enqueue_all(&mut self) {
        let names = self.all_names();
        self.enqueue(&names);
    }

    fn all_names(&self) -> Vec<ClusterName> {
        let mut names: Vec<_> = self.fleets.names().chain(self.pods.fleets()).cloned().collect();
        names.sort();
        names.dedup();
        names
    }

    pub(super) fn on_change(&mut self, change: &FleetChange) {
        match change {
            FleetChange::Notice(Notice::Elected(_)) => {
                self.reset();
                self.enqueue_all();
            }
            FleetChange::Notice(Notice::Deposed(_)) => self.reset(),
            // What these change of a worker is among the changed clusters.
            FleetChange::Notice(_) | FleetChange::Ordered(_) | FleetChange::Manifests { .. } => {}
        }
    }

    pub(super) fn on_objects_changed(&mut self, objects: Arc<Objects>) {
        let was_whole = self.fleets.objects().is_whole;
        let changed = self.fleets.update(objects);
        if was_whole == self.fleets.objects().is_whole {
            self.enqueue(&changed);
        } else {
            self.enqueue_all();
        }
    }

    /// Takes a change of the pods, and those that have followed it.
    pub(super) fn on_pod_changes(
        &mut self,
        first: Result<PodChange, RecvError>,
        changes: &mut broadcast::Receiver<PodChange>,
    ) {
        let mut change = first.ok();
        loop {
            match change {
                Some(PodChange::Pod(name)) => self.on_pod_changed(&name),
                Some(PodChange::Listed) | None => self.read_all_pods(),
            }
            change = match changes.try_recv() {
                Ok(change) => Some(change),
                Err(TryRecvError::Lagged(_)) => None,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            };
        }
    }

    fn on_pod_changed(&mut self, name: &PodName) {
        let pod = self.context.pods.find(&name.namespace, &name.name);
        let PodUpdate { fleets, gone } = self.pods.update(name, pod.as_deref());
        if let Some(uid) = gone {
            self.state.forget_pod(&uid);
        }
        self.state.recent.seen(&ObjectRef::Pod(name.clone()));
        self.enqueue(&fleets);
    }

    /// Reads every pod: which of them have changed is not known.
    pub(super) fn read_all_pods(&mut self) {
        let mut names: Vec<PodName> = self.pods.names().cloned().collect();
        names.extend(self.context.pods.all().iter().map(|pod| pod.pod.clone()));
        names.sort();
        names.dedup();
        names.iter().for_each(|name| self.on_pod_changed(name));
        self.read_rights();
    }

    pub(super) fn on_caches_changed(&mut self) {
        for (key, reference) in self.caches.take_changed() {
            self.state.recent.seen(&reference);
            let names: Vec<_> = self.fleets.depending_on(&key).cloned().collect();
            self.enqueue(&names);
        }
        self.read_nodes();
        self.read_rights();
    }

    fn read_nodes(&mut self) {
        let changed: Vec<String> = self.context.nodes.take_changed().collect();
        if changed.is_empty() && self.nodes.are_all_known {
            return;
        }
        let closed = self.context.nodes.closed();
        let before = std::mem::replace(&mut self.nodes, closed);
        if before.are_all_known != self.nodes.are_all_known {
            return self.enqueue_all();
        }
        for node in changed {
            let fleets = self.pods.fleets_on(&node);
            self.enqueue(&fleets);
        }
    }

    /// Every fleet is due if the objects of a namespace may be read again, or no longer.
    fn read_rights(&mut self) {
        let watched = &self.context.settings.watched;
        let readable = match watched.as_slice() {
            [] => vec![self.is_scope_readable(None)],
            names => names.iter().map(|name| self.is_scope_readable(Some(name))).collect(),
        };
        if self.readable != readable {
            self.readable = readable;
            self.enqueue_all();
        }
    }

    /// Whether the pods and workloads of a fleet's namespace were listed: a namespace of which the
    /// API server forbids it stays as it is.
    pub(super) fn is_readable(&self, fleet: &ClusterName) -> bool {
        let namespace = fleet.parts().0;
        namespace.is_none() || self.is_scope_readable(namespace)
    }

    /// The same for a namespace, or for all.
    fn is_scope_readable(&self, namespace: Option<&str>) -> bool {
        self.context.pods.is_listed(namespace.unwrap_or_default())
            && !self.caches.are_forbidden_in(namespace)
    }

    /// The re-scan, and what has no trigger.
    pub(super) async fn on_tick(&mut self) -> Result<(), Stopped> {
        self.read_nodes();
        self.read_rights();
        if self.term.is_none() {
            return Ok(());
        }
        let mut rescan = std::mem::take(&mut self.rescan);
        self.enqueue(&rescan.take(|| self.all_names()));
        self.rescan = rescan;
        self.state.forget_old(clock::now());
        if !self.fleets.objects().classes.is_empty() {
            let changed = self.reads.read_classes().await?;
            let now = clock::now();
            let unchanged =
                self.state.windows.iter_mut().filter(|(name, _)| !changed.contains(name));
            unchanged.for_each(|(_, window)| window.renew(now));
            self.enqueue(&changed);
        }
        Ok(())
    }
}
