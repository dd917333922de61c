//! What the leader takes for outstanding is never less than what is: each stream that a pod may
//! use is claimed by its worker or counts as unheard (S2), and for at least as long (S4).
//!
//! Invariant: a leader that frees too early is seen here before anybody else uses the stream.

use leasehold_types::{Moment, StreamKey};

use super::clock::Real;
use super::world::World;

/// Every so many steps one pod is looked at: what is wrong stays so for many steps.
const STEPS: u64 = 2;
/// The same in a large fleet.
const STEPS_LARGE: u64 = 32;
/// A fleet is large where more pods have lived.
const PODS_LARGE: usize = 40;

impl World {
    /// Compares the leader's view with one pod after the other.
    pub(super) fn check_outstanding(&mut self, leader: Option<usize>) {
        if leader.is_some() && self.is_sampled() && self.pods.len() > 0 {
            let pod = (self.observer.compared + 1) % self.pods.len();
            self.observer.compared = pod;
            self.check_outstanding_at(leader, pod);
        }
    }

    /// Whether this step is one after which what takes long is looked at.
    pub(super) fn is_sampled(&self) -> bool {
        let steps = if self.pods.len() > PODS_LARGE { STEPS_LARGE } else { STEPS };
        self.trace.steps().is_multiple_of(steps)
    }

    /// Compares the leader's view of what one pod has with the truth.
    pub(super) fn check_outstanding_at(&mut self, leader: Option<usize>, pod: usize) {
        let node = &self.pods[pod];
        let Some(replica) = leader.map(|leader| &self.replicas[leader]) else { return };
        let Some(core) = replica.core.as_ref() else { return };
        if node.dead {
            return;
        }
        let wrong = self.observer.known.streams_of(pod).iter().find_map(|stream| {
            let known = core.outstanding_until(&node.key, stream);
            if known == Some(Moment::NEVER) {
                return None;
            }
            let end = self.end_of_use(pod, stream).filter(|end| *end > self.t)?;
            let Some(known) = known.map(|known| replica.clock.real(known)) else {
                return Some(("S2", format!("{stream}, which the leader takes for free")));
            };
            let what = || format!("{stream} until {end}, the leader knows of it until {known}");
            (known < end).then(|| ("S4", what()))
        });
        if let Some((property, wrong)) = wrong {
            self.fail(property, || format!("p{pod} may use {wrong}"));
        }
    }

    /// When a pod's worker and agent can no longer use a stream, if nothing more is said to them;
    /// none where neither has it.
    fn end_of_use(&self, pod: usize, stream: &StreamKey) -> Option<Real> {
        let node = &self.pods[pod];
        let worker = node.worker.streams.get(stream).filter(|_| node.worker.alive);
        let worker = worker.map(|used| match used.until {
            Some(until) if node.worker.stoppable => node.clock.real(until),
            _ => Real::MAX,
        });
        let disk = node.disk.borrow();
        let memory = &disk.memory;
        let held = memory.streams.get(stream).filter(|_| !node.superseded);
        let until = held.map(|held| held.until(memory.renewed_until));
        let agent = until.map(|until| until.map_or(Real::MAX, |until| node.clock.real(until)));
        worker.max(agent)
    }
}
