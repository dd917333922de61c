//! A plan by edited manifests. The coordinator reads them, by the rules by which it reads its own.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::bail;
use leasehold_manifest::folder::{self, MANIFEST_BYTES_MAX, is_yaml};
use leasehold_manifest::proposal::stream_files_of;
use leasehold_proto::admin::v1::{
    ManifestFile, ObjectChange, ObjectChangeKind, PlanManifestsRequest, PlanManifestsResponse,
};

use super::{as_text, pipelines};
use crate::admin::connection::Coordinator;
use crate::admin::output::{Format, object, print};
use crate::admin::words;
use crate::usage;

/// The most bytes of all files: what the coordinator takes.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Reads a file or a folder, and the files of streams that the manifests name.
///
/// # Errors
/// What cannot be read, or that there is too much.
pub(super) fn read(path: &Path) -> anyhow::Result<PlanManifestsRequest> {
    if let Err(error) = path.metadata() {
        bail!("-f {}: cannot be read ({error}): correct the path", path.display());
    }
    let whole_folder = path.is_dir();
    let (root, names) = if whole_folder {
        let listing = folder::list(path);
        if let Some((_, problem)) = listing.unknown.first() {
            bail!("{problem}");
        }
        if !listing.files.iter().any(|name| is_yaml(name)) {
            return Err(usage::wrong(format!(
                "-f {}: no .yaml or .yml file is in this folder, and a plan of it would remove all \
                 that is in force: name the folder of the manifests",
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
    let mut files = BTreeMap::new();
    for name in names {
        let text = text_of(root, &name)?;
        files.insert(name, text);
    }
    for name in stream_files_of(&files) {
        // One that is missing is a problem of the manifest that names it: the coordinator says so.
        if !files.contains_key(&name) && root.join(&name).exists() {
            let text = text_of(root, &name)?;
            files.insert(name, text);
        }
    }
    let bytes: usize = files.iter().map(|(name, text)| name.len() + text.len()).sum();
    if bytes > BYTES_MAX {
        bail!(
            "{}: {bytes} bytes of manifests are too much for a plan, which takes {BYTES_MAX}: name \
             the edited file alone",
            path.display()
        );
    }
    let files = files.into_iter().map(|(path, text)| ManifestFile { path, text }).collect();
    Ok(PlanManifestsRequest { files, whole_folder })
}

fn text_of(root: &Path, name: &str) -> anyhow::Result<String> {
    let text = folder::read_text(root, name, MANIFEST_BYTES_MAX.max(BYTES_MAX as u64));
    text.map_err(|unreadable| anyhow::anyhow!("{}: {unreadable}", root.join(name).display()))
}

/// Prints what manifests would change; returns whether they would break something.
///
/// # Errors
/// What the coordinator answers, or that none does.
pub(super) async fn plan(
    coordinator: &mut Coordinator,
    request: PlanManifestsRequest,
    output: Format,
) -> anyhow::Result<bool> {
    let answer =
        coordinator.ask(async |mut client| client.plan_manifests(request.clone()).await).await?;
    print(&match output {
        Format::Table | Format::Wide => text(&answer),
        format => object(format, &answer)?,
    })?;
    let plans = answer.clusters.iter().filter_map(|cluster| cluster.plan.as_ref());
    let unplaced = plans.into_iter().any(|plan| !plan.unplaced.is_empty());
    let stopped = answer.pipelines.iter().any(pipelines::is_stopped);
    let unchanged = answer.pipelines.iter().any(pipelines::is_unchanged);
    Ok(unplaced || stopped || unchanged || !answer.problems.is_empty())
}

fn text(answer: &PlanManifestsResponse) -> String {
    let mut parts = Vec::new();
    if !answer.problems.is_empty() {
        let problems = answer.problems.iter().map(words::problem);
        let lines: String = problems.map(|line| format!("  {line}\n")).collect();
        parts.push(format!("These would not come into force; the plan is without them:\n{lines}"));
    }
    parts.push(if answer.changes.is_empty() {
        "Nothing changes.\n".to_owned()
    } else {
        answer.changes.iter().map(change).collect()
    });
    for cluster in &answer.clusters {
        if let Some(plan) = &cluster.plan {
            parts.push(format!(
                "Cluster {}:\n{}",
                cluster.cluster,
                as_text(&cluster.cluster, plan)
            ));
        }
    }
    parts.extend(pipelines::as_text(&answer.pipelines, &answer.classes));
    parts.join("\n")
}

fn change(change: &ObjectChange) -> String {
    let verb = match change.kind() {
        ObjectChangeKind::Added => "is new",
        ObjectChangeKind::Changed => "changes",
        ObjectChangeKind::Removed => "goes",
        ObjectChangeKind::Unspecified => "changes in some way",
    };
    format!("{} {verb}\n", change.object)
}
