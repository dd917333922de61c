//! One hostile client against two real coordinators of 256 MiB on a real API server, which serve
//! agents under load meanwhile. It fails if the leader changes, a lease ends, a coordinator needs
//! more memory, or the webhook answers the API server later than within a second.

mod attacks;
mod counts;
mod load;
mod target;
mod test_bed;
mod verdict;
mod watch;

use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use attacks::ClientReport;
use load::Load;
use test_bed::TestBed;
use tests::process::{give_up, is_given_up};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use verdict::Verdict;
use watch::Watch;

const HELP: &str = "\
Two coordinators with 256 MiB of memory each, on a real Kubernetes API server, serve agents whose
jobs change and whose connections end now and then. A client in a process of its own attacks both
in every way at once. All of it shares this machine's processors.

Usage: cargo bench -p tests --bench hostile [-- OPTIONS]
       make hostile [SECONDS=600]

Options:
  --seconds N      how long the client attacks (default 600)
  --agents N       agents that are served meanwhile (default 200)
  --connections N  connections of the client that say nothing, or half of a handshake (default
                   10000; its calls come on top)
  -h, --help       print this

Example:
  make hostile SECONDS=60

It fails if the leader changes, a lease ends without renewal, a stream moves, a hello in another
pod's name is welcome, a coordinator uses more than its memory, an answer of the webhook to the API
server is missing or takes a second or more, or an attack was not made. A busy machine makes the
webhook slow by itself: the output has the load before and after.";

/// The option by which the bench starts its client.
const ATTACK: &str = "--attack";

struct Options {
    seconds: u64,
    agents: usize,
    connections: usize,
    /// The file that describes the target, in the client's process.
    attack: Option<PathBuf>,
}

impl Options {
    /// The options, or `None` if help is requested.
    fn parse(args: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self { seconds: 600, agents: 200, connections: 10_000, attack: None };
        // Cargo passes --bench to every benchmark.
        let mut args = args.filter(|arg| arg != "--bench");
        while let Some(arg) = args.next() {
            if ["-h", "--help"].contains(&arg.as_str()) {
                return Ok(None);
            }
            let value = args.next();
            let number = || {
                let number = value.as_ref().and_then(|text| text.parse::<u32>().ok());
                number
                    .filter(|number| *number > 0)
                    .ok_or_else(|| format!("{arg} wants a number above 0"))
            };
            match arg.as_str() {
                "--seconds" => options.seconds = number()?.into(),
                "--agents" => options.agents = number()? as usize,
                "--connections" => options.connections = number()? as usize,
                ATTACK => options.attack = value.map(PathBuf::from),
                other => return Err(format!("unknown option {other:?}")),
            }
        }
        Ok(Some(options))
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("hostile: {message} (try --help)");
            return ExitCode::from(2);
        }
    };
    if let Some(file) = &options.attack {
        return match attacks::run(file).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("the hostile client: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let mut interrupt = signal(SignalKind::interrupt()).expect("signals can be heard");
    let mut terminate = signal(SignalKind::terminate()).expect("signals can be heard");
    let given_up = tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        give_up();
        eprintln!("==> given up");
    });
    // What is given up is dropped, and ends all that it has started.
    let ended = tokio::select! {
        ended = bench(&options) => ended,
        _ = given_up => return ExitCode::from(130),
    };
    match ended {
        Ok(failures) if failures.is_empty() => ExitCode::SUCCESS,
        Ok(failures) => {
            failures.iter().for_each(|failure| println!("!!! {failure}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            if !is_given_up() {
                eprintln!("hostile: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Plays everything; which bounds were broken, in sentences.
async fn bench(options: &Options) -> Result<Vec<String>> {
    let build = if cfg!(debug_assertions) { "debug build" } else { "optimised build" };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    println!("hostile, {build}, {cores} processors, load {}", watch::load());
    let Some(test_bed) = TestBed::start(options.agents).await else {
        bail!("there is no control plane to run on: `make tools` builds it");
    };
    println!("==> {} agents begin", options.agents);
    let load = Load::start(&test_bed).await;
    let mut watch = Watch::new(&test_bed);
    watch.before(&test_bed).await?;
    let file = test_bed.describe(options.connections, options.seconds)?;
    println!("==> the hostile client begins, for {} s", options.seconds);
    load.begin_record();
    let mut client = start_client(&file)?;
    let report = tokio::select! {
        report = last_report(&mut client) => report?,
        never = watch.run(&test_bed, &load) => never,
    };
    let verdict = Verdict {
        report,
        load: load.end_record(),
        watched: watch.end(&test_bed).await?,
        agents: options.agents,
        connections: options.connections,
        seconds: options.seconds,
    };
    verdict.print();
    load.end().await;
    println!("==> load at the end: {}", watch::load());
    Ok(verdict.failures())
}

fn start_client(file: &std::path::Path) -> Result<Child> {
    let program = std::env::current_exe().context("the path of this program")?;
    let mut command = Command::new(program);
    command.arg(ATTACK).arg(file).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    command.spawn().context("the hostile client does not start")
}

/// What the client said last, once it has ended.
async fn last_report(client: &mut Child) -> Result<ClientReport> {
    let output = client.stdout.take().context("the client's output is piped")?;
    let mut lines = BufReader::new(output).lines();
    let mut last = None;
    while let Some(line) = lines.next_line().await? {
        last = Some(line);
    }
    let status = client.wait().await?;
    if !status.success() {
        bail!("the hostile client ended early: {status}");
    }
    let last = last.context("the hostile client has said nothing")?;
    Ok(serde_json::from_str(&last)?)
}

/// Between two looks at one thing.
const LOOK: Duration = Duration::from_secs(1);
