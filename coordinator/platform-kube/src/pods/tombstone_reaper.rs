//! Reports the workers of vanished pods as gone once their agents are silent and their leases have
//! ended, and then removes the tombstones. At intervals it also compares the core's workers with
//! the pods: an agent may connect while its pod is reported gone, or the report may have come
//! before leadership.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::ListParams;
use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::event::Event;
use leasehold_coordinator_core::view::{Leadership, Presence};
use leasehold_driver::clock;
use leasehold_driver::port::Handle;
use leasehold_types::{Epoch, Moment, WorkerKey};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::Shared;
use super::facts::{PodFacts, PodName};
use super::node_end::{ASK_AGAIN_AFTER, NodeAnswer, RemovedPod};
use super::store::{ApiCheck, CoreView, Tombstone, TombstoneAction};
use crate::api_call::{CALL_TIMEOUT, call};

/// How often tombstones are checked while there are any.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The pause after a read that the API server did not answer.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Reads in flight.
const REQUESTS_MAX: usize = 8;
/// How often to check whether this replica leads: pods that vanish in its term are reported sooner.
const TERM_EVERY: Duration = Duration::from_millis(500);
/// How often the core's workers are compared with the pods.
const COMPARE_EVERY: Duration = Duration::from_secs(15);

/// Removes tombstones when it is safe.
pub(super) struct TombstoneReaper {
    shared: Arc<Shared>,
    events: mpsc::Sender<Event>,
    term: Option<(Epoch, Moment)>,
    compared_at: Option<Moment>,
    /// When a read last failed.
    unanswered_at: Option<Moment>,
}

impl TombstoneReaper {
    pub(super) fn new(shared: Arc<Shared>, events: mpsc::Sender<Event>) -> Self {
        Self { shared, events, term: None, compared_at: None, unanswered_at: None }
    }

    /// Runs until the receiver of the events is dropped.
    pub(super) async fn run(mut self) {
        let mut changed = self.shared.changed.subscribe();
        let events = self.events.clone();
        loop {
            let tick = sleep(TERM_EVERY);
            let has_tombstone = async {
                while !self.shared.has_tombstone() && changed.changed().await.is_ok() {}
                sleep(self.delay()).await;
            };
            tokio::select! {
                () = events.closed() => return,
                () = tick => {}
                () = has_tombstone => {}
            }
            if !self.reap().await {
                return;
            }
        }
    }

    /// The delay until the next check while there are tombstones: zero for a new one.
    fn delay(&self) -> Duration {
        if self.unanswered_at.is_some() {
            return LOOK_EVERY;
        }
        let now = clock::now();
        let is_new = |tombstone: &Tombstone| {
            tombstone.api_check == ApiCheck::NotAsked && now.since(tombstone.since) < LOOK_EVERY
        };
        if self.shared.store().tombstones().any(|(_, tombstone)| is_new(tombstone)) {
            Duration::ZERO
        } else {
            LOOK_EVERY
        }
    }

    /// Checks every tombstone once; false if the receiver of the events is gone.
    async fn reap(&mut self) -> bool {
        let handle = self.shared.settings.handle.borrow().clone();
        self.note_term(handle.as_ref()).await;
        let tombstones = self.tombstones();
        let mut delivered = self.ask_server(tombstones).await;
        for (name, tombstone) in self.tombstones() {
            let core_view = match &handle {
                Some(handle) => self.ask_core(handle, &tombstone.keys).await,
                None => CoreView { term: None, presence: None },
            };
            let action_for = {
                let store = self.shared.store();
                store.action_for(
                    &name,
                    &tombstone,
                    core_view,
                    &self.shared.settings.bounds,
                    clock::now(),
                )
            };
            match action_for {
                TombstoneAction::Keep => {}
                TombstoneAction::ReportGone => {
                    delivered &= self.report_gone(&name, &tombstone.uid, tombstone.keys).await;
                }
                TombstoneAction::EndSessions => {
                    delivered &= self.events.send(Event::Removed(tombstone.keys)).await.is_ok();
                }
                TombstoneAction::AskNode => self.ask_node(&name, &tombstone).await,
                TombstoneAction::Forget => {
                    self.shared.store().remove_tombstone(&name, &tombstone.uid);
                }
            }
        }
        if let Some(handle) = handle {
            delivered &= self.compare_with_core(&handle).await;
        }
        delivered
    }

    fn tombstones(&self) -> Vec<(PodName, Tombstone)> {
        self.shared
            .store()
            .tombstones()
            .map(|(name, tombstone)| (name.clone(), tombstone.clone()))
            .collect()
    }

    async fn note_term(&mut self, handle: Option<&Handle>) {
        let leadership = match handle {
            Some(handle) => handle.ask(|core, _| core.leadership()).await.ok(),
            None => None,
        };
        self.term = match (leadership, self.term) {
            (Some(Leadership::Leader(epoch)), Some((known, since))) if epoch == known => {
                Some((known, since))
            }
            (Some(Leadership::Leader(epoch)), _) => {
                self.compared_at = None;
                Some((epoch, clock::now()))
            }
            (Some(Leadership::Standby(_)) | None, _) => None,
        };
    }

    /// Reads the pods of tombstones that the API server has not reported as deleted.
    async fn ask_server(&mut self, tombstones: Vec<(PodName, Tombstone)>) -> bool {
        let now = clock::now();
        if self.unanswered_at.is_some_and(|at| now.since(at) < RETRY_AFTER) {
            return true;
        }
        self.unanswered_at = None;
        let due = tombstones.into_iter().filter(|(_, tombstone)| match tombstone.api_check {
            ApiCheck::NotAsked => true,
            ApiCheck::Exists(at) => now.since(at) >= ASK_AGAIN_AFTER,
            ApiCheck::Deleted => false,
        });
        let shared = Arc::clone(&self.shared);
        let answers = stream::iter(due).map(|(name, tombstone)| {
            let shared = Arc::clone(&shared);
            async move {
                let api: Api<Pod> = shared.api(Some(&name.namespace));
                let answer = call(CALL_TIMEOUT, api.get_opt(&name.name)).await;
                (name, tombstone, answer)
            }
        });
        let mut answers = std::pin::pin!(answers.buffer_unordered(REQUESTS_MAX));
        let mut delivered = true;
        while let Some((name, tombstone, answer)) = answers.next().await {
            let found = match answer {
                Ok(pod) => pod.as_ref().and_then(PodFacts::new),
                Err(error) => {
                    tracing::debug!(%error, pod = name.name, "cannot read a pod that vanished");
                    self.unanswered_at = Some(clock::now());
                    continue;
                }
            };
            let gone =
                self.shared.store().api_check(&name, &tombstone.uid, found.as_ref(), clock::now());
            if !gone.is_empty() {
                let uid = found.map_or(tombstone.uid, |facts| facts.uid);
                delivered &= self.report_gone(&name, &uid, gone).await;
            }
        }
        delivered
    }

    /// Asks the node of a pod that was removed by force whether its containers have ended.
    async fn ask_node(&mut self, name: &PodName, tombstone: &Tombstone) {
        let Some(node) = &tombstone.node else { return };
        let nodes: Api<Node> = Api::all(self.shared.settings.client.clone());
        // Reading one node needs a right of its own; lists are allowed already.
        let named = ListParams::default().fields(&format!("metadata.name={node}"));
        let answer = match call(CALL_TIMEOUT, nodes.list(&named)).await {
            Ok(found) => {
                let pod = RemovedPod {
                    since: clock::now().since(tombstone.since),
                    grace: tombstone.grace,
                };
                pod.judged_by(found.items.first(), Timestamp::now())
            }
            Err(error) if error.is_forbidden() => {
                tracing::warn!(
                    pod = name.name,
                    namespace = name.namespace,
                    "the pod was removed by force, and this coordinator may not list nodes: the \
                     pod counts as ended, as the one who removed it has promised"
                );
                NodeAnswer::NotReadable
            }
            Err(error) => {
                tracing::debug!(%error, node, "cannot read the node of a removed pod");
                NodeAnswer::MayRun
            }
        };
        if answer == NodeAnswer::MayRun && tombstone.node_answer.is_none() {
            tracing::warn!(
                pod = name.name,
                namespace = name.namespace,
                node,
                "the pod was removed by force and its agent is silent: its jobs count until its \
                 node has ended it or is gone; to end that wait, declare the worker gone"
            );
        }
        self.shared.store().node_answered(name, &tombstone.uid, answer, clock::now());
    }

    async fn ask_core(&self, handle: &Handle, keys: &[WorkerKey]) -> CoreView {
        let keys = keys.to_vec();
        let core_view = handle.ask(move |core, now| {
            let workers = keys.iter().filter_map(|key| core.worker(key, now));
            let presences: Vec<_> = workers.map(|worker| worker.presence).collect();
            let connected = presences.iter().find(|presence| **presence == Presence::Connected);
            let presence = connected.or(presences.first()).copied();
            match core.leadership() {
                Leadership::Leader(epoch) => (Some(epoch), presence),
                Leadership::Standby(_) => (None, presence),
            }
        });
        match core_view.await {
            Ok((epoch, presence)) => {
                let term = self.term.filter(|(known, _)| Some(*known) == epoch);
                CoreView { term, presence }
            }
            Err(_) => CoreView { term: None, presence: None },
        }
    }

    /// Reports workers as gone; only then removes their tombstone, which admits a later pod.
    async fn report_gone(&self, name: &PodName, uid: &str, keys: Vec<WorkerKey>) -> bool {
        let delivered = self.events.send(Event::Gone(keys)).await.is_ok();
        self.shared.store().remove_tombstone(name, uid);
        self.shared.has_changed();
        delivered
    }

    /// Compares the core's workers with the pods.
    async fn compare_with_core(&mut self, handle: &Handle) -> bool {
        let now = clock::now();
        let due = self.compared_at.is_none_or(|at| now.since(at) >= COMPARE_EVERY);
        if self.term.is_none() || !due || !self.shared.is_synced() {
            return true;
        }
        self.compared_at = Some(now);
        let Ok(keys) = handle.ask(workers).await else { return true };
        let gone: Vec<_> = {
            let mut store = self.shared.store();
            let is_listed = |key: &WorkerKey| {
                key.cluster.parts().0.is_some_and(|namespace| self.shared.is_listed(namespace))
            };
            let listed = keys.into_iter().filter(is_listed);
            listed.filter(|key| store.confirm_gone(key, now)).collect()
        };
        gone.is_empty() || self.events.send(Event::Gone(gone)).await.is_ok()
    }
}

fn workers(core: &Core, now: Moment) -> Vec<WorkerKey> {
    let clusters = core.clusters(now).into_iter().map(|cluster| cluster.name);
    let workers = clusters.filter_map(|cluster| core.workers(&cluster, now));
    workers.flatten().map(|worker| worker.key).collect()
}
