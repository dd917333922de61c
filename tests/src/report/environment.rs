//! Where and when a report was made.

use std::process::Command;

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::{bench, toolbox};

/// The machine, the commit and the command of a report.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Environment {
    /// When the run began, in UTC.
    pub(super) date: String,
    /// What was measured; `-dirty` follows where files were changed since.
    pub(super) commit: String,
    /// The arguments of the program.
    pub(super) command: String,
    /// How the programs were built.
    pub(super) build: &'static str,
    pub(super) machine: Machine,
}

/// What all processes of a run share.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Machine {
    pub(super) cores: usize,
    pub(super) memory_mib: u64,
    pub(super) kernel: String,
    /// The load before and after the run, of the last minute, the last five and fifteen.
    pub(super) load_before: String,
    pub(super) load_after: String,
}

impl Environment {
    pub(super) fn now() -> Self {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        Self {
            date: Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            commit: commit().unwrap_or_else(|| "unknown".to_owned()),
            command: format!("bench_report {}", arguments.join(" ")).trim_end().to_owned(),
            build: if cfg!(debug_assertions) { "debug" } else { "optimised" },
            machine: Machine {
                cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
                memory_mib: memory_mib().unwrap_or_default(),
                kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
                load_before: bench::load(),
                load_after: String::new(),
            },
        }
    }

    /// The same after the run.
    pub(super) fn ended(mut self) -> Self {
        self.machine.load_after = bench::load();
        self
    }

    /// The first line of a run.
    pub(super) fn heading(&self) -> String {
        let Self { date, commit, build, machine, .. } = self;
        let Machine { cores, memory_mib, kernel, load_before, .. } = machine;
        format!(
            "report of {date}, commit {commit}, {build} build, {cores} processors, {memory_mib} \
             MiB, Linux {kernel}, load {load_before}"
        )
    }
}

fn commit() -> Option<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(toolbox::root());
    git.args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]);
    let output = git.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn memory_mib() -> Option<u64> {
    let text = read("/proc/meminfo");
    let size = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = size.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
