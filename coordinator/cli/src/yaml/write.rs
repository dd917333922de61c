//! Writes nodes: as blocks of YAML, or in braces as JSON, which YAML is too.

use super::tree::{Kind, Node, Style, is_surely_text};

/// How a collection in braces is laid out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout<'a> {
    /// What a new line begins with.
    pub(super) indent: &'a str,
    /// How much more it is one level deeper.
    pub(super) step: &'a str,
}

/// Writes a node that comes after a key's colon or an item's dash, from the space on. Lines of a
/// collection begin with `indent` spaces.
pub(super) fn after_key(node: &Node, indent: usize, out: &mut String) {
    match &node.kind {
        Kind::Scalar(text, Style::Plain) if text.is_empty() && node.tag.is_none() => {}
        Kind::Map(entries) if !entries.is_empty() => {
            properties(node, out);
            for entry in entries {
                line(indent, out);
                self::entry(entry, indent, out);
            }
        }
        Kind::List(items) if !items.is_empty() => {
            properties(node, out);
            for item in items {
                line(indent, out);
                self::item(item, indent, out);
            }
        }
        Kind::Scalar(text, Style::Block) if is_plain_block(text) => {
            properties(node, out);
            block(text, indent, out);
        }
        _ => {
            properties(node, out);
            out.push(' ');
            inline(node, false, out);
        }
    }
}

fn line(indent: usize, out: &mut String) {
    out.push('\n');
    out.extend(std::iter::repeat_n(' ', indent));
}

/// Writes a key and its value; the key's column is `indent`.
pub(super) fn entry((key, value): &(Node, Node), indent: usize, out: &mut String) {
    match &key.kind {
        Kind::Scalar(..) => {
            if let Some(tag) = &key.tag {
                out.push_str(&format!("!<{tag}> "));
            }
            inline(key, false, out);
            out.push(':');
        }
        _ => {
            out.push_str("? ");
            in_braces(key, None, out);
            line(indent, out);
            out.push(':');
        }
    }
    after_key(value, indent + 2, out);
}

/// Writes an item with its dash; the dash's column is `indent`.
pub(super) fn item(node: &Node, indent: usize, out: &mut String) {
    out.push('-');
    match &node.kind {
        Kind::Map(entries) if !entries.is_empty() && node.tag.is_none() => {
            for (number, entry) in entries.iter().enumerate() {
                match number {
                    0 => out.push(' '),
                    _ => line(indent + 2, out),
                }
                self::entry(entry, indent + 2, out);
            }
        }
        _ => after_key(node, indent + 2, out),
    }
}

fn properties(node: &Node, out: &mut String) {
    if let Some(tag) = &node.tag {
        out.push_str(&format!(" !<{tag}>"));
    }
}

/// A scalar or an empty collection, on one line.
fn inline(node: &Node, flow: bool, out: &mut String) {
    match &node.kind {
        Kind::Map(_) => out.push_str("{}"),
        Kind::List(_) => out.push_str("[]"),
        Kind::Alias(_) => {}
        Kind::Scalar(text, Style::Plain) if text.is_empty() => out.push_str("null"),
        Kind::Scalar(text, Style::Plain) if !text.contains('\n') => out.push_str(text),
        Kind::Scalar(text, Style::Free) if !flow && is_surely_text(text) => out.push_str(text),
        Kind::Scalar(text, _) if !flow && text.contains('"') && fits_single(text) => {
            out.push('\'');
            out.push_str(&text.replace('\'', "''"));
            out.push('\'');
        }
        Kind::Scalar(text, _) => quoted(text, out),
    }
}

fn fits_single(text: &str) -> bool {
    !text.chars().any(|c| c.is_control() || is_odd(c))
}

/// Characters that some readers of YAML take for line ends, or for nothing.
fn is_odd(c: char) -> bool {
    matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// A text as JSON writes it.
fn quoted(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() || is_odd(c) => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Whether a text can be a block as it is: with text in its first line, and nothing that a block
/// cannot hold.
fn is_plain_block(text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    !first.is_empty()
        && !first.starts_with([' ', '\t'])
        && !text.chars().any(|c| (c.is_control() && c != '\n' && c != '\t') || is_odd(c))
}

fn block(text: &str, indent: usize, out: &mut String) {
    let body = text.trim_end_matches('\n');
    let ends = text.len() - body.len();
    out.push_str(match ends {
        0 => " |-",
        1 => " |",
        _ => " |+",
    });
    for row in body.split('\n') {
        match row.is_empty() {
            true => out.push('\n'),
            false => {
                line(indent, out);
                out.push_str(row);
            }
        }
    }
    out.extend(std::iter::repeat_n('\n', ends.saturating_sub(1)));
}

/// Writes a node as JSON, on one line or laid out.
pub(super) fn in_braces(node: &Node, layout: Option<Layout<'_>>, out: &mut String) {
    if let Some(tag) = &node.tag {
        out.push_str(&format!("!<{tag}> "));
    }
    let (open, close, entries) = match &node.kind {
        Kind::Map(entries) if !entries.is_empty() => {
            ('{', '}', entries.iter().map(|(key, value)| (Some(key), value)).collect::<Vec<_>>())
        }
        Kind::List(items) if !items.is_empty() => {
            ('[', ']', items.iter().map(|item| (None, item)).collect())
        }
        _ => return inline(node, true, out),
    };
    let deeper = layout.map(|layout| format!("{}{}", layout.indent, layout.step));
    let inner = layout.zip(deeper.as_deref());
    let inner = inner.map(|(layout, indent)| Layout { indent, step: layout.step });
    out.push(open);
    for (number, (key, value)) in entries.into_iter().enumerate() {
        out.push_str(match (number, inner) {
            (0, _) => "",
            (_, None) => ", ",
            (_, Some(_)) => ",",
        });
        if let Some(inner) = inner {
            out.push('\n');
            out.push_str(inner.indent);
        }
        if let Some(key) = key {
            in_braces(key, None, out);
            out.push_str(": ");
        }
        in_braces(value, inner, out);
    }
    if let Some(layout) = layout {
        out.push('\n');
        out.push_str(layout.indent);
    }
    out.push(close);
}
