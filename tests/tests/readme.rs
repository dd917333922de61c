//! The README's commands, the start page's workers and the recipe for TLS, copied out of the
//! documents and typed as they stand. Those of the README's section "On Kubernetes" are typed by
//! the tests of Kubernetes.

#[path = "readme/start.rs"]
mod start;

use std::process::Command;

use tests::reader::Reader;
use tests::readme::{self, Step};
use tests::toolbox::{self, Missing};

/// The sections with commands that are typed here, and by the tests of Kubernetes.
const TYPED_HERE: [&str; 3] =
    ["Two commands", "From a worker, in a few lines of shell", "For real"];
const TYPED_ELSEWHERE: [&str; 1] = ["On Kubernetes"];
/// The section with a drawing, whose lines are indented as commands are.
const DRAWN: &str = "How it flows";

fn read(document: &str) -> String {
    std::fs::read_to_string(toolbox::root().join(document)).expect("the document")
}

#[test]
fn every_command_of_the_section_works_unchanged() {
    let Some(mut reader) = Reader::new("the README's commands as a reader types them") else {
        return;
    };
    let readme = read("README.md");
    let [make, worker, steps] =
        TYPED_HERE.map(|heading| readme::steps(readme::section(&readme, heading)));
    make.iter().for_each(|step| reader.take(step));
    let mut again = None;
    for step in &steps {
        reader.take(step);
        let Step::Type(command) = step else { continue };
        if command.ends_with("cd /tmp/leasehold") {
            // "saved as worker.sh", in the folder where the reader is from now on.
            worker.iter().for_each(|step| reader.take(step));
        }
        if command.ends_with("-- ./worker.sh") {
            again = Some(step);
        }
        if command.ends_with("-- sleep infinity") {
            reader.unseen("export LEASEHOLD_ADDR=http://127.0.0.1:7421");
            for typed in readme::spans(&readme).iter().filter(|span| span.starts_with("curl ")) {
                reader.take(&Step::Type(typed.clone()));
            }
            reader.unseen("unset LEASEHOLD_ADDR");
        }
    }
    // It can be started again, as the text says.
    reader.unseen("date > queue/four");
    reader.take(again.expect("the agent that starts the worker"));

    let (folder, shown) = reader.run();
    let done =
        std::fs::read_dir(folder.path().join("leasehold/done")).expect("the worker's folder");
    let mut done: Vec<_> = done.map(|entry| entry.expect("an entry").file_name()).collect();
    done.sort();
    assert_eq!(done, ["four.gz", "one.gz", "three.gz", "two.gz"], "{shown}");
}

/// The agent is ready once a coordinator has welcomed it: over TLS, with its certificate.
#[test]
fn the_documented_tls_commands_create_working_certificates() {
    if Command::new("openssl").arg("version").output().is_err() {
        let why = "openssl is not installed (Debian: openssl)";
        return toolbox::leave_out("the recipe for TLS", why, Missing::Installable);
    }
    let Some(mut reader) = Reader::new("the recipe for TLS as a reader types it") else { return };
    reader.unseen("export PATH=\"$PWD/target/release:$PWD/.cache/bin:$PATH\"");
    reader.unseen("mkdir -p /tmp/leasehold/manifests && cd /tmp/leasehold");
    let readme = read("README.md");
    let files = readme::steps(readme::section(&readme, "For real"));
    for file in files.iter().filter(|step| matches!(step, Step::Save { .. })) {
        reader.take(file);
    }
    let operations = read("docs/OPERATIONS.md");
    let steps = readme::steps(readme::section(&operations, "TLS"));
    steps.iter().for_each(|step| reader.take(step));
    // Strangers stay out.
    for stranger in ["-cacert ca.pem", "-plaintext"] {
        reader.unseen(&format!("if grpcurl {stranger} localhost:7400 list; then exit 1; fi"));
    }
    // A worker is no administrator.
    reader.unseen(
        r#"if grpcurl -cacert ca.pem -cert worker-0.pem -key worker-0.key \
            -d '{"cluster":"builds"}' \
            localhost:7400 leasehold.admin.v1.AdminService/ListWorkers; then exit 1; fi"#,
    );
    let (_, shown) = reader.run();
    assert!(shown.contains(r#""name": "worker-0""#), "{shown}");
    assert!(shown.contains("welcomed"), "{shown}");
}

#[test]
fn every_readme_command_is_run_by_a_test() {
    let readme = read("README.md");
    for heading in readme::headings(&readme) {
        if TYPED_HERE.contains(&heading) || TYPED_ELSEWHERE.contains(&heading) || heading == DRAWN {
            continue;
        }
        let steps = readme::steps(readme::section(&readme, heading));
        assert!(steps.is_empty(), "no test runs the commands under \"{heading}\": {steps:?}");
    }
}

#[test]
fn every_make_target_in_the_readme_exists() {
    let spans = readme::spans(&read("README.md"));
    let made: Vec<_> = spans.iter().filter_map(|span| span.strip_prefix("make ")).collect();
    assert!(!made.is_empty(), "the README names nothing to make: {spans:?}");
    for words in made {
        let mut make = Command::new("make");
        make.arg("--directory").arg(toolbox::root()).arg("--dry-run").args(words.split(' '));
        let output = make.env_remove("MAKEFLAGS").output().expect("make starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "make {words}: {said}");
    }
}
