//! The adapter `process`: one program per stream, never two, and none after its lease.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::coordinator::Coordinator;
use super::process::{Agent, read, runs, until};

/// The program of a stream as a shell script: it locks the stream's file while any of its processes
/// runs, and records its starts.
struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A program that takes the lock and then runs `body`.
    fn program(&self, body: &str) -> PathBuf {
        let path = self.path("program.sh");
        let script = format!(
            "#!/bin/sh\ncd {}\nstream=$1\nexec 9>> $stream.lock\n\
             flock -n 9 || echo $LEASEHOLD_TOKEN >> doubles\n\
             echo $LEASEHOLD_SET $LEASEHOLD_STREAM $LEASEHOLD_TOKEN $$ >> $stream.starts\n{body}\n",
            self.dir.path().display()
        );
        std::fs::write(&path, script).unwrap();
        path
    }

    async fn agent(&self, coordinator: &Coordinator, more: &[&str], body: &str) -> Agent {
        let program = self.program(body).display().to_string();
        let command = ["--adapter", "process", "--", "sh", &program, "{stream}"];
        Agent::start(coordinator, &[more, &command].concat()).await
    }

    /// The recorded starts of a stream, split into words.
    fn starts(&self, stream: &str) -> Vec<Vec<String>> {
        let text = read(&self.path(&format!("{stream}.starts")));
        let words = |line: &str| line.split(' ').map(str::to_owned).collect();
        text.lines().map(words).collect()
    }

    async fn started(&self, stream: &str, times: usize) -> Pid {
        until("it has started", || self.starts(stream).len() >= times).await;
        Pid::from_raw(self.starts(stream)[times - 1][3].parse().unwrap()).unwrap()
    }

    /// Whether no process of a stream's program runs.
    fn is_free(&self, stream: &str) -> bool {
        let lock = self.path(&format!("{stream}.lock"));
        Command::new("flock").arg("-n").arg(lock).arg("true").status().unwrap().success()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let files = std::fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().path());
        for file in
            files.filter(|path| path.extension().is_some_and(|extension| extension == "starts"))
        {
            let text = read(&file);
            let pids = text.lines().filter_map(|line| line.split(' ').next_back()?.parse().ok());
            for pid in pids.filter_map(Pid::from_raw) {
                let _ = rustix::process::kill_process_group(pid, Signal::KILL);
            }
        }
        let doubles = read(&self.path("doubles"));
        assert!(
            doubles.is_empty() || std::thread::panicking(),
            "two programs ran at once: {doubles}"
        );
    }
}

/// The time between two grants of a test that cannot know which one arrives.
const GRANT_INTERVAL: Duration = Duration::from_secs(1);

const RUN: &str = "trap 'exit 0' TERM; while :; do sleep 0.02; done";
const IGNORE: &str = "trap '' TERM; while :; do sleep 0.02; done";

async fn watchdog_of(agent: &Agent) -> Pid {
    let line = agent.log.line("a watchdog has started").await;
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    Pid::from_raw(i32::try_from(line["fields"]["pid"].as_i64().unwrap()).unwrap()).unwrap()
}

#[tokio::test]
async fn runs_a_program_per_stream_and_releases_the_stream_after_all_its_processes_have_exited() {
    let fixture = Fixture::new();
    let coordinator = Coordinator::start().await;
    // The first process exits on SIGTERM at once; its child exits once `may` exists.
    let body = "(trap '' TERM; while ! [ -e may ]; do sleep 0.02; done) & \
                trap 'echo told >> told; exit 0' TERM; while :; do sleep 0.02; done";
    let agent = fixture.agent(&coordinator, &[], body).await;
    let one = coordinator.grant("cars", "cars:new", true);
    let two = coordinator.grant("cars", "cars:sold", true);
    fixture.started("cars:new", 1).await;
    fixture.started("cars:sold", 1).await;
    assert_eq!(fixture.starts("cars:new")[0][..3], ["cars", "cars:new", &one.to_string()]);
    assert_eq!(fixture.starts("cars:sold")[0][..3], ["cars", "cars:sold", &two.to_string()]);
    assert_eq!(agent.metric("leasehold_agent_processes").await, "2");

    coordinator.revoke("cars", "cars:new");
    until("it was told to end", || !read(&fixture.path("told")).is_empty()).await;
    let (_, lease) = agent.ask("GET", "/v1/lease", "").await;
    assert_eq!(
        lease["streams"][0]["state"], "revoked",
        "released while a process of the program runs"
    );
    std::fs::write(fixture.path("may"), "").unwrap();
    coordinator.hear_release(one).await;
    assert!(fixture.is_free("cars:new"));
    assert_eq!(agent.metric("leasehold_agent_processes").await, "1");
    assert_eq!(agent.metric("leasehold_agent_process_kills_total").await, "0");
}

#[tokio::test]
async fn restarts_a_program_under_the_same_token_and_starts_another_for_a_new_token() {
    let fixture = Fixture::new();
    let coordinator = Coordinator::start().await;
    let agent = fixture.agent(&coordinator, &[], "[ -e crash ] && exit 3; sleep 1000 & wait").await;
    std::fs::write(fixture.path("crash"), "").unwrap();
    let token = coordinator.grant("cars", "a", false).to_string();
    fixture.started("a", 3).await;
    std::fs::remove_file(fixture.path("crash")).unwrap();
    agent.ask_until("/v1/lease", |lease| lease["streams"][0]["token"] == *token).await;
    let exits: u64 = agent.metric("leasehold_agent_process_exits_total").await.parse().unwrap();
    assert!(exits >= 2, "{exits}");
    assert!(fixture.starts("a").iter().all(|start| start[2] == token));
    // A new token needs a new program.
    let newer = coordinator.grant("cars", "a", false).to_string();
    let under = |token: &str| fixture.starts("a").iter().any(|start| start[2] == token);
    until("it was started anew", || under(&newer)).await;
}

#[tokio::test]
async fn without_renewal_a_program_that_ignores_sigterm_is_killed_before_its_lease_ends() {
    let fixture = Fixture::new();
    let coordinator = Coordinator::start().await;
    let agent = fixture.agent(&coordinator, &[], IGNORE).await;
    coordinator.grant("cars", "expiring", false);
    coordinator.grant("cars", "pinned", true);
    fixture.started("expiring", 1).await;
    let pinned = fixture.started("pinned", 1).await;
    coordinator.stop();
    let one = |lease: &serde_json::Value| lease["streams"].as_array().unwrap().len() == 1;
    agent.ask_until("/v1/lease", one).await;
    assert!(fixture.is_free("expiring"), "the program runs without a lease");
    assert!(runs(pinned), "a pinned stream does not end by time");
    assert_eq!(agent.metric("leasehold_agent_process_kills_total").await, "1");
}

#[tokio::test]
async fn the_watchdog_kills_programs_of_a_stopped_agent_at_the_end_of_their_leases() {
    let fixture = Fixture::new();
    let coordinator = Coordinator::start().await;
    let agent = fixture.agent(&coordinator, &[], IGNORE).await;
    coordinator.grant("cars", "a", false);
    let pid = fixture.started("a", 1).await;
    agent.signal(Signal::STOP);
    // Of its process group each member ends by itself.
    until("the guard has killed it", || !runs(pid) && fixture.is_free("a")).await;
    agent.signal(Signal::CONT);
    // The agent may have renewed its lease in time, or lost its link and the grants on it; one of
    // its next leases gets a program in any case.
    let tokens = RefCell::new(vec![coordinator.grant("cars", "a", false).to_string()]);
    let grants = async {
        loop {
            tokio::time::sleep(GRANT_INTERVAL).await;
            tokens.borrow_mut().push(coordinator.grant("cars", "a", false).to_string());
        }
    };
    let runs_again = until("a program runs again", || {
        fixture.starts("a").iter().any(|start| tokens.borrow().contains(&start[2]))
    });
    tokio::select! {
        () = grants => {}
        () = runs_again => {}
    }
}

#[tokio::test]
async fn a_successor_adopts_the_programs_of_a_killed_agent() {
    let fixture = Fixture::new();
    let coordinator = Coordinator::start().await;
    let state = fixture.path("state").display().to_string();
    let mut agent = fixture.agent(&coordinator, &["--state-dir", &state], RUN).await;
    let token = coordinator.grant("cars", "a", false);
    let pid = fixture.started("a", 1).await;
    let guard = watchdog_of(&agent).await;
    agent.kill().await;
    let mut agent = fixture.agent(&coordinator, &["--state-dir", &state], RUN).await;
    agent.log.line("adopts it").await;
    agent.ask_until("/v1/lease", |lease| lease["connected"] == true).await;
    // The watchdog of the previous agent, which would kill it at the old lease end, has been
    // replaced.
    until("it has ended", || !runs(guard)).await;
    assert!(
        runs(pid),
        "the program was killed although its lease was renewed\n{}",
        agent.log.text()
    );
    assert_eq!(fixture.starts("a").len(), 1);
    coordinator.revoke("cars", "a");
    coordinator.hear_release(token).await;
    assert!(fixture.is_free("a"));
    agent.signal(Signal::TERM);
    assert_eq!(agent.code().await, Some(0));
}

#[tokio::test]
async fn without_a_successor_programs_end_with_their_leases_or_at_once_without_a_state_folder() {
    let fixture = Fixture::new();
    let coordinator = Coordinator::start().await;
    let state = fixture.path("state").display().to_string();
    for more in [&["--state-dir", state.as_str()][..], &[]] {
        let mut agent = fixture.agent(&coordinator, more, IGNORE).await;
        let stream = format!("with{}", more.len());
        coordinator.grant("cars", &stream, more.is_empty());
        let pid = fixture.started(&stream, 1).await;
        // Not with Agent::kill, which would also kill its children.
        kill_process(agent.pid, Signal::KILL).unwrap();
        agent.status().await;
        until("the guard has killed it", || !runs(pid)).await;
        // The other processes of its group end a moment later.
        until("its lock is free", || fixture.is_free(&stream)).await;
        coordinator.revoke("cars", &stream);
    }
}

#[tokio::test]
async fn kills_leftover_programs_without_a_lease_before_anything_else() {
    let fixture = Fixture::new();
    let coordinator = Coordinator::start().await;
    let state = fixture.path("state").display().to_string();
    let mut agent = fixture.agent(&coordinator, &["--state-dir", &state], IGNORE).await;
    coordinator.grant("cars", "a", true);
    let pid = fixture.started("a", 1).await;
    agent.kill().await;
    std::fs::remove_file(fixture.path("state").join("journal.jsonl")).unwrap();
    // Another adapter runs no programs.
    let agent = Agent::start(&coordinator, &["--state-dir", &state]).await;
    assert!(!runs(pid), "the program runs although no adapter manages it");
    agent.log.line("runs without a lease").await;
}

#[tokio::test]
async fn reports_a_missing_program_and_retries() {
    let fixture = Fixture::new();
    let coordinator = Coordinator::start().await;
    let program = fixture.path("feed").display().to_string();
    let command = ["--adapter", "process", "--", &program, "{stream}"];
    let agent = Agent::start(&coordinator, &command).await;
    coordinator.grant("cars", "a", true);
    agent.log.line("the program has exited by itself").await;
    let (status, why) = agent.text("GET", "/readyz", "").await;
    assert_eq!(status, 503);
    assert!(why.contains("No such file") && why.contains(&program), "{why}");
    assert_eq!(agent.metric("leasehold_agent_processes_missing").await, "1");
    let (_, lease) = agent.ask("GET", "/v1/lease", "").await;
    assert_eq!(lease["streams"][0]["state"], "held", "the stream stays held");

    let script = std::fs::read_to_string(fixture.program(RUN)).unwrap();
    let ready = fixture.path("ready");
    std::fs::write(&ready, script).unwrap();
    let executable: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&ready, executable).unwrap();
    std::fs::rename(&ready, &program).unwrap();
    fixture.started("a", 1).await;
    agent.log.line("the program has started").await;
    assert_eq!(agent.text("GET", "/readyz", "").await.0, 200);
}

#[tokio::test]
async fn a_drain_terminates_all_programs_and_kills_them_only_with_the_option() {
    let fixture = Fixture::new();
    let coordinator = Coordinator::start().await;
    let more = ["--process-grace", "50ms", "--process-kill"];
    let mut agent = fixture.agent(&coordinator, &more, IGNORE).await;
    coordinator.grant("cars", "a", true);
    coordinator.grant("cars", "b", false);
    fixture.started("a", 1).await;
    fixture.started("b", 1).await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.code().await, Some(0));
    assert!(fixture.is_free("a") && fixture.is_free("b"));

    let mut agent = fixture.agent(&coordinator, &more[..2], IGNORE).await;
    let token = coordinator.grant("cars", "c", true);
    let pid = fixture.started("c", 1).await;
    coordinator.revoke("cars", "c");
    agent.log.line("the program has not exited after SIGTERM").await;
    assert!(runs(pid), "the program was killed");
    kill_process(pid, Signal::KILL).unwrap();
    coordinator.hear_release(token).await;
    // After a second signal the agent leaves no program running.
    coordinator.grant("cars", "d", true);
    let pid = fixture.started("d", 1).await;
    agent.signal(Signal::TERM);
    agent.ask_until("/v1/lease", |lease| lease["draining"] == true).await;
    assert!(runs(pid));
    agent.signal(Signal::TERM);
    assert_eq!(agent.code().await, Some(143));
    assert!(fixture.is_free("d"));
}

#[tokio::test]
async fn replaces_a_watchdog_that_was_killed() {
    let fixture = Fixture::new();
    let coordinator = Coordinator::start().await;
    let agent = fixture.agent(&coordinator, &[], IGNORE).await;
    coordinator.grant("cars", "a", false);
    let pid = fixture.started("a", 1).await;
    kill_process(watchdog_of(&agent).await, Signal::KILL).unwrap();
    agent.log.line("the agent starts another one").await;
    agent.log.line("another watchdog watches the programs now").await;
    assert!(runs(pid));
    agent.signal(Signal::STOP);
    until("the new guard has killed it", || !runs(pid)).await;
    agent.signal(Signal::CONT);
}
