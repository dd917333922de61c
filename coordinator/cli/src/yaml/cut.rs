//! Places in a source text, and changes of it.

use std::ops::Range;

/// A piece of the source, and what comes in its place.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    pub(super) range: Range<usize>,
    pub(super) text: String,
}

/// The source with all cuts made; `None` where two are about the same text.
pub(super) fn paste<'a>(source: &str, cuts: impl Iterator<Item = &'a Cut>) -> Option<String> {
    let mut cuts: Vec<&Cut> = cuts.collect();
    cuts.sort_by_key(|cut| (cut.range.start, cut.range.end));
    let line_end = if source.contains("\r\n") { "\r\n" } else { "\n" };
    let mut out = String::with_capacity(source.len());
    let mut done = 0;
    for cut in cuts {
        out.push_str(source.get(done..cut.range.start)?);
        out.push_str(&cut.text.replace('\n', line_end));
        done = cut.range.end;
    }
    out.push_str(source.get(done..)?);
    Some(out)
}

/// A source, asked about its lines.
#[derive(Clone, Copy)]
pub(super) struct Text<'a>(pub(super) &'a str);

impl<'a> Text<'a> {
    pub(super) fn line_start(self, at: usize) -> usize {
        let start = self.0[..at].rfind('\n').map_or(0, |newline| newline + 1);
        match self.0[start..at].starts_with('\u{feff}') {
            true => start + '\u{feff}'.len_utf8(),
            false => start,
        }
    }

    /// Where the text of the line ends.
    pub(super) fn line_end(self, at: usize) -> usize {
        let end = self.0[at..].find('\n').map_or(self.0.len(), |newline| at + newline);
        match self.0[at..end].ends_with('\r') {
            true => end - 1,
            false => end,
        }
    }

    /// Where the next line begins, or `at` where one begins there.
    pub(super) fn next_line(self, at: usize) -> usize {
        match self.begins_line(at) {
            true => at,
            false => self.0[at..].find('\n').map_or(self.0.len(), |newline| at + newline + 1),
        }
    }

    pub(super) fn begins_line(self, at: usize) -> bool {
        self.0[..at].ends_with('\n')
    }

    pub(super) fn column(self, at: usize) -> usize {
        self.0[self.line_start(at)..at].chars().count()
    }

    /// The space that a line begins with, up to `at`.
    pub(super) fn leading(self, at: usize) -> &'a str {
        let line = &self.0[self.line_start(at)..at];
        &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
    }

    /// Whether nothing but space comes before `at` in its line.
    pub(super) fn is_first(self, at: usize) -> bool {
        self.leading(at).len() == at - self.line_start(at)
    }

    /// How much deeper a line is than the nearest one above it that is less deep.
    pub(super) fn step(self, at: usize, indent: &str) -> String {
        let above = self.0[..self.line_start(at)].lines().rev();
        let mut leads = above
            .filter(|line| !line.trim().is_empty())
            .map(|line| &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]);
        let outer = leads.find(|lead| lead.len() < indent.len()).unwrap_or_default();
        match indent.strip_prefix(outer).unwrap_or_default() {
            "" => "  ".into(),
            step => step.into(),
        }
    }

    /// The colon after a key that ends at `at`.
    pub(super) fn colon(self, at: usize) -> Option<usize> {
        let rest = &self.0[at..];
        let gap = rest.len() - rest.trim_start().len();
        rest[gap..].starts_with(':').then_some(at + gap)
    }

    /// The dash of the item whose text begins at `at`: on its line, or above it where the item
    /// begins on a line of its own.
    pub(super) fn dash(self, at: usize) -> Option<usize> {
        let mut end = at;
        loop {
            let start = self.line_start(end);
            let line = &self.0[start..end];
            let line = match line.find('#') {
                Some(0) => "",
                Some(hash) if line[..hash].ends_with([' ', '\t']) && end != at => &line[..hash],
                _ => line,
            };
            let line = line.trim_end();
            if line.ends_with('-') {
                return Some(start + line.len() - 1);
            }
            if !line.is_empty() || start == 0 {
                return None;
            }
            end = start - 1;
        }
    }
}
