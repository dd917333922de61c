//! Workers as their cells show them: a rollout, a loss, and a mistake in a manifest.

use serde_json::{Value, json};
use tests::command_line::{MANIFESTS, call, start_job};
use tests::process::{eventually, until_ok};

use super::fixture::{PageFixture, cell};

/// The budget in [`MANIFESTS`].
const MAX_JOBS: u64 = 6;

/// Two workers of the old generation run all jobs of the budget. As they drain, their cells empty
/// one job after the other, and the new ones' fill with what they leave.
#[test]
fn in_a_rollout_old_cells_empty_and_new_ones_fill() {
    let Some(mut fixture) = PageFixture::start("the page", &[("all.yaml", MANIFESTS)]) else {
        return;
    };
    for worker in ["old-0", "old-1"] {
        fixture.agent("builds", worker, &["--generation", "1"]);
        fixture.leasehold().until(&format!("explain worker {worker}"), &["has its share: 3 slots"]);
    }
    for (worker, job) in jobs(["old-0", "old-1"]) {
        start_job(&fixture.agents[worker], job);
    }
    fixture.open("#/fleet/builds");
    for worker in ["old-0", "old-1"] {
        let full = [("state", "working"), ("size", "3"), ("running", "3"), ("generation", "1")];
        fixture.has(&cell(&format!("builds/{worker}")), &full);
    }

    for worker in ["new-0", "new-1"] {
        fixture.agent("builds", worker, &["--generation", "2"]);
        let empty = [("state", "working"), ("running", "0"), ("generation", "2")];
        fixture.has(&cell(&format!("builds/{worker}")), &empty);
    }
    for worker in ["old-0", "old-1"] {
        fixture.leasehold().line(&format!("drain {worker}"));
        fixture.has(&cell(&format!("builds/{worker}")), &[("state", "draining")]);
    }
    for (number, (worker, job)) in jobs(["old-0", "old-1"]).into_iter().enumerate() {
        assert!(call(&fixture.agents[worker], "DELETE", &format!("/v1/jobs/{job}")), "{job} ends");
        // Its slot may go to either of them.
        eventually("a job of a new worker", || {
            let begins = |new| call(&fixture.agents[new], "PUT", &format!("/v1/jobs/{number}"));
            (begins("new-0") || begins("new-1")).then_some(())
        });
        let left = (2 - number % 3).to_string();
        if left != "0" {
            fixture.has(&cell(&format!("builds/{worker}")), &[("running", &left)]);
        }
    }
    for worker in ["old-0", "old-1"] {
        fixture.has_no(&cell(&format!("builds/{worker}")));
    }
    for worker in ["new-0", "new-1"] {
        let full = [("state", "working"), ("size", "3"), ("running", "3"), ("generation", "2")];
        fixture.has(&cell(&format!("builds/{worker}")), &full);
    }

    for worker in ["old-0", "old-1"] {
        let history = fixture.cell_history(&format!("builds/{worker}"));
        let states: Vec<&str> = history.iter().map(|(state, ..)| state.as_str()).collect();
        assert!(states.contains(&"draining"), "{history:?}");
        assert_eq!(states.last(), Some(&"removed"), "{history:?}");
        let drained = history.iter().filter(|(state, ..)| state == "draining");
        let running: Vec<u64> = drained.map(|(_, _, running)| *running).collect();
        assert!(running.is_sorted_by(|a, b| a >= b), "it only empties: {history:?}");
        assert_eq!(running.first(), Some(&3), "it drains with its jobs: {history:?}");
    }
    for worker in ["new-0", "new-1"] {
        let history = fixture.cell_history(&format!("builds/{worker}"));
        let running: Vec<u64> = history.iter().map(|(_, _, running)| *running).collect();
        assert!(running.is_sorted(), "it only fills: {history:?}");
        assert_eq!((running.first(), running.last()), (Some(&0), Some(&3)), "{history:?}");
    }
    // The page showed at no time more jobs than the budget allows.
    let most = fixture.seen("jobs").iter().filter_map(Value::as_u64).max();
    assert_eq!(most, Some(MAX_JOBS));
    assert_eq!(fixture.text("[data-cluster=builds] [data-figure=maxJobs]"), "6");
    fixture.says("[data-cluster=builds] [data-figure=running]", &["6"]);
}

/// Three jobs for each of these workers.
fn jobs(workers: [&'static str; 2]) -> Vec<(&'static str, &'static str)> {
    workers.iter().flat_map(|worker| ["a", "b", "c"].map(|job| (*worker, job))).collect()
}

/// A worker is killed with its agent. Its cell turns silent, then lost; a click on it says what to
/// do, and once that was done it goes.
#[test]
fn a_lost_worker_is_seen_and_what_to_do_is_a_click_away() {
    let Some(mut fixture) = PageFixture::start("the page", &[("all.yaml", MANIFESTS)]) else {
        return;
    };
    for worker in ["worker-0", "worker-1"] {
        fixture.agent("builds", worker, &[]);
        fixture.leasehold().until(&format!("explain worker {worker}"), &["has its share: 3 slots"]);
    }
    start_job(&fixture.agents["worker-0"], "long");
    fixture.open("#/fleet/builds");
    fixture.has(&cell("builds/worker-0"), &[("state", "working"), ("running", "1")]);
    fixture.agents.get_mut("worker-0").expect("an agent").process.kill();
    fixture.has(&cell("builds/worker-0"), &[("state", "lost")]);
    let history = fixture.cell_history("builds/worker-0");
    let states: Vec<&str> = history.iter().map(|(state, ..)| state.as_str()).collect();
    assert_eq!(states[states.len() - 2..], ["silent", "lost"], "{history:?}");
    fixture.has(&cell("builds/worker-1"), &[("state", "working")]);

    fixture.browser.click(&cell("builds/worker-0"));
    fixture.says("#explanation [data-part=summary]", &["builds/worker-0 is silent"]);
    let command = "leasehold gone worker-0 --cluster builds";
    fixture.says("#explanation [data-part=next-step]", &[command]);
    fixture.go("#/timeline");
    fixture.says("[data-change=lost]", &["worker-0"]);

    fixture.go("#/fleet");
    fixture.leasehold().line("gone worker-0 --cluster builds --yes");
    fixture.has_no(&cell("builds/worker-0"));
    fixture.go("#/timeline");
    fixture.says("[data-change=gone]", &["worker-0"]);
}

/// What is wrong with a manifest, and where, is shown as `leasehold status` says it, for as long as
/// it is wrong; the last good state stays in force and is shown.
#[test]
fn a_mistake_in_a_manifest_is_shown_with_its_file_line_and_field() {
    let Some(fixture) = PageFixture::start("the page", &[("all.yaml", MANIFESTS)]) else {
        return;
    };
    fixture.open("#/timeline");
    fixture.has_no("[data-problem]");
    let manifest = fixture.coordinator.folder().join("manifests/all.yaml");
    std::fs::write(&manifest, MANIFESTS.replace("maxJobs: 6", "maxJobs: many")).expect("an edit");
    let problem = until_ok("a problem", || {
        let status = fixture.leasehold().json("status");
        let problem = status["replicas"][0]["status"]["problems"][0].clone();
        if problem == Value::Null { Err(status.to_string()) } else { Ok(problem) }
    });
    let text = |field: &str| problem[field].as_str().expect(field).to_owned();
    let (file, field, message) = (text("file"), text("field"), text("message"));
    assert_eq!((file.as_str(), field.as_str()), ("all.yaml", "spec.maxJobs"), "{problem}");
    assert_eq!(problem["line"], json!(4), "{problem}");
    fixture.says("[data-problem]", &[&file, "4", &field, &message]);
    fixture.says("[data-change=manifests]", &[]);
    fixture.go("#/fleet");
    assert_eq!(fixture.text("[data-cluster=builds] [data-figure=maxJobs]"), "6");

    std::fs::write(&manifest, MANIFESTS.replace("maxJobs: 6", "maxJobs: 5")).expect("a correction");
    fixture.says("[data-cluster=builds] [data-figure=maxJobs]", &["5"]);
    fixture.go("#/timeline");
    fixture.has_no("[data-problem]");
}
