//! How long agents wait for their first grant after a failover: real agents' cores on a connection
//! each, two real coordinators, and a leader that is killed or steps down again and again.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use hdrhistogram::Histogram;
use leasehold_types::Moment;
use rustix::process::Signal;
use tests::agents::{Agent, AgentIdentity, CLUSTER, Coordinators, FleetRecord, StandaloneReplicas};
use tests::bench;
use tests::process::soon_within;

/// The longest wait for a first grant.
const WAIT_MAX: Duration = Duration::from_secs(5);
const STREAMS_PER_AGENT: usize = 2;
/// A failover that takes longer is given up, and failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most that passes between two failovers, so that they meet beats at other moments.
const PAUSE_MAX_MS: u64 = 1_000;
/// Between two lines of progress, in failovers.
const LINES_EVERY: usize = 20;
/// How leaders end, in turn.
const ENDS: [(&str, Signal); 2] = [("kill -9", Signal::KILL), ("step-down", Signal::TERM)];

/// Ends the leader of two coordinators again and again, in turn by SIGKILL and by SIGTERM, and
/// times for each agent how long it waits for the first grant of the next leader. Another replica
/// follows each that has ended. All of it shares this machine's processors.
///
/// It fails if an agent waits longer than 5 s, a lease ends without renewal, or a stream moves.
#[derive(Debug, Parser)]
#[command(name = "reconnects", after_help = "Example:\n  make reconnects FAILOVERS=20")]
struct Options {
    /// Agents, with two streams each.
    #[arg(long, default_value_t = 50, value_parser = bench::above_zero)]
    agents: usize,
    /// How often a leader ends.
    #[arg(long, default_value_t = 200, value_parser = bench::above_zero)]
    failovers: usize,
    /// How long a lease lasts, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    ttl: u64,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let options: Options = bench::options();
    println!("{}", bench::heading("reconnects"));
    let failures = Scenario::start(&options).play(options.failovers).await;
    println!("load at the end: {}", bench::load());
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
        let replicas = StandaloneReplicas::start(options.agents, options.ttl);
        let streams = options.agents * STREAMS_PER_AGENT;
        replicas.put_set("feeds", 0..streams);
        let record = Arc::new(FleetRecord::new(options.agents, streams));
        let coordinators =
            Coordinators { addresses: replicas.addresses(), tls: None, agents_follow: true };
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
        let has_begun =
            || self.record.owned() == streams && self.record.live_since(1) == self.agents.len();
        if soon_within(PATIENCE, || has_begun().then_some(())).await.is_none() {
            self.failures.push("the agents did not get their leases at the start".to_owned());
            return self.failures;
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
        let agents = 0..self.agents.len();
        let first = |agent| self.record.first_grant(agent, epoch);
        let late = || agents.clone().filter(|agent| first(*agent).is_none()).count();
        if soon_within(PATIENCE, || (late() == 0).then_some(())).await.is_none() {
            return Err(format!("{} agents had no grant after {PATIENCE:?}", late()));
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
