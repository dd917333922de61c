//! The protos keep buf's rules, and nothing that a release promised is broken. The promise is
//! `tests/tools/contract.binpb`; `make contract` renews it at a release.

use std::path::Path;
use std::process::{Command, Output};

use tests::toolbox::{self, Tool};

const CONTRACT: &str = "tests/tools/contract.binpb";
const WORKER: &str = "proto/leasehold/worker/v1/worker.proto";

/// Runs buf in `folder`, or `None` if buf is not installed.
fn buf(folder: &Path, arguments: &[&str]) -> Option<Output> {
    let buf = toolbox::tool(Tool::Buf)?;
    Some(Command::new(buf).args(arguments).current_dir(folder).output().expect("buf starts"))
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Compares the protos below `folder` with a promise: an image or a folder of protos.
fn breaking(folder: &Path, promised: &Path) -> Option<Output> {
    buf(folder, &["breaking", "--against", promised.to_str().expect("a path in UTF-8")])
}

/// A copy of the protos with `from` replaced by `to` in the worker's.
fn changed_protos(from: &str, to: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a temporary folder");
    let root = toolbox::root();
    for file in [
        "buf.yaml",
        "proto/externalscaler/externalscaler.proto",
        "proto/leasehold/admin/v1/admin.proto",
        "proto/leasehold/coordinator/v1/leader.proto",
        "proto/leasehold/coordinator/v1/peer.proto",
        "proto/leasehold/coordinator/v1/session.proto",
        WORKER,
    ] {
        let text = std::fs::read_to_string(root.join(file)).expect("a tracked file");
        let text = if file == WORKER {
            assert!(text.contains(from), "{file} has no {from:?} to change");
            text.replace(from, to)
        } else {
            text
        };
        let path = copy.path().join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a new folder");
        std::fs::write(path, text).expect("a copy");
    }
    copy
}

#[test]
fn the_protos_pass_buf_lint_and_format() {
    for arguments in [&["lint"][..], &["format", "--diff", "--exit-code"]] {
        let Some(output) = buf(toolbox::root(), arguments) else { return };
        assert!(output.status.success(), "buf {arguments:?}:\n{}", said(&output));
    }
}

#[test]
fn the_protos_are_compatible_with_the_released_contract() {
    let Some(output) = breaking(toolbox::root(), &toolbox::root().join(CONTRACT)) else { return };
    assert!(
        output.status.success(),
        "{}\nWhat a release promised must stay. Where none has it yet: `make contract`.",
        said(&output)
    );
}

#[test]
fn detects_removed_fields_changed_types_and_renumbered_values() {
    for (from, to, complaint) in [
        ("  // The pool.\n  Pool pool = 2;\n", "", "Previously present field \"2\""),
        ("uint64 version = 1;", "uint32 version = 1;", "changed type"),
        ("_REVOKED = 2;", "_REVOKED = 3;", "Previously present enum value \"2\""),
        ("rpc EndJob(", "rpc FinishJob(", "Previously present RPC \"EndJob\""),
    ] {
        let copy = changed_protos(from, to);
        let Some(output) = breaking(copy.path(), toolbox::root()) else { return };
        let said = said(&output);
        assert!(!output.status.success(), "{from:?} -> {to:?} was not seen");
        assert!(said.contains(complaint), "{from:?} -> {to:?}: {said}");
    }
}

#[test]
fn accepts_a_new_field() {
    let copy = changed_protos(
        "  repeated Binding bindings = 8;\n",
        "  repeated Binding bindings = 8;\n  // New.\n  string more = 9;\n",
    );
    let Some(output) = breaking(copy.path(), toolbox::root()) else { return };
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn rejects_a_service_without_the_service_suffix() {
    let copy = changed_protos("service WorkerService {", "service Worker {");
    let Some(output) = buf(copy.path(), &["lint"]) else { return };
    assert!(!output.status.success());
    assert!(said(&output).contains("should be suffixed with \"Service\""), "{}", said(&output));
}
