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
use clap::Parser;
use load::Load;
use test_bed::TestBed;
use tests::bench;
use tests::process::is_given_up;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use verdict::Verdict;
use watch::Watch;

/// Two coordinators with 256 MiB of memory each, on a real Kubernetes API server, serve agents
/// whose jobs change and whose connections end now and then. A client in a process of its own
/// attacks both in every way at once. All of it shares this machine's processors.
///
/// It fails if the leader changes, a lease ends without renewal, a stream moves, a hello in another
/// pod's name is welcome, a coordinator uses more than its memory, an answer of the webhook to the
/// API server is missing or takes a second or more, or an attack was not made. A busy machine makes
/// the webhook slow by itself: the output has the load before and after.
#[derive(Debug, Parser)]
#[command(name = "hostile", after_help = "Example:\n  make hostile SECONDS=60")]
struct Options {
    /// How long the client attacks, in seconds.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Agents that are served meanwhile.
    #[arg(long, default_value_t = 200, value_parser = bench::above_zero)]
    agents: usize,
    /// Connections of the client that say nothing, or half of a handshake; its calls come on top.
    #[arg(long, default_value_t = 10_000, value_parser = bench::above_zero)]
    connections: usize,
    /// The file that describes the target: the bench starts its client with it.
    #[arg(long, value_name = "FILE", hide = true)]
    attack: Option<PathBuf>,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let options: Options = bench::options();
    if let Some(file) = &options.attack {
        return match attacks::run(file).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("the hostile client: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let given_up = bench::given_up();
    // What is given up is dropped, and ends all that it has started.
    let ended = tokio::select! {
        ended = play(&options) => ended,
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
async fn play(options: &Options) -> Result<Vec<String>> {
    println!("{}", bench::heading("hostile"));
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
    println!("==> load at the end: {}", bench::load());
    Ok(verdict.failures())
}

fn start_client(file: &std::path::Path) -> Result<Child> {
    let program = std::env::current_exe().context("the path of this program")?;
    let mut command = Command::new(program);
    command.arg("--attack").arg(file).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
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
