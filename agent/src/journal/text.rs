//! The bytes of a journal: a mark, a header and the records, a line each.
//!
//! The mark says how many bytes count. It is written again, in its place, after each record and
//! before that is used: what stands behind the bytes that count was never used by anybody, and is
//! no part of the journal. A journal that is shorter has been cut, at whatever place. Each other
//! line begins with a checksum of itself and of all lines before it.
//!
//! So nothing that was changed, cut or left out passes as a journal, but for a collision of 32
//! bits. One thing cannot be known from the file: that somebody has put an older one in its place,
//! whole.

use leasehold_agent_core::{Memory, Record};
use serde::{Deserialize, Serialize};

/// The version of the format.
const FORMAT: u32 = 2;
/// Digits of a checksum.
const SUM_DIGITS: usize = 8;

/// Whose journal it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) boot_id: String,
    pub(super) cluster: String,
    pub(super) worker: String,
}

/// The first line. Its length is always the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    journal: u32,
    /// Bytes that count, in hexadecimal digits.
    bytes: String,
    /// Their checksum.
    sum: String,
}

/// What a journal's bytes are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// Not all that counts is there.
    Damaged {
        why: String,
        /// The header, where that is not damaged.
        header: Option<Header>,
        /// What the lines before the damage add up to.
        rest: Box<Memory>,
    },
    /// What it adds up to, and where it ends.
    Intact(Header, Box<Memory>, End),
}

/// The end of a journal that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Bytes that count.
    pub(super) len: u64,
    /// The checksum of the last line.
    pub(super) sum: u32,
}

impl End {
    /// The next line, and the end behind it.
    pub(super) fn line(self, value: &impl Serialize) -> (Vec<u8>, Self) {
        let json = serde_json::to_vec(value).expect("it has only plain fields");
        let sum = checksum(self.sum, &json);
        let mut line = format!("{sum:08x} ").into_bytes();
        line.extend(json);
        line.push(b'\n');
        let len = self.len + line.len() as u64;
        (line, Self { len, sum })
    }

    /// The first line of a journal that ends here.
    pub(super) fn mark(self) -> Vec<u8> {
        let bytes = format!("{:016x}", self.len);
        let sum = format!("{:08x}", checksum(FORMAT, bytes.as_bytes()));
        let mark = Mark { journal: FORMAT, bytes, sum };
        let mut line = serde_json::to_vec(&mark).expect("it has only plain fields");
        line.push(b'\n');
        line
    }
}

/// A whole journal, and its end.
pub(super) fn write(header: &Header, memory: &Memory) -> (Vec<u8>, End) {
    let mark_len = End { len: 0, sum: 0 }.mark().len();
    let mut bytes = vec![0; mark_len];
    let (line, mut end) = End { len: mark_len as u64, sum: 0 }.line(header);
    bytes.extend(line);
    for record in memory.records() {
        let (line, next) = end.line(&record);
        bytes.extend(line);
        end = next;
    }
    bytes[..mark_len].copy_from_slice(&end.mark());
    (bytes, end)
}

/// A header by itself, as a line.
pub(super) fn write_header(header: &Header) -> Vec<u8> {
    End { len: 0, sum: 0 }.line(header).0
}

/// Reads such a line; none where it is damaged.
pub(super) fn parse_header(line: &[u8]) -> Option<Header> {
    serde_json::from_slice(verify_line(line, &mut 0)?).ok()
}

/// Reads a journal.
pub(super) fn parse(bytes: &[u8]) -> Parsed {
    let damaged = |why: String, header, rest| Parsed::Damaged { why, header, rest };
    let marked = counted_bytes(bytes);
    // A line's own checksum holds where the mark is damaged, too.
    let len = marked.as_ref().map_or(bytes.len(), |len| bytes.len().min(*len));
    let mut lines = bytes[..len].split_inclusive(|byte| *byte == b'\n');
    let mut at = lines.next().map_or(0, <[u8]>::len);
    let mut sum = 0;
    let mut next = || -> Result<Option<&[u8]>, String> {
        let Some(line) = lines.next() else { return Ok(None) };
        let json = verify_line(line, &mut sum).ok_or_else(|| format!("the line at byte {at}"))?;
        at += line.len();
        Ok(Some(json))
    };
    let mut header: Option<Header> = None;
    let mut memory = Box::<Memory>::default();
    let read = loop {
        match next() {
            Ok(Some(json)) if header.is_none() => match serde_json::from_slice(json) {
                Ok(read) => header = Some(read),
                Err(error) => break Err(format!("the header: {error}")),
            },
            Ok(Some(json)) => match serde_json::from_slice::<Record>(json) {
                Ok(record) => memory.apply(&record),
                Err(error) => break Err(format!("a record: {error}")),
            },
            Ok(None) => break Ok(()),
            Err(why) => break Err(why),
        }
    };
    match (marked, read, header) {
        (Ok(counts), Ok(()), Some(header)) if counts == len => {
            Parsed::Intact(header, memory, End { len: len as u64, sum })
        }
        (Err(why), _, header) | (Ok(_), Err(why), header) => damaged(why, header, memory),
        (Ok(counts), Ok(()), header) => {
            let why = format!("it ends at byte {}, and {counts} were written", bytes.len());
            damaged(why, header, memory)
        }
    }
}

/// The bytes that count, by the first line.
fn counted_bytes(bytes: &[u8]) -> Result<usize, String> {
    let line = bytes.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
    let mark: Mark = serde_json::from_slice(line).map_err(|error| format!("line 1: {error}"))?;
    if mark.journal != FORMAT {
        return Err(format!("it has format {}, not {FORMAT}", mark.journal));
    }
    let counts = u64::from_str_radix(&mark.bytes, 16).ok();
    let same = |len: &u64| End { len: *len, sum: 0 }.mark() == line;
    let counts = counts.filter(same).and_then(|len| usize::try_from(len).ok());
    counts.ok_or_else(|| "line 1 has another checksum".into())
}

/// What a line says, where its checksum is that of itself and of those before it.
fn verify_line<'a>(line: &'a [u8], sum: &mut u32) -> Option<&'a [u8]> {
    let (digits, json) = line.strip_suffix(b"\n")?.split_at_checked(SUM_DIGITS)?;
    let json = json.strip_prefix(b" ")?;
    *sum = checksum(*sum, json);
    (digits == format!("{sum:08x}").as_bytes()).then_some(json)
}

fn checksum(before: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&before.to_be_bytes());
    hasher.update(bytes);
    hasher.finalize()
}
