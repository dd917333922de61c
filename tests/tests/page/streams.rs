//! Streams as their rows show them: without an owner, with one, and on their way to another.

use serde_json::{Value, json};

use super::fixture::PageFixture;

const MANIFESTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 6, maxJobsPerWorker: 3, lease: {ttl: 2s}}
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {name: cars}
spec:
  cluster: builds
  moves: {settle: 100ms, cooldown: 0s}
  streams: [{name: 'cars:new'}, {name: 'cars:updated'}, {name: 'cars:sold'}, {name: 'cars:old'}]
";

/// Each stream has no owner at first, with the reason; then the first worker has all of them, and
/// when a second one comes, two of them move to it while the page is looked at.
#[test]
fn a_stream_is_seen_without_an_owner_with_one_and_moving_to_another() {
    let Some(mut fixture) = PageFixture::start("the page", &[("cars.yaml", MANIFESTS)]) else {
        return;
    };
    let row = |stream: &str| format!("[data-stream=\"cars/{stream}\"]");
    let all = ["cars:new", "cars:updated", "cars:sold", "cars:old"];
    fixture.open("#/streams/cars");
    for stream in all {
        fixture.has(&row(stream), &[("owner", "")]);
    }
    let streams = fixture.leasehold().json("streams cars");
    let reason = streams["streams"][0]["reason"].as_str().expect("a reason").to_owned();
    fixture.says(&row("cars:new"), &[&reason]);

    fixture.agent("builds", "worker-0", &[]);
    for stream in all {
        fixture.has(&row(stream), &[("owner", "worker-0")]);
    }
    fixture.agent("builds", "worker-1", &[]);
    let moved = "const rows = [...document.querySelectorAll('[data-owner=\"worker-1\"]')];
        return rows.length === 2 && rows.map(row => row.dataset.stream)";
    let moved = fixture.browser.until("two streams of worker-1", moved, &[]);
    for stream in moved.as_array().expect("names") {
        let seen = fixture.seen("streams").into_iter().filter(|row| row[0] == *stream);
        let mut owners: Vec<String> =
            seen.map(|row| row[1].as_str().unwrap_or_default().to_owned()).collect();
        owners.dedup();
        owners.retain(|owner| !owner.is_empty());
        assert_eq!(owners, ["worker-0", "worker-1"], "{stream}");
    }
    let granted = "return [...document.querySelectorAll('[data-change=stream_granted]')].some(
        line => line.innerText.includes('worker-1') && line.innerText.includes(arguments[0]))";
    fixture.go("#/timeline");
    for stream in moved.as_array().expect("names") {
        let name = stream.as_str().and_then(|path| path.split_once('/')).expect("a path").1;
        fixture.browser.until(&format!("the move of {name}"), granted, &[json!(name)]);
    }

    // By worker, and by a search.
    fixture.go("#/streams/cars");
    let shown = "return [...document.querySelectorAll('[data-stream]')].map(
        row => row.dataset.stream).sort()";
    let search = "main input[type=search]";
    fixture.browser.fill(search, "updat");
    let only = json!(["cars/cars:updated"]);
    let found = format!(
        "const shown = (() => {{ {shown} }})();
        return JSON.stringify(shown) === JSON.stringify(arguments[0])"
    );
    fixture.browser.until("one stream that is found", &found, &[only]);
    fixture.browser.fill(search, "nothing of that name");
    let none: &[Value] = &[json!([])];
    fixture.browser.until("no stream that is found", &found, none);
}
