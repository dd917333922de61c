//! The checksums of a release's files, as `sha256sum --check` reads them.

use std::path::Path;

use anyhow::Context;
use ring::digest::{SHA256, digest};

/// The name of their file.
pub(crate) const FILE: &str = "SHA256SUMS";

/// The SHA-256 of some data in hexadecimal digits.
pub(crate) fn sha256(data: &[u8]) -> String {
    digest(&SHA256, data).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes the checksums of all files of `folder` into a file beside them.
///
/// # Errors
/// If a file cannot be read, or the checksums not be written.
pub(crate) fn write(folder: &Path) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for name in super::file_names(folder)? {
        let data = std::fs::read(folder.join(&name)).with_context(|| name.clone())?;
        lines.push(format!("{}  {name}\n", sha256(&data)));
    }
    std::fs::write(folder.join(FILE), lines.concat()).context(FILE)
}
