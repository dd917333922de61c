//! The program `leasehold`, run against a coordinator as people type it.

use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::process::{Agent, Coordinator, Process, eventually, free_address, until_ok};
use crate::toolbox;

/// A cluster, a set, a class and a pipeline.
pub const MANIFESTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 6, maxJobsPerWorker: 3, lease: {ttl: 2s}}
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {name: cars}
spec:
  cluster: builds
  mode: Pinned
  streams: [{name: 'cars:new'}, {name: 'cars:sold'}]
---
apiVersion: leasehold.dev/v1alpha1
kind: WorkerClass
metadata: {name: green}
spec: {capacity: 10, maxReplicas: 2}
---
apiVersion: leasehold.dev/v1alpha1
kind: Pipeline
metadata: {name: third}
spec: {documentsPerSecond: 5, workers: {only: {class: green}}}
";

/// `leasehold dashboard`, which serves the page until this is dropped.
#[derive(Debug)]
pub struct Dashboard {
    process: Process,
    /// Where it serves the page.
    pub listen: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Dashboard {
    /// Starts it, with what else its command has.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(configure: impl FnOnce(&mut Command)) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let listen = free_address();
        let mut command = Command::new(toolbox::binary("leasehold"));
        command.args(["dashboard", "--listen", &listen.to_string()]);
        configure(&mut command);
        let process = Process::start(&mut command, &folder.path().join("dashboard.log"));
        Self { process, listen, _folder: folder }
    }

    /// The page's address that it prints, with the key.
    ///
    /// # Panics
    /// If it prints none for a long time.
    #[must_use]
    pub fn page(&self) -> String {
        eventually("the page's address", || {
            let log = self.process.log();
            let address = log.split_once("The fleet: ")?.1.split_once('\n')?.0;
            Some(address.to_owned())
        })
    }
}

/// The program, which asks this coordinator.
#[derive(Debug)]
pub struct CommandLine<'a>(pub &'a Coordinator);

impl CommandLine<'_> {
    /// The command of a line, whose words are parted by single spaces.
    #[must_use]
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(toolbox::binary("leasehold"));
        command.args(line.split(' ')).env("LEASEHOLD_COORDINATOR", self.0.grpc.to_string());
        command.stdin(Stdio::null());
        command
    }

    /// Runs a line to its end.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn run(&self, line: &str) -> Output {
        self.command(line).output().expect("it starts")
    }

    /// What it prints, or what it complains of.
    ///
    /// # Errors
    /// What it writes to stderr, if it fails.
    ///
    /// # Panics
    /// If it cannot be started, or writes no UTF-8.
    pub fn try_line(&self, line: &str) -> Result<String, String> {
        let output = self.run(line);
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    /// What it prints.
    ///
    /// # Panics
    /// If it fails.
    pub fn line(&self, line: &str) -> String {
        self.try_line(line).unwrap_or_else(|why| panic!("leasehold {line}: {why}"))
    }

    /// What it complains of.
    ///
    /// # Panics
    /// If it does not fail.
    #[must_use]
    pub fn refused(&self, line: &str) -> String {
        self.try_line(line).expect_err(line)
    }

    /// What it prints as JSON.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn json(&self, line: &str) -> Value {
        let text = self.line(&format!("{line} -o json"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
    }

    /// Waits until a line prints all these words; returns all that it prints then.
    ///
    /// # Panics
    /// If that does not happen, with what it prints at last.
    pub fn until(&self, line: &str, words: &[&str]) -> String {
        until_ok(&format!("`leasehold {line}` with {words:?}"), || {
            let text = self.try_line(line)?;
            let has_all = words.iter().all(|word| text.contains(word));
            if has_all { Ok(text) } else { Err(text) }
        })
    }
}

/// The cells of the first row of a table whose first cells are these.
///
/// # Panics
/// Without such a row.
#[must_use]
pub fn row<'a>(table: &'a str, first: &[&str]) -> Vec<&'a str> {
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut rows = rows.filter(|cells| cells.starts_with(first));
    rows.next().unwrap_or_else(|| panic!("no row {first:?} in:\n{table}"))
}

/// Checks that `docs/CLI.md` has these words: it says that they are printed.
///
/// # Panics
/// If it has not.
pub fn documented(words: &[&str]) {
    let document = std::fs::read_to_string(toolbox::root().join("docs/CLI.md")).expect("the page");
    for words in words {
        assert!(document.contains(words), "not in docs/CLI.md: {words}");
    }
}

/// One call of an agent's API: whether it succeeded.
///
/// # Panics
/// If no runtime can be made.
#[must_use]
pub fn call(agent: &Agent, method: &str, path: &str) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let call = crate::http::call(agent.api, method, path, "");
    runtime.expect("a runtime").block_on(call).is_ok_and(|(status, _)| status == 200)
}

/// Asks an agent whether a job may begin: the status and the body of the answer.
///
/// # Panics
/// If the agent does not answer.
#[must_use]
pub fn ask_for_job(agent: &Agent, job: &str) -> (u16, String) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let path = format!("/v1/jobs/{job}");
    let call = crate::http::call(agent.api, "PUT", &path, "");
    runtime.expect("a runtime").block_on(call).expect("the agent answers")
}

/// Starts a job beside an agent, once it may.
///
/// # Panics
/// If it is never admitted.
pub fn start_job(agent: &Agent, job: &str) {
    let path = format!("/v1/jobs/{job}");
    eventually("an admitted job", || call(agent, "PUT", &path).then_some(()));
}
