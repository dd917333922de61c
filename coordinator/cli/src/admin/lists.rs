//! `leasehold clusters`, `workers`, `sets`, `streams`, `pipelines` and `classes`: lists, each with
//! filters, an order and `--watch`.

use std::process::ExitCode;

use clap::ValueEnum;
use leasehold_proto::admin::v1::{
    Class, Cluster, ListClassesResponse, ListClustersResponse, ListPipelinesResponse,
    ListStreamSetsResponse, ListStreamsResponse, ListWorkersResponse, Pipeline, PipelinePhase,
    Presence, Stream, StreamSet, Worker,
};
use leasehold_types::counted;

use super::connection::{ConnectionArgs, Coordinator};
use super::output::{Format, ListArgs, list};
use super::paged::PagedList;
use super::{fetch, run, show, words};
use crate::argument;

/// Options of `clusters`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  leasehold clusters --watch")]
pub(crate) struct ClustersArgs {
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Options of `workers`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold workers
  leasehold workers builds --presence lost
  leasehold workers builds --sort running --reverse -o wide")]
pub(crate) struct WorkersArgs {
    /// The cluster [default: all]
    #[arg(value_parser = argument::cluster)]
    cluster: Option<String>,
    /// Only workers that are connected, silent, lost or unreported
    #[arg(long, value_name = "PRESENCE")]
    presence: Option<WantedPresence>,
    /// Only workers that drain, or are to drain
    #[arg(long)]
    draining: bool,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Whether a worker is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WantedPresence {
    /// Its agent is connected and has reported
    Connected,
    /// It is silent, for less than its leases last
    Silent,
    /// It has been silent for longer
    Lost,
    /// It was known to an earlier leader and has not reported to this one
    Unreported,
}

impl WantedPresence {
    fn matches(self, presence: Presence) -> bool {
        presence
            == match self {
                Self::Connected => Presence::Connected,
                Self::Silent => Presence::Silent,
                Self::Lost => Presence::Lost,
                Self::Unreported => Presence::Unreported,
            }
    }
}

/// Options of `sets`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  leasehold sets")]
pub(crate) struct SetsArgs {
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Options of `streams`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold streams cars
  leasehold streams --unowned
  leasehold streams cars --worker worker-1 -o json")]
pub(crate) struct StreamsArgs {
    /// The stream set [default: all]
    #[arg(value_parser = argument::set)]
    set: Option<String>,
    /// Only streams that this worker has or is to get
    #[arg(long, value_name = "NAME", value_parser = argument::worker)]
    worker: Option<String>,
    /// Only streams without an owner
    #[arg(long)]
    unowned: bool,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Options of `pipelines`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold pipelines
  leasehold pipelines --phase pending")]
pub(crate) struct PipelinesArgs {
    /// Only pipelines in this state
    #[arg(long, value_name = "PHASE")]
    phase: Option<WantedPhase>,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// The state of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WantedPhase {
    /// It waits for workers
    Pending,
    /// Its workers are chosen
    Plotted,
    /// All its workers serve it
    Ready,
    /// A worker of it was lost
    Broken,
}

impl WantedPhase {
    fn matches(self, phase: PipelinePhase) -> bool {
        phase
            == match self {
                Self::Pending => PipelinePhase::Pending,
                Self::Plotted => PipelinePhase::Plotted,
                Self::Ready => PipelinePhase::Ready,
                Self::Broken => PipelinePhase::Broken,
            }
    }
}

/// Options of `classes`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  leasehold classes")]
pub(crate) struct ClassesArgs {
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Runs `leasehold clusters`.
///
/// # Errors
/// What the coordinator answers, or that none does.
pub(crate) fn clusters(args: &ClustersArgs) -> anyhow::Result<ExitCode> {
    args.list.check::<Cluster>()?;
    run(&args.connection, async |mut coordinator| {
        show(&mut coordinator, args.list.watch, async |coordinator| {
            let clusters = fetch::clusters(coordinator).await?;
            let text = list(&args.list, clusters, |clusters| ListClustersResponse { clusters })?;
            Ok(text + &problems_note(coordinator, &args.list).await)
        })
        .await
    })
}

/// Runs `leasehold workers`.
///
/// # Errors
/// What the coordinator answers, or that none does.
pub(crate) fn workers(args: &WorkersArgs) -> anyhow::Result<ExitCode> {
    args.list.check::<Worker>()?;
    run(&args.connection, async |mut coordinator| {
        show(&mut coordinator, args.list.watch, async |coordinator| {
            let clusters = match &args.cluster {
                Some(cluster) => vec![cluster.clone()],
                None => {
                    let all = fetch::clusters(coordinator).await?;
                    all.into_iter().map(|cluster| cluster.name).collect()
                }
            };
            let mut workers = Vec::new();
            for cluster in clusters {
                workers.extend(fetch::workers(coordinator, &cluster).await?);
            }
            workers.retain(|worker| {
                args.presence.is_none_or(|wanted| wanted.matches(worker.presence()))
                    && (words::drains(worker) || !args.draining)
            });
            list(&args.list, workers, |workers| ListWorkersResponse {
                workers,
                ..ListWorkersResponse::default()
            })
        })
        .await
    })
}

/// Runs `leasehold sets`.
///
/// # Errors
/// What the coordinator answers, or that none does.
pub(crate) fn sets(args: &SetsArgs) -> anyhow::Result<ExitCode> {
    args.list.check::<StreamSet>()?;
    run(&args.connection, async |mut coordinator| {
        show(&mut coordinator, args.list.watch, async |coordinator| {
            let sets = fetch::sets(coordinator).await?;
            let text = list(&args.list, sets, |sets| ListStreamSetsResponse { sets })?;
            Ok(text + &problems_note(coordinator, &args.list).await)
        })
        .await
    })
}

/// Runs `leasehold streams`.
///
/// # Errors
/// What the coordinator answers, or that none does.
pub(crate) fn streams(args: &StreamsArgs) -> anyhow::Result<ExitCode> {
    args.list.check::<Stream>()?;
    run(&args.connection, async |mut coordinator| {
        let is_whole = args.list.sort.is_some() || args.list.watch;
        let paged = PagedList::new(args.list.output, &ListStreamsResponse::default());
        if let Some(mut paged) = paged.filter(|_| !is_whole) {
            let is_read_to_the_end =
                each_page(&mut coordinator, args, |page| paged.print(&page)).await?;
            if is_read_to_the_end {
                paged.print_end::<Stream>()?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        show(&mut coordinator, args.list.watch, async |coordinator| {
            let mut streams = Vec::new();
            let take = |page: Vec<Stream>| {
                streams.extend(page);
                Ok(true)
            };
            each_page(coordinator, args, take).await?;
            list(&args.list, streams, |streams| ListStreamsResponse {
                streams,
                ..ListStreamsResponse::default()
            })
        })
        .await
    })
}

/// Takes the wanted streams, page by page, while `take` wants more; returns whether it took all.
async fn each_page(
    coordinator: &mut Coordinator,
    args: &StreamsArgs,
    mut take: impl FnMut(Vec<Stream>) -> anyhow::Result<bool>,
) -> anyhow::Result<bool> {
    let sets = match &args.set {
        Some(set) => vec![set.clone()],
        None => fetch::sets(coordinator).await?.into_iter().map(|set| set.name).collect(),
    };
    let worker = args.worker.as_deref().unwrap_or_default();
    for set in sets {
        let wants_more = fetch::each_page_of_streams(coordinator, &set, worker, |mut page| {
            page.retain(|stream| !args.unowned || stream.claims.is_empty());
            take(page)
        });
        if !wants_more.await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Runs `leasehold pipelines`.
///
/// # Errors
/// What the coordinator answers, or that none does.
pub(crate) fn pipelines(args: &PipelinesArgs) -> anyhow::Result<ExitCode> {
    args.list.check::<Pipeline>()?;
    run(&args.connection, async |mut coordinator| {
        show(&mut coordinator, args.list.watch, async |coordinator| {
            let mut pipelines = fetch::pipelines(coordinator).await?;
            pipelines.retain(|one| args.phase.is_none_or(|phase| phase.matches(one.phase())));
            let text = list(&args.list, pipelines, |pipelines| ListPipelinesResponse {
                pipelines,
                ..ListPipelinesResponse::default()
            })?;
            Ok(text + &problems_note(coordinator, &args.list).await)
        })
        .await
    })
}

/// Runs `leasehold classes`.
///
/// # Errors
/// What the coordinator answers, or that none does.
pub(crate) fn classes(args: &ClassesArgs) -> anyhow::Result<ExitCode> {
    args.list.check::<Class>()?;
    run(&args.connection, async |mut coordinator| {
        show(&mut coordinator, args.list.watch, async |coordinator| {
            let classes = fetch::classes(coordinator).await?;
            let text = list(&args.list, classes, |classes| ListClassesResponse { classes })?;
            Ok(text + &problems_note(coordinator, &args.list).await)
        })
        .await
    })
}

/// The line below a table that says that not all of it is as the manifests say.
async fn problems_note(coordinator: &mut Coordinator, args: &ListArgs) -> String {
    if !matches!(args.output, Format::Table | Format::Wide) {
        return String::new();
    }
    match fetch::problems(coordinator).await.len() {
        0 => String::new(),
        problems => format!(
            "\n{} with manifests, of which the last good state stays in force: `leasehold status` \
             lists them\n",
            counted(problems, "problem")
        ),
    }
}
