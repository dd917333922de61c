//! The files that git tracks, and their code without comments and tests: what the rules of the
//! house are checked on.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::toolbox::{self, Missing};

/// The paths of all files that git tracks, relative to the root; empty outside a work tree.
///
/// # Panics
/// If git lists a path that is not UTF-8.
#[must_use]
pub fn tracked() -> Vec<PathBuf> {
    let output = Command::new("git").args(["ls-files", "-z"]).current_dir(toolbox::root()).output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        toolbox::leave_out("rules on tracked files", "no git work tree", Missing::Forbidden);
        return Vec::new();
    };
    let text = String::from_utf8(output.stdout).expect("names in UTF-8");
    let there = |path: &PathBuf| toolbox::root().join(path).is_file();
    text.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).filter(there).collect()
}

/// The text of a tracked file, or `None` if it is not UTF-8.
///
/// # Panics
/// If the file cannot be read.
#[must_use]
pub fn text(path: &Path) -> Option<String> {
    let bytes = std::fs::read(toolbox::root().join(path)).expect("a tracked file");
    String::from_utf8(bytes).ok()
}

/// Whether `make generate` writes this file.
#[must_use]
pub fn is_generated(path: &Path) -> bool {
    let folders = ["proto/src/gen", "coordinator/platform-etcd/src/gen"];
    folders.iter().any(|folder| path.starts_with(folder))
}

/// Whether the path ends in one of these extensions.
#[must_use]
pub fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension()
        .and_then(|found| found.to_str())
        .is_some_and(|extension| extensions.contains(&extension))
}

/// The tracked Rust files of the package in `folder`, without its tests: path and text.
///
/// # Panics
/// If a file cannot be read or is not UTF-8.
#[must_use]
pub fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let in_source = |path: &PathBuf| path.starts_with(Path::new(folder).join("src"));
    let mut all = Vec::new();
    for path in tracked().into_iter().filter(in_source).filter(|path| has_extension(path, &["rs"]))
    {
        let whole = text(&path).expect("Rust is UTF-8");
        let shipped = without_tests(&whole);
        all.push((path, shipped));
    }
    all
}

/// Replaces the lines of items under `#[cfg(test)]` with empty lines, so that line numbers stay. An
/// item ends at the line that has the attribute's indentation.
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

/// Whether only tests use this file: its parent declares it under `#[cfg(test)]`.
#[must_use]
pub fn is_test_file(path: &Path) -> bool {
    let is_beside = path.to_str().is_some_and(|path| path.ends_with("_tests.rs"));
    is_beside || path.components().any(|part| part.as_os_str() == "tests")
}

/// [`sources`] of every package below `folder`.
///
/// # Panics
/// If a file cannot be read or is not UTF-8.
#[must_use]
pub fn crates_below(folder: &str) -> Vec<(PathBuf, String)> {
    let crates = tracked().into_iter().filter(|path| path.ends_with("Cargo.toml"));
    let crates = crates.filter(|path| path.starts_with(folder));
    let folders: Vec<PathBuf> =
        crates.filter_map(|path| path.parent().map(Path::to_owned)).collect();
    folders.iter().flat_map(|folder| sources(folder.to_str().expect("UTF-8"))).collect()
}

/// The lines of `text` without comments, with their line numbers.
pub fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    numbered.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// Whether `line` contains `name` as a whole word.
#[must_use]
pub fn names(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let after = line[at + name.len()..].chars().next();
        !before.is_some_and(is_part) && (name.ends_with(':') || !after.is_some_and(is_part))
    })
}
