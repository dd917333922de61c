//! Rules on tracked files: length, purpose, names, and nothing that exists on one machine only.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tests::tracked_files::{code, has_extension, is_generated, names, text, tracked};

const FILE_LINES_MAX: usize = 600;
const LINE_CHARS_MAX: usize = 100;

/// File names that do not say what the file contains.
const VAGUE_NAMES: [&str; 7] = ["utils", "util", "helpers", "helper", "manager", "common", "misc"];

/// Whether a person writes this Rust file.
fn is_rust(path: &Path) -> bool {
    has_extension(path, &["rs"]) && !is_generated(path)
}

/// The problems of one Rust file: its purpose, its length and its name.
fn file_problems(path: &Path, text: &str) -> Vec<String> {
    let shown = path.display();
    let mut wrong = Vec::new();
    if !text.starts_with("//!") {
        wrong.push(format!("{shown}: must begin with `//!` and its purpose"));
    }
    if text.starts_with("//! .\n") {
        wrong.push(format!("{shown}: does not say its purpose"));
    }
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        wrong.push(format!("{shown}: {lines} lines, more than {FILE_LINES_MAX}"));
    }
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    if VAGUE_NAMES.contains(&stem) {
        wrong.push(format!("{shown}: name it after a noun of the domain"));
    }
    // Those of a crate as a whole stand beside its `lib.rs`.
    if stem == "tests" && !path.parent().is_some_and(|folder| folder.ends_with("src")) {
        wrong.push(format!("{shown}: name it after the file that it tests, `<file>_tests.rs`"));
    }
    wrong
}

/// The numbers of the lines that are too long.
fn long_lines(text: &str) -> Vec<usize> {
    let numbered = text.lines().enumerate();
    let long = numbered.filter(|(_, line)| line.chars().count() > LINE_CHARS_MAX);
    long.map(|(index, _)| index + 1).collect()
}

/// The numbers of the lines that contain a path of one machine.
fn machine_paths(text: &str) -> Vec<usize> {
    let homes = [concat!("/", "root/"), concat!("/", "work/"), concat!("/", "home/")];
    let numbered = text.lines().enumerate();
    let found = numbered.filter(|(_, line)| homes.iter().any(|home| line.contains(home)));
    found.map(|(index, _)| index + 1).collect()
}

/// Whether a text has an address. A checksum in `go.sum` looks like one where it begins with two
/// slashes: `h1://`.
fn has_address(text: &str) -> bool {
    text.replace(" h1://", " ").contains("://")
}

/// The numbers of the lines with a closure whose parameter is named `it`. As `cargo fmt` writes
/// Rust, only the bars of a closure have no space on their inner sides.
fn unnamed_parameters(text: &str) -> Vec<usize> {
    let is_unnamed = |line: &str| {
        let between_bars = line.split_once('|').and_then(|(_, rest)| rest.rsplit_once('|'));
        between_bars.is_some_and(|(between, _)| {
            between.split('|').any(|part| part == part.trim() && names(part, "it"))
        })
    };
    code(text).filter(|(_, line)| is_unnamed(line)).map(|(number, _)| number).collect()
}

#[test]
fn the_rules_find_planted_violations() {
    let purpose = "//! The ledger.\n";
    assert!(file_problems(Path::new("ledger.rs"), purpose).is_empty());
    let long = format!("//! .\n{}", "\n".repeat(FILE_LINES_MAX));
    assert_eq!(file_problems(Path::new("utils.rs"), &long).len(), 3);
    assert_eq!(file_problems(Path::new("ledger.rs"), "fn a() {}\n").len(), 1);
    assert_eq!(file_problems(Path::new("ledger/tests.rs"), purpose).len(), 1);
    assert_eq!(long_lines(&format!("a\n{}\n", "b".repeat(LINE_CHARS_MAX + 1))), [2]);
    assert_eq!(machine_paths(concat!("a\n", "/", "home/b\n")), [2]);
    assert!(has_address("index = \"https://registry.example\"\n"));
    assert!(!has_address("example.org/module v1.0.0 h1://okPTzC=\n"));
    let closure = |list: &str| format!("// |{list}|\npods.any(|{list}| a || it || b)\n");
    for list in ["it", "&it: &Pod", "(_, it)"] {
        assert_eq!(unnamed_parameters(&closure(list)), [2], "{list}");
    }
    assert!(unnamed_parameters(&closure("pod")).is_empty());
}

#[test]
fn rust_files_start_with_their_purpose_are_short_and_have_a_domain_name() {
    let mut wrong = Vec::new();
    for path in tracked().into_iter().filter(|path| is_rust(path)) {
        wrong.extend(file_problems(&path, &text(&path).expect("Rust is UTF-8")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn closures_name_their_parameters() {
    let mut wrong = Vec::new();
    for path in tracked().into_iter().filter(|path| is_rust(path)) {
        let found = unnamed_parameters(&text(&path).expect("Rust is UTF-8"));
        wrong.extend(found.iter().map(|line| format!("{}:{line}", path.display())));
    }
    assert!(wrong.is_empty(), "name the parameter after what it is:\n{}", wrong.join("\n"));
}

#[test]
fn lines_have_at_most_100_characters() {
    let mut wrong = Vec::new();
    // Any change of a tool in Go, which is a comment's too, builds it anew: that takes long.
    let in_sdk = |path: &PathBuf| path.starts_with("agent/sdk") && has_extension(path, &["go"]);
    let written =
        |path: &PathBuf| has_extension(path, &["rs", "proto", "py", "ts", "mjs"]) || in_sdk(path);
    for path in tracked().into_iter().filter(written).filter(|path| !is_generated(path)) {
        let long = long_lines(&text(&path).expect("UTF-8"));
        wrong.extend(long.iter().map(|line| format!("{}:{line}", path.display())));
    }
    assert!(wrong.is_empty(), "longer than {LINE_CHARS_MAX}:\n{}", wrong.join("\n"));
}

#[test]
fn tracked_files_contain_no_path_of_one_machine() {
    let mut wrong = Vec::new();
    for path in tracked() {
        let Some(text) = text(&path) else { continue };
        let found = machine_paths(&text);
        wrong.extend(found.iter().map(|line| format!("{}:{line}", path.display())));
    }
    assert!(wrong.is_empty(), "a path of one machine:\n{}", wrong.join("\n"));
}

#[test]
fn pinned_dependencies_contain_no_registry_address() {
    let pins = [
        "go.mod",
        "go.sum",
        "requirements.txt",
        "package.json",
        "package-lock.json",
        ".npmrc",
        "pip.conf",
        "Cargo.toml",
        "config.toml",
    ];
    let mut wrong = Vec::new();
    for path in tracked() {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !pins.contains(&name) {
            continue;
        }
        let text = text(&path).expect("UTF-8");
        if has_address(&text) {
            wrong.push(path.display().to_string());
        }
    }
    let lock = text(Path::new("Cargo.lock")).expect("UTF-8");
    let sources: BTreeSet<&str> =
        lock.lines().filter_map(|line| line.strip_prefix("source = ")).collect();
    assert!(sources.len() <= 1, "Cargo.lock has more than one source: {sources:?}");
    assert!(wrong.is_empty(), "an address in {wrong:?}");
}
