//! What is wrong with a manifest, and where. Every problem names a place that a person can go to.

use std::fmt;

use leasehold_types::Moment;

use super::tree::Position;

/// One thing that is wrong with the manifests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Problem {
    /// The file, below the manifests' folder; `.` for the folder itself.
    pub file: String,
    /// The line, from 1; 0 where none is to blame.
    pub line: u32,
    /// The column in characters, from 1; 0 where none is to blame.
    pub column: u32,
    /// The field, as in `spec.streams[3].weight`; empty where none is to blame.
    pub field: String,
    /// What is wrong, and what to do.
    pub message: String,
    /// When what it defers comes into force by itself, if it does.
    pub due: Option<Moment>,
}

impl Problem {
    /// A problem of `field` at a place in `file`.
    pub fn new(
        file: &str,
        at: Position,
        field: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        let (field, message) = (field.into(), message.into());
        Self { file: file.into(), line: at.line, column: at.column, field, message, due: None }
    }

    /// A problem of a whole file or folder.
    pub fn whole(file: &str, message: impl Into<String>) -> Self {
        Self::new(file, Position::default(), "", message)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if !self.field.is_empty() {
            write!(f, ": {}", self.field)?;
        }
        write!(f, ": {}", self.message)
    }
}
