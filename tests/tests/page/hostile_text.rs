//! Text that means harm, wherever people or programs may write freely: the page shows it as it is
//! written, and never as markup.

use std::process::Command;

use serde_json::{Value, json};
use tests::process::{Agent, Process, eventually, free_address};
use tests::session::join;
use tests::toolbox;
use tokio::runtime::Runtime;

use super::fixture::{PageFixture, cell};

/// An image that cannot be loaded, which would run a script. It is a stream's name, a worker's
/// failure, an agent's version, a folder, a file and a value in a manifest.
const IMAGE: &str = "<img src=x onerror=window.harmed=1>";
const MANIFESTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 6, maxJobsPerWorker: 3, lease: {ttl: 5m}}
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {name: cars}
spec:
  cluster: builds
  streams: [{name: '<img src=x onerror=window.harmed=1>'}, {name: '<hostile>&amp;<b>'}]
---
apiVersion: leasehold.dev/v1alpha1
kind: WorkerClass
metadata: {name: green}
spec: {capacity: 10, maxReplicas: 2, lease: {ttl: 5m}}
---
apiVersion: leasehold.dev/v1alpha1
kind: Pipeline
metadata: {name: third}
spec: {documentsPerSecond: 5, workers: {only: {class: green}}}
";

/// Elements that only a hostile text would have made, scripts that are not the page's own, and
/// anything that ran or was refused.
const HARM: &str = "
    const found = [...document.querySelectorAll('[onerror], [onload], hostile, img[src=x]')];
    const scripts = [...document.scripts].filter(one => !one.src.startsWith(
        `${location.origin}/page/`));
    return {
        elements: [...found, ...scripts].map(one => one.outerHTML),
        ran: window.harmed ?? null,
        refused: window.seen.violations,
    };
";

fn assert_harmless(fixture: &PageFixture, at: &str) {
    let harm = fixture.browser.script(HARM, &[]);
    assert_eq!(harm, json!({"elements": [], "ran": null, "refused": []}), "{at}");
}

/// Waits until the page shows this text, and checks that it is nothing but text.
fn shows(fixture: &PageFixture, at: &str, text: &str) {
    let shown = "return document.body.innerText.includes(arguments[0])";
    fixture.browser.until(&format!("{text} at {at}"), shown, &[json!(text)]);
    assert_harmless(fixture, at);
}

#[test]
fn hostile_text_is_shown_as_text() {
    let Some(mut fixture) = PageFixture::start("the page", &[("all.yaml", MANIFESTS)]) else {
        return;
    };
    // A failure that the worker's own check prints.
    let check = format!("echo '{IMAGE}' >&2; exit 4");
    let check = ["--worker-check-exec", &check, "--worker-check-failures", "1"];
    let often = ["--worker-check-interval", "100ms", "--worker-check-start-period", "0s"];
    fixture.agent("builds", "failing", &[&check[..], &often].concat());
    fixture.agent("builds", "worker-0", &[]);
    // Another agent that wants its name, and says that it runs in such a folder.
    let _other = other_agent(&fixture);
    // An agent that says what it likes, in a class of pipelines, too.
    let runtime = Runtime::new().expect("a runtime");
    let joined = ["builds", "green"].map(|cluster| {
        let worker = format!("{cluster}-hostile");
        runtime.block_on(join(fixture.coordinator.grpc, cluster, &worker, IMAGE))
    });
    let manifests = fixture.coordinator.folder().join("manifests");
    let mistake = format!(
        "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\nmetadata: {{name: '{IMAGE}'}}\n\
         spec: {{maxJobs: '{IMAGE}', '{IMAGE}': 1}}\n"
    );
    std::fs::write(manifests.join(format!("{IMAGE}.yaml")), mistake).expect("a manifest");
    let leasehold = fixture.leasehold();
    leasehold.until("explain worker failing --cluster builds", &[IMAGE]);
    leasehold.until("explain worker worker-0", &["another agent wants its name", IMAGE]);

    fixture.open("#/fleet");
    fixture.has(&cell("builds/failing"), &[("state", "failing")]);
    fixture.has(&cell("builds/builds-hostile"), &[]);
    assert_harmless(&fixture, "the fleet");
    for (route, text) in [
        ("#/fleet/builds", None),
        ("#/fleet/builds?explain=worker:builds/failing", Some(IMAGE)),
        ("#/fleet/builds?explain=worker:builds/worker-0", Some(IMAGE)),
        ("#/fleet/builds?explain=worker:builds/builds-hostile", None),
        ("#/fleet?explain=cluster:builds", None),
        ("#/streams", None),
        ("#/streams/cars", Some(IMAGE)),
        ("#/streams/cars", Some("<hostile>&amp;<b>")),
        (
            "#/streams/cars?explain=stream:cars/%3Cimg%20src%3Dx%20onerror%3Dwindow.harmed%3D1%3E",
            Some(IMAGE),
        ),
        ("#/pipelines", None),
        ("#/pipelines/third", None),
        ("#/pipelines/third?explain=pipeline:third", None),
        ("#/timeline", Some(IMAGE)),
        // What an address names may be anything; nothing of it is there.
        ("#/fleet/%3Cimg%20src%3Dx%20onerror%3Dwindow.harmed%3D1%3E", Some(IMAGE)),
        ("#/streams/%3Cimg%20src%3Dx%20onerror%3Dwindow.harmed%3D1%3E", Some(IMAGE)),
        ("#/pipelines/%3Cimg%20src%3Dx%20onerror%3Dwindow.harmed%3D1%3E", Some(IMAGE)),
        ("#/plan/%3Cimg%20src%3Dx%20onerror%3Dwindow.harmed%3D1%3E", None),
        ("#/fleet?explain=worker:builds/%3Cimg%20src%3Dx%20onerror%3Dwindow.harmed%3D1%3E", None),
        ("#/timeline?text=%3Cimg%20src%3Dx%20onerror%3Dwindow.harmed%3D1%3E", None),
    ] {
        fixture.go(route);
        if route.contains("explain=") {
            fixture.text("#explanation");
        }
        match text {
            Some(text) => shows(&fixture, route, text),
            None => assert_harmless(&fixture, route),
        }
    }
    problem_is_text(&fixture);
    plan_is_text(&fixture);
    drop(joined);
}

/// The manifest's file name, field and message.
fn problem_is_text(fixture: &PageFixture) {
    fixture.open("#/timeline");
    let problem = fixture.leasehold().json("status");
    let problem = &problem["replicas"][0]["status"]["problems"][0];
    let words = ["file", "field", "message"].map(|name| problem[name].as_str().unwrap_or_default());
    assert!(words.iter().any(|words| words.contains(IMAGE)), "{problem}");
    fixture.says("[data-problem]", &words);
    assert_harmless(fixture, "a problem of a manifest");
}

/// What a person types into the form, which the coordinator's refusal repeats.
fn plan_is_text(fixture: &PageFixture) {
    fixture.open("#/plan/builds");
    fixture.browser.fill("form#plan [name=removeWorkers]", IMAGE);
    fixture.browser.press(tests::browser::Key::Enter);
    shows(fixture, "a refused plan", "onerror=window.harmed=1");
}

/// An agent that wants the name of worker-0.
fn other_agent(fixture: &PageFixture) -> Agent {
    let api = free_address();
    let folder = fixture.coordinator.folder();
    let mut command = Command::new(toolbox::binary("leasehold-agent"));
    command.args(["run", "--coordinator", &fixture.coordinator.grpc.to_string()]);
    command.args(["--cluster", "builds", "--worker", "worker-0", "--listen", &api.to_string()]);
    command.arg("--state-dir").arg(folder.join(IMAGE));
    eventually("the first agent of the name", || {
        let explained = fixture.leasehold().try_line("explain worker worker-0");
        explained.is_ok().then_some(())
    });
    Agent { process: Process::start(&mut command, &folder.join("other.log")), api }
}

/// The same checks on markup that a script puts there: they find it.
#[test]
fn the_checks_find_planted_markup() {
    let Some(fixture) = PageFixture::start("the page", &[("all.yaml", MANIFESTS)]) else {
        return;
    };
    fixture.open("#/fleet");
    assert_harmless(&fixture, "the page as it is");
    let plant = "document.querySelector('main').insertAdjacentHTML('beforeend', arguments[0])";
    let _ = fixture.browser.script(plant, &[json!(format!("{IMAGE}<hostile></hostile>"))]);
    // The policy forbids the script of the image, which is noted once the image cannot be loaded.
    let refused = "return window.seen.violations.length > 0";
    fixture.browser.until("what the policy refuses", refused, &[]);
    let harm: Value = fixture.browser.script(HARM, &[]);
    assert_eq!(harm["elements"].as_array().map(Vec::len), Some(2), "{harm}");
    assert_eq!(harm["ran"], Value::Null, "the page's policy runs no script of an element: {harm}");
}
