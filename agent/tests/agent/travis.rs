//! The adapter `travis` against a fake Travis worker with all known pitfalls of the real one.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_types::message::{AgentMessage, DrainPhase};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::coordinator::{Coordinator, told};
use super::process::{Agent, read, until};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/travis_worker.py");
const AUTH: &str = "user:Tr4vis";

/// A running Travis worker; it is killed at the end of its test. Its jobs run until the test ends
/// them.
struct Worker {
    process: tokio::process::Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl Worker {
    async fn start(folder: &Path, more: &[&str]) -> Self {
        Self::start_at(folder, free_address(), more).await
    }

    async fn start_at(folder: &Path, address: SocketAddr, more: &[&str]) -> Self {
        Self::start_of_size(folder, address, 0, more).await
    }

    async fn start_of_size(folder: &Path, address: SocketAddr, size: u32, more: &[&str]) -> Self {
        let (folder, jobs) = (folder.to_owned(), folder.join("jobs"));
        std::fs::create_dir_all(&jobs).unwrap();
        let mut command = Command::new("python3");
        command.arg(PROGRAM).args(["--worker", "w1"]).args(more);
        command.arg("--journal").arg(folder.join("journal")).arg("--job-dir").arg(jobs);
        command.env("TRAVIS_WORKER_REMOTE_CONTROLLER_ADDR", address.to_string());
        command.env("TRAVIS_WORKER_REMOTE_CONTROLLER_AUTH", AUTH);
        command.env("TRAVIS_WORKER_POOL_SIZE", size.to_string());
        let mut command = tokio::process::Command::from(command);
        let process = command.kill_on_drop(true).spawn().unwrap();
        let worker = Self { process, address, folder };
        until("the worker has begun", || worker.count("begin") > 0).await;
        worker
    }

    fn lines(&self) -> Vec<Value> {
        let text = read(&self.folder.join("journal"));
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// How often something happened.
    fn count(&self, what: &str) -> usize {
        self.lines().iter().filter(|line| line["what"] == what).count()
    }

    fn jobs(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.join("jobs")).unwrap();
        let mut jobs: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        jobs.sort();
        jobs
    }

    async fn runs(&self, jobs: usize) {
        until(&format!("{jobs} jobs run"), || self.jobs().len() == jobs).await;
    }

    fn end_job(&self) {
        std::fs::remove_file(&self.jobs()[0]).unwrap();
    }

    /// Ends the job of the newest processor, which is the first to drain.
    fn end_last_job(&self) {
        std::fs::remove_file(self.jobs().last().unwrap()).unwrap();
    }

    /// The most jobs that ran at once.
    fn peak(&self) -> i32 {
        let mut running = 0;
        let change = |line: &Value| match line["what"].as_str().unwrap() {
            "job_start" => 1,
            "job_end" => -1,
            _ => 0,
        };
        let steps = self.lines().iter().map(change).collect::<Vec<_>>();
        let level = |step: &i32| {
            running += step;
            running
        };
        steps.iter().map(level).max().unwrap_or(0)
    }

    fn signal(&self, signal: Signal) {
        let pid = self.process.id().unwrap().cast_signed();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Waits until it has exited by itself, and checks that no pitfall was hit.
    async fn leaves(&mut self) {
        let ended = tokio::time::timeout(super::coordinator::PATIENCE, self.process.wait()).await;
        assert_eq!(ended.expect("the worker exits").unwrap().code(), Some(0));
        assert_eq!((self.count("exit"), self.count("trap")), (1, 0), "{:?}", self.lines());
    }

    /// Checks that it runs, and that no pitfall was hit.
    fn is_well(&mut self) {
        assert!(
            self.process.try_wait().unwrap().is_none(),
            "the worker has exited: {:?}",
            self.lines()
        );
        let traps = self.count("trap") + self.count("toggled_again");
        assert_eq!(traps, 0, "{:?}", self.lines());
    }
}

fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

async fn start(coordinator: &Coordinator, worker: &Worker, more: &[&str]) -> Agent {
    let url = format!("http://{}", worker.address);
    let auth = worker.folder.join("auth");
    std::fs::write(&auth, format!("{AUTH}\n")).unwrap();
    let auth = auth.display().to_string();
    let args = ["--adapter", "travis", "--travis-url", &url, "--travis-auth-file", &auth];
    let args = [&args[..], &["--travis-interval", "100ms"], more].concat();
    Agent::start(coordinator, &args).await
}

#[tokio::test]
async fn sends_no_order_before_the_worker_is_ready() {
    let dir = tempfile::tempdir().unwrap();
    let ready = dir.path().join("ready");
    let option = ready.display().to_string();
    let mut worker = Worker::start(dir.path(), &["--ready-file", &option]).await;
    let coordinator = Coordinator::start().await;
    coordinator.pool(2);
    let agent = start(&coordinator, &worker, &[]).await;
    agent.log.line("not ready yet").await;
    worker.is_well();
    assert_eq!(worker.count("size"), 0);
    std::fs::write(&ready, "").unwrap();
    worker.runs(2).await;
    coordinator.hear_count(2, 2).await;
    worker.is_well();
    assert_eq!(agent.metric("leasehold_agent_worker_ok").await, "1");
}

#[tokio::test]
async fn a_smaller_pool_counts_until_its_jobs_have_ended_and_never_exceeds_the_size() {
    let dir = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(dir.path(), &[]).await;
    let coordinator = Coordinator::start().await;
    coordinator.pool(3);
    let _agent = start(&coordinator, &worker, &[]).await;
    worker.runs(3).await;
    coordinator.hear_count(3, 3).await;
    coordinator.forget();
    coordinator.pool(1);
    until("the order arrived", || worker.lines().iter().any(|line| line["size"] == 1)).await;
    // All three jobs still run; when one has ended, two count.
    worker.end_last_job();
    coordinator.hear_count(2, 2).await;
    let freed = |message: &AgentMessage| told(message, 1, 1) || told(message, 1, 2);
    assert_eq!(coordinator.count(freed), 0, "freed while two jobs run");
    assert_eq!(worker.jobs().len(), 2);
    // Size 3 again: one more job, not two.
    coordinator.forget();
    coordinator.pool(3);
    worker.runs(3).await;
    coordinator.hear_count(3, 3).await;
    worker.end_job();
    until("the next begins", || worker.count("job_start") == 5).await;
    worker.runs(3).await;
    assert_eq!(worker.peak(), 3);
    worker.is_well();
}

#[tokio::test]
async fn size_0_keeps_the_process_repeatedly_and_after_an_agent_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(dir.path(), &[]).await;
    let coordinator = Coordinator::start().await;
    let state = dir.path().join("state").display().to_string();
    let mut agent = start(&coordinator, &worker, &["--state-dir", &state]).await;
    for round in 1..4 {
        coordinator.forget();
        coordinator.pool(2);
        worker.runs(2).await;
        coordinator.hear_count(2, 2).await;
        coordinator.pool(0);
        until("the order arrived", || worker.count("shut_down") == round).await;
        if round == 1 {
            agent.kill().await;
            agent = start(&coordinator, &worker, &["--state-dir", &state]).await;
        }
        worker.end_job();
        worker.end_job();
        coordinator.hear_count(0, 0).await;
        worker.is_well();
    }
    // A paused worker ignores the stop signal of its container, so the drain ends it.
    agent.signal(Signal::TERM);
    assert_eq!(agent.code().await, Some(0));
    worker.leaves().await;
    assert_eq!(worker.count("toggled_again"), 1);
}

#[tokio::test]
async fn a_drain_ends_with_the_last_job_and_the_pool_never_grows_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(dir.path(), &[]).await;
    let coordinator = Coordinator::start().await;
    coordinator.pool(2);
    let mut agent = start(&coordinator, &worker, &[]).await;
    worker.runs(2).await;
    coordinator.hear_count(2, 2).await;
    agent.signal(Signal::TERM);
    until("the order arrived", || worker.count("shut_down") == 1).await;
    coordinator.pool(4);
    worker.end_job();
    coordinator.hear_count(1, 1).await;
    assert_eq!(worker.count("size"), 1, "{:?}", worker.lines());
    worker.end_job();
    assert_eq!(agent.code().await, Some(0));
    assert_eq!(worker.count("job_start"), 2);
    coordinator
        .hear("the farewell", |message| match message {
            AgentMessage::Beat(beat) => (beat.drain == DrainPhase::Leaving).then_some(()),
            _ => None,
        })
        .await;
    worker.leaves().await;
}

#[tokio::test]
async fn a_drain_of_an_idle_worker_waits_until_it_takes_no_jobs() {
    let dir = tempfile::tempdir().unwrap();
    // Its processors wait a minute for a job.
    let mut worker = Worker::start(dir.path(), &["--pause-ms", "600000"]).await;
    let coordinator = Coordinator::start().await;
    coordinator.pool(2);
    let mut agent = start(&coordinator, &worker, &[]).await;
    until("the order arrived", || worker.count("size") == 1).await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.code().await, Some(0));
    assert_eq!(worker.count("shut_down"), 1);
    worker.leaves().await;
}

#[tokio::test]
async fn a_worker_that_restarts_during_its_drain_stays_at_0() {
    let dir = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(dir.path(), &[]).await;
    let address = worker.address;
    let coordinator = Coordinator::start().await;
    coordinator.pool(2);
    coordinator.grant("cars", "held", true);
    let agent = start(&coordinator, &worker, &[]).await;
    // A held stream keeps the drain from ending.
    agent.ask_until("/v1/lease", |lease| lease["streams"][0]["state"] == "held").await;
    worker.runs(2).await;
    coordinator.hear_count(2, 2).await;
    agent.signal(Signal::TERM);
    until("the order arrived", || worker.count("shut_down") == 1).await;
    worker.end_job();
    worker.end_job();
    worker.leaves().await;
    let next = dir.path().join("next");
    std::fs::create_dir(&next).unwrap();
    let mut worker = Worker::start_of_size(&next, address, 2, &[]).await;
    until("the order arrived", || worker.count("shut_down") == 1).await;
    // It may have begun two jobs before the order, or none.
    while !worker.jobs().is_empty() {
        worker.end_job();
    }
    worker.runs(0).await;
    worker.is_well();
}

#[tokio::test]
async fn jobs_end_with_their_process_and_the_next_process_gets_the_size_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(dir.path(), &[]).await;
    let address = worker.address;
    let coordinator = Coordinator::start().await;
    coordinator.pool(2);
    let agent = start(&coordinator, &worker, &[]).await;
    worker.runs(2).await;
    coordinator.hear_count(2, 2).await;
    coordinator.forget();
    worker.process.kill().await.unwrap();
    coordinator.hear_count(2, 0).await;
    let (status, why) = agent.text("GET", "/readyz", "").await;
    assert_eq!(status, 503, "{why}");
    assert!(why.contains("its process has exited"), "{why}");

    let next = dir.path().join("next");
    std::fs::create_dir(&next).unwrap();
    let mut worker = Worker::start_at(&next, address, &[]).await;
    worker.runs(2).await;
    coordinator.hear_count(2, 2).await;
    worker.is_well();
    agent.log.line("the worker's process has exited").await;
}

#[tokio::test]
async fn a_worker_that_shuts_down_by_itself_gets_no_processors() {
    let dir = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(dir.path(), &[]).await;
    let coordinator = Coordinator::start().await;
    coordinator.pool(2);
    let _agent = start(&coordinator, &worker, &[]).await;
    worker.runs(2).await;
    coordinator.hear_count(2, 2).await;
    worker.signal(Signal::INT);
    until("it shuts down", || worker.count("shut_down") == 1).await;
    coordinator.forget();
    coordinator.pool(4);
    worker.end_job();
    coordinator.hear_count(4, 1).await;
    worker.is_well();
    worker.end_job();
    until("it has ended", || worker.count("exit") == 1).await;
    coordinator.hear_count(4, 0).await;
    assert_eq!(worker.count("trap"), 0, "{:?}", worker.lines());
}

#[tokio::test]
async fn lost_answers_only_delay_a_change() {
    let dir = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(dir.path(), &["--lose-every", "2"]).await;
    let coordinator = Coordinator::start().await;
    let _agent = start(&coordinator, &worker, &[]).await;
    for size in [3, 0, 2, 1, 3, 0, 1] {
        coordinator.forget();
        coordinator.pool(size);
        until(&format!("the size of {size} is reported"), || {
            // A worker without the new size begins the next job.
            if worker.jobs().len() > size as usize {
                worker.end_job();
            }
            coordinator.count(|message| told(message, size, size)) > 0
        })
        .await;
    }
    assert!(worker.count("lost_answer") > 2, "{:?}", worker.lines());
    assert!(worker.peak() <= 3);
    worker.is_well();
}

#[tokio::test]
async fn reports_a_wrong_password_without_showing_it() {
    let dir = tempfile::tempdir().unwrap();
    let worker = Worker::start(dir.path(), &[]).await;
    let coordinator = Coordinator::start().await;
    let agent = start(&coordinator, &worker, &[]).await;
    agent.log.line("the worker answers").await;
    std::fs::write(dir.path().join("auth"), "user:s3cret").unwrap();
    agent.log.line("403: --travis-auth differs from").await;
    until("it was counted", || agent.log.count("403") >= 1).await;
    let (status, why) = agent.text("GET", "/readyz", "").await;
    assert!(status == 503 && why.contains("403"), "{status} {why}");
    assert_ne!(agent.metric("leasehold_agent_worker_failures_total").await, "0");
    assert!(!agent.log.text().contains("s3cret") && !agent.log.text().contains("Tr4vis"));
}
