//! After the faults: the system is left alone until it has converged, then one thing changes.

use std::collections::BTreeMap;

use leasehold_coordinator_core::exposure::Entry;
use leasehold_coordinator_core::view::Presence;

use crate::observer::change::{Change, What};
use crate::system::clock::{MS, Real};
use crate::world::World;
use crate::world::queue::Happening;

/// Leases must last so long that a wait for one of them is told from an ordinary delay.
const TTL_MIN: Real = 2_000_000_000;

/// How far the liveness phase has come.
#[derive(Debug, Default)]
pub(crate) enum Stage {
    /// It converges.
    #[default]
    Converging,
    /// It had converged, and one thing changed.
    Changed(Change),
    /// All is done.
    Done,
}

impl World {
    /// What only the platform's word can free, somebody declares gone in the end.
    fn declare_gone(&mut self) {
        for pod in self.view().living() {
            if self.stuck_by_design(pod) {
                self.cover.hit("declared gone");
                let mut pipelines = self.view().pipelines_at(pod);
                pipelines.extend(self.view().pipelines_planned_on(pod));
                self.end_pod(pod);
                if let Stage::Changed(change) = &mut self.stage {
                    change.end(pod, pipelines);
                }
            }
        }
    }

    fn stuck_by_design(&self, pod: usize) -> bool {
        let node = &self.pods[pod];
        let complete = node.disk.borrow().memory.complete;
        let doubtful = !complete || node.twin || node.is_replaced();
        let timeless = |entry: &Option<Entry>| {
            entry.as_ref().is_none_or(|entry| entry.exposure.sets.is_timeless())
        };
        doubtful && self.store.register.get(&node.key).is_some_and(timeless)
    }

    /// Where links are unruly, some of the last words that they carry are of streams that were
    /// given back.
    fn reorder_releases(&mut self) {
        if self.profile.unruly_one_in == 0 {
            return;
        }
        self.profile.unruly_one_in = 2;
        for pod in self.view().living() {
            let first = self.pods[pod].worker.streams.iter().next();
            let first = first.map(|(key, used)| (key.clone(), used.token));
            if let Some((stream, token)) = first.filter(|_| self.rng.bool()) {
                self.cover.hit("fault: a release was the last word");
                self.let_go(pod, stream, token);
            }
        }
    }

    /// Faults end: everything works, and what had died comes back.
    pub(super) fn calm(&mut self) {
        self.reorder_releases();
        self.profile.calm();
        self.calm_since = Some(self.t);
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
            if self.stuck_by_design(pod) {
                // Only the platform's word frees what nobody can tell of and no time ends.
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
                // A worker that ignored a revoke does so no more.
                used.decided = false;
            }
            if node.leaving && !node.left && node.agent.is_some() {
                // What was asked of a stopped or dead process is asked again.
                self.agent_call(pod, leasehold_agent_core::Holder::drain);
            }
        }
        for _ in self.view().living().len()..2 {
            self.new_pod(None, 0);
        }
    }

    /// Once a run, where its seed wants it: stops an agent and lets another pod appear. Whether
    /// it did.
    fn hinder(&mut self) -> bool {
        let living = self.view().living();
        let ttl = self.profile.ttl_real();
        let leader = self.view().true_leader().map(|(leader, _)| &self.replicas[leader]);
        // What is written down comes after what was asked of the store before.
        let ready = leader.is_some_and(|leader| leader.election.is_answered());
        if !self.profile.hinders || !ready || ttl < TTL_MIN || living.len() < 2 {
            return false;
        }
        self.profile.hinders = false;
        let stopped = living[self.rng.usize(0..living.len())];
        self.pods[stopped].paused_until = self.t + ttl * 4;
        self.network.full = Some(stopped);
        let newest = self.pods.iter().map(|pod| pod.generation).max().unwrap_or(0);
        let other = self.new_pod(None, newest);
        self.trace.say(self.t, || format!("        p{stopped} stops, p{other} appears"));
        // Any wait for the end of the stopped one's leases is longer.
        self.after(ttl / 2, Happening::Hindered { pod: other });
        self.observer.last_change = self.t;
        self.calm_since = Some(self.t);
        true
    }

    /// The pod that has appeared is served by now.
    pub(super) fn check_hindered(&mut self, pod: usize) {
        let Some((leader, _)) = self.view().true_leader() else { return };
        self.network.full = None;
        self.cover.hit("checked: a stopped agent delays nobody else");
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

    /// Looks whether it has converged, and goes on from there.
    pub(super) fn look(&mut self) {
        let ttl = self.profile.ttl_real();
        self.after(ttl / 2, Happening::Look);
        let waited = self.t - self.calm_since.unwrap_or(self.t);
        if let Stage::Changed(Change { what: What::Leave(pod), .. }) = self.stage {
            self.checks().check_drain(pod, waited);
        }
        if let Stage::Changed(Change { what: What::Failover, .. }) = self.stage {
            self.checks().check_served_again(waited);
        }
        self.checks().check_deposed();
        if let Err(why) = self.view().converged() {
            self.trace.say(self.t, || format!("        not converged: {why:?}"));
            if waited > self.view().patience() / 2 {
                self.declare_gone();
            }
            if waited > self.view().patience() {
                let property = why.0;
                self.checks().fail(property, || format!("not converged: {}", why.1));
            }
            return;
        }
        // Still for longer than any cooldown and settling that a manifest may ask for.
        if self.t - self.observer.last_change < self.view().stillness() {
            if waited > self.view().patience() {
                self.checks().fail("L4", || "it moves again and again".into());
            }
            return;
        }
        self.cover.hit("converged and still");
        self.checks().expect_leader();
        match std::mem::take(&mut self.stage) {
            Stage::Converging => {
                if !self.hinder() {
                    self.change_one_thing();
                }
            }
            Stage::Changed(change) => {
                self.checks().check_change(&change);
                self.stage = Stage::Done;
            }
            Stage::Done => self.stage = Stage::Done,
        }
    }

    fn change_one_thing(&mut self) {
        let living = self.view().living();
        let Some(pod) = self.rng.choice(living) else {
            self.stage = Stage::Done;
            return;
        };
        let (owners, handed_over) = (self.view().owners(), self.view().handed_over());
        self.observer.streams_changed.clear();
        self.observer.streams_expired.clear();
        let mut waiting = self.view().waiting_pipelines();
        let mut fits_beside = false;
        // Where there are pipelines, a loss is what heals them.
        let kinds = if self.profile.pipelines { 8 } else { 5 };
        let what = match self.rng.u8(0..kinds) {
            0 | 1 => {
                let (leader, _) = self.view().true_leader().expect("it has converged");
                let standby = (leader + 1) % self.replicas.len();
                match self.rng.bool() {
                    true => {
                        self.crash_replica(leader);
                        self.after(MS * 50, Happening::BootReplica { replica: leader });
                    }
                    false => self.cover.hit("checked: a leader that lives is followed"),
                }
                self.checks().expect_failover();
                // A standby that loses its connection to the leader does not wait.
                self.replicas[standby].election.eager = true;
                let run = self.replicas[standby].run;
                self.after(MS, Happening::Poll { replica: standby, run });
                What::Failover
            }
            2 => {
                let newest = self.pods.iter().map(|pod| pod.generation).max().unwrap_or(0);
                What::Join(self.new_pod(None, newest))
            }
            3 | 5.. => {
                // Where there is one, one that serves something.
                let serving = self
                    .view()
                    .living()
                    .into_iter()
                    .filter(|it| !self.view().pipelines_at(*it).is_empty());
                let serving: Vec<_> = serving.collect();
                let pod = self.rng.choice(serving).unwrap_or(pod);
                waiting.extend(self.view().pipelines_at(pod));
                fits_beside = self.view().fits_beside(pod);
                self.end_pod(pod);
                What::Loss(pod)
            }
            _ => {
                // What its worker was never told of, its agent holds all the same.
                waiting.extend(self.view().pipelines_at(pod));
                self.drain_pod(pod);
                What::Leave(pod)
            }
        };
        self.trace.say(self.t, || format!("        one change: {what:?}"));
        let ended = BTreeMap::new();
        let change = Change { what, owners, handed_over, waiting, fits_beside, ended };
        self.stage = Stage::Changed(change);
        self.calm_since = Some(self.t);
        self.observer.last_change = self.t;
    }
}
