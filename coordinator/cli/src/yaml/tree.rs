//! The tree of a document.

use std::collections::BTreeMap;
use std::ops::Range;

/// The most nodes that a document may have when its aliases are followed.
pub(super) const NODES_MAX: usize = 2_000_000;

/// A document of a source.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    /// Its root.
    pub(crate) root: Node,
    /// The line on which it begins, from 1.
    pub(crate) line: usize,
}

/// A node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// What it is.
    pub(crate) kind: Kind,
    /// Its tag in full, where it has one.
    pub(crate) tag: Option<String>,
    /// The number by which aliases refer to it.
    pub(crate) anchor: Option<usize>,
    /// Where it stands; none for one that was not read.
    pub(crate) at: Option<Place>,
    /// Where its source names the alias that it is, or that it is a copy in the place of; none
    /// for a node that was read, and for others.
    pub(crate) alias: Option<Range<usize>>,
}

/// What a node is.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// A text, as it is after folding and escapes.
    Scalar(String, Style),
    /// A list.
    List(Vec<Node>),
    /// A map, with its keys in order.
    Map(Vec<(Node, Node)>),
    /// Another node, by its number.
    Alias(usize),
}

/// The nodes that aliases refer to, by their numbers.
pub(crate) type Anchors<'a> = BTreeMap<usize, &'a Node>;

/// How a scalar is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Without quotes: it may be a number, a truth value or nothing.
    Plain,
    /// In quotes of either kind.
    Quoted,
    /// As a block.
    Block,
    /// A text that was not read: with quotes where it needs them.
    Free,
}

/// Where a node stands in its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its bytes, with its tag and anchor, without space after it.
    pub(crate) range: Range<usize>,
    /// Its line, from 1.
    pub(crate) line: usize,
    /// Whether it is written in brackets or braces.
    pub(crate) flow: bool,
}

impl Node {
    /// A node that was not read.
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, tag: None, anchor: None, at: None, alias: None }
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match &self.kind {
            Kind::Map(entries) => {
                entries.iter().find(|(name, _)| name.text() == Some(key)).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    /// A scalar's text.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar(text, _) => Some(text),
            _ => None,
        }
    }

    /// The values directly below, with their keys where it is a map.
    pub(super) fn children(&self) -> Vec<(Option<&Self>, &Self)> {
        match &self.kind {
            Kind::Scalar(..) | Kind::Alias(_) => Vec::new(),
            Kind::List(items) => items.iter().map(|item| (None, item)).collect(),
            Kind::Map(entries) => entries.iter().map(|(key, it)| (Some(key), it)).collect(),
        }
    }

    /// The nodes directly below, keys before their values.
    pub(super) fn below(&self) -> Vec<&Self> {
        match &self.kind {
            Kind::Scalar(..) | Kind::Alias(_) => Vec::new(),
            Kind::List(items) => items.iter().collect(),
            Kind::Map(entries) => entries.iter().flat_map(|(key, value)| [key, value]).collect(),
        }
    }

    /// The nodes directly below, keys before their values.
    pub(super) fn below_mut(&mut self) -> Vec<&mut Self> {
        match &mut self.kind {
            Kind::Scalar(..) | Kind::Alias(_) => Vec::new(),
            Kind::List(items) => items.iter_mut().collect(),
            Kind::Map(entries) => {
                entries.iter_mut().flat_map(|(key, value)| [key, value]).collect()
            }
        }
    }

    /// The nodes that aliases refer to, by their numbers.
    pub(crate) fn anchors(&self) -> Anchors<'_> {
        let mut all = Anchors::new();
        let mut open = vec![self];
        while let Some(node) = open.pop() {
            all.extend(node.anchor.map(|number| (number, node)));
            open.extend(node.below());
        }
        all
    }

    /// Whether `self` and `other` were read from the same place, or `self` is the copy that comes
    /// in the place of `other`, an alias.
    pub(super) fn is(&self, other: &Self) -> bool {
        let there = other.at.as_ref().map(|place| &place.range);
        let is_copy = matches!(other.kind, Kind::Alias(_)) && self.alias.as_ref() == there;
        self.at.is_some() && self.at == other.at || self.alias.is_some() && is_copy
    }

    /// A copy that stands for itself: aliases are followed, and anchors are gone. `None` where it
    /// grows beyond all bounds, as where it contains itself.
    pub(crate) fn copied(&self, anchors: &Anchors<'_>) -> Option<Self> {
        self.copied_within(anchors, &mut NODES_MAX.clone(), 0)
    }

    fn copied_within(&self, anchors: &Anchors<'_>, left: &mut usize, depth: usize) -> Option<Self> {
        *left = left.checked_sub(1).filter(|_| depth < DEPTH_MAX)?;
        let mut inner = |node: &Self| node.copied_within(anchors, left, depth + 1);
        let kind = match &self.kind {
            Kind::Alias(number) => return inner(anchors.get(number)?),
            Kind::Scalar(text, style) => Kind::Scalar(text.clone(), *style),
            Kind::List(items) => Kind::List(items.iter().map(inner).collect::<Option<_>>()?),
            Kind::Map(entries) => {
                let mut copy = Vec::with_capacity(entries.len());
                for (key, value) in entries {
                    copy.push((inner(key)?, inner(value)?));
                }
                Kind::Map(copy)
            }
        };
        Some(Self { kind, tag: self.tag.clone(), anchor: None, at: self.at.clone(), alias: None })
    }

    /// The same, of no place: it is to be written.
    pub(super) fn placeless(mut self) -> Self {
        self.at = None;
        for node in self.below_mut() {
            let kind = std::mem::replace(&mut node.kind, Kind::Alias(0));
            let tag = node.tag.take();
            *node = Self { kind, tag, anchor: None, at: None, alias: None }.placeless();
        }
        self
    }

    /// Whether both say the same, both without aliases.
    pub(super) fn same(&self, other: &Self) -> bool {
        self.tag == other.tag
            && match (&self.kind, &other.kind) {
                (Kind::Scalar(a, one), Kind::Scalar(b, two)) => {
                    let plain = (*one == Style::Plain, *two == Style::Plain);
                    let free = [*one, *two].contains(&Style::Free);
                    match plain {
                        (true, true) => a == b || (is_null(a) && is_null(b)),
                        (false, false) => a == b,
                        _ => a == b && free && is_surely_text(a),
                    }
                }
                (Kind::List(a), Kind::List(b)) => {
                    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same(b))
                }
                (Kind::Map(a), Kind::Map(b)) => {
                    let same =
                        |(a, b): (&(Self, Self), &(Self, Self))| a.0.same(&b.0) && a.1.same(&b.1);
                    a.len() == b.len() && a.iter().zip(b).all(same)
                }
                _ => false,
            }
    }
}

/// Whether a plain scalar is nothing.
pub(super) fn is_null(text: &str) -> bool {
    ["", "~", "null", "Null", "NULL"].contains(&text)
}

/// Whether a text is one to every reader of YAML, quotes or not.
pub(super) fn is_surely_text(text: &str) -> bool {
    const WORDS: [&str; 8] = ["null", "true", "false", "yes", "no", "on", "off", "y"];
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_./-".contains(&b))
        && !WORDS.iter().any(|word| word.eq_ignore_ascii_case(text))
        && !text.eq_ignore_ascii_case("n")
}

/// How deep nodes may be nested when aliases are followed.
const DEPTH_MAX: usize = 512;
