//! Elections on real files: two platforms on one state folder. A hanging leader is simulated by
//! writing its files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Duration;

use leasehold_coordinator_core::effect::Order;
use leasehold_coordinator_core::event::{Elected, Event, KnownLeader};
use leasehold_coordinator_core::exposure::{AccountId, Entry, Exposure, SetScope, SetsVersion};
use leasehold_driver::clock;
use leasehold_driver::platform::{Command, Platform};
use leasehold_platform::campaign::EPOCH_MAX;
use leasehold_types::{CellId, ClusterName, Epoch, Incarnation, TimeBounds, WorkerKey, WorkerName};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::epochs::{Claim, Epochs, RenewOutcome};
use super::exposure_log::{self, ExposureLog};
use super::test_folder::test_folder;
use super::{Settings, start};

/// Only a hang reaches this timeout.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder whose state folder counts epochs from 1.
fn folder() -> PathBuf {
    let folder = test_folder();
    let state_dir = folder.join("state");
    fs::create_dir(&state_dir).unwrap();
    let id = CellId(7);
    fs::write(state_dir.join("cell.json"), format!(r#"{{"id": "{id}", "first_epoch": 1}}"#))
        .unwrap();
    folder
}

fn settings(folder: &Path, name: &str) -> Settings {
    let manifests = folder.join("manifests");
    fs::create_dir_all(&manifests).unwrap();
    Settings {
        cell: None,
        manifests,
        confirm_removals: Duration::ZERO,
        state_dir: folder.join("state"),
        trusts_locks: false,
        identity: name.into(),
        address: format!("{name}:7400"),
        http_address: String::new(),
        takeover_after: Duration::from_millis(400),
        leadership: Duration::from_secs(30),
        bounds: TimeBounds::default(),
    }
}

fn claim(name: &str) -> Claim {
    let address = format!("{name}:7400");
    Claim { identity: name.into(), address, leadership_ms: 30_000, id: fastrand::u64(..) }
}

pub(crate) fn worker(name: &str) -> WorkerKey {
    let cluster = ClusterName::new("swarm").unwrap();
    WorkerKey { cluster, worker: WorkerName::new(name).unwrap() }
}

pub(crate) fn exposure(jobs_max: u32) -> Exposure {
    let sets = SetScope::Listed { version: SetsVersion(7), timeless: true };
    let (incarnation, ttl) = (Incarnation(3), Duration::from_secs(10));
    Exposure { incarnation, ttl, jobs_max, sets, identity: None, fresh_agent: None }
}

fn entry(name: &str, account_id: u64, jobs_max: u32) -> (WorkerKey, AccountId, Exposure) {
    (worker(name), AccountId(account_id), exposure(jobs_max))
}

fn order(epoch: u64, order: Order) -> Command {
    Command::Order { epoch: Epoch(epoch), order }
}

async fn next(platform: &mut Platform) -> Event {
    let event = timeout(PATIENCE, platform.events.recv()).await;
    event.expect("an event in time").expect("a platform that runs")
}

/// The first of the next events that is wanted.
async fn until<T>(platform: &mut Platform, mut wanted: impl FnMut(Event) -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = wanted(next(platform).await) {
                return found;
            }
        }
    };
    timeout(PATIENCE, found).await.expect("the event in time")
}

async fn elected(platform: &mut Platform) -> Elected {
    let elected = |event| if let Event::Elected(elected) = event { Some(elected) } else { None };
    until(platform, elected).await
}

async fn registered(platform: &mut Platform) {
    until(platform, |event| matches!(event, Event::Registered(_)).then_some(())).await;
}

/// The leader of the next `Deposed` event.
async fn deposed(platform: &mut Platform) -> Option<KnownLeader> {
    let leader = |event| match event {
        Event::Deposed { leader } => Some(leader),
        Event::Elected(elected) => panic!("elected, epoch {}", elected.epoch),
        _ => None,
    };
    until(platform, leader).await
}

/// The replica of this name as the leader of this epoch.
fn leader(name: &str, epoch: u64) -> Option<KnownLeader> {
    Some(KnownLeader { address: format!("{name}:7400"), epoch: Some(Epoch(epoch)) })
}

/// Empties a platform's channel while a test watches another platform.
fn drain(mut platform: Platform) -> tokio::task::JoinHandle<Platform> {
    tokio::spawn(async move {
        let sleep = tokio::time::sleep(PATIENCE);
        tokio::pin!(sleep);
        loop {
            tokio::select! {
                event = platform.events.recv() => match event {
                    Some(_) => {}
                    None => return platform,
                },
                () = &mut sleep => return platform,
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_standby_takes_over_at_once_when_the_leader_ends() {
    let folder = folder();
    let mut a = start(settings(&folder, "a")).await.unwrap();
    let first = elected(&mut a).await;
    assert_eq!(first.epoch, Epoch(1));
    assert!(first.exposed.is_empty());
    assert!(first.predecessor_end <= clock::now());
    assert!(first.until <= clock::now() + Duration::from_secs(30));

    let mut b = start(settings(&folder, "b")).await.unwrap();
    a.commands.send(order(1, Order::Register(vec![entry("w", 1, 3)]))).await.unwrap();
    loop {
        if let Event::Registered(registered) = next(&mut a).await {
            assert_eq!(registered, [(worker("w"), AccountId(1), exposure(3))]);
            break;
        }
    }
    let a = drain(a);
    assert_eq!(deposed(&mut b).await, leader("a", 1));

    a.abort();
    let second = elected(&mut b).await;
    assert_eq!(second.epoch, Epoch(2));
    let entry = Entry { epoch: Epoch(2), exposure: exposure(3) };
    assert_eq!(second.exposed, BTreeMap::from([(worker("w"), entry)]), "adopted");
    // The lock shows that the first leader has ended, so the second need not wait for it.
    assert!(second.predecessor_end <= clock::now());
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_are_confirmed_once_the_next_leader_would_read_them() {
    let folder = folder();
    let mut a = start(settings(&folder, "a")).await.unwrap();
    elected(&mut a).await;
    let confirm = |epoch| {
        let (done, confirmed) = oneshot::channel();
        let (epoch, workers) = (Epoch(epoch), vec![worker("w")]);
        (Command::ConfirmEntries { epoch, workers, done }, confirmed)
    };
    a.commands.send(order(1, Order::Register(vec![entry("w", 1, 3)]))).await.unwrap();
    a.commands.send(order(1, Order::Unregister(vec![worker("w")]))).await.unwrap();
    let (command, removed) = confirm(1);
    a.commands.send(command).await.unwrap();
    let (command, of_another_term) = confirm(7);
    a.commands.send(command).await.unwrap();
    let commands = a.commands.clone();
    let a = drain(a);
    timeout(PATIENCE, removed).await.unwrap().unwrap();
    timeout(PATIENCE, of_another_term).await.unwrap().unwrap_err();

    // The term ends before this one is confirmed, so nothing is said.
    let (command, late) = confirm(1);
    commands.send(order(1, Order::StepDown { above: None })).await.unwrap();
    commands.send(command).await.unwrap();
    timeout(PATIENCE, late).await.unwrap().unwrap_err();
    a.abort();
    let mut b = start(settings(&folder, "b")).await.unwrap();
    assert!(elected(&mut b).await.exposed.is_empty(), "the worker is in no register");
}

#[tokio::test(flavor = "multi_thread")]
async fn stepping_down_raises_the_epoch_and_a_resigned_leader_is_replaced_at_once() {
    let folder = folder();
    // The takeover time is too long to matter: only the lock shows the end.
    let mut slow = settings(&folder, "a");
    slow.takeover_after = Duration::from_secs(3600);
    let mut a = start(slow.clone()).await.unwrap();
    assert_eq!(elected(&mut a).await.epoch, Epoch(1));
    a.commands.send(order(1, Order::StepDown { above: Some(Epoch(40)) })).await.unwrap();
    assert_eq!(deposed(&mut a).await, None);
    assert_eq!(elected(&mut a).await.epoch, Epoch(41));
    // The driver was in a long turn and did not yet know that the former term had ended.
    a.commands.send(order(1, Order::StepDown { above: Some(Epoch(60)) })).await.unwrap();
    a.commands.send(order(41, Order::Confirm)).await.unwrap();
    match next(&mut a).await {
        Event::Renewed(renewed) => assert_eq!(renewed.epoch, Epoch(41)),
        other => panic!("{other:?}"),
    }

    slow.identity = "b".into();
    slow.address = "b:7400".into();
    let mut b = start(slow).await.unwrap();
    assert_eq!(deposed(&mut b).await, leader("a", 41));
    let (done, is_done) = oneshot::channel();
    a.commands.send(Command::Resign(done)).await.unwrap();
    let _a = drain(a);
    timeout(PATIENCE, is_done).await.unwrap().unwrap();
    let second = elected(&mut b).await;
    assert_eq!(second.epoch, Epoch(42));
    assert!(second.predecessor_end <= clock::now());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_leader_is_replaced_and_waited_for() {
    let folder = folder();
    let settings = settings(&folder, "b");
    let epochs = Epochs::open(&settings.state_dir).unwrap();
    let mut hung = epochs.take(Epoch(7), &claim("hung")).unwrap().unwrap();
    assert_eq!(epochs.renew(&mut hung).unwrap(), RenewOutcome::Leads);
    let last_renewal = clock::now();

    let mut b = start(settings.clone()).await.unwrap();
    assert_eq!(deposed(&mut b).await, leader("hung", 7));
    let elected = elected(&mut b).await;
    assert_eq!(elected.epoch, Epoch(8));
    // The hung leader may grant until its last renewal expires by its own clock.
    let bounds = settings.bounds;
    assert!(elected.predecessor_end >= last_renewal + bounds.outlast(Duration::from_secs(30)));
    assert_eq!(epochs.renew(&mut hung).unwrap(), RenewOutcome::Deposed(Epoch(8)));

    // The next leader waits for it, too, as long as its process lives.
    let third = epochs.unfinished_before(Epoch(9)).unwrap();
    assert_eq!(third.iter().map(|(epoch, _)| *epoch).collect::<Vec<_>>(), [Epoch(7), Epoch(8)]);
    drop(hung);
    assert!(epochs.has_ended(Epoch(7)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deposed_leader_registers_no_worker_and_names_its_successor() {
    let folder = folder();
    let settings = settings(&folder, "a");
    let mut a = start(settings.clone()).await.unwrap();
    let first = elected(&mut a).await;
    let epochs = Epochs::open(&settings.state_dir).unwrap();
    let mut usurper = epochs.take(first.epoch.next(), &claim("b")).unwrap().unwrap();
    a.commands.send(order(1, Order::Register(vec![entry("late", 1, 1)]))).await.unwrap();
    loop {
        match next(&mut a).await {
            Event::Registered(registered) => {
                panic!("{registered:?} registered by a deposed leader")
            }
            Event::Deposed { leader: successor } => {
                assert_eq!(successor, leader("b", 2));
                break;
            }
            _ => {}
        }
    }
    assert_eq!(epochs.renew(&mut usurper).unwrap(), RenewOutcome::Leads);
    // The first driver may grant until the end of its term: the next leader waits for that.
    drop(usurper);
    let third = elected(&mut a).await;
    assert_eq!(third.epoch, Epoch(3));
    assert!(third.predecessor_end >= first.until);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_unregistered_at_once_is_not_reported_as_registered() {
    let folder = folder();
    let mut a = start(settings(&folder, "a")).await.unwrap();
    elected(&mut a).await;
    // Sent together, so that the platform can take them together.
    let first = a.commands.reserve_many(3).await.unwrap();
    let both = vec![entry("w", 1, 3), entry("x", 2, 1)];
    let orders = [Order::Register(both), Order::Unregister(vec![worker("w")]), Order::Confirm];
    first.zip(orders).for_each(|(permit, wanted)| permit.send(order(1, wanted)));
    loop {
        if let Event::Registered(registered) = next(&mut a).await {
            assert_eq!(registered, [(worker("x"), AccountId(2), exposure(1))]);
            break;
        }
    }
}

/// A state folder was lost or restored from a copy, so agents know later epochs than it does.
#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_that_an_administrator_adds_makes_the_leader_take_a_higher_one() {
    let folder = folder();
    let settings = settings(&folder, "a");
    let mut a = start(settings.clone()).await.unwrap();
    assert_eq!(elected(&mut a).await.epoch, Epoch(1));
    // As in docs/OPERATIONS.md: an empty claim with the number from the log.
    fs::write(settings.state_dir.join("epochs/00000000000000000040.json"), "").unwrap();
    assert_eq!(deposed(&mut a).await, None);
    assert_eq!(elected(&mut a).await.epoch, Epoch(41));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_leader_keeps_its_epoch_and_restores_removed_files() {
    let folder = folder();
    let settings = settings(&folder, "a");
    let mut a = start(settings.clone()).await.unwrap();
    assert_eq!(elected(&mut a).await.epoch, Epoch(1));
    a.commands.send(order(1, Order::StepDown { above: Some(Epoch(6)) })).await.unwrap();
    assert_eq!(elected(&mut a).await.epoch, Epoch(7));
    a.commands.send(order(7, Order::Register(vec![entry("w", 1, 3)]))).await.unwrap();
    registered(&mut a).await;

    // Removed in one step, because the leader restores files meanwhile.
    let removed = folder.join("removed");
    fs::create_dir(&removed).unwrap();
    for name in ["register", "epochs"] {
        fs::rename(settings.state_dir.join(name), removed.join(name)).unwrap();
    }
    // Within two renewals the leader notices the missing claim and restores it.
    let epochs = loop {
        a.commands.send(order(7, Order::Confirm)).await.unwrap();
        match next(&mut a).await {
            Event::Renewed(renewed) => assert_eq!(renewed.epoch, Epoch(7)),
            other => panic!("{other:?}"),
        }
        let epochs = Epochs::open(&settings.state_dir).unwrap();
        if epochs.highest().unwrap() == Some(Epoch(7)) {
            break epochs;
        }
    };
    assert!(!epochs.has_ended(Epoch(7)));
    let alive = || {
        let names = fs::read_dir(settings.state_dir.join("epochs")).unwrap();
        let mut paths = names.map(|entry| entry.unwrap().path());
        paths.find(|path| path.extension().is_some_and(|extension| extension == "alive"))
    };
    fs::remove_file(alive().unwrap()).unwrap();
    while alive().is_none() {
        a.commands.send(order(7, Order::Confirm)).await.unwrap();
        next(&mut a).await;
    }
    assert!(!epochs.has_ended(Epoch(7)));
    a.commands.send(order(7, Order::Register(vec![entry("x", 2, 1)]))).await.unwrap();
    registered(&mut a).await;
    let _a = drain(a);
    let log = ExposureLog::open(&settings.state_dir, Epoch(8)).unwrap();
    let workers: BTreeSet<_> = log.entries().keys().cloned().collect();
    assert_eq!(workers, BTreeSet::from([worker("w"), worker("x")]));
}

/// The state folder is deleted while replicas run: none of them leads any longer. A replica that
/// starts on the new folder takes a higher epoch, so no epoch is led twice.
#[tokio::test(flavor = "multi_thread")]
async fn after_the_state_folder_is_deleted_only_a_new_replica_leads_with_a_higher_epoch() {
    let folder = folder();
    // On a busy machine the leader may renew late: the standby must not lead for that.
    let takeover_after = Duration::from_secs(2);
    let settings_of = |name| Settings { takeover_after, ..settings(&folder, name) };
    let mut a = start(settings_of("a")).await.unwrap();
    assert_eq!(elected(&mut a).await.epoch, Epoch(1));
    a.commands.send(order(1, Order::Register(vec![entry("w", 1, 3)]))).await.unwrap();
    registered(&mut a).await;
    let mut b = start(settings_of("b")).await.unwrap();
    assert_eq!(deposed(&mut b).await, leader("a", 1));
    let state_dir = settings_of("a").state_dir;
    fs::rename(&state_dir, folder.join("removed")).unwrap();
    assert_eq!(deposed(&mut a).await, None);
    // Longer than a standby waits before it takes over.
    let next_leader = async {
        tokio::select! {
            event = elected(&mut a) => event.epoch,
            event = elected(&mut b) => event.epoch,
        }
    };
    let led = timeout(settings_of("a").takeover_after * 3, next_leader).await;
    assert!(led.is_err(), "a running replica leads epoch {led:?}");
    let mut c = start(settings_of("c")).await.unwrap();
    let third = elected(&mut c).await;
    assert_eq!(third.epoch, Epoch(2));
    assert_eq!(third.cell, Some(CellId(7)), "it serves the same agents");
    assert_eq!(third.exposed.keys().collect::<Vec<_>>(), [&worker("w")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_replica_leads_without_readable_manifests() {
    let folder = folder();
    let settings = settings(&folder, "a");
    fs::remove_dir(&settings.manifests).unwrap();
    let error = start(settings.clone()).await.unwrap_err().to_string();
    assert!(error.contains(settings.manifests.to_str().unwrap()), "{error}");
    // The last good manifests are damaged.
    fs::create_dir_all(&settings.state_dir).unwrap();
    fs::write(settings.state_dir.join("manifests.good"), "torn").unwrap();
    let mut a = start(settings.clone()).await.unwrap();
    let mut problems = a.problems.clone();
    timeout(PATIENCE, problems.wait_for(|problems| !problems.is_empty())).await.unwrap().unwrap();
    // After each command it checks whether it can lead.
    for _ in 0..5 {
        a.commands.send(order(7, Order::Confirm)).await.unwrap();
    }
    while a.commands.capacity() < a.commands.max_capacity() {
        tokio::task::yield_now().await;
    }
    assert_eq!(Epochs::open(&settings.state_dir).unwrap().highest().unwrap(), None);
    fs::create_dir(&settings.manifests).unwrap();
    assert!(matches!(next(&mut a).await, Event::Desired(_)));
    assert!(matches!(next(&mut a).await, Event::Elected(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_leads_with_the_last_good_manifests() {
    let folder = folder();
    let settings = settings(&folder, "a");
    let mut a = start(settings.clone()).await.unwrap();
    assert!(matches!(next(&mut a).await, Event::Desired(_)));
    assert!(matches!(next(&mut a).await, Event::Elected(_)));
    let kept = settings.state_dir.join("manifests.good");
    timeout(PATIENCE, async {
        while !kept.exists() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    drop(a);
    fs::remove_dir(&settings.manifests).unwrap();
    let mut b = start(settings).await.unwrap();
    assert!(matches!(next(&mut b).await, Event::Desired(_)));
    assert!(matches!(next(&mut b).await, Event::Elected(_)));
    assert_eq!(b.problems.borrow().len(), 1);
}

#[test]
fn exactly_one_of_many_concurrent_candidates_takes_an_epoch() {
    let folder = folder();
    let epochs = Epochs::open(&folder).unwrap();
    const RACERS: usize = 8;
    for round in 1..=200 {
        let barrier = Barrier::new(RACERS);
        let winners = std::thread::scope(|scope| {
            let race = || {
                barrier.wait();
                epochs.take(Epoch(round), &claim("racer")).unwrap()
            };
            let racers: Vec<_> = (0..RACERS).map(|_| scope.spawn(race)).collect();
            racers.into_iter().filter_map(|racer| racer.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(winners.len(), 1, "round {round}");
        assert_eq!(epochs.highest().unwrap(), Some(Epoch(round)));
        drop(winners);
        epochs.prune().unwrap();
    }
    let left: Vec<_> = fs::read_dir(folder.join("epochs")).unwrap().collect();
    assert_eq!(left.len(), 8 * 3, "{left:?}");
}

#[test]
fn an_epoch_above_the_limit_is_an_error_and_does_not_depose_the_leader() {
    let folder = folder();
    let epochs = Epochs::open(&folder).unwrap();
    let mut held = epochs.take(Epoch(7), &claim("a")).unwrap().unwrap();
    for epoch in [u64::MAX, EPOCH_MAX.0 + 1] {
        let file = folder.join("epochs").join(format!("{epoch:020}.json"));
        fs::write(&file, "{}").unwrap();
        let error = epochs.highest().unwrap_err().to_string();
        let path = file.to_str().unwrap();
        assert!(error.contains(path) && error.contains("move it out of the folder"), "{error}");
        // The renewal fails until the file is removed, but the leader is not deposed.
        epochs.renew(&mut held).unwrap_err();
        fs::remove_file(&file).unwrap();
        assert_eq!(epochs.renew(&mut held).unwrap(), RenewOutcome::Leads);
    }
    let logs = folder.join("register");
    fs::create_dir_all(&logs).unwrap();
    fs::write(logs.join(format!("{:020}.log", u64::MAX)), "").unwrap();
    let error = exposure_log::highest(&folder).unwrap_err().to_string();
    assert!(error.contains(".log: the number is above the highest epoch"), "{error}");
}
