//! What axe-core finds on each view, in light and dark and on a phone, and what a keyboard reaches.

use serde_json::json;
use tests::browser::{DESK, Key, PHONE, Scheme};
use tests::command_line::{MANIFESTS, start_job};
use tests::toolbox;

use super::fixture::{PageFixture, cell};

/// Each view, and one with an explanation.
const ROUTES: [&str; 9] = [
    "#/fleet",
    "#/fleet/builds",
    "#/streams",
    "#/streams/cars",
    "#/pipelines",
    "#/pipelines/third",
    "#/timeline",
    "#/plan/builds",
    "#/fleet/builds?explain=worker:builds/worker-0",
];

/// Runs axe-core, and hands over what it finds that is serious or critical.
const CHECK: &str = "
    const done = arguments[0];
    axe.run(document, {resultTypes: ['violations']}).then(result => done(
        result.violations
            .filter(one => one.impact === 'serious' || one.impact === 'critical')
            .map(one => ({id: one.id, help: one.help, at: one.nodes.map(
                node => [node.target.join(' '), node.failureSummary])}))),
        error => done(String(error)));
";

/// A fleet in which each state is seen: workers that work, drain, fail and are lost, a pipeline
/// that waits, a stream without an owner, a mistake in a manifest.
fn fleet_in_every_state() -> Option<PageFixture> {
    let mut fixture = PageFixture::start("the page", &[("all.yaml", MANIFESTS)])?;
    for worker in ["worker-0", "worker-1"] {
        fixture.agent("builds", worker, &[]);
        fixture.leasehold().until(&format!("explain worker {worker}"), &["has its share: 3 slots"]);
    }
    start_job(&fixture.agents["worker-0"], "long");
    start_job(&fixture.agents["worker-1"], "long");
    let check = ["--worker-check-exec", "exit 4", "--worker-check-failures", "1"];
    let often = ["--worker-check-interval", "100ms", "--worker-check-start-period", "0s"];
    fixture.agent("builds", "worker-2", &[&check[..], &often].concat());
    fixture.leasehold().line("drain worker-1");
    fixture.agents.get_mut("worker-0").expect("an agent").process.kill();
    let problem = "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\n";
    let manifest = fixture.coordinator.folder().join("manifests/mistake.yaml");
    std::fs::write(manifest, problem).expect("a manifest");
    fixture.leasehold().until("explain cluster builds", &["lost: worker-0", "failing: worker-2"]);
    Some(fixture)
}

#[test]
fn axe_finds_nothing_serious_on_any_view() {
    let Some(fixture) = fleet_in_every_state() else { return };
    let axe = toolbox::root().join("tests/vendor/axe-core/axe.min.js");
    let axe = std::fs::read_to_string(axe).expect("the vendored axe-core");
    let mut found = Vec::new();
    for (window, scheme) in [(DESK, Scheme::Light), (DESK, Scheme::Dark), (PHONE, Scheme::Light)] {
        fixture.browser.resize(window);
        fixture.browser.prefer(scheme);
        fixture.open("#/fleet");
        let _ = fixture.browser.script(&axe, &[]);
        for route in ROUTES {
            fixture.go(route);
            if route.contains("explain") {
                fixture.text("#explanation [data-part=summary]");
            }
            let problems = fixture.browser.script_that_calls(CHECK, &[]);
            if problems != json!([]) {
                let width = window.width;
                found.push(format!("{route}, {scheme}, {width} pixels wide: {problems:#}"));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The cells are one stop of the tab key; arrow keys go from one to the next, and enter asks for
/// the explanation of the one that is focused, which escape closes.
#[test]
fn a_keyboard_alone_reaches_a_worker_and_its_explanation() {
    let Some(mut fixture) = PageFixture::start("the page", &[("all.yaml", MANIFESTS)]) else {
        return;
    };
    for worker in ["worker-0", "worker-1"] {
        fixture.agent("builds", worker, &[]);
        fixture.leasehold().until(&format!("explain worker {worker}"), &["has its share: 3 slots"]);
    }
    fixture.open("#/fleet/builds");
    fixture.has(&cell("builds/worker-1"), &[("state", "working")]);
    let stops = "return [...document.querySelectorAll('[data-worker]')].filter(
        cell => cell.tabIndex === 0).length";
    assert_eq!(fixture.browser.script(stops, &[]), json!(1), "one stop of the tab key");
    // By the tab key from the beginning of the page to the cells.
    let focused = "return document.activeElement?.dataset?.worker ?? ''";
    let mut reached = false;
    for _ in 0..40 {
        fixture.browser.press(Key::Tab);
        reached = fixture.browser.script(focused, &[]) == json!("builds/worker-0");
        if reached {
            break;
        }
    }
    assert!(reached, "the tab key reaches the first cell");
    fixture.browser.press(Key::Right);
    assert_eq!(fixture.browser.script(focused, &[]), json!("builds/worker-1"), "arrow right");
    fixture.browser.press(Key::Enter);
    fixture.says("#explanation [data-part=summary]", &["builds/worker-1"]);
    fixture.browser.press(Key::Escape);
    fixture.has_no("#explanation [data-part=summary]");
    let back = fixture.browser.script(focused, &[]);
    assert_eq!(back, json!("builds/worker-1"), "the focus is where it was");
}
