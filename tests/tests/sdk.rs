//! The SDKs against real agents and a real coordinator: the same example worker in each language,
//! judged by what it wrote down and what its sink holds. And the messages of the SDKs for Python,
//! Go and TypeScript against the proto.

#[path = "sdk/fleet.rs"]
mod fleet;
#[path = "sdk/go_tool.rs"]
mod go_tool;
#[path = "sdk/messages.rs"]
mod messages;
#[path = "sdk/typescript_sdk.rs"]
mod typescript_sdk;

use std::path::Path;
use std::process::Command;

use fleet::{Fleet, Language};
use leasehold_demo::clock;
use rustix::process::Signal;
use tests::process::{Process, eventually, free_address, get};
use tests::toolbox;

/// A test for each language.
macro_rules! in_each_language {
    ($($test:ident),+ $(,)?) => {
        mod go {
            $(#[test]
            fn $test() {
                if let Some(fleet) = super::Fleet::start(super::Language::Go) {
                    super::$test(fleet);
                }
            })+
        }
        mod python {
            $(#[test]
            fn $test() {
                if let Some(fleet) = super::Fleet::start(super::Language::Python) {
                    super::$test(fleet);
                }
            })+
        }
        mod typescript {
            $(#[test]
            fn $test() {
                if let Some(fleet) = super::Fleet::start(super::Language::TypeScript) {
                    super::$test(fleet);
                }
            })+
        }
        mod rust {
            $(#[test]
            fn $test() {
                let fleet = super::Fleet::start(super::Language::Rust);
                super::$test(fleet.expect("it is built with the tests"));
            })+
        }
    };
}

in_each_language!(
    an_agent_that_is_killed_ends_no_job_and_loses_no_slot,
    an_agent_that_lost_its_memory_is_told_what_runs,
    streams_stop_before_their_leases_end,
    streams_of_a_silent_agent_stop_before_another_worker_owns_them,
    a_worker_that_was_stopped_corrupts_nothing_when_it_wakes,
    a_worker_that_hangs_loses_its_streams_although_its_agent_lives,
    a_drain_ends_the_loops,
);

#[test]
fn without_an_agent_the_sdk_for_rust_says_so() {
    without_an_agent_a_worker_says_so(&toolbox::binary("examples/worker"));
}

#[test]
fn without_an_agent_the_sdk_for_go_says_so() {
    if let Some(program) = fleet::go_worker() {
        without_an_agent_a_worker_says_so(program);
    }
}

fn without_an_agent_a_worker_says_so(program: &Path) {
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("http://{}", free_address());
    let mut command = Command::new(program);
    command.arg(folder.path()).env("LEASEHOLD_ADDR", &address);
    let worker = Process::start(&mut command, &folder.path().join("log"));
    let said = eventually("a warning", || {
        let log = worker.log();
        log.contains("still trying").then_some(log)
    });
    for words in ["WARN", &*address, "refused", "LEASEHOLD_ADDR"] {
        assert!(said.contains(words), "no {words:?}: {said}");
    }
}

#[test]
fn the_packages_of_the_sdks_have_the_version_of_the_programs() {
    let version = env!("CARGO_PKG_VERSION");
    for (file, line) in [
        ("agent/sdk/python/pyproject.toml", format!("version = \"{version}\"")),
        ("agent/sdk/python/leasehold/__init__.py", format!("__version__ = \"{version}\"")),
        ("agent/sdk/typescript/package.json", format!("\"version\": \"{version}\",")),
        ("agent/sdk/typescript/package-lock.json", format!("\"version\": \"{version}\",")),
    ] {
        let text = std::fs::read_to_string(toolbox::root().join(file)).expect("a package's file");
        assert!(text.lines().any(|one| one.trim() == line), "{file} lacks {line}");
    }
}

fn an_agent_that_is_killed_ends_no_job_and_loses_no_slot(mut fleet: Fleet) {
    fleet.hold_jobs();
    let held = fleet.eventually_running(0, 2);
    fleet.agents[0].process.kill();
    fleet.restart_agent(0);
    eventually("the successor to claim both jobs", || {
        let lease = fleet.lease(0)?;
        (lease["connected"] == true && lease["pool"]["running"] == 2).then_some(())
    });
    assert_eq!(fleet.running(0), held, "no job ended or began");
    fleet.let_jobs_end();
    fleet.eventually_done(&held);
    fleet.hold_jobs();
    fleet.eventually_running(0, 2);
    fleet.let_jobs_end();
    fleet.judge();
}

fn an_agent_that_lost_its_memory_is_told_what_runs(mut fleet: Fleet) {
    fleet.hold_jobs();
    let held = fleet.eventually_running(0, 2);
    fleet.agents[0].process.kill();
    let journal = fleet.coordinator.folder().join("state-w-0/journal.jsonl");
    std::fs::remove_file(journal).expect("its journal");
    fleet.restart_agent(0);
    eventually("the successor to hear of both jobs", || {
        (fleet.lease(0)?["pool"]["running"] == 2).then_some(())
    });
    assert_eq!(fleet.running(0), held, "no job ended or began");
    fleet.let_jobs_end();
    fleet.eventually_done(&held);
    // Both slots come back, and both are used.
    fleet.hold_jobs();
    fleet.eventually_running(0, 2);
    fleet.let_jobs_end();
    fleet.judge();
}

fn streams_stop_before_their_leases_end(mut fleet: Fleet) {
    fleet.coordinator.process.signal(Signal::STOP);
    let ends = fleet.follow_leases_to_their_ends();
    assert_eq!(ends.len(), 4, "{ends:?}");
    for write in fleet.writes() {
        if let Some(end_ns) = ends.get(&write.token) {
            assert!(write.at_ns < *end_ns, "{write:?} is later than the lease's end at {end_ns}");
        }
    }
    fleet.coordinator.process.signal(Signal::CONT);
    fleet.eventually_owned(4);
    fleet.judge();
}

fn streams_of_a_silent_agent_stop_before_another_worker_owns_them(mut fleet: Fleet) {
    let stopped_ns = clock::now_ns();
    fleet.agents[0].process.signal(Signal::STOP);
    eventually("the other worker to own all streams", || (fleet.owned_by(1) == 4).then_some(()));
    assert_eq!(fleet.owned_by(0), 0, "its worker has released by its own clock");
    // Its own clock ended them, and not the sink, which refuses their tokens by now.
    assert_eq!(fleet.ends_since(0, stopped_ns), ["lost", "lost"]);
    fleet.agents[0].process.signal(Signal::CONT);
    eventually("its streams to come back", || (fleet.owned_by(0) == 2).then_some(()));
    fleet.judge();
}

fn a_worker_that_was_stopped_corrupts_nothing_when_it_wakes(mut fleet: Fleet) {
    fleet.agents[0].process.signal(Signal::STOP);
    fleet.stop_worker(0);
    eventually("the other worker to own all streams", || (fleet.owned_by(1) == 4).then_some(()));
    fleet.workers[0].signal(Signal::CONT);
    fleet.agents[0].process.signal(Signal::CONT);
    eventually("its streams to come back", || (fleet.owned_by(0) == 2).then_some(()));
    fleet.judge();
}

fn a_worker_that_hangs_loses_its_streams_although_its_agent_lives(mut fleet: Fleet) {
    fleet.stop_worker(0);
    eventually("the other worker to own all streams", || (fleet.owned_by(1) == 4).then_some(()));
    let (status, why) = get(fleet.agents[0].api, "/readyz").expect("an answer");
    assert_eq!(
        (status, why.contains("has not called the worker API for 3s")),
        (503, true),
        "{why}"
    );
    let lease = fleet.lease(0).expect("its agent answers");
    assert!(lease["connected"] == true && lease["pool"]["size"] == 0, "{lease}");
    fleet.workers[0].signal(Signal::CONT);
    eventually("its streams to come back", || (fleet.owned_by(0) == 2).then_some(()));
    fleet.judge();
}

fn a_drain_ends_the_loops(mut fleet: Fleet) {
    // As Kubernetes does: by the agent.
    fleet.drain(0);
    assert!(fleet.workers[0].wait().success(), "{}", fleet.workers[0].log());
    eventually("the other worker to own all streams", || (fleet.owned_by(1) == 4).then_some(()));
    // As a user at a terminal does: signal the worker.
    fleet.workers[1].signal(Signal::TERM);
    assert!(fleet.workers[1].wait().success(), "{}", fleet.workers[1].log());
    assert_eq!((fleet.owned_by(0), fleet.owned_by(1)), (0, 0));
    assert!(fleet.running(0).is_empty() && fleet.running(1).is_empty());
    fleet.judge();
}
