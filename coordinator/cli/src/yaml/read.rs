//! Reads a source into trees.

use granit_parser::{Event, Parser, ScalarStyle, Span, StructureStyle, Tag, options};

use super::tree::{Document, Kind, NODES_MAX, Node, Place, Style};

/// Why a source cannot be read, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The line, from 1.
    pub(crate) line: usize,
    /// The number of the document, from 1.
    pub(crate) document: usize,
    /// What is wrong.
    pub(crate) what: String,
}

/// Reads all documents.
pub(crate) fn read(source: &str) -> Result<Vec<Document>, Problem> {
    let mut options = options! { emit_anchor_events: true };
    options.set_emit_comments(false);
    let mut reader =
        Reader { source, documents: Vec::new(), open: Vec::new(), nodes: 0, last: 0, line: 1 };
    for next in Parser::new_from_str_with_options(source, options) {
        let (event, span) = next.map_err(|error| {
            let what = error.info().to_owned();
            reader.problem(error.marker().line(), what)
        })?;
        reader.take(event, &span)?;
    }
    Ok(reader.documents)
}

struct Reader<'a> {
    source: &'a str,
    documents: Vec<Document>,
    /// Collections that are not over, each with the key that waits for its value.
    open: Vec<(Node, Option<Node>)>,
    nodes: usize,
    /// Where the last node ended.
    last: usize,
    /// Where the document began.
    line: usize,
}

impl Reader<'_> {
    fn problem(&self, line: usize, what: String) -> Problem {
        Problem { line, document: self.documents.len() + 1, what }
    }

    fn take(&mut self, event: Event<'_>, span: &Span) -> Result<(), Problem> {
        match event {
            Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
            Event::DocumentStart(..) => self.line = span.start.line(),
            Event::Anchor(number, _) => self.anchor(number, span),
            Event::Alias(number) => {
                let node = self.node(Kind::Alias(number), None, span, false)?;
                self.close(node);
            }
            Event::Scalar(text, style, anchor, tag) => {
                let mut node = self.scalar(&text, style, tag.as_deref(), span)?;
                node.anchor = (anchor > 0).then_some(anchor);
                self.close(node);
            }
            Event::SequenceStart(style, anchor, tag) => {
                let flow = style == StructureStyle::Flow;
                let mut node = self.node(Kind::List(Vec::new()), tag.as_deref(), span, flow)?;
                node.anchor = (anchor > 0).then_some(anchor);
                self.open.push((node, None));
            }
            Event::MappingStart(style, anchor, tag) => {
                let flow = style == StructureStyle::Flow;
                let mut node = self.node(Kind::Map(Vec::new()), tag.as_deref(), span, flow)?;
                node.anchor = (anchor > 0).then_some(anchor);
                self.open.push((node, None));
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some((mut node, _)) = self.open.pop() {
                    self.end(&mut node, span);
                    self.close(node);
                }
            }
            other => {
                let what = format!("{other:?} is not understood here");
                return Err(self.problem(span.start.line(), what));
            }
        }
        Ok(())
    }

    fn node(
        &mut self,
        kind: Kind,
        tag: Option<&Tag>,
        span: &Span,
        flow: bool,
    ) -> Result<Node, Problem> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            let what = format!("there are more than {NODES_MAX} values");
            return Err(self.problem(span.start.line(), what));
        }
        let start = span.start.byte_offset().unwrap_or(0);
        let end = span.end.byte_offset().unwrap_or(start);
        let tagged = span.tag_start.and_then(|mark| mark.byte_offset());
        let begin = tagged.map_or(start, |tagged| tagged.min(start));
        self.last = end;
        Ok(Node {
            kind,
            tag: tag.map(|tag| format!("{}{}", tag.handle(), tag.suffix())),
            anchor: None,
            at: Some(Place { range: begin..end, line: span.start.line(), flow }),
            alias: None,
        })
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        span: &Span,
    ) -> Result<Node, Problem> {
        let style = match style {
            ScalarStyle::Plain => Style::Plain,
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => Style::Quoted,
            ScalarStyle::Literal | ScalarStyle::Folded => Style::Block,
        };
        // Where the source ends with the text, no line end is part of it.
        let unended = style == Style::Block
            && !self.source.ends_with('\n')
            && span.end.byte_offset() == Some(self.source.len());
        let text = if unended { text.strip_suffix('\n').unwrap_or(text) } else { text };
        let mut node = self.node(Kind::Scalar(text.into(), style), tag, span, false)?;
        let Some(place) = &mut node.at else { return Ok(node) };
        let content = span.start.byte_offset().unwrap_or(0)..place.range.end;
        match style {
            // What is left out reads as `~`.
            Style::Plain if content.is_empty() => node.kind = Kind::Scalar(String::new(), style),
            // A block reaches to the next token; empty lines at its end may be part of it.
            Style::Block if !text.ends_with("\n\n") && text != "\n" => {
                let block = &self.source[content.clone()];
                place.range.end = content.start + block.trim_end().len();
            }
            // Those that are end where the next line begins.
            Style::Block => {
                let block = &self.source[content.clone()];
                let lines = block.trim_end_matches([' ', '\t']);
                let ends = if lines.ends_with('\n') { lines.len() } else { block.len() };
                place.range.end = content.start + ends;
            }
            _ => {}
        }
        if style == Style::Block {
            let header = header(&self.source[..content.start]);
            place.range.start = place.range.start.min(header.unwrap_or(content.start));
        }
        self.last = place.range.end;
        Ok(node)
    }

    /// An anchor comes after its node's event, and before what is in the node.
    fn anchor(&mut self, number: usize, span: &Span) {
        let begin = span.start.byte_offset().unwrap_or(0);
        let newest = match self.open.last_mut() {
            Some((node, _)) if node.anchor == Some(number) => Some(node),
            Some((node, waiting)) => match &mut node.kind {
                Kind::List(items) => items.last_mut(),
                Kind::Map(entries) => waiting.as_mut().or(entries.last_mut().map(|(_, it)| it)),
                Kind::Scalar(..) | Kind::Alias(_) => None,
            },
            None => self.documents.last_mut().map(|document| &mut document.root),
        };
        if let Some(place) = newest.and_then(|node| node.at.as_mut()) {
            place.range.start = place.range.start.min(begin);
        }
    }

    fn end(&mut self, node: &mut Node, span: &Span) {
        let Some(place) = &mut node.at else { return };
        if place.flow {
            self.last = span.end.byte_offset().unwrap_or(self.last);
        }
        place.range.end = self.last.max(place.range.start);
    }

    fn close(&mut self, node: Node) {
        match self.open.last_mut() {
            None => self.documents.push(Document { root: node, line: self.line }),
            Some((parent, waiting)) => match &mut parent.kind {
                Kind::List(items) => items.push(node),
                Kind::Map(entries) => match waiting.take() {
                    None => *waiting = Some(node),
                    Some(key) => entries.push((key, node)),
                },
                Kind::Scalar(..) | Kind::Alias(_) => {}
            },
        }
    }
}

/// Where the header of a block is, whose text comes after `before`: on the last line that is not
/// empty.
fn header(before: &str) -> Option<usize> {
    let line_start = before.trim_end().rfind('\n').map_or(0, |newline| newline + 1);
    let line = &before[line_start..];
    let line = line.split_once(" #").map_or(line, |(line, _)| line).trim_end();
    let indicators = line.trim_end_matches(|c: char| c.is_ascii_digit() || "+-".contains(c));
    indicators.ends_with(['|', '>']).then(|| line_start + indicators.len() - 1)
}
