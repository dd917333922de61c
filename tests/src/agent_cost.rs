//! What one agent costs beside a real coordinator: its program's size, and the memory and the
//! processor's time that its process takes.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::answers::shows;
use crate::process::{
    Agent, Coordinator, OWN_MEMORY, PRESENT_MEMORY, Process, free_address, get, memory_kib,
};

/// The size of a program, in MB.
///
/// # Errors
/// If it cannot be read.
pub fn size_mb(program: &Path) -> Result<f64> {
    let metadata = std::fs::metadata(program).with_context(|| program.display().to_string())?;
    Ok(metadata.len() as f64 / 1e6)
}

/// An agent without a worker, and its coordinator.
#[derive(Debug)]
pub struct MeasuredAgent {
    agent: Agent,
    streams: usize,
    /// Ends after its agent.
    _coordinator: Coordinator,
}

/// What the threads of an agent have used up to a moment.
#[derive(Clone, Copy, Debug)]
pub struct AgentUse {
    at: Instant,
    ran_seconds: f64,
    wakeups: f64,
}

/// What an agent costs.
#[derive(Clone, Copy, Debug)]
pub struct AgentCost {
    /// What of its program and its data is in memory, in KiB.
    pub resident_kib: u64,
    /// Of that, anonymous memory.
    pub own_kib: u64,
    /// The share of one core.
    pub processor_percent: f64,
    /// How often one of its threads was run.
    pub wakeups_per_second: f64,
}

impl MeasuredAgent {
    /// Starts an agent from this program, which is to get a pool and this many streams.
    ///
    /// # Panics
    /// If a process cannot be started.
    #[must_use]
    pub fn start(program: &Path, streams: usize) -> Self {
        let coordinator = Coordinator::start(&[("bench.yaml", &manifest(streams))]);
        let api = free_address();
        let usual = coordinator.agent_command("bench", "worker-0", api);
        let mut command = Command::new(program);
        command.args(usual.get_args()).arg("--sidecar");
        let log = coordinator.folder().join("worker-0.log");
        let agent = Agent { process: Process::start(&mut command, &log), api };
        Self { agent, streams, _coordinator: coordinator }
    }

    /// Whether it has its pool and every stream.
    #[must_use]
    pub fn has_leases(&self) -> bool {
        let streams = format!("leasehold_agent_streams {}", self.streams);
        let wanted = ["leasehold_agent_pool_size 4", streams.as_str()];
        wanted.iter().all(|line| shows(self.agent.api, line).is_some())
    }

    /// What it has used until now. The lease is read before, so that its memory is allocated.
    ///
    /// # Errors
    /// If the agent does not answer.
    pub fn used(&self) -> Result<AgentUse> {
        let (status, body) = get(self.agent.api, "/v1/lease").context("no answer of the agent")?;
        ensure!(status == 200, "the lease: {body}");
        self.counted()
    }

    /// What it costs, by its use since `before`.
    ///
    /// # Errors
    /// If the agent has ended.
    pub fn cost_since(&self, before: AgentUse) -> Result<AgentCost> {
        let now = self.counted()?;
        let seconds = now.at.duration_since(before.at).as_secs_f64();
        let kib = |which| memory_kib(self.agent.process.id(), which).context("the agent has ended");
        Ok(AgentCost {
            resident_kib: kib(PRESENT_MEMORY)?,
            own_kib: kib(OWN_MEMORY)?,
            processor_percent: (now.ran_seconds - before.ran_seconds) / seconds * 100.0,
            wakeups_per_second: (now.wakeups - before.wakeups) / seconds,
        })
    }

    fn counted(&self) -> Result<AgentUse> {
        let folder = format!("/proc/{}/task", self.agent.process.id());
        let mut used = AgentUse { at: Instant::now(), ran_seconds: 0.0, wakeups: 0.0 };
        for thread in std::fs::read_dir(&folder).with_context(|| folder.clone())? {
            let thread = thread?.path();
            used.ran_seconds += ran_seconds(&thread)?;
            used.wakeups += wakeups(&thread)?;
        }
        Ok(used)
    }
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

/// How long a thread was run, in seconds.
fn ran_seconds(thread: &Path) -> Result<f64> {
    let text = read(&thread.join("schedstat"))?;
    let nanos = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
    Ok(nanos.context("nanoseconds first in schedstat")? / 1e9)
}

/// How often a thread was run.
fn wakeups(thread: &Path) -> Result<f64> {
    let text = read(&thread.join("status"))?;
    let count = |field: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|line| line.trim().parse::<f64>().ok()).with_context(|| field.to_owned())
    };
    Ok(count("voluntary_ctxt_switches:")? + count("nonvoluntary_ctxt_switches:")?)
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}
