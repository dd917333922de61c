//! What a WorkerCluster is good for, beside a plain Deployment, and how long its changes take: the
//! real coordinator and agents on a real control plane. Nothing of it outlives it, Ctrl-C included.

mod elections;
mod figures;
mod healing;
mod many_fleets;
mod side_by_side;
mod turnover;

use std::process::ExitCode;
use std::time::Instant;

use tests::kube::{Access, ControlPlane};
use tests::process::{give_up, is_given_up};
use tokio::signal::unix::{SignalKind, signal};

use figures::Figures;
use many_fleets::Size;

const HELP: &str = "\
Runs one script against a WorkerCluster and a plain Deployment, on a real control plane, then times
changes of leader and of slots, and how pipelines heal. Some minutes.

Usage: cargo bench -p tests --bench kubernetes [-- OPTIONS]

Options:
  --runs N   time each change N times (default 10)
  --healing  only how pipelines heal
  --fleets N only what N WorkerClusters cost, with 25 pods each: processor, memory and requests of
             the coordinators, idle and in a rollout. 200 take five minutes
  -h, --help print this

The script: 40 jobs run on 20 workers; at the same moment come a new image, half the workers, the
drain of a node, and for the WorkerCluster a kill -9 of the leading coordinator.

Rows:
  jobs run        jobs that ran between that moment and the end of all changes
  jobs lost       of these, those that were begun and never ended
  peak            most jobs at once meanwhile; 40 may run
  settled after   from that moment to the end of all changes, 20 jobs running again";

#[tokio::main(flavor = "multi_thread", worker_threads = 4)]
async fn main() -> ExitCode {
    let wanted = match wanted(std::env::args().skip(1)) {
        Ok(Some(wanted)) => wanted,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("kubernetes: {message} (try --help)");
            return ExitCode::from(2);
        }
    };
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !is_given_up() {
            loud(panic);
        }
    }));
    let mut interrupt = signal(SignalKind::interrupt()).expect("signals can be heard");
    let mut terminate = signal(SignalKind::terminate()).expect("signals can be heard");
    // A task of its own: the benchmark's blocks its thread at times.
    let given_up = tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        give_up();
        eprintln!("==> given up");
    });
    // What is given up is dropped, and ends all that it has started.
    tokio::select! {
        () = bench(wanted) => ExitCode::SUCCESS,
        _ = given_up => ExitCode::from(130),
    }
}

/// What is wanted.
struct BenchOptions {
    /// How often each change is timed.
    runs: usize,
    healing_only: bool,
    /// Only the cost of so many fleets.
    fleets: Option<usize>,
}

/// The pods of each of many fleets.
const PODS_PER_FLEET: usize = 25;

/// The options, or `None` if help is requested.
fn wanted(mut args: impl Iterator<Item = String>) -> Result<Option<BenchOptions>, String> {
    let (mut runs, mut healing_only, mut fleets) = (10, false, None);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            // Cargo passes it to every benchmark.
            "--bench" => {}
            "-h" | "--help" => return Ok(None),
            "--healing" => healing_only = true,
            "--runs" => {
                let given = args.next().and_then(|text| text.parse().ok());
                runs = given.filter(|runs| *runs > 0).ok_or("--runs wants a number above 0")?;
            }
            "--fleets" => {
                let given = args.next().and_then(|text| text.parse().ok());
                fleets = Some(given.filter(|n| *n > 0).ok_or("--fleets wants a number above 0")?);
            }
            other => return Err(format!("unknown option {other:?}")),
        }
    }
    Ok(Some(BenchOptions { runs, healing_only, fleets }))
}

async fn bench(BenchOptions { runs, healing_only, fleets }: BenchOptions) {
    let build = if cfg!(debug_assertions) { "debug build" } else { "optimised build" };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    println!("==> kubernetes, {build}, {cores} processors, load {}", load());
    let mut figures = Figures::default();
    let begun = Instant::now();
    let Some(plane) = ControlPlane::start() else { return };
    figures.add("start of the control plane", &[begun.elapsed()]);
    if let Some(fleets) = fleets {
        let size = Size { fleets, pods: fleets * PODS_PER_FLEET };
        return many_fleets::measure(&plane, size).await;
    }
    let access = plane.access();
    if !healing_only {
        worker_clusters(access, runs, &mut figures).await;
    }
    healing::measure(access, runs, &mut figures).await;
    figures.print();
    println!("==> load at the end: {}", load());
}

/// Everything about WorkerClusters.
async fn worker_clusters(access: &Access, runs: usize, figures: &mut Figures) {
    let plain = side_by_side::plain(access).await;
    let (ours, mut scenario) = side_by_side::ours(access, figures).await;
    side_by_side::print(&plain, &ours);
    elections::measure(&mut scenario, runs, figures).await;
    side_by_side::end(scenario).await;
    turnover::measure(access, runs, figures).await;
}

/// How busy the machine is: the mean number of processes that ran or waited in the last minute.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().filter(|average| !average.is_empty()).unwrap_or("unknown").to_owned()
}

/// Creates a namespace and returns its name.
fn namespace(access: &Access, name: &str) -> String {
    access.kubectl(&["create", "namespace", name]);
    name.to_owned()
}
