//! Two leaders cannot be observed: one that is stopped for longer than its leadership lasts, and
//! then wakes, changes nothing of what its successor has granted.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tests::answers::shows;
use tests::kube::{Cluster, FleetFixture, Lease, Operator, Work, feeds, list, object, until};
use tests::process::{eventually, get, throughout};

const STREAMS: u32 = 6;

/// The owner of each stream, by the workers' leases.
fn owners(leases: &BTreeMap<String, Lease>) -> BTreeMap<&str, Vec<&str>> {
    let mut owners: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (worker, lease) in leases {
        for stream in lease.streams.keys() {
            owners.entry(stream).or_default().push(worker);
        }
    }
    owners
}

/// Whether every stream has one owner.
fn owned_once(leases: &BTreeMap<String, Lease>) -> bool {
    let owners = owners(leases);
    owners.len() == STREAMS as usize && owners.values().all(|all| all.len() == 1)
}

/// The metric of who leads, of every replica that answers.
fn leaders(fixture: &FleetFixture) -> usize {
    let leads = |replica: &&Operator| shows(replica.http, "leasehold_leader 1").is_some();
    fixture.replicas.running.iter().filter(leads).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_that_resumes_after_its_term_changes_nothing() {
    let Some(cluster) = Cluster::shared() else { return };
    let work = Work::Jobs { ms_min: 300, ms_max: 900 };
    // Long enough for a machine that stands still for a while: only the stopped one is deposed.
    let flags = ["--leadership", "8s", "--takeover-after", "5s"];
    let fixture = FleetFixture::start_with(cluster.namespace("leaders"), 2, 1, work, &flags).await;
    let spec = json!({
        "maxJobs": 6, "maxJobsPerWorker": 2, "lease": { "ttl": "3s" },
        "template": fixture.template(),
    });
    let mut builds = object("WorkerCluster", "builds", spec);
    let set = json!({ "cluster": "builds", "streams": feeds(STREAMS) });
    fixture.apply(&list([builds.clone(), object("StreamSet", "feeds", set)]));
    fixture
        .wait_for("6 streams owned", "ss", "feeds", |set| set["status"]["streams"]["owned"] == 6);
    let old = fixture.replicas.leader();
    let leases = || fixture.leases(&fixture.uids());
    until("every stream at one worker", leases, owned_once);

    let stopped = &fixture.replicas.running[old].process;
    stopped.signal(Signal::STOP);
    // The successor grants: a worker more, with streams of its own.
    let lease =
        ["get", "lease", "leasehold-coordinator", "--output=jsonpath={.spec.holderIdentity}"];
    let was = fixture.replicas.running[old].identity.clone();
    until("a successor", || fixture.kubectl(&lease), |holder| !holder.starts_with(&was));
    builds["spec"]["maxJobs"] = json!(8);
    fixture.apply(&builds);
    let granted = until("a fourth worker with streams", leases, |leases| {
        let all = leases.len() == 4 && leases.values().all(|lease| !lease.streams.is_empty());
        all && owned_once(leases)
    });
    let workers: Vec<_> = granted.keys().cloned().collect();
    // A fixed wait: the stopped process shows nothing to poll, and its term has to end by time.
    // This is longer than `--leadership`.
    tokio::time::sleep(Duration::from_secs(9)).await;

    stopped.signal(Signal::CONT);
    eventually("the old leader to stand by", || {
        (get(fixture.replicas.running[old].http, "/metrics").is_some() && leaders(&fixture) == 1)
            .then_some(())
    });
    throughout(Duration::from_secs(5), || {
        assert_eq!(fixture.leases(&workers), granted, "no lease is the old leader's");
        assert!(leaders(&fixture) <= 1, "one leader at most says that it leads");
    });
    assert!(!fixture.kubectl(&lease).starts_with(&was), "the successor leads on");
    fixture.end();
}
