//! A bill of materials for each program: its crates with their versions, licences and checksums, in
//! CycloneDX's format.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::architecture::Architecture;
use crate::program::Program;
use crate::{VERSION, run, tool};

/// The name of the files that the tool writes, one into the folder of each package.
const NAME: &str = "sbom";
/// The tool.
pub(crate) const TOOL: &str = "cargo-cyclonedx";

/// Writes the bills of all programs for an architecture into `folder`.
///
/// # Errors
/// If the tool is not installed or fails.
pub(crate) fn write(
    root: &Path,
    architecture: Architecture,
    time_s: u64,
    folder: &Path,
) -> anyhow::Result<()> {
    // The tool writes beside the manifests.
    let folder_of_sources = tempfile::tempdir().context("a folder for the sources")?;
    let sources = folder_of_sources.path().canonicalize().context("a folder for the sources")?;
    check_out(root, &sources)?;
    run(Command::new(tool(root, TOOL)?)
        .args(["cyclonedx", "--quiet", "--format", "json", "--spec-version", "1.5"])
        .args(["--no-build-deps", "--target", architecture.target(), "--override-filename", NAME])
        .env("SOURCE_DATE_EPOCH", time_s.to_string())
        .current_dir(&sources))?;
    for program in Program::ALL {
        let written = sources.join(program.folder()).join(NAME).with_extension("json");
        let bill = std::fs::read_to_string(&written)
            .with_context(|| format!("no bill of materials of {}", program.package()))?;
        let own = sources.to_str().context("a folder whose name is UTF-8")?;
        let bill = bill.replace(own, "/leasehold");
        let name_of_folder = sources.file_name().and_then(|name| name.to_str()).unwrap_or(own);
        if bill.contains(name_of_folder) {
            bail!("the bill of materials names the folder {own}: set TMPDIR to a plain path");
        }
        let name = format!("{}-{VERSION}-linux-{architecture}.cdx.json", program.binary());
        std::fs::write(folder.join(&name), bill).context(name)?;
    }
    Ok(())
}

/// Copies what is committed.
fn check_out(root: &Path, folder: &Path) -> anyhow::Result<()> {
    let mut archive = Command::new("git")
        .args(["archive", "HEAD"])
        .current_dir(root)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start git")?;
    let packed = archive.stdout.take().context("git archive")?;
    tar::Archive::new(packed).unpack(folder).context("git archive HEAD")?;
    if !archive.wait().context("git archive")?.success() {
        bail!("git archive HEAD failed");
    }
    Ok(())
}
