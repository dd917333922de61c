//! Replicas that start while a manifest is invalid, with the last good manifests of an earlier one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::desired_publisher::DesiredPublisher;
use leasehold_coordinator_core::desired::Desired;
use leasehold_coordinator_core::event::Event;
use leasehold_driver::freshness::Freshness;
use leasehold_manifest::Problem;
use leasehold_manifest::last_good::FILE;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::last_good_file::LastGoodFile;
use super::manifest_watcher::ManifestWatcher;

const PATIENCE: Duration = Duration::from_secs(30);

/// The folders of a host.
struct Host {
    dir: tempfile::TempDir,
}

/// A replica's reader of manifests.
struct Replica {
    events: mpsc::Receiver<Event>,
    problems: watch::Receiver<Arc<Vec<Problem>>>,
    task: JoinHandle<()>,
    /// The desired state, as `name=maxJobs` and `set@cluster:streams`.
    in_force: Vec<String>,
}

fn cluster(name: &str, jobs: &str) -> String {
    format!(
        "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\nmetadata: {{name: {name}}}\n\
         spec: {{maxJobs: {jobs}, maxJobsPerWorker: 3}}\n---\n"
    )
}

fn set(cluster: &str) -> String {
    format!(
        "apiVersion: leasehold.dev/v1alpha1\nkind: StreamSet\nmetadata: {{name: s}}\n\
         spec: {{cluster: {cluster}, streamsFrom: [{{file: list.txt}}], mode: Pinned}}\n"
    )
}

impl Host {
    /// Manifests of two clusters and a set whose streams are in a file, read once by a replica.
    async fn with_history() -> Self {
        let host = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(host.manifests()).unwrap();
        host.write("a.yaml", &(cluster("a", "1") + &set("a")));
        host.write("b.yaml", &cluster("b", "2"));
        host.write("list.txt", "x\ny\n");
        host.expect_after_start(&["a=1", "b=2", "s@a:2"], 0).await;
        host
    }

    fn manifests(&self) -> PathBuf {
        self.dir.path().join("manifests")
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.manifests().join(file), text).unwrap();
    }

    fn kept(&self) -> Vec<u8> {
        fs::read(self.state().join(FILE)).unwrap()
    }

    async fn start(&self) -> Replica {
        let (event_sender, events) = mpsc::channel(16);
        let (problem_sender, problems) = watch::channel(Arc::default());
        let (ready, is_ready) = oneshot::channel();
        let good = LastGoodFile::new(self.state());
        let (freshness, _) = watch::channel(Freshness::default());
        let desired_publisher = DesiredPublisher::new(
            event_sender,
            problem_sender,
            ready,
            "the folder of the test".into(),
        );
        let manifests = ManifestWatcher::new(
            self.manifests(),
            Duration::ZERO,
            good,
            desired_publisher,
            watch::channel(None).0,
            freshness,
        );
        let task = tokio::spawn(manifests.run());
        timeout(PATIENCE, is_ready).await.expect("a desired state in time").unwrap();
        let mut replica = Replica { events, problems, task, in_force: Vec::new() };
        replica.take_in().await;
        replica
    }

    /// Starts a replica, asserts what is in force from the beginning and how many problems it
    /// has, and stops it.
    #[track_caller]
    fn expect_after_start(
        &self,
        in_force: &'static [&str],
        problems: usize,
    ) -> impl Future<Output = ()> {
        let at = std::panic::Location::caller();
        async move {
            let replica = self.start().await;
            let found = replica.problems.borrow().clone();
            assert_eq!(replica.in_force, in_force, "{at}: {found:#?}");
            assert_eq!(found.len(), problems, "{at}: {found:#?}");
            replica.stop().await;
        }
    }
}

impl Replica {
    async fn take_in(&mut self) {
        match timeout(PATIENCE, self.events.recv()).await {
            Ok(Some(Event::Desired(desired))) => self.in_force = shown(&desired),
            other => panic!("expected a desired state: {other:?}"),
        }
    }

    /// Ends the replica once it has handled its last reading.
    async fn stop(self) {
        drop(self.events);
        timeout(PATIENCE, self.task).await.expect("an end in time").unwrap();
    }
}

fn shown(desired: &Desired) -> Vec<String> {
    let clusters = desired.clusters.iter().map(|(name, c)| format!("{name}={}", c.jobs_max));
    let sets = desired.sets.iter();
    clusters
        .chain(sets.map(|(name, s)| format!("{name}@{}:{}", s.cluster, s.streams.len())))
        .collect()
}

fn names(folder: &Path) -> BTreeMap<String, u64> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let sized = |entry: fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len())
    };
    entries.map(sized).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_edit_changes_nothing_across_restarts() {
    let host = Host::with_history().await;
    host.write("a.yaml", &(cluster("a", "-1") + &set("a")));
    host.write("b.yaml", &cluster("b", "3"));
    for _ in 0..2 {
        host.expect_after_start(&["a=1", "b=3", "s@a:2"], 1).await;
    }
    // Half a file, then an invalid list.
    host.write("a.yaml", &cluster("a", "5")[..60]);
    host.expect_after_start(&["a=1", "b=3", "s@a:2"], 1).await;
    host.write("a.yaml", &(cluster("a", "5") + &set("a")));
    host.write("list.txt", "x\nx\n");
    host.expect_after_start(&["a=5", "b=3", "s@a:2"], 1).await;
    fs::remove_file(host.manifests().join("list.txt")).unwrap();
    host.expect_after_start(&["a=5", "b=3", "s@a:2"], 1).await;
    // Once fixed, it comes into force.
    host.write("list.txt", "x\ny\nz\n");
    host.expect_after_start(&["a=5", "b=3", "s@a:3"], 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_replica_keeps_what_the_running_one_had_in_force() {
    let host = Host::with_history().await;
    let mut replica = host.start().await;
    host.write("b.yaml", &cluster("b", "7"));
    replica.take_in().await;
    host.write("b.yaml", &cluster("b", "many"));
    let wrong = replica.problems.wait_for(|problems| !problems.is_empty());
    timeout(PATIENCE, wrong).await.unwrap().unwrap();
    replica.stop().await;
    host.expect_after_start(&["a=1", "b=7", "s@a:2"], 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_removed_before_a_restart_does_not_come_back() {
    let host = Host::with_history().await;
    fs::remove_file(host.manifests().join("b.yaml")).unwrap();
    host.write("a.yaml", &cluster("a", "-1"));
    host.expect_after_start(&["a=1"], 1).await;
    // Nor if a new, invalid document has its name.
    host.write("b.yaml", &cluster("b", "x"));
    host.expect_after_start(&["a=1"], 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_manifests_folder_the_last_good_state_stays_in_force() {
    let host = Host::with_history().await;
    let away = host.dir.path().join("away");
    fs::rename(host.manifests(), &away).unwrap();
    let mut replica = host.start().await;
    assert_eq!(replica.in_force, ["a=1", "b=2", "s@a:2"]);
    assert_eq!(Path::new(&replica.problems.borrow()[0].file), host.manifests());
    fs::write(away.join("b.yaml"), cluster("b", "4")).unwrap();
    fs::rename(&away, host.manifests()).unwrap();
    replica.take_in().await;
    assert_eq!(replica.in_force, ["a=1", "b=4", "s@a:2"]);
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_ignored_and_rewritten() {
    let host = Host::with_history().await;
    let good = host.kept();
    host.write("b.yaml", &cluster("b", "-2"));
    let mut flipped = good.clone();
    let digit = good.windows(11).position(|part| part == b"\"maxJobs\":2").unwrap() + 10;
    flipped[digit] = b'8';
    let damaged: [&[u8]; 5] = [b"", b"\xff\xfe", b"hello\n", &good[..good.len() / 2], &flipped];
    for text in damaged {
        fs::write(host.state().join(FILE), text).unwrap();
        // Valid manifests are in force, as at a first start.
        host.expect_after_start(&["a=1", "s@a:2"], 1).await;
        assert!(host.kept() != text);
        host.expect_after_start(&["a=1", "s@a:2"], 1).await;
    }
    fs::write(host.state().join(FILE), &good).unwrap();
    host.expect_after_start(&["a=1", "b=2", "s@a:2"], 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_works_if_the_last_good_file_cannot_be_written() {
    let host = Host::with_history().await;
    // No user can replace a folder by a file of its name.
    fs::remove_file(host.state().join(FILE)).unwrap();
    fs::create_dir(host.state().join(FILE)).unwrap();
    let mut replica = host.start().await;
    assert_eq!(replica.in_force, ["a=1", "b=2", "s@a:2"]);
    host.write("b.yaml", &cluster("b", "3"));
    replica.take_in().await;
    assert_eq!(replica.in_force, ["a=1", "b=3", "s@a:2"]);
    replica.stop().await;
    let left: Vec<String> = names(&host.state()).into_keys().collect();
    assert_eq!(left, [FILE], "a temporary file was left behind");
    host.write("b.yaml", &cluster("b", "-3"));
    host.expect_after_start(&["a=1", "s@a:2"], 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_write_is_repeated_with_the_next_save() {
    let host = Host::with_history().await;
    let mut good = LastGoodFile::new(host.state());
    let state = good.load().unwrap();
    let mut good = LastGoodFile::new(host.state());
    fs::remove_file(host.state().join(FILE)).unwrap();
    fs::create_dir(host.state().join(FILE)).unwrap();
    good.save(state.clone());
    fs::remove_dir(host.state().join(FILE)).unwrap();
    good.save(state);
    host.write("b.yaml", &cluster("b", "-3"));
    host.expect_after_start(&["a=1", "b=2", "s@a:2"], 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_writers_leave_one_complete_file() {
    let host = Host::with_history().await;
    for jobs in 10..30 {
        host.write("b.yaml", &cluster("b", &jobs.to_string()));
        let (one, other) = tokio::join!(host.start(), host.start());
        tokio::join!(one.stop(), other.stop());
        host.write("b.yaml", &cluster("b", "none"));
        let replica = host.start().await;
        assert_eq!(replica.in_force, ["a=1", &format!("b={jobs}"), "s@a:2"]);
        replica.stop().await;
    }
    assert_eq!(names(&host.state()).into_keys().collect::<Vec<_>>(), [FILE]);
}
