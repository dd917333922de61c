//! The manifests of one folder, or of files in memory, over time, and the rules by which the last
//! good state stays in force. They hold for each object by itself:
//!
//! 1. A valid document puts its object in force. Where a document is invalid but its kind and name
//!    can be read, its object keeps the version that is in force, if there is one.
//! 2. A file that cannot be understood whole (unreadable, too large, not UTF-8, not YAML, empty,
//!    or with a document without a kind and name) keeps everything that it defined at the
//!    last reading, beside what its readable documents define. A folder that cannot be read does
//!    so for all below.
//! 3. An object goes only when its file is gone, or could be read whole and no longer has it.
//! 4. An object that is defined in two places keeps the version in force until one of them is
//!    gone. One that is kept by rule 2 yields to a definition elsewhere.
//! 5. A set keeps its version in force while one of its files of streams is missing or wrong, and
//!    while the cluster that it newly names is not defined. A cluster stays in force for as long
//!    as a set in force runs on it.
//! 6. So does a pipeline while a class that it newly names is not defined, and a class for as long
//!    as a pipeline in force names it. A pipeline that its classes can never satisfy keeps its
//!    version in force; where a pipeline in force no longer fits since a class was changed, the
//!    class does.
//! 7. The first reading follows the same rules, and builds on the last good state that was kept
//!    from an earlier process. Where none was kept nothing is in force before it: what is invalid
//!    is absent, and reported.
//! 8. A file that is being written is one that cannot be understood whole, and no problem.
//! 9. Files have no time of creation. Where a limit is reached, what is in force stays, and the
//!    others come in the order of their names.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use leasehold_coordinator_core::desired::Desired;
use leasehold_types::{Moment, counted};

use super::check::{self, Document, ObjectId, Origin};
use super::folder::{self, MANIFEST_BYTES_MAX, Unreadable};
use super::last_good::{FileContribution, LastGood};
use super::lists_in_force::{ListsInForce, files_of_sets};
use super::losses::{Loss, losses};
use super::problem::Problem;
use super::resolve::{Candidate, MissingClass, Rules, StreamFiles, resolve};
use super::source::{MemoryFiles, Source};
use super::streams::{self, EntryError, STREAM_FILE_BYTES_MAX, StreamList};
use super::tree::{self, Node, Position, YamlError};

/// Problems that are reported at once.
pub(crate) const PROBLEMS_MAX: usize = 1_000;

/// What one reading of the folder found.
#[derive(Clone, Debug)]
pub struct Reading {
    /// What is in force now; none until the folder could be read for the first time, unless a
    /// last good state was kept.
    pub desired: Option<Arc<Desired>>,
    /// All that is wrong, by file and line.
    pub problems: Vec<Problem>,
    /// What is ignored although its author may count on it, in the same order.
    pub ignored: Vec<Problem>,
}

/// What the folder defines now, and whether that may be put in force is for the caller to say.
#[derive(Debug)]
pub struct FolderVersion {
    /// What is in force at present; none before anything was.
    before: Option<Arc<Desired>>,
    desired: Option<Arc<Desired>>,
    gave: BTreeMap<String, FileContribution>,
    problems: Vec<Problem>,
    ignored: Vec<Problem>,
    losses: Vec<Loss>,
    lists: StreamFiles,
}

impl FolderVersion {
    /// What would be in force; none while nothing is known of the folder.
    pub fn desired(&self) -> Option<&Arc<Desired>> {
        self.desired.as_ref()
    }

    /// What it takes away of what is in force, if that is much.
    pub fn losses(&self) -> &[Loss] {
        &self.losses
    }

    /// What is in force without it. Each loss is reported where its object was defined, or at the
    /// list of streams that has shrunk; `until` says when it takes effect, which is at `due`.
    pub fn deferred(self, until: &str, due: Moment) -> Reading {
        let Self { before, mut problems, ignored, losses, .. } = self;
        for Loss { file, field, what, .. } in losses {
            let message = format!("{what}: {until}");
            let problem = Problem::new(&file, Position::default(), field, message);
            problems.push(Problem { due: Some(due), ..problem });
        }
        Reading { desired: before, problems: bounded(problems), ignored }
    }
}

/// The manifests of one folder.
#[derive(Debug)]
pub struct Catalog {
    source: Source,
    in_force: Option<Arc<Desired>>,
    /// What each file gave at the last reading.
    gave: BTreeMap<String, FileContribution>,
    lists: HashMap<String, CachedList>,
    lists_in_force: ListsInForce,
    seen: WatchedPaths,
}

/// A file of streams, read once for each content: later ones by their changed lines.
#[derive(Debug)]
struct CachedList {
    text: String,
    list: Result<Arc<StreamList>, Vec<Problem>>,
}

/// The paths whose change means that the folder must be read again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedPaths {
    pub files: BTreeSet<String>,
    pub folders: BTreeSet<String>,
}

/// One manifest file, read.
pub(crate) enum FileContent {
    /// Nothing certain is known of what it defines, and why, unless it is being written.
    Opaque(Option<Problem>),
    Documents(Vec<Node>),
}

impl FileContent {
    /// What a file of this text defines.
    pub(crate) fn of(file: &str, text: &str) -> Self {
        if text.trim().is_empty() {
            let message = "is empty: write a manifest, or remove the file";
            return Self::Opaque(Some(Problem::whole(file, message)));
        }
        match tree::parse(text) {
            Ok(documents) => Self::Documents(documents),
            Err(YamlError { at, message }) => {
                let message = format!("is not YAML: {message}{}", separator_hint(at, &message));
                Self::Opaque(Some(Problem::new(file, at, "", message)))
            }
        }
    }
}

/// What to do where a second object seems to begin in the middle of a document.
fn separator_hint(at: Position, message: &str) -> &'static str {
    let repeats = |key: &&str| message.starts_with(&format!("duplicate mapping key: {key} "));
    if at.column == 1 && ["apiVersion", "kind", "metadata", "spec"].iter().any(repeats) {
        "; if another object begins here, write a line with --- before it"
    } else {
        ""
    }
}

impl Catalog {
    /// The manifests of `folder`, of which nothing is in force yet.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self::of(Source::Folder(folder.into()))
    }

    /// The manifests that [`Self::set_files`] gives; none at first.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::of(Source::Memory(MemoryFiles::new()))
    }

    fn of(source: Source) -> Self {
        Self {
            source,
            in_force: None,
            gave: BTreeMap::new(),
            lists: HashMap::new(),
            lists_in_force: ListsInForce::default(),
            seen: WatchedPaths::default(),
        }
    }

    /// Puts in force what was good before this process began; the first reading builds on it.
    pub fn restore(&mut self, last_good: LastGood) {
        let LastGood { desired, gave } = last_good;
        (self.in_force, self.gave) = (Some(desired), gave);
    }

    /// What is to be restored by a later process; none before there is anything.
    pub fn last_good(&self) -> Option<LastGood> {
        let desired = self.in_force.clone()?;
        Some(LastGood { desired, gave: self.gave.clone() })
    }

    /// Gives the files that the next reading reads, instead of a folder's.
    pub fn set_files(&mut self, files: MemoryFiles) {
        self.source = Source::Memory(files);
    }

    /// Reads the folder again, and puts in force what it defines.
    pub fn read(&mut self) -> Reading {
        let version = self.next_version(&BTreeSet::new());
        self.accept(version)
    }

    /// Reads the folder again without a change of what is in force. The files in `written` are
    /// being written: they give what they gave.
    pub fn next_version(&mut self, written: &BTreeSet<String>) -> FolderVersion {
        let before = self.in_force.clone();
        let listing = self.source.list();
        let mut problems: Vec<Problem> = listing.unknown.iter().map(|(_, p)| p.clone()).collect();
        let unknown: Vec<&str> = listing.unknown.iter().map(|(folder, _)| &**folder).collect();
        if unknown.contains(&"") && before.is_none() {
            self.seen = WatchedPaths::default();
            let (gave, ignored, losses) = (BTreeMap::new(), Vec::new(), Vec::new());
            let (desired, lists) = (None, StreamFiles::new());
            return FolderVersion { before, desired, gave, problems, ignored, losses, lists };
        }
        let content = |file: &String| {
            if written.contains(file) { FileContent::Opaque(None) } else { self.content(file) }
        };
        let contents: BTreeMap<String, FileContent> =
            listing.files.iter().map(|file| (file.clone(), content(file))).collect();
        let mut gave = self.kept_folders(&listing.files, &unknown);
        let sources = self.sources(&contents, &gave);
        let mut definitions: BTreeMap<ObjectId, Vec<Definition>> = BTreeMap::new();
        for (file, content) in contents {
            if sources.contains(&file) {
                continue;
            }
            let given = self.look_at(&file, content, &mut definitions, &mut problems);
            gave.insert(file, given);
        }
        let lists = self.read_lists(&sources, &unknown, written, &mut problems);
        let documents = definitions.values().flatten().map(|definition| &definition.document);
        let files_of_sets = files_of_sets(documents.clone());
        let ignored = documents.flat_map(|document| document.ignored.iter().cloned()).collect();
        let candidates = candidates(definitions, &gave, &mut problems);
        let old = before.clone().unwrap_or_default();
        let rules = Rules::of_files(MissingClass::Refused);
        let desired = resolve(candidates, &lists, rules, &old, &mut problems);
        let desired = if *old == desired { old } else { Arc::new(desired) };
        let losses = before.as_ref().map(|before| losses(before, &desired, &self.gave));
        let mut losses = losses.unwrap_or_default();
        self.lists_in_force.blame(&mut losses, &files_of_sets, &lists);
        let files = listing.files.into_iter().chain(sources).collect();
        self.seen = WatchedPaths { files, folders: listing.folders };
        let (problems, ignored) = (bounded(problems), bounded(ignored));
        let desired = Some(desired);
        FolderVersion { before, desired, gave, problems, ignored, losses, lists }
    }

    /// Puts a version in force.
    pub fn accept(&mut self, version: FolderVersion) -> Reading {
        let FolderVersion { desired, gave, problems, ignored, lists, .. } = version;
        if desired.is_some() {
            self.lists_in_force.accept(lists);
            (self.in_force, self.gave) = (desired.clone(), gave);
        }
        Reading { desired, problems, ignored }
    }

    /// What the last reading looked at.
    pub fn seen(&self) -> &WatchedPaths {
        &self.seen
    }

    fn content(&self, file: &str) -> FileContent {
        match self.source.read_text(file, MANIFEST_BYTES_MAX) {
            Ok(text) => FileContent::of(file, &text),
            Err(unreadable) => FileContent::Opaque(Some(unreadable.problem(file))),
        }
    }

    /// Files below folders that cannot be read: they give what they gave.
    fn kept_folders(
        &self,
        listed: &BTreeSet<String>,
        unknown: &[&str],
    ) -> BTreeMap<String, FileContribution> {
        let kept = |file: &str| !listed.contains(file) && is_below_any(file, unknown);
        let files = self.gave.iter().filter(|(file, _)| kept(file));
        files.map(|(file, given)| (file.clone(), given.clone())).collect()
    }

    /// The files of streams that any document names, or named when it could last be read.
    fn sources(
        &self,
        contents: &BTreeMap<String, FileContent>,
        kept: &BTreeMap<String, FileContribution>,
    ) -> BTreeSet<String> {
        let mut sources: BTreeSet<String> =
            kept.values().flat_map(|given| given.sources.iter().cloned()).collect();
        for (file, content) in contents {
            match content {
                FileContent::Documents(documents) => {
                    sources.extend(documents.iter().flat_map(|node| named_sources(file, node)));
                }
                FileContent::Opaque(_) => {
                    let given = self.gave.get(file).into_iter();
                    sources.extend(given.flat_map(|given| given.sources.iter().cloned()));
                }
            }
        }
        sources
    }

    /// Takes in what one manifest file defines, and says what it gives from now on.
    fn look_at(
        &self,
        file: &str,
        content: FileContent,
        definitions: &mut BTreeMap<ObjectId, Vec<Definition>>,
        problems: &mut Vec<Problem>,
    ) -> FileContribution {
        let last = || self.gave.get(file).cloned().unwrap_or_default();
        let nodes = match content {
            FileContent::Opaque(problem) => {
                problems.extend(problem);
                return last();
            }
            FileContent::Documents(nodes) => nodes,
        };
        let mut given = FileContribution::default();
        let mut opaque = false;
        for node in nodes {
            given.sources.extend(named_sources(file, &node));
            let document = check::document(file, Origin::File, node, problems);
            match document.id.clone() {
                None => opaque = true,
                Some(id) => {
                    given.objects.insert(id.clone());
                    let definition = Definition { file: file.into(), document };
                    definitions.entry(id).or_default().push(definition);
                }
            }
        }
        if opaque {
            let last = last();
            given.objects.extend(last.objects);
            given.sources.extend(last.sources);
        }
        given
    }

    fn read_lists(
        &mut self,
        sources: &BTreeSet<String>,
        unknown: &[&str],
        written: &BTreeSet<String>,
        problems: &mut Vec<Problem>,
    ) -> StreamFiles {
        self.lists.retain(|file, _| sources.contains(file));
        let mut lists = StreamFiles::new();
        for file in sources {
            if written.contains(file) {
                lists.insert(file.clone(), None);
                continue;
            }
            let text = match self.source.read_text(file, STREAM_FILE_BYTES_MAX) {
                Ok(text) => text,
                Err(_) if is_below_any(file, unknown) => {
                    lists.insert(file.clone(), None);
                    continue;
                }
                Err(Unreadable::Io(std::io::ErrorKind::NotFound, _)) => continue,
                Err(unreadable) => {
                    problems.push(unreadable.problem(file));
                    lists.insert(file.clone(), None);
                    continue;
                }
            };
            match self.list(file, text) {
                Ok(list) => {
                    lists.insert(file.clone(), Some(list));
                }
                Err(wrong) => {
                    problems.extend(wrong);
                    lists.insert(file.clone(), None);
                }
            }
        }
        lists
    }

    fn list(&mut self, file: &str, text: String) -> Result<Arc<StreamList>, Vec<Problem>> {
        let list = match self.lists.get(file) {
            Some(cached) if cached.text == text => return cached.list.clone(),
            Some(CachedList { text: before, list: Ok(list) }) if !folder::is_yaml(file) => {
                checked(file, streams::read_changed_lines(&text, before, list))
            }
            _ => stream_list(file, &text),
        };
        self.lists.insert(file.into(), CachedList { text, list: list.clone() });
        list
    }
}

/// The streams that a file lists.
///
/// # Errors
/// All that is wrong with it.
pub(crate) fn stream_list(file: &str, text: &str) -> Result<Arc<StreamList>, Vec<Problem>> {
    checked(file, streams::read(text, folder::is_yaml(file)))
}

fn checked(
    file: &str,
    read: Result<StreamList, Vec<EntryError>>,
) -> Result<Arc<StreamList>, Vec<Problem>> {
    read.map(Arc::new).map_err(|faults| {
        let problem = |(at, field, message)| Problem::new(file, at, field, message);
        faults.into_iter().map(problem).collect()
    })
}

/// A document that names its object.
pub(crate) struct Definition {
    pub(crate) file: String,
    pub(crate) document: Document,
}

/// The files of streams that a document names, as paths below the manifests' folder.
pub(crate) fn named_sources(file: &str, node: &Node) -> BTreeSet<String> {
    let base = file.rsplit_once('/').map_or("", |(folder, _)| folder);
    check::sources(node).filter_map(|source| check::resolve(base, source)).collect()
}

fn is_below_any(file: &str, folders: &[&str]) -> bool {
    let below = |folder: &&str| {
        folder.is_empty() || file.strip_prefix(*folder).is_some_and(|rest| rest.starts_with('/'))
    };
    folders.iter().any(below)
}

/// One candidate for each object (rules 1, 2 and 4).
pub(crate) fn candidates(
    definitions: BTreeMap<ObjectId, Vec<Definition>>,
    given: &BTreeMap<String, FileContribution>,
    problems: &mut Vec<Problem>,
) -> BTreeMap<ObjectId, Candidate> {
    let mut candidates = BTreeMap::new();
    for (id, mut places) in definitions {
        let body = match places.as_mut_slice() {
            [one] => one.document.body.take(),
            _ => {
                conflict(&id, &places, problems);
                None
            }
        };
        let first = &places[0];
        let (file, at) = (first.file.clone(), first.document.at);
        candidates.insert(id, Candidate { file, at, created: None, body });
    }
    for (file, given) in given {
        for id in &given.objects {
            let kept = || {
                let (file, at) = (file.clone(), Position::default());
                Candidate { file, at, created: None, body: None }
            };
            candidates.entry(id.clone()).or_insert_with(kept);
        }
    }
    candidates
}

fn conflict(id: &ObjectId, places: &[Definition], problems: &mut Vec<Problem>) {
    for (index, place) in places.iter().enumerate() {
        let other = &places[usize::from(index == 0)];
        let message = format!(
            "{id} is defined in {}:{} too: remove one of them, or rename it (in files \
             metadata.namespace tells no two objects apart)",
            other.file, other.document.at.line
        );
        problems.push(Problem::new(&place.file, place.document.at, "metadata.name", message));
    }
}

/// The problems in order, at most as many as are reported at once.
pub(crate) fn bounded(mut problems: Vec<Problem>) -> Vec<Problem> {
    problems.sort();
    problems.dedup();
    if problems.len() > PROBLEMS_MAX {
        let more = problems.len() - PROBLEMS_MAX;
        problems.truncate(PROBLEMS_MAX);
        problems.push(Problem::whole(
            ".",
            format!("{}: fix these first", counted(more, "more problem")),
        ));
    }
    problems
}
