//! After the faults: the system is left alone until it has converged, then one thing changes.

use std::collections::BTreeMap;

use leasehold_coordinator_core::exposure::Entry;
use leasehold_coordinator_core::view::Presence;
use leasehold_types::PipelineName;

use crate::observer::change::{ChangeKind, SystemChange};
use crate::system::clock::{MS, Real};
use crate::world::World;
use crate::world::queue::SimEvent;

/// Leases must last at least this long: a wait for one must be longer than an ordinary delay.
const TTL_MIN: Real = 2_000_000_000;

/// Where the liveness phase is.
#[derive(Debug, Default)]
pub(crate) enum LivenessStage {
    /// The system converges.
    #[default]
    Converging,
    /// It had converged, and then one thing changed.
    Changed(SystemChange),
    /// The run is over.
    Done,
}

impl World {
    /// Declares pods gone whose leases only the platform can free.
    fn declare_gone(&mut self) {
        for pod in self.view().living() {
            if self.needs_declaration(pod) {
                self.coverage.hit("declared gone");
                let mut pipelines = self.view().pipelines_at(pod);
                pipelines.extend(self.view().pipelines_planned_on(pod));
                self.end_pod(pod);
                if let LivenessStage::Changed(change) = &mut self.stage {
                    change.end(pod, pipelines);
                }
            }
        }
    }

    fn needs_declaration(&self, pod: usize) -> bool {
        let node = &self.pods[pod];
        if node.removed {
            return true;
        }
        let complete = node.disk.borrow().memory.complete;
        if self.keeps_names && node.identities.len() > 1 {
            // Nobody else can say that what its earlier agent was granted has ended.
            return true;
        }
        let doubtful = !complete || node.twin || node.is_replaced();
        let timeless = |entry: &Option<Entry>| {
            entry.as_ref().is_none_or(|entry| entry.exposure.sets.is_timeless())
        };
        doubtful && self.store.register.get(&node.key).is_some_and(timeless)
    }

    /// Where links are unreliable, makes releases of streams some of the last messages on them.
    fn reorder_releases(&mut self) {
        if self.profile.unreliable_one_in == 0 {
            return;
        }
        self.profile.unreliable_one_in = 2;
        for pod in self.view().living() {
            let first = self.pods[pod].worker.streams.iter().next();
            let first = first.map(|(key, used)| (key.clone(), used.token));
            if let Some((stream, token)) = first.filter(|_| self.rng.bool()) {
                self.coverage.hit("fault: a release was the last word");
                self.stop_use(pod, stream, token);
            }
        }
    }

    /// Ends all faults: everything works, and dead processes come back.
    pub(super) fn end_faults(&mut self) {
        self.reorder_releases();
        self.profile.end_faults();
        self.quiet_since = Some(self.t);
        for cut in self.network.cuts.clone() {
            self.heal(cut);
        }
        for link in &mut self.network.links {
            link.slow_writer = false;
            // What waited for a stopped replica comes when that would have gone on: it is late on
            // its way.
            link.unread = None;
        }
        for replica in 0..self.replicas.len() {
            self.replicas[replica].paused_until = self.t;
            self.boot_replica(replica);
        }
        self.restore_classes();
        for pod in self.view().living() {
            if self.needs_declaration(pod) {
                // Only the platform can free leases that never expire and no agent can report.
                self.end_pod(pod);
                continue;
            }
            self.go_on(pod);
            let node = &mut self.pods[pod];
            let mut disk = node.disk.borrow_mut();
            (disk.failing, disk.failing_next, disk.nearly_full) = (false, 0, false);
            disk.crash_after = None;
            drop(disk);
            for used in node.worker.streams.values_mut() {
                // A worker no longer ignores a revoke.
                used.decided = false;
            }
            if node.leaving && !node.left && node.agent.is_some() {
                // A request to a stopped or dead process is repeated.
                self.agent_call(pod, leasehold_agent_core::Holder::drain);
            }
        }
        for _ in self.view().living().len()..2 {
            self.new_pod(None, 0);
        }
    }

    /// Once in a run of some seeds: stops an agent and starts another pod. Returns whether it did.
    fn stop_one_agent(&mut self) -> bool {
        let living = self.view().living();
        let ttl = self.profile.ttl_real();
        let leader = self.view().true_leader().map(|(leader, _)| &self.replicas[leader]);
        // A store answers earlier requests first, which would delay the new pod.
        let ready = leader.is_some_and(|leader| leader.election.is_answered());
        if !self.profile.stops_agent || !ready || ttl < TTL_MIN || living.len() < 2 {
            return false;
        }
        self.profile.stops_agent = false;
        let stopped = living[self.rng.usize(0..living.len())];
        self.pods[stopped].paused_until = self.t + ttl * 4;
        self.network.full = Some(stopped);
        let newest = self.pods.iter().map(|pod| pod.generation).max().unwrap_or(0);
        let other = self.new_pod(None, newest);
        self.trace.say(self.t, || format!("        p{stopped} stops, p{other} appears"));
        // Any wait for the end of the stopped one's leases is longer.
        self.after(ttl / 2, SimEvent::CheckNotDelayed { pod: other });
        self.observer.last_change = self.t;
        self.quiet_since = Some(self.t);
        true
    }

    /// L5: the new pod is served by now.
    pub(super) fn check_not_delayed(&mut self, pod: usize) {
        let Some((leader, _)) = self.view().true_leader() else { return };
        self.network.full = None;
        self.coverage.hit("checked: a stopped agent delays no other worker");
        let now = self.view().local_of_replica(leader);
        let core = self.replicas[leader].core.as_ref();
        let view = core.and_then(|core| core.worker(&self.pods[pod].key, now));
        let presence = view.map(|view| view.presence);
        let applied = self.pods[pod].agent.as_ref().map(|agent| agent.applied.1.0);
        if presence != Some(Presence::Connected) || applied.unwrap_or(0) == 0 {
            self.checks().fail("L5", || {
                format!("while another agent is stopped, p{pod} is {presence:?} to c{leader}")
            });
        }
    }

    /// Checks whether the system has converged, and starts what comes next.
    pub(super) fn check_convergence(&mut self) {
        let ttl = self.profile.ttl_real();
        self.after(ttl / 2, SimEvent::CheckConvergence);
        let waited = self.t - self.quiet_since.unwrap_or(self.t);
        if let LivenessStage::Changed(SystemChange { kind: ChangeKind::Leave(pod), .. }) =
            self.stage
        {
            self.checks().check_drain(pod, waited);
        }
        if let LivenessStage::Changed(SystemChange { kind: ChangeKind::Failover, .. }) = self.stage
        {
            self.checks().check_served_again(waited);
        }
        self.checks().check_deposed();
        if let Err(why) = self.view().converged() {
            self.trace.say(self.t, || format!("        not converged: {why:?}"));
            if waited > self.view().convergence_timeout() / 2 {
                self.declare_gone();
            }
            if waited > self.view().convergence_timeout() {
                let property = why.0;
                self.checks().fail(property, || format!("not converged: {}", why.1));
            }
            return;
        }
        // Unchanged for longer than any cooldown and settling time of the manifests.
        if self.t - self.observer.last_change < self.view().quiet_period() {
            if waited > self.view().convergence_timeout() {
                self.checks().fail("L4", || "it moves again and again".into());
            }
            return;
        }
        self.coverage.hit("converged and still");
        self.checks().expect_leader();
        match std::mem::take(&mut self.stage) {
            // What follows from a pod that ends meanwhile would be taken for the change's.
            LivenessStage::Converging => {
                if !self.queue.ends_a_pod() && !self.stop_one_agent() {
                    self.change_one_thing();
                }
            }
            LivenessStage::Changed(change) => {
                self.checks().check_change(&change);
                self.stage = LivenessStage::Done;
            }
            LivenessStage::Done => self.stage = LivenessStage::Done,
        }
    }

    /// A pod dies with the leader, and the platform learns of that late: the next leader must
    /// reckon with all that it may hold. Returns the pod and the pipelines that it serves.
    fn end_with_leader(&mut self, pod: usize) -> Option<(usize, Vec<PipelineName>)> {
        if self.view().living().len() < 3 || self.keeps_names {
            return None;
        }
        self.coverage.hit("checked: a worker that dies with its leader takes no slot");
        let mut pipelines = self.view().pipelines_at(pod);
        pipelines.extend(self.view().pipelines_planned_on(pod));
        self.pods[pod].listed_from = self.t + self.profile.ttl_real() * 3;
        self.end_pod(pod);
        Some((pod, pipelines))
    }

    fn change_one_thing(&mut self) {
        let living = self.view().living();
        let Some(pod) = self.rng.choice(living) else {
            self.stage = LivenessStage::Done;
            return;
        };
        let (owners, handed_over) = (self.view().owners(), self.view().handed_over());
        let mut ended = BTreeMap::new();
        self.observer.streams_changed.clear();
        self.observer.streams_expired.clear();
        self.observer.lost.clear();
        let mut waiting = self.view().waiting_pipelines();
        let mut fits_beside = false;
        // With pipelines, a loss is more likely: it shows how they heal.
        let kinds = if self.profile.pipelines { 8 } else { 5 };
        let kind = match self.rng.u8(0..kinds) {
            0 | 1 => {
                let (leader, _) = self.view().true_leader().expect("it has converged");
                let standby = (leader + 1) % self.replicas.len();
                self.observer.slots_before = self.view().settled_pool_sizes();
                if self.rng.bool() {
                    self.crash_replica(leader);
                    self.after(MS * 50, SimEvent::BootReplica { replica: leader });
                    if self.profile.dies_with_leader {
                        ended.extend(self.end_with_leader(pod));
                    }
                } else {
                    self.coverage.hit("checked: a leader that lives is followed");
                }
                self.checks().expect_failover();
                // A standby that loses its connection to the leader does not wait.
                self.replicas[standby].election.eager = true;
                let run = self.replicas[standby].run;
                self.after(MS, SimEvent::Poll { replica: standby, run });
                ChangeKind::Failover
            }
            2 => {
                let newest = self.pods.iter().map(|pod| pod.generation).max().unwrap_or(0);
                ChangeKind::Join(self.new_pod(None, newest))
            }
            3 | 5.. => {
                // Prefers a pod that serves a pipeline.
                let serving = self
                    .view()
                    .living()
                    .into_iter()
                    .filter(|pod| !self.view().pipelines_at(*pod).is_empty());
                let serving: Vec<_> = serving.collect();
                let pod = self.rng.choice(serving).unwrap_or(pod);
                waiting.extend(self.view().pipelines_at(pod));
                fits_beside = self.view().fits_beside(pod);
                self.end_pod(pod);
                ChangeKind::Loss(pod)
            }
            _ => {
                // Its agent may hold a share that its worker never learned of.
                waiting.extend(self.view().pipelines_at(pod));
                self.drain_pod(pod);
                ChangeKind::Leave(pod)
            }
        };
        self.trace.say(self.t, || format!("        one change: {kind:?}"));
        let died = ended.keys().next().copied();
        let change = SystemChange { kind, owners, handed_over, waiting, fits_beside, died, ended };
        self.stage = LivenessStage::Changed(change);
        self.quiet_since = Some(self.t);
        self.observer.last_change = self.t;
    }
}
