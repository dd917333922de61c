//! What tests of processes need from outside: the built binaries and the pinned tools. If one is
//! missing, the test fails or is listed as left out.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where to look for the binaries instead of beside the test's own.
pub const BINARIES_VARIABLE: &str = "LEASEHOLD_BIN";

/// A tool that `make tools` installs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// Lints the protos and compares them with the contract.
    Buf,
    /// Calls gRPC services by reflection.
    Grpcurl,
}

/// Why a check cannot be made on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Something that could be installed: a failure where `CI=true`.
    Installable,
    /// Something that the kernel or the sandbox forbids: only reported.
    Forbidden,
}

/// The workspace's root.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests' folder lies in the root")
}

/// The path of `leasehold-coordinator` or `leasehold-agent`: in the folder that the variable
/// [`BINARIES_VARIABLE`] names, or else in the target folder that this test was built into.
///
/// # Panics
/// If it was not built, with the command that builds it.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    let folder = match std::env::var_os(BINARIES_VARIABLE) {
        Some(folder) => PathBuf::from(folder),
        None => beside_this_test(),
    };
    let path = folder.join(name);
    assert!(path.is_file(), "no {name} in {}: `make binaries` builds it", folder.display());
    path
}

/// The tool's path, or `None` if it is not installed, which is then noted for the end of
/// `make test`.
///
/// # Panics
/// If it is not installed and `CI=true`.
#[must_use]
pub fn tool(tool: Tool) -> Option<PathBuf> {
    let name = match tool {
        Tool::Buf => "buf",
        Tool::Grpcurl => "grpcurl",
    };
    let path = root().join(".cache/bin").join(name);
    if path.is_file() {
        return Some(path);
    }
    leave_out(&format!("tests with {name}"), "`make tools` installs it", Missing::Installable);
    None
}

/// The folder with the programs and the `deploy` folder of the last release, or `None` if they are
/// not there, which is then noted for the end of `make test`.
///
/// # Panics
/// If they could be built and `CI=true`.
#[must_use]
pub fn last_release(what: &str) -> Option<PathBuf> {
    let folder = root().join(".cache/release");
    let parts =
        ["leasehold-agent", "leasehold-coordinator", "deploy/crds", "deploy/helm/leasehold"];
    if parts.iter().all(|part| folder.join(part).exists()) {
        return Some(folder);
    }
    let named = std::fs::read_to_string(root().join("tests/tools/last-release"));
    let commit = format!("{}^{{commit}}", named.expect("the last release is named").trim_end());
    let mut git = Command::new("git");
    let known = git.arg("-C").arg(root()).args(["cat-file", "-e", &commit]).output();
    let (why, missing) = match known {
        Ok(known) if known.status.success() => ("`make tools` builds it", Missing::Installable),
        _ => ("the history of this clone does not reach it", Missing::Forbidden),
    };
    leave_out(what, why, missing);
    None
}

/// The program of this name in a folder of `PATH`.
#[must_use]
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Notes that a check was left out, for the end of `make test`.
///
/// # Panics
/// If what is missing could be installed and `CI=true`.
pub fn leave_out(what: &str, why: &str, missing: Missing) {
    let kind = match missing {
        Missing::Installable => "installable",
        Missing::Forbidden => "forbidden",
    };
    eprintln!("!!! LEFT OUT: {what}: {why}");
    let notes = root().join(".cache");
    let noted = std::fs::create_dir_all(&notes).and_then(|()| {
        let mut file = OpenOptions::new().create(true).append(true).open(notes.join("left-out"))?;
        file.write_all(format!("{kind}\t{what}\t{why}\n").as_bytes())
    });
    noted.expect("the note of what was left out is written");
    let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(
        missing == Missing::Forbidden || !in_ci,
        "{what}: {why} (with CI=true nothing that could be installed may be left out)"
    );
}

/// The target folder's profile folder: the test's own binary lies in its `deps`.
fn beside_this_test() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let folder = test.parent().expect("a file lies in a folder");
    if folder.file_name().is_some_and(|name| name == "deps") {
        folder.parent().expect("deps lies in the profile's folder").to_owned()
    } else {
        folder.to_owned()
    }
}
