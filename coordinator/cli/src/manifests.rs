//! Edits the pods in manifests: all or nothing.

use std::ops::Range;

use anyhow::{anyhow, bail};
use leasehold_injection::{Edit, Refusal};
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::object::{self, Cluster, Pod};
use crate::source::Source;
use crate::yaml::{self, Document, Node, Reuse};

/// Where something is, for messages.
pub(crate) struct Where<'a> {
    source: &'a str,
    document: usize,
    of: &'a str,
}

impl std::fmt::Display for Where<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: document {}, {}", self.source, self.document, self.of)
    }
}

/// What is to be done to a pod.
pub(crate) type Editor<'a> =
    dyn FnMut(&Where<'_>, &Pod<'_>, &Value) -> Result<Vec<Edit>, Refusal> + 'a;

/// What becomes of aliases of what is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aliases {
    /// They become copies, which are marked as such where there is a place for that.
    Copied,
    /// Marked copies that say what their anchors say become aliases again.
    GivenBack,
}

/// All sources as one stream of manifests, with what `edit` says done to every pod. What it leaves
/// alone is as it was written, to the byte.
///
/// # Errors
/// The first thing that is wrong, with its file, document and line.
pub(crate) fn rewrite(
    sources: &[Source],
    aliases: Aliases,
    edit: &mut Editor<'_>,
) -> anyhow::Result<String> {
    let mut out = String::new();
    for source in sources {
        let text = rewrite_one(source, aliases, edit)?;
        if !out.is_empty() {
            out.push_str(if out.ends_with('\n') { "" } else { "\n" });
            // A directive belongs to the document after it, and so must follow one's end.
            out.push_str(match text.trim_start_matches('\u{feff}') {
                text if text.starts_with("---") => "",
                text if text.starts_with('%') => "...\n",
                _ => "---\n",
            });
        }
        out.push_str(match out.is_empty() {
            true => &text,
            false => text.trim_start_matches('\u{feff}'),
        });
    }
    Ok(out)
}

/// The clusters in all sources. What cannot be read is passed over: [`rewrite`] says so.
pub(crate) fn clusters(sources: &[Source]) -> Vec<Cluster> {
    let parts = |source: &Source| {
        let all = parts(&source.text).into_iter();
        all.filter_map(|range| yaml::read(&source.text[range]).ok()).flatten().collect::<Vec<_>>()
    };
    let documents = sources.iter().flat_map(parts);
    let whole = |document: Document| document.root.copied(&document.root.anchors());
    documents.filter_map(whole).flat_map(|root| object::clusters(&root)).collect()
}

/// What texts say once and mean several times. What cannot be read is passed over: [`rewrite`] says
/// so.
pub(crate) fn reuse<'a>(texts: impl Iterator<Item = &'a str>) -> Reuse {
    let mut all = Reuse::default();
    for text in texts {
        for part in parts(text).into_iter().map(|range| &text[range]) {
            for document in yaml::read(part).unwrap_or_default() {
                all.count(part, &document.root);
            }
        }
    }
    all
}

fn rewrite_one(source: &Source, aliases: Aliases, edit: &mut Editor<'_>) -> anyhow::Result<String> {
    let mut out = String::new();
    let mut before = Before::default();
    for range in parts(&source.text) {
        let text = &source.text[range];
        out.push_str(&rewrite_part(&source.name, text, &mut before, aliases, edit)?);
        before.lines += text.matches('\n').count();
    }
    Ok(out)
}

/// What came before a part.
#[derive(Default)]
struct Before {
    lines: usize,
    documents: usize,
}

/// JSON objects may follow each other with nothing between; YAML is one part.
fn parts(text: &str) -> Vec<Range<usize>> {
    let whole = std::iter::once(0..text.len()).collect();
    if !text.trim_start_matches('\u{feff}').trim_start().starts_with('{') {
        return whole;
    }
    let mut objects = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let mut all = Vec::new();
    let mut start = 0;
    while let Some(object) = objects.next() {
        if object.is_err() {
            return whole;
        }
        let end = objects.byte_offset();
        all.push(start..end);
        start = end;
    }
    match all.last_mut() {
        Some(last) => last.end = text.len(),
        None => return whole,
    }
    all
}

fn rewrite_part(
    name: &str,
    text: &str,
    before: &mut Before,
    aliases: Aliases,
    edit: &mut Editor<'_>,
) -> anyhow::Result<String> {
    let documents = yaml::read(text).map_err(|problem| {
        let (line, document) = (problem.line + before.lines, problem.document + before.documents);
        anyhow!("{name}: line {line}, document {document}: {}", problem.what)
    })?;
    let mut changed = Vec::new();
    for (index, document) in documents.iter().enumerate() {
        let number = before.documents + index + 1;
        if let Some(mut root) = edited(name, number, before.lines, document, edit)? {
            if aliases == Aliases::GivenBack {
                yaml::give_back(text, &mut root);
            }
            changed.push((index, root));
        }
    }
    let first = before.documents;
    before.documents += documents.len();
    if changed.is_empty() {
        return Ok(text.to_owned());
    }
    yaml::rewrite(text, &documents, &changed).map_err(|index| {
        let line = documents[index].line + before.lines;
        let document = first + index + 1;
        anyhow!(
            "{name}: line {line}, document {document}: it cannot be changed and still say the same"
        )
    })
}

/// A document's root after all edits; none where there are none.
fn edited(
    name: &str,
    number: usize,
    lines: usize,
    document: &Document,
    edit: &mut Editor<'_>,
) -> anyhow::Result<Option<Node>> {
    let at = |line: Option<usize>| {
        let line = line.unwrap_or(document.line) + lines;
        format!("{name}: line {line}, document {number}")
    };
    let Some(whole) = document.root.copied(&document.root.anchors()) else {
        bail!("{}: its aliases make it endless, or too large", at(None));
    };
    let pods = object::pods(&whole).map_err(|missing| {
        anyhow!("{}: {}: {} is missing or empty", at(missing.line), missing.of, missing.field)
    })?;
    let mut root = None;
    for pod in pods {
        let value = yaml::to_json(pod.node)
            .map_err(|(line, what)| anyhow!("{}: {}: {what}", at(Some(line)), pod.of))?;
        let place = Where { source: name, document: number, of: &pod.of };
        let edits = edit(&place, &pod, &value).map_err(|refusal| {
            let line = yaml::find(pod.node, &refusal.field());
            anyhow!("{}: {}: {refusal}", at(line), pod.of)
        })?;
        if !edits.is_empty() {
            let root = root.get_or_insert_with(|| document.root.clone());
            yaml::apply(root, &pod.path, &edits)
                .ok_or_else(|| anyhow!("{}: {}: its shape is not understood", at(None), pod.of))?;
        }
    }
    Ok(root)
}

#[cfg(test)]
mod tests;
