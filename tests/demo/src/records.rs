//! Records: every line of a source must be in the sink, once, in order, under tokens that never
//! fall.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// A line of the sink: a record, or the mark of a new owner.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Entry {
    /// The writer's token.
    pub token: String,
    /// The record's number, or the last one's where this is a mark.
    pub record: u64,
    /// The writer.
    pub worker: String,
    /// When it was written.
    pub at_ns: u64,
    /// The record's text; none for a mark.
    #[serde(default)]
    pub text: Option<String>,
}

/// Records that were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The stream, as `SET/STREAM`.
    pub stream: String,
    /// The writer.
    pub worker: String,
    /// Its token.
    pub token: String,
    /// When.
    pub at_ns: u64,
}

/// What became of one stream's records, or of many streams' together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// In the source.
    pub written: usize,
    /// Not in the sink, or with another text.
    pub lost: usize,
    /// In the sink more often than once.
    pub doubled: usize,
    /// What else is wrong, in words.
    pub faults: Vec<String>,
}

impl Records {
    /// Adds another stream's.
    pub fn add(&mut self, other: Self) {
        self.written += other.written;
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.faults.extend(other.faults);
    }
}

/// Reads a sink's file.
///
/// # Errors
/// If a line is not a sink's. A missing file is an empty one.
pub fn read_sink(path: &Path) -> Result<Vec<Entry>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).context(path.display().to_string()),
    };
    let parse = |line| serde_json::from_str(line).with_context(|| format!("in a sink: {line}"));
    text.lines().map(parse).collect()
}

/// Compares a source with its sink.
#[must_use]
pub fn compare(stream: &str, source: &[&str], sink: &[Entry]) -> Records {
    let mut records = Records { written: source.len(), ..Records::default() };
    let mut found = vec![0_usize; source.len()];
    let mut highest = (0, 0);
    for entry in sink {
        match token_order(&entry.token) {
            Ok(token) if token >= highest => highest = token,
            Ok(_) => records.faults.push(format!(
                "{stream}: {} wrote record {} under {}, after {}.{}",
                entry.worker, entry.record, entry.token, highest.0, highest.1
            )),
            Err(error) => records.faults.push(format!("{stream}: {error}")),
        }
        let Some(text) = &entry.text else { continue };
        let index = usize::try_from(entry.record).unwrap_or(0).wrapping_sub(1);
        if source.get(index) == Some(&text.as_str()) {
            found[index] += 1;
        } else {
            records.faults.push(format!("{stream}: record {} is not the source's", entry.record));
        }
    }
    records.lost = found.iter().filter(|count| **count == 0).count();
    records.doubled = found.iter().filter(|count| **count > 1).count();
    records
}

/// A token's place in the order of tokens: `EPOCH.SEQ`, by epoch, then by number.
///
/// # Errors
/// If `token` is invalid.
pub fn token_order(token: &str) -> Result<(u64, u64)> {
    match token.split_once('.') {
        Some((epoch, seq)) => Ok((epoch.parse()?, seq.parse()?)),
        None => bail!("{token:?} is not a token"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sink in short: `TOKEN RECORD [TEXT]`.
    fn sink(text: &str) -> Vec<Entry> {
        let entry = |line: &str| {
            let parts: Vec<&str> = line.split_whitespace().collect();
            Entry {
                token: parts[0].to_owned(),
                record: parts[1].parse().unwrap(),
                worker: "w1".to_owned(),
                at_ns: 1,
                text: parts.get(2).map(|text| (*text).to_owned()),
            }
        };
        text.lines().map(entry).collect()
    }

    #[test]
    fn accepts_records_that_are_all_present_once() {
        let sink = sink("1.1 0\n1.1 1 a\n1.10 1\n1.10 2 b\n2.2 2\n2.2 3 c");
        let records = compare("s", &["a", "b", "c"], &sink);
        assert_eq!(records, Records { written: 3, ..Records::default() });
    }

    #[test]
    fn reports_lost_and_repeated_records() {
        let records = compare("s", &["a", "b", "c"], &sink("1.1 1 a\n1.1 1 a\n1.1 3 c"));
        assert_eq!((records.lost, records.doubled), (1, 1));
        assert_eq!(records.faults, Vec::<String>::new());
    }

    #[test]
    fn counts_a_record_with_wrong_text_as_lost() {
        let records = compare("s", &["a"], &sink("1.1 1 x\n1.1 2 b\n1.1 0 c"));
        assert_eq!((records.lost, records.doubled, records.faults.len()), (1, 0, 3));
    }

    #[test]
    fn reports_a_token_that_decreases() {
        let records = compare("s", &["a", "b"], &sink("1.10 1 a\n1.9 2 b"));
        assert_eq!((records.lost, records.faults.len()), (0, 1));
        assert!(records.faults[0].contains("1.9"), "{:?}", records.faults);
        assert_eq!(compare("s", &["a"], &sink("x 1 a")).faults.len(), 1);
    }
}
