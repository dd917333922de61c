//! `leasehold drain`, `undrain` and `gone`: the orders that people give, for one worker.

use std::io::{self, BufRead, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use leasehold_proto::admin::v1::{
    DeclareWorkerGoneRequest, DrainPhase, DrainWorkerRequest, GetWorkerRequest, Presence,
    UndrainWorkerRequest, Worker,
};
use leasehold_types::counted;
use leasehold_types::duration::format_short;
use tonic::{Code, Response};

use super::connection::{ConnectionArgs, Coordinator};
use super::output::print;
use super::{find, plan, run, words};
use crate::argument::{self, WorkerPath};

/// The interval between two looks at a worker that drains.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long to wait for a worker to say that it works again.
const UNDRAIN_MAX: Duration = Duration::from_secs(10);

/// Options of `drain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A worker of a class hands its shares of pipelines over as others have room. Where none has, it would
keep them until its drain's deadline, and the pipelines would stop then: it is not drained, unless
--yes is given.

Exit code: 0 once the order is given, with --wait once the worker has drained or left; 1 after an
error, and with --wait if the drain is taken back.

Example:
  leasehold drain worker-1 --wait")]
pub(crate) struct DrainArgs {
    /// The worker: NAME, or CLUSTER/NAME
    worker: WorkerPath,
    /// Its cluster, where several have a worker of this name
    #[arg(long, value_name = "NAME", value_parser = argument::cluster)]
    cluster: Option<String>,
    /// Wait until no job of it runs and it holds no stream
    #[arg(long)]
    wait: bool,
    /// Drain it although no other worker has room for some of its pipelines
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Options of `undrain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It ends a drain that was ordered: the worker takes jobs and streams again. A drain that was asked
for at the worker itself, by SIGTERM, a hook or `leasehold-agent drain`, goes on.

Exit code: 0 once the worker works again; 1 after an error, and if it still drains.

Example:
  leasehold undrain worker-1")]
pub(crate) struct UndrainArgs {
    /// The worker: NAME, or CLUSTER/NAME
    worker: WorkerPath,
    /// Its cluster, where several have a worker of this name
    #[arg(long, value_name = "NAME", value_parser = argument::cluster)]
    cluster: Option<String>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Options of `gone`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It frees all that the worker may hold. If a process of it still runs, more jobs may run than the
budget allows, and a stream may get two owners.

Example:
  leasehold gone worker-3")]
pub(crate) struct GoneArgs {
    /// The worker: NAME, or CLUSTER/NAME
    worker: WorkerPath,
    /// Its cluster, where several have a worker of this name
    #[arg(long, value_name = "NAME", value_parser = argument::cluster)]
    cluster: Option<String>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Runs `leasehold drain`.
///
/// # Errors
/// What the coordinator answers, or that none does.
pub(crate) fn drain(args: &DrainArgs) -> anyhow::Result<ExitCode> {
    run(&args.connection, async |mut coordinator| {
        let worker = find::worker(&mut coordinator, &args.worker, args.cluster.as_deref()).await?;
        let (cluster, name) = (worker.cluster.clone(), worker.name.clone());
        if !args.yes {
            refuse_to_stop_pipelines(&mut coordinator, &worker).await?;
        }
        let request = DrainWorkerRequest { cluster, worker: name };
        coordinator.order(async |mut client| client.drain_worker(request.clone()).await).await?;
        print(&format!("{}/{} drains\n", worker.cluster, worker.name))?;
        if args.wait {
            follow_drain(&mut coordinator, worker).await?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Refuses to drain the worker if pipelines would stop at the deadline.
async fn refuse_to_stop_pipelines(
    coordinator: &mut Coordinator,
    worker: &Worker,
) -> anyhow::Result<()> {
    let stop = plan::stopped_without(coordinator, worker).await;
    let Some(first) = stop.first() else { return Ok(()) };
    let (cluster, name, stop) = (&worker.cluster, &worker.name, counted(stop.len(), "pipeline"));
    bail!(
        "{cluster}/{name} is not drained: no other worker has room for {stop}, for example \
         {first}, which would stop at the drain's deadline: add a worker first, as `leasehold plan \
         {cluster} --remove-worker {name} --add-worker NAME` shows; or give --yes"
    )
}

/// Runs `leasehold undrain`.
///
/// # Errors
/// What the coordinator answers, that none does, or that the worker drains on.
pub(crate) fn undrain(args: &UndrainArgs) -> anyhow::Result<ExitCode> {
    run(&args.connection, async |mut coordinator| {
        let worker = find::worker(&mut coordinator, &args.worker, args.cluster.as_deref()).await?;
        if worker.presence() == Presence::Connected && !words::drains(&worker) {
            print(&format!("{}/{} does not drain\n", worker.cluster, worker.name))?;
            return Ok(ExitCode::SUCCESS);
        }
        let (cluster, name) = (worker.cluster.clone(), worker.name.clone());
        let request = UndrainWorkerRequest { cluster, worker: name };
        coordinator.order(async |mut client| client.undrain_worker(request.clone()).await).await?;
        wait_until_it_works(&mut coordinator, &worker).await?;
        print(&format!("{}/{} works again\n", worker.cluster, worker.name))?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Waits until an agent has reported that its drain is over.
async fn wait_until_it_works(coordinator: &mut Coordinator, worker: &Worker) -> anyhow::Result<()> {
    let (cluster, name) = (&worker.cluster, &worker.name);
    let request = GetWorkerRequest { cluster: cluster.clone(), worker: name.clone() };
    let until = Instant::now() + UNDRAIN_MAX;
    loop {
        let found =
            coordinator.ask(async |mut client| client.get_worker(request.clone()).await).await?;
        let Some(found) = found.worker else { bail!("{cluster}/{name} has left") };
        if !words::drains(&found) {
            return Ok(());
        }
        if until <= Instant::now() {
            match found.presence() {
                Presence::Connected => bail!(
                    "{cluster}/{name} drains on: its drain was asked for at the worker itself, by \
                     SIGTERM, a hook or `leasehold-agent drain`, or its agent is of an earlier \
                     release"
                ),
                presence => bail!(
                    "{cluster}/{name} is {}: it works again once its agent connects to this leader",
                    words::presence(presence)
                ),
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Follows a drain to its end, and says what is left as it changes. Fails if it is taken back.
async fn follow_drain(coordinator: &mut Coordinator, mut last: Worker) -> anyhow::Result<()> {
    let (cluster, name) = (last.cluster.clone(), last.name.clone());
    let incarnation = last.incarnation;
    let request = GetWorkerRequest { cluster: cluster.clone(), worker: name.clone() };
    let mut said = String::new();
    loop {
        let asked =
            coordinator.ask(async |mut client| match client.get_worker(request.clone()).await {
                Err(status) if status.code() == Code::NotFound => Ok(Response::new(None)),
                answer => answer.map(|answer| answer.map(|answer| answer.worker)),
            });
        match asked.await? {
            None if last.presence() != Presence::Connected => {
                eprintln!(
                    "{cluster}/{name} has left, or was declared gone, before it reported the end \
                     of its drain"
                );
                return Ok(());
            }
            None => break,
            Some(worker) if worker.drain() == DrainPhase::Leaving => break,
            // The drained agent has left, and the worker has a new one.
            Some(worker) if works(&worker) && worker.incarnation != incarnation => break,
            Some(worker) if works(&worker) => bail!(
                "the drain of {cluster}/{name} was taken back: it works on; `leasehold events \
                 --worker {cluster}/{name}` shows who ordered that"
            ),
            Some(worker) => last = worker,
        }
        let left = what_is_left(&last);
        if left != said {
            print(&format!("{cluster}/{name}: {left}\n"))?;
            said = left;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    print(&format!("{cluster}/{name} has drained\n"))
}

/// Whether its agent is connected, and neither drains nor is ordered to.
fn works(worker: &Worker) -> bool {
    worker.presence() == Presence::Connected && !words::drains(worker)
}

fn what_is_left(worker: &Worker) -> String {
    let streams = counted(worker.streams, "stream");
    let jobs = match worker.running {
        Some(running) => counted(running, "job"),
        None => "an unknown number of jobs".to_owned(),
    };
    match worker.presence() {
        Presence::Connected => format!("{jobs} and {streams} left"),
        presence => format!(
            "{jobs} and {streams} left; it is {}, and drains once it is connected",
            words::presence(presence)
        ),
    }
}

/// Runs `leasehold gone`.
///
/// # Errors
/// What the coordinator answers, that none does, or that nobody has said yes.
pub(crate) fn gone(args: &GoneArgs) -> anyhow::Result<ExitCode> {
    run(&args.connection, async |mut coordinator| {
        let worker = find::worker(&mut coordinator, &args.worker, args.cluster.as_deref()).await?;
        let (cluster, name) = (worker.cluster.clone(), worker.name.clone());
        if !args.yes && !is_confirmed(&worker)? {
            bail!("not declared gone");
        }
        let request = DeclareWorkerGoneRequest {
            cluster: cluster.clone(),
            worker: name.clone(),
            incarnation: Some(worker.incarnation.unwrap_or(0)),
        };
        let freed = coordinator
            .order(async |mut client| client.declare_worker_gone(request.clone()).await)
            .await?;
        let slots = counted(freed.slots_freed, "slot");
        let streams = counted(freed.streams_freed, "stream");
        print(&format!("{cluster}/{name} is gone: {slots} and {streams} freed\n"))?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Asks whether a worker is gone, and says what would be freed.
fn is_confirmed(worker: &Worker) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        bail!("gone asks first, which needs a terminal: add --yes if nothing of it runs any more");
    }
    let heard = match worker.silent_for_ms {
        Some(millis) => format!("heard {} ago", format_short(Duration::from_millis(millis))),
        None => "not heard by this leader".to_owned(),
    };
    let mut out = io::stdout().lock();
    write!(
        out,
        "{}/{} is {} ({heard}). This frees {} and {}.\nDoes nothing of it run any more? [y/N] ",
        worker.cluster,
        worker.name,
        words::presence(worker.presence()),
        counted(worker.committed, "slot"),
        counted(worker.streams, "stream"),
    )?;
    out.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
