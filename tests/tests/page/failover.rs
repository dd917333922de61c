//! The leader that serves the page is killed while the page is open.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use tests::command_line::MANIFESTS;

use super::fixture::{LIVE, PageFixture, cell};

/// The page came from the leader's own port. It goes on with the next leader, without being loaded
/// again, says so meanwhile, and shows what happens from then on.
#[test]
fn the_page_goes_on_when_the_leader_that_served_it_is_killed() {
    let Some(mut fixture) = PageFixture::start("the page", &[("all.yaml", MANIFESTS)]) else {
        return;
    };
    fixture.agent("builds", "worker-0", &[]);
    fixture.leasehold().until("explain worker worker-0", &["has its share: 3 slots"]);
    fixture.open("#/fleet/builds");
    fixture.has(&cell("builds/worker-0"), &[("state", "working")]);
    let _ = fixture.browser.script("window.marker = 'the first page'", &[]);
    let before = fixture.text("#connection");

    let killed_ms = now_ms();
    fixture.coordinator.process.kill();
    let states = fixture.browser.until(
        "a live page after the failover",
        "const states = window.seen.connections, last = states.at(-1);
         return last?.[0] === 'live' && states.length > 1 && states",
        &[],
    );
    let states: Vec<(String, u64)> =
        serde_json::from_value(states).expect("states and their times");
    let after: Vec<_> = states.iter().filter(|(_, at_ms)| *at_ms >= killed_ms).collect();
    assert_eq!(after.first().map(|(state, _)| state.as_str()), Some("reconnecting"), "{states:?}");
    let live = after.last().expect("it is live again");
    // A measure and no assertion: times depend on what else the machine does.
    println!("live {} ms after the leader was killed", live.1 - killed_ms);

    assert_ne!(fixture.text("#connection"), before, "it names the replica that it shows now");
    // Later changes are seen: an agent that comes, under the new leader.
    let standby = fixture.standbys[0].grpc.to_string();
    let late = fixture.coordinator.agent("builds", "worker-1", &["--coordinator", &standby]);
    fixture.agents.insert("worker-1".to_owned(), late);
    fixture.has(&cell("builds/worker-1"), &[("state", "working"), ("size", "3")]);
    fixture.has(&cell("builds/worker-0"), &[("state", "working"), ("size", "3")]);
    let marker = fixture.browser.script("return window.marker ?? 'another page'", &[]);
    assert_eq!(marker, json!("the first page"), "it was not loaded again");
    fixture.go("#/timeline");
    fixture.says("[data-change=elected]", &[]);
}

/// With no coordinator left the page says so, keeps what it showed last with its age, and goes on
/// once one is back.
#[test]
fn the_page_says_that_no_coordinator_answers_and_goes_on_when_one_does() {
    let Some(mut fixture) = PageFixture::start("the page", &[("all.yaml", MANIFESTS)]) else {
        return;
    };
    fixture.agent("builds", "worker-0", &[]);
    fixture.open("#/fleet/builds");
    fixture.has(&cell("builds/worker-0"), &[("state", "working")]);
    let _ = fixture.browser.script("window.marker = 'the first page'", &[]);
    fixture.standbys[0].process.kill();
    fixture.coordinator.process.kill();
    fixture.has("#connection", &[("state", "reconnecting")]);
    let first = fixture.text("#connection");
    fixture.has(&cell("builds/worker-0"), &[]);
    // The age of what is shown grows.
    let grows = "return document.querySelector('#connection').innerText.trim() !== arguments[0]";
    fixture.browser.until("an age that grows", grows, &[json!(first)]);

    let folder = fixture.coordinator.folder().to_owned();
    let addresses = [fixture.coordinator.grpc, fixture.coordinator.http];
    let again = tests::process::Replica::start_at(&folder, "again", addresses, &[]);
    fixture.standbys.push(again);
    fixture.browser.until("a live page again", LIVE, &[]);
    fixture.has(&cell("builds/worker-0"), &[("state", "working"), ("size", "3")]);
    let marker = fixture.browser.script("return window.marker ?? 'another page'", &[]);
    assert_eq!(marker, json!("the first page"), "it was not loaded again");
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    u64::try_from(since.as_millis()).expect("milliseconds fit")
}
