//! One run: the fleet comes up, faults begin and end as the seed says, and without faults it does
//! again all that it should. Then its workers end, and the judge reads their journals.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use leasehold_demo::clock::{self, POLL};
use leasehold_demo::evidence::Evidence;
use leasehold_demo::fleet::log_tail;
use leasehold_demo::journal::Event;

use super::disks::Disks;
use super::fleet::{Fleet, Journal, journals, read_journals};
use super::judge::judge;
use super::manifests::{self, ChaosManifests, cluster_of};
use super::network::{BURST, BURST_EVERY, Network};
use super::orders::AdminOrders;
use super::plan::{Claim, Edit, Fault, FirstAgent, Host, NODES, SPARE, Target, steps};
use crate::process::HANG;

/// Between two looks at what has ended by itself.
const REVIVE_EVERY: Duration = Duration::from_secs(1);
/// Between two looks at the journals.
const LOOK: Duration = Duration::from_millis(500);
/// Lines of each log that a failure shows.
const LOG_LINES: usize = 3;

/// Whether what a fault needs is missing on this machine.
#[derive(Clone, Copy, Debug)]
struct MissingTools {
    netem: bool,
    slow_disks: bool,
}

struct Run {
    folder: PathBuf,
    network: Network,
    fleet: Fleet,
    journal: Journal,
    orders: AdminOrders,
    manifests: ChaosManifests,
    missing: MissingTools,
    /// Hosts that lose bursts of packets, and whether one is under way.
    lossy: BTreeMap<Host, bool>,
    ended: Vec<String>,
}

/// Runs everything in this process's own namespaces. Returns what went wrong, in words.
///
/// # Errors
/// If the run could not be made.
pub fn run(seed: u64, lasting: Duration, folder: &Path) -> Result<Vec<String>> {
    let mut run = Run::start(folder)?;
    let mut failures = Vec::new();
    let outcome = run.play(seed, lasting);
    if let Err(error) = &outcome {
        failures.push(format!("{error:#}"));
    }
    let Run { fleet, orders, ended, .. } = run;
    drop(orders);
    drop(fleet);
    for end in ended {
        println!("  {end}");
    }
    let verdict = judge(&Evidence::new(read_journals(folder)?));
    println!(
        "{} jobs began and {} of them ended, {} times a worker began to own a stream or share",
        verdict.jobs, verdict.jobs_done, verdict.owned
    );
    // Jobs of a run that was broken off have no end.
    let of_the_end = |failure: &String| outcome.is_ok() || !failure.starts_with("a lost job");
    failures.extend(verdict.failures.into_iter().filter(of_the_end));
    failures.extend(panics(folder)?);
    if !failures.is_empty() {
        show_logs(folder)?;
    }
    Ok(failures)
}

impl Run {
    fn start(folder: &Path) -> Result<Self> {
        for name in ["manifests", "journals", "logs"] {
            std::fs::create_dir(folder.join(name))?;
        }
        let network = Network::lay()?;
        let disks = Disks::mount(folder)?;
        let missing =
            MissingTools { netem: !network.has_netem(), slow_disks: !disks.can_be_slow() };
        missing.tell();
        let journal = Journal::open(&journals(folder).join("chaos.jsonl"))?;
        let manifests = ChaosManifests::new();
        manifests.write(&manifests::folder(folder))?;
        Ok(Self {
            folder: folder.to_owned(),
            network,
            fleet: Fleet::new(folder, disks, journal.clone()),
            orders: AdminOrders::start(journal.clone(), manifests.budget)?,
            journal,
            manifests,
            missing,
            lossy: BTreeMap::new(),
            ended: Vec::new(),
        })
    }

    fn play(&mut self, seed: u64, lasting: Duration) -> Result<()> {
        self.fleet.start_all()?;
        self.wait_settled("the fleet's start")?;
        println!("the fleet is up; faults begin");
        self.torment(seed, lasting)?;
        println!("the faults are over");
        self.wait_settled("the end of the faults")?;
        println!("everything is served again");
        let wrong = self.fleet.end_workers();
        if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("\n")) }
    }

    fn torment(&mut self, seed: u64, lasting: Duration) -> Result<()> {
        let steps = steps(seed, lasting);
        // Ends before beginnings, where both are due.
        let begins = steps.iter().map(|step| (step.from, true, step.fault));
        let ends = steps.iter().map(|step| (step.to, false, step.fault));
        let mut due: Vec<_> = begins.chain(ends).collect();
        due.sort_by_key(|(at, begins, _)| (*at, *begins));
        let (begun, mut revived) = (Instant::now(), Instant::now());
        for (at, begins, fault) in due {
            while begun.elapsed() < at {
                std::thread::sleep(POLL.min(at.saturating_sub(begun.elapsed())));
                self.burst(begun.elapsed())?;
                if revived.elapsed() > REVIVE_EVERY {
                    revived = Instant::now();
                    let ended = self.fleet.revive()?;
                    self.ended.extend(ended);
                }
            }
            let what = if begins { "begins" } else { "ends" };
            let what = format!("{what}: {fault}");
            println!("  {:>7.2} s {what}", begun.elapsed().as_secs_f64());
            self.journal.write("chaos", Event::Fault { what })?;
            self.apply(fault, begins).with_context(|| fault.to_string())?;
        }
        Ok(())
    }

    fn apply(&mut self, fault: Fault, begins: bool) -> Result<()> {
        match fault {
            Fault::Kill(target) if begins => self.fleet.kill(target),
            Fault::Kill(target) => self.fleet.start(target),
            Fault::Stop(target) => self.stop(target, begins),
            Fault::StopNode(node) => {
                self.stop(Target::Agent(node), begins)?;
                self.stop(Target::Worker(node), begins)
            }
            Fault::Replace(node) if begins => self.kill_node(node),
            Fault::Replace(node) => self.replace(node),
            Fault::Drain(node) if begins => {
                self.fleet.drain(node);
                Ok(())
            }
            Fault::Drain(node) => {
                self.kill_node(node)?;
                self.replace(node)
            }
            Fault::Claim(node, claim, first) if begins => self.claim(node, claim, first),
            Fault::Claim(node, ..) => {
                self.kill_node(SPARE)?;
                self.kill_node(node)?;
                self.replace(node)
            }
            Fault::Cut(from, to) => self.network.cut(from, to, begins),
            Fault::Isolate(host) => self.network.isolate(host, begins),
            Fault::Delay(host) => self.network.delay(host, begins),
            Fault::Loss(host) => self.lose(host, begins),
            Fault::FullDisk(disk) => self.fleet.disks.fill(disk, begins),
            Fault::SlowDisk(_) if self.missing.slow_disks => Ok(()),
            Fault::SlowDisk(disk) => self.fleet.disks.slow(disk, begins),
            Fault::Edit(edit) => self.edit(edit, begins),
        }
    }

    fn stop(&mut self, target: Target, begins: bool) -> Result<()> {
        if begins { self.fleet.stop(target) } else { self.fleet.go_on(target) }
    }

    fn kill_node(&mut self, node: usize) -> Result<()> {
        self.fleet.kill(Target::Agent(node))?;
        self.fleet.kill(Target::Worker(node))
    }

    /// Another agent claims the name of a node's worker.
    fn claim(&mut self, node: usize, claim: Claim, first: FirstAgent) -> Result<()> {
        match first {
            FirstAgent::Lives => {}
            FirstAgent::Stopped => self.fleet.stop(Target::Agent(node))?,
            FirstAgent::Killed => self.fleet.kill(Target::Agent(node))?,
        }
        self.fleet.claim(node, claim)
    }

    /// Another worker takes a dead node's place.
    fn replace(&mut self, node: usize) -> Result<()> {
        let old = self.fleet.replace(node)?;
        self.orders.declare_gone(cluster_of(node), old);
        self.fleet.start(Target::Agent(node))?;
        self.fleet.start(Target::Worker(node))
    }

    fn edit(&mut self, edit: Edit, begins: bool) -> Result<()> {
        self.manifests.edit(edit, begins);
        self.orders.budget(self.manifests.budget)?;
        self.manifests.write(&manifests::folder(&self.folder))
    }

    fn lose(&mut self, host: Host, begins: bool) -> Result<()> {
        match (self.missing.netem, begins) {
            (false, _) => self.network.lose(host, begins),
            (true, true) => {
                self.lossy.insert(host, false);
                Ok(())
            }
            (true, false) => match self.lossy.remove(&host) {
                Some(true) => self.network.mute(host, false),
                Some(false) | None => Ok(()),
            },
        }
    }

    /// Begins and ends bursts of losses.
    fn burst(&mut self, at: Duration) -> Result<()> {
        let is_on = at.as_millis() % BURST_EVERY.as_millis() < BURST.as_millis();
        for (host, was_on) in &mut self.lossy {
            if *was_on != is_on {
                *was_on = is_on;
                self.network.mute(*host, is_on)?;
            }
        }
        Ok(())
    }

    /// Waits until the workers do all that is wanted.
    fn wait_settled(&mut self, after: &str) -> Result<()> {
        let (begun, begun_ns) = (Instant::now(), clock::now_ns());
        loop {
            std::thread::sleep(LOOK);
            let ended = self.fleet.revive()?;
            self.ended.extend(ended);
            let mut lacking = self.orders.left();
            if lacking.is_empty() {
                lacking = self.lacking(begun_ns)?;
            }
            if lacking.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > HANG {
                bail!(
                    "timed out {} s after {after}: still waiting for {}",
                    HANG.as_secs(),
                    lacking.join(", ")
                );
            }
        }
    }

    /// What the workers do not do, in words.
    fn lacking(&self, since_ns: u64) -> Result<Vec<String>> {
        let evidence = Evidence::new(read_journals(&self.folder)?);
        let now_ns = clock::now_ns();
        let living: BTreeSet<String> = (0..NODES).map(|node| self.fleet.worker(node)).collect();
        let mut lacking = Vec::new();
        let mut wanted = self.manifests.streams();
        let mut loads: BTreeMap<String, u64> = BTreeMap::new();
        for own in evidence.owns.iter().filter(|own| own.from_ns <= now_ns && now_ns < own.to_ns) {
            if !living.contains(&own.worker) {
                continue;
            }
            match own.stream.strip_prefix("shares of ") {
                None => _ = wanted.remove(&own.stream),
                Some(share) => {
                    let node = share.rsplit_once('/').map_or(share, |(node, _)| node);
                    *loads.entry(node.to_owned()).or_default() += own.load_milli;
                }
            }
        }
        lacking.extend(wanted.into_iter().map(|stream| format!("owner of {stream}")));
        if loads != self.manifests.loads() {
            let wanted = self.manifests.loads();
            lacking.push(format!("load {wanted:?} on the pipelines' workers, but {loads:?}"));
        }
        let peak = leasehold_demo::checker::peak(&evidence.runs, since_ns, now_ns);
        if peak < self.manifests.budget as usize {
            lacking.push(format!("{} jobs at once, but {peak}", self.manifests.budget));
        }
        Ok(lacking)
    }
}

impl MissingTools {
    fn tell(self) {
        if self.netem {
            println!(
                "!!! LEFT OUT: netem: this kernel has none; in its place hosts get lines of few \
                 bytes a second, which queue and drop, and bursts in which all is dropped"
            );
        }
        if self.slow_disks {
            println!("!!! LEFT OUT: slow disks: `cc` cannot build tests/tools/slow_disk.c here");
        }
        println!(
            "!!! LEFT OUT: slow block devices: writes and syncs are delayed in the process itself, \
             by a library that is loaded before it"
        );
    }
}

/// Every panic in a log, with its line.
fn panics(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (name, text) in logs(folder)? {
        let panics = text.lines().filter(|line| line.contains("panicked at"));
        found.extend(panics.map(|line| format!("{name}: {line}")));
    }
    Ok(found)
}

fn show_logs(folder: &Path) -> Result<()> {
    for (name, _) in logs(folder)? {
        println!("--- {name}\n{}", log_tail(&folder.join("logs").join(&name), LOG_LINES));
    }
    Ok(())
}

fn logs(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut logs = BTreeMap::new();
    for entry in std::fs::read_dir(folder.join("logs"))? {
        let entry = entry?;
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        logs.insert(entry.file_name().to_string_lossy().into_owned(), text);
    }
    Ok(logs)
}
