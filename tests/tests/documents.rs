//! The commands in the documents work, and their lists are complete.

#[path = "documents/book.rs"]
mod book;
#[path = "documents/chart.rs"]
mod chart;
#[path = "documents/commands.rs"]
mod commands;
#[path = "documents/reference.rs"]
mod reference;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use tests::answers::metric;
use tests::process::{Coordinator, eventually};
use tests::toolbox;

/// Below docs, with manifests that are whole.
const PAGES_WITH_MANIFESTS: [&str; 5] = [
    "docs/START.md",
    "docs/MIGRATION.md",
    "docs/MANIFESTS.md",
    "docs/PIPELINES.md",
    "docs/STREAMS.md",
];

fn read(file: &str) -> String {
    std::fs::read_to_string(toolbox::root().join(file)).expect("a document")
}

/// The blocks in fences of this language, indentation taken off.
fn fenced(text: &str, language: &str) -> Vec<String> {
    let opening = format!("```{language}");
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(fence) = lines.find(|line| line.trim_start() == opening) {
        let indent = fence.len() - fence.trim_start().len();
        let inside = lines.by_ref().take_while(|line| line.trim_start() != "```");
        let line = |line: &str| line.get(indent..).unwrap_or_default().to_owned() + "\n";
        blocks.push(inside.map(line).collect());
    }
    assert!(!blocks.is_empty(), "no block of {language}");
    blocks
}

/// The words in a text that begin with `--` and a letter.
fn flags(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let words = text.split(|c: char| !is_part(c));
    let is_flag = |word: &&str| {
        word.strip_prefix("--").is_some_and(|name| name.starts_with(|c: char| c.is_alphabetic()))
    };
    words.filter(is_flag).map(|word| word.trim_end_matches('-').to_owned()).collect()
}

/// The flags that a binary explains, clap's own left out.
fn flags_of(binary: &str, commands: &[&str]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for command in commands {
        let output = Command::new(toolbox::binary(binary))
            .args([command, "--help"])
            .output()
            .expect("the binary starts");
        assert!(output.status.success(), "{binary} {command} --help");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        // A flag is explained on a line that begins with it, after `-x,` at most.
        for line in text.lines() {
            let words = line.split_whitespace().take_while(|word| word.starts_with('-'));
            all.extend(words.flat_map(flags));
        }
    }
    for own in ["--help", "--version"] {
        all.remove(own);
    }
    assert!(!all.is_empty(), "{binary} explains no flag");
    all
}

#[test]
fn documents_exactly_the_flags_that_exist() {
    let documented = flags(&read("docs/OPERATIONS.md"));
    let mut there = flags_of("leasehold-coordinator", &["run", "check", "operator"]);
    there.extend(flags_of("leasehold-agent", &["run", "drain", "probe", "leave"]));
    let missing: Vec<_> = there.difference(&documented).collect();
    assert!(missing.is_empty(), "docs/OPERATIONS.md does not name {missing:?}");
    let gone: Vec<_> = documented.difference(&there).collect();
    assert!(gone.is_empty(), "docs/OPERATIONS.md names {gone:?}, which no binary has");
}

#[test]
fn every_relative_link_points_to_a_file() {
    let mut waiting = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
        .map(|file| toolbox::root().join(file))
        .to_vec();
    let samples = tests::tracked_files::tracked().into_iter();
    let samples = samples.filter(|path| path.starts_with("deploy/samples"));
    waiting.extend(samples.map(|path| toolbox::root().join(path)));
    for folder in ["docs", "docs/adapters", "docs/adr", "docs/reference", "docs/runbooks"] {
        let entries = std::fs::read_dir(toolbox::root().join(folder)).expect("documents");
        waiting.extend(entries.map(|entry| entry.expect("an entry").path()));
    }
    for document in
        waiting.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md"))
    {
        let text = std::fs::read_to_string(document).expect("a document");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap_or_default();
            if target.contains("://") || path.is_empty() {
                continue;
            }
            let folder = document.parent().expect("a folder");
            assert!(folder.join(path).exists(), "{}: {target}", document.display());
        }
    }
}

#[test]
fn every_decision_has_a_status_and_is_in_the_index_with_its_title() {
    let index = read("docs/adr/README.md");
    let entries = std::fs::read_dir(toolbox::root().join("docs/adr")).expect("decisions");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
    names.retain(|name| name != "README.md");
    for name in &names {
        let text = read(&format!("docs/adr/{name}"));
        let title = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let (number, title) = title.and_then(|title| title.split_once(". ")).expect("a title");
        let status = text.lines().find_map(|line| line.strip_prefix("Status: ")).expect("a status");
        let date = status.rsplit_once(", ").expect("a date").1;
        let row = format!("| [{number}]({name}) | {title} | {date} |");
        assert!(index.lines().any(|line| line == row), "docs/adr/README.md lacks {row}");
        assert!(name.starts_with(&format!("{:0>4}-", number)), "{name} has the number {number}");
    }
    assert!(!names.is_empty());
}

#[test]
fn manifests_in_the_documents_are_valid() {
    for document in ["README.md"].into_iter().chain(PAGES_WITH_MANIFESTS) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (index, block) in fenced(&read(document), "yaml").iter().enumerate() {
            std::fs::write(folder.path().join(format!("{index}.yaml")), block).expect("a manifest");
        }
        write_lists(folder.path());
        assert_good(folder.path(), document);
    }
}

#[test]
fn standalone_manifests_are_valid() {
    for folder in ["deploy/standalone/manifests", "deploy/standalone/pipelines"] {
        assert_good(&toolbox::root().join(folder), folder);
    }
    let samples = ["runners", "transcoder", "feeds", "backups", "documents"];
    for folder in samples.map(|sample| format!("deploy/samples/{sample}/manifests")) {
        assert_good(&toolbox::root().join(&folder), &folder);
    }
}

/// How many workers the coordinator asks for.
fn workers_needed(manifests: &[(&str, &str)]) -> u32 {
    let coordinator = Coordinator::start(manifests);
    eventually("what the classes need", || metric(coordinator.http, "workerclass_workers_needed"))
        as u32
}

#[test]
fn pipeline_examples_state_the_number_of_workers_they_need() {
    let document = read("docs/PIPELINES.md");
    assert_eq!(workers_needed(&[("a.yaml", &fenced(&document, "yaml")[0])]), 5);
    assert!(document.contains("the example needs five workers"));
    let [classes, news] =
        ["classes", "news"].map(|file| read(&format!("deploy/standalone/pipelines/{file}.yaml")));
    assert_eq!(workers_needed(&[("classes.yaml", &classes), ("news.yaml", &news)]), 6);
    assert!(read("deploy/standalone/README.md").contains("They need six workers"));
}

#[track_caller]
fn assert_good(manifests: &Path, called: &str) {
    let mut check = Command::new(toolbox::binary("leasehold-coordinator"));
    let output = check.args(["check", "--manifests"]).arg(manifests).output();
    let output = output.expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{called}: {said}");
}

/// The files of streams that the documents' manifests name.
fn write_lists(folder: &Path) {
    std::fs::write(folder.join("more-cars.txt"), "cars:parts\n").expect("a list");
}

#[test]
fn every_flag_of_the_command_line_is_documented() {
    let documented = flags(&read("docs/CLI.md"));
    let there = flags_of(
        "leasehold",
        &[
            "status",
            "clusters",
            "workers",
            "sets",
            "streams",
            "pipelines",
            "classes",
            "explain",
            "plan",
            "simulate",
            "drain",
            "gone",
            "events",
            "version",
            "inject",
            "uninject",
            "check",
        ],
    );
    let missing: Vec<_> = there.difference(&documented).collect();
    assert!(missing.is_empty(), "docs/CLI.md does not name {missing:?}");
}

#[test]
fn every_agent_flag_can_be_set_by_annotation_or_is_reserved() {
    let known: BTreeSet<String> = leasehold_injection::FLAGS
        .iter()
        .map(|flag| flag.name)
        .chain(leasehold_injection::flags::RESERVED.iter().map(|(name, _)| *name))
        .map(|name| format!("--{name}"))
        .collect();
    let there = flags_of("leasehold-agent", &["run"]);
    let unknown: Vec<_> = there.difference(&known).collect();
    assert!(unknown.is_empty(), "injection/src/flags.rs does not know {unknown:?}");
    let gone: Vec<_> = known.difference(&there).collect();
    assert!(
        gone.is_empty(),
        "injection/src/flags.rs names {gone:?}, which the agent does not have"
    );
}
