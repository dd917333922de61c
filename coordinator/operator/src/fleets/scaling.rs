//! How many workers a fleet should have.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Duration;

use leasehold_coordinator_core::view::{ClassView, Presence};
use leasehold_manifest::manifest::WorkerClassSpec;
use leasehold_types::{Moment, WorkerName};

use super::worker_pod::{DrainReason, WorkerPod};

/// How many workers a fleet should have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DesiredScale {
    /// The number of replicas.
    pub(super) replicas: u32,
    /// How the number was computed, for messages.
    pub(super) why: Option<String>,
    /// The limit that applies: a reason in one word, and a sentence.
    pub(super) limited: Option<(&'static str, String)>,
    /// The only workers that may be removed, in this order; none if any may be.
    pub(super) removable: Option<Vec<WorkerName>>,
    /// When the number may be lower although nothing changes: a recommendation leaves the window.
    pub(super) due: Option<Moment>,
}

impl DesiredScale {
    /// A number of replicas without further details.
    pub(super) fn of(replicas: u32) -> Self {
        Self { replicas, ..Self::default() }
    }
}

/// The recommendations of a time window: those with no higher one after them.
#[derive(Debug, Default)]
pub(super) struct StabilizationWindow(VecDeque<(Moment, u32)>);

impl StabilizationWindow {
    /// Nothing has changed: the last recommendation holds until `now`.
    pub(super) fn renew(&mut self, now: Moment) {
        if let Some((at, _)) = self.0.back_mut() {
            *at = now;
        }
    }

    /// When the highest recommendation leaves the window, if lower ones have followed it.
    fn due(&self, span: Duration) -> Option<Moment> {
        let (at, _) = self.0.front().filter(|_| self.0.len() > 1)?;
        Some(*at + span)
    }

    /// The highest recommendation within `span`, this one included. The first sample of a window is
    /// the present number of replicas.
    fn highest(&mut self, wanted: u32, current: u32, span: Duration, now: Moment) -> u32 {
        if self.0.is_empty() {
            self.0.push_back((now, current));
        }
        // A monotonic queue: samples that are not above a newer one are dropped.
        while self.0.back().is_some_and(|(_, before)| *before <= wanted) {
            self.0.pop_back();
        }
        self.0.push_back((now, wanted));
        while self.0.len() > 1 && self.0.front().is_some_and(|(at, _)| now.since(*at) >= span) {
            self.0.pop_front();
        }
        self.0.front().map_or(wanted, |(_, highest)| *highest)
    }
}

/// The demand on a class.
#[derive(Clone, Debug)]
pub(super) struct ClassDemand {
    /// The core's view of it.
    pub(super) view: ClassView,
    /// Pods that can serve no pipeline and whose shares may wait for room on others: they are lost,
    /// or drain for another reason than a scale-in.
    pub(super) away: u32,
    /// Pods that are marked for a scale-in.
    pub(super) marked: u32,
    /// Those of `marked` that still hold shares.
    pub(super) leaving: u32,
}

impl ClassDemand {
    /// From the core's view of a class and its pods, read at the same time.
    pub(super) fn of(view: ClassView, worker_pods: &[WorkerPod]) -> Self {
        let holds = |worker_pod: &&WorkerPod| worker_pod.pod.is_active() && !worker_pod.is_empty();
        let is_lost = |worker_pod: &WorkerPod| {
            worker_pod.view.as_ref().is_some_and(|view| view.presence == Presence::Lost)
                && !worker_pod.pod.ready
        };
        let is_away = |worker_pod: &&WorkerPod| match worker_pod.drain_reason {
            Some(DrainReason::ScaleIn) => false,
            Some(DrainReason::Node | DrainReason::Eviction | DrainReason::Restart) => true,
            None => is_lost(worker_pod),
        };
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let goes = |worker_pod: &&WorkerPod| {
            worker_pod.drain_reason == Some(DrainReason::ScaleIn) && worker_pod.pod.is_active()
        };
        Self {
            view,
            away: count(worker_pods.iter().filter(holds).filter(is_away).count()),
            marked: count(worker_pods.iter().filter(goes).count()),
            leaving: count(worker_pods.iter().filter(holds).filter(goes).count()),
        }
    }
}

/// Decides for a class whose workload has `current` replicas; `None` without a workload. No
/// worker may be removed before the core has said which ones it can spare.
pub(super) fn decide(
    spec: &WorkerClassSpec,
    demand: &ClassDemand,
    current: Option<u32>,
    window: &mut StabilizationWindow,
    now: Moment,
) -> DesiredScale {
    let (least, most) = (spec.min_replicas.min(spec.max_replicas), spec.max_replicas);
    let (asked, mut why) = match spec.replicas {
        Some(replicas) => (replicas, format!("spec.replicas is {replicas}")),
        None => replicas_for_load(spec, demand),
    };
    let there = current.map(|current| current.saturating_sub(demand.away));
    // A new leader continues a scale-in that its predecessor started.
    let stays = there.map(|there| there.saturating_sub(demand.marked));
    let span = spec.scaling.stabilization.0;
    let held = match spec.replicas {
        Some(_) => {
            *window = StabilizationWindow::default();
            asked
        }
        None => {
            let stays = stays.unwrap_or(asked);
            let highest = window.highest(asked, stays, span, now);
            // The window holds back a scale-in, and makes no scale-out.
            asked.max(highest.min(stays))
        }
    };
    let wanted = held.clamp(least, most);
    // A drain for a scale-in cannot be undone when the worker is wanted again.
    let surplus = there.unwrap_or(wanted).saturating_sub(wanted);
    let on_top = demand.away + demand.leaving.saturating_sub(surplus);
    if on_top > 0 {
        let _ = write!(why, "; {on_top} more in place of workers that drain or are lost");
    }
    let mut limited = None;
    if asked.saturating_add(on_top) > most {
        let _ = write!(why, "; maxReplicas is {most}");
        limited = Some(("TooManyReplicas", why.clone()));
    } else if asked < least {
        let _ = write!(why, "; minReplicas is {least}");
        // A low load needs no attention.
        limited = spec.replicas.map(|_| ("TooFewReplicas", why.clone()));
    }
    let replicas = wanted.saturating_add(on_top).min(most);
    let due = window.due(span);
    DesiredScale { replicas, why: Some(why), limited, removable: Some(Vec::new()), due }
}

/// The replicas that the load of a class needs, without the limits, and how they were computed.
fn replicas_for_load(spec: &WorkerClassSpec, demand: &ClassDemand) -> (u32, String) {
    let ClassView { capacity, request, workers_needed, workers_wanted, workers, short, .. } =
        &demand.view;
    let target = spec.scaling.target_utilization;
    let room = u128::from(capacity.milli()) * u128::from(target);
    let by_target = (u128::from(request.milli()) * 100).div_ceil(room.max(1));
    let by_target = u32::try_from(by_target).unwrap_or(u32::MAX);
    let mut why =
        format!("request {request}, capacity {capacity}, target {target}%: {by_target} workers");
    let mut asked = by_target;
    if *workers_needed > asked {
        asked = *workers_needed;
        let _ = write!(why, "; its pipelines need at least {asked}");
    }
    // The core says the same within the limits.
    if *workers_wanted > spec.min_replicas {
        asked = asked.max(*workers_wanted);
    }
    // Running shares are not moved to make room: a pipeline may fit nowhere although all would fit
    // together.
    let for_waiting = workers.saturating_add(*short);
    if *short > 0 && for_waiting > asked {
        asked = for_waiting;
        let _ = write!(why, "; a pipeline waits for {short} more than the present {workers}");
    }
    (asked, why)
}

#[cfg(test)]
#[path = "scaling_tests.rs"]
mod tests;
