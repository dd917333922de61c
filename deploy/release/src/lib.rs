//! Builds what a release of Leasehold consists of: static programs for both architectures, in
//! archives, container images and Debian packages, with manual pages and completions; the chart and
//! the manifests; a bill of materials for each program; and the checksums of all that. Two builds
//! of one commit with one toolchain give the same bytes.

mod architecture;
mod archive;
mod checksums;
mod compiler;
mod debian;
mod deployment;
mod image;
mod pages;
mod program;
mod release;
mod sbom;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

pub use self::architecture::Architecture;
pub use self::compiler::{Compiler, Profile};
pub use self::image::{Image, pack};
pub use self::program::Program;
pub use self::release::Release;

/// The version that is built.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs a command to its end; its output goes where this program's goes.
fn run(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot start {program}"))?;
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(())
}

/// Runs a command to its end and returns its standard output.
fn output(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed: {}\n{stderr}", output.status);
    }
    Ok(output.stdout)
}

/// Prints what begins.
fn step(what: &str) {
    println!("\n==> {what}");
}

/// A tool that `make tools` installs.
fn tool(root: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let path = root.join(".cache/bin").join(name);
    if path.is_file() {
        return Ok(path);
    }
    bail!("{name} is not installed: run `make tools TOOLS=packaging`")
}

fn is_on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// The paths of the tracked files below a folder of the checkout, in order.
fn tracked(root: &Path, below: &str) -> anyhow::Result<Vec<String>> {
    let listed = output(Command::new("git").args(["ls-files", "-z", below]).current_dir(root))?;
    let listed = String::from_utf8(listed).context("the name of a tracked file is not UTF-8")?;
    Ok(listed.split_terminator('\0').map(str::to_owned).collect())
}

/// The names of the files in a folder, in order.
fn file_names(folder: &Path) -> anyhow::Result<Vec<String>> {
    let entries = std::fs::read_dir(folder)
        .and_then(|entries| entries.collect::<Result<Vec<_>, _>>())
        .with_context(|| format!("cannot read {}", folder.display()))?;
    let files = entries.into_iter().filter(|entry| entry.path().is_file());
    let mut names: Vec<_> = files.map(|entry| entry.file_name().into_string()).collect();
    names.sort();
    names
        .into_iter()
        .map(|name| name.map_err(|name| anyhow::anyhow!("{name:?} is not UTF-8")))
        .collect()
}
