//! The log of exposures on disk: what is read back, also where a line is torn or damaged.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;

use leasehold_coordinator_core::campaign::EntryChange;
use leasehold_coordinator_core::exposure::{AccountId, Exposure};
use leasehold_types::Epoch;

use super::election_tests::{exposure, worker};
use super::exposure_log::ExposureLog;

#[test]
fn reads_registered_exposures_back_and_skips_a_torn_last_line() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = ExposureLog::open(folder.path(), Epoch(1)).unwrap();
    let enter =
        |name: &str, jobs| EntryChange::Register(worker(name), AccountId(1), exposure(jobs));
    first.write(&[enter("a", 1), enter("b", 2)]).unwrap();
    first.write(&[EntryChange::Unregister(worker("a")), enter("b", 3), enter("c", 4)]).unwrap();
    let log = folder.path().join("register/00000000000000000001.log");
    let mut file = fs::OpenOptions::new().append(true).open(&log).unwrap();
    file.write_all(br#"{"enter":{"cluster":"swarm","worker":"to"#).unwrap();

    let mut second = ExposureLog::open(folder.path(), Epoch(5)).unwrap();
    let expected = BTreeMap::from([(worker("b"), exposure(3)), (worker("c"), exposure(4))]);
    assert_eq!(*second.entries(), expected);
    second.write(&[]).unwrap();
    let mut third = ExposureLog::open(folder.path(), Epoch(6)).unwrap();
    assert_eq!(*third.entries(), expected);
    third.write(&[]).unwrap();
    assert!(!log.exists(), "an old log was not removed");

    // If an exposure cannot be decoded, the worker may hold anything.
    let newest = folder.path().join("register/00000000000000000006.log");
    let text = fs::read_to_string(&newest).unwrap();
    fs::write(&newest, text.replacen("jobsMax", "most", 1)).unwrap();
    let entries = ExposureLog::open(folder.path(), Epoch(7)).unwrap();
    let unreadable =
        BTreeMap::from([(worker("b"), Exposure::anything()), (worker("c"), exposure(4))]);
    assert_eq!(*entries.entries(), unreadable);

    // A damaged line in the middle may be any worker's: no replica may lead without it.
    fs::write(&newest, text.replacen("enter", "entre", 1)).unwrap();
    let error = ExposureLog::open(folder.path(), Epoch(7)).unwrap_err().to_string();
    assert!(error.contains("00000000000000000006.log:1 cannot be read"), "{error}");
}

#[test]
fn a_log_is_rewritten_when_it_has_grown_too_long() {
    let folder = tempfile::tempdir().unwrap();
    let mut register = ExposureLog::open(folder.path(), Epoch(1)).unwrap();
    let changes: Vec<_> =
        (0..5_000).map(|n| EntryChange::Register(worker("w"), AccountId(1), exposure(n))).collect();
    for _ in 0..5 {
        register.write(&changes).unwrap();
    }
    let log = folder.path().join("register/00000000000000000001.log");
    let lines = fs::read_to_string(log).unwrap().lines().count();
    assert!(lines <= 15_000, "{lines} lines for one worker");
    let entries = ExposureLog::open(folder.path(), Epoch(2)).unwrap();
    assert_eq!(*entries.entries(), BTreeMap::from([(worker("w"), exposure(4_999))]));
}
