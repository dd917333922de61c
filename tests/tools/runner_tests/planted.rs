//! Planted failures for the tests of the test command. Compiled with `rustc --test`.

use std::path::PathBuf;
use std::{env, fs};

/// Counts the runs of this test, over processes.
fn runs(name: &str) -> u32 {
    let folder = PathBuf::from(env::var("PLANTED_FOLDER").expect("PLANTED_FOLDER"));
    let file = folder.join(name);
    let before = fs::read_to_string(&file).map_or(0, |text| text.parse().expect("a count"));
    fs::write(&file, (before + 1).to_string()).expect("the count is written");
    before + 1
}

fn is_planted(name: &str) -> bool {
    env::var("PLANTED").is_ok_and(|planted| planted.split(',').any(|one| one == name))
}

fn fails_once(name: &str) {
    assert!(!is_planted(name) || runs(name) > 1, "{name}: the first run of it fails");
}

#[test]
fn always_passes() {
    runs("always_passes");
}

#[test]
fn fails_twice() {
    assert!(!is_planted("fails_twice"), "the evidence of fails_twice");
}

#[test]
fn flaky_1() {
    fails_once("flaky_1");
}

#[test]
fn flaky_2() {
    fails_once("flaky_2");
}

#[test]
fn flaky_3() {
    fails_once("flaky_3");
}

#[test]
fn flaky_4() {
    fails_once("flaky_4");
}

#[test]
fn kills_its_process() {
    if is_planted("kills_its_process") && runs("kills_its_process") == 1 {
        std::process::abort();
    }
}

#[test]
fn never_ends() {
    while is_planted("never_ends") {
        std::thread::park();
    }
}
