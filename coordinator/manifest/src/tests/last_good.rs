//! The rules by which the last good state stays in force, one edit after the other, and the text
//! in which it outlives the process.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use leasehold_coordinator_core::desired::Desired;

use crate::folder::{FOLDER_DEPTH_MAX, MANIFEST_BYTES_MAX};
use crate::streams::STREAM_FILE_BYTES_MAX;
use crate::{Catalog, last_good};

struct Folder {
    dir: tempfile::TempDir,
    catalog: Catalog,
    desired: Option<Arc<Desired>>,
    problems: Vec<String>,
}

fn cluster(name: &str, jobs: &str) -> String {
    format!(
        "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\nmetadata: {{name: {name}}}\n\
         spec:\n  maxJobs: {jobs}\n  maxJobsPerWorker: 3\n---\n"
    )
}

fn set(name: &str, cluster: &str, rest: &str) -> String {
    format!(
        "apiVersion: leasehold.dev/v1alpha1\nkind: StreamSet\nmetadata: {{name: {name}}}\n\
         spec:\n  cluster: {cluster}\n  {rest}\n---\n"
    )
}

/// A text with a comment behind it that makes it this long.
fn commented(text: &str, bytes: u64) -> String {
    let comment = bytes as usize - text.len() - "#".len();
    format!("{text}#{}", "x".repeat(comment))
}

impl Folder {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("manifests");
        fs::create_dir(&root).unwrap();
        let catalog = Catalog::new(&root);
        Self { dir, catalog, desired: None, problems: Vec::new() }
    }

    fn root(&self) -> std::path::PathBuf {
        self.dir.path().join("manifests")
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.root().join(file);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, file: &str) {
        fs::remove_file(self.root().join(file)).unwrap();
    }

    fn read(&mut self) {
        let reading = self.catalog.read();
        self.desired = reading.desired;
        self.problems = reading.problems.iter().map(ToString::to_string).collect();
    }

    /// Reads, and asserts what is in force (`name=maxJobs`, `set@cluster:streams`) and the
    /// beginning of each problem.
    #[track_caller]
    fn check(&mut self, in_force: &[&str], problems: &[&str]) {
        self.read();
        let desired = self.desired.clone().unwrap();
        let mut found: Vec<String> =
            desired.clusters.iter().map(|(name, c)| format!("{name}={}", c.jobs_max)).collect();
        found.extend(
            desired
                .sets
                .iter()
                .map(|(name, s)| format!("{name}@{}:{}", s.cluster, s.streams.len())),
        );
        assert_eq!(found, in_force, "problems: {:#?}", self.problems);
        assert_eq!(self.problems.len(), problems.len(), "{:#?}", self.problems);
        for (found, wanted) in self.problems.iter().zip(problems) {
            assert!(found.starts_with(wanted), "{found:?} does not start with {wanted:?}");
        }
    }
}

#[test]
fn an_invalid_document_keeps_its_object_and_does_not_block_others() {
    let mut folder = Folder::new();
    folder.write("c.yaml", &(cluster("a", "1") + &cluster("b", "1")));
    folder.check(&["a=1", "b=1"], &[]);
    folder.write("c.yaml", &(cluster("a", "-1") + &cluster("b", "2")));
    folder.check(&["a=1", "b=2"], &["c.yaml:5:12: spec.maxJobs: "]);
    // It was never valid, so no version of it stays in force.
    folder.write("d.yaml", &cluster("c", "x"));
    folder.check(&["a=1", "b=2"], &["c.yaml:5:12: ", "d.yaml:5:12: spec.maxJobs: "]);
    // A valid file without the object removes it.
    folder.write("c.yaml", &cluster("b", "3"));
    folder.remove("d.yaml");
    folder.check(&["b=3"], &[]);
    folder.remove("c.yaml");
    folder.check(&[], &[]);
}

#[test]
fn an_equal_reading_returns_the_same_pointer() {
    let mut folder = Folder::new();
    folder.write("c.yaml", &cluster("a", "1"));
    folder.check(&["a=1"], &[]);
    let first = folder.desired.clone().unwrap();
    folder.write("c.yaml", &format!("# a comment\n{}", cluster("a", "1")));
    folder.check(&["a=1"], &[]);
    assert!(Arc::ptr_eq(&first, folder.desired.as_ref().unwrap()));
}

#[test]
fn an_unreadable_file_keeps_all_its_objects() {
    let mut folder = Folder::new();
    let good = cluster("a", "1") + &cluster("b", "1");
    folder.write("c.yaml", &good);
    folder.check(&["a=1", "b=1"], &[]);
    folder.write("c.yaml", &good[..good.len() / 2 + 30]);
    folder.check(&["a=1", "b=1"], &["c.yaml:"]);
    folder.write("c.yaml", "");
    folder.check(&["a=1", "b=1"], &["c.yaml: is empty"]);
    folder.write("c.yaml", &format!("{good}#{}", "x".repeat(MANIFEST_BYTES_MAX as usize)));
    folder.check(&["a=1", "b=1"], &["c.yaml: is larger than 1048576 bytes"]);
    folder.write("c.yaml", &commented(&good, MANIFEST_BYTES_MAX));
    folder.check(&["a=1", "b=1"], &[]);
    // One document has lost its kind, so its object is unknown; the other one is valid.
    folder.write("c.yaml", &(cluster("a", "5") + &cluster("b", "1").replace("kind", "knd")));
    folder.check(&["a=5", "b=1"], &["c.yaml:8:1: kind: is missing"]);
    // A definition in another file ends that.
    folder.write("d.yaml", &cluster("b", "9"));
    folder.check(&["a=5", "b=9"], &["c.yaml:8:1: kind: is missing"]);
    // Comments only: an intended removal.
    folder.write("c.yaml", "# nothing here for now\n");
    folder.check(&["b=9"], &[]);
}

#[test]
fn a_file_of_streams_is_read_up_to_its_largest_size() {
    let mut folder = Folder::new();
    folder.write("c.yaml", &cluster("a", "1"));
    folder.write("s.yaml", &set("s", "a", "streamsFrom: [{file: list.txt}]"));
    folder.write("list.txt", &commented("x\ny\n", STREAM_FILE_BYTES_MAX));
    folder.check(&["a=1", "s@a:2"], &[]);
    folder.write("list.txt", &commented("x\n", STREAM_FILE_BYTES_MAX + 1));
    folder.check(&["a=1", "s@a:2"], &["list.txt: is larger than 67108864 bytes"]);
}

#[test]
fn folders_are_read_down_to_their_deepest_level() {
    let mut folder = Folder::new();
    let deepest = "f/".repeat(FOLDER_DEPTH_MAX);
    folder.write(&format!("{deepest}c.yaml"), &cluster("a", "1"));
    folder.check(&["a=1"], &[]);
    folder.write(&format!("{deepest}f/d.yaml"), &cluster("b", "1"));
    let below = format!("{deepest}f: more than 20000 files or 8 levels of folders");
    folder.check(&["a=1"], &[&below]);
}

#[test]
fn a_folder_that_is_gone_or_closed_leaves_everything_in_force() {
    let mut folder = Folder::new();
    folder.write("sub/c.yaml", &cluster("a", "1"));
    folder.write("s.yaml", &set("s", "a", "streamsFrom: [{file: list.txt}]"));
    folder.write("list.txt", "x\ny\n");
    folder.check(&["a=1", "s@a:2"], &[]);
    let away = folder.dir.path().join("away");
    fs::rename(folder.root(), &away).unwrap();
    let gone = format!("{}: the folder cannot be read", folder.root().display());
    folder.check(&["a=1", "s@a:2"], &[&gone]);
    fs::rename(&away, folder.root()).unwrap();
    folder.check(&["a=1", "s@a:2"], &[]);
    if rustix::process::geteuid().is_root() {
        return;
    }
    let closed = fs::Permissions::from_mode(0o000);
    fs::set_permissions(folder.root().join("sub"), closed).unwrap();
    folder.check(&["a=1", "s@a:2"], &["sub: the folder cannot be read"]);
    fs::set_permissions(folder.root().join("sub"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_folder_missing_at_the_first_reading_gives_no_desired_state() {
    let mut folder = Folder::new();
    fs::remove_dir(folder.root()).unwrap();
    folder.read();
    assert!(folder.desired.is_none());
    assert_eq!(folder.problems.len(), 1);
}

#[test]
fn of_two_definitions_the_one_in_force_stays_until_one_is_gone() {
    let mut folder = Folder::new();
    folder.write("a.yaml", &cluster("a", "1"));
    folder.check(&["a=1"], &[]);
    folder.write("b.yaml", &cluster("a", "2"));
    let both = ["a.yaml:3:18: metadata.name: ", "b.yaml:3:18: metadata.name: "];
    folder.check(&["a=1"], &both);
    folder.write("a.yaml", &cluster("a", "3"));
    folder.check(&["a=1"], &both);
    folder.remove("a.yaml");
    folder.check(&["a=2"], &[]);
}

#[test]
fn a_cluster_stays_for_as_long_as_a_set_runs_on_it() {
    let mut folder = Folder::new();
    folder.write("a.yaml", &cluster("a", "1"));
    folder.write("s.yaml", &set("s", "a", "streams: [{name: x}]"));
    folder.check(&["a=1", "s@a:1"], &[]);
    folder.remove("a.yaml");
    folder.check(
        &["a=1", "s@a:1"],
        &["s.yaml:5:12: spec.cluster: cluster \"a\" is no longer defined"],
    );
    // The set may still change; a second one may not begin on what is gone.
    folder.write("s.yaml", &set("s", "a", "streams: [{name: x}, {name: y}]"));
    folder.write("t.yaml", &set("t", "a", "streams: [{name: x}]"));
    let problems = ["s.yaml:5:12: spec.cluster: ", "t.yaml:5:12: spec.cluster: "];
    folder.check(&["a=1", "s@a:2"], &problems);
    // A move to an undefined cluster is refused.
    folder.write("s.yaml", &set("s", "nowhere", "streams: [{name: z}]"));
    folder.check(&["a=1", "s@a:2"], &problems);
    folder.remove("s.yaml");
    folder.check(&[], &["t.yaml:5:12: spec.cluster: "]);
}

#[test]
fn a_set_keeps_its_streams_while_one_of_its_files_is_wrong() {
    let mut folder = Folder::new();
    folder.write("a.yaml", &cluster("a", "1"));
    folder.write("s.yaml", &set("s", "a", "streamsFrom: [{file: l.txt}, {file: m.yaml}]"));
    folder.write("l.txt", "x\n");
    folder.write("m.yaml", "jobs: [y]\n");
    folder.check(&["a=1", "s@a:2"], &[]);
    folder.write("m.yaml", "jobs: [y, z, x]\n");
    folder.check(&["a=1", "s@a:2"], &["m.yaml:1:14: jobs[2]: stream \"x\" is there already"]);
    folder.write("m.yaml", "jobs: [y, z\n");
    folder.check(&["a=1", "s@a:2"], &["m.yaml:1:7: unclosed"]);
    folder.remove("m.yaml");
    folder.check(&["a=1", "s@a:2"], &["s.yaml:6:39: spec.streamsFrom[1].file: names m.yaml, "]);
    folder.write("m.yaml", "jobs: [y, z]\n");
    folder.check(&["a=1", "s@a:3"], &[]);
    // A set that cannot be read still owns its file of streams.
    folder.write("s.yaml", "apiVersion: [\n");
    folder.check(&["a=1", "s@a:3"], &["s.yaml:"]);
}

/// What is kept of a folder, as a text.
fn kept(catalog: &Catalog) -> String {
    String::from_utf8(last_good::write(&catalog.last_good().unwrap()).unwrap()).unwrap()
}

#[test]
fn every_field_is_kept_as_it_was() {
    for name in ["defaults", "everything", "pipelines"] {
        let mut catalog = Catalog::new(&super::testdata("good").join(name));
        catalog.read();
        let state = catalog.last_good().unwrap();
        let (read, problems) = last_good::read(&kept(&catalog)).unwrap();
        assert_eq!(problems, []);
        assert_eq!(read, state);
    }
}

#[test]
fn only_the_invalid_object_is_left_out_of_a_kept_state() {
    let mut folder = Folder::new();
    folder.write("c.yaml", &(cluster("a", "1") + &cluster("b", "2")));
    folder.write("s.yaml", &(set("s", "a", "streams: [{name: x}]")));
    folder.write("t.yaml", &(set("t", "b", "streams: [{name: x}]")));
    folder.check(&["a=1", "b=2", "s@a:1", "t@b:1"], &[]);
    let mut state = folder.catalog.last_good().unwrap();
    // As a version with wider rules may have written it.
    let desired = Arc::make_mut(&mut state.desired);
    Arc::make_mut(desired.clusters.values_mut().next().unwrap()).jobs_per_worker_max = 0;
    let text = String::from_utf8(last_good::write(&state).unwrap()).unwrap();
    let (read, problems) = last_good::read(&text).unwrap();
    let fields: Vec<&str> = problems.iter().map(|problem| &*problem.field).collect();
    assert_eq!(fields, ["spec.maxJobsPerWorker", "spec.cluster"]);
    let left: Vec<String> = read.desired.clusters.keys().map(ToString::to_string).collect();
    assert_eq!((left, read.desired.sets.len()), (vec!["b".to_owned()], 1));
}
