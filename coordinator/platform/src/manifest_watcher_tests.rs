//! Changes of the manifests' folder under a running platform.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::desired_publisher::DesiredPublisher;
use leasehold_coordinator_core::desired::Desired;
use leasehold_coordinator_core::event::Event;
use leasehold_driver::clock;
use leasehold_driver::freshness::Freshness;
use leasehold_manifest::Problem;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::last_good_file::LastGoodFile;
use super::manifest_watcher::ManifestWatcher;
use super::test_folder::test_folder;

/// Shorter than the rescan that would hide a missing notification.
const PROMPT: Duration = Duration::from_secs(4);

struct Watched {
    base: PathBuf,
    root: PathBuf,
    events: mpsc::Receiver<Event>,
    problems: watch::Receiver<Arc<Vec<Problem>>>,
    freshness: watch::Receiver<Freshness>,
}

fn manifest(jobs: u32) -> String {
    format!(
        "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\nmetadata: {{name: a}}\n\
         spec: {{maxJobs: {jobs}, maxJobsPerWorker: 3}}\n"
    )
}

impl Watched {
    /// A platform's folder, once `fill` has put something into it.
    async fn new(fill: impl FnOnce(&Path, &Path)) -> Self {
        Self::with_grace(Duration::ZERO, fill).await
    }

    /// One whose removals wait.
    async fn with_grace(grace: Duration, fill: impl FnOnce(&Path, &Path)) -> Self {
        let base = test_folder();
        let root = base.join("manifests");
        fs::create_dir(&root).unwrap();
        fill(&base, &root);
        let (event_sender, events) = mpsc::channel(16);
        let (problem_sender, problems) = watch::channel(Arc::default());
        let (ready, is_ready) = oneshot::channel();
        let good = LastGoodFile::new(base.join("state"));
        let (freshness_sender, freshness) = watch::channel(Freshness::default());
        let desired_publisher = DesiredPublisher::new(
            event_sender,
            problem_sender,
            ready,
            "the folder of the test".into(),
        );
        let manifests = ManifestWatcher::new(
            root.clone(),
            grace,
            good,
            desired_publisher,
            watch::channel(None).0,
            freshness_sender,
        );
        tokio::spawn(manifests.run());
        is_ready.await.unwrap();
        Self { base, root, events, problems, freshness }
    }

    async fn desired(&mut self) -> Arc<Desired> {
        match timeout(PROMPT, self.events.recv()).await {
            Ok(Some(Event::Desired(desired))) => desired,
            other => panic!("expected a desired state: {other:?}"),
        }
    }

    /// The budget of the only cluster.
    async fn jobs(&mut self) -> u32 {
        let desired = self.desired().await;
        assert_eq!(desired.clusters.len(), 1);
        desired.clusters.values().next().unwrap().jobs_max
    }

    async fn problems(&mut self, count: usize) -> Arc<Vec<Problem>> {
        let wanted = self.problems.wait_for(|problems| problems.len() == count);
        timeout(PROMPT, wanted).await.expect("problems in time").unwrap().clone()
    }

    fn write(&self, jobs: u32) {
        fs::write(self.root.join("a.yaml"), manifest(jobs)).unwrap();
    }
}

fn one(_: &Path, root: &Path) {
    fs::write(root.join("a.yaml"), manifest(1)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn edits_replacements_and_removals_are_seen() {
    let mut folder = Watched::new(one).await;
    assert_eq!(folder.jobs().await, 1);
    folder.write(2);
    assert_eq!(folder.jobs().await, 2);
    fs::write(folder.base.join("next"), manifest(3)).unwrap();
    fs::rename(folder.base.join("next"), folder.root.join("a.yaml")).unwrap();
    assert_eq!(folder.jobs().await, 3);
    fs::remove_file(folder.root.join("a.yaml")).unwrap();
    assert!(folder.desired().await.clusters.is_empty());
    fs::create_dir(folder.root.join("sub")).unwrap();
    fs::write(folder.root.join("sub/b.yaml"), manifest(4)).unwrap();
    assert_eq!(folder.jobs().await, 4);
    fs::write(folder.root.join("sub/b.yaml"), manifest(5)).unwrap();
    assert_eq!(folder.jobs().await, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_written_file_changes_nothing_until_it_is_complete() {
    let mut folder = Watched::new(one).await;
    assert_eq!(folder.jobs().await, 1);
    let whole = manifest(2);
    fs::write(folder.root.join("a.yaml"), &whole[..whole.len() - 20]).unwrap();
    // The watcher may also see the empty file, which changes nothing either.
    let broken = folder.problems.wait_for(|all| all.iter().any(|problem| problem.line > 0));
    assert_eq!(timeout(PROMPT, broken).await.unwrap().unwrap()[0].file, "a.yaml");
    fs::write(folder.root.join("a.yaml"), whole).unwrap();
    assert_eq!(folder.jobs().await, 2, "another desired state was in force in between");
    folder.problems(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_atomic_update_of_a_config_map_volume_is_seen() {
    let version = |root: &Path, name: &str, jobs: u32| {
        fs::create_dir(root.join(name)).unwrap();
        fs::write(root.join(name).join("a.yaml"), manifest(jobs)).unwrap();
    };
    let mut folder = Watched::new(|_, root| {
        version(root, "..1", 1);
        symlink("..1", root.join("..data")).unwrap();
        symlink("..data/a.yaml", root.join("a.yaml")).unwrap();
    })
    .await;
    assert_eq!(folder.jobs().await, 1);
    for jobs in 2..5 {
        let name = format!("..{jobs}");
        version(&folder.root, &name, jobs);
        symlink(&name, folder.root.join("..data_tmp")).unwrap();
        fs::rename(folder.root.join("..data_tmp"), folder.root.join("..data")).unwrap();
        fs::remove_dir_all(folder.root.join(format!("..{}", jobs - 1))).unwrap();
        assert_eq!(folder.jobs().await, jobs);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_out_of_the_folder_and_a_linked_folder_are_followed() {
    let mut folder = Watched::new(|base, root| {
        fs::create_dir(base.join("elsewhere")).unwrap();
        fs::write(base.join("elsewhere/real.yaml"), manifest(1)).unwrap();
        symlink("../elsewhere/real.yaml", root.join("a.yaml")).unwrap();
    })
    .await;
    assert_eq!(folder.jobs().await, 1);
    fs::write(folder.base.join("elsewhere/real.yaml"), manifest(2)).unwrap();
    assert_eq!(folder.jobs().await, 2);

    // The folder's own name becomes a link, as in a deployment by symlink.
    for jobs in 3..5 {
        let real = folder.base.join(format!("release-{jobs}"));
        fs::create_dir(&real).unwrap();
        fs::write(real.join("a.yaml"), manifest(jobs)).unwrap();
        if jobs == 3 {
            fs::rename(&folder.root, folder.base.join("old")).unwrap();
        }
        symlink(&real, folder.base.join("link")).unwrap();
        fs::rename(folder.base.join("link"), &folder.root).unwrap();
        assert_eq!(folder.jobs().await, jobs);
    }
    fs::write(folder.base.join("release-4/a.yaml"), manifest(9)).unwrap();
    assert_eq!(folder.jobs().await, 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_folder_changes_nothing_until_it_is_back() {
    let mut folder = Watched::new(one).await;
    assert_eq!(folder.jobs().await, 1);
    for jobs in 2..4 {
        fs::rename(&folder.root, folder.base.join(format!("gone-{jobs}"))).unwrap();
        let named = folder.problems(1).await[0].file.clone();
        assert_eq!(Path::new(&named), folder.root);
        let fresh = folder.base.join("fresh");
        fs::create_dir(&fresh).unwrap();
        fs::write(fresh.join("a.yaml"), manifest(jobs)).unwrap();
        fs::rename(&fresh, &folder.root).unwrap();
        assert_eq!(folder.jobs().await, jobs, "another desired state was in force in between");
        folder.problems(0).await;
    }
    folder.write(7);
    assert_eq!(folder.jobs().await, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_streams_in_a_hidden_folder_is_watched() {
    let set = "---\napiVersion: leasehold.dev/v1alpha1\nkind: StreamSet\nmetadata: {name: s}\n\
               spec: {cluster: a, streamsFrom: [{file: .lists/all.txt}]}\n";
    let mut folder = Watched::new(|_, root| {
        fs::write(root.join("a.yaml"), manifest(1) + set).unwrap();
    })
    .await;
    assert!(folder.desired().await.sets.is_empty());
    fs::create_dir(folder.root.join(".lists")).unwrap();
    fs::write(folder.root.join(".lists/all.txt"), "x\n").unwrap();
    assert_eq!(streams(&*folder.desired().await), 1);
    fs::write(folder.root.join(".lists/all.txt"), "x\ny\n").unwrap();
    assert_eq!(streams(&*folder.desired().await), 2);
}

/// A set of 100 streams from a list.
fn listed(_: &Path, root: &Path) {
    let set = "---\napiVersion: leasehold.dev/v1alpha1\nkind: StreamSet\nmetadata: {name: s}\n\
               spec: {cluster: a, streamsFrom: [{file: all.txt}]}\n";
    fs::write(root.join("a.yaml"), manifest(1) + set).unwrap();
    fs::write(root.join("all.txt"), names(100)).unwrap();
}

fn names(count: u32) -> String {
    (0..count).map(|number| format!("s{number}\n")).collect()
}

fn streams(desired: &Desired) -> usize {
    desired.sets.values().next().unwrap().streams.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_being_written_gives_what_it_gave() {
    let mut folder = Watched::new(listed).await;
    assert_eq!(streams(&*folder.desired().await), 100);
    let mut list = File::create(folder.root.join("all.txt")).unwrap();
    list.write_all(names(50).as_bytes()).unwrap();
    // Another file is taken meanwhile, written in place and then renamed over.
    let mut cluster = folder.root.join("b.yaml");
    for jobs in [2, 3] {
        fs::write(&cluster, manifest(jobs).replace("name: a", "name: b")).unwrap();
        fs::rename(&cluster, folder.root.join("c.yaml")).unwrap();
        cluster = folder.base.join("b.yaml");
        let desired = loop {
            let desired = folder.desired().await;
            if desired.clusters.values().any(|cluster| cluster.jobs_max == jobs) {
                break desired;
            }
        };
        assert_eq!(streams(&desired), 100, "half of the list is in force");
    }
    assert!(folder.problems.borrow().is_empty(), "{:?}", folder.problems.borrow());
    list.write_all(names(100).replace('s', "t").as_bytes()).unwrap();
    drop(list);
    assert_eq!(streams(&*folder.desired().await), 150);
}

/// How an editor or a program saves a file.
#[derive(Clone, Copy, Debug)]
enum Save {
    /// Emptied, and written in pieces with pauses.
    InPlace,
    /// Written over the old text, and cut to its length at the end.
    OverOld,
    /// Written beside it, and renamed.
    Renamed,
}

/// Saves `text`; the cuts and pauses are drawn.
fn save(path: &Path, text: &str, how: Save, rng: &mut fastrand::Rng) {
    let mut pieces = |file: &mut File| {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rng.usize(1..=rest.len()));
            file.write_all(piece).unwrap();
            std::thread::sleep(Duration::from_millis(rng.u64(0..60)));
            rest = after;
        }
    };
    match how {
        Save::InPlace => pieces(&mut File::create(path).unwrap()),
        Save::OverOld => {
            let mut file = File::options().write(true).open(path).unwrap();
            pieces(&mut file);
            file.set_len(text.len() as u64).unwrap();
        }
        Save::Renamed => {
            let beside = path.with_extension("new");
            pieces(&mut File::create(&beside).unwrap());
            fs::rename(beside, path).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn however_files_are_saved_only_whole_ones_are_in_force() {
    for seed in 0..4 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut folder = Watched::new(listed).await;
        let in_force = |desired: &Desired| (streams(desired), jobs_of(desired));
        let mut now = in_force(&*folder.desired().await);
        assert_eq!(now, (100, 1), "seed {seed}");
        for _ in 0..6 {
            let how = *rng.choice(&[Save::InPlace, Save::OverOld, Save::Renamed]).unwrap();
            let (other, path, text) = if rng.bool() {
                let count = now.0 + rng.usize(1..50) * 2 - 49;
                ((count, now.1), folder.root.join("all.txt"), names(count as u32))
            } else {
                let (jobs, path) = (now.1 + rng.u32(1..2_000), folder.root.join("a.yaml"));
                let before = fs::read_to_string(&path).unwrap();
                let (_, set) = before.split_once("---\n").unwrap();
                ((now.0, jobs), path, manifest(jobs) + "---\n" + set)
            };
            let mut drawn = rng.fork();
            let saved = tokio::task::spawn_blocking(move || save(&path, &text, how, &mut drawn));
            let seen = in_force(&*folder.desired().await);
            assert_eq!(seen, other, "seed {seed}: {how:?} from {now:?}");
            saved.await.unwrap();
            now = other;
        }
        assert!(folder.problems.borrow().is_empty(), "{:?}", folder.problems.borrow());
        assert!(folder.events.is_empty(), "seed {seed}: a version too many");
    }
}

/// The budget of the first cluster.
fn jobs_of(desired: &Desired) -> u32 {
    desired.clusters.values().next().unwrap().jobs_max
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_waits_until_the_file_is_saved_again_or_restored() {
    let hour = Duration::from_secs(3600);
    let mut folder = Watched::with_grace(hour, listed).await;
    assert_eq!(streams(&*folder.desired().await), 100);
    let list = folder.root.join("all.txt");
    fs::write(&list, names(75)).unwrap();
    let lost = folder.problems(1).await[0].clone();
    let said = lost.to_string();
    assert!(said.starts_with("all.txt: StreamSet s: 25 of 100 streams removed: "), "{said}");
    let left = lost.due.expect("it waits").since(clock::now());
    assert!(left <= hour && left > hour / 2, "{left:?}");
    fs::write(&list, names(100)).unwrap();
    folder.problems(0).await;
    fs::write(&list, names(76)).unwrap();
    assert_eq!(streams(&*folder.desired().await), 76, "what was restored was in force");
    fs::write(&list, names(10)).unwrap();
    folder.problems(1).await;
    fs::write(&list, names(10)).unwrap();
    assert_eq!(streams(&*folder.desired().await), 10);
    folder.problems(0).await;

    fs::rename(folder.root.join("a.yaml"), folder.base.join("a.yaml")).unwrap();
    let lost = folder.problems(2).await;
    assert!(lost[0].to_string().starts_with("a.yaml: StreamSet s is removed: "), "{lost:?}");
    assert!(lost[1].to_string().starts_with("a.yaml: WorkerCluster a is removed: "), "{lost:?}");
    // An additional file is not a second save.
    fs::write(folder.root.join("b.yaml"), manifest(1).replace("name: a", "name: b")).unwrap();
    fs::rename(folder.base.join("a.yaml"), folder.root.join("a.yaml")).unwrap();
    let desired = folder.desired().await;
    assert_eq!((streams(&desired), desired.clusters.len()), (10, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_is_in_force_after_its_grace() {
    let mut folder = Watched::with_grace(Duration::from_millis(200), listed).await;
    assert_eq!(streams(&*folder.desired().await), 100);
    fs::write(folder.root.join("all.txt"), names(3)).unwrap();
    folder.problems(1).await;
    assert_eq!(streams(&*folder.desired().await), 3);
    folder.problems(0).await;
}

#[tokio::test]
async fn an_unreadable_folder_does_not_confirm_the_desired_state() {
    let mut watched =
        Watched::new(|_, root| fs::write(root.join("a.yaml"), manifest(1)).unwrap()).await;
    let is_confirmed =
        |freshness: &Freshness| freshness.confirmed_at.is_some() && freshness.trouble.is_none();
    let first = watched.freshness.wait_for(is_confirmed).await.unwrap().clone();
    let away = watched.base.join("away");
    fs::rename(&watched.root, &away).unwrap();
    let troubled =
        watched.freshness.wait_for(|freshness| freshness.trouble.is_some()).await.unwrap().clone();
    assert!(troubled.trouble.is_some_and(|why| why.contains("cannot be read")));
    fs::rename(&away, &watched.root).unwrap();
    let later = watched.freshness.wait_for(is_confirmed).await.unwrap().clone();
    assert!(later.confirmed_at > first.confirmed_at);
    symlink(watched.base.join("nowhere"), watched.root.join("b.yaml")).unwrap();
    let troubled =
        watched.freshness.wait_for(|freshness| freshness.trouble.is_some()).await.unwrap().clone();
    assert!(troubled.trouble.is_some_and(|why| why.starts_with("b.yaml: ")));
}
