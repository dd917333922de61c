//! What the scenario runs in: it keeps the queue full, reads journals, draws, kills, and
//! waits for conditions. A phase goes from one stable point to the next, without a gap.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use leasehold_proto::admin::v1 as api;

use crate::admin::Admin;
use crate::checker::{self, PhaseResult};
use crate::clock;
use crate::evidence::Evidence;
use crate::fleet::{CLUSTER, Fleet, Part, Programs};
use crate::journal::{Event, Journals, Phase, Writer};
use crate::live::Live;
use crate::minimum::is_balanced;
use crate::screen::{Row, Screen, View};
use crate::work::{Sources, Work};

/// How long a condition may take before the demo gives up.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// How long a phase's end must last to count as stable.
const STABLE_NS: u64 = 500_000_000;
/// How often the admin API is asked and the table drawn; journals are read at each poll.
const LOOK: Duration = Duration::from_millis(250);

/// That the user wants the demo to end.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// What must hold in a phase.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// The highest `maxJobs` in force in it.
    pub max_jobs: u32,
    /// Whether this many jobs must run at once.
    pub full: bool,
}

/// Everything that the scenario acts on.
#[derive(Debug)]
pub struct Environment {
    /// The processes. First, because fields are dropped in order: no process writes to the work
    /// folder any more when it is removed.
    pub fleet: Fleet,
    /// The coordinators' API.
    pub admin: Admin,
    /// The contents of the workers' journals.
    pub live: Live,
    /// The growing sources.
    pub sources: Sources,
    /// The folders.
    pub work: Work,
    /// The demo's own journal.
    pub journal: Writer,
    /// What the user sees.
    pub screen: Screen,
    /// Streams that should have an owner.
    pub streams: usize,
    /// Whether the queue is kept full.
    pub feeds_jobs: bool,
    journals: Journals,
    interrupt: Arc<AtomicBool>,
    phase: Plan,
    phase_from_ns: u64,
    stays: bool,
    looked: Option<Instant>,
    workers: Vec<api::Worker>,
    epoch: u64,
    queue: usize,
}

impl Environment {
    /// An empty environment: folders, places for processes, growing sources.
    ///
    /// # Errors
    /// If something of it cannot be made.
    pub fn new(
        work: Work,
        programs: Programs,
        streams: &[String],
        interrupt: Arc<AtomicBool>,
    ) -> Result<Self> {
        let fleet = Fleet::new(programs)?;
        let admin = Admin::new(&fleet.addresses())?;
        let sources = Sources::start(&work, streams)?;
        let journal = Writer::open(&work.path("journal/demo.jsonl"))?;
        let journals = Journals::new(work.path("journal"));
        Ok(Self {
            work,
            fleet,
            admin,
            live: Live::default(),
            sources,
            journal,
            screen: Screen::new(),
            streams: 0,
            feeds_jobs: true,
            journals,
            interrupt,
            phase: Plan { name: "start".to_owned(), max_jobs: 0, full: false },
            phase_from_ns: clock::now_ns(),
            stays: false,
            looked: None,
            workers: Vec::new(),
            epoch: 0,
            queue: 0,
        })
    }

    /// Plays one phase: does `act`, then waits until `done` holds and every stream has an owner
    /// among the living, balanced within one. That must last for a while, in which (if the plan
    /// says so) the cap must be reached.
    ///
    /// # Errors
    /// If that does not come about.
    pub fn phase(
        &mut self,
        plan: Plan,
        act: impl FnOnce(&mut Self) -> Result<()>,
        mut done: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<PhaseResult> {
        self.phase = plan.clone();
        act(self)?;
        let mut stable_ns: Option<u64> = None;
        self.wait(&format!("the end of phase {:?}", plan.name), |environment| {
            if !(done(environment)? && environment.is_balanced()) {
                stable_ns = None;
                return Ok(false);
            }
            let since_ns = *stable_ns.get_or_insert_with(clock::now_ns);
            let full = !environment.phase.full || environment.is_full_since(since_ns);
            Ok(full && clock::now_ns() - since_ns >= STABLE_NS)
        })?;
        let phase = Phase {
            name: plan.name,
            from_ns: self.phase_from_ns,
            stable_ns: stable_ns.unwrap_or(self.phase_from_ns),
            to_ns: clock::now_ns(),
            max_jobs: plan.max_jobs,
            full: plan.full,
            living: self.fleet.living().into_iter().collect(),
        };
        self.phase_from_ns = phase.to_ns;
        let evidence = Evidence { phases: vec![phase.clone()], ..self.live.evidence.clone() };
        let result = checker::phases(&evidence).remove(0);
        self.journal.write("demo", Event::Phase(phase))?;
        self.screen.say_phase(&result);
        Ok(result)
    }

    /// Lets the demo go on until `holds`.
    ///
    /// # Errors
    /// If that takes too long, a process ends that should not, or the user has had enough.
    pub fn wait(
        &mut self,
        what: &str,
        mut holds: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            self.tick()?;
            if holds(self)? {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("timed out after {WAIT_MAX:?} waiting for {what}: {}", self.state());
            }
            std::thread::sleep(clock::POLL);
        }
    }

    /// One turn: queue, journals, processes, screen.
    ///
    /// # Errors
    /// As for [`Self::wait`].
    pub fn tick(&mut self) -> Result<()> {
        if self.interrupt.load(Ordering::Relaxed) {
            return Err(Interrupted.into());
        }
        if self.feeds_jobs {
            self.queue = self.work.feed(&mut self.journal)?;
        }
        self.read_journals()?;
        let ended = self.fleet.forget_ended()?;
        if self.stays {
            // A user who looks around may end any process.
            ended.iter().for_each(|words| self.screen.say(words));
        } else if !ended.is_empty() {
            bail!("unexpected end of a process: {}", ended.join(", "));
        }
        if self.looked.is_none_or(|at| at.elapsed() >= LOOK) {
            self.looked = Some(Instant::now());
            if let Some((_, status)) = self.admin.leader() {
                self.epoch = status.epoch;
                self.workers = self.admin.workers(CLUSTER).unwrap_or_default();
            }
            let view = self.view();
            self.screen.draw(&view);
        }
        Ok(())
    }

    /// Takes in what the journals have that is new.
    ///
    /// # Errors
    /// If one cannot be understood.
    pub fn read_journals(&mut self) -> Result<()> {
        let lines = self.journals.read()?;
        self.live.take(lines);
        Ok(())
    }

    /// Kills the leader. Returns its place among the replicas, and when that was.
    ///
    /// # Errors
    /// If no coordinator leads, or the leader does not die.
    pub fn kill_leader(&mut self) -> Result<(usize, u64)> {
        let (leader, _) = self.admin.leader().context("no coordinator leads")?;
        let process = self.fleet.replicas[leader].process.take();
        let mut process = process.context("the leader does not run")?;
        let killed_ns = clock::now_ns();
        process.kill()?;
        Ok((leader, killed_ns))
    }

    /// Kills a worker with its agent, as the loss of their machine does. Returns the jobs that the
    /// worker ran.
    ///
    /// # Errors
    /// If there is no such worker, or something of it does not die.
    pub fn kill_worker(&mut self, worker: &str) -> Result<BTreeSet<String>> {
        let mut agent = self.fleet.agents.remove(worker).context("no such worker")?;
        agent.process.kill()?;
        // Its last words first, then its death.
        self.read_journals()?;
        let jobs = self.live.jobs_of(worker);
        self.journal.write(worker, Event::Killed)?;
        Ok(jobs)
    }

    /// Declares a killed worker gone once it is silent, and puts its jobs back into the queue.
    ///
    /// # Errors
    /// If the worker does not become silent, or the leader refuses.
    pub fn declare_gone(
        &mut self,
        worker: &str,
        jobs: &BTreeSet<String>,
    ) -> Result<api::DeclareWorkerGoneResponse> {
        self.wait("the coordinator to notice the death", |environment| {
            Ok(environment.is_silent(worker))
        })?;
        let answer = self.admin.declare_gone(CLUSTER, worker)?;
        self.work.put_back(worker, jobs, &mut self.journal)?;
        Ok(answer)
    }

    /// Goes on under another name for the screen.
    pub fn name_phase(&mut self, name: &str) {
        self.phase = Plan { name: name.to_owned(), ..self.phase.clone() };
    }

    /// Goes on after the last phase, under a name for the screen.
    pub fn stay_in_phase(&mut self, name: &str) {
        self.name_phase(name);
        self.stays = true;
    }

    /// Whether it has gone on after the last phase.
    #[must_use]
    pub fn stays(&self) -> bool {
        self.stays
    }

    /// Whether the coordinator knows that it does not hear a worker.
    #[must_use]
    pub fn is_silent(&self, worker: &str) -> bool {
        let workers = self.admin.workers(CLUSTER).unwrap_or_default();
        let silent = |known: &api::Worker| {
            matches!(known.presence(), api::Presence::Silent | api::Presence::Lost)
        };
        workers.iter().any(|known| known.name == worker && silent(known))
    }

    /// When the current phase began.
    #[must_use]
    pub fn phase_from_ns(&self) -> u64 {
        self.phase_from_ns
    }

    /// Whether every stream has an owner among the living, who have as many within one.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        is_balanced(&self.live.owners(), &self.fleet.living(), self.streams)
    }

    fn is_full_since(&self, from_ns: u64) -> bool {
        let cap = usize::try_from(self.phase.max_jobs).unwrap_or(usize::MAX);
        self.live.peak_since(from_ns) >= cap
    }

    /// The state of things in one line, for an error.
    fn state(&self) -> String {
        let owners = self.live.owners();
        let each = self.fleet.living().into_iter().map(|worker| {
            let streams = owners.values().filter(|owner| **owner == worker).count();
            let jobs = self.live.running().get(&*worker).copied().unwrap_or(0);
            format!("{worker} {streams} streams and {jobs} jobs")
        });
        let each: Vec<String> = each.collect();
        format!(
            "{} of {} streams are owned, at most {} of {} jobs ran at once; {}; cluster: {:?}",
            owners.len(),
            self.streams,
            self.live.peak_since(self.phase_from_ns),
            self.phase.max_jobs,
            each.join(", "),
            self.admin.cluster(CLUSTER),
        )
    }

    fn view(&self) -> View {
        let (owners, running) = (self.live.owners(), self.live.running());
        let row = |(name, agent): (&String, &crate::fleet::Agent)| {
            let known = self.workers.iter().find(|worker| worker.name == *name);
            Row {
                worker: name.clone(),
                generation: agent.generation,
                phase: match agent.part {
                    Part::Stopped => "stopped".to_owned(),
                    Part::Drains => "draining".to_owned(),
                    Part::Lives => known.map_or("starting", presence).to_owned(),
                },
                pool: known.map_or(0, |worker| worker.granted),
                running: running.get(&**name).copied().unwrap_or(0),
                streams: owners.values().filter(|owner| *owner == name).count(),
                epoch: self.epoch,
            }
        };
        let phase_from_ns = self.phase_from_ns;
        View {
            rows: self.fleet.agents.iter().map(row).collect(),
            phase: self.phase.name.clone(),
            max_jobs: self.phase.max_jobs,
            running: running.values().sum(),
            peak: self.live.peak_since(phase_from_ns),
            queue: self.queue,
            done: self.live.evidence.runs.iter().filter(|run| run.done).count(),
            streams: owners.len(),
            records: self.sources.written(),
        }
    }
}

fn presence(worker: &api::Worker) -> &'static str {
    match worker.presence() {
        api::Presence::Connected => "working",
        api::Presence::Silent => "silent",
        api::Presence::Lost => "lost",
        api::Presence::Unreported => "unreported",
        api::Presence::Unspecified => "unknown",
    }
}
