//! `leasehold-agent drain`: starts a drain of the worker's agent, and may wait for its end. It is
//! made for a container's preStop hook, so it keeps trying while the agent restarts: the journal
//! records the drain, and the request is idempotent.

mod call;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use leasehold_types::duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::config::DrainOptions;
use call::{DrainError, Request};

/// How long the agent may take to answer a request that does not wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before another attempt to reach the agent.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// When the first line about the drain's progress is printed. The request that waits for the end
/// must reach the agent before the first one that asks for progress: each of them begins the drain,
/// and an agent without jobs ends so soon that it may not answer the second one.
const FIRST_PROGRESS: Duration = Duration::from_secs(1);
/// How long `--hold` tries to reach an agent that it has not reached yet. An agent that is not a
/// sidecar ends with its drain.
const HOLD_FIRST_LIMIT: Duration = Duration::from_secs(5);
/// How long it tries to reach one again: a sidecar may be restarted with increasing pauses.
const HOLD_LIMIT: Duration = Duration::from_secs(600);
/// The time between two lines about the drain's progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Runs the command and returns the exit code of this process.
#[must_use]
pub fn main(options: &DrainOptions) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(run(options)),
        Err(error) => Err(error).context("cannot start the async runtime"),
    };
    if let Err(error) = &outcome {
        eprintln!("error: {error:#}");
    }
    match options.command.split_first() {
        None => ExitCode::from(u8::from(outcome.is_err())),
        Some((program, args)) => {
            let error = Command::new(program).args(args).exec();
            eprintln!("error: cannot run {}: {error}", program.display());
            ExitCode::from(1)
        }
    }
}

async fn run(options: &DrainOptions) -> anyhow::Result<()> {
    if options.hold {
        return hold(options).await;
    }
    match (options.wait, options.timeout) {
        (false, None) => begin(options).await,
        (false, Some(limit)) => {
            let begun = timeout(limit, begin_with_retries(options)).await;
            begun.unwrap_or_else(|_| bail!("no answer within {}", duration::format_short(limit)))
        }
        (true, None) => wait(options).await,
        (true, Some(limit)) => {
            let ended = timeout(limit, wait(options)).await;
            ended.unwrap_or_else(|_| bail!("not drained within {}", duration::format_short(limit)))
        }
    }
}

/// Begins the drain.
async fn begin(options: &DrainOptions) -> anyhow::Result<()> {
    let answer = timeout(ANSWER_TIMEOUT, call::drain(&options.agent, Request::Begin)).await;
    let jobs = answer
        .with_context(|| format!("no answer within {}", duration::format_short(ANSWER_TIMEOUT)))?;
    let jobs = jobs.map_err(|error| match error {
        DrainError::Unavailable(why) => anyhow::anyhow!(
            "the agent does not answer ({why}): start it, or set --addr to the address of its \
             --listen, as in --addr http://127.0.0.1:7411"
        ),
        DrainError::Refused(why) => anyhow::anyhow!(why),
    })?;
    println!("the drain has begun: {}", jobs_left(jobs));
    Holder::default().start(options);
    Ok(())
}

/// Keeps the drain in force until it is over or this process ends.
async fn hold(options: &DrainOptions) -> anyhow::Result<()> {
    let (mut since, mut limit) = (Instant::now(), HOLD_FIRST_LIMIT);
    loop {
        let asked_at = Instant::now();
        match call::drain(&options.agent, Request::Hold).await {
            Ok(_) => return Ok(()),
            Err(DrainError::Refused(why)) => bail!(why),
            Err(DrainError::Unavailable(why)) => {
                // The agent had accepted the request, and has ended since.
                if asked_at.elapsed() > RETRY_PAUSE {
                    (since, limit) = (Instant::now(), HOLD_LIMIT);
                }
                if since.elapsed() >= limit {
                    let limit = duration::format_short(limit);
                    bail!("the agent did not answer within {limit} ({why})");
                }
                sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// Starts the process that keeps the drain in force. It outlives this one, and ends with the
/// container: then the agent knows that the next container is not to be drained. A kubelet that
/// restarts a container after a failed liveness probe runs the preStop hook, too.
#[derive(Debug, Default)]
struct Holder {
    is_started: bool,
}

impl Holder {
    fn start(&mut self, options: &DrainOptions) {
        if std::mem::replace(&mut self.is_started, true) {
            return;
        }
        let address = options.agent.to_string();
        // The file of this program may have been replaced.
        let mut holder = Command::new("/proc/self/exe");
        holder.arg0("leasehold-agent").args(["drain", "--hold", "--addr", &address]);
        // A runtime waits until the output of a hook is closed.
        holder.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Err(error) = holder.process_group(0).spawn() {
            eprintln!(
                "cannot start the process that ends the drain with this container ({error}): the \
                 worker stays drained after a restart of its container"
            );
        }
    }
}

async fn begin_with_retries(options: &DrainOptions) -> anyhow::Result<()> {
    let mut outage = OutageLog::default();
    loop {
        match timeout(ANSWER_TIMEOUT, call::drain(&options.agent, Request::Begin)).await {
            Ok(Ok(jobs)) => {
                println!("the drain has begun: {}", jobs_left(jobs));
                Holder::default().start(options);
                return Ok(());
            }
            Ok(Err(DrainError::Refused(why))) => bail!(why),
            Ok(Err(DrainError::Unavailable(why))) => outage.pause(&why).await,
            Err(_) => outage.pause("no answer").await,
        }
    }
}

/// Begins the drain and waits for its end, or its deadline.
async fn wait(options: &DrainOptions) -> anyhow::Result<()> {
    let (mut outage, mut holder) = (OutageLog::default(), Holder::default());
    let mut progress = interval(PROGRESS_INTERVAL);
    progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        progress.reset_after(FIRST_PROGRESS);
        let ended = call::drain(&options.agent, Request::Wait);
        let mut ended = std::pin::pin!(ended);
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut ended => break answer,
                _ = progress.tick() => {
                    // The request is idempotent, and its answer has the number of jobs left.
                    let request = call::drain(&options.agent, Request::Begin);
                    if let Ok(Ok(jobs)) = timeout(ANSWER_TIMEOUT, request).await {
                        outage.is_back();
                        holder.start(options);
                        println!("draining: {}", jobs_left(jobs));
                    }
                }
            }
        };
        match answer {
            Ok(0) => {
                holder.start(options);
                println!("drained: no job is left");
                return Ok(());
            }
            Ok(jobs) => {
                holder.start(options);
                let jobs = jobs_left(jobs);
                eprintln!(
                    "the drain's deadline has passed: {jobs}, and the agent does not kill them"
                );
                return Ok(());
            }
            Err(DrainError::Refused(why)) => bail!(why),
            Err(DrainError::Unavailable(why)) => outage.pause(&why).await,
        }
    }
}

/// Reports that the agent does not answer, at a bounded rate.
#[derive(Debug, Default)]
struct OutageLog {
    logged_at: Option<Instant>,
}

impl OutageLog {
    async fn pause(&mut self, why: &str) {
        if self.logged_at.is_none_or(|at| at.elapsed() >= PROGRESS_INTERVAL) {
            self.logged_at = Some(Instant::now());
            eprintln!(
                "the agent does not answer ({why}): retrying until it does, or until --timeout. If \
                 its worker API has another address, set it with --addr"
            );
        }
        sleep(RETRY_PAUSE).await;
    }

    fn is_back(&mut self) {
        self.logged_at = None;
    }
}

fn jobs_left(jobs: u32) -> String {
    match jobs {
        0 => "no job is left".into(),
        1 => "1 job is left".into(),
        jobs => format!("{jobs} jobs are left"),
    }
}
