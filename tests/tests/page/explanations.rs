//! Planted situations: the page gives the same cause, the same facts and the same next step as
//! `leasehold explain`, whose own test is `tests/explain.rs`.

use serde_json::{Value, json};
use tests::command_line::{MANIFESTS, start_job};
use tests::process::until_ok;

use super::fixture::{PageFixture, cell};

/// Opens the explanation of this subject by its address, and reads it.
const READ: &str = "
    const [route, done] = arguments, begun = performance.now();
    location.hash = route;
    const text = node => (node?.textContent ?? '').replace(/\\s+/g, ' ').trim();
    const look = () => {
        const element = document.querySelector('#explanation [data-part=summary]');
        const summary = element?.getClientRects().length > 0 ? text(element) : '';
        const waits = ['', 'Asking …'].includes(summary);
        if (waits && performance.now() - begun < 5000) return setTimeout(look, 20);
        done({
            summary,
            facts: [...document.querySelectorAll('#explanation [data-part=facts] li')].map(text),
            nextStep: text(document.querySelector('#explanation [data-part=next-step]')),
        });
    };
    setTimeout(look, 20);
";

struct Explanations(PageFixture);

impl Explanations {
    fn start(manifests: &[(&str, &str)]) -> Option<Self> {
        PageFixture::start("the page", manifests).map(Self)
    }

    /// Waits until the page and `leasehold explain LINE` say the same, with these words.
    fn same(&self, subject: &str, line: &str, words: &[&str]) {
        let Self(fixture) = self;
        fixture.leasehold().until(&format!("explain {line}"), words);
        // What is said may contain a time that passes: it is asked anew until both say the same.
        until_ok(&format!("the explanation of {subject}, as by `explain {line}`"), || {
            let told = fixture.leasehold().json(&format!("explain {line}"));
            let _ = fixture.browser.script("location.hash = '#/fleet'", &[]);
            fixture.has_no("#explanation [data-part=summary]");
            let route = format!("#/fleet?explain={subject}");
            let shown = fixture.browser.script_that_calls(READ, &[json!(route)]);
            if says_the_same(&told, &shown) {
                Ok(())
            } else {
                Err(format!("\n{told}\nand on the page\n{shown}"))
            }
        });
    }
}

/// Whether the page shows what the command line prints, but for seconds that pass between the two.
/// The page may add words to the next step, such as those of a button.
fn says_the_same(told: &Value, shown: &Value) -> bool {
    let text = |value: &Value| {
        let mut words: Vec<_> = value.as_str().unwrap_or_default().split_whitespace().collect();
        for at in 1..words.len() {
            let is_time = words[at - 1].parse::<f64>().is_ok() && ["s", "ms"].contains(&words[at]);
            words[at - 1] = if is_time { "N" } else { words[at - 1] };
        }
        words.join(" ")
    };
    let facts = |value: &Value| {
        value["facts"].as_array().into_iter().flatten().map(text).collect::<Vec<_>>()
    };
    text(&told["summary"]) == text(&shown["summary"])
        && facts(told) == facts(shown)
        && text(&shown["nextStep"]).contains(&text(&told["nextStep"]))
        && text(&told["nextStep"]).is_empty() == text(&shown["nextStep"]).is_empty()
}

/// Situations 1 to 8.
#[test]
fn a_cluster_from_no_worker_to_a_lost_and_a_draining_one_is_explained_as_by_the_command_line() {
    let Some(mut page) = Explanations::start(&[("all.yaml", MANIFESTS)]) else { return };
    page.0.open("#/fleet");
    page.same("cluster:builds", "cluster builds", &["builds has no worker", "Next: start a"]);
    page.same("stream:cars/cars%3Anew", "stream cars:new", &["cars/cars:new has no worker"]);
    page.same("pipeline:third", "pipeline third", &["Next: add a worker to class green"]);

    for worker in ["worker-0", "worker-1"] {
        page.0.agent("builds", worker, &[]);
        page.0.leasehold().until(&format!("explain worker {worker}"), &["its share: 3 slots"]);
    }
    page.same("worker:builds/worker-1", "worker worker-1", &["has its share: 3 slots"]);
    for (worker, job) in [0, 1].iter().flat_map(|at| ["a", "b", "c"].map(|job| (at, job))) {
        start_job(&page.0.agents[&format!("worker-{worker}")], job);
    }
    page.same("cluster:builds", "cluster builds", &["has used its budget up: 6 jobs run"]);

    // Killed, with a stream that is pinned to it.
    let owned = page.0.leasehold().json("streams --worker worker-0");
    let stream = owned["streams"][0]["name"].as_str().expect("a stream").to_owned();
    page.0.agents.get_mut("worker-0").expect("an agent").process.kill();
    let gone = "leasehold gone worker-0 --cluster builds";
    page.same("worker:builds/worker-0", "worker worker-0", &["is silent", gone]);
    page.same("cluster:builds", "cluster builds", &["lost: worker-0", gone]);
    let subject = format!("stream:cars/{}", stream.replace(':', "%3A"));
    page.same(&subject, &format!("stream {stream}"), &[gone]);

    page.0.leasehold().line("drain worker-1");
    page.same("worker:builds/worker-1", "worker worker-1", &["drains", "leasehold undrain"]);
}

/// Situations 9 to 12, and that a click on a cell asks for the same as its address.
#[test]
fn failing_workers_wanted_names_mistakes_and_unaddressed_workers_are_explained_alike() {
    let Some(mut page) = Explanations::start(&[("all.yaml", MANIFESTS)]) else { return };
    let check = ["--worker-check-exec", "echo it is gone >&2; exit 4"];
    let often = ["--worker-check-failures", "1", "--worker-check-interval", "100ms"];
    let early = ["--worker-check-start-period", "0s"];
    page.0.agent("builds", "worker-1", &[&check[..], &often, &early].concat());
    page.0.agent("green", "green-0", &[]);
    page.0.open("#/fleet");
    let failing = ["builds/worker-1 fails", "exited with 4: it is gone", "Next: see what"];
    page.same("worker:builds/worker-1", "worker worker-1", &failing);
    page.same("cluster:builds", "cluster builds", &["failing: worker-1"]);
    let unaddressed = "green/green-0 names no address";
    page.same("pipeline:third", "pipeline third", &[unaddressed, "--worker-address"]);

    let manifest = page.0.coordinator.folder().join("manifests/all.yaml");
    std::fs::write(&manifest, MANIFESTS.replace("maxJobs: 6", "maxJobs: many")).expect("an edit");
    let invalid = ["a manifest is invalid, and its last good state in force: all.yaml:4:"];
    page.same("cluster:builds", "cluster builds", &invalid);

    let Explanations(fixture) = page;
    fixture.go("#/fleet/builds");
    fixture.browser.click(&cell("builds/worker-1"));
    let told = fixture.leasehold().json("explain worker worker-1");
    let summary = told["summary"].as_str().expect("a summary");
    fixture.says("#explanation [data-part=summary]", &[summary]);
    let route = fixture.browser.script("return location.hash", &[]);
    let route = route.as_str().expect("a text");
    assert!(route.contains("explain=worker:builds/worker-1"), "it can be passed on: {route}");
}
