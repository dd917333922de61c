//! The sample that reads feeds into a real PostgreSQL: what each of its workers has written, while
//! one of them is stopped and wakes, and another drains.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use leasehold_types::Token;
use rustix::process::Signal;
use serde::Deserialize;
use tests::postgresql::Postgresql;
use tests::process::{Process, eventually, free_address};

use crate::fleet::{Fleet, python};

/// The streams of the sample's manifest.
const FEEDS: [&str; 6] = ["dock", "gate", "hall", "road", "roof", "yard"];

/// Prints the table as JSON, or an empty list before it is there.
const READ: &str = "\
import json, psycopg2
with psycopg2.connect('') as connection, connection.cursor() as cursor:
    cursor.execute(\"SELECT to_regclass('packets')\")
    rows = []
    if cursor.fetchone()[0]:
        cursor.execute('SELECT feed, rtp_number, token, worker FROM packets ORDER BY number')
        rows = cursor.fetchall()
print(json.dumps(rows))
";

/// A row of the table: one packet.
#[derive(Clone, Debug, Deserialize)]
struct Packet {
    feed: String,
    rtp_number: u16,
    token: String,
    worker: String,
}

/// All packets that were written, in the order in which each feed's were.
fn packets(server: &Postgresql) -> Vec<Packet> {
    let mut command = Command::new(server.python());
    let output = command.args(["-c", READ]).envs(server.variables()).output();
    let output = output.expect("Python starts");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{why}");
    serde_json::from_slice(&output.stdout).expect("packets")
}

/// The worker that has written last, by feed.
fn writers(packets: &[Packet]) -> BTreeMap<&str, &str> {
    packets.iter().map(|packet| (&*packet.feed, &*packet.worker)).collect()
}

/// Waits until the newest packets of as many feeds are a worker's as is enough.
fn eventually_written(server: &Postgresql, worker: &str, is_enough: impl Fn(usize) -> bool) {
    eventually(&format!("feeds that {worker} writes"), || {
        let packets = packets(server);
        let count = writers(&packets).values().filter(|writer| **writer == worker).count();
        is_enough(count).then_some(())
    });
}

#[test]
fn each_feed_is_written_by_one_owner_at_a_time() {
    let Some(server) = Postgresql::start("the test of the sample feeds") else { return };
    let mut fleet = Fleet::start("feeds");
    let port = free_address().port().to_string();
    let mut camera = python(server.python(), "feeds/camera.py");
    let _camera = Process::start(camera.arg(&port), &fleet.folder().join("camera.log"));
    let mut worker = python(server.python(), "feeds/feeds.py");
    worker.arg(format!("rtsp://127.0.0.1:{port}")).envs(server.variables());
    fleet.add("feeds", "f-0", &[], &mut worker);
    eventually_written(&server, "f-0", |feeds| feeds == FEEDS.len());
    fleet.add("feeds", "f-1", &[], &mut worker);
    eventually_written(&server, "f-1", |feeds| feeds > 0);

    // The machine of the first hangs. Its packets wait for it meanwhile, and it then writes them.
    let hanging = fleet.worker("f-0");
    hanging.process.signal(Signal::STOP);
    eventually("the worker to stop", || hanging.process.is_stopped().then_some(()));
    hanging.agent.process.signal(Signal::STOP);
    eventually_written(&server, "f-1", |feeds| feeds == FEEDS.len());
    hanging.process.signal(Signal::CONT);
    hanging.agent.process.signal(Signal::CONT);
    eventually_written(&server, "f-0", |feeds| feeds > 0);
    let log = fleet.log("f-0");
    assert!(log.contains("not written: token"), "the database has refused nothing: {log}");

    fleet.begin_drain("f-1");
    fleet.eventually_ended("f-1");
    eventually_written(&server, "f-0", |feeds| feeds == FEEDS.len());
    judge(&packets(&server));
}

/// Each packet is written once, each token is of one worker, and tokens of a feed never fall.
fn judge(packets: &[Packet]) {
    for feed in FEEDS {
        let own: Vec<&Packet> = packets.iter().filter(|packet| packet.feed == feed).collect();
        let numbers: BTreeSet<u16> = own.iter().map(|packet| packet.rtp_number).collect();
        assert_eq!(numbers.len(), own.len(), "a packet of {feed} is written twice: {own:?}");
        let tokens = own.iter().map(|packet| packet.token.parse::<Token>().expect("a token"));
        let tokens: Vec<Token> = tokens.collect();
        assert!(tokens.is_sorted(), "a former owner of {feed} has written: {own:?}");
        let owners: BTreeSet<(&str, &str)> =
            own.iter().map(|packet| (&*packet.token, &*packet.worker)).collect();
        let granted: BTreeSet<&str> = owners.iter().map(|(token, _)| *token).collect();
        assert_eq!(owners.len(), granted.len(), "{feed}: {owners:?}");
    }
}
