//! k8s-swarm's `config.yml` with one worker in it, replaced atomically.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use leasehold_types::StreamName;

/// The permissions of a new file.
const MODE: u32 = 0o644;
/// The most symbolic links that are followed, as in Linux.
const LINKS_MAX: usize = 40;

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) streams: BTreeSet<StreamName>,
    /// Set if the worker also reads its pool size here.
    pub(crate) pool_size: Option<u32>,
}

/// Renders the file.
pub(crate) fn render(worker: &str, entry: &Entry, version: u64) -> String {
    let Entry { streams, pool_size } = entry;
    let mut out = format!("workloads:\n  {}:\n", scalar(worker));
    if streams.is_empty() {
        out.push_str("    jobs: []\n");
    } else {
        out.push_str("    jobs:\n");
    }
    for stream in streams {
        let _ = writeln!(out, "      - {}", scalar(stream.as_str()));
    }
    if let Some(size) = pool_size {
        let _ = writeln!(out, "    poolSize: {size}");
    }
    let _ = writeln!(out, "    version: {version}\nversion: {version}");
    out
}

/// The version in the file, 0 if it has none: the line that starts with `version:` without an
/// indent, whichever process wrote it.
pub(super) fn version_in(path: &Path) -> u64 {
    version_of(&std::fs::read_to_string(path).unwrap_or_default())
}

pub(crate) fn version_of(text: &str) -> u64 {
    let versions = text.lines().filter_map(|line| line.strip_prefix("version:"));
    versions.filter_map(|version| version.trim().parse().ok()).next_back().unwrap_or(0)
}

/// The pool size in the file, 0 if it has none; the largest if it lists several workers.
pub(super) fn pool_size_in(path: &Path) -> u32 {
    pool_size_of(&std::fs::read_to_string(path).unwrap_or_default())
}

pub(crate) fn pool_size_of(text: &str) -> u32 {
    let sizes = text.lines().filter_map(|line| line.trim_start().strip_prefix("poolSize:"));
    sizes.filter_map(|size| size.trim().parse().ok()).max().unwrap_or(0)
}

/// Replaces the file atomically, and keeps its permissions. On failure the old file is unchanged.
/// If the path is a symbolic link, its target is replaced.
pub(super) fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let path = &target(path)?;
    let no_name = || std::io::Error::other(format!("{} is not the path of a file", path.display()));
    let name = path.file_name().ok_or_else(no_name)?;
    let temp = path.with_file_name(format!(".{}.leasehold-new", name.to_string_lossy()));
    let done = write_new(&temp, path, text).and_then(|()| std::fs::rename(&temp, path));
    if done.is_err() {
        let _ = std::fs::remove_file(&temp);
        return done;
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Resolves symbolic links. The target need not exist.
fn target(path: &Path) -> std::io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let is_link = std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink());
        if !is_link {
            return Ok(path);
        }
        let next = std::fs::read_link(&path)?;
        path.pop();
        path.push(next);
    }
    Err(std::io::Error::other("too many levels of symbolic links"))
}

fn write_new(temp: &Path, path: &Path, text: &str) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.create(true).write(true).truncate(true).mode(MODE).open(temp)?;
    if let Ok(old) = std::fs::metadata(path) {
        file.set_permissions(old.permissions())?;
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// A text as a YAML scalar, plain only if YAML 1.1 and 1.2 both read it as a string.
fn scalar(text: &str) -> String {
    let harmless = |c: char| c.is_ascii_alphanumeric() || "_.:/-".contains(c);
    let words = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(harmless)
        && !text.ends_with(':')
        && !words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if plain {
        return text.to_owned();
    }
    // A JSON string is a double-quoted YAML scalar.
    serde_json::to_string(text).expect("a text is JSON")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(names: &[&str]) -> Entry {
        let streams = names.iter().map(|name| StreamName::new(name).expect("a name")).collect();
        Entry { streams, pool_size: None }
    }

    #[test]
    fn renders_the_format_of_k8s_swarm() {
        let text = render("swarm-worker-0", &names(&["stream:b", "stream:a"]), 3);
        assert_eq!(
            text,
            "workloads:\n  swarm-worker-0:\n    jobs:\n      - stream:a\n      - stream:b\n    \
             version: 3\nversion: 3\n"
        );
        assert!(render("w", &names(&[]), 4).contains("    jobs: []\n"));
    }

    #[test]
    fn writes_the_pool_size_and_reads_it_back() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("config.yml");
        assert_eq!(pool_size_in(&path), 0);
        let text = render("w", &Entry { pool_size: Some(3), ..names(&["a"]) }, 7);
        let wanted = "workloads:\n  w:\n    jobs:\n      - a\n    poolSize: 3\n    version: 7\n\
                      version: 7\n";
        assert_eq!(text, wanted);
        std::fs::write(&path, text).expect("written");
        assert_eq!((pool_size_in(&path), version_in(&path)), (3, 7));
    }

    #[test]
    fn quotes_names_that_yaml_would_not_read_as_strings() {
        for plain in ["cars:new", "a", "db/x.y-z_1"] {
            assert_eq!(scalar(plain), plain);
        }
        for odd in ["1", "1:30", "true", "No", "a: b", "a:", "#a", "- a", "ä", "a\"b", "*a", "~"] {
            assert!(scalar(odd).starts_with('"'), "{odd}");
        }
    }

    #[test]
    fn replaces_the_target_of_a_symbolic_link() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("data");
        std::fs::create_dir(&folder).expect("it is ours");
        let (link, between) = (dir.path().join("config.yml"), folder.join("between"));
        symlink("data/between", &link).expect("it is ours");
        symlink("config.yml", &between).expect("it is ours");
        for text in ["one", "two"] {
            replace(&link, text).expect("it is replaced");
            assert_eq!(std::fs::read_to_string(folder.join("config.yml")).expect("a file"), text);
            assert!(link.is_symlink() && between.is_symlink());
        }
        symlink("loop", dir.path().join("loop")).expect("it is ours");
        let error = replace(&dir.path().join("loop"), "").expect_err("a loop");
        assert!(error.to_string().contains("symbolic links"), "{error}");
    }

    #[test]
    fn replacing_keeps_the_permissions_and_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("config.yml");
        assert_eq!(version_in(&path), 0);
        std::fs::write(&path, "workloads:\n  w:\n    version: 0\nversion: 41\n").expect("written");
        let mode = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(&path, mode).expect("it is ours");
        assert_eq!(version_in(&path), 41);
        replace(&path, &render("w", &names(&["a"]), 42)).expect("it is replaced");
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert_eq!(version_in(&path), 42);
        let left: Vec<_> = std::fs::read_dir(dir.path()).expect("readable").collect();
        assert_eq!(left.len(), 1, "a temporary file is left: {left:?}");
    }
}
