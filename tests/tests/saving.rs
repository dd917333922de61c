//! Manifests that are saved while a coordinator runs: what is half written takes nothing away, and
//! what takes much away is announced and waits.

use std::fs::{self, File};
use std::io::Write;
use std::process::Command;

use serde_json::Value;
use tests::answers::{json, metric};
use tests::process::{Coordinator, Replica, eventually, free_address, put_manifest};
use tests::toolbox;

const STREAMS: usize = 2_000;

fn cluster(name: &str, jobs: u32) -> String {
    format!(
        "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\nmetadata: {{name: {name}}}\n\
         spec: {{maxJobs: {jobs}, maxJobsPerWorker: 3}}\n---\n"
    )
}

fn names(range: std::ops::Range<usize>) -> String {
    range.map(|number| format!("s{number}\n")).collect()
}

fn has_cluster(replica: std::net::SocketAddr, name: &str) -> Option<()> {
    let listed = json(replica, "/api/v1/clusters")?;
    let has = |cluster: &Value| cluster["name"] == name;
    listed["clusters"].as_array()?.iter().any(has).then_some(())
}

/// The problems that GetStatus lists.
fn problems(replica: std::net::SocketAddr) -> Option<Vec<String>> {
    let status = json(replica, "/api/v1/status")?;
    let listed = status["problems"].as_array().cloned().unwrap_or_default();
    Some(
        listed
            .iter()
            .map(|problem| format!("{}: {}", problem["file"], problem["message"]))
            .collect(),
    )
}

#[test]
fn a_list_that_is_being_written_revokes_no_stream() {
    let set = "apiVersion: leasehold.dev/v1alpha1\nkind: StreamSet\nmetadata: {name: cars}\n\
               spec: {cluster: builds, streamsFrom: [{file: list.txt}]}\n";
    let manifests = cluster("builds", 3) + set;
    let list = names(0..STREAMS);
    let coordinator = Coordinator::start(&[("all.yaml", &manifests), ("list.txt", &list)]);
    let _agent = coordinator.agent("builds", "first", &[]);
    let owned = || metric(coordinator.http, "leasehold_streams_owned");
    eventually("all streams", || (owned()? >= STREAMS as f64).then_some(()));

    let path = coordinator.folder().join("manifests/list.txt");
    let mut writer = File::create(&path).expect("it is written in place");
    writer.write_all(names(0..STREAMS / 2).as_bytes()).expect("half of it");
    // The folder is read meanwhile, for the sake of another file.
    put_manifest(coordinator.folder(), "other.yaml", &cluster("other", 1));
    eventually("the other file", || has_cluster(coordinator.http, "other"));
    writer.write_all(names(STREAMS / 2..STREAMS + 1).as_bytes()).expect("the rest");
    drop(writer);
    let log = || coordinator.process.log();
    eventually("the whole list", || {
        log().contains("StreamSet cars: streams 1 added").then_some(())
    });
    assert_eq!(metric(coordinator.http, "leasehold_revokes_total"), Some(0.0), "{}", log());
    assert!(!log().contains("manifest problem"), "{}", log());
}

#[test]
fn manifests_that_take_much_away_wait_over_restarts_and_failovers() {
    let folder = tempfile::tempdir().expect("a folder");
    let manifests = folder.path().join("manifests");
    fs::create_dir(&manifests).expect("a folder for the manifests");
    put_manifest(folder.path(), "builds.yaml", &cluster("builds", 6));
    put_manifest(folder.path(), "other.yaml", &cluster("other", 1));
    let start = |name: &str| {
        let addresses = [free_address(), free_address()];
        Replica::start_at(folder.path(), name, addresses, &["--confirm-removals", "1h"])
    };
    let mut first = start("first");
    eventually("the manifests", || has_cluster(first.http, "builds"));
    let standby = start("standby");
    let says = |replica: &Replica, words: &str| {
        eventually(words, || replica.process.log().contains(words).then_some(()));
    };
    says(&standby, "manifests in force");

    // A smaller budget is an edit like others.
    put_manifest(folder.path(), "builds.yaml", &cluster("builds", 3));
    for replica in [&first, &standby] {
        says(replica, "changed=\"WorkerCluster builds: maxJobs 6 → 3\"");
    }

    fs::rename(manifests.join("builds.yaml"), folder.path().join("away")).expect("it is there");
    let lost = "WorkerCluster builds is removed: in force 1h after";
    for replica in [&first, &standby] {
        says(replica, lost);
        let listed = eventually("the problem", || problems(replica.http)?.pop());
        assert!(listed.contains("builds.yaml") && listed.contains(lost), "{listed}");
    }
    let status = Command::new(toolbox::binary("leasehold"))
        .args(["status", "--coordinator", &format!("{},{}", first.grpc, standby.grpc)])
        .output()
        .expect("it starts");
    let status = String::from_utf8_lossy(&status.stdout);
    let lines: Vec<_> = status.lines().filter(|line| line.contains(lost)).collect();
    let [line] = lines.as_slice() else {
        panic!("once, though both count for themselves: {status}")
    };
    let left = line.rsplit_once(" (").and_then(|(_, left)| left.strip_suffix(" s left)"));
    let left: u32 = left.and_then(|left| left.parse().ok()).unwrap_or_else(|| panic!("{line}"));
    assert!((1..=3_600).contains(&left), "{line}");
    // What else is edited waits with it, and neither a failover nor a restart applies it.
    put_manifest(folder.path(), "other.yaml", &cluster("other", 2));
    first.process.kill();
    eventually("the standby to lead", || {
        (json(standby.http, "/api/v1/status")?["leads"] == true).then_some(())
    });
    has_cluster(standby.http, "builds").expect("a failover has removed it");
    let again = start("again");
    says(&again, lost);
    assert!(!again.process.log().contains("removed\""), "{}", again.process.log());

    // Restored: only the other edit is left.
    fs::rename(folder.path().join("away"), manifests.join("builds.yaml")).expect("it is there");
    for replica in [&standby, &again] {
        says(replica, "changed=\"WorkerCluster other: maxJobs 1 → 2\"");
        eventually("no problem", || problems(replica.http)?.is_empty().then_some(()));
    }

    // A second save of the same content applies it.
    put_manifest(folder.path(), "builds.yaml", &cluster("builds", 0));
    says(&standby, "WorkerCluster builds: maxJobs 3 → 0: in force 1h after");
    says(&again, "WorkerCluster builds: maxJobs 3 → 0: in force 1h after");
    put_manifest(folder.path(), "builds.yaml", &cluster("builds", 0));
    says(&standby, "changed=\"WorkerCluster builds: maxJobs 3 → 0\"");
    eventually("no problem", || problems(standby.http)?.is_empty().then_some(()));
}
