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

use clap::Parser;
use tests::bench;
use tests::kube::{Access, ControlPlane};
use tests::process::is_given_up;

use figures::Figures;
use many_fleets::Size;

const ROWS: &str = "\
The script: 40 jobs run on 20 workers; at the same moment come a new image, half the workers, the
drain of a node, and for the WorkerCluster a kill -9 of the leading coordinator.

Rows:
  jobs run        jobs that ran between that moment and the end of all changes
  jobs lost       of these, those that were begun and never ended
  peak            most jobs at once meanwhile; 40 may run
  settled after   from that moment to the end of all changes, 20 jobs running again";

/// Runs one script against a WorkerCluster and a plain Deployment, on a real control plane, then
/// times changes of leader and of slots, and how pipelines heal. Some minutes.
#[derive(Debug, Parser)]
#[command(name = "kubernetes", after_help = ROWS)]
struct Options {
    /// How often each change is timed.
    #[arg(long, default_value_t = 10, value_parser = bench::above_zero)]
    runs: usize,
    /// Only how pipelines heal.
    #[arg(long)]
    healing: bool,
    /// Only what so many WorkerClusters cost, with 25 pods each: processor, memory and requests of
    /// the coordinators, idle and in a rollout. 200 take five minutes.
    #[arg(long, value_parser = bench::above_zero)]
    fleets: Option<usize>,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 4)]
async fn main() -> ExitCode {
    let options: Options = bench::options();
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !is_given_up() {
            loud(panic);
        }
    }));
    let given_up = bench::given_up();
    // What is given up is dropped, and ends all that it has started.
    tokio::select! {
        () = measure(options) => ExitCode::SUCCESS,
        _ = given_up => ExitCode::from(130),
    }
}

/// The pods of each of many fleets.
const PODS_PER_FLEET: usize = 25;

async fn measure(Options { runs, healing, fleets }: Options) {
    println!("==> {}", bench::heading("kubernetes"));
    let mut figures = Figures::default();
    let begun = Instant::now();
    let Some(plane) = ControlPlane::start() else { return };
    figures.add("start of the control plane", &[begun.elapsed()]);
    if let Some(fleets) = fleets {
        let size = Size { fleets, pods: fleets * PODS_PER_FLEET };
        return many_fleets::measure(&plane, size).await;
    }
    let access = plane.access();
    if !healing {
        worker_clusters(access, runs, &mut figures).await;
    }
    healing::measure(access, runs, &mut figures).await;
    figures.print();
    println!("==> load at the end: {}", bench::load());
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

/// Creates a namespace and returns its name.
fn namespace(access: &Access, name: &str) -> String {
    access.kubectl(&["create", "namespace", name]);
    name.to_owned()
}
