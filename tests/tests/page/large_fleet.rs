//! 2,000 workers that change four times a second: the page touches only what has changed.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use tests::process::eventually;
use tests::session::Workers;

use super::fixture::{PageFixture, cell};

const WORKERS: usize = 2_000;
/// Workers whose running jobs change at a time.
const CHANGED: usize = 200;
/// The updates that are watched, and the interval between them.
const UPDATES: usize = 40;
const INTERVAL: Duration = Duration::from_millis(250);
/// Jobs that one worker may run.
const JOBS_PER_WORKER: u32 = 9;

const MANIFEST: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: large}
spec: {maxJobs: 18000, maxJobsPerWorker: 9, lease: {ttl: 10m}}
";

/// Notes the cells of which an attribute changes that the page's rules of style read.
const NOTE_STYLED: &str = "
    window.styled = new Set();
    const note = changes => {
        for (const { target: { dataset } } of changes) {
            if (dataset.worker) window.styled.add(dataset.worker);
        }
    };
    new MutationObserver(note).observe(document.querySelector('.grid'), {
        subtree: true, attributeFilter: ['style', 'class', 'hidden', 'data-state'],
    });
";

/// Whether so many cells are shown, and each is filled up to the share of its slots that run jobs:
/// a column of pixels through the middle of each.
const FILLED: &str = "
    const canvas = document.querySelector('.cells canvas');
    const context = canvas.getContext('2d');
    const { left, top } = canvas.getBoundingClientRect();
    const { width, data } = context.getImageData(0, 0, canvas.width, canvas.height);
    context.fillStyle = getComputedStyle(canvas).getPropertyValue('--working');
    const used = parseInt(context.fillStyle.slice(1), 16);
    const isUsed = at => (data[at] << 16 | data[at + 1] << 8 | data[at + 2]) === used;
    const cells = [...document.querySelectorAll('[data-worker]:not([hidden])')];
    const wrong = cells.filter(cell => {
        const box = cell.getBoundingClientRect();
        const x = Math.floor(box.left - left + box.width / 2);
        // Within the border.
        const [first, inner] = [Math.round(box.top - top) + 1, box.height - 2];
        let filled = 0;
        for (let y = first; y < first + inner; y += 1) filled += isUsed(4 * (y * width + x));
        return Math.abs(filled - inner * cell.dataset.running / cell.dataset.size) > 1;
    });
    return cells.length === arguments[0] && wrong.length === 0";

#[test]
fn with_2000_workers_only_what_has_changed_is_touched() {
    let Some(fixture) = PageFixture::start("the page", &[("large.yaml", MANIFEST)]) else {
        return;
    };
    let workers = Workers::start(fixture.coordinator.grpc, "large", WORKERS);
    eventually("all workers and their slots", || {
        let clusters = fixture.leasehold().json("clusters");
        let large = &clusters["clusters"][0];
        let all = large["connected"] == json!(WORKERS) && large["granted"] == json!(18_000);
        all.then_some(())
    });
    fixture.open("#/fleet/large");
    let all = format!("return document.querySelectorAll('[data-worker]').length === {WORKERS}");
    fixture.browser.until("a cell for each worker", &all, &[]);
    readable(&fixture);

    // One of them.
    let forget = "window.seen.cells.clear(); window.seen.workers = []";
    let _ = fixture.browser.script(forget, &[]);
    workers.set_jobs(17, 5);
    fixture.has(&cell("large/w-0017"), &[("running", "5"), ("size", "9")]);
    assert_eq!(touched(&fixture), BTreeSet::from(["large/w-0017".to_owned()]));

    // 200 of them, four times a second.
    let _ = fixture.browser.script(forget, &[]);
    let _ = fixture.browser.script(NOTE_STYLED, &[]);
    let mut random = fastrand::Rng::with_seed(1);
    let mut last = vec![0; WORKERS];
    last[17] = 5;
    let mut changed = BTreeSet::new();
    for _ in 0..UPDATES {
        // The pace of the updates; nothing is waited for.
        std::thread::sleep(INTERVAL);
        for _ in 0..CHANGED {
            let index = random.usize(..WORKERS);
            last[index] = random.u32(..=JOBS_PER_WORKER);
            workers.set_jobs(index, last[index]);
            changed.insert(format!("large/{}", Workers::name(index)));
        }
    }
    let shown: Vec<_> = last
        .iter()
        .enumerate()
        .map(|(index, jobs)| json!([format!("large/{}", Workers::name(index)), jobs.to_string()]))
        .collect();
    let as_it_is = "const wrong = arguments[0].filter(([name, running]) => document.querySelector(
            `[data-worker=\"${name}\"]`)?.dataset.running !== running);
        return wrong.length === 0";
    fixture.browser.until("all cells as they are", as_it_is, &[json!(shown)]);
    let beyond: Vec<_> = touched(&fixture).difference(&changed).cloned().collect();
    assert!(beyond.is_empty(), "touched without a change: {beyond:?}");
    let styled = fixture.browser.script("return [...window.styled]", &[]);
    assert_eq!(styled, json!([]), "cells that the browser had to style again");

    // What is seen is what the cells say, also where some of them are hidden.
    fixture.browser.until("every cell filled as it is", FILLED, &[json!(WORKERS)]);
    fixture.go("#/fleet/large?search=w-01");
    fixture.browser.until("every cell that is left", FILLED, &[json!(100)]);
}

/// Every cell is wide enough to be seen, and the page no wider than its window.
fn readable(fixture: &PageFixture) {
    let sizes = "
        const cells = [...document.querySelectorAll('[data-worker]')];
        const boxes = cells.map(cell => cell.getBoundingClientRect());
        return {
            narrowest: Math.min(...boxes.map(box => Math.min(box.width, box.height))),
            beyond: document.documentElement.scrollWidth - window.innerWidth,
        }";
    let sizes = fixture.browser.script(sizes, &[]);
    assert!(sizes["narrowest"].as_f64() >= Some(8.0), "{sizes}");
    assert!(sizes["beyond"].as_f64() <= Some(0.0), "{sizes}");
}

/// The cells that have been written to.
fn touched(fixture: &PageFixture) -> BTreeSet<String> {
    let cells = fixture.browser.script("return [...window.seen.cells]", &[]);
    serde_json::from_value(cells).expect("names")
}
