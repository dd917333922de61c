//! L5: one agent that is stopped delays nobody else.

use leasehold_coordinator_core::view::Presence;

use super::clock::Real;
use super::queue::Happening;
use super::world::World;

/// Leases must last so long that a wait for one of them is told from an ordinary delay.
const TTL_MIN: Real = 2_000_000_000;

impl World {
    /// Once a run, where its seed wants it: stops an agent and lets another pod appear. Whether
    /// it did.
    pub(super) fn hinder(&mut self) -> bool {
        let living = self.living();
        let ttl = self.profile.ttl_real();
        let leader = self.true_leader().map(|(leader, _)| &self.replicas[leader]);
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
        let Some((leader, _)) = self.true_leader() else { return };
        self.network.full = None;
        self.cover.hit("checked: a stopped agent delays nobody else");
        let now = self.local_of_replica(leader);
        let core = self.replicas[leader].core.as_ref();
        let view = core.and_then(|core| core.worker(&self.pods[pod].key, now));
        let presence = view.map(|view| view.presence);
        let applied = self.pods[pod].agent.as_ref().map(|agent| agent.applied.1.0);
        if presence != Some(Presence::Connected) || applied.unwrap_or(0) == 0 {
            self.fail("L5", || {
                format!("while another agent is stopped, p{pod} is {presence:?} to c{leader}")
            });
        }
    }
}
