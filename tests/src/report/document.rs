//! The place of a document that has the table of the last report.

use std::path::Path;

use anyhow::{Context, Result};

use super::results::Results;

const BEGIN: &str = "<!-- begin of the report -->\n";
const END: &str = "<!-- end of the report -->\n";

/// Checks that the document has a place for the table.
///
/// # Errors
/// If it has none, or cannot be read.
pub(super) fn check(path: &Path) -> Result<()> {
    with_table(path, "").map(drop)
}

/// Puts the table of these results into the document, in place of the one that is there.
///
/// # Errors
/// If the document has no place for it, or cannot be written.
pub(super) fn rewrite(path: &Path, results: &Results) -> Result<()> {
    let text = with_table(path, &results.markdown())?;
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

/// The text of the document with this table.
fn with_table(path: &Path, table: &str) -> Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    replaced(&text, table).with_context(|| {
        let (begin, end) = (BEGIN.trim_end(), END.trim_end());
        format!("no place for the report in {}: add the lines {begin} and {end}", path.display())
    })
}

/// The text with a table between the two marks; `None` where it does not have them.
fn replaced(text: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{table}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_takes_the_place_of_the_last_one() {
        let document = format!("before\n{BEGIN}old\n{END}after\n");
        let once = replaced(&document, "new\n").expect("both marks are there");
        assert_eq!(once, format!("before\n{BEGIN}\nnew\n\n{END}after\n"));
        assert_eq!(replaced(&once, "new\n").expect("they stay"), once);
        assert_eq!(replaced("no marks\n", "new\n"), None);
    }
}
