//! The tests of a language.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use leasehold_types::mutation::Mutation;
use similar::{ChangeTag, TextDiff};

use crate::fault::with_fault;
use crate::language::{Language, is_command, run_block};
use crate::legend::{literals, rows, verb};

/// The line between the commands of a block and their outcome.
const SEPARATOR: &str = "----";

/// Runs every scenario and compares its outcome with the recorded one, or records it.
///
/// # Panics
/// If an outcome has changed: the message is a diff that names file and line.
pub fn check_outcomes<L: Language>() {
    let mut changed = String::new();
    for (path, text) in files::<L>() {
        let fresh = rerun::<L>(&path, &text);
        if std::env::var_os("LEASEHOLD_REGENERATE").is_some() {
            std::fs::write(&path, &fresh).expect("the scenario can be written");
        } else {
            changed += &difference(&path, &text, &fresh);
        }
    }
    assert!(changed.is_empty(), "changed outcomes; LEASEHOLD_REGENERATE=1 records them\n{changed}");
}

/// In a build with the deliberate faults, checks that each changes the outcome of its scenario.
///
/// # Panics
/// If a scenario does not detect its fault.
pub fn check_faults<L: Language>(detected: &[(Mutation, &str)]) {
    let files = files::<L>();
    for (fault, name) in detected {
        let found =
            files.iter().find(|(path, _)| path.file_stem().is_some_and(|stem| stem == *name));
        let (path, text) = found.unwrap_or_else(|| panic!("no scenario {name}"));
        if let Some(fresh) = with_fault(*fault, || rerun::<L>(path, text)) {
            assert_ne!(fresh, *text, "{name} does not detect {fault:?}");
        }
    }
}

/// Checks that scenarios contain the example of every verb and use all its literal arguments.
///
/// # Panics
/// If there is one that no scenario has.
pub fn check_legend<L: Language>() {
    let files = files::<L>();
    let lines: Vec<&str> = files.iter().flat_map(|(_, text)| text.lines()).collect();
    let unused = unused(L::LEGEND, &lines);
    assert!(unused.is_empty(), "{}", unused.join("\n"));
}

/// What a legend has and these lines of scenarios do not.
pub(crate) fn unused(legend: &str, lines: &[&str]) -> Vec<String> {
    let mut unused = Vec::new();
    for (usage, example) in rows(legend) {
        let name = verb(usage);
        if verb(example) != name || !lines.contains(&example) {
            unused.push(format!("{name}: no scenario has its example {example:?}"));
        }
        for literal in literals(usage) {
            let is_argument =
                |word: &str| word == literal || literal.ends_with('=') && word.starts_with(literal);
            let mut uses = lines.iter().filter(|line| verb(line) == name);
            if !uses.any(|line| line.split(' ').any(is_argument)) {
                unused.push(format!("{name}: no scenario uses its argument {literal}"));
            }
        }
    }
    unused
}

/// The scenario files of a language, sorted, and their texts.
fn files<L: Language>() -> Vec<(PathBuf, String)> {
    let entries = std::fs::read_dir(L::FOLDER).expect("the folder of the scenarios");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no scenario in {}", L::FOLDER);
    let with_text = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a scenario");
        (path, text)
    };
    paths.into_iter().map(with_text).collect()
}

/// The text of a scenario with the outcomes that its commands have now.
pub(crate) fn rerun<L: Language>(path: &Path, text: &str) -> String {
    let mut language = L::new();
    let (mut fresh, mut first) = (String::new(), 1);
    let file = format!("{}:", path.display());
    for block in text.trim_end().split("\n\n") {
        let commands = block.split(&format!("\n{SEPARATOR}")).next().expect("the first part");
        fresh += commands;
        fresh.push('\n');
        if commands.lines().any(is_command) {
            let outcome = run_block(&mut language, &file, first, commands);
            let _ = write!(fresh, "{SEPARATOR}\n{outcome}");
        }
        fresh.push('\n');
        first += block.lines().count() + 1;
    }
    fresh.trim_end().to_owned() + "\n"
}

/// The differing lines with their context, each group under its file and line; empty if the texts
/// are the same.
pub(crate) fn difference(path: &Path, recorded: &str, fresh: &str) -> String {
    let mut shown = String::new();
    let diff = TextDiff::from_lines(recorded, fresh);
    for hunk in diff.unified_diff().iter_hunks() {
        let mut changes = hunk.iter_changes();
        let first = changes.find(|change| change.tag() != ChangeTag::Equal);
        let line = first.and_then(|change| change.old_index().or(change.new_index()));
        let _ = writeln!(shown, "{}:{}", path.display(), line.unwrap_or_default() + 1);
        for change in hunk.iter_changes() {
            let _ = write!(shown, "{}{change}", change.tag());
        }
    }
    shown
}
