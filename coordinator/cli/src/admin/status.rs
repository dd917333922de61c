//! `leasehold status`: the whole fleet on one screen.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use leasehold_proto::admin::v1::{
    Class, Cluster, ListClassesResponse, ListClustersResponse, ListPipelinesResponse,
    ListStreamSetsResponse, ManifestProblem, Pipeline, PipelinePhase, Share, StreamSet,
};
use leasehold_proto::json;
use leasehold_types::counted;
use serde_json::{Value, json};

use super::connection::{ConnectionArgs, Coordinator};
use super::output::{Format, table};
use super::replicas::{self, Replica};
use super::{fetch, run, show, words};

/// The most pipelines that are named one by one.
const NAMED_MAX: usize = 5;

/// Options of `status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold status
  leasehold status --watch
  leasehold status --coordinator 127.0.0.1:7400,127.0.0.1:7410 -o json")]
pub(crate) struct Args {
    /// The form of the output: table, wide, json or yaml
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// Show it again every second
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Everything that the screen shows.
struct FleetStatus {
    replicas: Vec<Replica>,
    clusters: Vec<Cluster>,
    sets: Vec<StreamSet>,
    pipelines: Vec<Pipeline>,
    classes: Vec<Class>,
}

/// Runs `leasehold status`.
///
/// # Errors
/// What the coordinator answers, or that none does.
pub(crate) fn status(args: &Args) -> anyhow::Result<ExitCode> {
    args.output.refuse_names()?;
    run(&args.connection, async |mut coordinator| {
        show(&mut coordinator, args.watch, async |coordinator| {
            let fleet = look(coordinator).await?;
            match args.output {
                Format::Table => Ok(as_text(&fleet, false)),
                Format::Wide => Ok(as_text(&fleet, true)),
                Format::Json => {
                    Ok(format!("{}\n", serde_json::to_string_pretty(&as_json(&fleet))?))
                }
                Format::Yaml | Format::Name => Ok(serde_yaml::to_string(&as_json(&fleet))?),
            }
        })
        .await
    })
}

async fn look(coordinator: &mut Coordinator) -> anyhow::Result<FleetStatus> {
    Ok(FleetStatus {
        replicas: replicas::all(coordinator).await?,
        clusters: fetch::clusters(coordinator).await?,
        sets: fetch::sets(coordinator).await?,
        pipelines: fetch::pipelines(coordinator).await?,
        classes: fetch::classes(coordinator).await?,
    })
}

fn as_text(fleet: &FleetStatus, wide: bool) -> String {
    let mut parts = vec![table(&fleet.replicas, false), cells(&fleet.replicas)];
    parts.push(if fleet.clusters.is_empty() {
        "No manifest defines a cluster.\n".to_owned()
    } else {
        table(&fleet.clusters, wide)
    });
    let held = fleet.clusters.iter().filter(|cluster| !cluster.held.is_empty());
    parts.push(
        held.map(|cluster| format!("{} is on hold: {}\n", cluster.name, cluster.held)).collect(),
    );
    parts.push(fleet.clusters.iter().filter_map(failing).collect());
    parts.push(fleet.clusters.iter().filter_map(names_wanted).collect());
    if !fleet.sets.is_empty() {
        let unowned: Vec<_> =
            fleet.sets.iter().filter(|set| set.streams_owned < set.streams).cloned().collect();
        parts.push(if unowned.is_empty() {
            let streams: u64 = fleet.sets.iter().map(|set| u64::from(set.streams)).sum();
            let sets = counted(fleet.sets.len(), "stream set");
            format!("{sets}: {} owned.\n", all_of(streams, "stream"))
        } else {
            format!("Sets with streams that nobody owns:\n{}", table(&unowned, wide))
        });
    }
    if !fleet.pipelines.is_empty() {
        parts.push(pipelines(&fleet.pipelines));
        parts.push(table(&fleet.classes, wide));
    }
    parts.push(warnings(&fleet.replicas));
    parts.push(problems(&fleet.replicas));
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

/// How many workers of a cluster fail; none where none does.
fn failing(cluster: &Cluster) -> Option<String> {
    let Cluster { name, failing: count, .. } = cluster;
    let workers = counted(*count, "worker");
    let fail = if *count == 1 { "fails" } else { "fail" };
    let line = format!("{name}: {workers} {fail}; `leasehold explain cluster {name}` names them\n");
    (*count > 0).then_some(line)
}

/// That other agents want names of a cluster's workers; none where none does.
fn names_wanted(cluster: &Cluster) -> Option<String> {
    let Cluster { name, names_wanted: count, .. } = cluster;
    let names = counted(*count, "name");
    let line = format!(
        "{name}: another agent wants {names} that a worker has, and is refused; \
         `leasehold explain cluster {name}` names them\n"
    );
    (*count > 0).then_some(line)
}

fn all_of(count: u64, noun: &str) -> String {
    match count {
        0 => format!("no {noun}"),
        1 => format!("its {noun} is"),
        _ => format!("all {count} {noun}s are"),
    }
}

fn pipelines(pipelines: &[Pipeline]) -> String {
    let of = |phase| pipelines.iter().filter(|one| one.phase() == phase).count();
    let phases = [
        PipelinePhase::Ready,
        PipelinePhase::Plotted,
        PipelinePhase::Pending,
        PipelinePhase::Broken,
    ];
    let phases = phases.map(|phase| (of(phase), words::pipeline(phase)));
    let counts = phases.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<_> = counts.map(|(count, phase)| format!("{count} {phase}")).collect();
    let counts = format!("{}: {}\n", counted(pipelines.len(), "pipeline"), counts.join(", "));
    counts + &changes_that_wait(pipelines) + &unaddressed(pipelines)
}

/// The pipelines that serve, and not as their manifests say.
fn changes_that_wait(pipelines: &[Pipeline]) -> String {
    let waiting = pipelines
        .iter()
        .filter(|one| one.phase() == PipelinePhase::Ready && !one.reason.is_empty());
    let waiting: Vec<_> = waiting.collect();
    let named = waiting.iter().take(NAMED_MAX);
    let lines = named.map(|one| format!("{} is ready, but {}\n", one.name, one.reason));
    let more = waiting.len().saturating_sub(NAMED_MAX);
    let more = (more > 0).then(|| format!("{more} more like them: see `leasehold pipelines`\n"));
    lines.chain(more).collect()
}

/// The pipelines with workers that nobody can send documents to.
fn unaddressed(pipelines: &[Pipeline]) -> String {
    let lacks = |share: &Share| !share.token.is_empty() && share.address.is_empty();
    let without: Vec<_> = pipelines
        .iter()
        .filter(|one| one.bindings.iter().any(|binding| binding.shares.iter().any(lacks)))
        .collect();
    let Some(first) = without.first() else { return String::new() };
    let (count, name) = (counted(without.len(), "pipeline"), &first.name);
    format!(
        "{count} with workers that name no address: `leasehold explain pipeline {name}` says \
         which\n"
    )
}

/// The cell of the replicas, and the coordinators of others that workers reach.
fn cells(replicas: &[Replica]) -> String {
    let statuses = || replicas.iter().filter_map(Replica::status);
    let own: BTreeSet<_> = statuses()
        .filter(|status| !status.cell.is_empty())
        .map(|status| format!("Cell {}, store {}\n", status.cell, status.store))
        .collect();
    let others: BTreeSet<_> =
        statuses().flat_map(|status| &status.other_cells).map(words::other_cell).collect();
    let what_to_do = if others.is_empty() && own.len() < 2 {
        ""
    } else {
        "Both cells may grant the same budget and streams: see \"Two cells\" in \
         docs/OPERATIONS.md.\n"
    };
    own.into_iter().chain(others).collect::<String>() + what_to_do
}

/// What is wrong with replicas beside others.
fn warnings(replicas: &[Replica]) -> String {
    let known = replicas.iter().filter_map(Replica::status).flat_map(|status| &status.replicas);
    let lines: BTreeSet<_> = known
        .filter(|replica| !replica.warning.is_empty())
        .map(|replica| format!("The replica at {} {}\n", replica.address, replica.warning))
        .collect();
    lines.into_iter().collect()
}

/// What is wrong with the manifests, each problem once.
fn problems(replicas: &[Replica]) -> String {
    let statuses = replicas.iter().filter_map(Replica::status);
    // Each replica counts the time for itself.
    let mut problems: BTreeMap<_, &ManifestProblem> = BTreeMap::new();
    for problem in statuses.flat_map(|status| &status.problems) {
        let ManifestProblem { file, line, column, field, message, .. } = problem;
        let first = problems.entry((file, line, column, field, message)).or_insert(problem);
        if problem.due_seconds < first.due_seconds {
            *first = problem;
        }
    }
    let lines: Vec<_> = problems.into_values().map(words::problem).collect();
    if lines.is_empty() {
        return String::new();
    }
    let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
    format!("Problems of manifests; the last good state stays in force:\n{lines}")
}

fn as_json(fleet: &FleetStatus) -> Value {
    let replicas: Vec<_> = fleet.replicas.iter().map(Replica::as_json).collect();
    let clusters = json::value(&ListClustersResponse { clusters: fleet.clusters.clone() });
    let sets = json::value(&ListStreamSetsResponse { sets: fleet.sets.clone() });
    let classes = json::value(&ListClassesResponse { classes: fleet.classes.clone() });
    let pipelines = ListPipelinesResponse {
        pipelines: fleet.pipelines.clone(),
        ..ListPipelinesResponse::default()
    };
    json!({
        "replicas": replicas,
        "clusters": clusters["clusters"],
        "sets": sets["sets"],
        "pipelines": json::value(&pipelines)["pipelines"],
        "classes": classes["classes"],
    })
}
