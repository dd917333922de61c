//! Reads manifests from files, folders and stdin.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read};
use std::path::Path;

use anyhow::{Context, bail};

use crate::usage;

/// The largest source.
const BYTES_MAX: u64 = 64 * 1024 * 1024;
/// The most files in a folder.
const FILES_MAX: usize = 10_000;

/// A file, or stdin.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Its path or `stdin`, for messages.
    pub(crate) name: String,
    /// The text.
    pub(crate) text: String,
}

/// Reads the arguments of `--filename`: `-` is stdin; a folder means its `.yaml`, `.yml` and
/// `.json` files, sorted by name.
pub(crate) fn read(names: &[String]) -> anyhow::Result<Vec<Source>> {
    let mut all = Vec::new();
    let mut stdin = false;
    for name in names {
        let path = Path::new(name);
        if name == "-" {
            if std::mem::replace(&mut stdin, true) {
                return Err(usage::wrong(
                    "-f - is given twice, but stdin can be read only once: give it once",
                ));
            }
            all.push(from_stdin()?);
        } else if path.is_dir() {
            for file in files(path).with_context(|| format!("cannot read the folder {name}"))? {
                all.push(from_file(&file)?);
            }
        } else {
            all.push(from_file(path)?);
        }
    }
    Ok(all)
}

fn from_stdin() -> anyhow::Result<Source> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        eprintln!("reading manifests from the terminal: end with Ctrl-D on an empty line");
    }
    text("stdin", stdin.lock())
}

fn from_file(path: &Path) -> anyhow::Result<Source> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    text(&name, file)
}

fn text(name: &str, from: impl Read) -> anyhow::Result<Source> {
    let mut bytes = Vec::new();
    let read = from.take(BYTES_MAX + 1).read_to_end(&mut bytes);
    read.with_context(|| format!("cannot read {name}"))?;
    if bytes.len() as u64 > BYTES_MAX {
        bail!("{name} is larger than {} MiB: split the file", BYTES_MAX >> 20);
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Source { name: name.into(), text }),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let line = error.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
            bail!("{name}: line {line} is not UTF-8: save the file as UTF-8")
        }
    }
}

fn files(folder: &Path) -> anyhow::Result<Vec<std::path::PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let extension =
            path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if ["yaml", "yml", "json"].contains(&extension) && path.is_file() {
            all.push(path);
        }
        if all.len() > FILES_MAX {
            bail!("the folder has more than {FILES_MAX} manifests: name smaller folders");
        }
    }
    if all.is_empty() {
        bail!(
            "the folder has no .yaml, .yml or .json file, and folders inside it are not read: name \
             the folder that has the files"
        );
    }
    all.sort();
    Ok(all)
}
