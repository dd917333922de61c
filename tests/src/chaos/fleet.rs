//! The fleet's processes: coordinators, agents and workers, each on its host, which are killed,
//! stopped and started again one by one. What is done to a worker stands in the journal.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use leasehold_demo::journal::{self, Event, Line, Writer};
use rustix::process::Signal;

use super::disks::Disks;
use super::manifests::{self, cluster_of};
use super::network::{address, command_on};
use super::plan::{COORDINATORS, Claim, Disk, HOSTS, Host, NODES, SPARE, Target};
use crate::process::{HANG, Process, eventually, within};
use crate::toolbox;

/// Where each worker asks its agent: on its own host's loopback.
const API: &str = "127.0.0.1:7411";
/// Where coordinators serve gRPC, and HTTP.
const PORTS: [u16; 2] = [7400, 7401];

/// The journal of what is done to the fleet.
#[derive(Clone, Debug)]
pub(super) struct Journal(Arc<Mutex<Writer>>);

impl Journal {
    pub(super) fn open(path: &Path) -> Result<Self> {
        Ok(Self(Arc::new(Mutex::new(Writer::open(path)?))))
    }

    /// Adds a line about a worker, or about the fleet where it is called `chaos`.
    pub(super) fn write(&self, about: &str, event: Event) -> Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(about, event)
    }
}

/// All processes.
#[derive(Debug)]
pub(super) struct Fleet {
    folder: PathBuf,
    pub(super) disks: Disks,
    journal: Journal,
    coordinators: Vec<Place>,
    agents: Vec<Place>,
    workers: Vec<Place>,
    /// How often a node was replaced: its worker has another name then.
    lives: Vec<u32>,
    /// The claim that the spare host's agent makes, or made last, and on the name of which node's
    /// worker.
    claim: Option<(usize, Claim)>,
    /// Claims so far.
    claims: u32,
}

/// A process's place: it may be dead and come back.
#[derive(Debug, Default)]
struct Place {
    process: Option<Process>,
    is_stopped: bool,
    /// It is dead because it was asked to be.
    is_down: bool,
    starts: u32,
}

impl Fleet {
    /// Places without processes.
    pub(super) fn new(folder: &Path, disks: Disks, journal: Journal) -> Self {
        let places = |count| std::iter::repeat_with(Place::default).take(count).collect();
        Self {
            folder: folder.to_owned(),
            disks,
            journal,
            coordinators: places(COORDINATORS),
            agents: places(HOSTS),
            workers: places(HOSTS),
            lives: vec![0; NODES],
            claim: None,
            claims: 0,
        }
    }

    /// Starts what is not there yet.
    pub(super) fn start_all(&mut self) -> Result<()> {
        let nodes = (0..NODES).flat_map(|node| [Target::Agent(node), Target::Worker(node)]);
        let mut all = (0..COORDINATORS).map(Target::Coordinator).chain(nodes);
        all.try_for_each(|target| self.start(target))
    }

    /// The name of a node's worker.
    pub(super) fn worker(&self, node: usize) -> String {
        format!("w{node}-{}", self.lives[node])
    }

    /// The node that a host's worker acts for.
    fn node_of(&self, host: usize) -> usize {
        self.claim.map_or(host, |(node, _)| if host == SPARE { node } else { host })
    }

    /// What a host's worker is called in the journals, where two may not have one name.
    fn label(&self, host: usize) -> String {
        let name = self.worker(self.node_of(host));
        if host == SPARE { format!("{name}-claim-{}", self.claims) } else { name }
    }

    /// Starts an agent and a worker on the spare host that claim the name of a node's worker.
    pub(super) fn claim(&mut self, node: usize, claim: Claim) -> Result<()> {
        self.disks.wipe(SPARE)?;
        if claim == Claim::Copy {
            self.disks.copy(node, SPARE)?;
        }
        self.claim = Some((node, claim));
        self.claims += 1;
        // What is taken over drains and ends by itself.
        self.place(Target::Agent(node)).is_down |= claim == Claim::TakeOver;
        self.start(Target::Agent(SPARE))?;
        self.start(Target::Worker(SPARE))
    }

    /// Starts a process.
    pub(super) fn start(&mut self, target: Target) -> Result<()> {
        let mut command = match target {
            Target::Coordinator(index) => self.coordinator(index),
            Target::Agent(host) => self.agent(host)?,
            Target::Worker(host) => self.worker_command(host),
        };
        let folder = self.folder.join("logs");
        let place = self.place(target);
        place.starts += 1;
        place.is_down = false;
        let name = target.to_string().replace(' ', "-");
        let log = folder.join(format!("{name}.{}.log", place.starts));
        place.process = Some(Process::start(&mut command, &log));
        Ok(())
    }

    /// Kills a process with SIGKILL, and waits until it is dead.
    pub(super) fn kill(&mut self, target: Target) -> Result<()> {
        let place = self.place(target);
        (place.is_stopped, place.is_down) = (false, true);
        if let Some(mut process) = place.process.take() {
            process.kill();
        }
        match target {
            Target::Worker(node) => self.journal.write(&self.label(node), Event::Killed),
            Target::Agent(_) | Target::Coordinator(_) => Ok(()),
        }
    }

    /// Stops a process with SIGSTOP, and waits until it does nothing.
    pub(super) fn stop(&mut self, target: Target) -> Result<()> {
        let place = self.place(target);
        let Some(process) = &mut place.process else { return Ok(()) };
        if process.ended().is_some() {
            return Ok(());
        }
        process.signal(Signal::STOP);
        let id = process.id();
        eventually("a stopped process", || (state(id)? == 'T').then_some(()));
        place.is_stopped = true;
        match target {
            Target::Worker(node) => self.journal.write(&self.label(node), Event::Stopped),
            Target::Agent(_) | Target::Coordinator(_) => Ok(()),
        }
    }

    /// Lets a stopped process go on.
    pub(super) fn go_on(&mut self, target: Target) -> Result<()> {
        if !std::mem::take(&mut self.place(target).is_stopped) {
            return Ok(());
        }
        if let Target::Worker(node) = target {
            self.journal.write(&self.label(node), Event::Continued)?;
        }
        self.signal(target, Signal::CONT);
        Ok(())
    }

    /// Has an agent drain and end.
    pub(super) fn drain(&mut self, node: usize) {
        self.place(Target::Agent(node)).is_down = true;
        self.signal(Target::Agent(node), Signal::TERM);
    }

    /// Gives a node's place to another worker. Returns the old one's name.
    pub(super) fn replace(&mut self, node: usize) -> Result<String> {
        let old = self.worker(node);
        self.disks.wipe(node)?;
        self.lives[node] += 1;
        Ok(old)
    }

    /// Starts again what has ended by itself, and says what that was.
    pub(super) fn revive(&mut self) -> Result<Vec<String>> {
        let nodes = (0..HOSTS).flat_map(|node| [Target::Agent(node), Target::Worker(node)]);
        let all: Vec<_> = (0..COORDINATORS).map(Target::Coordinator).chain(nodes).collect();
        let mut ended = Vec::new();
        for target in all {
            let place = self.place(target);
            let status = place.process.as_mut().and_then(Process::ended);
            let Some(status) = status.filter(|_| !place.is_down) else { continue };
            ended.push(format!("{target} ended by itself: {status}"));
            self.kill(target)?;
            self.start(target)?;
        }
        Ok(ended)
    }

    /// Asks all workers to end when their jobs have, and waits for that. Returns whose end was
    /// another.
    pub(super) fn end_workers(&mut self) -> Vec<String> {
        for node in 0..NODES {
            self.signal(Target::Worker(node), Signal::TERM);
        }
        let (told, mut wrong) = (Instant::now(), Vec::new());
        for (node, place) in self.workers.iter_mut().enumerate() {
            let Some(process) = &mut place.process else { continue };
            match within(HANG.saturating_sub(told.elapsed()), || process.ended()) {
                Some(status) if status.success() => {}
                Some(status) => wrong.push(format!("the worker of node {node} ended: {status}")),
                None => wrong.push(format!("the worker of node {node} does not end")),
            }
        }
        wrong
    }

    fn signal(&mut self, target: Target, signal: Signal) {
        if let Some(process) = &mut self.place(target).process
            && process.ended().is_none()
        {
            process.signal(signal);
        }
    }

    fn place(&mut self, target: Target) -> &mut Place {
        match target {
            Target::Coordinator(index) => &mut self.coordinators[index],
            Target::Agent(node) => &mut self.agents[node],
            Target::Worker(node) => &mut self.workers[node],
        }
    }

    fn coordinator(&self, index: usize) -> std::process::Command {
        let host = Host::Coordinator(index);
        let mut command = command_on(host, &toolbox::binary("leasehold-coordinator"));
        let [grpc, http] = PORTS.map(|port| format!("{}:{port}", address(host)));
        command.arg("run").arg("--manifests").arg(manifests::folder(&self.folder));
        command.arg("--state-dir").arg(self.disks.path(Disk::Coordinators).join("state"));
        command.args(["--listen", &grpc, "--http-listen", &http]);
        command.args(["--identity", &format!("coordinator-{index}")]);
        command.args(["--takeover-after", "1s", "--leadership", "5s"]);
        self.disks.attach(&mut command, Disk::Coordinators);
        command
    }

    fn agent(&self, host: usize) -> Result<std::process::Command> {
        let program = toolbox::binary("leasehold-agent");
        let mut command = command_on(Host::Node(host), &program);
        if host == SPARE {
            command = self.disks.on_another_machine(&command)?;
        }
        let node = self.node_of(host);
        command.args(["run", "--coordinator", &addresses().join(","), "--listen", API]);
        command.args(["--cluster", cluster_of(node), "--worker", &self.worker(node)]);
        command.arg("--state-dir").arg(self.disks.state(host));
        if host == SPARE && self.claim.is_some_and(|(_, claim)| claim == Claim::TakeOver) {
            command.arg("--take-over");
        }
        self.disks.attach(&mut command, Disk::Node(host));
        Ok(command)
    }

    fn worker_command(&self, host: usize) -> std::process::Command {
        let mut command = command_on(Host::Node(host), &toolbox::binary("job_worker"));
        command.env("LEASEHOLD_ADDR", format!("http://{API}"));
        command.arg("--journal").arg(journals(&self.folder));
        command.args(["--worker", &self.label(host), "--streams"]);
        command.args(["--job-ms-min", "200", "--job-ms-max", "2500"]);
        if cluster_of(self.node_of(host)) != manifests::JOBS {
            command.args(["--jobs", "0"]);
        }
        command
    }
}

/// Where agents and people reach the coordinators.
pub(super) fn addresses() -> Vec<String> {
    let grpc = PORTS[0];
    (0..COORDINATORS).map(|index| format!("{}:{grpc}", address(Host::Coordinator(index)))).collect()
}

/// The folder of the journals.
pub(super) fn journals(folder: &Path) -> PathBuf {
    folder.join("journals")
}

/// A process's state, as proc(5) writes it.
fn state(id: u32) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    text.rsplit_once(')')?.1.trim_start().chars().next()
}

/// All lines of all journals.
pub(super) fn read_journals(folder: &Path) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(journals(folder))? {
        let path = entry?.path();
        let text = std::fs::read_to_string(&path)?;
        // A line that is being written is read the next time.
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let line = journal::parse(line.trim_end());
            lines.push(line.with_context(|| path.display().to_string())?);
        }
    }
    Ok(lines)
}
