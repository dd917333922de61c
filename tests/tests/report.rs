//! A short run of `make bench`: every row has a figure, and what it writes can be read.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tests::toolbox;

/// The agents of the fleet that a short report compares with peers.
const AGENTS: usize = 20;
/// The plots, and a text in each.
const PLOTS: [(&str, &str); 3] = [
    ("push.svg", "edit of 20 agents"),
    ("distribution.svg", "broadcast to 20 streams"),
    ("sizes.svg", "edit of every pool, all agents"),
];
/// Prints the text of an XML file.
const TEXT: &str = "import sys, xml.etree.ElementTree as tree\n\
                    print(*tree.parse(sys.argv[1]).getroot().itertext(), sep='')";

fn report(arguments: &[&str], document: &Path, output: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench_report"));
    command.args(arguments).arg("--document").arg(document).arg("--output").arg(output);
    command.output().expect("it is there")
}

#[test]
fn a_short_report_has_a_figure_in_every_row() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let document = folder.path().join("PERFORMANCE.md");
    std::fs::copy(toolbox::root().join("docs/PERFORMANCE.md"), &document).expect("the document");
    let output = report(&["--short"], &document, folder.path());
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complained}");

    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("a file");
    let json: Value = serde_json::from_str(&read("report.json")).expect("JSON");
    assert_eq!(json["failures"], Value::Array(Vec::new()));
    let rows = json["rows"].as_array().expect("rows");
    let numbers: BTreeSet<u64> = rows.iter().filter_map(|row| row["row"].as_u64()).collect();
    assert_eq!(numbers, BTreeSet::from_iter(1..=14));
    for row in rows {
        assert!(row["value"].is_f64(), "{row}");
        assert!(row["goal"].is_null() && row["met"].is_null(), "goals are for full sizes: {row}");
    }
    let figures = |name: &str| -> Vec<f64> {
        let is_named = |row: &&Value| row["name"].as_str().is_some_and(|all| all.ends_with(name));
        rows.iter().filter(is_named).filter_map(|row| row["value"].as_f64()).collect()
    };
    let needless_moves = |assignor: &str| figures(&format!("{assignor}, needless moves"));
    assert_eq!(needless_moves("planner"), [0.0, 0.0]);
    // None of Kafka's is there where it is left out.
    assert!(needless_moves("Kafka StickyAssignor").iter().all(|moves| *moves == 0.0));
    assert!(needless_moves("Kafka RangeAssignor").iter().all(|moves| *moves > 0.0));
    let figure = |name: &str| {
        let all = figures(name);
        let [figure] = all.as_slice() else { panic!("{name}: {all:?}") };
        *figure
    };
    assert_eq!(figure("Leasehold, jobs beyond the budget"), 0.0);
    let leases = figure("Leasehold, slots unused");
    let polls = figure("worker-operator's formula, slots unused");
    assert!(leases < polls, "slots unused: {leases} and {polls}");
    let [program, resident, own] = [": program", ": resident", ": memory of its own"].map(figure);
    assert!(program > 0.0, "the program's size: {program}");
    assert!(own > 0.0 && own < resident, "memory: {own} of {resident}");
    // The share of the 21st agent of 1,000 streams; the 22nd gets fewer.
    assert_eq!(figure("one joins 20 agents: streams moved"), 47.0);
    // Each agent gives some away, and each host gets a table: 21, and then 22.
    assert_eq!(figure("one joins 20 agents: agents whose streams change"), 22.0);
    // None of Dapr's is there where it is left out.
    assert!(figures("Dapr's placement: hosts that get a table").iter().all(|all| *all == 22.0));
    assert!(figures("Dapr's placement: keys moved").iter().all(|moved| *moved > 0.0));
    for compared in json["compared"].as_array().expect("what is compared") {
        for round in compared["rounds_ms"].as_array().expect("rounds") {
            assert_eq!(round.as_array().map(Vec::len), Some(AGENTS), "{}", compared["name"]);
        }
    }

    let document = read("PERFORMANCE.md");
    for row in rows {
        let name = row["name"].as_str().expect("a name");
        assert!(said.contains(name) && document.contains(name), "no {name} in\n{said}{document}");
    }
    for (name, text) in PLOTS {
        let mut python = Command::new("python3");
        let output = python.args(["-c", TEXT]).arg(folder.path().join(name)).output();
        let output = output.expect("python3 starts");
        let shown = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && shown.contains(text), "{name}: {shown}{complained}");
    }
}

#[test]
fn a_document_without_a_place_for_the_report_is_refused_before_anything_is_measured() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let document = folder.path().join("notes.md");
    std::fs::write(&document, "# Notes\n").expect("a document");
    let output = report(&["--short"], &document, folder.path());
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && complained.contains("no place for the report"));
    assert!(!folder.path().join("report.json").exists());
    assert_eq!(std::fs::read_to_string(&document).expect("the document"), "# Notes\n");
}
