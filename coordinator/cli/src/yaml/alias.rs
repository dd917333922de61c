//! Aliases that became copies, and come back.
//!
//! A copy that is written in the place of `*name` is preceded by a comment that says so, on the
//! line of its key or its dash. Where such a copy says again what the anchor says, the alias is put
//! back.

use std::collections::BTreeMap;
use std::ops::Range;

use super::cut::Text;
use super::tree::{Anchors, Kind, Node};

/// What the comment begins with; the alias follows, and ends the line.
pub(super) const MARK: &str = "# leasehold: ";

/// The alias that the rest of a line names in a comment of ours.
pub(crate) fn marked(line: &str) -> Option<&str> {
    let (before, alias) = line.rsplit_once(MARK)?;
    let alias = alias.trim_end();
    let is_alias = alias.starts_with('*') && !alias.contains([' ', '\t']);
    (is_alias && before.ends_with([' ', '\t'])).then_some(alias)
}

/// Puts aliases back where a copy is marked, and says what its anchor says.
pub(crate) fn give_back(source: &str, root: &mut Node) {
    let places = {
        let anchors = root.anchors();
        let names = names(source, &anchors);
        let mut found = Vec::new();
        look(source, root, &anchors, &names, &mut found);
        found
    };
    put(root, &places);
}

/// The anchors of each name, in the order of the text: where, and their numbers.
fn names<'a>(source: &'a str, anchors: &Anchors<'_>) -> BTreeMap<&'a str, BTreeMap<usize, usize>> {
    let mut names: BTreeMap<&str, BTreeMap<usize, usize>> = BTreeMap::new();
    for (number, node) in anchors {
        let Some(place) = &node.at else { continue };
        let words = source[place.range.clone()].split_whitespace();
        let mut properties = words.take_while(|word| word.starts_with(['!', '&']));
        if let Some(name) = properties.find_map(|word| word.strip_prefix('&')) {
            names.entry(name).or_default().insert(place.range.start, *number);
        }
    }
    names
}

/// A copy (by where it stands), the alias's text, and the anchor's number.
type Found = (Range<usize>, Range<usize>, usize);

fn look(
    source: &str,
    node: &Node,
    anchors: &Anchors<'_>,
    names: &BTreeMap<&str, BTreeMap<usize, usize>>,
    found: &mut Vec<Found>,
) {
    for (key, value) in node.children() {
        let flow = node.at.as_ref().is_some_and(|place| place.flow);
        let mark = (!flow).then(|| mark(source, key, value)).flatten();
        let back = mark.and_then(|(copy, alias)| {
            let name = source[alias.clone()].strip_prefix('*')?;
            let (_, number) = names.get(name)?.range(..alias.start).next_back()?;
            let anchor = anchors.get(number)?.copied(anchors)?;
            value.copied(anchors)?.same(&anchor).then_some((copy, alias, *number))
        });
        match back {
            Some(back) => found.push(back),
            None => look(source, value, anchors, names, found),
        }
    }
}

/// Where a marked copy stands, and the alias in its comment.
fn mark(source: &str, key: Option<&Node>, value: &Node) -> Option<(Range<usize>, Range<usize>)> {
    let text = Text(source);
    let copy = value.at.as_ref()?.range.clone();
    let start = match key {
        Some(key) => text.colon(key.at.as_ref()?.range.end)? + 1,
        None => text.dash(copy.start)? + 1,
    };
    let alias = marked(&source[start..text.line_end(start)])?;
    let at = start + source[start..].find(alias)?;
    Some((copy, at..at + alias.len()))
}

fn put(node: &mut Node, places: &[Found]) {
    let at = node.at.as_ref().map(|place| &place.range);
    match places.iter().find(|(copy, ..)| Some(copy) == at) {
        Some((_, alias, number)) => {
            let alias = Some(alias.clone());
            let kind = Kind::Alias(*number);
            *node = Node { kind, tag: None, anchor: None, at: node.at.take(), alias };
        }
        None => node.below_mut().into_iter().for_each(|node| put(node, places)),
    }
}

/// How a text says things once that it means several times.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reuse {
    /// How often each alias is used.
    pub(crate) aliases: BTreeMap<String, usize>,
    /// Keys that are written down; those that a map has by merging are not.
    pub(crate) keys: usize,
}

impl Reuse {
    /// Takes in one more document of a source.
    pub(crate) fn count(&mut self, source: &str, root: &Node) {
        let mut open = vec![root];
        while let Some(node) = open.pop() {
            if let (Kind::Alias(_), Some(place)) = (&node.kind, &node.at) {
                let alias = source[place.range.clone()].trim().to_owned();
                *self.aliases.entry(alias).or_default() += 1;
            }
            self.keys += node.children().iter().filter(|(key, _)| key.is_some()).count();
            open.extend(node.below());
        }
    }
}
