//! The lists of streams that the version in force has taken from files. A set that loses streams
//! is reported at the list that has shrunk, where a person has to look.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use leasehold_types::SetName;

use super::check::{Document, ValidSpec};
use super::losses::{Loss, STREAMS};
use super::resolve::StreamFiles;
use super::streams::StreamList;

/// The files of streams of each set, as a reading of the folder found them.
pub(crate) type FilesOfSets = BTreeMap<SetName, Vec<String>>;

/// The lists by file; empty until this process has put a version in force.
#[derive(Debug, Default)]
pub(crate) struct ListsInForce(HashMap<String, Arc<StreamList>>);

/// The files that the sets of these documents name.
pub(crate) fn files_of_sets<'a>(documents: impl Iterator<Item = &'a Document>) -> FilesOfSets {
    let files = documents.filter_map(|document| match &document.body {
        Some(ValidSpec::Set(draft)) => {
            let files = draft.sources.iter().map(|source| source.file.clone()).collect();
            Some((document.id.as_ref()?.set()?.clone(), files))
        }
        Some(ValidSpec::Cluster(_) | ValidSpec::Class(_) | ValidSpec::Pipeline(_)) | None => None,
    });
    files.collect()
}

impl ListsInForce {
    /// Reports each loss of streams at the list that has lost most of them, if one has.
    pub(crate) fn blame(&self, losses: &mut [Loss], files: &FilesOfSets, lists: &StreamFiles) {
        for loss in losses.iter_mut().filter(|loss| loss.field == STREAMS) {
            let files = loss.id.set().and_then(|set| files.get(set)).into_iter().flatten();
            let lost = files.map(|file| (self.lost(file, lists), file));
            if let Some((1.., file)) = lost.max_by_key(|(lost, _)| *lost) {
                (loss.file, loss.field) = (file.clone(), "");
            }
        }
    }

    /// How many streams a file no longer lists.
    fn lost(&self, file: &str, lists: &StreamFiles) -> usize {
        let Some(old) = self.0.get(file) else { return 0 };
        let Some(Some(new)) = lists.get(file) else { return 0 };
        if Arc::ptr_eq(old, new) {
            return 0;
        }
        let kept: HashSet<_> = new.streams.iter().map(|stream| &stream.name).collect();
        old.streams.iter().filter(|stream| !kept.contains(&stream.name)).count()
    }

    /// These lists are in force. One that could not be read is as it was.
    pub(crate) fn accept(&mut self, lists: StreamFiles) {
        let mut before = std::mem::take(&mut self.0);
        let now = lists.into_iter().filter_map(|(file, list)| {
            let list = list.or_else(|| before.remove(&file))?;
            Some((file, list))
        });
        self.0 = now.collect();
    }
}
