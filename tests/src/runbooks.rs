//! The pages of `docs/runbooks`, and the commands that they tell to type.

use std::collections::BTreeSet;

use crate::readme::{self, Step};
use crate::toolbox;

/// Programs whose commands are also typed where they stand within a sentence.
const TYPED_IN_PROSE: [&str; 5] =
    ["leasehold", "leasehold-agent", "leasehold-coordinator", "curl", "grpcurl"];

/// Where a command can be typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the host of an installation without Kubernetes.
    Standalone,
    /// Beside a cluster with an installation.
    Kubernetes,
    /// On a host whose services systemd looks after.
    Systemd,
}

/// A command on a line of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunbookCommand {
    /// The command, as it stands.
    pub text: String,
    /// Where it can be typed.
    pub place: Place,
}

/// The pages with the index: file name and text, in the order of their names.
///
/// # Panics
/// If a page cannot be read.
#[must_use]
pub fn pages() -> Vec<(String, String)> {
    let folder = toolbox::root().join("docs/runbooks");
    let entries = std::fs::read_dir(&folder).expect("the folder of the runbooks");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    let page = |name: String| {
        let text = std::fs::read_to_string(folder.join(&name)).expect("a page");
        (name, text)
    };
    names.into_iter().map(page).collect()
}

/// The commands on lines of their own, each once, in the order of the pages.
///
/// # Panics
/// If a page has a file to save, or a command of a program that no test types.
#[must_use]
pub fn commands() -> Vec<RunbookCommand> {
    let mut seen = BTreeSet::new();
    let mut commands = Vec::new();
    for (page, text) in pages() {
        for step in readme::steps(&text) {
            let Step::Type(text) = step else { panic!("{page}: no test saves files: {step:?}") };
            let place = place(&text);
            let place = place.unwrap_or_else(|| panic!("{page}: no test types {text:?}"));
            if seen.insert(text.clone()) {
                commands.push(RunbookCommand { text, place });
            }
        }
    }
    commands
}

/// The commands for an installation without Kubernetes that stand within sentences, each once.
///
/// # Panics
/// If a page cannot be read.
#[must_use]
pub fn commands_in_prose() -> BTreeSet<String> {
    let pages = pages();
    let spans = pages.iter().flat_map(|(_, text)| readme::spans(text));
    // A span may be broken between two of its words.
    let spans = spans.map(|span| span.split_whitespace().collect::<Vec<_>>().join(" "));
    spans.filter(|span| is_typed_in_prose(span)).collect()
}

fn is_typed_in_prose(span: &str) -> bool {
    let program = span.split_once(' ').map(|(program, _)| program);
    program.is_some_and(|program| TYPED_IN_PROSE.contains(&program))
        && place(span) == Some(Place::Standalone)
}

/// Where a command can be typed, by its program; none where that is not known.
fn place(command: &str) -> Option<Place> {
    let mut words = command.split_whitespace();
    match (words.next()?, words.next()) {
        ("leasehold", Some("check")) | ("kubectl", _) => Some(Place::Kubernetes),
        ("leasehold" | "leasehold-agent" | "leasehold-coordinator", _)
        | ("curl" | "grpcurl" | "grep" | "df", _) => Some(Place::Standalone),
        ("journalctl" | "systemctl", _) => Some(Place::Systemd),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_has_its_place_and_an_unknown_one_has_none() {
        for (command, wanted) in [
            ("leasehold status", Some(Place::Standalone)),
            ("leasehold check", Some(Place::Kubernetes)),
            ("kubectl get pods", Some(Place::Kubernetes)),
            ("systemctl status leasehold-agent@a", Some(Place::Systemd)),
            ("rm --recursive state", None),
        ] {
            assert_eq!(place(command), wanted, "{command}");
        }
        assert!(is_typed_in_prose("leasehold status"));
        assert!(!is_typed_in_prose("leasehold"));
        assert!(!is_typed_in_prose("leasehold check -n ci"));
    }
}
