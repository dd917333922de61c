//! The watchdog of COMMAND and of programs, when it is killed or stopped itself; and an agent that
//! finds a launcher that is stopped.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::coordinator::Coordinator;
use super::process::{AGENT, Agent, read, runs, until};
use super::worker_folder::WorkerFolder;

const BOUND: &str = "--child-kill-on-parent-death";

const WORKER: &str = "echo $$ >> starts; exec sleep 600";

fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).unwrap();
}

/// The watchdogs of an agent.
fn watchdogs(agent: &Agent) -> Vec<Pid> {
    let named = |pid: &Pid| {
        let line = read(format!("/proc/{}/cmdline", pid.as_raw_pid()).as_ref());
        line.starts_with("leasehold-watchdog\0") && runs(*pid)
    };
    agent.children().into_iter().filter(named).collect()
}

/// Waits for a watchdog other than this one, and for its end.
async fn replaced(agent: &Agent, old: Pid) {
    until("another watchdog runs", || watchdogs(agent).iter().any(|pid| *pid != old)).await;
    until("the first one has ended", || !runs(old)).await;
}

/// Kills the agent and not its children, as Agent::kill would.
async fn kill_agent(agent: &mut Agent) {
    kill(agent.pid);
    agent.status().await;
}

#[tokio::test]
async fn replaces_a_stopped_watchdog() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    let mut agent = fixture.agent(&coordinator, &[BOUND], WORKER).await;
    let worker = fixture.until_started(1).await[0];
    let [watchdog] = watchdogs(&agent)[..] else { panic!("one watchdog") };
    kill_process(watchdog, Signal::STOP).unwrap();
    replaced(&agent, watchdog).await;
    assert!(runs(worker), "{}", agent.log.text());
    kill_agent(&mut agent).await;
    until("the new watchdog has killed it", || !runs(worker)).await;
}

#[tokio::test]
async fn a_watchdog_that_is_stopped_while_the_worker_restarts_is_replaced() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    let more = [BOUND, "--restart", "always"];
    let mut agent = fixture.agent(&coordinator, &more, WORKER).await;
    let worker = fixture.until_started(1).await[0];
    let [watchdog] = watchdogs(&agent)[..] else { panic!("one watchdog") };
    kill_process(watchdog, Signal::STOP).unwrap();
    kill(worker);
    let worker = fixture.until_started(2).await[1];
    until("the first watchdog has ended", || !runs(watchdog)).await;
    kill_agent(&mut agent).await;
    until("the new watchdog has killed it", || !runs(worker)).await;
}

#[tokio::test]
async fn replaces_the_watchdog_of_an_adopted_group_without_its_first_process() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    let wrapper = "sleep 600 & echo $$ $! >> starts; wait; true";
    let mut agent = fixture.agent(&coordinator, &[], wrapper).await;
    let [first, worker] = fixture.until_started(2).await[..] else { panic!("two processes") };
    kill_agent(&mut agent).await;
    kill(first);
    until("it has ended", || !runs(first)).await;
    let mut agent = fixture.agent(&coordinator, &[BOUND], wrapper).await;
    agent.log.line("COMMAND starts when this process group is empty").await;
    until("a watchdog runs", || watchdogs(&agent).len() == 1).await;
    let watchdog = watchdogs(&agent)[0];
    kill(watchdog);
    agent.log.line("the agent started another one").await;
    assert!(runs(worker), "{}", agent.log.text());
    kill_agent(&mut agent).await;
    until("the new watchdog has killed it", || !runs(worker)).await;
}

/// The agent is stopped, so that it cannot replace its watchdog in time.
#[tokio::test]
async fn the_worker_ends_with_its_agent_if_the_watchdog_ends_just_before() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    let mut agent = fixture.agent(&coordinator, &[BOUND], WORKER).await;
    let worker = fixture.until_started(1).await[0];
    let [watchdog] = watchdogs(&agent)[..] else { panic!("one watchdog") };
    agent.signal(Signal::STOP);
    kill(watchdog);
    assert!(runs(worker));
    kill_agent(&mut agent).await;
    until("the kernel has killed it", || !runs(worker)).await;
}

#[tokio::test]
async fn starts_programs_although_the_watchdog_was_stopped() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    let script = fixture.script(WORKER);
    let command = ["--adapter", "process", "--", "sh", "-c", &script];
    let agent = Agent::start(&coordinator, &command).await;
    coordinator.grant("cars", "a", true);
    let program = fixture.until_started(1).await[0];
    let [watchdog] = watchdogs(&agent)[..] else { panic!("one watchdog") };
    kill_process(watchdog, Signal::STOP).unwrap();
    coordinator.grant("cars", "b", true);
    fixture.until_started(2).await;
    replaced(&agent, watchdog).await;
    assert!(runs(program), "{}", agent.log.text());
}

/// A launcher of an agent that was killed before it had sent the message, stopped; and the end of
/// its socket, which keeps it from exiting.
fn stopped_launcher(fixture: &WorkerFolder) -> (std::process::Child, Pid, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new(AGENT);
    command.arg0("leasehold-launcher").args(["sh", "-c", "true"]);
    let launcher = command.stdin(Stdio::from(OwnedFd::from(theirs))).process_group(0).spawn();
    let launcher = launcher.unwrap();
    let pid = Pid::from_child(&launcher);
    kill_process(pid, Signal::STOP).unwrap();
    let stat = read(format!("/proc/{}/stat", pid.as_raw_pid()).as_ref());
    let started = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().to_owned();
    let boot = read("/proc/sys/kernel/random/boot_id".as_ref());
    std::fs::create_dir(fixture.path("state")).unwrap();
    let record = format!("{} {started} {boot}", pid.as_raw_pid());
    std::fs::write(fixture.path("state").join("child"), record).unwrap();
    (launcher, pid, ours)
}

#[tokio::test]
async fn an_agent_that_waits_for_a_stopped_launcher_handles_sigterm() {
    for signals in [&[Signal::TERM][..], &[Signal::INT, Signal::INT], &[Signal::QUIT]] {
        let fixture = WorkerFolder::new();
        let coordinator = Coordinator::start().await;
        let (mut launcher, pid, _socket) = stopped_launcher(&fixture);
        let mut agent = fixture.agent(&coordinator, &[], WORKER).await;
        agent.ask_until("/v1/lease", |lease| lease["connected"] == true).await;
        for signal in signals {
            agent.signal(*signal);
        }
        agent.status().await;
        assert_eq!(read(&fixture.path("starts")), "", "a worker was started beside the launcher");
        // It ends as soon as it can.
        kill_process(pid, Signal::CONT).unwrap();
        until("the launcher has ended", || !runs(pid)).await;
        launcher.wait().unwrap();
    }
}

#[tokio::test]
async fn starts_the_worker_once_a_stopped_launcher_has_ended() {
    let fixture = WorkerFolder::new();
    let coordinator = Coordinator::start().await;
    let (mut launcher, pid, socket) = stopped_launcher(&fixture);
    let agent = fixture.agent(&coordinator, &[BOUND], WORKER).await;
    agent.ask_until("/v1/lease", |lease| lease["connected"] == true).await;
    assert_eq!(read(&fixture.path("starts")), "", "a worker was started beside the launcher");
    drop(socket);
    kill_process(pid, Signal::CONT).unwrap();
    until("the launcher has ended", || !runs(pid)).await;
    launcher.wait().unwrap();
    agent.log.line("child started").await;
    assert!(runs(fixture.until_started(1).await[0]), "{}", agent.log.text());
}
