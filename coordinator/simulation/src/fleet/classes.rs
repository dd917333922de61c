//! The classes of a fleet: how documents come to their pipelines, and how many workers they have.

use anyhow::Result;
use leasehold_types::Moment;

use super::{Fleet, Pod, PodPhase, Scaling, Step};
use crate::class_record::{ClassFigures, WantedRecorder};
use crate::class_scaler::{self, ClassScaler, LOOKS_EVERY, NOT_READY_AFTER};
use crate::deployment::PodNumber;
use crate::load::ClusterLoad;
use crate::served_shares::ShareFigures;
use crate::slots::Slots;

/// What scales a class, and what is recorded of it.
#[derive(Debug)]
pub(super) struct ClassState {
    scaler: ClassScaler,
    wanted: WantedRecorder,
}

impl ClassState {
    /// The figures of a class that had so many workers at once, and of its shares.
    pub(super) fn finish(self, workers_max: u32, shares: Option<ShareFigures>) -> ClassFigures {
        self.wanted.finish(workers_max, shares.unwrap_or_default())
    }
}

impl<S: Slots> Fleet<'_, S> {
    /// A class begins with the workers that its load needs, unless the load names their number.
    pub(super) fn begin_class(&mut self, cluster: usize) {
        let Some(view) = self.slots.class(cluster).filter(|_| self.scaling == Scaling::Workers)
        else {
            return;
        };
        let (start, end) = (self.start, self.start + self.load.length);
        let asked = class_scaler::asked(&view);
        let state = &mut self.clusters[cluster];
        let ClusterLoad { workers, stabilization, .. } = state.load;
        if workers.is_none() {
            state.deployment.set_replicas(asked);
        }
        let scaler = ClassScaler::new(*stabilization);
        let wanted = WantedRecorder::new(asked, start, end);
        state.class = Some(ClassState { scaler, wanted });
        self.schedule.add(self.now + LOOKS_EVERY, Step::ScaleClass(cluster));
    }

    /// The next look at a class.
    pub(super) fn take_look(&mut self, cluster: usize) -> Result<()> {
        self.schedule.add(self.now + LOOKS_EVERY, Step::ScaleClass(cluster));
        self.scale_class(cluster)
    }

    /// Documents come to pipelines at other rates, or streams have other weights. The manifests
    /// follow, in a step of their own, which waits while the API server is away.
    pub(super) fn change_rates(&mut self, index: usize) {
        let load = self.load;
        self.slots.change_rates(&load.rate_changes[index], self.now);
        self.schedule.add(self.now, Step::EditManifests(index));
    }

    /// The manifests follow the rates of pipelines and the weights of streams.
    pub(super) fn edit_manifests(&mut self, index: usize) -> Result<()> {
        let load = self.load;
        self.slots.edit_manifests(&load.rate_changes[index], self.now)?;
        (0..self.clusters.len()).try_for_each(|cluster| self.scale_class(cluster))
    }

    /// Gives a class the workers that it is to have: those that an event or the load has set, or
    /// that its load needs.
    pub(super) fn scale_class(&mut self, cluster: usize) -> Result<()> {
        let Some(view) = self.slots.class(cluster) else { return Ok(()) };
        let (now, is_away) = (self.now, self.away_until.is_some());
        let deployment = &self.clusters[cluster].deployment;
        let is_lost = |pod: &PodNumber| is_long_lost(&self.pods[*pod], now);
        let lost = deployment.pods().filter(is_lost).count();
        let state = &mut self.clusters[cluster];
        let Some(class) = &mut state.class else { return Ok(()) };
        class.wanted.set(class_scaler::asked(&view), now);
        if is_away {
            return Ok(());
        }
        let present = state.deployment.replicas();
        let set = state.workers.or(state.load.workers);
        let workers = set.unwrap_or_else(|| class.scaler.workers(&view, lost as u32, present, now));
        if workers < present {
            return self.remove_workers(cluster, present - workers);
        }
        state.deployment.set_replicas(workers);
        self.reconcile(cluster)
    }

    /// Drains as many workers of a class as can be spared, up to this many; none during a rollout.
    /// Each counts as removed from now on.
    fn remove_workers(&mut self, cluster: usize, most: u32) -> Result<()> {
        if self.clusters[cluster].deployment.is_rolling() {
            return Ok(());
        }
        let removable = self.slots.removable(cluster).into_iter();
        let ready = removable.filter(|pod| self.pods[*pod].phase == PodPhase::Ready);
        let chosen: Vec<PodNumber> = ready.take(most as usize).collect();
        for pod in chosen {
            let deployment = &mut self.clusters[cluster].deployment;
            deployment.set_replicas(deployment.replicas() - 1);
            self.delete_pod(pod)?;
        }
        self.reconcile(cluster)
    }
}

/// Whether the machine of a pod was lost so long ago that its node is not ready, and the pod is not
/// replaced yet.
fn is_long_lost(pod: &Pod, now: Moment) -> bool {
    let is_lost = pod.phase == PodPhase::Lost;
    is_lost && pod.lost_at.is_some_and(|at| at + NOT_READY_AFTER <= now)
}
