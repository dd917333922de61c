//! One demo from its first process to its last: whatever happens, every child is ended.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde::Serialize;

use crate::clock::POLL;
use crate::environment::{Environment, Interrupted};
use crate::fleet::{CLUSTER, Programs, SET, log_tail};
use crate::report::{End, Findings};
use crate::scenario::{self, Measured};
use crate::short;
use crate::work::Work;

/// The exit code after Ctrl-C, as shells count it.
const INTERRUPTED: u8 = 130;
/// Lines of each log that a failure shows.
const LOG_LINES: usize = 3;

/// What the user asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Stay up after the last phase.
    pub keep: bool,
    /// Play the short demo, whose steps have fixed times.
    pub short: bool,
    /// The file that gets the outcome as JSON, too.
    pub json: Option<PathBuf>,
    /// The folder with the manifests and the workers.
    pub deploy: PathBuf,
    /// Where the work folder is made.
    pub work: Option<PathBuf>,
    /// The Python that runs the workers.
    pub python: String,
}

/// Plays the demo.
///
/// # Errors
/// If it cannot even begin, or its outcome cannot be read.
pub fn run(options: Options) -> Result<ExitCode> {
    if options.short && options.keep {
        bail!("--short ends by itself: leave out --keep, or KEEP in the environment");
    }
    let binaries = std::env::current_exe()?;
    let binaries = binaries.parent().context("cannot find the folder of this program")?.to_owned();
    let parent = options.work.unwrap_or_else(|| binaries.join("../demo"));
    let deploy = options.deploy.canonicalize().unwrap_or(options.deploy);
    let programs = Programs { binaries, deploy, python: options.python };
    programs.check()?;
    let json = options.json.as_deref().map(create).transpose()?;
    let streams = read_streams(&programs.deploy.join("manifests/swarm-streams.txt"))?;
    std::fs::create_dir_all(&parent)?;
    let work = Work::new(&parent.canonicalize()?)?;
    let interrupt = Arc::new(AtomicBool::new(false));
    listen_for_signals(interrupt.clone())?;
    let mut environment = Environment::new(work, programs, &streams, interrupt.clone())?;
    let page = &environment.fleet.replicas[0].http_address;
    environment.screen.say(&format!("see it in a browser: http://{page}/"));
    if options.short {
        return run_short(environment, streams.len(), json);
    }
    let mut measured = Measured::default();
    let mut outcome = scenario::run(&mut environment, streams.len(), &mut measured);
    if outcome.is_ok() && options.keep {
        outcome = stay(&mut environment, &interrupt);
    }
    let outcome = outcome.and_then(|()| end(&mut environment, &streams));
    environment.screen.clear();
    if outcome.as_ref().is_err_and(|error| error.is::<Interrupted>()) {
        return Ok(interrupted());
    }
    judge(environment, &streams, measured, outcome, json)
}

/// Plays the short demo. Its processes are killed in the middle of their work.
fn run_short(mut environment: Environment, streams: usize, json: Option<File>) -> Result<ExitCode> {
    let played = short::run(&mut environment, streams);
    environment.screen.clear();
    environment.fleet.agents.clear();
    environment.fleet.replicas.clear();
    match played {
        Ok(summary) => {
            publish(&summary, json)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) if error.is::<Interrupted>() => Ok(interrupted()),
        Err(error) => {
            keep_work(&mut environment)?;
            Err(error)
        }
    }
}

fn interrupted() -> ExitCode {
    eprintln!("demo: interrupted; every process is ended");
    ExitCode::from(INTERRUPTED)
}

/// Shows the outcome, and writes it into the file that the user has named.
fn publish(summary: &impl Serialize, json: Option<File>) -> Result<()> {
    let text = serde_json::to_string(summary)?;
    println!("{text}");
    match json {
        Some(mut file) => writeln!(file, "{text}").context("cannot write the file of --json"),
        None => Ok(()),
    }
}

/// The file of `--json`. It is opened before minutes are spent on what is written there.
fn create(path: &Path) -> Result<File> {
    File::create(path)
        .with_context(|| format!("--json {}: cannot be written: name another file", path.display()))
}

fn judge(
    mut environment: Environment,
    streams: &[String],
    measured: Measured,
    outcome: Result<()>,
    json: Option<File>,
) -> Result<ExitCode> {
    // What is still there has no say any more.
    environment.fleet.agents.clear();
    environment.fleet.replicas.clear();
    let end = match (&outcome, environment.stays()) {
        (Err(_), _) => End::Early,
        (Ok(()), true) => End::AfterStaying,
        (Ok(()), false) => End::Orderly,
    };
    let read = Findings::read(&environment.work, streams, measured, end);
    let mut findings = read.inspect_err(|_| environment.work.keep())?;
    findings.broken.extend(outcome.err().map(|error| format!("{error:#}")));
    let (summary, failures) = findings.judge(streams.len());
    for failure in &failures {
        environment.screen.say(&failure.to_string());
    }
    if !summary.ok {
        keep_work(&mut environment)?;
    }
    publish(&summary, json)?;
    Ok(if summary.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Keeps the work folder, says where it is, and shows the ends of the logs.
fn keep_work(environment: &mut Environment) -> Result<()> {
    environment.work.keep();
    show_logs(environment)?;
    let folder = environment.work.path("");
    environment.screen.say(&format!("everything is kept in {}", folder.display()));
    Ok(())
}

fn show_logs(environment: &mut Environment) -> Result<()> {
    let mut logs: Vec<PathBuf> = std::fs::read_dir(environment.work.path("logs"))?
        .map(|e| Ok(e?.path()))
        .collect::<Result<_>>()?;
    logs.sort();
    for log in logs {
        let tail = log_tail(&log, LOG_LINES);
        let name = log.file_name().unwrap_or_default().to_string_lossy();
        environment.screen.say(&format!("the end of {name}:\n{tail}"));
    }
    Ok(())
}

/// Ends everything in order: sources, copying, workers with a drain, coordinators.
fn end(environment: &mut Environment, streams: &[String]) -> Result<()> {
    environment.sources.stop()?;
    environment.wait("the last record's copy", |environment| {
        Ok(environment.work.records(SET, streams, false)?.0.lost == 0)
    })?;
    let workers: Vec<String> = environment.fleet.agents.keys().cloned().collect();
    for worker in &workers {
        environment.fleet.drain(worker)?;
    }
    for worker in &workers {
        environment.wait(&format!("the end of {worker}"), |environment| {
            environment.fleet.has_drained(worker)
        })?;
    }
    for index in 0..environment.fleet.replicas.len() {
        let Some(mut process) = environment.fleet.replicas[index].process.take() else { continue };
        process.signal(Signal::TERM)?;
        environment.wait(&format!("the end of {}", process.name), |_| {
            match process.ended()? {
                Some(status) if status.success() => Ok(true),
                Some(status) => bail!("a coordinator ended with {status}"),
                None => Ok(false),
            }
        })?;
    }
    Ok(())
}

/// Stays up until Ctrl-C, which then only ends this.
fn stay(environment: &mut Environment, interrupt: &AtomicBool) -> Result<()> {
    environment.sources.slow_down();
    let (leader, _) = environment.admin.leader().context("no coordinator leads")?;
    let replica = &environment.fleet.replicas[leader];
    let (grpc, http) = (replica.address.clone(), replica.http_address.clone());
    let leader = replica.process.as_ref().context("the leader has ended")?.id();
    let (worker, agent) = environment.fleet.agents.iter().next().context("no agent runs")?;
    let (api, agent) = (&agent.address, agent.process.id());
    let query = |path: &str| format!("  curl -s 'http://{http}/api/v1/{path}'");
    let lines = [
        format!("everything stays up; Ctrl-C ends it. See it in a browser: http://{http}/"),
        "Kill something and watch the page:".to_owned(),
        format!("  kill -9 {leader:<8}  # the leader: the page goes on with the next one"),
        format!("  kill -9 {agent:<8}  # an agent: {worker} is silent, then lost; jobs count"),
        "Look around:".to_owned(),
        format!("  curl -s http://{api}/v1/lease                       # {worker}'s lease"),
        format!("  curl -sN http://{api}/v1/lease/watch                # every change of it"),
        format!("  curl -s -X PUT 'http://{api}/v1/jobs/mine?wait_ms=5000'   # may a job start?"),
        format!("  curl -s -X DELETE http://{api}/v1/jobs/mine         # it has ended"),
        format!("  curl -s http://{http}/metrics"),
        format!("  curl -s http://{http}/api/v1/openapi.json           # all that can be asked"),
        query(&format!("workers?cluster={CLUSTER}")),
        query(&format!("streams?set={SET}")),
        query(&format!("explain/worker?cluster={CLUSTER}&worker={worker}")),
        format!("  curl -sN http://{http}/api/v1/changes               # what happens, as it does"),
        format!("  cargo run -p leasehold-cli -- top --coordinator {grpc}   # on the full screen"),
        format!("  $EDITOR {}", environment.work.path("manifests/cluster.yaml").display()),
    ];
    environment.screen.say(&lines.join("\n"));
    environment.stay_in_phase("Ctrl-C ends the demo");
    loop {
        match environment.tick() {
            Err(error) if error.is::<Interrupted>() => break,
            result => result?,
        }
        std::thread::sleep(POLL);
    }
    interrupt.store(false, Ordering::Relaxed);
    Ok(())
}

/// The streams of the list, as the manifest's own reader takes them: one a line, `#` comments.
fn read_streams(path: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let lines = text.lines().map(str::trim);
    Ok(lines.filter(|l| !l.is_empty() && !l.starts_with('#')).map(str::to_owned).collect())
}

/// Sets `interrupt` at SIGINT and SIGTERM, and at SIGHUP when the terminal goes.
fn listen_for_signals(interrupt: Arc<AtomicBool>) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let guard = runtime.enter();
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let mut signals = kinds.map(|kind| signal(kind));
    for signal in &mut signals {
        if let Err(error) = signal {
            bail!("cannot listen for signals: {error}");
        }
    }
    drop(guard);
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                std::future::poll_fn(|context| {
                    let mut signals = signals.iter_mut().flatten();
                    if signals.any(|signal| signal.poll_recv(context).is_ready()) {
                        std::task::Poll::Ready(())
                    } else {
                        std::task::Poll::Pending
                    }
                })
                .await;
                interrupt.store(true, Ordering::Relaxed);
            }
        });
    });
    Ok(())
}
