//! Reads the manifests' folder: lists its files and reads their text within limits. A part that
//! cannot be read is not the same as an empty one.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::problem::Problem;
use super::tree::Position;

/// Bytes of one manifest file.
pub const MANIFEST_BYTES_MAX: u64 = 1024 * 1024;
/// Files and folders that are looked at.
pub const ENTRIES_MAX: usize = 20_000;
/// Levels of folders below the manifests' folder.
pub const FOLDER_DEPTH_MAX: usize = 8;

/// A folder's content.
#[derive(Debug, Default)]
pub struct Listing {
    /// The manifest files, by their path below the folder.
    pub files: BTreeSet<String>,
    /// The folders below, with the folder itself as the empty path.
    pub folders: BTreeSet<String>,
    /// Folders whose content is not known.
    pub unknown: Vec<(String, Problem)>,
}

/// Lists the manifest files (`*.yaml`, `*.yml`) in and below `root`. Names that begin with a dot
/// are ignored: mounted ConfigMaps keep their versions there.
pub fn list(root: &Path) -> Listing {
    let mut listing = Listing::default();
    let mut seen = BTreeSet::new();
    let mut waiting = vec![(String::new(), 0)];
    let mut entries = 0;
    while let Some((folder, depth)) = waiting.pop() {
        // Of the folder itself only its whole path says which one it is.
        let problem = |message| match folder.as_str() {
            "" => Problem::whole(&root.display().to_string(), message),
            below => Problem::whole(below, message),
        };
        let below = match list_one(root, &folder, &mut seen) {
            Ok(below) => below,
            Err(message) => {
                let problem = problem(message);
                listing.unknown.push((folder, problem));
                continue;
            }
        };
        entries += below.len();
        if entries > ENTRIES_MAX || depth > FOLDER_DEPTH_MAX {
            let message = format!(
                "more than {ENTRIES_MAX} files or {FOLDER_DEPTH_MAX} levels of folders: \
                 move files that are not manifests elsewhere"
            );
            let problem = problem(message);
            listing.unknown.push((folder, problem));
            continue;
        }
        for (name, is_folder) in below {
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            if is_folder {
                waiting.push((path, depth + 1));
            } else if is_yaml(&path) {
                listing.files.insert(path);
            }
        }
        listing.folders.insert(folder);
    }
    listing
}

/// The names in one folder, and whether each is a folder.
fn list_one(
    root: &Path,
    folder: &str,
    seen: &mut BTreeSet<(u64, u64)>,
) -> Result<Vec<(String, bool)>, String> {
    let path = if folder.is_empty() { root.to_owned() } else { root.join(folder) };
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotADirectory => {
            "is a file, expected a folder: its last valid objects stay in force".to_owned()
        }
        _ => format!("the folder cannot be read ({error}): its last valid objects stay in force"),
    };
    let meta = fs::metadata(&path).map_err(unreadable)?;
    if !seen.insert((meta.dev(), meta.ino())) {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(&path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with('.') {
            continue;
        }
        // A dangling link counts as a file, so that it is reported.
        let is_folder = fs::metadata(entry.path()).is_ok_and(|meta| meta.is_dir());
        names.push((name, is_folder));
    }
    Ok(names)
}

/// Whether a file of this name is YAML.
pub fn is_yaml(path: &str) -> bool {
    let extension = Path::new(path).extension();
    extension.is_some_and(|extension| extension == "yaml" || extension == "yml")
}

/// Whether a file in the folder of the manifests is one, by its name.
pub fn is_manifest(path: &Path) -> bool {
    let is_hidden = |name: &str| name.starts_with('.');
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| !is_hidden(name) && is_yaml(name))
}

/// A file's text, or what is wrong with it.
pub fn read_text(
    root: &Path,
    file: impl AsRef<Path>,
    bytes_max: u64,
) -> Result<String, Unreadable> {
    let path = root.join(file);
    let wrong = |error: io::Error| Unreadable::Io(error.kind(), error.to_string());
    let meta = fs::metadata(&path).map_err(wrong)?;
    if !meta.is_file() {
        return Err(Unreadable::Other("is not a regular file: replace it".into()));
    }
    let mut bytes = Vec::new();
    // One more byte shows whether the file has grown beyond the limit meanwhile.
    let mut reader = File::open(&path).map_err(wrong)?.take(bytes_max + 1);
    reader.read_to_end(&mut bytes).map_err(wrong)?;
    text_of(bytes, bytes_max)
}

/// The text that a file's content is, or what is wrong with it.
pub(crate) fn text_of(bytes: Vec<u8>, bytes_max: u64) -> Result<String, Unreadable> {
    if bytes.len() as u64 > bytes_max {
        return Err(Unreadable::TooLarge(bytes_max));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let before = String::from_utf8_lossy(&error.as_bytes()[..valid]);
        let last = before.rsplit('\n').next().unwrap_or_default();
        let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let line = small(1 + before.matches('\n').count());
        Unreadable::NotText(Position { line, column: small(1 + last.chars().count()) })
    })
}

impl Unreadable {
    /// The problem to report for `file`.
    pub fn problem(&self, file: &str) -> Problem {
        let at = match self {
            Self::NotText(at) => *at,
            _ => Position::default(),
        };
        Problem::new(file, at, "", self.to_string())
    }
}

/// Why a file gave no text.
#[derive(Debug)]
pub enum Unreadable {
    /// The system did not let it be read.
    Io(io::ErrorKind, String),
    /// It has this many bytes, which are too many.
    TooLarge(u64),
    /// It is not UTF-8, from this place on.
    NotText(Position),
    /// Another reason, in words.
    Other(String),
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(_, error) => write!(f, "cannot be read ({error})"),
            Self::TooLarge(max) => write!(f, "is larger than {max} bytes: split it"),
            Self::NotText(_) => f.write_str("is not UTF-8: save it as UTF-8"),
            Self::Other(message) => f.write_str(message),
        }
    }
}

/// What changes when a file does: where it lies, its size and its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp(Option<[i64; 6]>);

impl Stamp {
    /// The version of the file at `path`; that of a missing file where it cannot be read.
    pub fn of(path: &Path) -> Self {
        Self(fs::metadata(path).ok().map(|meta| {
            let signed = |n: u64| i64::from_ne_bytes(n.to_ne_bytes());
            let (dev, ino, size) = (signed(meta.dev()), signed(meta.ino()), signed(meta.size()));
            [dev, ino, size, meta.mtime(), meta.mtime_nsec(), meta.ctime_nsec()]
        }))
    }

    /// The version of a file that a store wrote at this revision.
    pub fn of_revision(revision: i64) -> Self {
        Self(Some([revision, 0, 0, 0, 0, 0]))
    }

    /// Whether both are of one and the same file or folder, whatever is in it.
    pub fn same_place(&self, other: &Self) -> bool {
        let place = |stamp: &Self| stamp.0.map(|[dev, ino, ..]| (dev, ino));
        place(self).is_some() && place(self) == place(other)
    }
}
