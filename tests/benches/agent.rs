//! What an agent costs: the size of its program and image, and what a running one takes of memory
//! and processor, idle and with a thousand streams, beside a real coordinator.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Parser;
use leasehold_release::Program;
use tests::answers::shows;
use tests::bench;
use tests::process::{Agent, Coordinator, Process, eventually, free_address, get};
use tests::toolbox;

const ROWS: &str = "\
Rows:
  program      the agent's file; the aim is 10 MB
  image        an archive of it, packed as `make images` does
  resident     what of it is in memory; the aim is 8 MiB
  of its own   of that, what no file stands behind
  processor    share of one core while nothing happens but its lease's renewal; the aim is 0.1 %
  wake-ups     how often it was run in that time, a second";

/// Streams of the agent that has many.
const STREAMS: usize = 1_000;

fn main() {
    let Options { program, seconds } = bench::options();
    let program = match program {
        // Cargo runs this in the tests' folder.
        Some(program) => toolbox::root().join(program),
        None => toolbox::binary("leasehold-agent"),
    };
    println!("agent, each looked at for {seconds} s\n");
    size("program", &program);
    let folder = tempfile::tempdir().expect("a folder for the image");
    let image = folder.path().join("leasehold-agent.tar");
    Program::Agent.image(&program).pack(&image).expect("the image is packed");
    size("image", &image);
    for (name, streams) in [("idle", 0), ("1,000 streams", STREAMS)] {
        let coordinator = Coordinator::start(&[("bench.yaml", &manifest(streams))]);
        let agent = start(&program, &coordinator);
        eventually("all leases", || holds(&agent, streams).then_some(()));
        measure(name, &agent, Duration::from_secs(seconds));
    }
}

/// Measures what an agent costs, with the command that shows each figure.
#[derive(Debug, Parser)]
#[command(name = "agent", after_help = ROWS)]
struct Options {
    /// The agent's program [default: the one that was built beside this].
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// How long to look at each agent, in seconds.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

/// An agent that is run from this file.
fn start(program: &Path, coordinator: &Coordinator) -> Agent {
    let api = free_address();
    let usual = coordinator.agent_command("bench", "worker-0", api);
    let mut command = Command::new(program);
    command.args(usual.get_args()).arg("--sidecar");
    let log = coordinator.folder().join("worker-0.log");
    Agent { process: Process::start(&mut command, &log), api }
}

fn manifest(streams: usize) -> String {
    let mut text = "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\n\
                    metadata: {name: bench}\nspec: {maxJobs: 4, maxJobsPerWorker: 4}\n"
        .to_owned();
    if streams > 0 {
        text += "---\napiVersion: leasehold.dev/v1alpha1\nkind: StreamSet\n\
                 metadata: {name: events}\nspec:\n  cluster: bench\n  streams:\n";
    }
    for stream in 0..streams {
        let _ = writeln!(text, "  - name: events-of-customer-{stream}");
    }
    text
}

/// Whether it has its pool and every stream.
fn holds(agent: &Agent, streams: usize) -> bool {
    let wanted =
        ["leasehold_agent_pool_size 4".into(), format!("leasehold_agent_streams {streams}")];
    wanted.iter().all(|line| shows(agent.api, line).is_some())
}

fn measure(name: &str, agent: &Agent, span: Duration) {
    // A worker has read its lease: what that takes is there.
    let lease = get(agent.api, "/v1/lease").expect("the lease");
    assert_eq!(lease.0, 200, "{}", lease.1);
    let proc = Path::new("/proc").join(agent.process.id().to_string());
    let (ran, woken, begun) = (ran(&proc), woken(&proc), Instant::now());
    std::thread::sleep(span);
    let took = begun.elapsed().as_secs_f64();
    let share = (self::ran(&proc) - ran) / took * 100.0;
    let wakeups = (self::woken(&proc) - woken) / took;
    let memory = |field: &str| status(&proc, field) / 1024.0;
    println!("\n{name}");
    let status = "/proc/PID/status";
    let rows = [
        ("resident", format!("{:.1} MiB", memory("VmRSS:")), format!("grep VmRSS {status}")),
        ("of its own", format!("{:.1} MiB", memory("RssAnon:")), format!("grep RssAnon {status}")),
        ("processor", format!("{share:.3} %"), "cut -d' ' -f1 /proc/PID/schedstat".into()),
        ("wake-ups", format!("{wakeups:.1} /s"), format!("grep ctxt {status}")),
    ];
    for (what, figure, command) in rows {
        row(what, &figure, &command);
    }
}

fn size(what: &str, file: &Path) {
    let bytes = std::fs::metadata(file).expect("the file's size").len();
    let figure = format!("{:.1} MB", bytes as f64 / 1e6);
    let shown = file.strip_prefix(toolbox::root()).unwrap_or(file);
    row(what, &figure, &format!("stat -c %s {}", shown.display()));
}

fn row(what: &str, figure: &str, command: &str) {
    println!("  {what:<12} {figure:>11}   {command}");
}

/// Seconds that its threads were run.
fn ran(proc: &Path) -> f64 {
    sum_of_threads(proc, |thread| {
        let text = read(&thread.join("schedstat"));
        let nanos = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
        nanos.expect("nanoseconds first") / 1e9
    })
}

/// How often its threads were run.
fn woken(proc: &Path) -> f64 {
    sum_of_threads(proc, |thread| {
        status(thread, "voluntary_ctxt_switches:") + status(thread, "nonvoluntary_ctxt_switches:")
    })
}

fn sum_of_threads(proc: &Path, of: impl Fn(&Path) -> f64) -> f64 {
    let threads = std::fs::read_dir(proc.join("task")).expect("its threads");
    threads.map(|thread| of(&thread.expect("a thread").path())).sum()
}

/// A number of `/proc/PID/status`.
fn status(of: &Path, field: &str) -> f64 {
    let text = read(&of.join("status"));
    let line = text.lines().find_map(|line| line.strip_prefix(field)).expect("the field");
    line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
