//! The pods of a fleet: how they are created, become ready, are deleted, and end.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use anyhow::Result;

use super::{Fleet, Pod, PodPhase, RunningJob, Scaling, Step};
use crate::deployment::{DeploymentStep, PodNumber};
use crate::jobs::WaitingJob;
use crate::slots::{Slots, StopCause};

impl<S: Slots> Fleet<'_, S> {
    /// Creates a pod, which is not ready.
    pub(super) fn create_pod(&mut self, cluster: usize) -> PodNumber {
        let pod = self.pods.len();
        let deployment = &mut self.clusters[cluster].deployment;
        deployment.created(pod);
        let generation = deployment.revision();
        let (phase, jobs) = (PodPhase::Starting, BTreeMap::new());
        self.pods.push(Pod { cluster, generation, phase, lost_at: None, jobs });
        pod
    }

    /// A pod becomes ready, unless it was deleted before.
    pub(super) fn take_ready(&mut self, pod: PodNumber) -> Result<()> {
        let cluster = self.pods[pod].cluster;
        if self.pods[pod].phase != PodPhase::Starting {
            return self.reconcile(cluster);
        }
        self.pod_is_ready(pod)?;
        let min_ready = self.clusters[cluster].load.min_ready;
        if min_ready.is_zero() {
            return self.pod_is_available(pod);
        }
        self.schedule.add(self.now + min_ready, Step::Available(pod));
        Ok(())
    }

    /// The worker of a pod takes jobs from now on. Its Deployment does not count the pod yet.
    pub(super) fn pod_is_ready(&mut self, pod: PodNumber) -> Result<()> {
        let Pod { cluster, generation, phase, .. } = &mut self.pods[pod];
        *phase = PodPhase::Ready;
        self.clusters[*cluster].recorder.add_worker(self.now);
        self.slots.start(pod, *cluster, *generation, self.now)
    }

    /// The Deployment of a pod counts the pod as ready, unless it was deleted or lost before.
    pub(super) fn pod_is_available(&mut self, pod: PodNumber) -> Result<()> {
        let cluster = self.pods[pod].cluster;
        if self.pods[pod].phase == PodPhase::Ready {
            self.clusters[cluster].deployment.set_ready(pod, true);
        }
        self.reconcile(cluster)
    }

    /// Creates and deletes the pods that the controller of a cluster's Deployment would, unless the
    /// API server is away.
    pub(super) fn reconcile(&mut self, cluster: usize) -> Result<()> {
        while self.away_until.is_none() {
            let pods = &self.pods;
            // In a scale-in the operator has idle pods deleted first; a ReplicaSet deletes the
            // newest ones.
            let counts_jobs = self.scaling == Scaling::Workers;
            let rank = |pod: PodNumber| {
                let jobs = if counts_jobs { pods[pod].jobs.len() } else { 0 };
                (jobs, Reverse(pod))
            };
            let step = self.clusters[cluster].deployment.next_step(rank);
            if step == DeploymentStep::default() {
                break;
            }
            for _ in 0..step.creates {
                let pod = self.create_pod(cluster);
                let state = &mut self.clusters[cluster];
                let ready_at = self.now + state.load.startup.draw(&mut state.startup);
                self.schedule.add(ready_at, Step::Ready(pod));
            }
            for pod in step.deletes {
                self.delete_pod(pod)?;
            }
        }
        Ok(())
    }

    /// A pod is deleted: it takes no job any more, and ends when it can.
    pub(super) fn delete_pod(&mut self, pod: PodNumber) -> Result<()> {
        let Pod { cluster, generation, phase, .. } = &mut self.pods[pod];
        let state = &mut self.clusters[*cluster];
        state.deployment.removed(pod);
        let is_old = *generation < state.deployment.revision();
        let cause = if is_old { StopCause::Rollout } else { StopCause::ScaleIn };
        match phase {
            PodPhase::Starting => *phase = PodPhase::Ended,
            PodPhase::Ready => {
                *phase = PodPhase::Stopping;
                state.free.set(pod, false);
                self.slots.stop(pod, cause, self.now)?;
            }
            PodPhase::Stopping | PodPhase::Lost | PodPhase::Ended => {}
        }
        Ok(())
    }

    /// A pod that was deleted has ended. Jobs that it still ran are killed.
    pub(super) fn pod_has_ended(&mut self, pod: PodNumber) -> Result<()> {
        if self.pods[pod].phase != PodPhase::Stopping {
            return Ok(());
        }
        self.pods[pod].phase = PodPhase::Ended;
        let cluster = self.pods[pod].cluster;
        self.clusters[cluster].recorder.remove_worker(self.now);
        self.kill_jobs(pod)?;
        self.slots.forget(pod, self.now)
    }

    /// Machines are lost, with the oldest pods that are ready.
    pub(super) fn lose_pods(&mut self, cluster: usize, count: u32) -> Result<Vec<PodNumber>> {
        let is_chosen =
            |(_, pod): &(PodNumber, &Pod)| pod.cluster == cluster && pod.phase == PodPhase::Ready;
        let chosen = self.pods.iter().enumerate().filter(is_chosen).take(count as usize);
        let chosen: Vec<PodNumber> = chosen.map(|(number, _)| number).collect();
        for pod in &chosen {
            self.pods[*pod].phase = PodPhase::Lost;
            self.pods[*pod].lost_at = Some(self.now);
            let state = &mut self.clusters[cluster];
            state.deployment.set_ready(*pod, false);
            state.free.set(*pod, false);
            state.recorder.remove_worker(self.now);
            self.slots.lose(*pod, self.now);
            self.kill_jobs(*pod)?;
        }
        Ok(chosen)
    }

    /// The platform notices that a pod's machine is lost, and the pod is replaced.
    pub(super) fn replace(&mut self, pod: PodNumber) -> Result<()> {
        self.pods[pod].phase = PodPhase::Ended;
        let cluster = self.pods[pod].cluster;
        self.clusters[cluster].deployment.removed(pod);
        self.reconcile(cluster)
    }

    /// Kills the jobs of a pod. They begin again before all others.
    fn kill_jobs(&mut self, pod: PodNumber) -> Result<()> {
        let cluster = self.pods[pod].cluster;
        let killed = std::mem::take(&mut self.pods[pod].jobs);
        let state = &mut self.clusters[cluster];
        for RunningJob { job, began } in killed.into_values().rev() {
            state.recorder.kill(self.now.since(began), self.now);
            state.queue.put_back(WaitingJob { was_killed: true, ..job });
        }
        state.recorder.set_waiting(state.queue.len(), self.now);
        self.dispatch(cluster)
    }
}
