//! The adapter `command`, with a worker that is a shell script.

use std::path::{Path, PathBuf};

use leasehold_types::Token;
use leasehold_types::message::AgentMessage;
use rustix::process::Signal;
use tokio::process::{Child, Command};

use super::coordinator::{Coordinator, told};
use super::process::{Agent, pids, read, runs, until};

/// Begins jobs while there are fewer than the number in the file `size`. A job is a file. A change
/// of the size holds the lock, so that no job begins under the old size.
const WORKER: &str = "i=0; while :; do i=$((i+1)); flock lock sh -c '\
    if [ $(ls jobs | wc -l) -lt $(cat size) ]; then touch jobs/'$i'; fi'; sleep 0.01; done";
const COUNT: &str = "ls jobs | wc -l";
const RESIZE: &str = "flock lock sh -c 'echo $LEASEHOLD_POOL_SIZE > size'";

struct Fixture {
    /// Dropped before its folder.
    _worker: Child,
    folder: tempfile::TempDir,
    coordinator: Coordinator,
}

impl Fixture {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("jobs")).unwrap();
        std::fs::write(folder.path().join("size"), "0\n").unwrap();
        let mut worker = Command::new("sh");
        worker.args(["-c", WORKER]).current_dir(folder.path());
        let worker = worker.kill_on_drop(true).spawn().unwrap();
        let coordinator = Coordinator::start().await;
        Self { _worker: worker, folder, coordinator }
    }

    async fn agent(&self, more: &[&str]) -> Agent {
        let coordinator = self.coordinator.address.to_string();
        let mut command = std::process::Command::new(super::process::AGENT);
        command.args(["run", "--coordinator", &coordinator, "--cluster", "ci", "--worker", "w1"]);
        command.args(["--listen", "127.0.0.1:0", "--log-format", "json", "--adapter", "command"]);
        command.args(["--command-interval", "100ms"]).args(more).current_dir(self.folder.path());
        Agent::run(&mut command).await
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn running(&self) -> usize {
        std::fs::read_dir(self.path("jobs")).unwrap().count()
    }

    fn end_job(&self) {
        let job = std::fs::read_dir(self.path("jobs")).unwrap().next().unwrap();
        std::fs::remove_file(job.unwrap().path()).unwrap();
    }
}

fn lines(path: &Path) -> Vec<String> {
    read(path).lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn counts_sizes_and_drains_jobs_with_commands() {
    let fixture = Fixture::start().await;
    let drain = format!("{RESIZE}; echo $LEASEHOLD_POOL_SIZE >> drained");
    let programs =
        ["--command-count", COUNT, "--command-resize", RESIZE, "--command-drain", &drain];
    let mut agent = fixture.agent(&programs).await;
    fixture.coordinator.pool(3);
    fixture.coordinator.hear_count(3, 3).await;
    fixture.coordinator.forget();
    fixture.coordinator.pool(1);
    fixture.coordinator.hear_count(1, 3).await;
    fixture.end_job();
    fixture.coordinator.hear_count(1, 2).await;
    assert_eq!(fixture.running(), 2);
    agent.signal(Signal::TERM);
    until("the drain has begun", || read(&fixture.path("drained")) == "0\n").await;
    fixture.end_job();
    fixture.end_job();
    assert_eq!(agent.code().await, Some(0));
    assert_eq!((fixture.running(), lines(&fixture.path("drained"))), (0, vec!["0".to_owned()]));
}

/// Such a worker never says that its process starts.
#[tokio::test]
async fn a_worker_gets_jobs_again_when_its_container_has_restarted() {
    let fixture = Fixture::start().await;
    std::fs::write(fixture.path("count"), "0").unwrap();
    let programs = ["--command-count", "cat count", "--command-resize", RESIZE];
    let agent = fixture.agent(&[&["--sidecar"][..], &programs].concat()).await;
    fixture.coordinator.pool(2);
    until("it has its size", || read(&fixture.path("size")) == "2\n").await;
    let mut hook = Command::new(super::process::AGENT);
    hook.args(["drain", "--hold", "--addr", &format!("http://{}", agent.address)]);
    let mut hook = hook.kill_on_drop(true).spawn().unwrap();
    until("it is drained", || read(&fixture.path("size")) == "0\n").await;
    hook.kill().await.unwrap();
    until("it has its size again", || read(&fixture.path("size")) == "2\n").await;
}

#[tokio::test]
async fn a_size_is_in_effect_only_after_its_command_has_exited_with_0() {
    let fixture = Fixture::start().await;
    let resize = format!("test ! -e broken || {{ echo words >&2; exit 7; }}; {RESIZE}");
    let agent = fixture.agent(&["--command-count", COUNT, "--command-resize", &resize]).await;
    fixture.coordinator.pool(2);
    fixture.coordinator.hear_count(2, 2).await;
    std::fs::write(fixture.path("broken"), "").unwrap();
    fixture.coordinator.forget();
    fixture.coordinator.pool(1);
    agent.log.line("--command-resize exited with 7: words").await;
    let (status, why) = agent.text("GET", "/readyz", "").await;
    assert!(status == 503 && why.contains("exited with 7: words"), "{status} {why}");
    fixture.end_job();
    until("the next begins", || fixture.running() == 2).await;
    // The jobs are counted again before each attempt.
    agent.metric_until("leasehold_agent_worker_failures_total", |failures| failures >= 4).await;
    let freed = |message: &AgentMessage| (0..3).any(|jobs| told(message, 1, jobs));
    assert_eq!(
        fixture.coordinator.count(freed),
        0,
        "slots were freed although the size is not in effect"
    );
    std::fs::remove_file(fixture.path("broken")).unwrap();
    fixture.coordinator.hear_count(1, 2).await;
}

#[tokio::test]
async fn reports_a_command_with_invalid_output_and_kills_one_that_hangs() {
    let fixture = Fixture::start().await;
    let count = "cat count; test ! -e hang || { echo $$ > pid; sleep 600 & wait; }";
    std::fs::write(fixture.path("count"), "many").unwrap();
    let more = ["--command-count", count, "--command-resize", RESIZE, "--command-timeout", "1s"];
    let agent = fixture.agent(&more).await;
    agent.log.line("--command-count printed \\\"many\\\": it must print the number").await;
    std::fs::write(fixture.path("hang"), "").unwrap();
    agent.log.line("--command-count did not exit within 1s").await;
    let hanging = pids(&fixture.path("pid"));
    assert_eq!(hanging.len(), 1);
    std::fs::remove_file(fixture.path("hang")).unwrap();
    std::fs::write(fixture.path("count"), "0").unwrap();
    until("it has ended", || !runs(hanging[0])).await;
    agent.log.line("the worker answers").await;
}

/// A command that outlives its agent could set an old size after a later agent has set another.
#[tokio::test]
async fn a_hanging_command_is_killed_when_its_agent_is_killed() {
    let fixture = Fixture::start().await;
    std::fs::write(fixture.path("count"), "0").unwrap();
    let resize = "sleep 600 & echo $$ $! > pids; wait";
    let agent = fixture.agent(&["--command-count", "cat count", "--command-resize", resize]).await;
    until("it hangs", || read(&fixture.path("pids")).ends_with('\n')).await;
    let hanging = pids(&fixture.path("pids"));
    assert!(hanging.len() == 2 && hanging.iter().all(|pid| runs(*pid)));
    agent.signal(Signal::KILL);
    until("all of it has ended", || !hanging.iter().any(|pid| runs(*pid))).await;
}

#[tokio::test]
async fn starts_and_stops_streams_with_commands_and_releases_them_only_after_the_stop() {
    let fixture = Fixture::start().await;
    let start = "echo start $LEASEHOLD_SET $LEASEHOLD_STREAM $LEASEHOLD_TOKEN >> told";
    let stop = "test ! -e busy || { echo still busy >&2; exit 1; }; \
                echo stop $LEASEHOLD_SET $LEASEHOLD_STREAM $LEASEHOLD_TOKEN >> told";
    let mut agent =
        fixture.agent(&["--command-stream-start", start, "--command-stream-stop", stop]).await;
    let a = fixture.coordinator.grant("cars", "cars:new", true);
    let told = fixture.path("told");
    let line = |what: &str, stream: &str, token: Token| format!("{what} cars {stream} {token}");
    until("it is started", || lines(&told) == [line("start", "cars:new", a)]).await;
    let b = fixture.coordinator.grant("cars", "b", true);
    until("it is started", || lines(&told).len() == 2).await;
    std::fs::write(fixture.path("busy"), "").unwrap();
    fixture.coordinator.revoke("cars", "cars:new");
    agent.log.line("--command-stream-stop exited with 1: still busy").await;
    let released = |message: &AgentMessage| match message {
        AgentMessage::Beat(beat) => !beat.released.is_empty(),
        _ => false,
    };
    assert_eq!(fixture.coordinator.count(released), 0, "released although it was not stopped");
    std::fs::remove_file(fixture.path("busy")).unwrap();
    fixture.coordinator.hear_release(a).await;
    assert_eq!(lines(&told)[2..], [line("stop", "cars:new", a)]);
    agent.signal(Signal::TERM);
    assert_eq!(agent.code().await, Some(0));
    assert_eq!(lines(&told)[3..], [line("stop", "b", b)]);
}
