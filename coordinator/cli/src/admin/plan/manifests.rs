//! A plan by edited manifests. The coordinator reads them, by the rules by which it reads its own.

use std::path::Path;

use anyhow::bail;
use leasehold_proto::admin::v1::{
    ManifestFile, ObjectChange, ObjectChangeKind, PlanManifestsRequest, PlanManifestsResponse,
};

use super::{as_text, pipelines};
use crate::admin::connection::Coordinator;
use crate::admin::output::{Format, object, print};
use crate::admin::words;
use crate::manifest_files::{self, ManifestFiles};

/// The most bytes of all files: what the coordinator takes.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Reads a file or a folder, and the files of streams that the manifests name.
///
/// # Errors
/// What cannot be read, or that there is too much.
pub(super) fn read(path: &Path) -> anyhow::Result<PlanManifestsRequest> {
    let ManifestFiles { texts, are_whole_folder } = manifest_files::read(path)?;
    let bytes: usize = texts.iter().map(|(name, text)| name.len() + text.len()).sum();
    if bytes > BYTES_MAX {
        bail!(
            "{}: {bytes} bytes of manifests are too much for a plan, which takes {BYTES_MAX}: name \
             the edited file alone",
            path.display()
        );
    }
    let files = texts.into_iter().map(|(path, text)| ManifestFile { path, text }).collect();
    Ok(PlanManifestsRequest { files, whole_folder: are_whole_folder })
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
