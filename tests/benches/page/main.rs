//! What the page costs a browser: many workers, of which some change four times a second, in a real
//! Chromium.

use std::collections::BTreeSet;
use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde_json::Value;
use tests::bench;
use tests::browser::Browser;
use tests::command_line::CommandLine;
use tests::process::Coordinator;
use tests::session::Workers;

const COLUMNS: &str = "\
Columns, in milliseconds:
  frame     from a frame's beginning until the browser's main thread is free again: script, style,
            layout and paint; above 16.7 there are fewer than 60 frames a second
  CPU       the processor's time of the same frames, from a trace of the browser: what the page
            costs. A frame is longer while another process has the processor
  interval  between the beginnings of two frames: what else this machine does is in it
  update    their number, and the longest by the page's own record: read, applied and drawn

Without a graphics processor the browser draws with the processors that all else runs on. The
coordinator and its workers have a lower priority than the browser.

Example:
  cargo bench -p tests --bench page -- --workers 500 --seconds 5";

/// The interval between two changes.
const INTERVAL: Duration = Duration::from_millis(250);
/// Jobs that one worker may run.
const JOBS_PER_WORKER: u32 = 9;
/// An interval above this, in milliseconds, is late: a tenth longer than at 60 frames a second.
const LATE_MS: f64 = 1.1 * 1000.0 / 60.0;
/// What is traced: the main thread's tasks, and those of its frames.
const TRACED: &str = "devtools.timeline,disabled-by-default-devtools.timeline,blink.user_timing";
/// By how much the priority of the coordinator and of its workers is lowered.
const FLEET_NICE: i32 = 10;
/// How long a view is left alone before it is watched: it is drawn for the first time meanwhile.
const SETTLES: Duration = Duration::from_secs(3);

/// Notes for each frame when it begins, and how long the main thread is busy with it: a message
/// comes after everything that the frame has to do.
const RECORD: &str = "
    const frames = window.frames = [];
    const intervals = window.intervals = [];
    const { port1, port2 } = new MessageChannel();
    let begun = performance.now();
    let before = begun;
    port1.onmessage = () => frames.push(performance.now() - begun);
    const next = now => {
        begun = performance.now();
        intervals.push(now - before);
        before = now;
        port2.postMessage(0);
        requestAnimationFrame(next);
    };
    requestAnimationFrame(next);
    window.leasehold.forget();
    performance.mark('the watch begins');
";

/// Opens the page in a real browser while many workers' running jobs change four times a second, in
/// the view of the fleet and in that of the cluster.
#[derive(Debug, Parser)]
#[command(name = "page", after_help = COLUMNS)]
struct Options {
    /// Workers of the cluster.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..))]
    workers: u32,
    /// Workers that change at a time.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    changed: u32,
    /// How long each view is watched.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
}

fn main() -> ExitCode {
    let options = bench::options();
    let Some(browser) = Browser::start_traced("the benchmark of the page", TRACED) else {
        return ExitCode::FAILURE;
    };
    // What is started from now on has the lower priority: a person's browser has a machine of its
    // own, and does not share it with a fleet.
    if let Err(error) = rustix::process::nice(FLEET_NICE) {
        eprintln!("the fleet takes the browser's processors: cannot lower its priority: {error}");
    }
    measure(&options, &browser);
    ExitCode::SUCCESS
}

fn measure(options: &Options, browser: &Browser) {
    let Options { workers: count, changed, seconds } = *options;
    println!("{}", bench::heading("page"));
    println!("{count} workers, {changed} of them change every {} ms", INTERVAL.as_millis());
    let budget = count * JOBS_PER_WORKER;
    let manifest = format!(
        "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\nmetadata: {{name: large}}\n\
         spec: {{maxJobs: {budget}, maxJobsPerWorker: {JOBS_PER_WORKER}, lease: {{ttl: 10m}}}}\n"
    );
    let coordinator = Coordinator::start(&[("large.yaml", &manifest)]);
    CommandLine(&coordinator).until("status", &["leads term"]);
    println!("joining the workers");
    let count = count as usize;
    let workers = Workers::start(coordinator.grpc, "large", count);
    println!("{:<24}  {:>24}  {:>24}  {:>31}  {:>14}", "", "frame", "CPU", "interval", "update");
    let spread = "  50 %   99 %    longest";
    println!(
        "{:<16} {:>7}  {spread}  {spread}  {spread} {:>6}  {:>7} {:>6}",
        "view", "frames", "late", "number", "script"
    );
    let mut random = fastrand::Rng::with_seed(1);
    for route in ["#/fleet", "#/fleet/large"] {
        browser.open("about:blank");
        browser.open(&format!("http://{}/{route}", coordinator.http));
        let all = format!(
            "return document.querySelectorAll('[data-worker][data-size=\"{JOBS_PER_WORKER}\"]')
                .length === {count}"
        );
        browser.until("a cell with its slots for each worker", &all, &[]);
        std::thread::sleep(SETTLES);
        let _ = browser.script(RECORD, &[]);
        for _ in 0..u128::from(seconds) * 1000 / INTERVAL.as_millis() {
            std::thread::sleep(INTERVAL);
            for _ in 0..changed {
                workers.set_jobs(random.usize(..count), random.u32(..=JOBS_PER_WORKER));
            }
        }
        let frames = Figures::of(browser, "return window.frames");
        let intervals = Figures::of(browser, "return window.intervals");
        let stats = browser.script("return window.leasehold.stats()", &[]);
        let script = stats["longestUpdateMs"].as_f64().unwrap_or_default();
        let updates = stats["updates"].as_u64().unwrap_or_default();
        let late = intervals.0.iter().filter(|interval| **interval > LATE_MS).count();
        let cpu = cpu_times(&browser.trace());
        println!(
            "{route:<16} {:>7}  {frames}  {cpu}  {intervals} {late:>6}  {updates:>7} {script:>6.1}",
            frames.0.len()
        );
        assert!(updates > 0, "the page was not live: {stats}");
    }
}

/// The processor's times of the main thread's tasks that are frames, while the page was watched.
fn cpu_times(trace: &[Value]) -> Figures {
    // The driver writes numbers with a point.
    let number = |value: &Value| value.as_f64().unwrap_or_default();
    let moment = |event: &Value| number(&event["ts"]) as u64;
    let begins = trace.iter().filter(|event| event["name"] == "the watch begins").map(moment);
    let begin = begins.max().expect("the page marks when the watch begins");
    let thread = |event: &Value| (number(&event["pid"]) as u64, number(&event["tid"]) as u64);
    let of = |name: &'static str| {
        trace.iter().filter(move |event| event["name"] == name && moment(event) >= begin)
    };
    let frames: BTreeSet<_> =
        of("FireAnimationFrame").map(|frame| (thread(frame), moment(frame))).collect();
    let is_frame = |task: &&Value| {
        let (from, thread) = (moment(task), thread(task));
        let end = from + number(&task["dur"]) as u64;
        frames.range((thread, from)..(thread, end)).next().is_some()
    };
    let cpu_ms = |task: &Value| number(&task["tdur"]) / 1000.0;
    Figures::sorted(of("RunTask").filter(is_frame).map(cpu_ms).collect())
}

/// Durations in milliseconds, the shortest first.
struct Figures(Vec<f64>);

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>6.1} {:>6.1} {:>10.1}", self.at(0.5), self.at(0.99), self.at(1.0))
    }
}

impl Figures {
    fn of(browser: &Browser, script: &str) -> Self {
        let values = browser.script(script, &[]);
        Self::sorted(serde_json::from_value(values).expect("milliseconds"))
    }

    fn sorted(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// The one that this share of all is not longer than.
    fn at(&self, share: f64) -> f64 {
        self.0.get(((self.0.len() - 1) as f64 * share) as usize).copied().unwrap_or_default()
    }
}
