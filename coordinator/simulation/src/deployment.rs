//! A Deployment as its controller on Kubernetes keeps it: how many pods it creates and which it
//! deletes, when it is scaled and during a rolling update. A pod that is deleted counts no more,
//! though it may run on for a while.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use leasehold_manifest::CountOrPercent;

use crate::load::RolloutLimits;

/// Names a pod of a fleet: the first one is 0.
pub(crate) type PodNumber = usize;

/// A Deployment and its pods.
#[derive(Debug)]
pub(crate) struct Deployment {
    replicas: u32,
    /// How many rollouts have begun.
    revision: u64,
    /// The limits of the newest rollout; none before the first one.
    limits: Option<RolloutLimits>,
    /// Those that are not deleted.
    pods: BTreeMap<PodNumber, PodState>,
    counts: PodCounts,
}

/// How many of the pods are ready, how many are of the newest revision, and how many of the latter
/// are not ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PodCounts {
    ready: u32,
    new: u32,
    new_starting: u32,
}

#[derive(Clone, Copy, Debug)]
struct PodState {
    revision: u64,
    is_ready: bool,
}

/// What the controller does next.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DeploymentStep {
    pub(crate) creates: u32,
    pub(crate) deletes: Vec<PodNumber>,
}

impl Deployment {
    /// A Deployment without pods.
    pub(crate) fn new(replicas: u32) -> Self {
        let counts = PodCounts::default();
        Self { replicas, revision: 0, limits: None, pods: BTreeMap::new(), counts }
    }

    pub(crate) fn replicas(&self) -> u32 {
        self.replicas
    }

    pub(crate) fn set_replicas(&mut self, replicas: u32) {
        self.replicas = replicas;
    }

    /// The pods that count: all that are neither deleted nor replaced.
    pub(crate) fn pods(&self) -> impl Iterator<Item = PodNumber> {
        self.pods.keys().copied()
    }

    /// Whether a rollout has pods left to replace.
    pub(crate) fn is_rolling(&self) -> bool {
        self.counts.new != self.pods.len() as u32
    }

    /// The number of rollouts that have begun; new pods are of this generation.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// All pods are to be replaced.
    pub(crate) fn begin_rollout(&mut self, limits: RolloutLimits) {
        self.revision += 1;
        self.limits = Some(limits);
        self.counts = PodCounts { new: 0, new_starting: 0, ..self.counts };
    }

    /// A pod was created.
    pub(crate) fn created(&mut self, pod: PodNumber) {
        self.set_state(pod, Some(PodState { revision: self.revision, is_ready: false }));
    }

    /// A pod is ready, or no longer. Nothing happens if it was deleted.
    pub(crate) fn set_ready(&mut self, pod: PodNumber, is_ready: bool) {
        if let Some(state) = self.pods.get(&pod).copied() {
            self.set_state(pod, Some(PodState { is_ready, ..state }));
        }
    }

    /// A pod was deleted, or has ended.
    pub(crate) fn removed(&mut self, pod: PodNumber) {
        self.set_state(pod, None);
    }

    /// A pod is in this state, or is there no longer.
    fn set_state(&mut self, pod: PodNumber, state: Option<PodState>) {
        let before = match state {
            Some(state) => self.pods.insert(pod, state),
            None => self.pods.remove(&pod),
        };
        for (counted, is_added) in [(before, false), (state, true)] {
            let Some(state) = counted else { continue };
            let is_new = self.is_new(&state);
            let PodCounts { ready, new, new_starting } = &mut self.counts;
            let is_of =
                [(ready, state.is_ready), (new, is_new), (new_starting, is_new && !state.is_ready)];
            for (count, _) in is_of.into_iter().filter(|(_, is_of)| *is_of) {
                if is_added {
                    *count += 1;
                } else {
                    *count -= 1;
                }
            }
        }
    }

    /// What the controller does now. Of pods that are alike, that of the lowest `rank` is deleted
    /// first in a scale-in, and the newest one during a rollout.
    pub(crate) fn next_step<K: Ord>(&self, rank: impl Fn(PodNumber) -> K) -> DeploymentStep {
        // Counted with each change: to count all pods at each step would take quadratic time.
        let PodCounts { ready, new, new_starting } = self.counts;
        let total = self.pods.len() as u32;
        let Some(limits) = self.limits.filter(|_| self.is_rolling()) else {
            let deletes = self.lowest(|_| true, total.saturating_sub(self.replicas), rank);
            return DeploymentStep { creates: self.replicas.saturating_sub(total), deletes };
        };
        let (surge, unavailable) = limits.for_replicas(self.replicas);
        let room = self.replicas.saturating_add(surge).saturating_sub(total);
        let creates = self.replicas.saturating_sub(new).min(room);
        let surplus = new.saturating_sub(self.replicas);
        let mut deletes = self.lowest(|pod| self.is_new(pod), surplus, Reverse);
        let ready_min = self.replicas.saturating_sub(unavailable);
        let deletable = total.saturating_sub(ready_min + new_starting);
        if deletable > 0 {
            // Old pods that are not ready go first, since nobody misses them.
            let is_starting = |pod: &PodState| !self.is_new(pod) && !pod.is_ready;
            deletes.extend(self.lowest(is_starting, deletable, Reverse));
            let spare = ready.saturating_sub(ready_min);
            let is_serving = |pod: &PodState| !self.is_new(pod) && pod.is_ready;
            deletes.extend(self.lowest(is_serving, spare, Reverse));
        }
        DeploymentStep { creates, deletes }
    }

    fn is_new(&self, pod: &PodState) -> bool {
        pod.revision == self.revision
    }

    /// At most `most` of these pods: those that are not ready, then those of the lowest ranks.
    fn lowest<K: Ord>(
        &self,
        which: impl Fn(&PodState) -> bool,
        most: u32,
        rank: impl Fn(PodNumber) -> K,
    ) -> Vec<PodNumber> {
        if most == 0 {
            return Vec::new();
        }
        let chosen = self.pods.iter().filter(|(_, pod)| which(pod));
        let mut chosen: Vec<_> =
            chosen.map(|(number, pod)| (pod.is_ready, rank(*number), *number)).collect();
        if let Some(last) = chosen.len().checked_sub(1) {
            chosen.select_nth_unstable(last.min(most as usize));
        }
        chosen.truncate(most as usize);
        chosen.sort_unstable();
        chosen.into_iter().map(|(_, _, number)| number).collect()
    }
}

impl RolloutLimits {
    /// How many pods may be there beyond the replicas, and how many may be missing. Percentages are
    /// rounded as the controller rounds them: up, and down; if both are 0, one may be missing.
    fn for_replicas(&self, replicas: u32) -> (u32, u32) {
        let percent = |percent: u8| u64::from(replicas) * u64::from(percent);
        let surge = match self.max_surge {
            CountOrPercent::Count(count) => count,
            CountOrPercent::Percent(given) => percent(given).div_ceil(100) as u32,
        };
        let unavailable = match self.max_unavailable {
            CountOrPercent::Count(count) => count,
            CountOrPercent::Percent(given) => (percent(given) / 100) as u32,
        };
        if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries out steps until nothing is left to do. Returns how many pods were created, and which
    /// were deleted.
    fn settle(deployment: &mut Deployment, next: &mut PodNumber) -> (u32, Vec<PodNumber>) {
        let (mut created, mut deleted) = (0, Vec::new());
        loop {
            let step = deployment.next_step(Reverse);
            if step == DeploymentStep::default() {
                return (created, deleted);
            }
            for _ in 0..step.creates {
                deployment.created(*next);
                *next += 1;
            }
            created += step.creates;
            step.deletes.iter().for_each(|pod| deployment.removed(*pod));
            deleted.extend(step.deletes);
        }
    }

    fn ready(deployment: &mut Deployment, pods: impl IntoIterator<Item = PodNumber>) {
        pods.into_iter().for_each(|pod| deployment.set_ready(pod, true));
    }

    #[test]
    fn it_is_scaled_by_its_newest_pods_and_by_those_that_are_not_ready_first() {
        let (mut deployment, mut next) = (Deployment::new(4), 0);
        assert_eq!(settle(&mut deployment, &mut next), (4, vec![]));
        ready(&mut deployment, [0, 2, 3]);
        deployment.set_replicas(2);
        assert_eq!(settle(&mut deployment, &mut next), (0, vec![1, 3]));
        deployment.removed(0);
        assert_eq!(settle(&mut deployment, &mut next), (1, vec![]), "one was lost");
    }

    #[test]
    fn a_rolling_update_keeps_within_its_limits() {
        let (mut deployment, mut next) = (Deployment::new(10), 0);
        settle(&mut deployment, &mut next);
        ready(&mut deployment, 0..10);
        let limit = CountOrPercent::Percent(25);
        deployment.begin_rollout(RolloutLimits { max_surge: limit, max_unavailable: limit });
        // 3 more than 10 may be there, and 8 have to be ready.
        assert_eq!(settle(&mut deployment, &mut next), (5, vec![9, 8]));
        let mut deleted = 2;
        for pod in 10..20 {
            assert!(deployment.pods.values().filter(|pod| pod.is_ready).count() >= 8);
            deployment.set_ready(pod, true);
            deleted += settle(&mut deployment, &mut next).1.len();
            assert!(deployment.pods.len() <= 13);
        }
        assert_eq!((deleted, deployment.pods.len(), next), (10, 10, 20));
    }

    #[test]
    fn ranks_choose_the_pods_of_a_scale_in_and_not_those_of_a_rollout() {
        let (mut deployment, mut next) = (Deployment::new(4), 0);
        settle(&mut deployment, &mut next);
        ready(&mut deployment, 0..4);
        let oldest_first = |pod: PodNumber| pod;
        deployment.set_replicas(3);
        assert_eq!(deployment.next_step(oldest_first).deletes, [0]);
        deployment.set_replicas(4);
        let (max_surge, max_unavailable) = (CountOrPercent::Count(0), CountOrPercent::Count(1));
        deployment.begin_rollout(RolloutLimits { max_surge, max_unavailable });
        assert_eq!(deployment.next_step(oldest_first).deletes, [3]);
    }

    #[test]
    fn a_rollout_that_may_neither_add_nor_miss_a_pod_misses_one() {
        let zero = CountOrPercent::Percent(1);
        let limits = RolloutLimits { max_surge: CountOrPercent::Count(0), max_unavailable: zero };
        assert_eq!(limits.for_replicas(10), (0, 1));
        assert_eq!(limits.for_replicas(200), (0, 2));
    }

    #[test]
    fn the_counts_are_those_of_the_pods_after_each_change() {
        let limit = CountOrPercent::Count(1);
        let mut rng = fastrand::Rng::with_seed(3);
        let mut deployment = Deployment::new(5);
        for change in 0..2_000 {
            let pod = rng.usize(0..20);
            match rng.u8(0..20) {
                0 => deployment
                    .begin_rollout(RolloutLimits { max_surge: limit, max_unavailable: limit }),
                1..=6 => deployment.created(pod),
                7..=14 => deployment.set_ready(pod, rng.bool()),
                _ => deployment.removed(pod),
            }
            let of = |which: &dyn Fn(&PodState) -> bool| {
                deployment.pods.values().filter(|pod| which(pod)).count() as u32
            };
            let counted = PodCounts {
                ready: of(&|pod| pod.is_ready),
                new: of(&|pod| deployment.is_new(pod)),
                new_starting: of(&|pod| deployment.is_new(pod) && !pod.is_ready),
            };
            assert_eq!(deployment.counts, counted, "after change {change}");
        }
    }
}
