//! The worker as a child: its environment, its exit code, its restarts, its signals, PID 1.

use std::os::unix::process::ExitStatusExt;

use leasehold_types::message::{AgentMessage, DrainPhase, Jobs};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::json;

use super::coordinator::Coordinator;
use super::process::{AGENT, Agent, process_namespace, read, until};

async fn start(coordinator: &Coordinator, options: &[&str], script: &str) -> Agent {
    let args = [options, &["--", "sh", "-c", script]].concat();
    Agent::start(coordinator, &args).await
}

fn leaving(message: &AgentMessage) -> Option<()> {
    match message {
        AgentMessage::Beat(beat) => (beat.drain == DrainPhase::Leaving).then_some(()),
        // If the drain ended before the link was open.
        AgentMessage::Report(report) => (report.drain == DrainPhase::Leaving).then_some(()),
        AgentMessage::Hello(_) => None,
    }
}

#[tokio::test]
async fn the_child_gets_the_agents_address_and_the_agent_returns_its_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let told = dir.path().join("told");
    let coordinator = Coordinator::start().await;
    let script = format!(
        "echo $LEASEHOLD_ADDR $LEASEHOLD_CLUSTER $LEASEHOLD_WORKER > {}; exit 7",
        told.display()
    );
    let mut agent = start(&coordinator, &[], &script).await;
    assert_eq!(agent.code().await, Some(7));
    assert_eq!(read(&told), format!("http://{} ci w1\n", agent.address));
    // The agent has drained, so the coordinator knows that nothing is left.
    coordinator.hear("the farewell", leaving).await;
    let mut killed = start(&coordinator, &[], "kill -9 $$").await;
    assert_eq!(killed.code().await, Some(137));
}

/// Otherwise its slots would stay reserved for a worker that does not run.
#[tokio::test]
async fn releases_its_leases_if_the_command_cannot_be_started() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let coordinator = Coordinator::start().await;
    coordinator.pool(2);
    let args = ["--state-dir", state.to_str().unwrap(), "--", "./nowhere"];
    let mut agent = Agent::start(&coordinator, &args).await;
    assert_eq!(agent.code().await, Some(1));
    coordinator.hear("the farewell", leaving).await;
    let said = agent.log.text();
    assert!(said.contains("cannot start ./nowhere"), "{said}");
    // With a valid command it works.
    let args = ["--state-dir", state.to_str().unwrap(), "--", "true"];
    assert_eq!(Agent::start(&coordinator, &args).await.code().await, Some(0));
}

#[tokio::test]
async fn restarts_the_child_by_policy_and_ends_the_jobs_of_the_previous_one() {
    let dir = tempfile::tempdir().unwrap();
    let (runs, go) = (dir.path().join("runs"), dir.path().join("go"));
    let coordinator = Coordinator::start().await;
    coordinator.pool(2);
    // Fails until its third run, then exits with 0.
    let script = format!(
        "echo run >> {0}; n=$(wc -l < {0}); [ $n -ge 3 ] && exit 0; \
         [ $n -ge 2 ] && exit 5; while ! [ -e {1} ]; do sleep 0.02; done; exit 5",
        runs.display(),
        go.display()
    );
    let mut agent = start(&coordinator, &["--restart", "on-failure"], &script).await;
    agent.pool(2).await;
    until("it runs", || read(&runs).lines().count() == 1).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    let running = |jobs: u32| {
        move |message: &AgentMessage| match message {
            AgentMessage::Beat(beat) => (beat.jobs == Jobs::Running(jobs)).then_some(()),
            _ => None,
        }
    };
    coordinator.hear("the job", running(1)).await;
    coordinator.forget();
    std::fs::write(&go, "").unwrap();
    coordinator.hear("the end of the job with its process", running(0)).await;
    assert_eq!(agent.code().await, Some(0));
    assert_eq!(read(&runs).lines().count(), 3);
    let said = agent.log.text();
    let ended = "the child has exited, and the jobs that it ran have ended with it";
    let warns = |line: &str| line.contains("WARN") && line.contains(ended);
    let warned = said.lines().filter(|line| warns(line) && line.contains("\"jobs\":1"));
    assert_eq!(warned.count(), 1, "{said}");
}

#[tokio::test]
async fn forwards_signals_and_drains_on_sigterm_before_ending_the_child() {
    let dir = tempfile::tempdir().unwrap();
    let told = dir.path().join("told");
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    let script = format!(
        "for s in HUP USR1 USR2; do trap \"echo $s >> {0}\" $s; done; \
         trap 'echo TERM >> {0}; exit 3' TERM; echo up >> {0}; while :; do sleep 0.02; done",
        told.display()
    );
    let mut agent = start(&coordinator, &[], &script).await;
    agent.pool(1).await;
    until("it runs", || read(&told).contains("up")).await;
    for (signal, name) in [(Signal::HUP, "HUP"), (Signal::USR1, "USR1"), (Signal::USR2, "USR2")] {
        agent.signal(signal);
        until(name, || read(&told).contains(name)).await;
    }
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    agent.signal(Signal::TERM);
    agent.ask_until("/v1/lease", |lease| lease["draining"] == true).await;
    let (status, refused) = agent.ask("PUT", "/v1/jobs/b", "").await;
    assert_eq!((status, refused["error"]["reason"].as_str()), (409, Some("draining")));
    // It still answers: none of the earlier signals has ended it.
    agent.signal(Signal::USR1);
    until("it is told again", || read(&told).matches("USR1").count() == 2).await;
    assert!(!read(&told).contains("TERM"), "the child was ended while its job ran");
    assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await.0, 200);
    assert_eq!(agent.code().await, Some(3));
    assert!(read(&told).contains("TERM"));
    coordinator.hear("the farewell", leaving).await;
}

#[tokio::test]
async fn a_second_signal_ends_the_child_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let told = dir.path().join("told");
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    let script = format!(
        "trap 'echo INT >> {0}; exit 4' INT; echo up >> {0}; while :; do sleep 0.02; done",
        told.display()
    );
    let mut agent = start(&coordinator, &[], &script).await;
    agent.pool(1).await;
    until("it runs", || read(&told).contains("up")).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    agent.signal(Signal::INT);
    agent.ask_until("/v1/lease", |lease| lease["draining"] == true).await;
    assert!(!read(&told).contains("INT"));
    agent.signal(Signal::INT);
    assert_eq!(agent.code().await, Some(4));
}

/// What ended has ended: the agent says so, also after the drain's deadline.
#[tokio::test]
async fn a_child_that_is_ended_at_the_deadline_is_reported_until_it_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let end = dir.path().join("end");
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    // It takes its time to end.
    let told = dir.path().join("told");
    let script = format!(
        "trap 'while ! [ -e {} ]; do sleep 0.02; done; exit 5' TERM; echo up > {}
        while :; do sleep 0.02; done",
        end.display(),
        told.display()
    );
    let mut agent = start(&coordinator, &["--drain-deadline", "100ms"], &script).await;
    agent.pool(1).await;
    until("it runs", || read(&told).contains("up")).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    let waits = agent.ask("POST", "/v1/drain?wait=true", "").await;
    assert_eq!(waits, (200, json!({"jobs_left": 1})));
    agent.log.line("COMMAND is ended now").await;
    coordinator.forget();
    coordinator.hear_count(0, 1).await;
    assert_eq!(coordinator.count(|message| leaving(message).is_some()), 0);
    std::fs::write(end, "").unwrap();
    let jobs = |message: &AgentMessage| match message {
        AgentMessage::Beat(beat) if beat.drain == DrainPhase::Leaving => Some(beat.jobs),
        _ => None,
    };
    assert_eq!(coordinator.hear("the farewell", jobs).await, Jobs::Running(0));
    assert_eq!(agent.code().await, Some(5));
}

/// While COMMAND does not run, no job of it runs, so the drain has nothing to wait for.
#[tokio::test]
async fn a_drain_ends_at_the_deadline_where_the_child_waits_for_its_start() {
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    let options = ["--restart", "always", "--drain-deadline", "100ms"];
    let mut agent = start(&coordinator, &options, "exit 3").await;
    agent.pool(1).await;
    // The longest wait in which the agent still admits a job: one more exit, and the worker fails.
    agent.log.line(r#""the child restarts","wait":"400ms""#).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    assert_eq!(agent.ask("POST", "/v1/drain", "").await.0, 200);
    assert_eq!(agent.code().await, Some(3));
}

/// A supervisor would report the signal as a failure.
#[tokio::test]
async fn a_drain_that_ends_all_jobs_exits_with_0_where_sigterm_ends_the_child() {
    let coordinator = Coordinator::start().await;
    coordinator.pool(1);
    let mut agent = start(&coordinator, &[], "while :; do sleep 0.02; done").await;
    agent.pool(1).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    agent.signal(Signal::TERM);
    agent.ask_until("/v1/lease", |lease| lease["draining"] == true).await;
    assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await.0, 200);
    assert_eq!(agent.code().await, Some(0));

    // Nobody asked for this.
    let mut agent = start(&coordinator, &[], "kill -TERM $$").await;
    assert_eq!(agent.code().await, Some(143));
}

#[tokio::test]
async fn signals_the_process_group_of_the_child_or_only_the_child_by_option() {
    let dir = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start().await;
    for (name, options) in [("group", &[][..]), ("process", &["--child-signal", "process"][..])] {
        let told = dir.path().join(name);
        let script = format!("sleep 600 & echo $! > {}; wait", told.display());
        let mut agent = start(&coordinator, options, &script).await;
        until("it runs", || read(&told).ends_with('\n')).await;
        let started = read(&told).trim().parse().ok().and_then(Pid::from_raw).unwrap();
        agent.signal(Signal::TERM);
        assert_eq!(agent.code().await, Some(0));
        if name == "group" {
            until("it has ended", || test_kill_process(started).is_err()).await;
        } else {
            test_kill_process(started).expect("it still runs");
            kill_process(started, Signal::KILL).unwrap();
        }
    }
}

#[tokio::test]
async fn kills_a_child_that_ignores_sigterm_only_with_the_option() {
    let coordinator = Coordinator::start().await;
    let dir = tempfile::tempdir().unwrap();
    let deaf = dir.path().join("deaf");
    let script = format!("trap '' TERM; touch {}; while :; do sleep 0.02; done", deaf.display());
    let options = ["--child-grace", "50ms", "--child-kill"];
    let mut agent = start(&coordinator, &options, &script).await;
    until("it ignores SIGTERM", || deaf.exists()).await;
    agent.ask_until("/v1/lease", |lease| lease["connected"] == true).await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.code().await, Some(137));

    std::fs::remove_file(&deaf).unwrap();
    let mut agent = start(&coordinator, &options[..2], &script).await;
    let line = agent.log.line("child started").await;
    until("it ignores SIGTERM", || deaf.exists()).await;
    agent.ask_until("/v1/lease", |lease| lease["connected"] == true).await;
    agent.signal(Signal::TERM);
    agent.log.line("its jobs continue, and the agent waits").await;
    let pid = pid_in(&line);
    assert!(test_kill_process(pid).is_ok(), "the child was killed");
    kill_process(pid, Signal::KILL).unwrap();
    assert_eq!(agent.code().await, Some(137));
}

fn pid_in(line: &str) -> Pid {
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    let pid = line["fields"]["pid"].as_i64().unwrap();
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

#[tokio::test]
async fn a_successor_adopts_the_child_of_a_killed_agent_and_starts_no_second_one() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state").display().to_string();
    let (runs, go) = (dir.path().join("runs"), dir.path().join("go"));
    let coordinator = Coordinator::start().await;
    coordinator.pool(2);
    let script = format!(
        "echo run >> {}; while ! [ -e {} ]; do sleep 0.02; done",
        runs.display(),
        go.display()
    );
    let options = ["--state-dir", &state, "--restart", "never"];
    let mut agent = start(&coordinator, &options, &script).await;
    agent.pool(2).await;
    until("it runs", || read(&runs).lines().count() == 1).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    agent.kill().await;
    let mut successor = start(&coordinator, &options, &script).await;
    successor.log.line("adopts it").await;
    successor.ask_until("/v1/lease", |lease| lease["pool"]["running"] == 1).await;
    assert_eq!(read(&runs).lines().count(), 1, "a second worker was started");
    std::fs::write(&go, "").unwrap();
    assert_eq!(successor.code().await, Some(1), "the exit code of an adopted child is unknown");
}

#[tokio::test]
async fn as_pid_1_it_reaps_orphans_and_handles_signals() {
    let dir = tempfile::tempdir().unwrap();
    let told = dir.path().join("told");
    let coordinator = Coordinator::start().await;
    let Some(mut command) = process_namespace() else { return };
    // The orphan's parent exits at once; then the worker waits until no zombie is left.
    let script = format!(
        "trap 'exit 6' TERM; (sh -c 'echo $$ > {0}.orphan; sleep 0.1' &); \
         while ! [ -s {0}.orphan ]; do sleep 0.02; done; \
         while [ -e /proc/$(cat {0}.orphan) ]; do sleep 0.02; done; \
         cat /proc/1/comm > {0}; while :; do sleep 0.02; done",
        told.display()
    );
    let address = coordinator.address.to_string();
    command.args([AGENT, "run"]);
    command.args(["--coordinator", &address, "--cluster", "ci", "--worker", "w1"]);
    command.args(["--listen", "127.0.0.1:0", "--log-format", "json", "--", "sh", "-c", &script]);
    let mut agent = Agent::run(&mut command).await;
    agent.log.line("running as PID 1").await;
    until("the orphan was waited for", || !read(&told).is_empty()).await;
    assert_eq!(read(&told), "leasehold-agent\n");
    agent.ask_until("/v1/lease", |lease| lease["connected"] == true).await;
    // The agent is the only child of unshare.
    kill_process(agent.children()[0], Signal::TERM).unwrap();
    let status = agent.status().await;
    assert_eq!((status.code(), status.signal()), (Some(6), None));
}
