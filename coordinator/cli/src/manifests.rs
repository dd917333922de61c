//! The documents of all sources, and edits of the pods in them: all or nothing.

use std::io::{self, ErrorKind, Write};

use anyhow::{Context, anyhow};
use leasehold_injection::{Edit, Refusal, Step, apply};
use serde_json::Value;

use crate::object::{self, Cluster, Pod};
use crate::source::Source;
use crate::yaml::{self, Kept};

/// One document of a source.
#[derive(Debug)]
pub(crate) struct Document<'a> {
    source: &'a str,
    /// Its number in the source, from 1.
    number: usize,
    /// Its first line in the source, from 1.
    line: usize,
    text: &'a str,
    value: Value,
}

/// Manifests whose pods were edited.
#[derive(Debug, Default)]
pub(crate) struct Rewritten {
    /// All documents as one stream.
    pub(crate) text: String,
    /// The parts of the layout that a change did not keep.
    pub(crate) warnings: Vec<String>,
}

/// The edits that a pod needs.
pub(crate) type PodEditor<'a> =
    dyn FnMut(&Document<'_>, &Pod<'_>) -> Result<Vec<Edit>, Refusal> + 'a;

/// Reads all documents of all sources.
///
/// # Errors
/// The first document that is not valid YAML.
pub(crate) fn parse(sources: &[Source]) -> anyhow::Result<Vec<Document<'_>>> {
    let mut all = Vec::new();
    for source in sources {
        for (index, range) in yaml::split(&source.text).into_iter().enumerate() {
            let (source, text) = (source, &source.text[range.clone()]);
            let line = source.text[..range.start].matches('\n').count() + 1;
            let value = Value::Null;
            let mut document =
                Document { source: &source.name, number: index + 1, line, text, value };
            let value = yaml::parse(text)
                .map_err(|error| anyhow!("{}: {}", document.at(error.line), error.message))?;
            document.value = value;
            all.push(document);
        }
    }
    Ok(all)
}

/// All WorkerClusters and WorkerClasses.
pub(crate) fn clusters(documents: &[Document<'_>]) -> Vec<Cluster> {
    documents.iter().flat_map(|document| object::clusters(&document.value)).collect()
}

/// All documents as one stream, with every pod edited. A document without an edit is as it was
/// written, to the byte.
///
/// # Errors
/// The first thing that is wrong, with its source, line, document and object.
pub(crate) fn rewrite(
    documents: &[Document<'_>],
    edit: &mut PodEditor<'_>,
) -> anyhow::Result<Rewritten> {
    let mut all = Rewritten::default();
    for document in documents {
        let after = document.edited(edit)?;
        let text = if after == document.value {
            document.text.to_owned()
        } else {
            let (text, kept) = yaml::rewrite(document.text, &document.value, &after);
            all.warnings.extend(document.losses(kept));
            text
        };
        all.append(&text, document.number == 1);
    }
    Ok(all)
}

impl Rewritten {
    /// Writes the manifests to stdout, then the warnings to stderr. A closed pipe
    /// is not an error.
    pub(crate) fn print(&self) -> anyhow::Result<()> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(self.text.as_bytes()).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                return Err(error).context("cannot write to stdout");
            }
            _ => {}
        }
        let mut stderr = io::stderr().lock();
        for warning in &self.warnings {
            // If stderr is closed, the warning is lost.
            let _ = writeln!(stderr, "warning: {warning}");
        }
        Ok(())
    }

    /// Appends a document; the first of a source must not run into the source before.
    fn append(&mut self, text: &str, is_first: bool) {
        let is_between = is_first && !self.text.is_empty();
        let text = if is_between { text.trim_start_matches('\u{feff}') } else { text };
        if is_between {
            self.text.push_str(if self.text.ends_with('\n') { "" } else { "\n" });
            // A directive belongs to the document after it, and so must follow the end of one.
            self.text.push_str(match text {
                text if text.starts_with("---") => "",
                text if text.starts_with('%') => "...\n",
                _ => "---\n",
            });
        }
        self.text.push_str(text);
    }
}

impl std::fmt::Display for Document<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: document {}", self.source, self.number)
    }
}

impl Document<'_> {
    /// Where a line of the document is, for errors; its first is 0.
    fn at(&self, line: usize) -> String {
        format!("{}: line {}, document {}", self.source, self.line + line, self.number)
    }

    fn at_field(&self, path: &[Step], field: &str) -> String {
        let steps = path.iter().map(|step| match step {
            Step::Key(key) => key.clone(),
            Step::Index(index) => index.to_string(),
        });
        let steps: Vec<String> = steps.chain(steps_of(field).map(str::to_owned)).collect();
        self.at(yaml::line_of(self.text, &steps))
    }

    /// The document's value after all its pods were edited.
    fn edited(&self, edit: &mut PodEditor<'_>) -> anyhow::Result<Value> {
        let pods = object::pods(&self.value).map_err(|missing| {
            let (at, field) = (self.at_field(&missing.path, ""), missing.field);
            anyhow!(
                "{at}: {}: {field} is missing or empty: a {} needs a container",
                missing.object,
                missing.kind
            )
        })?;
        let mut after = self.value.clone();
        for pod in pods {
            let edits = edit(self, &pod).map_err(|refusal| {
                let at = self.at_field(&pod.path, &refusal.field());
                anyhow!("{at}: {}: {refusal}", pod.object)
            })?;
            let here = pod.path.iter().fold(&mut after, |value, step| match step {
                Step::Key(key) => &mut value[key],
                Step::Index(index) => &mut value[index],
            });
            apply(&edits, here);
        }
        Ok(after)
    }

    /// Warnings about the layout that a change did not keep.
    fn losses(&self, kept: Kept) -> Vec<String> {
        let layout = match kept {
            Kept::All => None,
            Kept::AllButAliases => Some(
                "the change touches an anchor or an alias, so all aliases of the document became \
                 copies; uninject leaves the copies as they are",
            ),
            Kept::Values => Some(
                "the layout of the document cannot be kept: its comments are lost, and its keys \
                 are sorted",
            ),
        };
        let end = yaml::ends_in_open_block(self.text).then_some(
            "the document ends within a block of text and without a line break: that text now \
             ends with a line break",
        );
        layout.into_iter().chain(end).map(|loss| format!("{self}: {loss}")).collect()
    }
}

/// The steps of a field in a message, as in `spec.containers[0].env`: names between dots, and
/// indexes or whole keys in brackets.
fn steps_of(field: &str) -> impl Iterator<Item = &str> {
    let mut rest = field;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(['.', ':', ' ']);
        let (step, after) = match rest.strip_prefix('[') {
            Some(inner) => inner.split_once(']')?,
            None => rest.split_at(rest.find(['.', '[', ':']).unwrap_or(rest.len())),
        };
        rest = after;
        (!step.is_empty()).then_some(step)
    })
}

#[cfg(test)]
#[path = "manifests_tests.rs"]
mod tests;
