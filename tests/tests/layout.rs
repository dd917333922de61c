//! The rules of `docs/ARCHITECTURE.md` that a machine can check: which crates and modules depend on
//! each other, and what the code of each crate may name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use tests::modules::Modules;
use tests::toolbox;
use tests::tracked_files::{code, crates_below, is_test_file, names, sources, text, tracked};

/// The pure crates: package and folder.
const PURE: [(&str, &str); 3] = [
    ("leasehold-types", "proto/types"),
    ("leasehold-coordinator-core", "coordinator/core"),
    ("leasehold-agent-core", "agent/core"),
];

/// The only crates that a pure crate may depend on, directly or indirectly: serialisation, derives
/// and hash tables.
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

/// Names that the code of a pure crate must not contain outside its tests.
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

/// The names of all direct and indirect dependencies of `package`.
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
        assert!(beyond.is_empty(), "{package} must not depend on {beyond:?}");
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
    assert!(
        wrong.is_empty(),
        "pure crates must not name clocks or IO; pass `now` and events instead:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn coordinator_and_agent_do_not_depend_on_each_other() {
    let coordinator = closure("leasehold-coordinator", "normal,build");
    let agent = closure("leasehold-agent", "normal,build");
    assert!(!coordinator.iter().any(|name| name.starts_with("leasehold-agent")));
    assert!(!agent.iter().any(|name| name.starts_with("leasehold-coordinator")));
    let kubernetes = |name: &&String| name.starts_with("kube") || name.starts_with("k8s");
    assert_eq!(
        agent.iter().find(kubernetes),
        None,
        "the agent must not depend on a Kubernetes client"
    );
}

#[test]
fn nothing_depends_on_the_tests() {
    const TESTS: [&str; 5] =
        ["tests", "leasehold-demo", "leasehold-fuzz", "leasehold-simulator", "leasehold-model"];
    for package in packages().iter().filter(|name| !TESTS.contains(&name.as_str())) {
        let all = closure(package, "normal,build,dev");
        let found = TESTS.iter().find(|tests| all.contains(**tests));
        assert!(found.is_none(), "{package} depends on the package {found:?}");
        let shipped = closure(package, "normal,build");
        assert!(!shipped.contains("leasehold-scenario"), "{package} ships the runner of scenarios");
    }
}

/// The marker in a program that contains deliberate faults (`proto/types/src/mutation.rs`).
const FAULTS: &[u8] = b"leasehold: deliberate faults built in";

#[test]
fn programs_contain_no_deliberate_faults() {
    let contains = |program: &Path| {
        let bytes = std::fs::read(program).unwrap_or_else(|error| {
            panic!("{}: {error}: run `make binaries`", program.display());
        });
        memchr::memmem::find(&bytes, FAULTS).is_some()
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

/// Each package of the workspace with its direct dependencies in the workspace.
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
        let normal = normal.filter(|dependency| dependency["kind"].is_null());
        let names =
            normal.map(|dependency| dependency["name"].as_str().expect("a name").to_owned());
        let name = package["name"].as_str().expect("a name").to_owned();
        (name, names.filter(|name| own.contains(name)).collect())
    });
    arrows.collect()
}

/// The dependencies that do not follow from others: the arrows that the diagram shows.
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
    let lines = picture.expect("a diagram in docs/ARCHITECTURE.md").lines();
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
        "the diagram in docs/ARCHITECTURE.md lacks\n{missing}and must not have\n{wrong}"
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

/// The only circle of a crate of these files.
fn planted_circle(files: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    let circles = Modules::read(&folder.path().join("lib.rs")).circles();
    let [circle] = circles.as_slice() else { panic!("one circle expected: {circles:?}") };
    circle.clone()
}

#[test]
fn finds_a_planted_circle_through_a_reexport_and_a_macro() {
    let circle = planted_circle(&[
        ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\npub use self::b::B;\n"),
        ("a.rs", "#[cfg(test)]\nmod tests {\n    use crate::d::D;\n}\nuse super::B;\n"),
        ("b.rs", "pub struct B;\npub fn b() {\n    println!(\"{}\", crate::c::C);\n}\n"),
        ("c.rs", "pub const C: u8 = crate::a::A;\n"),
        ("d.rs", "use super::a;\n"),
    ]);
    for (from, to) in [("a.rs", "b.rs"), ("b.rs", "c.rs"), ("c.rs", "a.rs")] {
        let is_link = |line: &str| line.contains(&format!("/{from} -> ")) && line.ends_with(to);
        assert!(circle.lines().any(is_link), "{from} -> {to} in\n{circle}");
    }
    assert!(!circle.contains("d.rs"), "only tests use d:\n{circle}");
}

#[test]
fn finds_a_planted_circle_of_files_that_only_reexport() {
    let circle = planted_circle(&[
        ("lib.rs", "mod a;\nmod b;\nmod c;\n"),
        ("a.rs", "pub struct A;\n"),
        ("b.rs", "pub use crate::a::A;\npub const B: u8 = crate::c::C;\n"),
        ("c.rs", "use crate::b::A;\npub const C: u8 = 1;\npub fn c(_: A) {}\n"),
    ]);
    assert!(circle.contains("b.rs -> ") && circle.contains("c.rs -> "), "{circle}");
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
        "planner and ledger must not name each other's types:\n{}",
        wrong.join("\n")
    );
}

/// Names that are allowed in some files below a folder only: the folder, the names, and the
/// prefixes of the allowed paths.
const RESERVED: [(&str, &[&str], &[&str]); 7] = [
    ("coordinator", &["clock_gettime", "SystemTime"], &["coordinator/driver/src/clock.rs"]),
    (
        "agent",
        &["clock_gettime", "SystemTime"],
        &["agent/src/clock.rs", "agent/sdk/rust/src/clock.rs"],
    ),
    (
        "coordinator",
        &["Core::new"],
        &["coordinator/driver/src/driver", "coordinator/core", "coordinator/simulation/src/cell"],
    ),
    ("agent", &["Holder::new"], &["agent/src/driver", "agent/core"]),
    (
        "coordinator",
        &["serde_yaml", "notify::"],
        &[
            "coordinator/manifest",
            "coordinator/platform/src/file_watcher.rs",
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
    (
        "coordinator",
        &["kube::Error", "Error::Api"],
        &["coordinator/platform-kube/src/api_call.rs", "coordinator/cli"],
    ),
];

/// rustdoc looks for examples where there are some, and reads no other crate.
#[test]
fn crates_whose_documentation_has_examples_run_them() {
    let manifests = tracked().into_iter().filter(|path| path.ends_with("Cargo.toml"));
    let manifests = manifests.filter(|path| toolbox::root().join(path).is_file());
    let mut with_examples = 0;
    for manifest in manifests {
        let folder = manifest.parent().expect("a folder");
        let source = folder.join("src");
        if !toolbox::root().join(&source).join("lib.rs").is_file() {
            continue;
        }
        let opens = |line: &str| {
            let line = line.trim_start();
            line.starts_with("/// ```") || line.starts_with("//! ```")
        };
        let of_crate = sources(folder.to_str().expect("UTF-8"));
        let mut of_library = of_crate.iter().filter(|(path, _)| path.starts_with(&source));
        let has_examples = of_library.any(|(_, text)| text.lines().any(opens));
        let manifest_text = text(&manifest).expect("UTF-8");
        let are_left_out = manifest_text.contains("doctest = false");
        assert_eq!(has_examples, !are_left_out, "{}: doctest", manifest.display());
        with_examples += usize::from(has_examples);
    }
    assert!(with_examples > 0);
}

/// Packages and the crates that they must not depend on, directly or indirectly.
const APART: [(&str, &[&str]); 9] = [
    ("leasehold-manifest", &["tokio", "kube", "k8s-openapi", "tonic"]),
    ("leasehold-injection", &["tokio", "kube", "k8s-openapi", "tonic"]),
    ("leasehold-driver", &["leasehold-platform", "leasehold-server", "kube", "notify"]),
    ("leasehold-platform-etcd", &["leasehold-platform-file", "leasehold-server", "kube"]),
    ("leasehold-platform-file", &["leasehold-platform-etcd", "leasehold-server", "kube"]),
    (
        "leasehold-platform-kube",
        &["leasehold-platform-etcd", "leasehold-platform-file", "leasehold-server"],
    ),
    (
        "leasehold-server",
        &["kube", "leasehold-platform-etcd", "leasehold-platform-kube", "leasehold-platform-file"],
    ),
    ("leasehold-http-api", &["leasehold-driver", "leasehold-coordinator-core"]),
    ("leasehold-cli", &["leasehold-coordinator", "leasehold-driver", "leasehold-server"]),
];

#[test]
fn crates_do_not_depend_on_forbidden_crates() {
    for (package, forbidden) in APART {
        let all = closure(package, "normal,build");
        let found: Vec<_> = forbidden.iter().filter(|name| all.contains(**name)).collect();
        assert!(found.is_empty(), "{package} must not depend on {found:?}");
    }
    let demo = closure("leasehold-demo", "normal,build");
    assert!(!demo.contains("kube"), "the demo must not depend on the Kubernetes client");
}

/// The places in a file where it must not have a reserved name.
fn misplaced_names(path: &Path, text: &str) -> Vec<String> {
    let shown = path.to_str().expect("UTF-8");
    let mut wrong = Vec::new();
    for (folder, words, allowed) in RESERVED {
        if !path.starts_with(folder) || allowed.iter().any(|prefix| shown.starts_with(prefix)) {
            continue;
        }
        for (number, line) in code(text) {
            for word in words.iter().filter(|word| names(line, word)) {
                wrong.push(format!("{shown}:{number}: {word} is allowed in {allowed:?} only"));
            }
        }
    }
    wrong
}

#[test]
fn reserved_names_appear_only_in_their_files() {
    let all = ["coordinator", "agent"].into_iter().flat_map(crates_below);
    let shipped = all.filter(|(path, _)| !is_test_file(path));
    let wrong: Vec<String> =
        shipped.flat_map(|(path, text)| misplaced_names(&path, &text)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn finds_a_planted_match_on_an_error_of_the_kubernetes_client() {
    let planted = "// Of a kube::Error.\nuse kube::Error;\nif let Error::Api(status) = error {}\n";
    let file = "coordinator/operator/src/applier.rs";
    let found = misplaced_names(Path::new(file), planted);
    let places: Vec<_> =
        found.iter().filter_map(|place| place.split(" is allowed").next()).collect();
    assert_eq!(places, [format!("{file}:2: kube::Error"), format!("{file}:3: Error::Api")]);
    let own = Path::new("coordinator/platform-kube/src/api_call.rs");
    assert_eq!(misplaced_names(own, planted), [""; 0]);
}
