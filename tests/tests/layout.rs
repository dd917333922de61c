//! The rules of `docs/ARCHITECTURE.md` that a machine can check: who depends on whom, what the
//! pure crates may name, and what no tracked file may hold.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use tests::modules::Modules;
use tests::toolbox::{self, Missing};

/// The pure crates: package and folder.
const PURE: [(&str, &str); 3] = [
    ("leasehold-types", "proto/types"),
    ("leasehold-coordinator-core", "coordinator/core"),
    ("leasehold-agent-core", "agent/core"),
];

/// All that a pure crate may be built from, however indirectly: serialisation and derives, and the
/// standard library's hash tables under another interface.
const PURE_CLOSURE: [&str; 11] = [
    "hashbrown",
    "leasehold-types",
    "proc-macro2",
    "quote",
    "serde",
    "serde_core",
    "serde_derive",
    "syn",
    "thiserror",
    "thiserror-impl",
    "unicode-ident",
];

/// What the text of a pure crate may not name outside its tests.
const IMPURE: [&str; 10] = [
    "Instant",
    "SystemTime",
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::process",
    "std::thread",
    "println!",
    "rand::",
];

const FILE_LINES_MAX: usize = 600;
const LINE_CHARS_MAX: usize = 100;

/// The names of all packages that `package` is built from, itself left out.
fn closure(package: &str, kinds: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--prefix", "none", "--package", package, "--edges", kinds])
        .current_dir(toolbox::root())
        .output()
        .expect("cargo starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree --package {package}: {said}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let name = |line: &str| line.split_whitespace().next().map(str::to_owned);
    text.lines().filter_map(name).filter(|name| name != package).collect()
}

/// The workspace's packages.
fn packages() -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--no-deps", "--format-version", "1"])
        .current_dir(toolbox::root())
        .output()
        .expect("cargo starts");
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let list = all["packages"].as_array().expect("a list of packages");
    list.iter().map(|package| package["name"].as_str().expect("a name").to_owned()).collect()
}

/// Every file that git tracks, from the root; none outside a work tree.
fn tracked() -> Vec<PathBuf> {
    let output = Command::new("git").args(["ls-files", "-z"]).current_dir(toolbox::root()).output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        toolbox::leave_out("rules on tracked files", "no git work tree", Missing::Forbidden);
        return Vec::new();
    };
    let text = String::from_utf8(output.stdout).expect("names in UTF-8");
    let there = |path: &PathBuf| toolbox::root().join(path).is_file();
    text.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).filter(there).collect()
}

/// The text of a tracked file; none where it is no text.
fn text(path: &Path) -> Option<String> {
    let bytes = std::fs::read(toolbox::root().join(path)).expect("a tracked file");
    String::from_utf8(bytes).ok()
}

fn is_generated(path: &Path) -> bool {
    path.starts_with("proto/src/gen")
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension().and_then(|found| found.to_str()).is_some_and(|it| extensions.contains(&it))
}

/// The tracked Rust files below a folder that are part of the library or binary.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let in_source = |path: &PathBuf| path.starts_with(Path::new(folder).join("src"));
    let mut all = Vec::new();
    for path in tracked().into_iter().filter(in_source).filter(|it| has_extension(it, &["rs"])) {
        let whole = text(&path).expect("Rust is UTF-8");
        let shipped = without_tests(&whole);
        all.push((path, shipped));
    }
    all
}

/// The text with its lines in their places, but empty where only tests have them: from
/// `#[cfg(test)]` to the end of the item below it, which rustfmt indents as the attribute.
fn without_tests(text: &str) -> String {
    let mut shipped = String::new();
    let mut skips: Option<usize> = None;
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        if skips.is_none() && line.trim() == "#[cfg(test)]" {
            skips = Some(indent);
        } else if let Some(begun) = skips {
            let is_end = indent == begun && (line.ends_with('}') || line.ends_with(';'));
            skips = if is_end { None } else { Some(begun) };
        } else {
            shipped.push_str(line);
        }
        shipped.push('\n');
    }
    shipped
}

/// A file that only tests use, as its parent declares it under `#[cfg(test)]`.
fn is_test_file(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs")
}

/// The files of all crates below a folder that are part of a library or binary.
fn crates_below(folder: &str) -> Vec<(PathBuf, String)> {
    let crates = tracked().into_iter().filter(|path| path.ends_with("Cargo.toml"));
    let crates = crates.filter(|path| path.starts_with(folder));
    let folders: Vec<PathBuf> =
        crates.filter_map(|path| path.parent().map(Path::to_owned)).collect();
    folders.iter().flat_map(|folder| sources(folder.to_str().expect("UTF-8"))).collect()
}

/// The lines of `text` that are no comments, with their numbers.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    numbered.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// Whether `line` has `name` as a word of its own.
fn names(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let after = line[at + name.len()..].chars().next();
        !before.is_some_and(is_part) && (name.ends_with(':') || !after.is_some_and(is_part))
    })
}

#[test]
fn the_helpers_find_a_planted_violation() {
    assert!(names("let a = Instant::now();", "Instant"));
    assert!(names("use std::fs::File;", "std::fs"));
    assert!(!names("let instants = Instantly;", "Instant"));
    let commented = "//! An Instant.\nlet a = 1; // b\n/// SystemTime\n";
    assert_eq!(code(commented).collect::<Vec<_>>(), [(2, "let a = 1; // b")]);
    assert!(closure("tests", "normal").contains("leasehold-coordinator-core"));
    assert!(closure("tests", "normal").contains("tokio"));
}

#[test]
fn pure_crates_depend_on_no_io_crate() {
    for (package, _) in PURE {
        let allowed: BTreeSet<String> = PURE_CLOSURE.map(str::to_owned).into();
        let beyond: Vec<String> =
            closure(package, "normal,build").difference(&allowed).cloned().collect();
        assert!(beyond.is_empty(), "{package} is built from {beyond:?}");
    }
}

#[test]
fn pure_crates_name_no_clock_and_no_io() {
    let mut wrong = Vec::new();
    for (_, folder) in PURE {
        for (path, text) in sources(folder).into_iter().filter(|(path, _)| !is_test_file(path)) {
            for (number, line) in code(&text) {
                for name in IMPURE.iter().filter(|name| names(line, name)) {
                    wrong.push(format!("{}:{number}: {name}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "pure crates take events and `now`:\n{}", wrong.join("\n"));
}

#[test]
fn coordinator_and_agent_do_not_depend_on_each_other() {
    let coordinator = closure("leasehold-coordinator", "normal,build");
    let agent = closure("leasehold-agent", "normal,build");
    assert!(!coordinator.iter().any(|name| name.starts_with("leasehold-agent")));
    assert!(!agent.iter().any(|name| name.starts_with("leasehold-coordinator")));
    let kubernetes = |name: &&String| name.starts_with("kube") || name.starts_with("k8s");
    assert_eq!(agent.iter().find(kubernetes), None, "the agent has no client of Kubernetes");
}

#[test]
fn nothing_depends_on_the_tests() {
    const TESTS: [&str; 4] = ["tests", "leasehold-demo", "leasehold-simulator", "leasehold-model"];
    for package in packages().iter().filter(|name| !TESTS.contains(&name.as_str())) {
        let all = closure(package, "normal,build,dev");
        let found = TESTS.iter().find(|tests| all.contains(**tests));
        assert!(found.is_none(), "{package} depends on the package {found:?}");
    }
}

/// What a program with deliberate faults in it contains (`proto/types/src/mutation.rs`).
const FAULTS: &[u8] = b"leasehold: deliberate faults built in";

#[test]
fn programs_contain_no_deliberate_faults() {
    let contains = |program: &Path| {
        let bytes = std::fs::read(program).unwrap_or_else(|error| {
            panic!("{}: {error}: run `make binaries`", program.display());
        });
        bytes.windows(FAULTS.len()).any(|window| window == FAULTS)
    };
    for name in ["leasehold-coordinator", "leasehold-agent", "leasehold"] {
        assert!(!contains(&toolbox::binary(name)), "{name} is built with deliberate faults");
    }
    // The same search finds them in the simulator, which is built with them.
    let program = Command::new(toolbox::root().join("tests/tools/with-faults"))
        .args([env!("CARGO"), "build", "--offline", "--message-format", "json"])
        .args(["-p", "leasehold-simulator", "--bin", "simulate"])
        .current_dir(toolbox::root())
        .output()
        .expect("cargo starts");
    let said = String::from_utf8_lossy(&program.stdout);
    let built = said.lines().filter_map(|line| serde_json::from_str(line).ok());
    let program = built
        .filter_map(|message: serde_json::Value| message["executable"].as_str().map(PathBuf::from));
    let program = program.into_iter().next_back().expect("a program is built");
    assert!(contains(&program), "{} has no deliberate faults", program.display());
}

/// Each package of the workspace with those that it is built from directly.
fn arrows() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--no-deps", "--format-version", "1"])
        .current_dir(toolbox::root())
        .output()
        .expect("cargo starts");
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let own: BTreeSet<String> = packages().into_iter().collect();
    let list = all["packages"].as_array().expect("a list of packages");
    let arrows = list.iter().map(|package| {
        let normal = package["dependencies"].as_array().expect("dependencies").iter();
        let normal = normal.filter(|it| it["kind"].is_null());
        let names = normal.map(|it| it["name"].as_str().expect("a name").to_owned());
        let name = package["name"].as_str().expect("a name").to_owned();
        (name, names.filter(|name| own.contains(name)).collect())
    });
    arrows.collect()
}

/// The arrows that do not follow from others: what a picture needs.
fn reduced(arrows: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<(String, String)> {
    let below = |name: &String| {
        let mut found = BTreeSet::new();
        let mut left: Vec<&String> = arrows[name].iter().collect();
        while let Some(next) = left.pop() {
            if found.insert(next.clone()) {
                left.extend(&arrows[next]);
            }
        }
        found
    };
    let mut all = BTreeSet::new();
    for (from, direct) in arrows {
        for to in direct {
            let is_implied = direct.iter().any(|other| other != to && below(other).contains(to));
            if !is_implied {
                all.insert((from.clone(), to.clone()));
            }
        }
    }
    all
}

#[test]
fn the_crate_diagram_matches_cargo_metadata() {
    let page = text(Path::new("docs/ARCHITECTURE.md")).expect("UTF-8");
    let picture = page.split("```mermaid\n").nth(1).and_then(|rest| rest.split("```").next());
    let lines = picture.expect("a picture in docs/ARCHITECTURE.md").lines();
    let drawn: BTreeSet<(String, String)> = lines
        .filter_map(|line| line.split_once(" --> "))
        .map(|(from, to)| (from.trim().to_owned(), to.trim().to_owned()))
        .collect();
    let real = reduced(&arrows());
    let show = |arrows: Vec<&(String, String)>| {
        arrows.iter().map(|(from, to)| format!("  {from} --> {to}\n")).collect::<String>()
    };
    let missing = show(real.difference(&drawn).collect());
    let wrong = show(drawn.difference(&real).collect());
    assert!(
        missing.is_empty() && wrong.is_empty(),
        "the picture lacks\n{missing}and has without cause\n{wrong}"
    );
}

/// The roots of all crates of the workspace.
fn crate_roots() -> Vec<PathBuf> {
    let is_root = |path: &PathBuf| path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
    tracked().into_iter().filter(is_root).map(|path| toolbox::root().join(path)).collect()
}

#[test]
fn modules_have_no_circular_references() {
    let circles: Vec<String> =
        crate_roots().iter().flat_map(|root| Modules::read(root).circles()).collect();
    let root = format!("{}/", toolbox::root().display());
    let shown = circles.join("\n").replace(&root, "");
    assert!(circles.is_empty(), "modules in circles:\n{shown}");
}

#[test]
fn finds_a_planted_circle_through_a_reexport_and_a_macro() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("a file");
    };
    write("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\npub use self::b::B;\n");
    write("a.rs", "#[cfg(test)]\nmod tests {\n    use crate::d::D;\n}\nuse super::B;\n");
    write("b.rs", "pub struct B;\npub fn b() {\n    println!(\"{}\", crate::c::C);\n}\n");
    write("c.rs", "pub const C: u8 = crate::a::A;\n");
    write("d.rs", "use super::a;\n");
    let circles = Modules::read(&folder.path().join("lib.rs")).circles();
    let [circle] = circles.as_slice() else { panic!("one circle expected: {circles:?}") };
    for (from, to) in [("a.rs", "b.rs"), ("b.rs", "c.rs"), ("c.rs", "a.rs")] {
        let is_tie = |line: &str| line.contains(&format!("/{from} -> ")) && line.ends_with(to);
        assert!(circle.lines().any(is_tie), "{from} -> {to} in\n{circle}");
    }
    assert!(!circle.contains("d.rs"), "only tests name d:\n{circle}");
}

#[test]
fn planner_and_ledger_do_not_name_each_others_types() {
    let mut wrong = Vec::new();
    for (path, text) in sources("coordinator/core") {
        let forbidden: &[&str] = match path.to_str().expect("UTF-8") {
            name if name.contains("/planner") => {
                &["Moment", "Duration", "Epoch", "Token", "ledger", "Leadership"]
            }
            name if name.contains("/ledger") => &["desired", "Desired", "StreamSet", "planner"],
            _ => continue,
        };
        for (number, line) in code(&text) {
            for name in forbidden.iter().filter(|name| names(line, name)) {
                wrong.push(format!("{}:{number}: {name}", path.display()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "planner and ledger are to know nothing of each other's reasons:\n{}",
        wrong.join("\n")
    );
}

/// What only some folders below another may name: the words, and how those files' paths begin.
const RESERVED: [(&str, &[&str], &[&str]); 6] = [
    ("coordinator", &["clock_gettime", "SystemTime"], &["coordinator/driver/src/clock.rs"]),
    (
        "agent",
        &["clock_gettime", "SystemTime"],
        &["agent/src/clock.rs", "agent/sdk/rust/src/clock.rs"],
    ),
    ("coordinator", &["Core::new"], &["coordinator/driver/src/driver", "coordinator/core"]),
    ("agent", &["Holder::new"], &["agent/src/driver", "agent/core"]),
    (
        "coordinator",
        &["serde_yaml", "notify::"],
        &[
            "coordinator/manifest",
            "coordinator/driver/src/",
            "coordinator/kube-api",
            "coordinator/cli",
        ],
    ),
    (
        "coordinator",
        &["k8s_openapi", "kube"],
        &[
            "coordinator/kube-api",
            "coordinator/platform-kube",
            "coordinator/operator",
            "coordinator/cli",
        ],
    ),
];

/// Packages with what they must never be built from, however indirectly.
const APART: [(&str, &[&str]); 6] = [
    ("leasehold-manifest", &["tokio", "kube", "k8s-openapi", "tonic"]),
    ("leasehold-injection", &["tokio", "kube", "k8s-openapi", "tonic"]),
    ("leasehold-platform-file", &["leasehold-platform-kube", "leasehold-server", "kube"]),
    ("leasehold-platform-kube", &["leasehold-platform-file", "leasehold-server"]),
    ("leasehold-server", &["kube", "leasehold-platform-kube", "leasehold-platform-file"]),
    ("leasehold-cli", &["leasehold-coordinator", "leasehold-coordinator-driver", "tonic"]),
];

#[test]
fn crates_do_not_depend_on_forbidden_crates() {
    for (package, forbidden) in APART {
        let all = closure(package, "normal,build");
        let found: Vec<_> = forbidden.iter().filter(|name| all.contains(**name)).collect();
        assert!(found.is_empty(), "{package} is built from {found:?}");
    }
    let demo = closure("leasehold-demo", "normal,build");
    assert!(!demo.contains("kube"), "the demo is built with the client of Kubernetes");
}

#[test]
fn clocks_cores_and_manifest_readers_appear_only_in_their_crates() {
    let mut wrong = Vec::new();
    for (folder, words, rooms) in RESERVED {
        for (path, text) in crates_below(folder) {
            let shown = path.to_str().expect("UTF-8");
            if rooms.iter().any(|room| shown.starts_with(room)) || is_test_file(&path) {
                continue;
            }
            for (number, line) in code(&text) {
                for word in words.iter().filter(|word| names(line, word)) {
                    wrong.push(format!("{shown}:{number}: {word} belongs into {rooms:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_of_rust_is_one_noun_with_its_purpose_first_and_is_short() {
    let mut wrong = Vec::new();
    let rust = |path: &PathBuf| has_extension(path, &["rs"]) && !is_generated(path);
    for path in tracked().into_iter().filter(rust) {
        let shown = path.display();
        let whole = text(&path).expect("Rust is UTF-8");
        if !whole.starts_with("//!") {
            wrong.push(format!("{shown}: begins without `//!` and its purpose"));
        }
        if whole.starts_with("//! .\n") {
            wrong.push(format!("{shown}: does not say its purpose"));
        }
        let lines = whole.lines().count();
        if lines > FILE_LINES_MAX {
            wrong.push(format!("{shown}: {lines} lines, more than {FILE_LINES_MAX}"));
        }
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if ["utils", "util", "helpers", "helper", "manager", "common", "misc"].contains(&stem) {
            wrong.push(format!("{shown}: named for no noun of the domain"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn lines_have_at_most_100_characters() {
    let mut wrong = Vec::new();
    let written = |path: &PathBuf| has_extension(path, &["rs", "proto", "py"]);
    for path in tracked().into_iter().filter(written).filter(|path| !is_generated(path)) {
        for (index, line) in text(&path).expect("UTF-8").lines().enumerate() {
            if line.chars().count() > LINE_CHARS_MAX {
                wrong.push(format!("{}:{}", path.display(), index + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "longer than {LINE_CHARS_MAX}:\n{}", wrong.join("\n"));
}

#[test]
fn tracked_files_contain_no_path_of_one_machine() {
    let homes = [concat!("/", "root/"), concat!("/", "work/"), concat!("/", "home/")];
    let mut wrong = Vec::new();
    for path in tracked() {
        let Some(text) = text(&path) else { continue };
        for (index, line) in text.lines().enumerate() {
            if homes.iter().any(|home| line.contains(home)) {
                wrong.push(format!("{}:{}", path.display(), index + 1));
            }
        }
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
        if text.contains("://") {
            wrong.push(path.display().to_string());
        }
    }
    let lock = text(Path::new("Cargo.lock")).expect("UTF-8");
    let sources: BTreeSet<&str> =
        lock.lines().filter_map(|line| line.strip_prefix("source = ")).collect();
    assert!(sources.len() <= 1, "Cargo.lock has more than one source: {sources:?}");
    assert!(wrong.is_empty(), "an address in {wrong:?}");
}
