//! Two real coordinators on one folder of manifests and state, and what they say of themselves.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::ops::Range;

use leasehold_demo::clock;
use leasehold_types::Moment;
use leasehold_types::limits::{SESSIONS_MAX_DEFAULT, WORKERS_MAX};
use rustix::process::Signal;

use crate::answers::{shows, value};
use crate::process::{
    PEAK_MEMORY, Replica, eventually, free_address, get, memory_kib, put_manifest,
};

/// The cluster of all agents.
pub const CLUSTER: &str = "bench";
/// How many jobs each agent may have at first.
pub const JOBS_PER_WORKER: u32 = 2;
/// The histogram of how long turns take.
const TURNS: &str = "leasehold_turn_duration_seconds";
/// The longest turn since the coordinator began.
const LONGEST_TURN: &str = "leasehold_turn_duration_max_seconds";

/// Two coordinators, of which one leads.
#[derive(Debug)]
pub struct StandaloneReplicas {
    folder: tempfile::TempDir,
    agents: usize,
    ttl_seconds: u64,
    replicas: Vec<Replica>,
}

impl StandaloneReplicas {
    /// Starts both, for this many agents that take jobs, and waits for a leader.
    pub fn start(agents: usize, ttl_seconds: u64) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("manifests")).expect("a folder");
        let mut replicas = Self { folder, agents, ttl_seconds, replicas: Vec::new() };
        replicas.put_cluster(JOBS_PER_WORKER);
        for name in ["one", "two"] {
            let replica = replicas.start_replica(name, [free_address(), free_address()]);
            replicas.replicas.push(replica);
        }
        eventually("a leader", || replicas.leader());
        replicas
    }

    /// Where agents dial.
    pub fn addresses(&self) -> Vec<String> {
        self.replicas.iter().map(|replica| replica.grpc.to_string()).collect()
    }

    /// Writes the manifest of the cluster, in which each agent may have this many jobs. Returns
    /// when it was put in place.
    pub fn put_cluster(&self, jobs_per_worker: u32) -> Moment {
        let (jobs_max, ttl) = (self.agents * jobs_per_worker as usize, self.ttl_seconds);
        let cluster = format!(
            "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\n\
             metadata: {{name: {CLUSTER}}}\n\
             spec: {{maxJobs: {jobs_max}, maxJobsPerWorker: {jobs_per_worker}, \
             lease: {{ttl: {ttl}s}}}}\n"
        );
        put_manifest(self.folder.path(), "cluster.yaml", &cluster)
    }

    /// Writes the list of a stream set: the streams of these numbers. Returns when it was put in
    /// place.
    pub fn put_list(&self, set: &str, streams: impl Iterator<Item = usize>) -> Moment {
        let mut list = String::with_capacity(streams.size_hint().0 * 16);
        for stream in streams {
            let _ = writeln!(list, "stream-{stream}");
        }
        put_manifest(self.folder.path(), &format!("{set}.txt"), &list)
    }

    /// Writes the manifest of a stream set over the streams of these numbers, after its list.
    /// Returns when it was put in place.
    pub fn put_set(&self, set: &str, streams: Range<usize>) -> Moment {
        self.put_set_with(set, streams, "")
    }

    /// The same where a stream that was moved for balance may move again at once.
    pub fn put_set_without_cooldown(&self, set: &str, streams: Range<usize>) -> Moment {
        self.put_set_with(set, streams, ", moves: {cooldown: 0s}")
    }

    /// `more` is the end of the specification.
    fn put_set_with(&self, set: &str, streams: Range<usize>, more: &str) -> Moment {
        self.put_list(set, streams);
        let manifest = format!(
            "apiVersion: leasehold.dev/v1alpha1\nkind: StreamSet\nmetadata: {{name: {set}}}\n\
             spec: {{cluster: {CLUSTER}, streamsFrom: [{{file: {set}.txt}}]{more}}}\n"
        );
        put_manifest(self.folder.path(), &format!("{set}.yaml"), &manifest)
    }

    /// Ends the leader by a signal; returns where it was, and when the signal was sent.
    ///
    /// # Panics
    /// If there is no leader, or it does not end.
    pub fn end_leader(&mut self, signal: Signal) -> ([SocketAddr; 2], Moment) {
        let leader = eventually("the leader", || self.leader());
        let mut replica = self.replicas.remove(leader);
        let ended = Moment(clock::now_ns());
        replica.process.signal(signal);
        replica.process.wait();
        ([replica.grpc, replica.http], ended)
    }

    /// Stops the leader by SIGSTOP, and leaves it out from now on; returns it, which is killed when
    /// it is dropped, and when the signal was sent.
    ///
    /// # Panics
    /// If there is no leader.
    pub fn stop_leader(&mut self) -> (Replica, Moment) {
        let leader = eventually("the leader", || self.leader());
        let replica = self.replicas.remove(leader);
        let stopped = Moment(clock::now_ns());
        replica.process.signal(Signal::STOP);
        (replica, stopped)
    }

    /// The process of the leader.
    ///
    /// # Panics
    /// If there is no leader.
    pub fn leader_process(&self) -> u32 {
        let leader = eventually("the leader", || self.leader());
        self.replicas[leader].process.id()
    }

    /// Starts another replica where a killed one was.
    pub fn start_again(&mut self, at: [SocketAddr; 2]) {
        let replica = self.start_replica("again", at);
        let http = replica.http;
        self.replicas.push(replica);
        eventually("the standby", || get(http, "/metrics"));
    }

    /// The highest epoch that a replica says it leads.
    pub fn epoch(&self) -> u64 {
        let epochs = self.metrics();
        let epochs = epochs.iter().filter_map(|(_, text)| value(text, "leasehold_epoch"));
        epochs.fold(0.0, f64::max) as u64
    }

    /// The sum over replicas of a metric, labels of the cluster included.
    pub fn sum(&self, metric: &str) -> f64 {
        self.metrics().iter().filter_map(|(_, text)| value(text, metric)).sum()
    }

    /// The turns of each replica up to now.
    pub fn turns(&self) -> Turns {
        Turns(self.metrics().iter().map(|(at, text)| (*at, TurnHistogram::read(text))).collect())
    }

    /// The longest turn of any replica since `before`, in words: itself where it was longer than
    /// all before it, and else the bucket that it fell into.
    pub fn longest_turn(&self, before: &Turns) -> String {
        let metrics = self.metrics();
        let longest = metrics.iter().filter_map(|(at, text)| {
            TurnHistogram::read(text)
                .longest_since(before.0.get(at).unwrap_or(&TurnHistogram::default()))
        });
        let longest = longest.max_by(|a, b| a.0.total_cmp(&b.0));
        longest.map_or_else(|| "-".to_owned(), |(_, words)| words)
    }

    /// The most memory that a replica has used, in MiB.
    pub fn memory_mib(&self) -> u64 {
        let used = |replica: &Replica| memory_kib(replica.process.id(), PEAK_MEMORY);
        self.replicas.iter().filter_map(used).max().unwrap_or(0) / 1024
    }

    /// Starts one that admits all agents, also more than by default.
    fn start_replica(&self, name: &str, addresses: [SocketAddr; 2]) -> Replica {
        let sessions_max = self.agents.clamp(SESSIONS_MAX_DEFAULT as usize, WORKERS_MAX);
        let flags = ["--sessions-max", &sessions_max.to_string()];
        Replica::start_at(self.folder.path(), name, addresses, &flags)
    }

    fn leader(&self) -> Option<usize> {
        let leads = |replica: &Replica| shows(replica.http, "leasehold_leader 1").is_some();
        self.replicas.iter().position(leads)
    }

    fn metrics(&self) -> Vec<(SocketAddr, String)> {
        let text = |replica: &Replica| {
            let (_, text) = get(replica.http, "/metrics")?;
            Some((replica.http, text))
        };
        self.replicas.iter().filter_map(text).collect()
    }
}

/// The turns of every replica.
#[derive(Clone, Debug)]
pub struct Turns(BTreeMap<SocketAddr, TurnHistogram>);

/// The turns of one replica: the longest, and the buckets' upper bounds and cumulated counts.
#[derive(Clone, Debug, Default)]
struct TurnHistogram {
    longest: f64,
    buckets: Vec<(f64, u64)>,
}

impl TurnHistogram {
    fn read(text: &str) -> Self {
        let prefix = format!("{TURNS}_bucket{{le=\"");
        let bucket = |line: &str| {
            let (bound, count) = line.strip_prefix(&prefix)?.split_once("\"} ")?;
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? };
            Some((bound, count.parse().ok()?))
        };
        Self {
            longest: value(text, LONGEST_TURN).unwrap_or(0.0),
            buckets: text.lines().filter_map(bucket).collect(),
        }
    }

    /// The longest turn that came after `before`: for comparing, and in words.
    fn longest_since(&self, before: &Self) -> Option<(f64, String)> {
        if self.longest > before.longest {
            return Some((self.longest, format!("{:.1} ms", self.longest * 1e3)));
        }
        let (mut below, mut longest) = (0, None);
        for (index, (bound, count)) in self.buckets.iter().enumerate() {
            let count = count - before.buckets.get(index).map_or(0, |(_, count)| *count);
            if count > below {
                longest = Some((*bound, format!("<= {} ms", bound * 1e3)));
            }
            below = count;
        }
        longest
    }
}
