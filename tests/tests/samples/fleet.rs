//! The coordinator of a sample, on the sample's own manifests, and workers beside their agents.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use tests::answers;
use tests::process::{Agent, Coordinator, Process, eventually};
use tests::toolbox;

/// A file of the samples.
fn file(name: &str) -> PathBuf {
    toolbox::root().join("deploy/samples").join(name)
}

/// A program in Python of the samples, which finds the SDK.
pub(crate) fn python(python: &Path, program: &str) -> Command {
    let mut command = Command::new(python);
    command.arg(file(program)).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("PYTHONPATH", toolbox::root().join("agent/sdk/python"));
    command
}

/// A worker beside its agent.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) process: Process,
    pub(crate) agent: Agent,
}

/// The fleet. Workers are killed before the coordinator.
#[derive(Debug)]
pub(crate) struct Fleet {
    workers: BTreeMap<String, Worker>,
    coordinator: Coordinator,
}

impl Fleet {
    /// Starts the coordinator on the manifests of a sample.
    pub(crate) fn start(sample: &str) -> Self {
        let name = format!("{sample}.yaml");
        let manifest = std::fs::read_to_string(file(sample).join("manifests").join(&name));
        let manifest = manifest.expect("the manifests of the sample");
        let coordinator = Coordinator::start(&[(&name, &manifest)]);
        Self { workers: BTreeMap::new(), coordinator }
    }

    /// A folder that is removed with the fleet.
    pub(crate) fn folder(&self) -> &Path {
        self.coordinator.folder()
    }

    /// Starts a worker and its agent, which gets `more` arguments.
    pub(crate) fn add(&mut self, cluster: &str, name: &str, more: &[&str], command: &mut Command) {
        let agent = self.coordinator.agent(cluster, name, more);
        let process = self.run(name, &agent, command);
        self.workers.insert(name.to_owned(), Worker { process, agent });
    }

    /// Kills a worker, and starts it again beside the same agent.
    pub(crate) fn restart(&mut self, name: &str, command: &mut Command) {
        let Worker { mut process, agent } = self.workers.remove(name).expect("a worker");
        process.kill();
        let process = self.run(name, &agent, command);
        self.workers.insert(name.to_owned(), Worker { process, agent });
    }

    fn run(&self, name: &str, agent: &Agent, command: &mut Command) -> Process {
        command.env("LEASEHOLD_ADDR", format!("http://{}", agent.api));
        command.env("LEASEHOLD_WORKER", name);
        Process::start(command, &self.folder().join(format!("{name}-worker.log")))
    }

    /// Kills a worker and its agent, as the end of their machine does.
    pub(crate) fn kill(&mut self, name: &str) {
        self.workers.remove(name).expect("a worker");
    }

    /// A worker and its agent.
    pub(crate) fn worker(&self, name: &str) -> &Worker {
        &self.workers[name]
    }

    /// What a worker has printed.
    pub(crate) fn log(&self, name: &str) -> String {
        self.workers[name].process.log()
    }

    /// What an agent shows its worker; without a sign of life of the worker.
    pub(crate) fn lease(&self, name: &str) -> Option<Value> {
        answers::json(self.workers[name].agent.api, "/v1/lease?peek=true")
    }

    /// Waits until the coordinator has welcomed an agent.
    pub(crate) fn eventually_connected(&self, name: &str) {
        eventually(&format!("{name} to be connected"), || {
            (self.lease(name)?["connected"] == true).then_some(())
        });
    }

    /// Waits until an agent has told its worker that it drains.
    pub(crate) fn eventually_draining(&self, name: &str) {
        eventually(&format!("{name} to drain"), || {
            (self.lease(name)?["draining"] == true).then_some(())
        });
    }

    /// Begins a drain, as systemd and a terminal do: by SIGTERM for the agent.
    pub(crate) fn begin_drain(&self, name: &str) {
        self.workers[name].agent.process.signal(Signal::TERM);
    }

    /// Waits until a worker has drained, and ends it as its agent would if it had started it.
    pub(crate) fn eventually_ended(&mut self, name: &str) {
        let worker = self.workers.get_mut(name).expect("a worker");
        assert!(worker.agent.process.wait().success(), "{}", worker.agent.process.log());
        worker.process.signal(Signal::TERM);
        assert!(worker.process.wait().success(), "{}", worker.process.log());
    }
}
