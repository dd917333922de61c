//! Every command of the book could be typed: the programs have the commands and flags that it
//! names, the Makefile has the targets, and the checkout has the files. Other tests type the
//! commands of the README, the start page, the recipes for TLS and systemd, and the runbooks.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use tests::toolbox;

use super::book::chapters;
use super::{flags, flags_of, read};

const PROGRAMS: [&str; 3] = ["leasehold-coordinator", "leasehold-agent", "leasehold"];
/// How far commands are indented: in the text, and in a numbered list.
const INDENTS: [usize; 2] = [4, 7];
/// What ends the words of a program.
const ENDS: [&str; 6] = ["--", "|", "||", "&&", ";", "#"];
/// A program that is given names of ours: `leasehold` is a user of etcd there.
const GIVEN_NAMES: &str = "etcdctl";
/// Where files begin that a command names from the root of the checkout.
const FOLDERS: [&str; 4] = ["agent/sdk/", "coordinator/", "deploy/", "tests/tools/"];

/// The commands of a document: indented lines and those in fences of `sh`, which a backslash at
/// their end continues.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut fence = None;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let trimmed = line.trim_start();
        if let Some(language) = trimmed.strip_prefix("```") {
            fence = if fence.is_none() { Some(language) } else { None };
            continue;
        }
        let is_command = match fence {
            None => INDENTS.contains(&(line.len() - trimmed.len())),
            Some(language) => language == "sh",
        };
        if trimmed.is_empty() || !is_command {
            continue;
        }
        let mut command = trimmed.to_owned();
        while let Some(begun) = command.strip_suffix('\\') {
            command = format!("{begun} {}", lines.next().unwrap_or_default().trim());
        }
        found.push(command);
    }
    found
}

/// The words of a command, without its comment. What is quoted is for another program.
fn words(command: &str) -> Vec<String> {
    let unquoted: Vec<&str> = command.split('\'').step_by(2).collect();
    let unquoted = unquoted.join(" ");
    unquoted.split_whitespace().take_while(|word| *word != "#").map(str::to_owned).collect()
}

/// The calls of this project's programs in a command: program, its command, and the flags.
fn calls(command: &str) -> Vec<(&'static str, String, BTreeSet<String>)> {
    let words = words(command);
    let mut found = Vec::new();
    if words.first().is_some_and(|first| first == GIVEN_NAMES) {
        return found;
    }
    for (index, pair) in words.windows(2).enumerate() {
        let called = pair[0].rsplit('/').next().unwrap_or_default();
        let is_name = |c: char| c.is_ascii_lowercase() || c == '-';
        let Some(program) = PROGRAMS.into_iter().find(|program| *program == called) else {
            continue;
        };
        if pair[1].starts_with('-') || !pair[1].chars().all(is_name) {
            continue;
        }
        let rest = words[index + 2..].iter().take_while(|word| !ENDS.contains(&word.as_str()));
        found.push((program, pair[1].clone(), rest.flat_map(|word| flags(word)).collect()));
    }
    found
}

/// All commands of the book, with their pages.
fn book() -> Vec<(String, String)> {
    let summary = read("docs/SUMMARY.md");
    let mut found = Vec::new();
    for (_, path) in chapters(&summary) {
        let text = read(&format!("docs/{path}"));
        found.extend(commands(&text).into_iter().map(|command| (path.to_owned(), command)));
    }
    found
}

#[test]
fn the_programs_have_the_commands_and_flags_that_the_book_types() {
    let mut known: BTreeMap<(&str, String), BTreeSet<String>> = BTreeMap::new();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (page, typed) in book() {
        for (program, command, flags) in calls(&typed) {
            count += 1;
            if flags.is_empty() {
                // Not every command has flags to look for.
                let mut help = Command::new(toolbox::binary(program));
                let output = help.args([command.as_str(), "--help"]).output();
                if !output.expect("the binary starts").status.success() {
                    wrong.push(format!("{page}: {program} has no command {command}: {typed}"));
                }
                continue;
            }
            let there = known
                .entry((program, command.clone()))
                .or_insert_with(|| flags_of(program, &[command.as_str()]));
            for flag in flags.difference(there) {
                wrong.push(format!("{page}: {program} {command} has no {flag}: {typed}"));
            }
        }
    }
    assert!(count > 100, "only {count} calls are found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_makefile_has_the_targets_that_the_book_types() {
    let mut typed = BTreeSet::new();
    for (_, command) in book().into_iter().filter(|(_, command)| command.starts_with("make ")) {
        let first = command.split([';', '&', '#']).next().unwrap_or_default();
        typed.insert(first.trim().to_owned());
    }
    assert!(typed.len() > 10, "{typed:?}");
    for command in typed {
        let line = command.replacen("make ", "make --dry-run ", 1);
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]).current_dir(toolbox::root()).env_remove("MAKEFLAGS");
        let output = shell.output().expect("a shell starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {said}");
    }
}

#[test]
fn the_checkout_has_the_files_that_the_book_types() {
    let is_ours = |word: &String| FOLDERS.iter().any(|folder| word.starts_with(folder));
    let mut count = 0;
    for (page, command) in book() {
        for word in words(&command).into_iter().filter(is_ours) {
            count += 1;
            // Of a pattern the folder is there.
            let path = word.split('*').next().unwrap_or_default();
            assert!(toolbox::root().join(path).exists(), "{page}: no {word}: {command}");
        }
    }
    assert!(count > 10, "only {count} files are named");
}

#[test]
fn commands_and_their_flags_are_found_in_planted_documents() {
    let text = "Prose:\n\n    a-tool \\\n        --one\n\n\
                ```sh\nleasehold status\n```\n\n```yaml\nno: 1\n```\n";
    assert_eq!(commands(text), ["a-tool  --one", "leasehold status"]);
    let call = |program: &'static str, command: &str, flags: &[&str]| {
        let flags: BTreeSet<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        (program, command.to_owned(), flags)
    };
    assert_eq!(
        calls("X=1 target/debug/leasehold-agent run --a b --c='--d' -- worker --e  # --f"),
        [call("leasehold-agent", "run", &["--a", "--c"])]
    );
    assert_eq!(
        calls("leasehold check --pre && leasehold top | grep --x y"),
        [call("leasehold", "check", &["--pre"]), call("leasehold", "top", &[])]
    );
    assert!(calls("helm install leasehold deploy/helm/leasehold --wait").is_empty());
    assert!(calls("etcdctl user grant-role leasehold leasehold").is_empty());
}
