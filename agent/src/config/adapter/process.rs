//! Options of the adapter `process`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use leasehold_types::flag::{DurationRange, duration};
use leasehold_types::nearest;

use super::first_given;

/// How long a program may take to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(30);

/// The adapter `process`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessAdapter {
    /// The program of one stream and its arguments, with `{set}` and `{stream}` in them.
    pub command: Vec<OsString>,
    /// How long it may take to exit after SIGTERM.
    pub grace: Duration,
    /// It gets SIGKILL after that, even if its lease has not ended.
    pub kill: bool,
}

/// Options of the adapter `process`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Adapter process")]
pub(super) struct ProcessArgs {
    /// How long a stream's program may take to exit after SIGTERM before the agent logs it, or
    /// kills the program. A program that still runs when its lease ends is killed [default: 30s]
    #[arg(long, env = "LEASEHOLD_PROCESS_GRACE", value_name = "DURATION")]
    #[arg(value_parser = duration(DurationRange::GRACE))]
    process_grace: Option<Duration>,
    /// Kill a stream's program with SIGKILL after --process-grace, even if its lease has not ended
    #[arg(long, env = "LEASEHOLD_PROCESS_KILL")]
    process_kill: bool,
}

impl ProcessArgs {
    /// The first option of this adapter that is set.
    pub(super) fn given(&self) -> Option<&'static str> {
        first_given(&[
            ("--process-grace", self.process_grace.is_some()),
            ("--process-kill", self.process_kill),
        ])
    }

    /// Validates the options; they need a command.
    pub(super) fn check(self, command: &[OsString]) -> Result<ProcessAdapter, String> {
        if command.is_empty() {
            return Err("--adapter process needs -- COMMAND: the program of one stream; its \
                        arguments may contain {set} and {stream}"
                .into());
        }
        if let Some(word) = command.iter().find_map(|arg| mistyped(arg.to_str()?)) {
            return Err(format!(
                "COMMAND contains {{{word}}}: expected {{set}} or {{stream}}, which the adapter \
                 replaces, for example -- ./feed --topic={{stream}}"
            ));
        }
        let (grace, kill) = (self.process_grace.unwrap_or(GRACE), self.process_kill);
        Ok(ProcessAdapter { command: command.to_vec(), grace, kill })
    }
}

/// A word in braces that was meant to be one of the placeholders.
fn mistyped(argument: &str) -> Option<&str> {
    const PLACEHOLDERS: [&str; 2] = ["set", "stream"];
    let words = argument.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
    let mut words = words.map(|(word, _)| word);
    words.find(|word| {
        !PLACEHOLDERS.contains(word) && nearest(&word.to_lowercase(), PLACEHOLDERS).is_some()
    })
}

impl ProcessAdapter {
    /// The command of one stream.
    #[must_use]
    pub fn command_of(&self, set: &str, stream: &str) -> Vec<OsString> {
        let fill = |arg: &OsString| match arg.to_str() {
            // Names of sets contain no braces, so nothing is replaced twice.
            Some(text) => text.replace("{set}", set).replace("{stream}", stream).into(),
            None => arg.clone(),
        };
        self.command.iter().map(fill).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_all_placeholders_for_the_set_and_the_stream() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let command = words(&["feed-{set}", "--topic={stream}", "{set}/{stream}", "{other}"]);
        let adapter = ProcessAdapter { command, grace: GRACE, kill: false };
        let wanted = words(&["feed-cars", "--topic=cars:new", "cars/cars:new", "{other}"]);
        assert_eq!(adapter.command_of("cars", "cars:new"), wanted);
    }

    #[test]
    fn a_placeholder_that_is_mistyped_is_refused_and_other_braces_are_not() {
        let arguments = ["--topic={streem}", "a-{Set}", "{streams}", "{set}/{strem}"];
        let words = arguments.map(|argument| mistyped(argument).expect(argument));
        assert_eq!(words, ["streem", "Set", "streams", "strem"]);
        for argument in ["{set}{stream}", "{other}", "{\"a\": 1}", "}{", "{", "${HOME}", "{}"] {
            assert_eq!(mistyped(argument), None, "{argument}");
        }
    }
}
