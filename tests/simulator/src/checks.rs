//! What must hold at every moment (S1, S2, S3, S13, S14), checked after every step for what the
//! step may have changed, and in some seeds for everything as well.
//!
//! Invariant: time alone breaks none of these properties, since what a pod may use only ends with
//! time. So what no step touched need not be looked at again.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_types::{ClusterName, StreamKey, Token};

use super::world::World;

/// What was known after the step before.
#[derive(Debug, Default)]
pub(super) struct Known {
    pods: Vec<KnownPod>,
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
struct KnownPod {
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

impl Known {
    /// The streams that a pod's worker or agent has.
    pub(super) fn streams_of(&self, pod: usize) -> &[StreamKey] {
        self.pods.get(pod).map_or(&[], |known| &known.streams)
    }
}

/// What a step may have changed.
#[derive(Debug)]
pub(super) struct Touched {
    pub pods: Vec<usize>,
    pub replicas: Vec<usize>,
    /// What some replica knows of the manifests.
    pub desired: bool,
}

impl World {
    /// Checks what must hold at every moment.
    pub(super) fn check(&mut self) {
        let leader = self.true_leader().map(|(leader, _)| leader);
        let mut touched = Touched {
            pods: self.pods.take_touched(),
            replicas: self.replicas.take_touched(),
            desired: self.has_new_desired(),
        };
        let another = std::mem::replace(&mut self.observer.known.leader, leader) != leader;
        touched
            .replicas
            .extend(leader.filter(|leader| another && !touched.replicas.contains(leader)));
        self.check_touched(leader, &touched);
        if self.profile.checks_all && self.observer.failure.is_none() {
            self.check_all(leader);
        }
    }

    /// Checks what a step may have changed.
    fn check_touched(&mut self, leader: Option<usize>, touched: &Touched) {
        if touched.desired || !touched.replicas.is_empty() {
            self.look_at_budgets(leader, touched.desired);
        }
        for pod in touched.pods.iter().copied() {
            self.recount_jobs(pod);
            self.check_budget(&self.pods[pod].key.cluster.clone());
            self.check_committed(leader, pod);
        }
        if leader.is_some_and(|leader| touched.replicas.contains(&leader)) {
            for pod in 0..self.pods.len() {
                self.check_committed(leader, pod);
            }
        }
        let had_shares = |known: &KnownPod| known.streams.iter().any(|it| it.set.is_shares());
        let mut shares = false;
        for pod in touched.pods.iter().copied() {
            shares |= self.observer.known.pods.get(pod).is_some_and(had_shares);
            self.relist_streams(pod);
            shares |= self.observer.known.pods.get(pod).is_some_and(had_shares);
        }
        self.check_shared_streams();
        self.check_entries(&touched.pods);
        self.check_outstanding(leader);
        let falls = !touched.replicas.is_empty() && self.observer.bounds.falls();
        if shares || touched.desired || falls {
            self.check_shares(leader);
        }
    }

    /// Checks everything from nothing: what the checks above leave out must make no difference.
    fn check_all(&mut self, leader: Option<usize>) {
        let clusters: Vec<_> = self.observer.known.budgets.keys().cloned().collect();
        for pod in 0..self.pods.len() {
            self.check_committed(leader, pod);
        }
        for cluster in &clusters {
            self.lower_ceiling(leader, cluster);
            let (sum, ceiling) =
                (self.jobs_of(cluster), self.observer.known.budgets[cluster].ceiling);
            if sum > ceiling && self.manifests.desired().clusters.contains_key(cluster) {
                self.fail("S1", || format!("unnoticed: {cluster}: {sum} jobs, cap {ceiling}"));
            }
        }
        let mut users: BTreeMap<StreamKey, usize> = BTreeMap::new();
        for pod in 0..self.pods.len() {
            for stream in self.streams_at(pod) {
                if self.token_in_use(pod, &stream).is_none() {
                    continue;
                }
                if let Some(other) = users.insert(stream.clone(), pod) {
                    self.fail("S3", || format!("unnoticed: p{other} and p{pod}: {stream}"));
                }
            }
        }
        self.check_shares(leader);
        (0..self.pods.len()).for_each(|pod| self.check_outstanding_at(leader, pod));
    }

    fn has_new_desired(&mut self) -> bool {
        let known = self.replicas.iter();
        let known = known.map(|it| (it.run, it.desired_version, it.desired_taken));
        let versions = &mut self.observer.known.versions;
        if versions.0 == self.manifests.version && known.clone().eq(versions.1.iter().copied()) {
            return false;
        }
        *versions = (self.manifests.version, known.collect());
        true
    }

    /// The most jobs that a pod may be running, as far as they count.
    fn counted_jobs(&self, pod: usize) -> u32 {
        let node = &self.pods[pod];
        // Of a pod whose name another has taken, nobody can know how many jobs it runs.
        match node.dead || node.is_replaced() || node.twin {
            true => 0,
            false => node.jobs_truth(self.local_of_pod(pod)),
        }
    }

    fn recount_jobs(&mut self, pod: usize) {
        let jobs = self.counted_jobs(pod);
        let known = &mut self.observer.known;
        if known.pods.len() <= pod {
            known.pods.resize(pod + 1, KnownPod::default());
        }
        let before = std::mem::replace(&mut known.pods[pod].jobs, jobs);
        if let Some(budget) = known.budgets.get_mut(&self.pods[pod].key.cluster) {
            budget.jobs = budget.jobs + jobs - before;
        }
    }

    fn jobs_of(&self, cluster: &ClusterName) -> u32 {
        let pods = (0..self.pods.len()).filter(|pod| self.pods[*pod].key.cluster == *cluster);
        pods.map(|pod| self.counted_jobs(pod)).sum()
    }

    /// S1: jobs against the budget.
    fn check_budget(&mut self, cluster: &ClusterName) {
        let Some(budget) = self.observer.known.budgets.get(cluster).copied() else { return };
        if budget.jobs <= budget.ceiling || !self.manifests.desired().clusters.contains_key(cluster)
        {
            return;
        }
        // Some may have ended with time.
        for pod in 0..self.pods.len() {
            if self.pods[pod].key.cluster == *cluster {
                self.recount_jobs(pod);
            }
        }
        let Budget { jobs, ceiling, .. } = self.observer.known.budgets[cluster];
        if jobs > ceiling {
            self.fail("S1", || format!("cluster {cluster}: {jobs} jobs possible, cap {ceiling}"));
        }
    }

    /// Follows the caps that are in force, and checks those that fall.
    fn look_at_budgets(&mut self, leader: Option<usize>, desired: bool) {
        if desired {
            self.follow_desired();
        }
        let budgets = self.observer.known.budgets.iter();
        let look = budgets.filter(|(_, it)| desired || it.ceiling > it.in_force);
        let look: Vec<_> = look.map(|(name, _)| name.clone()).collect();
        for name in look {
            self.lower_ceiling(leader, &name);
            self.check_budget(&name);
        }
    }

    fn follow_desired(&mut self) {
        let manifests = self.manifests.desired();
        for (name, wanted) in &manifests.clusters {
            if !self.observer.known.budgets.contains_key(name) {
                let (jobs, ceiling) = (self.jobs_of(name), wanted.jobs_max);
                let budget = Budget { jobs, in_force: 0, ceiling };
                self.observer.known.budgets.insert(name.clone(), budget);
            }
        }
        let Self { observer, replicas, .. } = self;
        for (name, budget) in &mut observer.known.budgets {
            let caps = replicas.iter().filter_map(|replica| replica.jobs_max.get(name));
            budget.in_force = caps.copied().max().unwrap_or(0);
        }
    }

    fn lower_ceiling(&mut self, leader: Option<usize>, cluster: &ClusterName) {
        let Budget { in_force, ceiling, .. } = self.observer.known.budgets[cluster];
        let known = match ceiling > in_force {
            true => self.committed_when_settled(leader, cluster),
            false => None,
        };
        let lowered = in_force.max(known.map_or(ceiling, |known| known.min(ceiling)));
        if let Some(budget) = self.observer.known.budgets.get_mut(cluster) {
            budget.ceiling = lowered;
        }
    }

    fn committed_when_settled(&self, leader: Option<usize>, cluster: &ClusterName) -> Option<u32> {
        let core = self.replicas[leader?].core.as_ref()?;
        let now = self.local_of_replica(leader?);
        let view = core.clusters(now).into_iter().find(|view| view.name == *cluster)?;
        view.held.is_none().then_some(view.committed)
    }

    /// S2: jobs against the leader's own view.
    fn check_committed(&mut self, leader: Option<usize>, pod: usize) {
        let Some(leader) = leader else { return };
        if self.observer.known.pods.get(pod).is_none_or(|known| known.jobs == 0) {
            return;
        }
        let now = self.local_of_replica(leader);
        let key = &self.pods[pod].key;
        let Some(core) = self.replicas[leader].core.as_ref() else { return };
        let committed = core.worker(key, now).map_or(0, |view| view.committed);
        let truth = self.observer.known.pods[pod].jobs;
        // Some may have ended with time.
        let truth = if committed < truth { self.counted_jobs(pod) } else { truth };
        if committed < truth {
            let key = key.clone();
            self.fail("S2", || {
                format!("c{leader} commits {committed} slots to {key}, which may run {truth} jobs")
            });
        }
    }

    /// The streams that a pod's worker or agent has, in order.
    pub(super) fn streams_at(&self, pod: usize) -> Vec<StreamKey> {
        let node = &self.pods[pod];
        if node.dead {
            return Vec::new();
        }
        let disk = node.disk.borrow();
        let mut streams: Vec<_> = node.worker.streams.keys().cloned().collect();
        if !node.superseded {
            streams.extend(disk.memory.streams.keys().cloned());
        }
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// Whether a pod has the streams that are known of it.
    fn has_known_streams(&self, pod: usize) -> bool {
        let (node, known) = (&self.pods[pod], &self.observer.known.pods[pod].streams);
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
        let streams = self.streams_at(pod);
        let known = &mut self.observer.known;
        let before = std::mem::replace(&mut known.pods[pod].streams, streams);
        let after = &known.pods[pod].streams;
        for stream in before.iter().filter(|it| after.binary_search(it).is_err()) {
            let Some(users) = known.users.get_mut(stream) else { continue };
            users.retain(|user| *user != pod);
            match users.len() {
                0 => drop(known.users.remove(stream)),
                1 => drop(known.shared.remove(stream)),
                _ => {}
            }
        }
        for stream in after.iter().filter(|it| before.binary_search(it).is_err()) {
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
        for stream in &self.observer.known.shared {
            let users = self.observer.known.users.get(stream).into_iter().flatten();
            let mut users = users.filter_map(|pod| Some((pod, self.token_in_use(*pod, stream)?)));
            if let (Some((one, token)), Some((other, newer))) = (users.next(), users.next()) {
                found = Some(format!("p{one} {token} and p{other} {newer}: {stream}"));
            }
        }
        if let Some(found) = found {
            self.fail("S3", || format!("two owners: {found}"));
        }
    }

    /// The token under which a pod's worker or agent may use a stream now.
    pub(super) fn token_in_use(&self, pod: usize, stream: &StreamKey) -> Option<Token> {
        let node = &self.pods[pod];
        if node.dead {
            return None;
        }
        let used = node.worker.streams.get(stream).map(|used| used.token);
        let disk = node.disk.borrow();
        let held = disk.memory.streams.get(stream).map(|held| held.token);
        let tokens = used.into_iter().chain(held);
        let mut tokens = tokens.filter(|token| self.may_use(pod, stream, *token));
        tokens.next()
    }
}
