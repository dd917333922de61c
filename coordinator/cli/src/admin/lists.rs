//! `leasehold clusters`, `workers`, `sets`, `streams`, `pipelines` and `classes`: lists, each with
//! filters, an order and `--watch`.

use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use leasehold_proto::admin::v1::{
    Class, Cluster, ListClassesRequest, ListClassesResponse, ListClustersRequest,
    ListClustersResponse, ListPipelinesRequest, ListPipelinesResponse, ListStreamSetsRequest,
    ListStreamSetsResponse, ListStreamsRequest, ListStreamsResponse, ListWorkersRequest,
    ListWorkersResponse, Pipeline, PipelinePhase, Presence, Stream, StreamSet, Worker,
};

use super::connection::{ConnectionArgs, Coordinator};
use super::output::{
    Column, ListArgs, NONE, TableRow, list, number, or_none, text, wide_number, wide_text,
};
use super::{run, show, words};

/// The most entries of a page that is asked for.
const PAGE_SIZE: u32 = 10_000;

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
    set: Option<String>,
    /// Only streams that this worker has or is to get
    #[arg(long, value_name = "NAME")]
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

impl TableRow for Cluster {
    const PLURAL: &'static str = "clusters";
    const COLUMNS: &'static [Column<Self>] = &[
        text("CLUSTER", |cluster| cluster.name.clone()),
        number("BUDGET", |cluster| budget(cluster, cluster.max_jobs)),
        number("RUNNING", |cluster| cluster.running.to_string()),
        number("GRANTED", |cluster| cluster.granted.to_string()),
        number("COMMITTED", |cluster| cluster.committed.to_string()),
        number("WORKERS", |cluster| cluster.workers.to_string()),
        number("CONNECTED", |cluster| cluster.connected.to_string()),
        number("DRAINING", |cluster| cluster.draining.to_string()),
        number("LOST", |cluster| cluster.lost.to_string()),
        wide_number("UNREPORTED", |cluster| cluster.unreported.to_string()),
        number("STREAMS", |cluster| part_of(cluster.streams_owned, cluster.streams)),
        wide_number("PER-WORKER", |cluster| budget(cluster, cluster.max_jobs_per_worker)),
        wide_text("HELD", |cluster| or_none(&cluster.held)),
    ];

    fn name(&self) -> String {
        self.name.clone()
    }
}

impl TableRow for Worker {
    const PLURAL: &'static str = "workers";
    const COLUMNS: &'static [Column<Self>] = &[
        text("CLUSTER", |worker| worker.cluster.clone()),
        text("WORKER", |worker| worker.name.clone()),
        text("PRESENCE", |worker| words::presence(worker.presence()).to_owned()),
        text("DRAIN", |worker| words::drain(worker.drain(), worker.drain_ordered).to_owned()),
        number("RUNNING", |worker| optional(worker.running)),
        number("GRANTED", |worker| worker.granted.to_string()),
        number("WANTED", |worker| worker.wanted.to_string()),
        number("COMMITTED", |worker| worker.committed.to_string()),
        number("STREAMS", |worker| worker.streams.to_string()),
        wide_number("LOAD", |worker| words::load(worker.documents_per_second)),
        number("HEARD", |worker| match worker.silent_for_ms {
            Some(millis) => words::age(Duration::from_millis(millis)),
            None => NONE.to_owned(),
        }),
        wide_number("GENERATION", |worker| worker.generation.to_string()),
        wide_text("TOKEN", |worker| or_none(&worker.pool_token)),
        wide_text("ADDRESS", |worker| or_none(&worker.address)),
    ];

    fn name(&self) -> String {
        format!("{}/{}", self.cluster, self.name)
    }
}

impl TableRow for StreamSet {
    const PLURAL: &'static str = "stream sets";
    const COLUMNS: &'static [Column<Self>] = &[
        text("SET", |set| set.name.clone()),
        text("CLUSTER", |set| set.cluster.clone()),
        number("STREAMS", |set| set.streams.to_string()),
        number("OWNED", |set| set.streams_owned.to_string()),
        number("UNOWNED", |set| set.streams.saturating_sub(set.streams_owned).to_string()),
    ];

    fn name(&self) -> String {
        self.name.clone()
    }
}

impl TableRow for Stream {
    const PLURAL: &'static str = "streams";
    const COLUMNS: &'static [Column<Self>] = &[
        text("SET", |stream| stream.set.clone()),
        text("STREAM", |stream| stream.name.clone()),
        text("OWNER", |stream| {
            let owners: Vec<_> = stream.claims.iter().map(|claim| claim.worker.as_str()).collect();
            or_none(&owners.join(","))
        }),
        text("LEASE", |stream| {
            let leases = stream.claims.iter().map(|claim| words::claim(claim.phase()));
            or_none(&leases.collect::<Vec<_>>().join(","))
        }),
        text("PLANNED", |stream| or_none(&stream.planned)),
        text("TOKEN", |stream| {
            let tokens: Vec<_> = stream.claims.iter().map(|claim| claim.token.as_str()).collect();
            or_none(&tokens.join(","))
        }),
        wide_number("WEIGHT", |stream| stream.weight.to_string()),
        wide_text("CLUSTER", |stream| stream.cluster.clone()),
    ];

    fn name(&self) -> String {
        format!("{}/{}", self.set, self.name)
    }
}

impl TableRow for Pipeline {
    const PLURAL: &'static str = "pipelines";
    const COLUMNS: &'static [Column<Self>] = &[
        text("PIPELINE", |pipeline| pipeline.name.clone()),
        number("LOAD", |pipeline| words::load(pipeline.documents_per_second)),
        text("PHASE", |pipeline| words::pipeline(pipeline.phase()).to_owned()),
        number("NODES", |pipeline| pipeline.bindings.len().to_string()),
        text("REASON", |pipeline| or_none(&pipeline.reason)),
        wide_text("BINDINGS", |pipeline| {
            let bindings = pipeline.bindings.iter();
            let bindings =
                bindings.map(|one| format!("{}={}", one.node, words::binding(one.phase())));
            bindings.collect::<Vec<_>>().join(",")
        }),
    ];

    fn name(&self) -> String {
        self.name.clone()
    }
}

impl TableRow for Class {
    const PLURAL: &'static str = "worker classes";
    const COLUMNS: &'static [Column<Self>] = &[
        text("CLASS", |class| class.name.clone()),
        number("CAPACITY", |class| words::load(class.capacity)),
        number("REQUEST", |class| words::load(class.request)),
        number("PLACED", |class| words::load(class.placed)),
        number("HEADROOM", |class| {
            words::load(f64::from(class.workers) * class.capacity - class.placed)
        }),
        number("WORKERS", |class| class.workers.to_string()),
        number("NEEDED", |class| class.workers_needed.to_string()),
        number("WANTED", |class| class.workers_wanted.to_string()),
        number("WAITING", |class| class.pipelines_waiting.to_string()),
        wide_number("MIN", |class| class.workers_min.to_string()),
        wide_number("MAX", |class| class.workers_max.to_string()),
    ];

    fn name(&self) -> String {
        self.name.clone()
    }
}

fn budget(cluster: &Cluster, jobs: u32) -> String {
    if cluster.is_class { NONE.to_owned() } else { jobs.to_string() }
}

fn part_of(part: u32, all: u32) -> String {
    if all == 0 { NONE.to_owned() } else { format!("{part}/{all}") }
}

fn optional(number: Option<u32>) -> String {
    number.map_or_else(|| "?".to_owned(), |number| number.to_string())
}

/// Runs `leasehold clusters`.
///
/// # Errors
/// What the coordinator answers, or that none does.
pub(crate) fn clusters(args: &ClustersArgs) -> anyhow::Result<ExitCode> {
    run(&args.connection, async |mut coordinator| {
        show(&mut coordinator, args.list.watch, async |coordinator| {
            let clusters = all_clusters(coordinator).await?;
            list(&args.list, clusters, |clusters| ListClustersResponse { clusters })
        })
        .await
    })
}

/// Runs `leasehold workers`.
///
/// # Errors
/// What the coordinator answers, or that none does.
pub(crate) fn workers(args: &WorkersArgs) -> anyhow::Result<ExitCode> {
    run(&args.connection, async |mut coordinator| {
        show(&mut coordinator, args.list.watch, async |coordinator| {
            let clusters = match &args.cluster {
                Some(cluster) => vec![cluster.clone()],
                None => {
                    let all = all_clusters(coordinator).await?;
                    all.into_iter().map(|cluster| cluster.name).collect()
                }
            };
            let mut workers = Vec::new();
            for cluster in clusters {
                workers.extend(workers_of(coordinator, &cluster).await?);
            }
            workers.retain(|worker| {
                let drains = words::drain(worker.drain(), worker.drain_ordered) != "no";
                args.presence.is_none_or(|wanted| wanted.matches(worker.presence()))
                    && (drains || !args.draining)
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
    run(&args.connection, async |mut coordinator| {
        show(&mut coordinator, args.list.watch, async |coordinator| {
            let sets = all_sets(coordinator).await?;
            list(&args.list, sets, |sets| ListStreamSetsResponse { sets })
        })
        .await
    })
}

/// Runs `leasehold streams`.
///
/// # Errors
/// What the coordinator answers, or that none does.
pub(crate) fn streams(args: &StreamsArgs) -> anyhow::Result<ExitCode> {
    run(&args.connection, async |mut coordinator| {
        show(&mut coordinator, args.list.watch, async |coordinator| {
            let sets = match &args.set {
                Some(set) => vec![set.clone()],
                None => all_sets(coordinator).await?.into_iter().map(|set| set.name).collect(),
            };
            let worker = args.worker.clone().unwrap_or_default();
            let mut streams = Vec::new();
            for set in sets {
                streams.extend(streams_of(coordinator, &set, &worker).await?);
            }
            streams.retain(|stream: &Stream| !args.unowned || stream.claims.is_empty());
            list(&args.list, streams, |streams| ListStreamsResponse {
                streams,
                ..ListStreamsResponse::default()
            })
        })
        .await
    })
}

/// Runs `leasehold pipelines`.
///
/// # Errors
/// What the coordinator answers, or that none does.
pub(crate) fn pipelines(args: &PipelinesArgs) -> anyhow::Result<ExitCode> {
    run(&args.connection, async |mut coordinator| {
        show(&mut coordinator, args.list.watch, async |coordinator| {
            let mut pipelines = all_pipelines(coordinator).await?;
            pipelines.retain(|one| args.phase.is_none_or(|phase| phase.matches(one.phase())));
            list(&args.list, pipelines, |pipelines| ListPipelinesResponse {
                pipelines,
                ..ListPipelinesResponse::default()
            })
        })
        .await
    })
}

/// Runs `leasehold classes`.
///
/// # Errors
/// What the coordinator answers, or that none does.
pub(crate) fn classes(args: &ClassesArgs) -> anyhow::Result<ExitCode> {
    run(&args.connection, async |mut coordinator| {
        show(&mut coordinator, args.list.watch, async |coordinator| {
            let classes = all_classes(coordinator).await?;
            list(&args.list, classes, |classes| ListClassesResponse { classes })
        })
        .await
    })
}

pub(super) async fn all_clusters(coordinator: &mut Coordinator) -> anyhow::Result<Vec<Cluster>> {
    let answer = coordinator
        .ask(async |mut client| client.list_clusters(ListClustersRequest {}).await)
        .await?;
    Ok(answer.clusters)
}

pub(super) async fn all_sets(coordinator: &mut Coordinator) -> anyhow::Result<Vec<StreamSet>> {
    let answer = coordinator
        .ask(async |mut client| client.list_stream_sets(ListStreamSetsRequest {}).await)
        .await?;
    Ok(answer.sets)
}

pub(super) async fn all_classes(coordinator: &mut Coordinator) -> anyhow::Result<Vec<Class>> {
    let answer = coordinator
        .ask(async |mut client| client.list_classes(ListClassesRequest {}).await)
        .await?;
    Ok(answer.classes)
}

pub(super) async fn all_pipelines(coordinator: &mut Coordinator) -> anyhow::Result<Vec<Pipeline>> {
    let (mut all, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = ListPipelinesRequest { page_size: PAGE_SIZE, page_token };
        let answer = coordinator
            .ask(async |mut client| client.list_pipelines(request.clone()).await)
            .await?;
        all.extend(answer.pipelines);
        page_token = answer.next_page_token;
        if page_token.is_empty() {
            return Ok(all);
        }
    }
}

pub(super) async fn workers_of(
    coordinator: &mut Coordinator,
    cluster: &str,
) -> anyhow::Result<Vec<Worker>> {
    let (mut all, mut page_token) = (Vec::new(), String::new());
    loop {
        let cluster = cluster.to_owned();
        let request = ListWorkersRequest { cluster, page_size: PAGE_SIZE, page_token };
        let answer =
            coordinator.ask(async |mut client| client.list_workers(request.clone()).await).await?;
        all.extend(answer.workers);
        page_token = answer.next_page_token;
        if page_token.is_empty() {
            return Ok(all);
        }
    }
}

async fn streams_of(
    coordinator: &mut Coordinator,
    set: &str,
    worker: &str,
) -> anyhow::Result<Vec<Stream>> {
    let (mut all, mut page_token) = (Vec::new(), String::new());
    loop {
        let (set, worker) = (set.to_owned(), worker.to_owned());
        let request = ListStreamsRequest { set, page_size: PAGE_SIZE, page_token, worker };
        let answer =
            coordinator.ask(async |mut client| client.list_streams(request.clone()).await).await?;
        all.extend(answer.streams);
        page_token = answer.next_page_token;
        if page_token.is_empty() {
            return Ok(all);
        }
    }
}
