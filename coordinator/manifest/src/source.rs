//! Where the files of a catalog are: in a folder, or in memory, where a platform keeps what a store
//! has.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::folder::{self, ENTRIES_MAX, Listing, Unreadable};
use super::problem::Problem;

/// The content of files by their path, as in `builds/cars.yaml`.
pub type MemoryFiles = BTreeMap<String, Arc<[u8]>>;

/// The files of a catalog.
#[derive(Debug)]
pub(crate) enum Source {
    /// Those in and below a folder.
    Folder(PathBuf),
    /// These.
    Memory(MemoryFiles),
}

impl Source {
    /// The manifest files.
    pub(crate) fn list(&self) -> Listing {
        match self {
            Self::Folder(root) => folder::list(root),
            Self::Memory(files) => list(files),
        }
    }

    /// A file's text, or what is wrong with it.
    pub(crate) fn read_text(&self, file: &str, bytes_max: u64) -> Result<String, Unreadable> {
        match self {
            Self::Folder(root) => folder::read_text(root, file, bytes_max),
            Self::Memory(files) => match files.get(file) {
                Some(content) => folder::text_of(content.to_vec(), bytes_max),
                None => Err(Unreadable::Io(io::ErrorKind::NotFound, "no such file".into())),
            },
        }
    }
}

/// The manifests by the rules of folders: names that begin with a dot are ignored.
fn list(files: &MemoryFiles) -> Listing {
    let mut listing = Listing::default();
    if files.len() > ENTRIES_MAX {
        let message = format!(
            "more than {ENTRIES_MAX} files: remove files that are not manifests; the last valid \
             objects stay in force"
        );
        listing.unknown.push((String::new(), Problem::whole(".", message)));
        return listing;
    }
    let is_hidden = |path: &str| path.split('/').any(|name| name.starts_with('.'));
    let manifests =
        files.keys().filter(|path| folder::is_manifest(Path::new(path)) && !is_hidden(path));
    listing.files = manifests.cloned().collect();
    listing
}

#[cfg(test)]
mod tests {
    use crate::Catalog;

    use super::*;

    const CLUSTER: &str = "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\n\
                           metadata: {name: builds}\nspec: {maxJobs: 6, maxJobsPerWorker: 3}\n";
    const SET: &str = "apiVersion: leasehold.dev/v1alpha1\nkind: StreamSet\n\
                       metadata: {name: cars}\n\
                       spec: {cluster: builds, streamsFrom: [{file: lists/cars.txt}]}\n";

    fn files(texts: &[(&str, &str)]) -> MemoryFiles {
        texts.iter().map(|(path, text)| ((*path).to_owned(), text.as_bytes().into())).collect()
    }

    #[test]
    fn files_in_memory_follow_the_rules_of_a_folder() {
        let mut catalog = Catalog::in_memory();
        let good = [
            ("a.yaml", CLUSTER),
            ("ci/b.yaml", SET),
            ("ci/lists/cars.txt", "cars:new\ncars:old\n"),
        ];
        catalog.set_files(files(&good));
        let reading = catalog.read();
        assert!(reading.problems.is_empty(), "{:?}", reading.problems);
        let desired = reading.desired.expect("a desired state");
        let sets: Vec<usize> = desired.sets.values().map(|set| set.streams.len()).collect();
        assert_eq!((desired.clusters.len(), sets), (1, vec![2]));

        // An invalid version keeps what is in force; a hidden or removed file defines nothing.
        let bad = CLUSTER.replace("maxJobs: 6", "maxJobs: many");
        catalog.set_files(files(&[("a.yaml", &bad), ("ci/b.yaml", SET), good[2]]));
        let reading = catalog.read();
        assert_eq!(reading.problems.len(), 1, "{:?}", reading.problems);
        assert_eq!(reading.desired.expect("a desired state"), desired);
        catalog.set_files(files(&[("a.yaml", CLUSTER), (".b.yaml", SET), (".d/c.yaml", SET)]));
        assert!(catalog.read().desired.expect("a desired state").sets.is_empty());
    }
}
