//! Runs the scenario files of the pure cores: commands, and below `----` their recorded outcome.
//!
//! A file is a sequence of blocks with an empty line between them. A block has commands, one on a
//! line, `----`, and the lines that the commands write. A line that begins with `#` is a comment,
//! and a block of comments alone has no outcome. State lasts from one block of a file to the next.
//!
//! A command is a verb, then words; a word with `=` is a `KEY=VALUE`. Each [`Language`] explains
//! its verbs in a legend, and has three tests: [`check_outcomes`], [`check_legend`], and
//! [`check_faults`] where there are some. With `LEASEHOLD_REGENERATE` in its environment the first
//! one records the outcomes.
//!
//! Invariant: the legend is complete. A verb and an argument that it does not list are errors, and
//! a command reads every argument that the legend lists for its verb.

mod check;
mod fault;
mod language;
mod legend;
mod words;

#[cfg(test)]
mod tests;

pub use check::{check_faults, check_legend, check_outcomes};
pub use fault::with_fault;
pub use language::Language;
pub use words::Words;
