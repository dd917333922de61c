//! How long agents wait for their first grant after a failover: real agents' cores on a connection
//! each, two real coordinators, and a leader that is killed or steps down again and again.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use leasehold_types::Moment;
use rustix::process::Signal;
use tests::agents::{Agent, AgentIdentity, CLUSTER, Coordinators, FleetRecord, StandaloneReplicas};

const HELP: &str = "\
Ends the leader of two coordinators again and again, in turn by SIGKILL and by SIGTERM, and times
for each agent how long it waits for the first grant of the next leader. Another replica follows
each that has ended. All of it shares this machine's processors.

Usage: cargo bench -p tests --bench reconnects [-- OPTIONS]
       make reconnects [FAILOVERS=200]

Options:
  --agents N     (default 50)
  --failovers N  (default 200)
  --ttl SECONDS  how long a lease lasts (default 10)
  -h, --help     print this

Example:
  make reconnects FAILOVERS=20

It fails if an agent waits longer than 5 s, a lease ends without renewal, or a stream moves.";

/// The longest wait for a first grant.
const WAIT_MAX: Duration = Duration::from_secs(5);
const STREAMS_PER_AGENT: usize = 2;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);
/// A failover that takes longer is given up, and failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most that passes between two failovers, so that they meet beats at other moments.
const PAUSE_MAX_MS: u64 = 1_000;
/// Between two lines of progress, in failovers.
const LINES_EVERY: usize = 20;
/// How leaders end, in turn.
const ENDS: [(&str, Signal); 2] = [("kill -9", Signal::KILL), ("step-down", Signal::TERM)];

struct Options {
    agents: usize,
    failovers: usize,
    ttl_seconds: u64,
}

impl Options {
    /// The options, or `None` if help is requested.
    fn parse(args: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self { agents: 50, failovers: 200, ttl_seconds: 10 };
        // Cargo passes --bench to every benchmark.
        let mut args = args.filter(|arg| arg != "--bench");
        while let Some(arg) = args.next() {
            if ["-h", "--help"].contains(&arg.as_str()) {
                return Ok(None);
            }
            let number = args.next().and_then(|text| text.parse::<u32>().ok());
            let number = number.filter(|number| *number > 0);
            let number = number.ok_or_else(|| format!("{arg} wants a number above 0"));
            match arg.as_str() {
                "--agents" => options.agents = number? as usize,
                "--failovers" => options.failovers = number? as usize,
                "--ttl" => options.ttl_seconds = number?.into(),
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
            eprintln!("reconnects: {message} (try --help)");
            return ExitCode::from(2);
        }
    };
    let build = if cfg!(debug_assertions) { "debug build" } else { "optimised build" };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    println!("reconnects, {build}, {cores} processors, load {}", load());
    let failures = Scenario::start(&options).play(options.failovers).await;
    println!("load at the end: {}", load());
    failures.iter().for_each(|failure| println!("!!! {failure}"));
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct Scenario {
    replicas: StandaloneReplicas,
    record: Arc<FleetRecord>,
    agents: Vec<Agent>,
    /// The waits for first grants, in microseconds, by how the leader ended.
    waits: [Histogram<u64>; ENDS.len()],
    failures: Vec<String>,
}

impl Scenario {
    fn start(options: &Options) -> Self {
        let replicas = StandaloneReplicas::start(options.agents, options.ttl_seconds);
        let streams = options.agents * STREAMS_PER_AGENT;
        replicas.put_set("feeds", 0..streams);
        let record = Arc::new(FleetRecord::new(options.agents, streams));
        let coordinators = Coordinators { addresses: replicas.addresses(), tls: None };
        let coordinators = Arc::new(coordinators);
        let start = |number| {
            let identity = AgentIdentity::numbered(number, CLUSTER);
            Agent::start(identity, Arc::clone(&coordinators), Arc::clone(&record))
        };
        let agents = (0..options.agents).map(start).collect();
        let waits = ENDS.map(|_| Histogram::new(3).expect("three digits are allowed"));
        Self { replicas, record, agents, waits, failures: Vec::new() }
    }

    /// Plays all failovers; what went wrong, in sentences.
    async fn play(mut self, failovers: usize) -> Vec<String> {
        let streams = self.agents.len() * STREAMS_PER_AGENT;
        let begun = Instant::now();
        while self.record.owned() < streams || self.record.live_since(1) < self.agents.len() {
            if begun.elapsed() > PATIENCE {
                self.failures.push("the agents did not get their leases at the start".to_owned());
                return self.failures;
            }
            tokio::time::sleep(LOOK).await;
        }
        self.record.take();
        for number in 1..=failovers {
            if let Err(failure) = self.failover(number).await {
                self.failures.push(format!("failover {number}: {failure}"));
                break;
            }
            if number % LINES_EVERY == 0 {
                let longest = self.waits.iter().map(Histogram::max).max().unwrap_or_default();
                println!("  {number} failovers, the longest wait so far {}", seconds(longest));
            }
        }
        self.print();
        for agent in self.agents {
            agent.kill().await;
        }
        self.failures
    }

    async fn failover(&mut self, number: usize) -> Result<(), String> {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(..PAUSE_MAX_MS))).await;
        let end = number % ENDS.len();
        let epoch = self.record.epoch() + 1;
        let (place, ended) = self.replicas.end_leader(ENDS[end].1);
        let begun = Instant::now();
        let agents = 0..self.agents.len();
        let first = |agent| self.record.first_grant(agent, epoch);
        while !agents.clone().all(|agent| first(agent).is_some()) {
            if begun.elapsed() > PATIENCE {
                let late = agents.filter(|agent| first(*agent).is_none()).count();
                return Err(format!("{late} agents had no grant after {PATIENCE:?}"));
            }
            tokio::time::sleep(LOOK).await;
        }
        for agent in agents {
            let wait = first(agent).unwrap_or(Moment::NEVER).since(ended);
            let wait_us = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
            self.waits[end].record(wait_us).expect("a histogram that grows takes all values");
            if wait > WAIT_MAX {
                let wait = wait.as_secs_f64();
                let how = ENDS[end].0;
                self.failures.push(format!(
                    "failover {number} ({how}): w-{agent} waited {wait:.3} s for its first grant"
                ));
            }
        }
        let counts = self.record.take();
        let mut fails = |what: String| self.failures.push(format!("failover {number}: {what}"));
        if counts.expired > 0 {
            fails(format!("{} leases ended without renewal", counts.expired));
        }
        if counts.moved > 0 {
            fails(format!("{} streams moved", counts.moved));
        }
        counts.faults.into_iter().for_each(fails);
        self.replicas.start_again(place);
        Ok(())
    }

    fn print(&self) {
        println!(
            "\n{:<22} {:>8} {:>9} {:>9} {:>9}",
            "first grant after", "waits", "50 %", "99 %", "longest"
        );
        let row = |name: &str, waits: &Histogram<u64>| {
            println!(
                "{name:<22} {:>8} {:>9} {:>9} {:>9}",
                waits.len(),
                seconds(waits.value_at_quantile(0.5)),
                seconds(waits.value_at_quantile(0.99)),
                seconds(waits.max())
            );
        };
        let mut all = Histogram::new(3).expect("three digits are allowed");
        for ((name, _), waits) in ENDS.iter().zip(&self.waits) {
            row(name, waits);
            all.add(waits).expect("a histogram that grows takes all values");
        }
        row("all", &all);
        println!();
    }
}

fn seconds(microseconds: u64) -> String {
    format!("{:.3} s", Duration::from_micros(microseconds).as_secs_f64())
}

/// How busy the machine is: the mean numbers of processes that ran or waited in the last minute,
/// the last five and the last fifteen.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}
