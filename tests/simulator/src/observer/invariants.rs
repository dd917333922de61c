//! The invariants of every moment (S1, S2, S3, S4), checked after every step for what the step
//! may have changed, and in some seeds for everything as well.
//!
//! Invariant: time alone breaks none of these properties, since time only ends what a pod may use.
//! So what no step touched need not be checked again.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_types::{ClusterName, Moment, StreamKey, WorkerKey};

use crate::observer::Checks;
use crate::system::View;
use crate::system::clock::Real;

/// What the checks knew after the step before.
#[derive(Debug, Default)]
pub(crate) struct PreviousStep {
    pods: Vec<PreviousPod>,
    budgets: BTreeMap<ClusterName, Budget>,
    /// The pods of which worker or agent may use a stream, as far as time allows.
    users: BTreeMap<StreamKey, Vec<usize>>,
    /// The streams that more than one pod may use, as far as time allows.
    shared: BTreeSet<StreamKey>,
    /// The version of the manifests, and of what each replica knows of them.
    versions: (u64, Vec<(u64, u64, u64)>),
    leader: Option<usize>,
}

#[derive(Clone, Debug, Default)]
struct PreviousPod {
    /// The most jobs that it may have been running; it may be fewer by now.
    jobs: u32,
    /// The streams that its worker or its agent has, in order.
    streams: Vec<StreamKey>,
}

#[derive(Clone, Copy, Debug)]
struct Budget {
    /// The jobs of all its pods, as far as they are known.
    jobs: u32,
    /// The highest `maxJobs` that any living replica acts by.
    in_force: u32,
    /// A lowered cap is reached as what was committed falls, never above it again.
    ceiling: u32,
}

impl PreviousStep {
    /// The streams that a pod's worker or agent has.
    fn streams_of(&self, pod: usize) -> &[StreamKey] {
        self.pods.get(pod).map_or(&[], |known| &known.streams)
    }
}

/// What a step may have changed.
#[derive(Debug)]
pub(crate) struct Touched {
    pub pods: Vec<usize>,
    pub replicas: Vec<usize>,
    /// The workers whose entries in the store were removed or replaced.
    pub entries: BTreeSet<WorkerKey>,
}

impl View<'_> {
    /// The most jobs that a pod may be running, as far as they count.
    fn counted_jobs(&self, pod: usize) -> u32 {
        // Of a pod whose name another has taken, its leader cannot know how many jobs it runs,
        // unless it tells agents apart.
        if self.is_judged(pod) { self.pods[pod].jobs_possible(self.local_of_pod(pod)) } else { 0 }
    }

    fn jobs_of(&self, cluster: &ClusterName) -> u32 {
        let pods = (0..self.pods.len()).filter(|pod| self.pods[*pod].key.cluster == *cluster);
        pods.map(|pod| self.counted_jobs(pod)).sum()
    }

    fn committed_when_settled(&self, leader: Option<usize>, cluster: &ClusterName) -> Option<u32> {
        let core = self.replicas[leader?].core.as_ref()?;
        let now = self.local_of_replica(leader?);
        let view = core.clusters(now).into_iter().find(|view| view.name == *cluster)?;
        view.held.is_none().then_some(view.committed)
    }

    /// When a pod's worker and agent can no longer use a stream, without further messages;
    /// `None` if neither has it.
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

impl Checks<'_> {
    /// Checks what must hold at every moment.
    pub(crate) fn check(&mut self, mut touched: Touched) {
        let leader = self.view.true_leader().map(|(leader, _)| leader);
        let desired = self.has_new_desired();
        let another = std::mem::replace(&mut self.observer.previous.leader, leader) != leader;
        touched
            .replicas
            .extend(leader.filter(|leader| another && !touched.replicas.contains(leader)));
        self.check_touched(leader, &touched, desired);
        if self.view.profile.checks_all && self.observer.failure.is_none() {
            self.check_all(leader);
        }
    }

    /// Checks what a step may have changed.
    fn check_touched(&mut self, leader: Option<usize>, touched: &Touched, desired: bool) {
        if desired || !touched.replicas.is_empty() {
            self.look_at_budgets(leader, desired);
        }
        for pod in touched.pods.iter().copied() {
            self.recount_jobs(pod);
            self.check_budget(&self.view.pods[pod].key.cluster.clone());
            self.check_committed(leader, pod);
        }
        if leader.is_some_and(|leader| touched.replicas.contains(&leader)) {
            for pod in 0..self.view.pods.len() {
                self.check_committed(leader, pod);
            }
        }
        let had_shares =
            |known: &PreviousPod| known.streams.iter().any(|stream| stream.set.is_shares());
        let mut shares = false;
        for pod in touched.pods.iter().copied() {
            shares |= self.observer.previous.pods.get(pod).is_some_and(had_shares);
            self.relist_streams(pod);
            shares |= self.observer.previous.pods.get(pod).is_some_and(had_shares);
        }
        self.check_shared_streams();
        self.check_entries(touched);
        self.check_outstanding(leader);
        let falls = !touched.replicas.is_empty() && self.observer.load_bounds.falls();
        if shares || desired || falls {
            self.check_shares(leader);
        }
    }

    /// Checks everything, without what earlier steps knew: that must give the same result.
    fn check_all(&mut self, leader: Option<usize>) {
        let clusters: Vec<_> = self.observer.previous.budgets.keys().cloned().collect();
        for pod in 0..self.view.pods.len() {
            self.check_committed(leader, pod);
        }
        for cluster in &clusters {
            self.lower_ceiling(leader, cluster);
            let (sum, ceiling) =
                (self.view.jobs_of(cluster), self.observer.previous.budgets[cluster].ceiling);
            if sum > ceiling && self.view.manifests.desired().clusters.contains_key(cluster) {
                self.fail("S1", || format!("unnoticed: {cluster}: {sum} jobs, cap {ceiling}"));
            }
        }
        let mut users: BTreeMap<StreamKey, usize> = BTreeMap::new();
        for pod in 0..self.view.pods.len() {
            for stream in self.view.streams_at(pod) {
                if self.view.token_in_use(pod, &stream).is_none() {
                    continue;
                }
                if let Some(other) = users.insert(stream.clone(), pod) {
                    self.fail("S3", || format!("unnoticed: p{other} and p{pod}: {stream}"));
                }
            }
        }
        self.check_shares(leader);
        (0..self.view.pods.len()).for_each(|pod| self.check_outstanding_at(leader, pod));
    }

    fn has_new_desired(&mut self) -> bool {
        let known = self.view.replicas.iter();
        let known =
            known.map(|replica| (replica.run, replica.desired_version, replica.desired_taken));
        let versions = &mut self.observer.previous.versions;
        if versions.0 == self.view.manifests.version && known.clone().eq(versions.1.iter().copied())
        {
            return false;
        }
        *versions = (self.view.manifests.version, known.collect());
        true
    }

    fn recount_jobs(&mut self, pod: usize) {
        let jobs = self.view.counted_jobs(pod);
        let known = &mut self.observer.previous;
        if known.pods.len() <= pod {
            known.pods.resize(pod + 1, PreviousPod::default());
        }
        let before = std::mem::replace(&mut known.pods[pod].jobs, jobs);
        if let Some(budget) = known.budgets.get_mut(&self.view.pods[pod].key.cluster) {
            budget.jobs = budget.jobs + jobs - before;
        }
    }

    /// S1: jobs against the budget.
    fn check_budget(&mut self, cluster: &ClusterName) {
        let Some(budget) = self.observer.previous.budgets.get(cluster).copied() else { return };
        if budget.jobs <= budget.ceiling
            || !self.view.manifests.desired().clusters.contains_key(cluster)
        {
            return;
        }
        // Some may have ended with time.
        for pod in 0..self.view.pods.len() {
            if self.view.pods[pod].key.cluster == *cluster {
                self.recount_jobs(pod);
            }
        }
        let Budget { jobs, ceiling, .. } = self.observer.previous.budgets[cluster];
        if jobs > ceiling {
            self.fail("S1", || format!("cluster {cluster}: {jobs} jobs possible, cap {ceiling}"));
        }
    }

    /// Follows the caps that are in force, and checks those that fall.
    fn look_at_budgets(&mut self, leader: Option<usize>, desired: bool) {
        if desired {
            self.follow_desired();
        }
        let budgets = self.observer.previous.budgets.iter();
        let look = budgets.filter(|(_, budget)| desired || budget.ceiling > budget.in_force);
        let look: Vec<_> = look.map(|(name, _)| name.clone()).collect();
        for name in look {
            self.lower_ceiling(leader, &name);
            self.check_budget(&name);
        }
    }

    fn follow_desired(&mut self) {
        let manifests = self.view.manifests.desired();
        for (name, wanted) in &manifests.clusters {
            if !self.observer.previous.budgets.contains_key(name) {
                let (jobs, ceiling) = (self.view.jobs_of(name), wanted.jobs_max);
                let budget = Budget { jobs, in_force: 0, ceiling };
                self.observer.previous.budgets.insert(name.clone(), budget);
            }
        }
        let Self { view, observer, .. } = self;
        for (name, budget) in &mut observer.previous.budgets {
            let caps = view.replicas.iter().filter_map(|replica| replica.jobs_max.get(name));
            budget.in_force = caps.copied().max().unwrap_or(0);
        }
    }

    fn lower_ceiling(&mut self, leader: Option<usize>, cluster: &ClusterName) {
        let Budget { in_force, ceiling, .. } = self.observer.previous.budgets[cluster];
        let known = if ceiling > in_force {
            self.view.committed_when_settled(leader, cluster)
        } else {
            None
        };
        let lowered = in_force.max(known.map_or(ceiling, |known| known.min(ceiling)));
        if let Some(budget) = self.observer.previous.budgets.get_mut(cluster) {
            budget.ceiling = lowered;
        }
    }

    /// S2: jobs against the leader's own view.
    fn check_committed(&mut self, leader: Option<usize>, pod: usize) {
        let Some(leader) = leader else { return };
        if self.observer.previous.pods.get(pod).is_none_or(|known| known.jobs == 0) {
            return;
        }
        let now = self.view.local_of_replica(leader);
        let key = &self.view.pods[pod].key;
        let Some(core) = self.view.replicas[leader].core.as_ref() else { return };
        let accounts = self.view.accounts_at(leader, pod);
        let views = accounts.iter().filter_map(|key| core.worker(key, now));
        let committed: u32 = views.map(|view| view.committed).sum();
        let truth = self.observer.previous.pods[pod].jobs;
        // Some may have ended with time.
        let truth = if committed < truth { self.view.counted_jobs(pod) } else { truth };
        if committed < truth {
            let key = key.clone();
            self.fail("S2", || {
                format!("c{leader} commits {committed} slots to {key}, which may run {truth} jobs")
            });
        }
    }

    /// Whether a pod has the streams that are known of it.
    fn has_known_streams(&self, pod: usize) -> bool {
        let (node, known) = (&self.view.pods[pod], &self.observer.previous.pods[pod].streams);
        let disk = node.disk.borrow();
        let held = &disk.memory.streams;
        !(node.dead || node.left)
            && held.keys().eq(known.iter())
            && node.worker.streams.keys().all(|stream| held.contains_key(stream))
    }

    fn relist_streams(&mut self, pod: usize) {
        if self.has_known_streams(pod) {
            return;
        }
        let streams = self.view.streams_at(pod);
        let known = &mut self.observer.previous;
        let before = std::mem::replace(&mut known.pods[pod].streams, streams);
        let after = &known.pods[pod].streams;
        for stream in before.iter().filter(|stream| after.binary_search(stream).is_err()) {
            let Some(users) = known.users.get_mut(stream) else { continue };
            users.retain(|user| *user != pod);
            match users.len() {
                0 => drop(known.users.remove(stream)),
                1 => drop(known.shared.remove(stream)),
                _ => {}
            }
        }
        for stream in after.iter().filter(|stream| before.binary_search(stream).is_err()) {
            let users = known.users.entry(stream.clone()).or_default();
            users.push(pod);
            if users.len() > 1 {
                known.shared.insert(stream.clone());
            }
        }
    }

    /// S3: at most one pod may use a stream.
    fn check_shared_streams(&mut self) {
        let mut found = None;
        for stream in &self.observer.previous.shared {
            let users = self.observer.previous.users.get(stream).into_iter().flatten();
            let mut users =
                users.filter_map(|pod| Some((pod, self.view.token_in_use(*pod, stream)?)));
            if let (Some((one, token)), Some((other, newer))) = (users.next(), users.next()) {
                found = Some(format!("p{one} {token} and p{other} {newer}: {stream}"));
            }
        }
        if let Some(found) = found {
            self.fail("S3", || format!("two owners: {found}"));
        }
    }

    /// Compares the leader's view with one pod after the other.
    fn check_outstanding(&mut self, leader: Option<usize>) {
        if leader.is_some() && self.view.is_sampled() && self.view.pods.len() > 0 {
            let pod = (self.observer.compared + 1) % self.view.pods.len();
            self.observer.compared = pod;
            self.check_outstanding_at(leader, pod);
        }
    }

    /// Compares the leader's view of what one pod has with the truth.
    fn check_outstanding_at(&mut self, leader: Option<usize>, pod: usize) {
        let node = &self.view.pods[pod];
        let Some(leader) = leader else { return };
        let replica = &self.view.replicas[leader];
        let Some(core) = replica.core.as_ref() else { return };
        if node.dead {
            return;
        }
        let accounts = if self.view.keeps_names {
            self.view.accounts_at(leader, pod)
        } else {
            vec![node.key.clone()]
        };
        let wrong = self.observer.previous.streams_of(pod).iter().find_map(|stream| {
            let known = accounts.iter().filter_map(|key| core.outstanding_until(key, stream)).max();
            if known == Some(Moment::NEVER) {
                return None;
            }
            let end = self.view.end_of_use(pod, stream).filter(|end| *end > self.view.t)?;
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
}
