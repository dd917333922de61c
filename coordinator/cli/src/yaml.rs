//! YAML, and so JSON: the documents of a text, what they say, and changes that leave everything
//! around them as it was written.
//!
//! Invariant: a changed document is parsed again, and must have exactly the intended value.

use std::borrow::Cow;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use serde_yaml::localizer::Localizer;
use serde_yaml::{Location, NonFiniteFloatPolicy, Options, UserMessageFormatter};
use yaml_edit::{AsYaml, Mapping, Sequence, YamlFile, YamlNode};

/// The most values in one document, aliases followed.
const NODES_MAX: usize = 2_000_000;
/// How deep values may be nested.
const DEPTH_MAX: usize = 128;
/// The key whose value's keys count as the map's own.
const MERGE_KEY: &str = "<<";
/// At the start of a text: it marks the text as UTF-8 and says nothing.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Why a document cannot be read.
#[derive(Debug)]
pub(crate) struct ParseError {
    /// The line, counted from the document's first, which is 0.
    pub(crate) line: usize,
    /// The problem.
    pub(crate) message: String,
}

/// How much of a document's layout a change kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Everything outside of the change.
    All,
    /// Everything but aliases, which became copies of what they referred to.
    AllButAliases,
    /// Nothing but the values: keys are sorted, and comments are gone.
    Values,
}

/// Where the documents of a text are, each with its markers, directives and comments: together
/// they are the whole text. JSON objects may follow each other with nothing in between.
pub(crate) fn split(text: &str) -> Vec<Range<usize>> {
    json_objects(text).unwrap_or_else(|| split_at_markers(text))
}

/// The objects of a stream of JSON; `None` where the text is anything else.
fn json_objects(text: &str) -> Option<Vec<Range<usize>>> {
    let json = text.trim_start_matches(BYTE_ORDER_MARK);
    let skipped = text.len() - json.len();
    let mut objects = serde_json::Deserializer::from_str(json).into_iter::<IgnoredAny>();
    let mut all: Vec<Range<usize>> = Vec::new();
    while let Some(object) = objects.next() {
        object.ok()?;
        let start = all.last().map_or(0, |before| before.end);
        all.push(start..skipped + objects.byte_offset());
    }
    all.last_mut()?.end = text.len();
    json.trim_start().starts_with('{').then_some(all)
}

/// A line that begins with `---` or `...` is a marker at any place, also in a block of text.
fn split_at_markers(text: &str) -> Vec<Range<usize>> {
    let mut all = Vec::new();
    let (mut start, mut end) = (0, 0);
    // Whether the document has begun: comments and directives come before its marker.
    let mut has_begun = false;
    for line in text.split_inclusive('\n') {
        if is_marker(line, "---") && has_begun {
            all.push(start..end);
            start = end;
        }
        end += line.len();
        if is_marker(line, "...") && has_begun {
            all.push(start..end);
            start = end;
            has_begun = false;
        } else {
            let is_before = line.trim().is_empty() || line.trim_start().starts_with(['#', '%']);
            has_begun |= !is_before;
        }
    }
    match all.last_mut() {
        Some(last) if !has_begun => last.end = end,
        _ => all.push(start..end),
    }
    all
}

fn is_marker(line: &str, marker: &str) -> bool {
    let rest = line.trim_start_matches(BYTE_ORDER_MARK).strip_prefix(marker);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

/// What one document says: null where it is empty. Aliases and merged keys are followed.
pub(crate) fn parse(document: &str) -> Result<Value, ParseError> {
    let all = serde_yaml::from_multiple_with_options::<Value>(document, options());
    let mut all = all.map_err(|error| ParseError {
        line: error
            .location()
            .and_then(|at| usize::try_from(at.line()).ok())
            .map_or(0, |line| line.saturating_sub(1)),
        message: error
            .without_snippet()
            .render_with_formatter(&UserMessageFormatter.with_localizer(&WithoutLocation)),
    })?;
    Ok(all.pop().unwrap_or_default())
}

fn options() -> Options {
    serde_yaml::options! {
        budget: serde_yaml::budget! {
            max_depth: DEPTH_MAX,
            flow_nesting_limit: DEPTH_MAX,
            max_nodes: NODES_MAX,
            max_events: NODES_MAX * 2,
            enforce_alias_anchor_ratio: false,
        },
        ignore_binary_tag_for_string: true,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    }
}

/// Leaves the place out of messages of the parser: [`ParseError`] has the line.
struct WithoutLocation;

impl Localizer for WithoutLocation {
    fn attach_location<'a>(&self, base: Cow<'a, str>, _: Location) -> Cow<'a, str> {
        base
    }
}

/// The line, counted from 0, of as much of a path as a document has; an index is a step too.
pub(crate) fn line_of(document: &str, path: &[String]) -> usize {
    let Some((_, mut here)) = quietly(|| root(document)) else { return 0 };
    let mut start = here.byte_range().start;
    for step in path {
        let (named, value) = match (mapping(&here), sequence(&here)) {
            (Some(map), _) => {
                let entry = map.find_entry_by_key(step.as_str());
                (
                    entry.as_ref().and_then(|entry| entry.key_node()),
                    entry.and_then(|entry| entry.value_node()),
                )
            }
            (_, Some(list)) => {
                let item = step.parse().ok().and_then(|index| list.get(index));
                (item.clone(), item)
            }
            (None, None) => (None, None),
        };
        let Some(named) = named else { break };
        start = named.byte_range().start;
        let Some(value) = value else { break };
        here = value;
    }
    let before = usize::try_from(start).ok().and_then(|start| document.get(..start));
    before.unwrap_or_default().matches('\n').count()
}

/// A document that says `before`, changed so that it says `after`.
pub(crate) fn rewrite(document: &str, before: &Value, after: &Value) -> (String, Kept) {
    let is_json = json_objects(document).is_some();
    for kept in [Kept::All, Kept::AllButAliases] {
        let edited = quietly(|| {
            let (file, root) = root(document)?;
            if kept == Kept::AllButAliases {
                expand(&root, before)?;
            }
            change(&root, before, after, is_json)?.then(|| file.to_string())
        });
        let is_right = |text: &String| {
            let is_as_before = !is_json || serde_json::from_str::<IgnoredAny>(text).is_ok();
            is_as_before && parse(text).is_ok_and(|said| said == *after)
        };
        // The next document must not run into this one.
        let ends_as_before = |text: &String| text.ends_with('\n') || !document.ends_with('\n');
        if let Some(text) = edited.filter(ends_as_before).filter(is_right) {
            return (text, kept);
        }
    }
    let start = if document.starts_with("---") { "---\n" } else { "" };
    let has_end = !is_json && document.lines().any(|line| is_marker(line, "..."));
    let end = if has_end { "...\n" } else { "" };
    (format!("{start}{}{end}", written(after, is_json)), Kept::Values)
}

/// Whether a document ends within a block of text and without a line break: `kubectl` then reads a
/// text without a line break at its end, and adds one where the document goes on.
pub(crate) fn ends_in_open_block(document: &str) -> bool {
    let longer = format!("{document} #");
    !document.ends_with('\n') && parse(document).ok() != parse(&longer).ok()
}

/// What `edit` returns; `None` also if the editor panics, which prints nothing.
fn quietly<T>(edit: impl FnOnce() -> Option<T>) -> Option<T> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let done = catch_unwind(AssertUnwindSafe(edit));
    std::panic::set_hook(hook);
    done.ok().flatten()
}

fn root(document: &str) -> Option<(YamlFile, YamlNode)> {
    let file = YamlFile::from_str(document).ok()?;
    let root = file.documents().find_map(|document| document.value_node())?;
    Some((file, YamlNode::from_syntax(root)?))
}

fn mapping(node: &YamlNode) -> Option<Mapping> {
    node.as_mapping().cloned().or_else(|| node.as_tagged()?.as_mapping())
}

fn sequence(node: &YamlNode) -> Option<Sequence> {
    node.as_sequence().cloned().or_else(|| node.as_tagged()?.as_sequence())
}

/// Puts a copy in the place of every alias, and makes merged keys the map's own.
fn expand(node: &YamlNode, value: &Value) -> Option<()> {
    match value {
        Value::Object(values) => {
            let map = mapping(node)?;
            for entry in map.entries().collect::<Vec<_>>() {
                let key = entry.key_node()?;
                let name = key.as_scalar()?.as_string();
                match entry.value_node() {
                    _ if name == MERGE_KEY && !values.contains_key(MERGE_KEY) => {}
                    Some(value) if value.is_alias() => {
                        map.set(&key, new_node(values.get(&name)?, false)?);
                    }
                    Some(value) => expand(&value, values.get(&name)?)?,
                    None => {}
                }
            }
            if map.contains_key(MERGE_KEY) && !values.contains_key(MERGE_KEY) {
                for (key, value) in values.iter().filter(|(key, _)| !map.contains_key(&***key)) {
                    map.set(key.as_str(), new_node(value, false)?);
                }
                map.remove(MERGE_KEY)?;
            }
        }
        Value::Array(values) => {
            let list = sequence(node)?;
            for (index, value) in values.iter().enumerate() {
                match list.get(index)? {
                    item if item.is_alias() => {
                        list.set(index, new_node(value, false)?).then_some(())?;
                    }
                    item => expand(&item, value)?,
                }
            }
        }
        _ => {}
    }
    Some(())
}

/// Changes a node that says `before` where `after` differs. False where nothing of it stays, so
/// that it has to be replaced as a whole; `None` where the document has no such node.
fn change(node: &YamlNode, before: &Value, after: &Value, is_json: bool) -> Option<bool> {
    match (before, after) {
        (before, after) if before == after => Some(true),
        (Value::Object(before), Value::Object(after)) => {
            change_map(&mapping(node)?, before, after, is_json)
        }
        (Value::Array(before), Value::Array(after)) => {
            change_list(&sequence(node)?, before, after, is_json)
        }
        _ => Some(false),
    }
}

fn change_map(
    map: &Mapping,
    before: &Map<String, Value>,
    after: &Map<String, Value>,
    is_json: bool,
) -> Option<bool> {
    if !before.keys().any(|key| after.contains_key(key)) {
        return Some(false);
    }
    for (key, value) in after {
        let is_done = match before.get(key) {
            Some(before) if before == value => true,
            Some(before) => change(&map.get(key.as_str())?, before, value, is_json)?,
            None => false,
        };
        let new = if is_done { None } else { Some(new_node(value, is_json)?) };
        match (new, before.contains_key(key), map.entries().last()) {
            (None, ..) => {}
            // In braces the last key stays the last one: space before the brace belongs to it.
            (Some(new), false, Some(last)) if map.is_flow_style() => {
                map.insert_before(last.key_node()?, key.as_str(), new).then_some(())?;
            }
            (Some(new), ..) => map.set(key.as_str(), new),
        }
    }
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        map.remove(key.as_str())?;
    }
    Some(true)
}

fn change_list(list: &Sequence, before: &[Value], after: &[Value], is_json: bool) -> Option<bool> {
    let origins = origins(before, after);
    if origins.iter().all(Option::is_none) {
        return Some(false);
    }
    // From the end, so that the indexes of what comes before stay.
    let mut following = before.len();
    for (item, origin) in after.iter().zip(&origins).rev() {
        match *origin {
            None => list.insert(following, new_node(item, is_json)?),
            Some(index) => {
                if !change(&list.get(index)?, &before[index], item, is_json)? {
                    list.set(index, new_node(item, is_json)?).then_some(())?;
                }
                for gone in (index + 1..following).rev() {
                    list.remove(gone)?;
                }
                following = index;
            }
        }
    }
    for gone in (0..following).rev() {
        list.remove(gone)?;
    }
    Some(true)
}

/// For each item after a change its index before it, in ascending order; `None` for a new item.
fn origins(before: &[Value], after: &[Value]) -> Vec<Option<usize>> {
    // The common end first: a word put before a command may equal one of the command's own words.
    let pairs = before.iter().rev().zip(after.iter().rev());
    let kept = pairs.take_while(|(old, item)| is_same_item(old, item)).count();
    let (changed, new) = (before.len() - kept, after.len() - kept);
    let mut next = 0;
    let in_changed = after[..new].iter().map(|item| {
        let found = before[next..changed].iter().position(|old| is_same_item(old, item))? + next;
        next = found + 1;
        Some(found)
    });
    let mut origins: Vec<Option<usize>> = in_changed.collect();
    origins.extend((changed..before.len()).map(Some));
    origins
}

/// Whether an item became the other one: items of lists have names, and objects have metadata.
fn is_same_item(old: &Value, new: &Value) -> bool {
    let identity =
        |item: &Value| [&item["name"], &item["kind"], &item["metadata"]["name"]].map(Value::clone);
    old == new || old.is_object() && new.is_object() && identity(old) == identity(new)
}

/// A value as a node that can be put into a document.
fn new_node(value: &Value, is_json: bool) -> Option<YamlNode> {
    let (_, holder) = root(&written(&serde_json::json!({ "value": value }), is_json))?;
    mapping(&holder)?.get("value")
}

fn written(value: &Value, is_json: bool) -> String {
    if is_json {
        format!("{value:#}\n")
    } else {
        serde_yaml::to_string(value).unwrap_or_else(|_| format!("{value:#}\n"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn splits_documents_only_at_markers() {
        for documents in [
            vec!["a: 1\n", "---\nb: 1\n"],
            vec!["# c\n---\na: 1\n", "--- # c\n", "---\n"],
            vec!["\u{feff}---\r\na: |\r\n  ---\r\n---x: 1\r\n", "--- b\r\n"],
            vec!["%YAML 1.2\n---\na: 1\n...\n", "# c\n%YAML 1.2\n---\nb: 1\n... # end\n# tail\n"],
            vec![""],
            vec!["# nothing\n"],
            vec!["{\"a\": \"---\"}", "\n{\"b\": 1}\n"],
            vec!["{a: 1}\n", "---\n{b: 1}\n"],
        ] {
            let text = documents.concat();
            let found: Vec<&str> = split(&text).into_iter().map(|range| &text[range]).collect();
            assert_eq!(found, documents);
        }
    }

    #[test]
    fn finds_the_line_of_the_deepest_existing_step() {
        let document = "a:\n  b:\n    - c: 1\n    - x.y/z: 2\n";
        let line = |path: &[&str]| {
            line_of(document, &path.iter().map(|step| (*step).into()).collect::<Vec<_>>())
        };
        assert_eq!(line(&["a"]), 0);
        assert_eq!(line(&["a", "b", "1"]), 3);
        assert_eq!(line(&["a", "b", "1", "x.y/z"]), 3);
        assert_eq!(line(&["a", "b", "7", "c"]), 1);
        assert_eq!(line(&["nowhere"]), 0);
    }

    #[test]
    fn keeps_as_much_of_the_layout_as_possible() {
        let cases = [
            ("a: {b: 1} # c\nd: 2\n", Kept::All, "a: {e: 3, b: 1} # c\nd: 2\n"),
            (
                "a: &x {b: 1} # c\nd: *x\n",
                Kept::AllButAliases,
                "a: &x {e: 3, b: 1} # c\nd:\n  b: 1\n",
            ),
            // An alias as a key is rare, and the editor cannot name it.
            (
                "---\na: &x {b: 1} # c\nd: *x\nf: {g: &g h, *g : 1}\n... # end\n",
                Kept::Values,
                "---\na:\n  b: 1\n  e: 3\nd:\n  b: 1\nf:\n  g: h\n  h: 1\n...\n",
            ),
        ];
        for (document, kept, wanted) in cases {
            let before = parse(document).expect("YAML");
            let mut after = before.clone();
            after["a"]["e"] = json!(3);
            assert_eq!(rewrite(document, &before, &after), (wanted.to_owned(), kept));
        }
    }

    #[test]
    fn keeps_the_layout_of_words_that_are_also_put_before_them() {
        let document = "- a # c\n- -- # d\n";
        let before = parse(document).expect("YAML");
        let after = json!(["x", "--", "a", "--"]);
        let (text, kept) = rewrite(document, &before, &after);
        assert_eq!((text.as_str(), kept), ("- x\n- --\n- a # c\n- -- # d\n", Kept::All));
        assert_eq!(rewrite(&text, &after, &before), (document.to_owned(), Kept::All));
    }

    #[test]
    fn detects_a_block_scalar_at_the_end_of_a_document() {
        for (document, is_open) in
            [("a: |\n  x", true), ("a: |\n  x\n", false), ("a: x", false), ("a: 'x'", false)]
        {
            assert_eq!(ends_in_open_block(document), is_open, "{document:?}");
        }
    }
}
