//! Long lists of streams in files of their own: YAML, or one a line. A list is taken whole or not
//! at all.

use std::fmt;
use std::sync::Arc;

use leasehold_coordinator_core::desired::Stream;
use leasehold_types::{StreamName, limits};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_yaml::Spanned;

use super::changed_part::{common_prefix, common_suffix};
use super::manifest::StreamEntry;
use super::marks::Marks;
use super::tree::{self, Position, YamlError};

/// Bytes of one file of streams.
pub(crate) const STREAM_FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Wrong entries that are reported of one file.
const ENTRY_ERRORS_MAX: usize = 20;

/// Streams and the place of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamList {
    /// Shared with the set that takes all its streams from this list.
    pub streams: Arc<Vec<Stream>>,
    pub marks: Marks,
    /// The list's field, as in `spec.streams`; `None` if each stream is a line.
    pub field: Option<&'static str>,
}

/// A [`StreamList`] that is being read.
#[derive(Debug, Default)]
pub(crate) struct ListDraft {
    pub streams: Vec<Stream>,
    pub marks: Marks,
    pub field: Option<&'static str>,
}

/// A wrong entry: the place, the field and the message.
pub(crate) type EntryError = (Position, String, String);

/// Reads a file of streams.
pub(crate) fn read(text: &str, yaml: bool) -> Result<StreamList, Vec<EntryError>> {
    let text = without_mark(text);
    let list = if yaml { read_yaml(text)? } else { read_lines(text)? };
    check_length(list)
}

/// Reads a file of one stream a line that had the text `before` when it gave `list`: only its
/// changed lines.
pub(crate) fn read_changed_lines(
    text: &str,
    before: &str,
    list: &StreamList,
) -> Result<StreamList, Vec<EntryError>> {
    let text = without_mark(text);
    let list = changed_lines(text, without_mark(before), list);
    check_length(list.map_or_else(|| read_lines(text), Ok)?)
}

/// A text without the byte order mark at its beginning.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

fn check_length(list: ListDraft) -> Result<StreamList, Vec<EntryError>> {
    let ListDraft { streams, marks, field } = list;
    if streams.is_empty() {
        return Err(vec![fault(
            Position::default(),
            "names no stream: add one, or remove the file",
        )]);
    }
    Ok(StreamList { streams: Arc::new(streams), marks, field })
}

/// Checks one stream as it was written.
pub(crate) fn check(entry: &StreamEntry) -> Result<Stream, (&'static str, String)> {
    let name = StreamName::new(&entry.name).map_err(|error| ("name", error.to_string()))?;
    if !(1..=limits::WEIGHT_MAX).contains(&entry.weight) {
        let message = format!("is {}, but must be from 1 to {}", entry.weight, limits::WEIGHT_MAX);
        return Err(("weight", message));
    }
    Ok(Stream { name, weight: entry.weight, dedicated: entry.dedicated })
}

fn fault(at: Position, message: &str) -> EntryError {
    (at, String::new(), message.into())
}

fn too_many() -> String {
    format!("more than {} streams: split the set over several coordinators", limits::STREAMS_MAX)
}

/// A changed list of lines; `None` if something may be wrong with it.
fn changed_lines(text: &str, before: &str, list: &StreamList) -> Option<ListDraft> {
    let (new, old) = (text.as_bytes(), before.as_bytes());
    let is_end = |byte: &u8| *byte == b'\n';
    // Only whole lines are taken over.
    let first = common_prefix(new, old);
    let first = new[..first].iter().rposition(is_end).map_or(0, |end| end + 1);
    let last = common_suffix(&new[first..], &old[first..]);
    let last = new[new.len() - last..].iter().position(is_end).map_or(0, |end| last - end - 1);
    let lines_first = new[..first].iter().filter(|byte| is_end(byte)).count();
    let lines_first = u32::try_from(lines_first).ok()?;
    let count = |lines: &str| u32::try_from(lines.lines().count()).ok();
    let changed = &text[first..text.len() - last];
    let lines_old = lines_first + count(&before[first..before.len() - last])?;
    let lines_new = lines_first + count(changed)?;
    let (first, last) = (list.marks.up_to_line(lines_first), list.marks.up_to_line(lines_old));

    let changed = read_lines_from(lines_first + 1, changed).ok()?;
    let mut marks = Marks::default();
    marks.extend_from(&list.marks, 0..first, |line| line);
    marks.extend_from(&changed.marks, 0..changed.marks.len(), |line| line);
    let moved = |line: u32| line - lines_old + lines_new;
    marks.extend_from(&list.marks, last..list.marks.len(), moved);

    let (first, last) = (first as usize, last as usize);
    let length = first + changed.streams.len() + list.streams.len() - last;
    if length > limits::STREAMS_MAX {
        return None;
    }
    let mut streams = Vec::with_capacity(length);
    streams.extend_from_slice(&list.streams[..first]);
    streams.extend(changed.streams);
    streams.extend_from_slice(&list.streams[last..]);
    Some(ListDraft { streams, marks, field: None })
}

fn read_lines(text: &str) -> Result<ListDraft, Vec<EntryError>> {
    read_lines_from(1, text)
}

/// Reads lines of which the first has this number in its file.
fn read_lines_from(first: u32, text: &str) -> Result<ListDraft, Vec<EntryError>> {
    let mut list = ListDraft::default();
    let mut faults = Vec::new();
    for (line, content) in (first..).zip(text.lines()) {
        let name = content.trim();
        if name.is_empty() || name.starts_with('#') {
            continue;
        }
        let indent = content.chars().take_while(|c| c.is_whitespace()).count();
        let at = Position { line, column: u32::try_from(indent + 1).unwrap_or(u32::MAX) };
        match StreamName::new(name) {
            Ok(name) => list.push(Stream { name, weight: 1, dedicated: false }, at),
            Err(error) => faults.push(fault(at, &error.to_string())),
        }
        if list.streams.len() > limits::STREAMS_MAX {
            faults.push(fault(at, &too_many()));
        }
        if faults.len() >= ENTRY_ERRORS_MAX || list.streams.len() > limits::STREAMS_MAX {
            break;
        }
    }
    if faults.is_empty() { Ok(list) } else { Err(faults) }
}

fn read_yaml(text: &str) -> Result<ListDraft, Vec<EntryError>> {
    // A stream is one value, or a mapping of three keys and values.
    let options = tree::options(limits::STREAMS_MAX * 8);
    let file = serde_yaml::from_str_with_options::<YamlFile>(text, options).map_err(|error| {
        let YamlError { at, message } = YamlError::from_yaml(&error);
        vec![fault(at, &message)]
    })?;
    if file.found.faults.is_empty() { Ok(file.found.list) } else { Err(file.found.faults) }
}

impl ListDraft {
    pub(crate) fn push(&mut self, stream: Stream, at: Position) {
        self.streams.push(stream);
        self.marks.push(at);
    }
}

/// A list, or a mapping whose `jobs` is one (k8s-swarm's own configuration).
struct YamlFile {
    found: ParsedStreams,
}

#[derive(Default)]
struct ParsedStreams {
    list: ListDraft,
    faults: Vec<EntryError>,
}

impl<'de> Deserialize<'de> for YamlFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FileVisitor)
    }
}

struct FileVisitor;

impl<'de> Visitor<'de> for FileVisitor {
    type Value = YamlFile;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of streams, or a mapping with the list under `jobs`")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<YamlFile, A::Error> {
        Ok(YamlFile { found: gather(seq, "")? })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<YamlFile, A::Error> {
        let mut jobs = None;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "jobs" => jobs = Some(map.next_value::<JobsField>()?.0),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        match jobs {
            Some(found) => Ok(YamlFile { found }),
            None => Err(serde::de::Error::missing_field("jobs")),
        }
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<YamlFile, E> {
        Ok(YamlFile { found: ParsedStreams::default() })
    }
}

struct JobsField(ParsedStreams);

impl<'de> Deserialize<'de> for JobsField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JobsVisitor)
    }
}

struct JobsVisitor;

impl<'de> Visitor<'de> for JobsVisitor {
    type Value = JobsField;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of streams")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<JobsField, A::Error> {
        gather(seq, "jobs").map(JobsField)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<JobsField, E> {
        Ok(JobsField(ParsedStreams::default()))
    }
}

fn gather<'de, A: SeqAccess<'de>>(
    mut seq: A,
    field: &'static str,
) -> Result<ParsedStreams, A::Error> {
    let mut found = ParsedStreams::default();
    found.list.field = Some(field);
    let mut index = 0;
    while let Some(item) = seq.next_element::<Spanned<Item>>()? {
        let at = Position::from_location(item.referenced);
        match item.value {
            Item::Good(stream) => found.list.push(stream, at),
            Item::Bad(below, message) if found.faults.len() < ENTRY_ERRORS_MAX => {
                let dot = if below.is_empty() { "" } else { "." };
                found.faults.push((at, format!("{field}[{index}]{dot}{below}"), message));
            }
            Item::Bad(..) => {}
        }
        if found.list.streams.len() > limits::STREAMS_MAX {
            return Err(serde::de::Error::custom(too_many()));
        }
        index += 1;
    }
    Ok(found)
}

/// An entry of a list, checked.
pub(crate) enum Item {
    Good(Stream),
    Bad(&'static str, String),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemVisitor)
    }
}

struct ItemVisitor;

impl ItemVisitor {
    fn unquoted(found: impl fmt::Display) -> Item {
        Item::Bad("", format!("is {found}, but must be a stream's name; write it in quotes"))
    }
}

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a stream's name, or a mapping with name, weight and dedicated")
    }

    fn visit_str<E>(self, name: &str) -> Result<Item, E> {
        Ok(match StreamName::new(name) {
            Ok(name) => Item::Good(Stream { name, weight: 1, dedicated: false }),
            Err(error) => Item::Bad("", error.to_string()),
        })
    }

    fn visit_u64<E>(self, value: u64) -> Result<Item, E> {
        Ok(Self::unquoted(format_args!("the number {value}")))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Item, E> {
        Ok(Self::unquoted(format_args!("the number {value}")))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Item, E> {
        Ok(Self::unquoted(format_args!("the number {value}")))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Item, E> {
        Ok(Self::unquoted(format_args!("the boolean {value}")))
    }

    fn visit_unit<E>(self) -> Result<Item, E> {
        Ok(Item::Bad("", "is empty: name a stream, or remove the line".into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Item, A::Error> {
        let entry = StreamEntry::deserialize(MapAccessDeserializer::new(map))?;
        Ok(match check(&entry) {
            Ok(stream) => Item::Good(stream),
            Err((field, message)) => Item::Bad(field, message),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of which some are empty, comments, invalid or indented.
    fn line(rng: &mut fastrand::Rng) -> String {
        let number = rng.u32(0..1_000);
        match rng.u8(0..20) {
            0 => String::new(),
            1 => format!("# {number}"),
            2 => format!("bad\u{7}{number}"),
            3 => format!("  s{number}\r"),
            4 => format!("\u{e4}\u{1d11e}{number} "),
            _ => format!("s{number}"),
        }
    }

    fn text(lines: &[String], rng: &mut fastrand::Rng) -> String {
        let mark = if rng.u8(0..8) == 0 { "\u{feff}" } else { "" };
        let end = if rng.bool() { "\n" } else { "" };
        format!("{mark}{}{end}", lines.join("\n"))
    }

    #[test]
    fn changed_lines_give_what_the_whole_text_gives() {
        let mut rng = fastrand::Rng::with_seed(1);
        let (mut by_changes, mut wrong) = (0, 0);
        for _ in 0..5_000 {
            let count = rng.usize(0..12);
            let mut lines: Vec<String> = (0..count).map(|_| line(&mut rng)).collect();
            let before = text(&lines, &mut rng);
            for _ in 0..rng.usize(0..4) {
                let at = rng.usize(0..=lines.len());
                match rng.u8(0..3) {
                    0 => lines.insert(at, line(&mut rng)),
                    1 if at < lines.len() => _ = lines.remove(at),
                    _ if at < lines.len() => lines[at] = line(&mut rng),
                    _ => {}
                }
            }
            let after = text(&lines, &mut rng);
            let Ok(list) = read(&before, false) else { continue };
            let anew = read(&after, false);
            assert_eq!(
                read_changed_lines(&after, &before, &list),
                anew,
                "from {before:?} to {after:?}"
            );
            let changed = changed_lines(without_mark(&after), without_mark(&before), &list);
            by_changes += u32::from(changed.is_some());
            wrong += u32::from(anew.is_err());
        }
        assert!(by_changes > 1_000 && wrong > 50, "{by_changes} by changes, {wrong} wrong");
    }

    #[test]
    fn unchanged_lines_are_not_read_again() {
        let before = "a\nb\nc\nd\n";
        let list = read(before, false).expect("a list");
        let changed = read_changed_lines("a\nb\nx\ny\nc\nd\n", before, &list).expect("a list");
        let text = |list: &StreamList, at: usize| list.streams[at].name.as_str().as_ptr();
        for (now, then) in [(0, 0), (1, 1), (5, 3)] {
            assert_eq!(text(&changed, now), text(&list, then), "stream {now} shares its name");
        }
    }
}
