//! Manifests as text: a file or a folder, and the files of streams that they name.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::bail;
use leasehold_manifest::folder::{self, MANIFEST_BYTES_MAX, is_yaml};
use leasehold_manifest::proposal::stream_files_of;

use crate::usage;

/// The most bytes of one file of streams.
const STREAMS_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The text of manifests.
#[derive(Debug)]
pub(crate) struct ManifestFiles {
    /// By path, below the folder.
    pub(crate) texts: BTreeMap<String, String>,
    /// A folder was named, and not a file.
    pub(crate) are_whole_folder: bool,
}

/// Reads what `-f` names.
///
/// # Errors
/// What cannot be read, or that no manifest is there.
pub(crate) fn read(path: &Path) -> anyhow::Result<ManifestFiles> {
    if let Err(error) = path.metadata() {
        bail!("-f {}: cannot be read ({error}): correct the path", path.display());
    }
    let are_whole_folder = path.is_dir();
    let (root, names) = if are_whole_folder {
        let listing = folder::list(path);
        if let Some((_, problem)) = listing.unknown.first() {
            bail!("{problem}");
        }
        if !listing.files.iter().any(|name| is_yaml(name)) {
            return Err(usage::wrong(format!(
                "-f {}: no .yaml or .yml file is in this folder: name the folder of the manifests",
                path.display()
            )));
        }
        (path, listing.files.into_iter().collect())
    } else {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.filter(|name| is_yaml(name)).ok_or_else(|| {
            let message =
                format!("-f {}: name a .yaml or .yml file, or the folder", path.display());
            usage::wrong(message)
        })?;
        (path.parent().unwrap_or(Path::new("")), vec![name.to_owned()])
    };
    let mut texts = BTreeMap::new();
    for name in names {
        let text = text_of(root, &name)?;
        texts.insert(name, text);
    }
    for name in stream_files_of(&texts) {
        // One that is missing is a problem of the manifest that names it.
        if !texts.contains_key(&name) && root.join(&name).exists() {
            let text = text_of(root, &name)?;
            texts.insert(name, text);
        }
    }
    Ok(ManifestFiles { texts, are_whole_folder })
}

fn text_of(root: &Path, name: &str) -> anyhow::Result<String> {
    let text = folder::read_text(root, name, MANIFEST_BYTES_MAX.max(STREAMS_BYTES_MAX));
    text.map_err(|unreadable| anyhow::anyhow!("{}: {unreadable}", root.join(name).display()))
}
