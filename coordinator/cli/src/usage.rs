//! What is wrong with a command line that only the command itself can tell.

/// The exit code after a wrong command line: what the parser of arguments uses, too.
pub(crate) const EXIT_CODE: u8 = 2;

/// A wrong command line.
#[derive(Debug)]
pub(crate) struct UsageError(String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// The error of a wrong command line: what is wrong, and what to write.
pub(crate) fn wrong(message: impl Into<String>) -> anyhow::Error {
    UsageError(message.into()).into()
}
