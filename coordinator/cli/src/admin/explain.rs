//! `leasehold explain`: why something is as it is, in a sentence, with the facts and what to do.

use std::process::ExitCode;

use clap::ValueEnum;
use leasehold_proto::admin::v1::{
    ExplainClusterRequest, ExplainPipelineRequest, ExplainStreamRequest, ExplainWorkerRequest,
    Explanation, ManifestProblem,
};
use leasehold_types::flag;

use super::connection::{ConnectionArgs, Coordinator};
use super::output::{Format, object};
use super::{fetch, find, run, show, words};
use crate::argument::{self, WorkerPath};
use crate::usage;

/// The most problems of manifests that an explanation names.
const PROBLEMS_MAX: usize = 3;

/// Options of `explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold explain cluster builds
  leasehold explain worker worker-1
  leasehold explain stream cars:new --set cars
  leasehold explain pipeline third")]
pub(crate) struct Args {
    /// What it is
    kind: Kind,
    /// Its name; a worker's or stream's may follow that of its cluster or set and a slash
    #[arg(value_parser = flag::text("a name, for example builds"))]
    name: String,
    /// A worker's cluster, where several have a worker of this name
    #[arg(long, value_name = "NAME", value_parser = argument::cluster)]
    cluster: Option<String>,
    /// A stream's set, where several have a stream of this name
    #[arg(long, value_name = "NAME", value_parser = argument::set)]
    set: Option<String>,
    /// The form of the output: table, json or yaml
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// Show it again every second
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A cluster of workers, or a class
    #[value(alias = "class")]
    Cluster,
    /// A worker
    Worker,
    /// A stream
    Stream,
    /// A pipeline
    Pipeline,
}

/// Runs `leasehold explain`.
///
/// # Errors
/// What the coordinator answers, or that none does.
pub(crate) fn explain(args: &Args) -> anyhow::Result<ExitCode> {
    match args.kind {
        Kind::Worker if args.set.is_some() => {
            return Err(usage::wrong("--set is for streams: use --cluster"));
        }
        Kind::Stream if args.cluster.is_some() => {
            return Err(usage::wrong("--cluster is for workers: use --set"));
        }
        Kind::Cluster | Kind::Pipeline if args.set.is_some() || args.cluster.is_some() => {
            let message = "--cluster is for workers, and --set for streams: leave them out";
            return Err(usage::wrong(message));
        }
        Kind::Cluster | Kind::Worker | Kind::Stream | Kind::Pipeline => {}
    }
    args.output.refuse_names()?;
    let wanted =
        Wanted::of(args).map_err(|why| usage::wrong(format!("NAME {:?}: {why}", args.name)))?;
    run(&args.connection, async |mut coordinator| {
        show(&mut coordinator, args.watch, async |coordinator| {
            let subject = subject(coordinator, &wanted).await?;
            let explanation = explanation_of(coordinator, &subject).await?;
            match args.output {
                Format::Table | Format::Wide => Ok(as_text(&explanation)),
                format => object(format, &explanation),
            }
        })
        .await
    })
}

/// What the command line names.
enum Wanted {
    Cluster(String),
    Worker { path: WorkerPath, cluster: Option<String> },
    Stream { name: String, set: Option<String> },
    Pipeline(String),
}

impl Wanted {
    fn of(args: &Args) -> Result<Self, String> {
        let name = args.name.as_str();
        Ok(match args.kind {
            Kind::Cluster => Self::Cluster(argument::cluster(name)?),
            Kind::Worker => Self::Worker { path: name.parse()?, cluster: args.cluster.clone() },
            Kind::Stream => Self::Stream { name: name.to_owned(), set: args.set.clone() },
            Kind::Pipeline => Self::Pipeline(argument::pipeline(name)?),
        })
    }
}

/// What is explained.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    /// A cluster, by its name.
    Cluster(String),
    /// A worker.
    Worker {
        /// Its cluster.
        cluster: String,
        /// Its name.
        worker: String,
    },
    /// A stream.
    Stream {
        /// Its set.
        set: String,
        /// Its name.
        stream: String,
    },
    /// A pipeline, by its name.
    Pipeline(String),
}

/// Finds what the command line names.
async fn subject(coordinator: &mut Coordinator, wanted: &Wanted) -> anyhow::Result<Subject> {
    Ok(match wanted {
        Wanted::Cluster(name) => Subject::Cluster(name.clone()),
        Wanted::Worker { path, cluster } => {
            let worker = find::worker(coordinator, path, cluster.as_deref()).await?;
            Subject::Worker { cluster: worker.cluster, worker: worker.name }
        }
        Wanted::Stream { name, set } => {
            let stream = find::stream(coordinator, name, set.as_deref()).await?;
            Subject::Stream { set: stream.set, stream: stream.name }
        }
        Wanted::Pipeline(name) => Subject::Pipeline(name.clone()),
    })
}

/// Why something is as it is.
///
/// # Errors
/// What the coordinator answers, or that none does.
pub(super) async fn explanation_of(
    coordinator: &mut Coordinator,
    subject: &Subject,
) -> anyhow::Result<Explanation> {
    let explanation = match subject.clone() {
        Subject::Cluster(cluster) => {
            let request = ExplainClusterRequest { cluster };
            let asked = coordinator
                .ask(async |mut client| client.explain_cluster(request.clone()).await)
                .await?;
            let problems = fetch::problems(coordinator).await;
            asked.explanation.map(|explanation| with_problems(explanation, &problems))
        }
        Subject::Worker { cluster, worker } => {
            let request = ExplainWorkerRequest { cluster, worker };
            let asked = coordinator
                .ask(async |mut client| client.explain_worker(request.clone()).await)
                .await?;
            asked.explanation
        }
        Subject::Stream { set, stream } => {
            let request = ExplainStreamRequest { set, stream };
            let asked = coordinator
                .ask(async |mut client| client.explain_stream(request.clone()).await)
                .await?;
            asked.explanation
        }
        Subject::Pipeline(name) => {
            let request = ExplainPipelineRequest { name };
            let asked = coordinator
                .ask(async |mut client| client.explain_pipeline(request.clone()).await)
                .await?;
            let problems = fetch::problems(coordinator).await;
            asked.explanation.map(|explanation| with_problems(explanation, &problems))
        }
    };
    Ok(explanation.unwrap_or_default())
}

/// Adds what is wrong with the manifests: an invalid edit of the object's own has changed nothing.
fn with_problems(explanation: Explanation, problems: &[ManifestProblem]) -> Explanation {
    let Some(first) = problems.first() else { return explanation };
    let Explanation { summary, mut facts, mut next_step } = explanation;
    facts.extend(problems.iter().take(PROBLEMS_MAX).map(|problem| {
        format!(
            "a manifest is invalid, and its last good state in force: {}",
            words::problem(problem)
        )
    }));
    if next_step.is_empty() {
        next_step = format!("correct {}", first.file);
    }
    Explanation { summary, facts, next_step }
}

fn as_text(explanation: &Explanation) -> String {
    let facts = explanation.facts.iter().map(|fact| format!("  - {fact}\n"));
    let facts: String = facts.collect();
    let next = match explanation.next_step.as_str() {
        "" => String::new(),
        step => format!("Next: {step}\n"),
    };
    format!("{}\n{facts}{next}", explanation.summary)
}
