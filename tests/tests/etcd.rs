//! Coordinators on a real etcd: they elect one leader, one that is killed or hangs is replaced, and
//! what a deposed one sends is refused. A compaction and a restart of etcd change no leader, and a
//! restore from a backup gives no epoch twice.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use leasehold_coordinator_core::effect::Order;
use leasehold_coordinator_core::event::{Elected, Event};
use leasehold_coordinator_core::exposure::{AccountId, Exposure};
use leasehold_driver::platform::{Command as PlatformCommand, Platform};
use leasehold_platform_etcd::{EtcdConnection, Settings, start};
use leasehold_types::{TimeBounds, WorkerKey};
use rustix::process::Signal;
use serde_json::Value;
use tests::answers::{lease, metric, shows};
use tests::etcd::{Etcd, agent};
use tests::process::{Agent, HANG, Replica, eventually, get, throughout};
use tokio::time::timeout;

/// The keys of the coordinators.
const PREFIX: &str = "/leasehold/";

fn manifests(jobs: u32) -> String {
    format!(
        "apiVersion: leasehold.dev/v1alpha1\n\
         kind: WorkerCluster\n\
         metadata: {{name: builds}}\n\
         spec: {{maxJobs: {jobs}, maxJobsPerWorker: {jobs}, lease: {{ttl: 10s}}}}\n"
    )
}

/// Writes the manifest of the cluster; returns the revision.
fn put_manifest(etcd: &Etcd, jobs: u32) -> i64 {
    etcd.put(&format!("{PREFIX}manifests/builds.yaml"), &manifests(jobs))
}

/// The epoch that the replica leads.
fn epoch(replica: &Replica) -> Option<u64> {
    shows(replica.http, "leasehold_leader 1")?;
    Some(metric(replica.http, "leasehold_epoch")? as u64)
}

/// The leader of two replicas and the other one.
fn leader(replicas: [Replica; 2]) -> (Replica, Replica, u64) {
    let [first, second] = replicas;
    let (is_first, epoch) = eventually("a leader", || {
        epoch(&first)
            .map(|epoch| (true, epoch))
            .or_else(|| epoch(&second).map(|epoch| (false, epoch)))
    });
    if is_first { (first, second, epoch) } else { (second, first, epoch) }
}

/// The pool of an agent that the leader of this epoch serves: its size and its token.
fn pool(agent: &Agent, epoch: u64) -> Option<(u64, String)> {
    shows(agent.api, &format!("leasehold_agent_epoch {epoch}"))?;
    let lease = lease(agent.api).filter(|lease| lease["connected"] == true)?;
    let token = lease["pool"]["token"].as_str().unwrap_or_default().to_owned();
    Some((lease["pool"]["size"].as_u64()?, token))
}

fn is_ready(http: SocketAddr) -> Option<()> {
    get(http, "/readyz").filter(|(status, _)| *status == 200).map(|_| ())
}

#[test]
fn two_coordinators_elect_one_and_a_killed_leader_is_replaced() {
    let Some(etcd) = Etcd::start() else { return };
    put_manifest(&etcd, 2);
    let (mut first, second, begun) = leader([etcd.replica(&[]), etcd.replica(&[])]);
    eventually("the standby", || is_ready(second.http));
    let agent = agent(etcd.folder(), &[&first, &second], "builds", "w-0");
    let before = eventually("a pool", || pool(&agent, begun).filter(|(size, _)| *size == 2));
    // One replica leads for as long as its process lives.
    throughout(Duration::from_secs(4), || {
        assert_eq!((epoch(&first), epoch(&second)), (Some(begun), None));
    });

    first.process.kill();
    let next = eventually("the next leader", || epoch(&second));
    assert!(next > begun, "{next} after {begun}");
    let after = eventually("service", || pool(&agent, next));
    assert_eq!(after, before, "the pool and its token");
    let entries = etcd.below(&format!("{PREFIX}exposures/"));
    assert_eq!(entries.len(), 1, "{entries:?}");
    assert_eq!(entries[0].0, format!("{PREFIX}exposures/builds/w-0"));
}

#[test]
fn a_paused_leader_is_replaced_and_cannot_grant_after_it_resumes() {
    let Some(etcd) = Etcd::start() else { return };
    put_manifest(&etcd, 2);
    let (first, second, begun) = leader([etcd.replica(&[]), etcd.replica(&[])]);
    let agent = agent(etcd.folder(), &[&first, &second], "builds", "w-0");
    let before = eventually("a pool", || pool(&agent, begun).filter(|(size, _)| *size == 2));
    first.process.signal(Signal::STOP);
    let next = eventually("the next leader", || epoch(&second));
    eventually("service", || pool(&agent, next));
    first.process.signal(Signal::CONT);
    eventually("the first to notice", || shows(first.http, "leasehold_leader 0"));
    assert_eq!(pool(&agent, next), Some(before));
    assert_eq!(epoch(&second), Some(next));
}

/// The settings of a platform in this process, whose leader renews once in a second.
fn settings(etcd: &Etcd) -> Settings {
    Settings {
        connection: EtcdConnection {
            members: vec![etcd.url().parse().expect("an address")],
            tls: None,
            user: None,
        },
        prefix: PREFIX.to_owned(),
        manifests: None,
        confirm_removals: Duration::ZERO,
        state_dir: etcd.folder().join("state"),
        cell: None,
        identity: "a".to_owned(),
        address: "a:7400".to_owned(),
        takeover_after: Duration::from_secs(3_600),
        leadership: Duration::from_secs(7_200),
        bounds: TimeBounds::default(),
    }
}

async fn next(platform: &mut Platform) -> Event {
    let event = timeout(HANG, platform.events.recv()).await;
    event.expect("an event in time").expect("a platform that runs")
}

async fn elected(platform: &mut Platform) -> Elected {
    loop {
        if let Event::Elected(elected) = next(platform).await {
            return elected;
        }
    }
}

fn register(worker: &WorkerKey, elected: &Elected) -> PlatformCommand {
    let exposure = Exposure { jobs_max: 3, ..Exposure::default() };
    let order = Order::Register(vec![(worker.clone(), AccountId(1), exposure)]);
    PlatformCommand::Order { epoch: elected.epoch, order }
}

/// Another replica takes the term in etcd, of which the leader does not know yet.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_deposed_leader_writes_is_refused() {
    let Some(etcd) = tokio::task::block_in_place(Etcd::start) else { return };
    tokio::task::block_in_place(|| put_manifest(&etcd, 2));
    let mut platform = start(settings(&etcd)).await.expect("it starts");
    let first = elected(&mut platform).await;
    let worker = |name: &str| WorkerKey {
        cluster: "builds".parse().expect("a name"),
        worker: name.parse().expect("a name"),
    };
    platform.commands.send(register(&worker("w-0"), &first)).await.expect("it runs");
    loop {
        if let Event::Registered(registered) = next(&mut platform).await {
            assert_eq!(registered.len(), 1);
            break;
        }
    }
    let entries = || tokio::task::block_in_place(|| etcd.below(&format!("{PREFIX}exposures/")));
    assert_eq!(entries().len(), 1);

    let later = first.epoch.0 + 1;
    tokio::task::block_in_place(|| {
        let election = etcd.below(&format!("{PREFIX}election/"));
        let (key, text) = election.iter().find(|(key, _)| key.ends_with("term")).expect("a term");
        let mut term: Value = serde_json::from_str(text).expect("JSON");
        term["epoch"] = later.into();
        term["term"] = "00000000000000ff".into();
        term["process"] = "00000000000000ff".into();
        term["address"] = "b:7400".into();
        etcd.put(key, &term.to_string());
    });
    platform.commands.send(register(&worker("w-1"), &first)).await.expect("it runs");
    loop {
        match next(&mut platform).await {
            Event::Registered(registered) => panic!("{registered:?} by a deposed leader"),
            Event::Deposed { leader } => {
                let leader = leader.expect("a leader");
                assert_eq!(leader.address, "b:7400");
                assert_eq!(leader.epoch.expect("an epoch").0, later);
                break;
            }
            _ => {}
        }
    }
    let names: Vec<String> = entries().into_iter().map(|(key, _)| key).collect();
    assert_eq!(names, [format!("{PREFIX}exposures/builds/w-0")], "the second was refused");
}

#[test]
fn manifests_are_followed_through_a_compaction_and_a_removal() {
    let Some(mut etcd) = Etcd::start() else { return };
    put_manifest(&etcd, 2);
    let replica = etcd.replica(&[]);
    let begun = eventually("a leader", || epoch(&replica));
    let agent = agent(etcd.folder(), &[&replica], "builds", "w-0");
    let size = |jobs| eventually("the pool", || pool(&agent, begun).filter(|(of, _)| *of == jobs));
    size(2);
    put_manifest(&etcd, 3);
    size(3);

    // The watch has ended, and what it would go on with is compacted away.
    replica.process.signal(Signal::STOP);
    etcd.restart();
    put_manifest(&etcd, 4);
    let newest = put_manifest(&etcd, 5);
    etcd.compact(newest);
    replica.process.signal(Signal::CONT);
    size(5);
    let log = replica.process.log();
    assert!(log.contains("the manifests in etcd are listed again"), "{log}");
    assert_eq!(epoch(&replica), Some(begun), "nobody else could lead");

    // An invalid version changes nothing, and is reported.
    etcd.put(&format!("{PREFIX}manifests/builds.yaml"), &manifests(7).replace("maxJobs: 7", "a"));
    eventually("a problem", || {
        metric(replica.http, "leasehold_manifest_problems").filter(|n| *n > 0.0)
    });
    size(5);
    put_manifest(&etcd, 6);
    size(6);
}

#[test]
fn an_outage_of_etcd_changes_no_leader_and_ends_no_lease() {
    let Some(mut etcd) = Etcd::start() else { return };
    put_manifest(&etcd, 2);
    let (first, second, begun) = leader([etcd.replica(&[]), etcd.replica(&[])]);
    eventually("the standby", || is_ready(second.http));
    let agent = agent(etcd.folder(), &[&first, &second], "builds", "w-0");
    let before = eventually("a pool", || pool(&agent, begun).filter(|(size, _)| *size == 2));
    etcd.kill();
    // Longer than --takeover-after.
    throughout(Duration::from_secs(6), || assert_eq!(epoch(&second), None));
    assert_eq!(pool(&agent, begun), Some(before), "leases are renewed meanwhile");
    etcd.restart();
    put_manifest(&etcd, 4);
    eventually("the new manifest", || pool(&agent, begun).filter(|(size, _)| *size == 4));
    assert_eq!((epoch(&first), epoch(&second)), (Some(begun), None));
}

/// Copies the data of etcd.
fn back_up(etcd: &mut Etcd) {
    etcd.kill();
    let copied = Command::new("cp").arg("-r").args([etcd.data(), backup(etcd)]).status();
    assert!(copied.expect("cp starts").success());
    etcd.restart();
}

/// Replaces the data of etcd with the copy.
fn put_back(etcd: &mut Etcd) {
    etcd.kill();
    std::fs::remove_dir_all(etcd.data()).expect("it is removed");
    std::fs::rename(backup(etcd), etcd.data()).expect("the backup is put back");
    etcd.restart();
}

fn backup(etcd: &Etcd) -> PathBuf {
    etcd.folder().join("backup")
}

/// The backup is older than the worker: the leader takes a higher epoch, and adds the entry.
#[test]
fn a_store_that_was_put_back_from_a_backup_gives_no_epoch_twice_and_gets_its_entries_back() {
    let Some(mut etcd) = Etcd::start() else { return };
    put_manifest(&etcd, 2);
    let replica = etcd.replica(&[]);
    let begun = eventually("a leader", || epoch(&replica));
    back_up(&mut etcd);
    let agent = agent(etcd.folder(), &[&replica], "builds", "w-0");
    let (_, token) = eventually("a pool", || pool(&agent, begun).filter(|(size, _)| *size == 2));
    let exposures = format!("{PREFIX}exposures/");
    assert_eq!(etcd.below(&exposures).len(), 1);

    put_back(&mut etcd);
    let next = eventually("the next term", || epoch(&replica).filter(|next| *next > begun));
    let (size, after) = eventually("service", || pool(&agent, next));
    assert_eq!((size, after), (2, token), "the pool and its token");
    assert_eq!(etcd.below(&exposures).len(), 1, "the entry is back");
    let log = replica.process.log();
    assert!(log.contains("added the entries of workers that etcd has lost"), "{log}");
}

/// The revision has passed the one that the leader knew before it can see that it went back, as
/// after a restore with `--bump-revision`: its own heartbeat is an earlier one all the same.
#[test]
fn a_store_that_was_put_back_is_noticed_although_its_revision_is_higher() {
    let Some(mut etcd) = Etcd::start() else { return };
    put_manifest(&etcd, 2);
    let replica = etcd.replica(&[]);
    let begun = eventually("a leader", || epoch(&replica));
    back_up(&mut etcd);
    let agent = agent(etcd.folder(), &[&replica], "builds", "w-0");
    eventually("a pool", || pool(&agent, begun).filter(|(size, _)| *size == 2));

    replica.process.signal(Signal::STOP);
    let newest = put_manifest(&etcd, 2);
    put_back(&mut etcd);
    let passed = (0..=newest).any(|_| put_manifest(&etcd, 2) > newest);
    assert!(passed, "the revision is above {newest}");
    let exposures = format!("{PREFIX}exposures/");
    assert!(etcd.below(&exposures).is_empty(), "the backup has no entry");
    replica.process.signal(Signal::CONT);
    eventually("the next term", || epoch(&replica).filter(|next| *next > begun));
    eventually("the entry", || (etcd.below(&exposures).len() == 1).then_some(()));
}

#[test]
fn a_user_with_rights_on_the_prefix_is_enough_and_needed() {
    let Some(etcd) = Etcd::start() else { return };
    put_manifest(&etcd, 2);
    etcd.demand_users("leasehold", "secret", PREFIX);
    let password = etcd.folder().join("password");
    std::fs::write(&password, "secret\n").expect("a file");
    let password = password.to_str().expect("UTF-8");
    let user = ["--etcd-user", "leasehold", "--etcd-password-file", password];
    let allowed = etcd.replica(&user);
    eventually("a leader", || epoch(&allowed));
    is_ready(allowed.http).expect("it is ready");

    let elsewhere =
        etcd.replica(&[user.as_slice(), ["--etcd-prefix", "/other/"].as_slice()].concat());
    let unknown = etcd.replica(&[]);
    for (replica, told) in
        [(&elsewhere, "grant the role of --etcd-user"), (&unknown, "user name is empty")]
    {
        eventually("a refusal that says what to do", || {
            replica.process.log().contains(told).then_some(())
        });
        assert_eq!(epoch(replica), None);
        assert_ne!(get(replica.http, "/readyz").expect("it answers").0, 200);
    }
}
