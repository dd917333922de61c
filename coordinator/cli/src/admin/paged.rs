//! Prints a long list page by page, so that no more than a page of it is held.

use leasehold_proto::json;
use prost::{Message, Name};

use super::output::{Format, Grid, TableRow, is_read, terminal_width};
use super::tint;

/// How far the members of a list are indented in JSON.
const INDENT: &str = "    ";
/// The list in the JSON of a message that has none.
const EMPTY: &str = "[]";

/// A list that is printed as it is read.
pub(super) enum PagedList {
    /// As a table; wide, if so.
    Table { wide: bool, widths: Vec<usize>, is_begun: bool },
    /// As a message in JSON: what comes before its list and after it.
    Json { before: String, after: String, is_begun: bool },
    /// As names.
    Names,
}

impl PagedList {
    /// A list in this form; JSON as the members of `message`, which has an empty list. None for a
    /// form that can only be written as a whole.
    pub(super) fn new<M: Message + Name>(format: Format, message: &M) -> Option<Self> {
        match format {
            Format::Table | Format::Wide => {
                let wide = format == Format::Wide;
                Some(Self::Table { wide, widths: Vec::new(), is_begun: false })
            }
            Format::Json => {
                let text = serde_json::to_string_pretty(&json::value(message)).ok()?;
                let (before, after) = text.split_once(EMPTY)?;
                let (before, after) = (before.to_owned(), after.to_owned());
                Some(Self::Json { before, after, is_begun: false })
            }
            Format::Name => Some(Self::Names),
            Format::Yaml => None,
        }
    }

    /// The text of a page.
    fn page<T: TableRow + Message + Name>(&mut self, rows: &[T]) -> anyhow::Result<String> {
        if rows.is_empty() {
            return Ok(String::new());
        }
        match self {
            Self::Table { wide, widths, is_begun } => {
                let width = terminal_width().unwrap_or(usize::MAX);
                let grid = Grid::new(rows, *wide, width, widths);
                let [titles, lines] = grid.as_text(tint::is_shown());
                widths.clone_from(&grid.widths);
                let titles = if std::mem::replace(is_begun, true) { "" } else { &titles };
                Ok(format!("{titles}{lines}"))
            }
            Self::Json { before, is_begun, .. } => {
                let mut text = String::new();
                for row in rows {
                    let start = if std::mem::replace(is_begun, true) { ",\n" } else { "[\n" };
                    if start == "[\n" {
                        text.push_str(before);
                    }
                    text.push_str(start);
                    let member = serde_json::to_string_pretty(&json::value(row))?;
                    let lines: Vec<_> =
                        member.lines().map(|line| format!("{INDENT}{line}")).collect();
                    text.push_str(&lines.join("\n"));
                }
                Ok(text)
            }
            Self::Names => Ok(rows.iter().map(|row| format!("{}\n", row.name())).collect()),
        }
    }

    /// The text after the last page.
    fn end<T: TableRow>(&self) -> String {
        match self {
            Self::Table { is_begun: false, .. } => format!("No {}.\n", T::PLURAL),
            Self::Json { before, after, is_begun: false } => format!("{before}{EMPTY}{after}\n"),
            Self::Json { after, is_begun: true, .. } => format!("\n  ]{after}\n"),
            Self::Table { is_begun: true, .. } | Self::Names => String::new(),
        }
    }

    /// Prints a page; returns whether the reader may want more.
    ///
    /// # Errors
    /// If stdout cannot be written.
    pub(super) fn print<T: TableRow + Message + Name>(
        &mut self,
        rows: &[T],
    ) -> anyhow::Result<bool> {
        is_read(&self.page(rows)?)
    }

    /// Prints the end of the list.
    ///
    /// # Errors
    /// If stdout cannot be written.
    pub(super) fn print_end<T: TableRow>(&self) -> anyhow::Result<()> {
        is_read(&self.end::<T>()).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use leasehold_proto::admin::v1::{Claim, ListStreamsResponse, Stream};

    use super::super::output::{ListArgs, list};
    use super::*;

    fn streams(count: usize) -> Vec<Stream> {
        let stream = |at: usize| Stream {
            set: "cars".into(),
            name: format!("cars:{}", "x".repeat(at)),
            claims: vec![Claim { worker: "worker-0".into(), ..Claim::default() }],
            ..Stream::default()
        };
        (0..count).map(stream).collect()
    }

    /// The text of these pages, and of the same list at once.
    fn both(format: Format, pages: &[usize]) -> (String, String) {
        let all = streams(pages.iter().sum());
        let mut paged = PagedList::new(format, &ListStreamsResponse::default()).expect("a form");
        let (mut text, mut rest) = (String::new(), all.as_slice());
        for count in pages {
            let (page, left) = rest.split_at(*count);
            text.push_str(&paged.page(page).expect("text"));
            rest = left;
        }
        text.push_str(&paged.end::<Stream>());
        let args = ListArgs { output: format, sort: None, reverse: false, watch: false };
        let message = |streams| ListStreamsResponse { streams, ..ListStreamsResponse::default() };
        (text, list(&args, all, message).expect("text"))
    }

    #[test]
    fn pages_add_up_to_the_list() {
        for format in [Format::Json, Format::Name] {
            for pages in [&[][..], &[0], &[1], &[2, 0, 3], &[1, 1, 1]] {
                let (paged, whole) = both(format, pages);
                assert_eq!(paged, whole, "{format:?} {pages:?}");
            }
        }
        for pages in [&[][..], &[3]] {
            let (paged, whole) = both(Format::Table, pages);
            assert_eq!(paged, whole, "{pages:?}");
        }
        // Only the widths may differ: those of later pages are not known before.
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let (paged, whole) = both(Format::Wide, &[2, 3]);
        assert_eq!(words(&paged), words(&whole));
        assert_eq!(paged.lines().count(), 6, "titles once: {paged}");
        assert!(PagedList::new(Format::Yaml, &ListStreamsResponse::default()).is_none());
    }
}
