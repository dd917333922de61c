//! Workers that fail their checks for a while: some hang, others go on and only seem to.

use fastrand::Rng;

use crate::system::clock::{MS, Real};
use crate::world::World;
use crate::world::queue::SimEvent;

/// In one seed in this many workers fail their checks.
const FAILS_EVERY: u64 = 3;
/// Makes another sequence of random numbers of a seed: with one of their own, these failures change
/// nothing in the seeds that have none.
const OWN_SEQUENCE: u64 = 0x6865_616c_7468;

/// Draws which workers fail, when and for how long; none in a seed without failures.
pub(super) fn failures(seed: u64) -> Option<Rng> {
    let mut rng = Rng::with_seed(seed ^ OWN_SEQUENCE);
    (rng.u64(0..FAILS_EVERY) == 0).then_some(rng)
}

impl World {
    /// A worker begins to fail its check, and another one some time later.
    pub(super) fn next_failure(&mut self) {
        let (ttl, every) = (self.profile.ttl_real(), self.profile.fault_every);
        let living = self.view().living();
        let Some(rng) = self.failures.as_mut().filter(|_| self.quiet_since.is_none()) else {
            return;
        };
        let next = rng.u64(MS..=8 * every);
        let time = rng.u64(MS..=ttl * 4);
        let (hangs, pod) = (rng.bool(), rng.choice(living));
        self.after(next, SimEvent::FailWorker);
        let Some(pod) = pod else { return };
        let until = self.t + time;
        let node = &mut self.pods[pod];
        node.fails_until = until;
        if hangs {
            node.worker.reads_at = node.worker.reads_at.max(until);
            self.coverage.hit("fault: worker hangs");
        } else {
            self.coverage.hit("fault: worker fails its check and goes on");
        }
        self.check_worker_at(pod, self.t);
    }

    /// The agent begins, in a seed with failures: it checks its worker soon.
    pub(super) fn check_worker_of_new_agent(&mut self, pod: usize) {
        if self.failures.is_some() {
            self.check_worker_at(pod, self.t);
        }
    }

    /// The agent checks its worker.
    pub(super) fn check_worker(&mut self, pod: usize) {
        let fails_until = self.pods[pod].fails_until;
        if self.t < fails_until {
            let failure = leasehold_types::message::WorkerFailure::new("the check has failed");
            let failure = failure.expect("the text is not empty");
            self.agent_call(pod, |holder, now| holder.fail(failure, now));
            self.check_worker_at(pod, fails_until);
        } else if let Some(Err(_)) = self.agent_call(pod, |holder, now| holder.recover(now)) {
            // It could not be stored.
            self.check_worker_at(pod, self.t + 100 * MS);
        }
    }

    fn check_worker_at(&mut self, pod: usize, at: Real) {
        self.after(at.saturating_sub(self.t).max(MS), SimEvent::CheckWorker { pod });
    }

    /// No worker fails any longer.
    pub(super) fn end_failures(&mut self) {
        for pod in self.view().living() {
            let node = &mut self.pods[pod];
            node.worker.reads_at = node.worker.reads_at.min(self.t);
            if self.t < node.fails_until {
                node.fails_until = self.t;
                self.check_worker_at(pod, self.t);
            }
        }
    }
}
