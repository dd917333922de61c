//! Two example workers of one language with their agents under one coordinator, and the judge of
//! what they did.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use leasehold_demo::checker::{double_owned, peak};
use leasehold_demo::clock;
use leasehold_demo::evidence::Evidence;
use leasehold_demo::journal::Journals;
use leasehold_demo::records::{Entry, Write, compare, read_sink};
use rustix::process::Signal;
use serde_json::Value;
use tests::answers;
use tests::process::{Agent, Coordinator, Process, eventually};
use tests::toolbox::{self, Missing};

use crate::{go_tool, typescript_sdk};

const MANIFESTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 4, maxJobsPerWorker: 2, lease: {ttl: 4s}}
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {name: cars}
spec:
  cluster: builds
  handover: {deadline: 1s}
  streams: [{name: 'cars:new'}, {name: 'cars:updated'}, {name: 'cars:sold'}, {name: 'cars:old'}]
";

/// The example worker in Go, which is built once.
static GO_WORKER: LazyLock<Option<PathBuf>> =
    LazyLock::new(|| go_tool::build("the SDK for Go", "agent/sdk/go", "./examples/worker"));

/// The example worker in Go, or `None` without Go.
pub(crate) fn go_worker() -> Option<&'static Path> {
    GO_WORKER.as_deref()
}

/// What the example worker is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Go,
    Python,
    Rust,
    TypeScript,
}

/// The fleet. Workers are killed before their agents, and these before the coordinator.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) workers: Vec<Process>,
    pub(crate) agents: Vec<Agent>,
    pub(crate) coordinator: Coordinator,
}

impl Fleet {
    /// Starts it, and waits until all streams are owned and jobs run, or `None` if the language is
    /// not installed.
    pub(crate) fn start(language: Language) -> Option<Self> {
        if language == Language::Python && Command::new("python3").arg("-V").output().is_err() {
            toolbox::leave_out("the SDK for Python", "no python3", Missing::Installable);
            return None;
        }
        if language == Language::Go && go_worker().is_none() {
            return None;
        }
        if language == Language::TypeScript {
            typescript_sdk::folder()?;
        }
        let coordinator = Coordinator::start(&[("cars.yaml", MANIFESTS)]);
        let socket = coordinator.folder().join("agent.sock");
        let socket = socket.to_str().expect("UTF-8");
        let agents = vec![
            coordinator.agent("builds", "w-0", &[]),
            coordinator.agent("builds", "w-1", &["--socket", socket]),
        ];
        let mut fleet = Self { workers: Vec::new(), agents, coordinator };
        for index in 0..2 {
            let worker = fleet.start_worker(language, index);
            fleet.workers.push(worker);
        }
        fleet.eventually_owned(4);
        eventually("two streams for each", || (fleet.owned_by(0) == 2).then_some(()));
        eventually("jobs", || fleet.evidence().runs.iter().any(|run| run.done).then_some(()));
        Some(fleet)
    }

    fn start_worker(&self, language: Language, index: usize) -> Process {
        let sdk = toolbox::root().join("agent/sdk/python");
        let mut command = match language {
            Language::Go => Command::new(go_worker().expect("it is built")),
            Language::Rust => Command::new(toolbox::binary("examples/worker")),
            Language::Python => {
                let mut command = Command::new("python3");
                command.arg(sdk.join("examples/worker.py"));
                command
            }
            Language::TypeScript => {
                let sdk = typescript_sdk::folder().expect("it is compiled");
                let mut command = Command::new("node");
                command.arg(sdk.join("dist/examples/worker.js"));
                command
            }
        };
        let name = format!("w-{index}");
        command
            .arg(self.coordinator.folder().join("work"))
            .env("PYTHONPATH", &sdk)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("LEASEHOLD_WORKER", &name);
        // One asks over TCP, the other over its agent's Unix socket.
        match index {
            0 => command.env("LEASEHOLD_ADDR", format!("http://{}", self.agents[index].api)),
            _ => command
                .env_remove("LEASEHOLD_ADDR")
                .env("LEASEHOLD_SOCKET", self.coordinator.folder().join("agent.sock")),
        };
        let log = self.coordinator.folder().join(format!("{name}-worker.log"));
        Process::start(&mut command, &log)
    }

    /// Restarts an agent that was killed.
    pub(crate) fn restart_agent(&mut self, index: usize) {
        let (worker, api) = (format!("w-{index}"), self.agents[index].api);
        let mut command = self.coordinator.agent_command("builds", &worker, api);
        let log = self.coordinator.folder().join(format!("{worker}-again.log"));
        self.agents[index].process = Process::start(&mut command, &log);
    }

    /// Begins a drain of a worker at its agent.
    pub(crate) fn drain(&self, index: usize) {
        self.agents[index].drain();
    }

    /// From here on no job ends.
    pub(crate) fn hold_jobs(&self) {
        std::fs::write(self.coordinator.folder().join("work/hold"), "").expect("a file");
    }

    /// From here on jobs end.
    pub(crate) fn let_jobs_end(&self) {
        std::fs::remove_file(self.coordinator.folder().join("work/hold")).expect("the file");
    }

    /// What an agent reports to its worker.
    pub(crate) fn lease(&self, index: usize) -> Option<Value> {
        // A look that is no sign of life of the worker.
        answers::json(self.agents[index].api, "/v1/lease?peek=true")
    }

    /// What the workers wrote down.
    pub(crate) fn evidence(&self) -> Evidence {
        let folder = self.coordinator.folder().join("work/journal");
        let lines = if folder.exists() {
            Journals::new(folder).read().expect("journals")
        } else {
            Vec::new()
        };
        Evidence::new(lines)
    }

    /// The jobs that a worker runs.
    pub(crate) fn running(&self, index: usize) -> BTreeSet<String> {
        let runs = self.evidence().runs.into_iter();
        let own = runs.filter(|run| run.worker == format!("w-{index}") && run.to_ns == u64::MAX);
        own.map(|run| run.job).collect()
    }

    /// Waits until a worker runs this many jobs; which.
    pub(crate) fn eventually_running(&self, index: usize, jobs: usize) -> BTreeSet<String> {
        eventually("its jobs to run", || {
            Some(self.running(index)).filter(|running| running.len() == jobs)
        })
    }

    /// Waits until these jobs are done.
    pub(crate) fn eventually_done(&self, jobs: &BTreeSet<String>) {
        eventually("jobs to be done", || {
            let runs = self.evidence().runs;
            let done = runs.iter().filter(|run| run.done && jobs.contains(&run.job)).count();
            (done == jobs.len()).then_some(())
        });
    }

    /// How many streams a worker owns, as it says.
    pub(crate) fn owned_by(&self, index: usize) -> usize {
        let worker = format!("w-{index}");
        let owners = self.evidence().owners_at(clock::now_ns());
        owners.values().filter(|owner| **owner == worker).count()
    }

    /// Why a worker's ownerships ended, of those that ended after `from_ns`.
    pub(crate) fn ends_since(&self, index: usize, from_ns: u64) -> Vec<String> {
        let worker = format!("w-{index}");
        let owns = self.evidence().owns.into_iter();
        let ended =
            owns.filter(|own| own.worker == worker && own.to_ns > from_ns && own.to_ns != u64::MAX);
        ended.map(|own| own.why).collect()
    }

    /// Waits until this many streams are owned.
    pub(crate) fn eventually_owned(&self, streams: usize) {
        eventually("owners of all streams", || {
            (self.evidence().owners_at(clock::now_ns()).len() == streams).then_some(())
        });
    }

    /// Reads leases without renewals until they have ended and the workers report that they lost
    /// their streams; when each had surely ended, by token.
    pub(crate) fn follow_leases_to_their_ends(&self) -> BTreeMap<String, u64> {
        let mut ends = BTreeMap::new();
        eventually("all leases to end", || {
            let mut held = 0;
            for lease in (0..2).filter_map(|index| self.lease(index)) {
                let read_ns = clock::now_ns();
                for stream in lease["streams"].as_array().into_iter().flatten() {
                    let token = stream["token"].as_str().expect("a token").to_owned();
                    // The rest of a millisecond was rounded down.
                    let left_ms = stream["valid_for_ms"].as_u64().expect("it ends") + 1;
                    ends.insert(token, read_ns + left_ms * 1_000_000);
                    held += 1;
                }
            }
            let owned = self.evidence().owners_at(clock::now_ns()).len();
            (held == 0 && owned == 0).then_some(())
        });
        ends
    }

    /// Stops a worker's process between two writes: the sink is a file with a lock, which a stopped
    /// process would keep from the next owner. A sink behind a network keeps nobody's lock. Threads
    /// stop one by one: one that waits for a lock still takes it if it is released before.
    pub(crate) fn stop_worker(&self, worker: usize) {
        let sinks = std::fs::read_dir(self.coordinator.folder().join("work/sink")).expect("sinks");
        let locked = sinks.map(|entry| {
            let sink = File::open(entry.expect("an entry").path()).expect("a sink");
            sink.lock().expect("its lock");
            sink
        });
        let locked: Vec<File> = locked.collect();
        let worker = &self.workers[worker];
        worker.signal(Signal::STOP);
        eventually("the worker to be stopped", || worker.is_stopped().then_some(()));
        drop(locked);
    }

    /// Everything that was written to the sink.
    pub(crate) fn writes(&self) -> Vec<Write> {
        let mut writes = Vec::new();
        for entry in std::fs::read_dir(self.coordinator.folder().join("work/sink")).expect("sinks")
        {
            let path = entry.expect("an entry").path();
            let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("UTF-8");
            let stream = format!("cars/{}", stem.replace("%3A", ":"));
            let entries = entries_of(&path);
            let count = entries.len();
            let texts: Vec<String> = (1..=count).map(|record| format!("record {record}")).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let records = compare(&stream, &texts, &entries);
            assert_eq!((records.lost, records.doubled), (0, 0), "{stream}: {records:?}");
            assert_eq!(records.faults, Vec::<String>::new());
            writes.extend(entries.into_iter().map(|entry| Write {
                stream: stream.clone(),
                worker: entry.worker,
                token: entry.token,
                at_ns: entry.at_ns,
            }));
        }
        writes
    }

    /// Judges all that was done: the budget, single owners, tokens that never fall.
    pub(crate) fn judge(&mut self) {
        for worker in &mut self.workers {
            worker.kill();
        }
        let mut evidence = self.evidence();
        let strays = evidence.stretch(&self.writes());
        assert_eq!(evidence.contradictions, Vec::<String>::new());
        assert_eq!(strays, Vec::<String>::new());
        assert_eq!(double_owned(&evidence.owns), (0, Vec::new()));
        let most = peak(&evidence.runs, 0, u64::MAX);
        assert!(most <= 4, "{most} jobs ran at once, 4 may");
    }
}

/// The entries of a stream's sink: the lines of a file, or of the files `NUMBER.json` in a folder,
/// by their numbers.
fn entries_of(sink: &Path) -> Vec<Entry> {
    if sink.is_file() {
        return read_sink(sink).expect("a sink");
    }
    let files = std::fs::read_dir(sink).expect("a sink").map(|file| file.expect("a file").path());
    let number = |path: &Path| -> Option<u64> {
        path.file_name()?.to_str()?.strip_suffix(".json")?.parse().ok()
    };
    let files: BTreeMap<u64, PathBuf> =
        files.filter_map(|path| Some((number(&path)?, path))).collect();
    files.values().flat_map(|path| read_sink(path).expect("a record")).collect()
}
