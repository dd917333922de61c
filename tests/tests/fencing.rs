//! Fencing at real stores. A worker is stopped between its look at the lease and its write, with
//! its agent, until its stream has another owner. It then writes, and PostgreSQL, SQLite and a log
//! refuse that. Without the fence the same write lands: so neither the worker's clock nor its agent
//! is what refuses it.

use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_types::Token;
use rustix::process::Signal;
use serde::Deserialize;
use tests::postgresql::Postgresql;
use tests::process::{Agent, Coordinator, Process, eventually};
use tests::toolbox::{self, Missing};

const MANIFESTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 2, maxJobsPerWorker: 1, lease: {ttl: 2s}}
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {name: cars}
spec: {cluster: builds, streams: [{name: 'cars:new'}]}
";

/// The worker that is stopped.
const FORMER: &str = "w-0";
/// The worker that then owns the stream.
const PRESENT: &str = "w-1";
/// The order to `worker.py` to write with the fence.
const FENCED: &str = "run";
/// The order to write without it.
const UNFENCED: &str = "run-unfenced";

/// What the workers write to.
struct Store {
    /// A Python that has the store's driver.
    python: PathBuf,
    /// As `worker.py` names it.
    kind: &'static str,
    /// Where it is: a connection string, or a file.
    place: String,
}

/// What a worker has written.
#[derive(Clone, Debug, Deserialize)]
struct Record {
    number: usize,
    token: String,
    worker: String,
}

impl Store {
    /// One in a file, which needs nothing but Python; `None` without Python.
    fn in_file(kind: &'static str, folder: &Path) -> Option<Self> {
        if toolbox::on_path("python3").is_none() {
            let what = format!("the test of fencing with the store {kind}");
            toolbox::leave_out(&what, "no python3", Missing::Installable);
            return None;
        }
        let place = folder.join("store").to_str().expect("UTF-8").to_owned();
        Some(Self { python: PathBuf::from("python3"), kind, place })
    }

    /// `worker.py` with an order.
    fn command(&self, order: &str) -> Command {
        let mut command = Command::new(&self.python);
        command.arg(toolbox::root().join("tests/tests/fencing/worker.py"));
        command.args([order, self.kind, &self.place]);
        command.env("PYTHONPATH", toolbox::root().join("agent/sdk/python"));
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// What an order prints.
    fn answer(&self, order: &str) -> Vec<u8> {
        let output = self.command(order).output().expect("Python starts");
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{order} {}: {why}", self.kind);
        output.stdout
    }

    /// All records, in the order in which they were written.
    fn records(&self) -> Vec<Record> {
        serde_json::from_slice(&self.answer("records")).expect("records")
    }

    /// The newest record of a worker, once there is one.
    fn eventually_written_by(&self, worker: &str) -> Record {
        eventually(&format!("a record of {worker}"), || {
            self.records().into_iter().rfind(|record| record.worker == worker)
        })
    }
}

/// A worker beside its agent.
struct Pair {
    worker: Process,
    agent: Agent,
}

impl Pair {
    fn start(coordinator: &Coordinator, store: &Store, name: &str, order: &str) -> Self {
        let agent = coordinator.agent("builds", name, &[]);
        let mut command = store.command(order);
        command.arg(name).arg(coordinator.folder());
        command.env("LEASEHOLD_ADDR", format!("http://{}", agent.api));
        let log = coordinator.folder().join(format!("{name}-worker.log"));
        Self { worker: Process::start(&mut command, &log), agent }
    }

    /// Stops both: the worker after it has found its lease valid, and before its write.
    fn stop(&self, coordinator: &Coordinator, name: &str) {
        let order = coordinator.folder().join(format!("stop-{name}"));
        std::fs::write(order, "").expect("the order to stop");
        eventually("the worker to stop", || self.worker.is_stopped().then_some(()));
        self.agent.process.signal(Signal::STOP);
    }

    fn go_on(&self) {
        self.worker.signal(Signal::CONT);
        self.agent.process.signal(Signal::CONT);
    }

    /// What the store answered to a write, as the worker printed it.
    fn eventually_refused(&self) -> String {
        eventually("the refusal", || {
            let log = self.worker.log();
            log.lines().find_map(|line| line.strip_prefix("refused: ").map(str::to_owned))
        })
    }
}

/// Two workers of one stream. The first one is stopped before a write.
struct Owners {
    former: Pair,
    present: Pair,
    /// The former owner's token.
    token: String,
    // The last field: the agents dial it.
    coordinator: Coordinator,
}

impl Owners {
    /// Returns when the second worker has written. `order` is what both workers run.
    fn start(store: &Store, order: &str) -> Self {
        store.answer("create");
        let coordinator = Coordinator::start(&[("cars.yaml", MANIFESTS)]);
        let former = Pair::start(&coordinator, store, FORMER, order);
        store.eventually_written_by(FORMER);
        let present = Pair::start(&coordinator, store, PRESENT, order);
        former.stop(&coordinator, FORMER);
        store.eventually_written_by(PRESENT);
        let token = store.eventually_written_by(FORMER).token;
        Self { former, present, token, coordinator }
    }
}

fn a_stale_write_is_refused(store: &Store) {
    let Owners { former, present, token, coordinator } = Owners::start(store, FENCED);
    former.go_on();
    let refused = former.eventually_refused();
    println!("{}: {refused}", store.kind);
    // The owner goes on.
    let count = store.records().len();
    eventually("more records of the owner", || (store.records().len() > count).then_some(()));
    drop((former, present, coordinator));
    let records = store.records();
    let of_former = records.iter().take_while(|record| record.worker == FORMER).count();
    let (_, of_present) = records.split_at(of_former);
    assert!(of_present.iter().all(|record| record.worker == PRESENT), "{records:?}");
    let expected = |newer: &str| {
        format!(
            "token {token} of cars/cars:new is stale: the store has {newer} of a later owner; \
             write nothing more and release it"
        )
    };
    let is_expected = of_present.iter().any(|record| refused == expected(&record.token));
    assert!(is_expected, "{refused:?} is not about {token} and a token of {of_present:?}");
    let numbers: Vec<usize> = records.iter().map(|record| record.number).collect();
    assert_eq!(numbers, (1..=records.len()).collect::<Vec<_>>(), "none is lost or doubled");
    let tokens = tokens(&records);
    assert!(tokens.is_sorted(), "the tokens fall: {tokens:?}");
    assert!(tokens.first() < tokens.last(), "each owner has a token of its own: {tokens:?}");
}

/// What the fence prevents: the store then has a lower token after a higher one.
fn a_stale_write_lands_without_the_fence(store: &Store) {
    let Owners { former, present, token, coordinator } = Owners::start(store, UNFENCED);
    former.go_on();
    let late = eventually("the late write", || {
        let records = store.records().into_iter();
        let mut rest = records.skip_while(|record| record.worker == FORMER);
        rest.find(|record| record.worker == FORMER)
    });
    assert_eq!(late.token, token);
    drop((former, present, coordinator));
    let tokens = tokens(&store.records());
    assert!(!tokens.is_sorted(), "{tokens:?}");
}

fn tokens(records: &[Record]) -> Vec<Token> {
    records.iter().map(|record| record.token.parse().expect("a token")).collect()
}

fn with_file(kind: &'static str, check: fn(&Store)) {
    let folder = tempfile::tempdir().expect("a folder");
    if let Some(store) = Store::in_file(kind, folder.path()) {
        check(&store);
    }
}

#[test]
fn postgresql_refuses_the_write_of_a_former_owner() {
    if let Some(server) = Postgresql::start("the test of fencing in PostgreSQL") {
        let python = server.python().to_owned();
        let store = Store { python, kind: "postgresql", place: server.connection() };
        a_stale_write_is_refused(&store);
    }
}

#[test]
fn sqlite_refuses_the_write_of_a_former_owner() {
    with_file("sqlite", a_stale_write_is_refused);
}

#[test]
fn a_log_refuses_the_write_of_a_former_owner() {
    with_file("log", a_stale_write_is_refused);
}

#[test]
fn sqlite_without_the_fence_takes_the_write_of_a_former_owner() {
    with_file("sqlite", a_stale_write_lands_without_the_fence);
}

#[test]
fn a_log_without_the_fence_takes_the_write_of_a_former_owner() {
    with_file("log", a_stale_write_lands_without_the_fence);
}

/// A text with one space between two words, so that layouts compare alike.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Workers in several languages may share a table. Here only Python's asks PostgreSQL.
#[test]
fn all_sdks_and_the_guide_have_the_same_statements() {
    let [guide, sources @ ..] = [
        "docs/FENCING.md",
        "agent/sdk/python/leasehold/fence.py",
        "agent/sdk/go/fence.go",
        "agent/sdk/typescript/src/fence.ts",
        "agent/sdk/rust/src/fence.rs",
    ]
    .map(|file| {
        let text = std::fs::read_to_string(toolbox::root().join(file)).expect("a file with them");
        (file, words(&text))
    });
    let (_, rest) = guide.1.split_once("```sql ").expect("a block of SQL in the guide");
    let (block, _) = rest.split_once(" ```").expect("its end");
    let statements: Vec<&str> = block.split(';').map(str::trim).collect();
    let [table, advance, newer, ""] = statements[..] else {
        panic!("three statements: {statements:?}");
    };
    assert!(advance.starts_with("INSERT") && newer.starts_with("SELECT"), "{statements:?}");
    for (file, source) in sources {
        for statement in [table, advance, newer] {
            assert!(source.contains(statement), "{file} lacks: {statement}");
        }
    }
}
