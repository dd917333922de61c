//! Brings a source to what changed trees say, by cutting and pasting just there.

use super::alias::{MARK, marked};
use super::cut::{Cut, Text, paste};
use super::read::read;
use super::tree::{Document, Kind, Node};
use super::write::{Layout, after_key, entry, in_braces, item};

/// The source, with each changed document (its index and new root) as it is now. What comes out
/// has been read again, and says what the trees say.
///
/// # Errors
/// The index of a document that cannot be written so that it reads the same.
pub(crate) fn rewrite(
    source: &str,
    documents: &[Document],
    changed: &[(usize, Node)],
) -> Result<String, usize> {
    let mut cuts: Vec<Vec<Cut>> = Vec::new();
    for (index, new) in changed {
        let old = &documents[*index].root;
        cuts.push(in_place(source, old, new).unwrap_or_else(|| vec![whole(source, old, new)]));
    }
    let said = |cuts: &[Vec<Cut>]| {
        let out = paste(source, cuts.iter().flatten())?;
        let wrong = wrong(&out, documents.len(), changed)?;
        Some((out, wrong))
    };
    match said(&cuts) {
        Some((out, wrong)) if wrong.is_empty() => return Ok(out),
        Some((_, wrong)) => replace(source, documents, changed, &mut cuts, &wrong),
        // It cannot be read at all: each document is tried alone.
        None => {
            let alone = |number: &usize| {
                let one = std::slice::from_ref(&changed[*number]);
                let out = paste(source, cuts[*number].iter());
                let wrong = out.and_then(|out| self::wrong(&out, documents.len(), one));
                wrong.is_none_or(|wrong| !wrong.is_empty())
            };
            let wrong: Vec<usize> = (0..changed.len()).filter(alone).collect();
            replace(source, documents, changed, &mut cuts, &wrong);
        }
    }
    match said(&cuts) {
        Some((out, wrong)) if wrong.is_empty() => Ok(out),
        Some((_, wrong)) => Err(changed[wrong[0]].0),
        None => Err(changed.first().map_or(0, |(index, _)| *index)),
    }
}

/// Writes some of the changed documents anew.
fn replace(
    source: &str,
    documents: &[Document],
    changed: &[(usize, Node)],
    cuts: &mut [Vec<Cut>],
    which: &[usize],
) {
    for number in which {
        let (index, new) = &changed[*number];
        cuts[*number] = vec![whole(source, &documents[*index].root, new)];
    }
}

/// Which of the changed documents a text does not say; none where it cannot be read.
fn wrong(text: &str, documents: usize, changed: &[(usize, Node)]) -> Option<Vec<usize>> {
    let read = read(text).ok().filter(|read| read.len() == documents)?;
    let is_wrong = |number: &usize| {
        let (index, wanted) = &changed[*number];
        let copy = |node: &Node| node.copied(&node.anchors());
        let both = copy(&read[*index].root).zip(copy(wanted));
        !both.is_some_and(|(there, wanted)| there.same(&wanted))
    };
    Some((0..changed.len()).filter(is_wrong).collect())
}

/// A document written anew.
fn whole(source: &str, old: &Node, new: &Node) -> Cut {
    let text = Text(source);
    let range = old.at.as_ref().map(|place| place.range.clone()).unwrap_or_default();
    let start = match text.is_first(range.start) {
        true => text.line_start(range.start),
        false => range.start,
    };
    let copy = new.copied(&new.anchors()).map(Node::placeless);
    let mut out = String::new();
    after_key(copy.as_ref().unwrap_or(new), 0, &mut out);
    let from = usize::from(text.is_first(range.start));
    Cut { range: start..range.end, text: out.get(from..).unwrap_or_default().to_owned() }
}

fn in_place(source: &str, old: &Node, new: &Node) -> Option<Vec<Cut>> {
    let mut splicer = Splicer { text: Text(source), cuts: Vec::new() };
    if !new.is(old) || is_hollow(old, new) {
        return None;
    }
    splicer.walk(old, new)?;
    Some(splicer.cuts)
}

/// A key with its value, or an item.
#[derive(Clone, Copy)]
struct Child<'a> {
    key: Option<&'a Node>,
    value: &'a Node,
}

impl Child<'_> {
    fn is(&self, other: &Child<'_>) -> bool {
        match (self.key, other.key) {
            (Some(key), Some(other)) => key.is(other),
            _ => self.value.is(other.value),
        }
    }
}

fn children(node: &Node) -> Vec<Child<'_>> {
    match &node.kind {
        Kind::Map(entries) => {
            entries.iter().map(|(key, value)| Child { key: Some(key), value }).collect()
        }
        Kind::List(items) => items.iter().map(|value| Child { key: None, value }).collect(),
        Kind::Scalar(..) | Kind::Alias(_) => Vec::new(),
    }
}

/// Whether nothing of a collection is left to hold on to.
fn is_hollow(old: &Node, new: &Node) -> bool {
    let (old, new) = (children(old), children(new));
    (!old.is_empty() || !new.is_empty()) && !new.iter().any(|new| old.iter().any(|old| new.is(old)))
}

struct Splicer<'a> {
    text: Text<'a>,
    cuts: Vec<Cut>,
}

impl Splicer<'_> {
    fn cut(&mut self, range: std::ops::Range<usize>, text: impl Into<String>) {
        self.cuts.push(Cut { range, text: text.into() });
    }

    /// Both are the same node, and something of it is left.
    fn walk(&mut self, old: &Node, new: &Node) -> Option<()> {
        let flow = old.at.as_ref()?.flow;
        let (before, after) = (children(old), children(new));
        // Where each new child was.
        let mut origin = Vec::with_capacity(after.len());
        let mut from = 0;
        for child in &after {
            let found = before[from..].iter().position(|old| child.is(old)).map(|at| from + at);
            from = found.map_or(from, |at| at + 1);
            origin.push(found);
        }
        for (child, at) in after.iter().zip(&origin) {
            let Some(old) = at.map(|at| before[at]) else { continue };
            let stays = child.value.alias.is_none() && child.value.is(old.value);
            match stays && !is_hollow(old.value, child.value) {
                true => self.walk(old.value, child.value)?,
                false => self.replace(old, child.value, flow)?,
            }
        }
        self.remove(&before, &origin, flow)?;
        self.insert(&before, &after, &origin, flow)
    }

    /// Where a child begins: a key, or the dash of an item.
    fn start(&self, child: Child<'_>, flow: bool) -> Option<usize> {
        let node = child.key.unwrap_or(child.value);
        let start = node.at.as_ref()?.range.start;
        match child.key.is_none() && !flow {
            true => self.text.dash(start),
            false => Some(start),
        }
    }

    fn end(&self, child: Child<'_>, flow: bool) -> Option<usize> {
        let value = &child.value.at.as_ref()?.range;
        match child.key {
            _ if !value.is_empty() => Some(value.end),
            Some(key) => self.text.colon(key.at.as_ref()?.range.end).map(|colon| colon + 1),
            None if flow => Some(value.end),
            None => self.text.dash(value.start).map(|dash| dash + 1),
        }
    }

    /// What an alias that comes back, or a copy in the place of one, is marked with.
    fn alias(&self, new: &Node) -> Option<&str> {
        self.text.0.get(new.alias.clone()?).map(str::trim)
    }

    /// Writes on the first line of a block which alias it is a copy of. What has one line only has
    /// no place for that.
    fn mark(&self, old: Child<'_>, new: &Node, start: usize, out: &mut String) -> Option<()> {
        let line = &self.text.0[start..self.text.line_end(start)];
        // A copy that is written anew stays one.
        let before = old.value.at.as_ref()?.range.start;
        let kept = marked(line).filter(|_| before > start + line.len());
        let alias = self.alias(new).or(kept)?;
        match (old.key, out.find('\n')) {
            (Some(_), Some(at)) => out.insert_str(at, &format!("  {MARK}{alias}")),
            (None, Some(_)) if out.starts_with("- ") => {
                let indent = " ".repeat(self.text.column(start) + 2);
                out.replace_range(1..2, &format!("  {MARK}{alias}\n{indent}"));
            }
            (None, Some(at)) => out.insert_str(at, &format!("  {MARK}{alias}")),
            (_, None) => {}
        }
        Some(())
    }

    fn replace(&mut self, old: Child<'_>, new: &Node, flow: bool) -> Option<()> {
        let end = self.end(old, flow)?;
        let mut out = String::new();
        let back = self.alias(new).filter(|_| matches!(new.kind, Kind::Alias(_)));
        let start = match (old.key, flow) {
            (Some(key), _) => self.text.colon(key.at.as_ref()?.range.end)? + 1,
            (None, _) => self.start(old, flow)?,
        };
        match (old.key, flow, back) {
            (Some(_), _, Some(alias)) => out.push_str(&format!(" {alias}")),
            (None, _, Some(alias)) => out.push_str(&format!("- {alias}")),
            (Some(_), true, None) => {
                out.push(' ');
                in_braces(new, None, &mut out);
            }
            (Some(key), false, None) => {
                let column = self.text.column(key.at.as_ref()?.range.start);
                after_key(new, column + 2, &mut out);
            }
            (None, true, None) => in_braces(new, None, &mut out),
            (None, false, None) => item(new, self.text.column(start), &mut out),
        }
        if back.is_none() && !flow {
            self.mark(old, new, start, &mut out);
        }
        self.cut(start..end, out);
        Some(())
    }

    /// Takes out the children that are not there any more, run by run.
    fn remove(&mut self, old: &[Child<'_>], origin: &[Option<usize>], flow: bool) -> Option<()> {
        let kept: Vec<usize> = origin.iter().flatten().copied().collect();
        let mut first = 0;
        for next in kept.iter().copied().chain([old.len()]) {
            if first < next {
                self.remove_run(old, first, next, flow)?;
            }
            first = next + 1;
        }
        Some(())
    }

    fn remove_run(
        &mut self,
        old: &[Child<'_>],
        first: usize,
        next: usize,
        flow: bool,
    ) -> Option<()> {
        let start = self.start(old[first], flow)?;
        let end = self.end(old[next - 1], flow)?;
        let before = match first.checked_sub(1) {
            Some(before) => Some(self.end(old[before], flow)?),
            None => None,
        };
        let following = match old.get(next) {
            Some(child) => Some(self.start(*child, flow)?),
            None => None,
        };
        let range = match (flow, following) {
            (true, Some(following)) => start..following,
            (true, None) => before?..end,
            (false, _) if self.text.is_first(start) => {
                self.text.line_start(start)..self.text.next_line(end)
            }
            (false, following) => start..following?,
        };
        self.cut(range, "");
        Some(())
    }

    /// Puts in the children that are new.
    fn insert(
        &mut self,
        old: &[Child<'_>],
        new: &[Child<'_>],
        origin: &[Option<usize>],
        flow: bool,
    ) -> Option<()> {
        let mut waiting: Vec<Child<'_>> = Vec::new();
        for (child, at) in new.iter().zip(origin) {
            match at {
                None => waiting.push(*child),
                Some(at) if !waiting.is_empty() => {
                    let before = old[*at];
                    match flow {
                        true => self.paste_in_braces(&waiting, before, true)?,
                        false => self.paste_before(&waiting, before)?,
                    }
                    waiting.clear();
                }
                Some(_) => {}
            }
        }
        if waiting.is_empty() {
            return Some(());
        }
        let kept = new.iter().zip(origin).rev().find(|(_, at)| at.is_some());
        let (now, at) = kept.and_then(|(now, at)| Some((*now, (*at)?)))?;
        let last = old[at];
        match flow {
            true => self.paste_in_braces(&waiting, last, false),
            false => {
                let end = self.kept_end(last, now)?;
                self.paste_after(&waiting, last, end)
            }
        }
    }

    /// Where what is left of a child ends.
    fn kept_end(&self, old: Child<'_>, new: Child<'_>) -> Option<usize> {
        let flow = old.value.at.as_ref()?.flow;
        if flow || !new.value.is(old.value) || is_hollow(old.value, new.value) {
            return self.end(old, false);
        }
        let (before, after) = (children(old.value), children(new.value));
        for new in after.iter().rev() {
            if let Some(old) = before.iter().find(|old| new.is(old)) {
                return self.kept_end(*old, *new);
            }
        }
        self.end(old, false)
    }

    fn one(child: Child<'_>, column: usize, out: &mut String) {
        match child.key {
            Some(key) => entry(&(key.clone(), child.value.clone()), column, out),
            None => item(child.value, column, out),
        }
    }

    fn paste_before(&mut self, new: &[Child<'_>], before: Child<'_>) -> Option<()> {
        let start = self.start(before, false)?;
        let column = self.text.column(start);
        let indent = " ".repeat(column);
        let mut out = String::new();
        let at = match self.text.is_first(start) {
            true => {
                for child in new {
                    out.push_str(&indent);
                    Self::one(*child, column, &mut out);
                    out.push('\n');
                }
                self.text.line_start(start)
            }
            false => {
                for child in new {
                    Self::one(*child, column, &mut out);
                    out.push('\n');
                    out.push_str(&indent);
                }
                start
            }
        };
        self.cut(at..at, out);
        Some(())
    }

    fn paste_after(&mut self, new: &[Child<'_>], last: Child<'_>, end: usize) -> Option<()> {
        let column = self.text.column(self.start(last, false)?);
        let mut lines = String::new();
        for (number, child) in new.iter().enumerate() {
            lines.push_str(if number > 0 { "\n" } else { "" });
            lines.push_str(&" ".repeat(column));
            Self::one(*child, column, &mut lines);
        }
        match self.text.begins_line(end) {
            true => self.cut(end..end, lines + "\n"),
            false => {
                let at = self.text.line_end(end);
                self.cut(at..at, format!("\n{lines}"));
            }
        }
        Some(())
    }

    fn paste_in_braces(&mut self, new: &[Child<'_>], by: Child<'_>, before: bool) -> Option<()> {
        let start = self.start(by, true)?;
        let at = if before { start } else { self.end(by, true)? };
        let indent = self.text.is_first(start).then(|| self.text.leading(start));
        let step = indent.map(|indent| self.text.step(start, indent));
        let layout = indent.zip(step.as_deref()).map(|(indent, step)| Layout { indent, step });
        let between = layout.map_or(", ".to_owned(), |layout| format!(",\n{}", layout.indent));
        let mut out = String::new();
        for child in new {
            out.push_str(if before { "" } else { &between });
            if let Some(key) = child.key {
                in_braces(key, None, &mut out);
                out.push_str(": ");
            }
            in_braces(child.value, layout, &mut out);
            out.push_str(if before { &between } else { "" });
        }
        self.cut(at..at, out);
        Some(())
    }
}
