//! The runner with a small language, and violations that it must find.

use std::fmt::Write as _;
use std::path::Path;

use crate::check::{difference, rerun, unused};
use crate::{Language, Words};

/// A language whose verbs change a sum.
struct Sum(u32);

impl Language for Sum {
    const FOLDER: &'static str = "";
    const LEGEND: &'static str = "
add NUMBER [times=N] [shown]
    adds a number so many times (1), and shows the `sum`: `add 2 times=3 shown`
wait TIME [stale=N]
    does not read `stale`: `wait 2s`
";

    fn new() -> Self {
        Self(0)
    }

    fn command(&mut self, verb: &str, words: &mut Words, outcome: &mut String) {
        match verb {
            "add" => {
                let number: u32 = words.parse("NUMBER");
                self.0 += number * words.parse_value("times").unwrap_or(1);
                if words.flag("shown") {
                    let _ = writeln!(outcome, "sum {}", self.0);
                }
            }
            _ => _ = words.time("TIME"),
        }
    }
}

/// The message of the panic of `commands`.
fn failure(commands: &str) -> String {
    let panic = std::panic::catch_unwind(|| Sum::new().run(commands)).expect_err("it fails");
    *panic.downcast().expect("a message")
}

#[test]
fn a_file_gets_the_outcomes_of_its_blocks_and_keeps_its_comments() {
    let text = "# All of it.\n\n# One.\nadd 1 shown\n----\nsum 7\n\nadd 2 times=3 shown\nadd 1\n";
    let fresh = "# All of it.\n\n# One.\nadd 1 shown\n----\nsum 1\n\n\
                 add 2 times=3 shown\nadd 1\n----\nsum 7\n";
    assert_eq!(rerun::<Sum>(Path::new("sum.txt"), text), fresh);
    assert_eq!(rerun::<Sum>(Path::new("sum.txt"), fresh), fresh);
}

#[test]
fn a_changed_outcome_is_shown_with_file_and_line() {
    let recorded = "add 1 shown\n----\nsum 1\n";
    let shown = difference(Path::new("sum.txt"), recorded, &recorded.replace("sum 1", "sum 2"));
    assert_eq!(shown, "sum.txt:3\n add 1 shown\n ----\n-sum 1\n+sum 2\n");
    assert_eq!(difference(Path::new("sum.txt"), recorded, recorded), "");
}

#[test]
fn an_unknown_verb_is_an_error_that_lists_the_verbs() {
    let message = failure("add 1\nsubtract 1");
    assert!(message.starts_with("line 2: unknown verb \"subtract\""), "{message}");
    assert!(message.contains("\nadd NUMBER [times=N]"), "{message}");
}

#[test]
fn arguments_that_are_unknown_missing_or_invalid_are_errors_that_show_the_usage() {
    for (command, problem) in [
        ("add 1 again", "unknown argument again"),
        ("add 1 time=2", "unknown argument time="),
        ("add 1 times=2 times=3", "unknown argument times="),
        ("add", "no NUMBER"),
        ("add one", "NUMBER: \"one\": invalid digit"),
        ("wait 2000", "invalid duration \"2000\""),
    ] {
        let message = failure(command);
        assert!(message.starts_with(&format!("line 1: {command}: {problem}")), "{message}");
        assert!(message.contains("\nusage: "), "{message}");
    }
}

#[test]
fn what_a_legend_has_too_much_is_found() {
    assert!(failure("wait 2s").contains("does not read \"stale=\""));
    let lines = ["add 2 times=3 shown", "wait 3s", "wait 1s stale=1"];
    assert_eq!(unused(Sum::LEGEND, &lines), ["wait: no scenario has its example \"wait 2s\""]);
    let unused = unused(Sum::LEGEND, &["add 2 times=3 shown", "wait 2s"]);
    assert_eq!(unused, ["wait: no scenario uses its argument stale="]);
}

#[test]
#[should_panic(expected = "is not in the usage")]
fn what_a_legend_lacks_is_found() {
    let mut words = Words::new("line 1", "add 1", "add NUMBER");
    words.value("times");
}
