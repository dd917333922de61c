//! `leasehold-agent drain`: starts a drain of the worker's agent, and may wait for its end. It is
//! made for a container's preStop hook, so it keeps trying while the agent restarts: the journal
//! records the drain, and the request is idempotent. An agent that does not come back would hold
//! the pod for its whole grace period, so it gives up after a time.

mod call;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use leasehold_types::duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::config::DrainOptions;
use crate::runtime;
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
/// How long `--hold` tries to reach one again, and `--wait` tries to reach one at all: a sidecar
/// may be restarted with increasing pauses, of five minutes at most.
const RESTART_LIMIT: Duration = Duration::from_secs(600);
/// The time between two lines about the drain's progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Runs the command and returns the exit code of this process.
#[must_use]
pub fn main(options: &DrainOptions) -> ExitCode {
    let outcome = runtime::block_on(run(options));
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
        (true, None) => wait(options, Some(RESTART_LIMIT)).await,
        (true, Some(limit)) => {
            let ended = timeout(limit, wait(options, None)).await;
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
        DrainError::Busy(why) | DrainError::Refused(why) => anyhow::anyhow!(why),
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
            Err(DrainError::Busy(why) | DrainError::Unavailable(why)) => {
                // The agent had accepted the request, and has ended since.
                if asked_at.elapsed() > RETRY_PAUSE {
                    (since, limit) = (Instant::now(), RESTART_LIMIT);
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
    let mut outage = Outage::new(None);
    loop {
        match timeout(ANSWER_TIMEOUT, call::drain(&options.agent, Request::Begin)).await {
            Ok(Ok(jobs)) => {
                println!("the drain has begun: {}", jobs_left(jobs));
                Holder::default().start(options);
                return Ok(());
            }
            Ok(Err(DrainError::Refused(why))) => bail!(why),
            Ok(Err(DrainError::Busy(why) | DrainError::Unavailable(why))) => {
                outage.pause(&why).await?;
            }
            Err(_) => outage.pause("no answer").await?,
        }
    }
}

/// Begins the drain and waits for its end, or its deadline. `outage_max` is how long an agent may
/// not answer.
async fn wait(options: &DrainOptions, outage_max: Option<Duration>) -> anyhow::Result<()> {
    let (mut outage, mut holder) = (Outage::new(outage_max), Holder::default());
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
                    let asked_at = Instant::now();
                    let request = call::drain(&options.agent, Request::Begin);
                    match timeout(ANSWER_TIMEOUT, request).await {
                        Ok(Ok(jobs)) => {
                            outage.end(jobs);
                            holder.start(options);
                            println!("draining: {}", jobs_left(jobs));
                        }
                        // The other request says why, and what follows from that.
                        Ok(Err(_)) => {}
                        // One that hangs keeps its connections: the other request never ends.
                        Err(_) => outage.note("no answer", asked_at)?,
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
            Err(DrainError::Busy(why)) => {
                outage.since = None;
                outage.pause(&why).await?;
            }
            Err(DrainError::Unavailable(why)) => outage.pause(&why).await?,
        }
    }
}

/// How long the agent has not answered. It is reported at a bounded rate.
#[derive(Debug)]
struct Outage {
    limit: Option<Duration>,
    since: Option<Instant>,
    logged_at: Option<Instant>,
    /// The running jobs in the last answer.
    jobs: Option<u32>,
}

impl Outage {
    fn new(limit: Option<Duration>) -> Self {
        Self { limit, since: None, logged_at: None, jobs: None }
    }

    /// Waits before another attempt.
    ///
    /// # Errors
    /// If the limit has passed.
    async fn pause(&mut self, why: &str) -> anyhow::Result<()> {
        self.note(why, Instant::now())?;
        sleep(RETRY_PAUSE).await;
        Ok(())
    }

    /// The agent has not answered what it was asked at `asked_at`.
    ///
    /// # Errors
    /// If the limit has passed.
    fn note(&mut self, why: &str, asked_at: Instant) -> anyhow::Result<()> {
        let since = *self.since.get_or_insert(asked_at);
        if let Some(limit) = self.limit.filter(|limit| since.elapsed() >= *limit) {
            let last = match self.jobs {
                None => "it has not answered once".to_owned(),
                Some(jobs) => format!("its last answer: {}", jobs_left(jobs)),
            };
            let limit = duration::format_short(limit);
            bail!("the agent did not answer for {limit} ({why}): {last}");
        }
        if self.logged_at.is_none_or(|at| at.elapsed() >= PROGRESS_INTERVAL) {
            self.logged_at = Some(Instant::now());
            let until = match self.limit {
                None => "until it does, or until --timeout".to_owned(),
                Some(limit) => format!("for at most {}", duration::format_short(limit)),
            };
            eprintln!(
                "the agent does not answer ({why}): retrying {until}. If its worker API has \
                 another address, set it with --addr"
            );
        }
        Ok(())
    }

    /// The agent has answered.
    fn end(&mut self, jobs: u32) {
        (self.since, self.logged_at, self.jobs) = (None, None, Some(jobs));
    }
}

fn jobs_left(jobs: u32) -> String {
    match jobs {
        0 => "no job is left".into(),
        1 => "1 job is left".into(),
        jobs => format!("{jobs} jobs are left"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> DrainOptions {
        let agent = "http://127.0.0.1:1".parse().expect("a URL");
        DrainOptions { agent, wait: true, hold: false, timeout: None, command: Vec::new() }
    }

    #[tokio::test]
    async fn an_agent_that_does_not_come_back_is_not_waited_for_without_end() {
        let limit = Some(Duration::from_millis(500));
        let waited = timeout(Duration::from_secs(60), wait(&options(), limit)).await;
        let error = waited.expect("it gives up").expect_err("it is not drained").to_string();
        assert!(error.contains("did not answer for 500ms (127.0.0.1:1: "), "{error}");
        assert!(error.contains("it has not answered once"), "{error}");
    }

    #[tokio::test]
    async fn an_agent_that_hangs_is_not_waited_for_without_end() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = silent.local_addr().expect("an address");
        let agent = format!("http://{address}").parse().expect("a URL");
        let waits = DrainOptions { agent, ..options() };
        let limit = Some(Duration::from_secs(2));
        let waited = timeout(Duration::from_secs(60), wait(&waits, limit)).await;
        let error = waited.expect("it gives up").expect_err("it is not drained").to_string();
        assert!(error.contains("did not answer for 2s (no answer)"), "{error}");
    }

    #[tokio::test]
    async fn each_answer_begins_the_limit_anew_and_is_in_the_error() {
        let mut outage = Outage::new(Some(Duration::ZERO));
        outage.pause("away").await.expect_err("the limit has passed");
        outage.end(3);
        assert_eq!(outage.since, None);
        let error = outage.pause("away").await.expect_err("it has passed again").to_string();
        assert!(error.contains("(away): its last answer: 3 jobs are left"), "{error}");
        let mut endless = Outage::new(None);
        endless.since = Instant::now().checked_sub(Duration::from_secs(3600));
        endless.pause("away").await.expect("there is no limit");
    }
}
