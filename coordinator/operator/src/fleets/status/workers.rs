//! A fleet's workers in figures, and the first of them by name: whatever pods and the core know
//! of them, put together.

use std::collections::BTreeMap;

use leasehold_coordinator_core::view::{Presence, WorkerView};
use leasehold_kube_api::status::{WORKERS_LISTED_MAX, WorkerCounts, WorkerPhase, WorkerStatus};
use leasehold_types::message::DrainPhase;

use super::fleet::FleetFacts;

/// The workers of a fleet.
#[derive(Debug)]
pub(super) struct Workers {
    pub(super) counts: WorkerCounts,
    /// Pods whose agent has not connected.
    pub(super) pending: u32,
    /// At most [`WORKERS_LISTED_MAX`], by phase and name.
    pub(super) list: Vec<WorkerStatus>,
    /// How many are not listed.
    pub(super) omitted: u32,
}

impl Workers {
    /// Those of a fleet that should have so many.
    pub(super) fn of<V>(facts: &FleetFacts<V>, desired: u32) -> Self {
        let mut counts = WorkerCounts { desired, ..WorkerCounts::default() };
        let mut workers: BTreeMap<&str, WorkerStatus> = BTreeMap::new();
        for pod in facts.pods.iter().filter(|pod| !pod.over) {
            counts.total += 1;
            let phase = match pod.is_terminating() {
                true => WorkerPhase::Draining,
                false => WorkerPhase::Pending,
            };
            let name = pod.pod.name.clone();
            let worker = WorkerStatus { name, phase, ..WorkerStatus::default() };
            workers.insert(&pod.pod.name, worker);
        }
        for view in &facts.workers {
            let name = view.key.worker.as_str();
            let leaves = workers.get(name).is_some_and(|it| it.phase == WorkerPhase::Draining);
            let worker = worker(view, leaves);
            counts.connected += u32::from(view.presence == Presence::Connected);
            workers.insert(name, worker);
        }
        let mut list: Vec<WorkerStatus> = workers.into_values().collect();
        list.sort_by(|a, b| (a.phase, &a.name).cmp(&(b.phase, &b.name)));
        let count = |phase| {
            let count = list.iter().filter(|worker| worker.phase == phase).count();
            u32::try_from(count).unwrap_or(u32::MAX)
        };
        counts.draining = count(WorkerPhase::Draining);
        counts.lost = count(WorkerPhase::Lost);
        counts.unreported = count(WorkerPhase::Unreported);
        let ready = facts.workers.iter().filter(|view| view.presence == Presence::Connected);
        let running: Vec<&str> = list
            .iter()
            .filter(|worker| worker.phase == WorkerPhase::Running)
            .map(|worker| worker.name.as_str())
            .collect();
        let ready = ready.filter(|view| running.binary_search(&view.key.worker.as_str()).is_ok());
        counts.ready = u32::try_from(ready.count()).unwrap_or(u32::MAX);
        let pending = count(WorkerPhase::Pending);
        let omitted = list.len().saturating_sub(WORKERS_LISTED_MAX);
        list.truncate(WORKERS_LISTED_MAX);
        Self { counts, pending, list, omitted: u32::try_from(omitted).unwrap_or(u32::MAX) }
    }
}

/// How a worker stands that the core knows; `leaves` says that its pod is terminating.
fn worker(view: &WorkerView, leaves: bool) -> WorkerStatus {
    let drains = leaves || view.drain_ordered || view.drain != DrainPhase::Working;
    let phase = match view.presence {
        Presence::Lost => WorkerPhase::Lost,
        Presence::Unreported => WorkerPhase::Unreported,
        Presence::Connected | Presence::Silent if drains => WorkerPhase::Draining,
        Presence::Connected | Presence::Silent => WorkerPhase::Running,
    };
    WorkerStatus {
        name: view.key.worker.to_string(),
        phase,
        current: view.in_effect,
        granted: view.granted,
        running: view.running.unwrap_or(0),
        streams: u32::try_from(view.streams).unwrap_or(u32::MAX),
    }
}
