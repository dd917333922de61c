//! Two real coordinators on one folder of manifests and state, and what they say of themselves.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use rustix::process::Signal;
use tests::process::{Replica, eventually, free_address, get};

use super::CLUSTER;

/// The histogram of how long turns take; the only figure of turns before there was a gauge.
const TURNS: &str = "leasehold_settle_duration_seconds";
/// The gauge of the longest turn.
const LONGEST_TURN: &str = "leasehold_turn_longest_seconds";

/// Two coordinators, of which one leads.
#[derive(Debug)]
pub(crate) struct Replicas {
    folder: tempfile::TempDir,
    replicas: Vec<Replica>,
}

impl Replicas {
    /// Starts both, for this many agents that take jobs, and waits for a leader.
    pub(crate) fn start(agents: usize, ttl_seconds: u64) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("manifests")).expect("a folder");
        let jobs_max = agents * 2;
        let cluster = format!(
            "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\n\
             metadata: {{name: {CLUSTER}}}\n\
             spec: {{maxJobs: {jobs_max}, maxJobsPerWorker: 2, lease: {{ttl: {ttl_seconds}s}}}}\n"
        );
        put(folder.path(), "cluster.yaml", &cluster);
        let mut replicas = Self { folder, replicas: Vec::new() };
        for name in ["one", "two"] {
            let addresses = [free_address(), free_address()];
            let replica = Replica::start_at(replicas.folder.path(), name, addresses, &[]);
            replicas.replicas.push(replica);
        }
        eventually("a leader", || replicas.leader());
        replicas
    }

    /// Where agents dial.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.replicas.iter().map(|replica| replica.grpc.to_string()).collect()
    }

    /// Writes the manifest of a stream set over the streams of these numbers.
    pub(crate) fn put_set(&self, set: &str, streams: std::ops::Range<usize>) {
        let mut list = String::with_capacity(streams.len() * 16);
        for stream in streams {
            let _ = writeln!(list, "stream-{stream}");
        }
        put(self.folder.path(), &format!("{set}.txt"), &list);
        let manifest = format!(
            "apiVersion: leasehold.dev/v1alpha1\nkind: StreamSet\nmetadata: {{name: {set}}}\n\
             spec: {{cluster: {CLUSTER}, streamsFrom: [{{file: {set}.txt}}]}}\n"
        );
        put(self.folder.path(), &format!("{set}.yaml"), &manifest);
    }

    /// Kills the leader with SIGKILL.
    pub(crate) fn kill_leader(&mut self) {
        let leader = eventually("the leader", || self.leader());
        let mut replica = self.replicas.remove(leader);
        replica.process.signal(Signal::KILL);
        replica.process.wait();
    }

    /// The highest epoch that a replica says it leads.
    pub(crate) fn epoch(&self) -> u64 {
        let epochs = self.metrics();
        let epochs = epochs.iter().filter_map(|(_, text)| value(text, "leasehold_epoch"));
        epochs.fold(0.0, f64::max) as u64
    }

    /// The sum over replicas of a metric, labels of the cluster included.
    pub(crate) fn sum(&self, metric: &str) -> f64 {
        self.metrics().iter().filter_map(|(_, text)| value(text, metric)).sum()
    }

    /// The turns of each replica up to now.
    pub(crate) fn turns(&self) -> Turns {
        Turns(self.metrics().iter().map(|(at, text)| (*at, buckets(text))).collect())
    }

    /// The longest turn of any replica since `before`, in words.
    pub(crate) fn longest_turn(&self, before: &Turns) -> String {
        let metrics = self.metrics();
        let gauges = metrics.iter().filter_map(|(_, text)| value(text, LONGEST_TURN));
        if let Some(longest) = gauges.reduce(f64::max) {
            return format!("{:.1} ms", longest * 1e3);
        }
        let mut longest = None;
        for (at, text) in &metrics {
            let (now, earlier) = (buckets(text), before.0.get(at));
            let mut below = 0;
            for (index, (bound, count)) in now.iter().enumerate() {
                let count = count - earlier.and_then(|it| it.get(index)).map_or(0, |it| it.1);
                if count > below && longest.as_ref().is_none_or(|(at, _)| *at < index) {
                    longest = Some((index, words(&now, index, bound)));
                }
                below = count;
            }
        }
        longest.map_or_else(|| "-".to_owned(), |(_, words)| words)
    }

    /// The most memory that a replica has used, in MiB.
    pub(crate) fn memory_mib(&self) -> u64 {
        let used = |replica: &Replica| {
            let file = format!("/proc/{}/status", replica.process.id());
            let text = std::fs::read_to_string(file).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        self.replicas.iter().filter_map(used).max().unwrap_or(0) / 1024
    }

    fn leader(&self) -> Option<usize> {
        let leads = |replica: &Replica| {
            let (_, text) = get(replica.http, "/metrics")?;
            (value(&text, "leasehold_leader")? > 0.0).then_some(())
        };
        self.replicas.iter().position(|replica| leads(replica).is_some())
    }

    fn metrics(&self) -> Vec<(SocketAddr, String)> {
        let text = |replica: &Replica| {
            let (_, text) = get(replica.http, "/metrics")?;
            Some((replica.http, text))
        };
        self.replicas.iter().filter_map(text).collect()
    }
}

/// The buckets of every replica's histogram of turns: upper bound and cumulated count.
#[derive(Clone, Debug)]
pub(crate) struct Turns(BTreeMap<SocketAddr, Vec<(String, u64)>>);

fn words(buckets: &[(String, u64)], index: usize, bound: &str) -> String {
    let ms = |bound: &str| bound.parse::<f64>().map_or(0.0, |seconds| seconds * 1e3);
    match bound {
        "+Inf" => format!("> {} ms", ms(&buckets[index - 1].0)),
        bound => format!("<= {} ms", ms(bound)),
    }
}

fn buckets(text: &str) -> Vec<(String, u64)> {
    let prefix = format!("{TURNS}_bucket{{le=\"");
    let bucket = |line: &str| {
        let (bound, count) = line.strip_prefix(&prefix)?.split_once("\"} ")?;
        Some((bound.to_owned(), count.parse().ok()?))
    };
    text.lines().filter_map(bucket).collect()
}

/// The value of a metric, or the sum over its labels.
fn value(text: &str, metric: &str) -> Option<f64> {
    let of = |line: &str| {
        let rest = line.strip_prefix(metric)?;
        let is_it = rest.starts_with(' ') || rest.starts_with('{');
        is_it.then(|| rest.rsplit(' ').next()?.parse::<f64>().ok()).flatten()
    };
    text.lines().filter_map(of).reduce(|a, b| a + b)
}

/// Writes a file of the manifests' folder at once: it is never seen half written.
fn put(folder: &Path, name: &str, text: &str) {
    let hidden = folder.join("manifests").join(format!(".{name}"));
    std::fs::write(&hidden, text).expect("the manifest is written");
    std::fs::rename(&hidden, folder.join("manifests").join(name)).expect("and put in place");
}
