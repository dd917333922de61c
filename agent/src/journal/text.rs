//! The format of a journal: a mark, a header and the records, one line each.
//!
//! The mark contains the number of valid bytes. It is overwritten in place after each record and
//! before the record takes effect: bytes behind that number were never used. A shorter file has
//! been truncated. Each other line begins with a checksum of itself and of all lines before it.
//!
//! So a journal that was changed, truncated or reordered is detected, except for a collision of 32
//! bits. For the replacement of the whole file by an older one see [`super::position`].

use leasehold_agent_core::{Memory, Record};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of the format.
const FORMAT: u32 = 2;
/// Digits of a checksum.
const SUM_DIGITS: usize = 8;

/// The owner of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) boot_id: String,
    pub(super) cluster: String,
    pub(super) worker: String,
}

/// Names one journal file: a new one is drawn whenever the file is rewritten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JournalId(String);

impl JournalId {
    /// A new one.
    pub(super) fn draw() -> Self {
        Self(format!("{:032x}", fastrand::u128(..)))
    }
}

/// The second line: the owner, and which file this is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JournalHeader {
    #[serde(flatten)]
    pub(super) owner: Header,
    /// None in a journal of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<JournalId>,
}

/// The first line. Its length is fixed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct JournalMark {
    journal: u32,
    /// The number of valid bytes, in hexadecimal digits.
    bytes: String,
    /// Their checksum.
    sum: String,
}

/// The result of parsing a journal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// Some valid bytes are missing or changed.
    Damaged {
        why: String,
        /// The header, unless it is damaged.
        header: Option<Header>,
        /// The content of the lines before the damage.
        rest: Box<Memory>,
    },
    /// The owner, the content and the end, and whether it has every line up to the end that was
    /// asked for.
    Intact(JournalHeader, Box<Memory>, End, bool),
}

/// The end of a journal that is being written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    /// The number of valid bytes.
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
        let mark = JournalMark { journal: FORMAT, bytes, sum };
        let mut line = serde_json::to_vec(&mark).expect("it has only plain fields");
        line.push(b'\n');
        line
    }
}

/// A whole journal, and its end.
pub(super) fn write(header: &JournalHeader, memory: &Memory) -> (Vec<u8>, End) {
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

/// A file with one line.
pub(super) fn write_line(value: &impl Serialize) -> Vec<u8> {
    End { len: 0, sum: 0 }.line(value).0
}

/// Reads such a line; none if it is damaged.
pub(super) fn parse_line<T: DeserializeOwned>(line: &[u8]) -> Option<T> {
    serde_json::from_slice(verify_line(line, &mut 0)?).ok()
}

/// Reads a journal, and whether it has every line up to `wanted`.
pub(super) fn parse(bytes: &[u8], wanted: End) -> Parsed {
    let damaged = |why: String, header: Option<JournalHeader>, rest| Parsed::Damaged {
        why,
        header: header.map(|header| header.owner),
        rest,
    };
    let marked = counted_bytes(bytes);
    // The checksums of the lines are valid even if the mark is damaged.
    let len = marked.as_ref().map_or(bytes.len(), |len| bytes.len().min(*len));
    let mut lines = bytes[..len].split_inclusive(|byte| *byte == b'\n');
    let mut at = lines.next().map_or(0, <[u8]>::len);
    let (mut sum, mut reached) = (0, false);
    let mut next = || -> Result<Option<&[u8]>, String> {
        let Some(line) = lines.next() else { return Ok(None) };
        let json = verify_line(line, &mut sum).ok_or_else(|| format!("the line at byte {at}"))?;
        at += line.len();
        reached |= End { len: at as u64, sum } == wanted;
        Ok(Some(json))
    };
    let mut header: Option<JournalHeader> = None;
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
            Parsed::Intact(header, memory, End { len: len as u64, sum }, reached)
        }
        (Err(why), _, header) | (Ok(_), Err(why), header) => damaged(why, header, memory),
        (Ok(counts), Ok(()), header) => {
            let why = format!("it ends at byte {}, but {counts} bytes were written", bytes.len());
            damaged(why, header, memory)
        }
    }
}

/// The number of valid bytes, from the first line.
fn counted_bytes(bytes: &[u8]) -> Result<usize, String> {
    let line = bytes.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
    let mark: JournalMark =
        serde_json::from_slice(line).map_err(|error| format!("line 1: {error}"))?;
    if mark.journal != FORMAT {
        return Err(format!("it has format {}, expected {FORMAT}", mark.journal));
    }
    let counts = u64::from_str_radix(&mark.bytes, 16).ok();
    let same = |len: &u64| End { len: *len, sum: 0 }.mark() == line;
    let counts = counts.filter(same).and_then(|len| usize::try_from(len).ok());
    counts.ok_or_else(|| "the checksum of line 1 is wrong".into())
}

/// Verifies the checksum of a line, and returns its JSON.
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
