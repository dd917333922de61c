//! A worker behind a wrapper that does not exec: what COMMAND has started and stayed in its process
//! group is the worker, also after COMMAND's first process has exited.

use std::path::PathBuf;

use leasehold_types::message::{AgentMessage, DrainPhase, Jobs};
use rustix::process::{Pid, Signal, getpgid, kill_process};

use super::coordinator::Coordinator;
use super::process::{Agent, fail, left_out, read, runs, until};
use super::worker_folder::{ALONE, WorkerFolder};

/// The log's word for a worker whose wrapper has exited.
const WAITS: &str = "a process that it started still runs";
/// A wrapper whose worker runs until it is killed.
const FOREVER: &str = "sleep 600";
/// A worker that leaves the process group of its wrapper.
const LEAVES: &str = "setsid sleep 600";

impl WorkerFolder {
    /// An agent whose COMMAND is a shell that runs `worker` and waits for it.
    async fn wrapped(&self, coordinator: &Coordinator, more: &[&str], worker: &str) -> Agent {
        let script = format!("{ALONE}; {worker} & echo $$ $! >> starts; wait; true");
        self.agent(coordinator, more, &script).await
    }

    /// Waits for a start, and returns the wrapper and its worker.
    async fn pair(&self, times: usize) -> (Pid, Pid) {
        let all = self.until_started(2 * times).await;
        (all[2 * times - 2], all[2 * times - 1])
    }

    fn pairs(&self) -> usize {
        self.started().len() / 2
    }

    /// `leasehold-agent leave` with this folder; returns its exit code and stderr.
    async fn leave(&self, coordinator: &Coordinator) -> (Option<i32>, String) {
        let (address, state) = (coordinator.address.to_string(), self.path("state"));
        let who = ["--cluster", "ci", "--worker", "w1", "--state-dir", state.to_str().unwrap()];
        fail(&[&["leave", "--coordinator", &address], &who[..]].concat()).await
    }
}

fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).unwrap();
}

/// Whether a message reports that no job runs, or that the worker leaves.
fn freed(message: &AgentMessage) -> bool {
    match message {
        AgentMessage::Beat(beat) => {
            beat.jobs == Jobs::Running(0) || beat.drain == DrainPhase::Leaving
        }
        _ => false,
    }
}

/// An agent whose worker runs one job and has lost its wrapper.
async fn without_wrapper(
    fixture: &WorkerFolder,
    coordinator: &Coordinator,
    more: &[&str],
) -> (Agent, Pid) {
    let (agent, wrapper, worker) = with_job(fixture, coordinator, more, FOREVER).await;
    kill(wrapper);
    agent.log.line(WAITS).await;
    (agent, worker)
}

/// The same with a worker that has left the process group; none where no cgroup can be made here.
async fn left_by_wrapper(
    fixture: &WorkerFolder,
    coordinator: &Coordinator,
    more: &[&str],
) -> Option<(Agent, Pid)> {
    let (agent, wrapper, worker) = with_job(fixture, coordinator, more, LEAVES).await;
    let started = agent.log.line("child started").await;
    until("it has left the group", || getpgid(Some(worker)) == Ok(worker)).await;
    kill(wrapper);
    if !started.contains("cgroup") {
        left_out("tests of the worker's cgroup", "no cgroup of version 2 can be made here");
        return None;
    }
    agent.log.line(WAITS).await;
    Some((agent, worker))
}

/// An agent whose worker runs one job, its wrapper, and its worker.
async fn with_job(
    fixture: &WorkerFolder,
    coordinator: &Coordinator,
    more: &[&str],
    worker: &str,
) -> (Agent, Pid, Pid) {
    coordinator.pool(2);
    let agent = fixture.wrapped(coordinator, more, worker).await;
    let (wrapper, worker) = fixture.pair(1).await;
    agent.pool(2).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/a", "").await.0, 200);
    coordinator.hear_count(2, 1).await;
    coordinator.forget();
    (agent, wrapper, worker)
}

/// A drain ends the worker when its job has ended, and the agent after it.
async fn ends_by_a_drain(mut agent: Agent, worker: Pid) {
    agent.signal(Signal::TERM);
    agent.ask_until("/v1/lease", |lease| lease["draining"] == true).await;
    assert!(runs(worker), "it was ended while its job ran");
    assert_eq!(agent.ask("DELETE", "/v1/jobs/a", "").await.0, 200);
    assert_eq!(agent.code().await, Some(137), "the exit code of the first process");
    assert!(!runs(worker), "the agent has exited before its worker");
}

/// The watchdog ends the worker of an agent that is killed.
async fn ends_with_its_agent(mut agent: Agent, worker: Pid) {
    kill(agent.pid);
    agent.status().await;
    until("the watchdog has killed it", || !runs(worker)).await;
}

#[tokio::test]
async fn a_worker_restarts_only_when_its_process_group_is_empty() {
    for more in [&["--restart", "always"][..], &["--restart", "on-failure"]] {
        for dies_with_agent in [&[][..], &["--child-kill-on-parent-death"]] {
            let fixture = WorkerFolder::new();
            let coordinator = Coordinator::start().await;
            let more = [more, dies_with_agent].concat();
            let (agent, worker) = without_wrapper(&fixture, &coordinator, &more).await;
            let (_, lease) = agent.ask("GET", "/v1/lease", "").await;
            assert_eq!(lease["pool"]["running"], 1, "{lease}");
            // The worker takes further jobs, and ends them.
            assert_eq!(agent.ask("PUT", "/v1/jobs/b", "").await.0, 200);
            coordinator.hear_count(2, 2).await;
            assert_eq!(coordinator.count(freed), 0, "its slots were freed while it ran");
            assert_eq!(fixture.pairs(), 1);
            kill(worker);
            fixture.pair(2).await;
            coordinator.hear_count(2, 0).await;
            assert!(fixture.ran_alone(), "{}", agent.log.text());
        }
    }
}

#[tokio::test]
async fn an_agent_leaves_only_when_the_process_group_is_empty() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    let (mut agent, worker) = without_wrapper(&fixture, &coordinator, &[]).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/b", "").await.0, 200);
    coordinator.hear_count(2, 2).await;
    assert_eq!(coordinator.count(freed), 0, "its slots were freed while it ran");
    kill(worker);
    assert_eq!(agent.code().await, Some(137), "the exit code of the first process");
    until("it has left", || coordinator.count(freed) > 0).await;
}

#[tokio::test]
async fn the_leave_command_refuses_while_the_process_group_is_not_empty() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    let (mut agent, worker) = without_wrapper(&fixture, &coordinator, &[]).await;
    agent.kill().await;
    let (code, said) = fixture.leave(&coordinator).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("still runs: stop it first"), "{said}");
    kill(worker);
    until("it has ended", || !runs(worker)).await;
    // None where no cgroup can be made here.
    let cgroup = read(&fixture.path("state/child-cgroup"));
    let (code, said) = fixture.leave(&coordinator).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(cgroup.is_empty() || !PathBuf::from(cgroup.trim()).exists(), "{cgroup} is left");
}

#[tokio::test]
async fn a_successor_adopts_the_process_group_and_keeps_it_when_its_wrapper_exits_later() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    let more = ["--restart", "always"];
    let (mut agent, worker) = without_wrapper(&fixture, &coordinator, &more).await;
    agent.kill().await;
    let mut agent = fixture.wrapped(&coordinator, &more, FOREVER).await;
    agent.log.line("COMMAND starts when this process group is empty").await;
    agent.ask_until("/v1/lease", |lease| lease["pool"]["running"] == 1).await;
    assert!(runs(worker) && fixture.pairs() == 1);
    kill(worker);
    let (wrapper, worker) = fixture.pair(2).await;
    coordinator.hear_count(2, 0).await;

    // This wrapper runs when its agent is killed, and exits afterwards.
    agent.kill().await;
    let agent = fixture.wrapped(&coordinator, &more, FOREVER).await;
    agent.log.line("adopts it").await;
    agent.pool(2).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/b", "").await.0, 200);
    coordinator.hear_count(2, 1).await;
    coordinator.forget();
    kill(wrapper);
    agent.log.line(WAITS).await;
    assert_eq!(agent.ask("PUT", "/v1/jobs/c", "").await.0, 200);
    coordinator.hear_count(2, 2).await;
    assert_eq!(coordinator.count(freed), 0, "its slots were freed while it ran");
    kill(worker);
    fixture.pair(3).await;
    assert!(fixture.ran_alone(), "{}", agent.log.text());
}

#[tokio::test]
async fn the_watchdog_kills_the_process_group_also_without_its_first_process() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    let more = ["--child-kill-on-parent-death", "--restart", "always"];
    let (agent, worker) = without_wrapper(&fixture, &coordinator, &more).await;
    ends_with_its_agent(agent, worker).await;
    assert_eq!(fixture.pairs(), 1);
}

#[tokio::test]
async fn a_drain_ends_the_process_group_also_without_its_first_process() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    let (agent, worker) = without_wrapper(&fixture, &coordinator, &[]).await;
    ends_by_a_drain(agent, worker).await;
}

#[tokio::test]
async fn a_worker_that_leaves_the_process_group_is_still_the_worker() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    let more = ["--restart", "always"];
    let Some((mut agent, worker)) = left_by_wrapper(&fixture, &coordinator, &more).await else {
        return;
    };
    assert_eq!(agent.ask("PUT", "/v1/jobs/b", "").await.0, 200);
    coordinator.hear_count(2, 2).await;
    assert_eq!(coordinator.count(freed), 0, "its slots were freed while it ran");
    agent.kill().await;
    let (code, said) = fixture.leave(&coordinator).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("still runs: stop it first"), "{said}");

    let agent = fixture.wrapped(&coordinator, &more, LEAVES).await;
    agent.log.line("COMMAND starts when this process group is empty").await;
    assert!(runs(worker) && fixture.pairs() == 1);
    kill(worker);
    fixture.pair(2).await;
    coordinator.hear_count(2, 0).await;
    assert!(fixture.ran_alone(), "{}", agent.log.text());
}

#[tokio::test]
async fn a_drain_ends_a_worker_that_has_left_the_process_group() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    let Some((agent, worker)) = left_by_wrapper(&fixture, &coordinator, &[]).await else {
        return;
    };
    ends_by_a_drain(agent, worker).await;
}

#[tokio::test]
async fn the_watchdog_kills_a_worker_that_has_left_the_process_group() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    let more = ["--child-kill-on-parent-death"];
    let Some((agent, worker)) = left_by_wrapper(&fixture, &coordinator, &more).await else {
        return;
    };
    ends_with_its_agent(agent, worker).await;
}

/// A build daemon, for instance, which the next worker uses as well.
#[tokio::test]
async fn without_a_cgroup_what_leaves_the_process_group_is_left_alone() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    let more = ["--child-no-cgroup"];
    let (mut agent, wrapper, worker) = with_job(&fixture, &coordinator, &more, LEAVES).await;
    until("it has left the group", || getpgid(Some(worker)) == Ok(worker)).await;
    kill(wrapper);
    assert_eq!(agent.code().await, Some(137), "{}", agent.log.text());
    assert!(runs(worker));
}

/// The wrapper exits on SIGTERM and its worker does not: the worker may still run jobs.
#[tokio::test]
async fn waits_for_what_ignores_sigterm_and_kills_it_only_with_the_option() {
    let coordinator = Coordinator::start().await;
    let deaf = "(trap '' TERM; touch deaf; exec sleep 600)";
    for kills in [true, false] {
        let fixture = WorkerFolder::new();
        let option: &[&str] = if kills { &["--child-kill"] } else { &[] };
        let more = [&["--child-grace", "50ms"], option].concat();
        let mut agent = fixture.wrapped(&coordinator, &more, deaf).await;
        let (_, worker) = fixture.pair(1).await;
        until("it ignores SIGTERM", || fixture.path("deaf").exists()).await;
        agent.ask_until("/v1/lease", |lease| lease["connected"] == true).await;
        agent.signal(Signal::TERM);
        if !kills {
            agent.log.line("its jobs continue, and the agent waits").await;
            assert!(runs(worker), "it was killed");
            kill(worker);
        }
        assert_eq!(agent.code().await, Some(0));
        assert!(!runs(worker), "the agent has exited before its worker");
    }
}

/// With `--child-signal process` the rest of the group is not the agent's to end: it leaves after
/// its drain, and the rest stays recorded.
#[tokio::test]
async fn what_a_drained_agent_leaves_running_stays_recorded() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    let more = ["--child-signal", "process"];
    let mut agent = fixture.wrapped(&coordinator, &more, FOREVER).await;
    let (_, worker) = fixture.pair(1).await;
    agent.ask_until("/v1/lease", |lease| lease["connected"] == true).await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.code().await, Some(0));
    assert!(runs(worker));
    let (code, said) = fixture.leave(&coordinator).await;
    assert!(code == Some(1) && said.contains("still runs: stop it first"), "{said}");
    let agent = fixture.wrapped(&coordinator, &more, FOREVER).await;
    agent.log.line("COMMAND starts when this process group is empty").await;
    assert!(runs(worker) && fixture.pairs() == 1, "{}", agent.log.text());
}

/// The kernel shows such a process as a zombie, although its other threads work.
#[tokio::test]
async fn a_worker_whose_main_thread_has_ended_runs() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    let program = fixture.path("worker.py");
    let text = "import ctypes, os, threading, time\n\
                def work():\n    \
                    stat = f'/proc/{os.getpid()}/stat'\n    \
                    while ') Z ' not in open(stat).read(): time.sleep(0.02)\n    \
                    open('threads', 'w').write('up')\n    \
                    time.sleep(600)\n\
                threading.Thread(target=work).start()\n\
                ctypes.CDLL(None).pthread_exit(None)\n";
    std::fs::write(&program, text).unwrap();
    let more = ["--restart", "always"];
    let mut agent = fixture.wrapped(&coordinator, &more, "exec python3 worker.py").await;
    let (wrapper, worker) = fixture.pair(1).await;
    until("its main thread has ended", || fixture.path("threads").exists()).await;
    agent.kill().await;
    kill(wrapper);
    until("it has ended", || !runs(wrapper)).await;
    let agent = fixture.wrapped(&coordinator, &more, FOREVER).await;
    agent.log.line("COMMAND starts when this process group is empty").await;
    assert_eq!(fixture.pairs(), 1);
    kill(worker);
    fixture.pair(2).await;
    assert!(fixture.ran_alone(), "{}", agent.log.text());
}

/// The signal that announces a change killed the wrapper, so no further one reaches the worker.
#[tokio::test]
async fn releases_no_stream_whose_end_it_cannot_announce_to_the_worker() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    let path = fixture.path("config.yml").display().to_string();
    let adapter = ["--adapter", "file", "--file-path", &path, "--file-settle", "10ms"];
    let more = [&adapter[..], &["--file-signal", "USR1"]].concat();
    let agent = fixture.wrapped(&coordinator, &more, FOREVER).await;
    let (_, worker) = fixture.pair(1).await;
    let token = coordinator.grant("cars", "a", true);
    agent.log.line(WAITS).await;
    coordinator.revoke("cars", "a");
    agent.log.line("a signal for COMMAND reaches no process").await;
    let (status, why) = agent.text("GET", "/readyz", "").await;
    assert!(status == 503 && why.contains("its first one has exited"), "{status} {why}");
    assert_eq!(agent.metric("leasehold_agent_file_ok").await, "0");
    let released = |message: &AgentMessage| match message {
        AgentMessage::Beat(beat) => beat.released.iter().any(|release| release.token == token),
        _ => false,
    };
    assert!(coordinator.count(released) == 0 && runs(worker), "{}", agent.log.text());
}
