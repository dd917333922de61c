//! `leasehold simulate` as people type it: the ready examples, the page about it, and mistakes.

mod shared;

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;
use shared::{leasehold, stderr};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn simulate(manifests: &Path, load: &Path, more: &[&str]) -> Output {
    let mut command = leasehold();
    command.arg("simulate").arg("-f").arg(manifests).arg("--load").arg(load);
    command.args(more).output().expect("it starts")
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A folder with a manifest and a load.
fn folder(manifest: &str, load: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in [("manifests.yaml", manifest), ("load.yaml", load)] {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    folder
}

fn simulate_in(folder: &Path, more: &[&str]) -> Output {
    simulate(&folder.join("manifests.yaml"), &folder.join("load.yaml"), more)
}

const MANIFEST: &str = "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\n\
                        metadata: {name: builds}\nspec: {maxJobs: 12, maxJobsPerWorker: 3}\n";
const LOAD: &str = "for: 2h\nclusters:\n- name: builds\n  arrivals: {perHour: 90}\n  \
                    durations: {exponential: {mean: 8m, max: 1h}}\nevents:\n\
                    - {at: 1h, rollout: {cluster: builds}}\n";
/// A document of Kubernetes beside a manifest.
const OTHER_API: &str = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: other}\n";

#[test]
fn a_simulation_prints_tables_and_the_same_figures_as_json_in_every_run() {
    let folder = folder(MANIFEST, LOAD);
    let table = succeeded(&simulate_in(folder.path(), &[]));
    for words in ["Cluster builds, 2h, seed 1:", "Leasehold", "Deployment", "Autoscaler", "BUDGET"]
    {
        assert!(table.contains(words), "no {words} in\n{table}");
    }
    let json = || succeeded(&simulate_in(folder.path(), &["-o", "json", "--seed", "5"]));
    let (first, second) = (json(), json());
    assert_eq!(first, second);
    let outcome: Value = serde_json::from_str(&first).expect("JSON");
    let sides = &outcome["clusters"][0]["sides"];
    assert_eq!(sides[0]["side"], "leasehold", "{sides}");
    assert_eq!(sides[0]["jobs"]["aboveBudgetMax"], 0);
    assert_eq!(sides[0]["jobs"]["killed"], 0);
    assert_eq!(sides[0]["jobs"]["arrived"], sides[1]["jobs"]["arrived"]);
    assert_eq!(sides[0]["course"]["running"].as_array().map(Vec::len), Some(480));
}

#[test]
fn a_report_is_one_file_with_plots() {
    let folder = folder(MANIFEST, LOAD);
    let report = folder.path().join("report.html");
    let report_flag = report.display().to_string();
    succeeded(&simulate_in(folder.path(), &["--report", &report_flag]));
    let html = std::fs::read_to_string(&report).expect("a report");
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("<h2>Cluster builds</h2>"));
    assert_eq!(html.matches("<svg").count(), 3);
}

#[test]
fn the_ready_examples_run_and_keep_the_budget() {
    let folder = root().join("deploy/simulations");
    for name in ["builds", "functions", "transcoding", "feeds"] {
        let example = folder.join(name);
        let output = simulate_in(&example, &["-o", "json"]);
        let outcome: Value = serde_json::from_str(&succeeded(&output)).expect("JSON");
        let side = &outcome["clusters"][0]["sides"][0];
        let jobs = &side["jobs"];
        assert!(jobs["ended"].as_u64().is_some_and(|ended| ended > 100), "{name}: {jobs}");
        // The budget of the transcoders is lowered while more jobs run.
        if name != "transcoding" {
            assert_eq!(jobs["aboveBudgetMax"], 0, "{name}: {jobs}");
        }
        assert_eq!(side["streams"].is_object(), name == "feeds", "{name}: {}", side["streams"]);
    }
}

#[test]
fn the_ready_example_of_pipelines_serves_them_within_the_capacity_of_its_workers() {
    let output = simulate_in(&root().join("deploy/simulations/documents"), &["-o", "json"]);
    let outcome: Value = serde_json::from_str(&succeeded(&output)).expect("JSON");
    for class in outcome["clusters"].as_array().expect("classes") {
        let [side] = class["sides"].as_array().expect("sides").as_slice() else {
            panic!("Leasehold alone serves pipelines: {class}")
        };
        let figures = &side["class"];
        let most = figures["workerLoadMax"].as_f64().expect("a part");
        assert!(most > 0.5 && most <= 1.0, "{figures}");
        assert_eq!(figures["workersWanted"].as_array().map(Vec::len), Some(480), "{figures}");
        let used = figures["utilization"].as_f64().expect("a part");
        assert!(used > 0.2 && used < 1.0, "{figures}");
    }
    let pipelines = outcome["pipelines"].as_array().expect("pipelines");
    let names: Vec<_> =
        pipelines.iter().filter_map(|figures| figures["pipeline"].as_str()).collect();
    assert_eq!(names, ["archive", "mail", "news"]);
    assert_eq!(pipelines[0]["documents"], 5 * 24 * 3600, "the rate of its manifest");
    for figures in pipelines {
        // A lost machine is replaced within two minutes.
        let longest = figures["unservedMaxSeconds"].as_f64().expect("seconds");
        assert!(longest < 120.0, "{figures}");
    }
    let table = succeeded(&simulate_in(&root().join("deploy/simulations/documents"), &[]));
    for words in ["Class enrich, 24h", "Pipelines, 24h", "WANTED", "UNSERVED"] {
        assert!(table.contains(words), "no {words} in\n{table}");
    }
    assert!(!table.contains("WASTED"), "no job is simulated:\n{table}");
}

/// `tests/tests/agreement.rs` compares these figures with what the demo measures. Six workers own
/// 27 streams: a worker that joins gets three, its share, and a worker that leaves has four.
#[test]
fn the_demo_moves_the_fewest_streams_and_its_rollout_ends_with_its_first_jobs() {
    let load = root().join("deploy/simulations/demo.yaml");
    let manifests = root().join("deploy/standalone/manifests");
    let output = simulate(&manifests, &load, &["-o", "json"]);
    let outcome: Value = serde_json::from_str(&succeeded(&output)).expect("JSON");
    let side = &outcome["clusters"][0]["sides"][0];
    let phases = side["phases"].as_array().expect("phases");
    let moves: Vec<_> = phases.iter().skip(1).map(|phase| phase["moves"].as_u64()).collect();
    assert_eq!(moves, [6 * (3 + 4), 3, 3, 3, 3 + 3, 0].map(Some), "{side}");
    let all = phases.iter().filter_map(|phase| phase["moves"].as_u64()).sum::<u64>();
    assert_eq!(side["streams"]["moves"].as_u64(), Some(all), "{side}");
    assert_eq!(phases[1]["event"], "rollout", "{side}");
    // Jobs of 20 s begin within the first second, and the rollout at its end.
    let rollout = phases[1]["lastWorkerSeconds"].as_f64().expect("its last worker");
    assert!((19.0..20.0).contains(&rollout), "{rollout}: {side}");
    assert_eq!(side["jobs"]["killed"], 2, "those of the lost machine: {side}");
}

/// The blocks of YAML on the page: manifests, then a load for them, and again.
#[test]
fn the_loads_on_the_page_are_valid() {
    let page = std::fs::read_to_string(root().join("docs/SIMULATE.md")).expect("the page");
    let blocks: Vec<&str> = page
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("```").map(|(block, _)| block))
        .collect();
    assert_eq!(blocks.len(), 6, "three of each: {blocks:?}");
    for pair in blocks.chunks(2) {
        let folder = folder(pair[0], pair[1]);
        let csv = folder.path().join("durations.csv");
        std::fs::write(csv, "seconds\n60\n600\n").expect("a file");
        succeeded(&simulate_in(folder.path(), &[]));
    }
}

#[test]
fn mistakes_are_named_with_file_line_and_field() {
    let own = |text: &str| text.to_owned();
    for (manifest, load, words) in [
        (
            own(MANIFEST),
            LOAD.replace("arrivals", "arivals"),
            "load.yaml:4:3: clusters[0].arivals: is not a known field: remove it",
        ),
        (
            own(MANIFEST),
            LOAD.replace("cluster: builds", "cluster: buids"),
            "events[0].rollout.cluster: is buids, which is not among clusters above: add it; did \
             you mean builds?",
        ),
        (
            MANIFEST.replace("maxJobs: 12", "maxJobs: many"),
            own(LOAD),
            "manifests.yaml:4:17: spec.maxJobs: is the text \"many\", but must be a whole number",
        ),
        (
            own(MANIFEST),
            LOAD.replace("exponential: {mean: 8m, max: 1h}", "csv: {file: none.csv}"),
            "csv.file none.csv: cannot be read",
        ),
        (
            MANIFEST.replace("maxJobs: 12", "maxJobs: 12, leese: {ttl: 5s}"),
            own(LOAD),
            "manifests.yaml:4:21: spec.leese: is not a known field: remove it",
        ),
        (
            MANIFEST.replace("maxJobs: 12", "maxJobs: 12, leese: {ttl: 5s}") + OTHER_API,
            own(LOAD),
            "manifests.yaml:4:21: spec.leese: is not a known field: remove it",
        ),
    ] {
        let folder = folder(&manifest, &load);
        let output = simulate_in(folder.path(), &[]);
        let why = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{why}");
        assert!(why.starts_with("error: ") && why.contains(words), "no {words} in {why}");
        assert!(output.stdout.is_empty(), "all or nothing");
    }
    let folder = folder(MANIFEST, LOAD);
    let report = folder.path().join("no/such/folder.html").display().to_string();
    let output = simulate_in(folder.path(), &["--report", &report]);
    let words = "folder.html: cannot be written (No such file or directory (os error 2)): name";
    assert!(stderr(&output).contains(words), "{}", stderr(&output));
}

#[test]
fn a_load_that_is_no_text_of_the_right_size_is_refused() {
    let folder = folder(MANIFEST, LOAD);
    let load = folder.path().join("load.yaml");
    let refused = |words: &str| {
        let output = simulate_in(folder.path(), &[]);
        let why = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{why}");
        assert!(why.contains(&format!("load.yaml: {words}")), "no {words} in {why}");
    };
    std::fs::write(&load, b"for: 2h\nstart: \"\xff\"\n").expect("a file");
    refused("is not UTF-8 from line 2 on: save it as UTF-8");
    std::fs::write(&load, format!("{LOAD}# {}\n", "-".repeat(1024 * 1024))).expect("a file");
    refused("is larger than 1048576 bytes: keep a part of it");
    std::fs::remove_file(&load).expect("a file");
    refused("cannot be read (No such file or directory (os error 2)): correct the path");
    std::fs::create_dir(&load).expect("a folder");
    refused("is not a regular file: replace it");
}

#[test]
fn a_file_of_durations_that_is_too_large_is_refused() {
    let load = LOAD.replace("exponential: {mean: 8m, max: 1h}", "csv: {file: jobs.csv}");
    let folder = folder(MANIFEST, &load);
    let csv = std::fs::File::create(folder.path().join("jobs.csv")).expect("a file");
    csv.set_len(64 * 1024 * 1024 + 1).expect("a length");
    let why = stderr(&simulate_in(folder.path(), &[]));
    let words = "csv.file jobs.csv: is larger than 67108864 bytes: keep a part of it";
    assert!(why.contains(words), "no {words} in {why}");
}

#[test]
fn manifests_of_kubernetes_are_read_too() {
    let manifest = MANIFEST.replace("{name: builds}", "{name: builds, namespace: ci}") + OTHER_API;
    let table = succeeded(&simulate_in(folder(&manifest, LOAD).path(), &[]));
    assert!(table.contains("Cluster ci/builds, 2h"), "{table}");
}

#[test]
fn help_has_an_example_and_a_typo_a_suggestion() {
    let help = leasehold().args(["simulate", "--help"]).output().expect("help");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(help.contains("Examples:") && help.contains("--report"), "{help}");
    let typo = leasehold().args(["simulte", "-f", "a.yaml"]).output().expect("it starts");
    assert_eq!(typo.status.code(), Some(2));
    assert!(stderr(&typo).contains("'simulate'"), "{}", stderr(&typo));
}
