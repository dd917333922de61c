//! The chart and the manifests, with the registry that the images of this release are in.

use std::path::Path;

use anyhow::Context;
use leasehold_kube_api::names::UNPUBLISHED_IMAGES;

use crate::archive::{Archive, is_program};
use crate::{VERSION, tracked};

/// The chart's folder.
const CHART: &str = "deploy/helm/leasehold";
/// This program's own sources, which nobody installs.
const RELEASE: &str = "deploy/release/";

/// Writes the chart's package, and an archive of the folder `deploy`, into `folder`.
///
/// # Errors
/// If a file cannot be read or written.
pub(crate) fn write(root: &Path, images: &str, time_s: u64, folder: &Path) -> anyhow::Result<()> {
    let package = folder.join(format!("leasehold-{VERSION}.tgz"));
    let mut chart = Archive::create(&package, "leasehold", time_s)?;
    add(&mut chart, root, CHART, CHART, images)?;
    chart.finish()?;
    let name = format!("leasehold-deploy-{VERSION}");
    let mut deploy = Archive::create(&folder.join(format!("{name}.tar.gz")), &name, time_s)?;
    add(&mut deploy, root, "deploy", "deploy", images)?;
    deploy.finish()
}

/// Adds the tracked files of `below` at their paths after `prefix`.
fn add(
    archive: &mut Archive,
    root: &Path,
    below: &str,
    prefix: &str,
    images: &str,
) -> anyhow::Result<()> {
    for path in tracked(root, below)?.iter().filter(|path| !path.starts_with(RELEASE)) {
        let source = root.join(path);
        let metadata = source.metadata().with_context(|| path.clone())?;
        let data = std::fs::read(&source).with_context(|| path.clone())?;
        let data = match String::from_utf8(data) {
            Ok(text) => text.replace(UNPUBLISHED_IMAGES, images).into_bytes(),
            Err(binary) => binary.into_bytes(),
        };
        let path = path.strip_prefix(prefix).unwrap_or(path.as_str()).trim_start_matches('/');
        archive.add(path, &data, is_program(&metadata))?;
    }
    Ok(())
}
