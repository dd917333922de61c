//! A language of scenarios: the state that commands act on, and its verbs.

use crate::legend::{usage, verb};
use crate::words::Words;

/// The state that the commands of one scenario act on, and the verbs of these commands.
pub trait Language: Sized {
    /// The folder of the scenario files.
    const FOLDER: &'static str;

    /// The verbs: for each a line with its arguments, `UPPER` for a value, `lower` for itself,
    /// `[optional]`, `one|other` and `MANY…`; then indented lines with its meaning, which end with
    /// an example in backticks that is a line of a scenario.
    const LEGEND: &'static str;

    /// The state before the first command.
    fn new() -> Self;

    /// Runs one command: reads all arguments of its verb, and appends what it shows to the outcome.
    fn command(&mut self, verb: &str, words: &mut Words, outcome: &mut String);

    /// Completes a command: lets the other parties answer, and appends what this shows.
    fn complete(&mut self, _command: &str, _outcome: &mut String) {}

    /// Runs commands, one on a line, and returns their outcome.
    ///
    /// # Panics
    /// If a verb or an argument is unknown.
    fn run(&mut self, commands: &str) -> String {
        run_block(self, "line ", 1, commands)
    }
}

/// Prints where the scenario is if a command panics.
struct PrintedPlace<'a>(&'a str, &'a str);

impl Drop for PrintedPlace<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}: {}", self.0, self.1);
        }
    }
}

/// Runs the commands of a block that begins in line `first` of a file.
pub(crate) fn run_block<L: Language>(
    language: &mut L,
    file: &str,
    first: usize,
    commands: &str,
) -> String {
    let mut outcome = String::new();
    for (number, line) in (first..).zip(commands.lines()).filter(|(_, line)| is_command(line)) {
        let place = format!("{file}{number}");
        let _printed = PrintedPlace(&place, line);
        let name = verb(line);
        let Some(usage) = usage(L::LEGEND, name) else {
            panic!("{place}: unknown verb {name:?}; the verbs are\n{}", L::LEGEND);
        };
        let mut words = Words::new(&place, line, usage);
        language.command(name, &mut words, &mut outcome);
        words.finish();
        language.complete(line, &mut outcome);
    }
    outcome
}

/// Whether a line above `----` is a command.
pub(crate) fn is_command(line: &str) -> bool {
    !line.is_empty() && !line.starts_with('#')
}
