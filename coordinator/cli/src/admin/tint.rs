//! What of a list needs a look: its colour on terminals.

use std::env;
use std::io::{self, IsTerminal};

/// How much a row needs a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tint {
    /// Something is lost or broken.
    Alarm,
    /// Something is silent, waits or has no owner.
    Warning,
    /// Something drains.
    Notice,
}

impl Tint {
    /// The escape sequence that begins its colour: red, yellow or cyan.
    fn start(self) -> &'static str {
        match self {
            Self::Alarm => "\x1b[31m",
            Self::Warning => "\x1b[33m",
            Self::Notice => "\x1b[36m",
        }
    }

    /// A line in its colour.
    pub(crate) fn paint(self, line: &str) -> String {
        format!("{}{line}\x1b[0m", self.start())
    }
}

/// Whether the person wants colours (no-color.org).
pub(crate) fn is_wanted() -> bool {
    env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Whether stdout shows colours that the person wants.
pub(crate) fn is_shown() -> bool {
    let is_dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    is_wanted() && !is_dumb && io::stdout().is_terminal()
}
