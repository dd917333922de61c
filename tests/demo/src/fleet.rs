//! The demo's processes: two coordinators, and agents, each with its worker as its child.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::children::{Process, describe};
use crate::ports::free_ports;
use crate::work::Work;

/// The cluster of the demo's manifests.
pub const CLUSTER: &str = "demo";
/// The stream set of the demo's manifests.
pub const SET: &str = "swarm";

/// Where programs are found.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The folder of the built binaries.
    pub binaries: PathBuf,
    /// The folder with the manifests and the workers.
    pub deploy: PathBuf,
    /// The Python that runs the workers.
    pub python: String,
}

impl Programs {
    /// Checks that everything is there.
    ///
    /// # Errors
    /// What is missing, and what to do about it.
    pub fn check(&self) -> Result<()> {
        for name in ["leasehold-coordinator", "leasehold-agent"] {
            if !self.binaries.join(name).is_file() {
                bail!(
                    "{} is not there: build it with `cargo build -p leasehold-coordinator -p \
                     leasehold-agent`, or run `make demo`",
                    self.binaries.join(name).display()
                );
            }
        }
        if !self.deploy.join("workers/worker.py").is_file() {
            bail!("{} has no workers: give the folder with --deploy", self.deploy.display());
        }
        std::process::Command::new(&self.python)
            .args(["-c", "import sys; sys.exit(sys.version_info < (3, 9))"])
            .status()
            .ok()
            .filter(std::process::ExitStatus::success)
            .with_context(|| format!("{} is not Python 3.9 or newer", self.python))?;
        Ok(())
    }

    fn binary(&self, name: &str) -> String {
        self.binaries.join(name).display().to_string()
    }
}

/// The state that the demo has put an agent into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It takes part.
    Lives,
    /// It was asked to drain.
    Drains,
    /// It is stopped: it lives, and does nothing.
    Stopped,
}

/// An agent with its worker.
#[derive(Debug)]
pub struct Agent {
    /// The agent's process.
    pub process: Process,
    /// The worker's rollout generation.
    pub generation: u64,
    /// The address of its API.
    pub address: String,
    /// Its state.
    pub part: Part,
}

/// A coordinator's place: its process may die and come back.
#[derive(Debug)]
pub struct Replica {
    /// The gRPC address.
    pub address: String,
    /// The address of its health and metrics.
    pub http_address: String,
    /// The process; none while it is dead.
    pub process: Option<Process>,
}

/// All processes.
#[derive(Debug)]
pub struct Fleet {
    programs: Programs,
    /// The coordinators.
    pub replicas: Vec<Replica>,
    /// The agents, by worker.
    pub agents: BTreeMap<String, Agent>,
    /// How long each job takes of the workers that are started; none for jobs of different length.
    pub job_time: Option<Duration>,
}

impl Fleet {
    /// Two coordinators' places; nothing runs yet.
    ///
    /// # Errors
    /// If no port is free.
    pub fn new(programs: Programs) -> Result<Self> {
        let ports = free_ports(4)?;
        let address = |port: u16| format!("127.0.0.1:{port}");
        let replica = |ports: &[u16]| Replica {
            address: address(ports[0]),
            http_address: address(ports[1]),
            process: None,
        };
        let replicas = ports.chunks(2).map(replica).collect();
        Ok(Self { programs, replicas, agents: BTreeMap::new(), job_time: None })
    }

    /// The folder with the manifests and the workers.
    #[must_use]
    pub fn deploy(&self) -> &Path {
        &self.programs.deploy
    }

    /// The coordinators' addresses.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        self.replicas.iter().map(|replica| replica.address.clone()).collect()
    }

    /// Starts a coordinator.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_coordinator(&mut self, index: usize, work: &Work) -> Result<()> {
        let replica = &mut self.replicas[index];
        let name = format!("coordinator-{}", index + 1);
        let command = [
            self.programs.binary("leasehold-coordinator"),
            "run".to_owned(),
            "--manifests".to_owned(),
            work.argument("manifests"),
            "--state-dir".to_owned(),
            work.argument("state"),
            "--listen".to_owned(),
            replica.address.clone(),
            "--http-listen".to_owned(),
            replica.http_address.clone(),
            "--identity".to_owned(),
            name.clone(),
            "--log-format".to_owned(),
            "json".to_owned(),
        ];
        let env = [("RUST_LOG", "info,leasehold::lease=debug".to_owned())];
        let log = coordinator_log(work, index);
        replica.process = Some(Process::start(&name, &command, &env, &log)?);
        Ok(())
    }

    /// Starts an agent with its worker.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_agent(&mut self, worker: &str, generation: u64, work: &Work) -> Result<()> {
        let address = format!("127.0.0.1:{}", free_ports(1)?[0]);
        let state = work.path("agents").join(worker);
        std::fs::create_dir_all(&state)?;
        let script = self.programs.deploy.join("workers/worker.py");
        let mut command = vec![
            self.programs.binary("leasehold-agent"),
            "run".to_owned(),
            "--coordinator".to_owned(),
            self.addresses().join(","),
            "--cluster".to_owned(),
            CLUSTER.to_owned(),
            "--worker".to_owned(),
            worker.to_owned(),
            "--generation".to_owned(),
            generation.to_string(),
            "--state-dir".to_owned(),
            state.display().to_string(),
            "--listen".to_owned(),
            address.clone(),
            "--".to_owned(),
            self.programs.python.clone(),
            script.display().to_string(),
        ];
        for part in ["queue", "sources", "sink", "journal"] {
            command.extend([format!("--{part}"), work.argument(part)]);
        }
        command.extend(["--exit-with".to_owned(), std::process::id().to_string()]);
        if let Some(job_time) = self.job_time {
            command.extend(["--job-seconds".to_owned(), job_time.as_secs_f64().to_string()]);
        }
        // Compiled Python would litter the folder that the workers come from.
        let env = [("PYTHONDONTWRITEBYTECODE", "1".to_owned()), ("NO_COLOR", "1".to_owned())];
        let process = Process::start(worker, &command, &env, &agent_log(work, worker))?;
        let agent = Agent { process, generation, address, part: Part::Lives };
        self.agents.insert(worker.to_owned(), agent);
        Ok(())
    }

    /// The agent of a worker.
    ///
    /// # Errors
    /// If there is no such worker.
    pub fn agent(&mut self, worker: &str) -> Result<&mut Agent> {
        self.agents.get_mut(worker).with_context(|| format!("there is no worker {worker}"))
    }

    /// Asks a worker to drain and end.
    ///
    /// # Errors
    /// If there is no such worker.
    pub fn drain(&mut self, worker: &str) -> Result<()> {
        let agent = self.agent(worker)?;
        agent.part = Part::Drains;
        agent.process.signal(Signal::TERM)
    }

    /// Whether a draining worker has ended; then it is forgotten.
    ///
    /// # Errors
    /// If it ended otherwise than by itself, with exit code 0.
    pub fn has_drained(&mut self, worker: &str) -> Result<bool> {
        let Some(status) = self.agent(worker)?.process.ended()? else { return Ok(false) };
        self.agents.remove(worker);
        if status.success() {
            Ok(true)
        } else {
            bail!("{worker} ended its drain with {}", describe(status))
        }
    }

    /// The workers that take part.
    #[must_use]
    pub fn living(&self) -> BTreeSet<String> {
        let lives = |(_, agent): &(&String, &Agent)| agent.part == Part::Lives;
        self.agents.iter().filter(lives).map(|(worker, _)| worker.clone()).collect()
    }

    /// Forgets processes that have ended although the demo did not ask them to, and says which.
    ///
    /// # Errors
    /// If the system call fails.
    pub fn forget_ended(&mut self) -> Result<Vec<String>> {
        let mut ended = Vec::new();
        for replica in &mut self.replicas {
            if let Some(words) = replica.process.as_mut().map_or(Ok(None), end_of)? {
                ended.push(words);
                replica.process = None;
            }
        }
        let mut gone = Vec::new();
        for (worker, agent) in &mut self.agents {
            if agent.part != Part::Drains
                && let Some(words) = end_of(&mut agent.process)?
            {
                ended.push(words);
                gone.push(worker.clone());
            }
        }
        for worker in gone {
            self.agents.remove(&worker);
        }
        Ok(ended)
    }
}

fn end_of(process: &mut Process) -> Result<Option<String>> {
    let name = process.name.clone();
    let words = |status| format!("{name} ended with {}", describe(status));
    Ok(process.ended()?.map(words))
}

/// The log of a coordinator, over all its lives.
#[must_use]
pub fn coordinator_log(work: &Work, index: usize) -> PathBuf {
    work.path("logs").join(format!("coordinator-{}.log", index + 1))
}

fn agent_log(work: &Work, worker: &str) -> PathBuf {
    work.path("logs").join(format!("agent-{worker}.log"))
}

/// The last lines of a log, for people.
#[must_use]
pub fn log_tail(path: &Path, lines: usize) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
