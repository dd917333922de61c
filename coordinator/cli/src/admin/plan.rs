//! `leasehold plan`: what would be planned under other circumstances. It changes nothing.

mod manifests;
mod pipelines;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use leasehold_proto::admin::v1::{
    JobWait, PlanRequest, PlanResponse, PlannedMove, PlannedPool, UnplacedStream, Worker,
};
use leasehold_types::limits::JOBS_MAX;
use leasehold_types::{counted, duration, flag};

use super::connection::{ConnectionArgs, Coordinator};
use super::output::{Column, Format, TableRow, number, object, or_none, print, table, text};
use super::run;
use crate::{argument, usage};

/// What the exit code says where streams or pipelines would have no worker.
const BREAKS: u8 = 2;

/// Options of `plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It changes nothing. Without any change it shows the present plan. Of a worker class it shows what
its pipelines would lose or get.

With -f it shows what edited manifests would change: a FILE is taken beside everything else that is
in force, a FOLDER without Kubernetes in place of all of it. On Kubernetes the ConfigMaps that sets
name have to be in it, too.

Exit code: 0 if every stream has a worker under the plan, no pipeline loses its workers and each
change of one finds room; 2 otherwise, and if a manifest or the command line is invalid; 1 after an
error.

Examples:
  leasehold plan builds --max-jobs 20
  leasehold plan builds --add-worker worker-9 --remove-worker worker-1,worker-2
  leasehold plan green --remove-worker green-1
  leasehold plan -f manifests/
  leasehold plan -f manifests/builds.yaml")]
pub(crate) struct Args {
    /// The cluster or worker class
    #[arg(required_unless_present = "filename", value_parser = argument::cluster)]
    cluster: Option<String>,
    /// Edited manifests: a file, or a folder with the folders below it
    #[arg(
        short,
        long,
        value_name = "FILE|FOLDER",
        conflicts_with_all = ["cluster", "max_jobs", "add_worker", "remove_worker"]
    )]
    filename: Option<PathBuf>,
    /// Another budget
    #[arg(long, value_name = "COUNT")]
    #[arg(value_parser = flag::number::<u32>(0..=JOBS_MAX.into(), "a number of jobs", 40))]
    max_jobs: Option<u32>,
    /// Workers that join, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = argument::worker)]
    add_worker: Vec<String>,
    /// Workers that leave, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = argument::worker)]
    remove_worker: Vec<String>,
    /// The form of the output: table, json or yaml
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    #[command(flatten)]
    connection: ConnectionArgs,
}

impl TableRow for PlannedPool {
    const PLURAL: &'static str = "pools";
    const COLUMNS: &'static [Column<Self>] = &[
        text("WORKER", |pool| pool.worker.clone()),
        number("SIZE", |pool| pool.size.to_string()),
        number("COMMITTED", |pool| pool.committed.to_string()),
        text("WAIT", |pool| or_none(&pool.wait.as_ref().map(wait).unwrap_or_default())),
        text("WHY NO MORE", |pool| or_none(&pool.reason)),
    ];

    fn name(&self) -> String {
        self.worker.clone()
    }
}

impl TableRow for PlannedMove {
    const PLURAL: &'static str = "moves";
    const COLUMNS: &'static [Column<Self>] = &[
        text("SET", |one| one.set.clone()),
        text("STREAM", |one| one.stream.clone()),
        text("FROM", |one| or_none(&one.from)),
        text("TO", |one| or_none(&one.to)),
    ];

    fn name(&self) -> String {
        format!("{}/{}", self.set, self.stream)
    }
}

impl TableRow for UnplacedStream {
    const PLURAL: &'static str = "streams";
    const COLUMNS: &'static [Column<Self>] = &[
        text("SET", |one| one.set.clone()),
        text("STREAM", |one| one.stream.clone()),
        text("WHY", |one| one.reason.clone()),
    ];

    fn name(&self) -> String {
        format!("{}/{}", self.set, self.stream)
    }
}

/// Runs `leasehold plan`.
///
/// # Errors
/// What the coordinator answers, or that none does.
pub(crate) fn plan(args: &Args) -> anyhow::Result<ExitCode> {
    args.output.refuse_names()?;
    once("--add-worker", &args.add_worker)?;
    once("--remove-worker", &args.remove_worker)?;
    let request = match &args.filename {
        Some(path) => Some(manifests::read(path)?),
        None => None,
    };
    run(&args.connection, async |mut coordinator| {
        let breaks = match request {
            Some(request) => manifests::plan(&mut coordinator, request, args.output).await?,
            None => plan_by_flags(&mut coordinator, args).await?,
        };
        Ok(if breaks { ExitCode::from(BREAKS) } else { ExitCode::SUCCESS })
    })
}

/// Fails if a flag names a worker twice.
fn once(flag: &str, workers: &[String]) -> anyhow::Result<()> {
    let mut seen = BTreeSet::new();
    match workers.iter().find(|worker| !seen.insert(*worker)) {
        Some(twice) => Err(usage::wrong(format!("{flag} names {twice} twice: name it once"))),
        None => Ok(()),
    }
}

/// Prints a plan by the flags; returns whether streams or pipelines would have no worker.
async fn plan_by_flags(coordinator: &mut Coordinator, args: &Args) -> anyhow::Result<bool> {
    let request = PlanRequest {
        cluster: args.cluster.clone().unwrap_or_default(),
        add_workers: args.add_worker.clone(),
        remove_workers: args.remove_worker.clone(),
        max_jobs: args.max_jobs,
    };
    let plan = coordinator.ask(async |mut client| client.plan(request.clone()).await).await?;
    print(&match args.output {
        Format::Table | Format::Wide => as_text(&request.cluster, &plan),
        format => object(format, &plan)?,
    })?;
    Ok(!plan.unplaced.is_empty() || plan.pipelines.iter().any(pipelines::is_stopped))
}

/// The pipelines that would lose their workers without this worker of a class. None where that
/// cannot be said.
pub(super) async fn stopped_without(coordinator: &mut Coordinator, worker: &Worker) -> Vec<String> {
    let request = PlanRequest {
        cluster: worker.cluster.clone(),
        remove_workers: vec![worker.name.clone()],
        ..PlanRequest::default()
    };
    let plan = coordinator.ask(async |mut client| client.plan(request.clone()).await).await;
    let planned = plan.map(|plan| plan.pipelines).unwrap_or_default();
    planned.into_iter().filter(pipelines::is_stopped).map(|pipeline| pipeline.name).collect()
}

/// `2 jobs: 12m to 40m`.
fn wait(wait: &JobWait) -> String {
    let jobs = counted(wait.jobs, "job");
    let time = |seconds: u32| duration::format_short(Duration::from_secs(seconds.into()));
    match (wait.half_seconds.map(time), wait.most_seconds.map(time)) {
        (Some(half), Some(most)) if half == most => format!("{jobs}: {half}"),
        (Some(half), Some(most)) => format!("{jobs}: {half} to {most}"),
        (Some(half), None) => format!("{jobs}: {half} or more"),
        (None, _) => jobs,
    }
}

/// The sentences under the table on lost workers, whose slots do not fall free by themselves.
fn lost_explained(cluster: &str, pools: &[PlannedPool]) -> String {
    let lost = pools.iter().filter(|pool| pool.lost && pool.committed > pool.size);
    let line = |PlannedPool { worker, .. }: &PlannedPool| {
        format!(
            "{worker} is lost: its jobs may never end by themselves. Its slots come back once its \
             agent reports again, or it counts as gone: `leasehold explain worker \
             {cluster}/{worker}` says what to do.\n"
        )
    };
    lost.map(line).collect()
}

/// The sentence under the table that explains its WAIT column; `None` if the column is empty.
fn waits_explained(pools: &[PlannedPool]) -> Option<String> {
    // A lost worker has no times, whatever ended.
    let waits = pools.iter().filter(|pool| !pool.lost).filter_map(|pool| pool.wait.as_ref());
    let waits: Vec<_> = waits.collect();
    let past_jobs = waits.iter().map(|wait| wait.past_jobs).max()?;
    let past = counted(past_jobs, "job");
    Some(match (past_jobs, waits.iter().any(|wait| wait.half_seconds.is_some())) {
        (0, _) => {
            "WAIT says how many jobs have to end. How long that takes is not known: no job of this \
             cluster has ended yet.\n"
                .to_owned()
        }
        (_, false) => format!(
            "WAIT says how many jobs have to end. How long that takes is not known: they have run \
             for longer than the last {past} of this cluster that ended.\n"
        ),
        (_, true) => format!(
            "WAIT says how many jobs have to end, and how long that takes in half of all cases and \
             in 9 of 10, judged by the last {past} of this cluster that ended.\n"
        ),
    })
}

fn as_text(cluster: &str, plan: &PlanResponse) -> String {
    if plan.is_class {
        let parts = pipelines::as_text(&plan.pipelines, &plan.classes);
        let is_same = parts.is_empty().then(|| "No pipeline or class changes.\n".to_owned());
        return parts.into_iter().chain(is_same).collect::<Vec<_>>().join("\n");
    }
    let mut parts = Vec::new();
    parts.push(if plan.pools.is_empty() {
        "No worker gets a pool.\n".to_owned()
    } else {
        table(&plan.pools, false)
    });
    let waits: u32 = plan.pools.iter().map(|pool| pool.committed.saturating_sub(pool.size)).sum();
    if waits > 0 {
        let slots = counted(waits, "slot");
        let waits: String = waits_explained(&plan.pools).into_iter().collect();
        let lost = lost_explained(cluster, &plan.pools);
        parts.push(format!(
            "{slots} in use now must fall free before others get them.\n{waits}{lost}"
        ));
    }
    parts.push(match plan.moves.as_slice() {
        [] => "No stream moves.\n".to_owned(),
        moves => {
            let count = counted(moves.len(), "stream");
            format!("{count} would move:\n{}", table(moves, false))
        }
    });
    if !plan.unplaced.is_empty() {
        let count = counted(plan.unplaced.len(), "stream");
        parts.push(format!("{count} would have no worker:\n{}", table(&plan.unplaced, false)));
    }
    parts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_worker_has_no_wait_and_is_explained() {
        let pool = |worker: &str, half_seconds, lost| PlannedPool {
            worker: worker.to_owned(),
            committed: 3,
            wait: Some(JobWait { jobs: 2, half_seconds, past_jobs: 9, ..JobWait::default() }),
            lost,
            ..PlannedPool::default()
        };
        let text = |pools| as_text("builds", &PlanResponse { pools, ..PlanResponse::default() });
        let both = text(vec![pool("w-0", Some(60), false), pool("w-1", None, true)]);
        for words in [
            "2 jobs: 1m or more",
            "how long that takes in half of all cases",
            "w-1 is lost: its jobs may never end by themselves.",
            "`leasehold explain worker builds/w-1` says what to do",
        ] {
            assert!(both.contains(words), "no {words:?} in\n{both}");
        }
        let alone = text(vec![pool("w-1", None, true)]);
        assert!(!alone.contains("WAIT says"), "nothing is known of others:\n{alone}");
    }
}
