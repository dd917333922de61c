//! Workers that are lost: what becomes of their slots, by the word of who can know, and by time
//! where a manifest accepts that.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tests::answers::{lease, shows};
use tests::process::{Agent, Coordinator, Process, eventually, free_address, get};
use tests::toolbox::{self, Missing};

/// Three slots a worker, of which the first takes all.
fn manifests(more: &str) -> String {
    format!(
        "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\nmetadata: {{name: builds}}\n\
         spec: {{maxJobs: 3, maxJobsPerWorker: 3, lease: {{ttl: 1s}}{more}}}\n"
    )
}

/// A worker that takes three slots at once, writes its process id into a file, and never ends.
fn worker(folder: &Path) -> PathBuf {
    let path = folder.join("worker");
    let text = format!(
        "for job in a b c; do\n\
         until curl -fsS -X PUT \"$LEASEHOLD_ADDR/v1/jobs/$job?wait_ms=5000\"; do sleep 0.1; done\n\
         done\n\
         echo $$ > {}\n\
         exec sleep 3600\n",
        folder.join("pid").display()
    );
    std::fs::write(&path, text).expect("the worker is written");
    path
}

/// An agent with that worker as its child, once its three jobs run; and the child.
fn busy(coordinator: &Coordinator, flags: &[&str]) -> (Agent, Pid) {
    let script = worker(coordinator.folder());
    let script = script.to_str().expect("UTF-8");
    let flags = [flags, &["--", "sh", script]].concat();
    let agent = coordinator.agent("builds", "first", &flags);
    let pid = eventually("three jobs that run", || {
        let text = std::fs::read_to_string(coordinator.folder().join("pid")).ok()?;
        text.trim().parse().ok().and_then(Pid::from_raw)
    });
    (agent, pid)
}

fn pool(api: SocketAddr) -> Option<u64> {
    lease(api)?["pool"]["size"].as_u64()
}

fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).expect("it runs");
    eventually("its end", || test_kill_process(pid).is_err().then_some(()));
}

/// Waits until the coordinator counts the worker as lost.
fn is_lost(coordinator: &Coordinator) {
    let lost = "leasehold_workers{cluster=\"builds\",presence=\"lost\"} 1";
    eventually("the loss to be noticed", || shows(coordinator.http, lost));
}

/// `leasehold-agent leave` for the first worker.
fn leave(coordinator: &Coordinator, more: &[&str]) -> (bool, String) {
    let own = ["--coordinator", &coordinator.grpc.to_string()];
    leave_at(coordinator, &[&own, more].concat())
}

/// The same, where `more` names the coordinator.
fn leave_at(coordinator: &Coordinator, more: &[&str]) -> (bool, String) {
    let mut command = Command::new(toolbox::binary("leasehold-agent"));
    command.arg("leave");
    command.args(["--cluster", "builds", "--worker", "first"]);
    command.arg("--state-dir").arg(coordinator.folder().join("state-first")).args(more);
    let output = command.output().expect("it starts");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// The agent ends its COMMAND at the deadline, so it knows that none of its jobs runs any more.
#[test]
fn slots_come_back_once_the_worker_was_ended_at_its_drains_deadline() {
    let coordinator = Coordinator::start(&[("builds.yaml", &manifests(""))]);
    let (mut agent, worker) = busy(&coordinator, &["--drain-deadline", "500ms"]);
    let second = coordinator.agent("builds", "second", &[]);
    eventually("the second worker", || (pool(second.api)? == 0).then_some(()));
    agent.process.signal(Signal::TERM);
    eventually("three slots for the second worker", || (pool(second.api)? == 3).then_some(()));
    assert!(test_kill_process(worker).is_err(), "it still runs");
    assert_eq!(agent.process.wait().code(), Some(143), "{}", agent.process.log());
}

#[test]
fn slots_of_a_lost_worker_are_reassigned_after_the_time_in_the_manifest() {
    let coordinator = Coordinator::start(&[("c.yaml", &manifests(", lost: {after: 3s}"))]);
    let (mut agent, child) = busy(&coordinator, &[]);
    let second = coordinator.agent("builds", "second", &[]);
    agent.process.kill();
    is_lost(&coordinator);
    assert_eq!(pool(second.api), Some(0), "{}", second.process.log());
    eventually("all slots at the second worker", || (pool(second.api) == Some(3)).then_some(()));
    assert!(coordinator.process.log().contains("spec.lost.after"), "it is said");
    kill(child);
}

#[test]
fn the_leave_command_frees_slots_only_after_the_agents_child_has_ended() {
    let coordinator = Coordinator::start(&[("c.yaml", &manifests(""))]);
    let (mut agent, child) = busy(&coordinator, &[]);
    let second = coordinator.agent("builds", "second", &[]);
    agent.process.kill();
    is_lost(&coordinator);
    let (is_well, said) = leave(&coordinator, &[]);
    assert!(!is_well && said.contains(&child.as_raw_pid().to_string()), "{said}");
    assert_eq!(pool(second.api), Some(0), "it runs on");
    kill(child);
    let (is_well, said) = leave(&coordinator, &[]);
    assert!(is_well, "{said}");
    eventually("all slots at the second worker", || (pool(second.api) == Some(3)).then_some(()));
    // Once more has nothing to do, and the worker may come back with its folder.
    assert!(leave(&coordinator, &[]).0);
}

#[test]
fn leave_requires_the_nothing_runs_flag_for_a_worker_that_no_agent_started() {
    let coordinator = Coordinator::start(&[("c.yaml", &manifests(""))]);
    let mut agent = coordinator.agent("builds", "first", &[]);
    eventually("a slot", || (pool(agent.api)? > 0).then_some(()));
    let job = format!("http://{}/v1/jobs/a", agent.api);
    let put = Command::new("curl").args(["-fsS", "-X", "PUT", &job]).status().expect("curl");
    assert!(put.success());
    agent.process.kill();
    let (is_well, said) = leave(&coordinator, &[]);
    assert!(!is_well && said.contains("--nothing-runs"), "{said}");

    // A coordinator that refuses the report, since its fleet is another, has answered.
    let other = Coordinator::start(&[("c.yaml", &manifests(""))]);
    eventually("the other leader", || {
        get(other.http, "/readyz").filter(|(status, _)| *status == 200)
    });
    let at = other.grpc.to_string();
    let impatient = ["--coordinator", &at, "--timeout", "3s", "--nothing-runs"];
    let (is_well, said) = leave_at(&coordinator, &impatient);
    let refused = format!("{at} refused it: this coordinator is of cell ");
    assert!(!is_well && said.contains(&refused), "{said}");
    assert!(said.contains("builds/first still counts as running: correct that"), "{said}");

    let (is_well, said) = leave(&coordinator, &["--nothing-runs"]);
    assert!(is_well, "{said}");
    let second = coordinator.agent("builds", "second", &[]);
    eventually("all slots at the second worker", || (pool(second.api) == Some(3)).then_some(()));
}

#[test]
fn child_kill_on_parent_death_ends_the_child_with_its_agent() {
    let coordinator = Coordinator::start(&[("c.yaml", &manifests(""))]);
    let (mut agent, child) = busy(&coordinator, &["--child-kill-on-parent-death"]);
    let second = coordinator.agent("builds", "second", &[]);
    agent.process.kill();
    eventually("the child's end", || test_kill_process(child).is_err().then_some(()));
    assert!(leave(&coordinator, &[]).0);
    eventually("all slots at the second worker", || (pool(second.api) == Some(3)).then_some(()));
}

#[test]
fn leave_refuses_while_the_worker_may_read_a_pool_size_from_its_file() {
    let coordinator = Coordinator::start(&[("c.yaml", &manifests(""))]);
    let path = |name: &str| coordinator.folder().join(name).display().to_string();
    let (file, count) = (path("config.yml"), path("count"));
    std::fs::write(&count, "0").expect("the worker's count is written");
    let flags = ["--adapter", "file", "--file-path", &file, "--file-pool", "--file-count", &count];
    let mut agent = coordinator.agent("builds", "first", &flags);
    let read = || std::fs::read_to_string(&file).unwrap_or_default();
    eventually("the size in the file", || read().contains("poolSize: 3").then_some(()));
    // No job runs, but the worker may begin three at any time.
    eventually("that no job is counted", || {
        (lease(agent.api)?["pool"]["running"] == 0).then_some(())
    });
    agent.process.kill();
    let second = coordinator.agent("builds", "second", &[]);
    is_lost(&coordinator);
    let (is_well, said) = leave(&coordinator, &[]);
    assert!(!is_well && said.contains("a pool size of 3"), "{said}");
    assert!(said.contains("--nothing-runs"), "it says what to do: {said}");
    assert_eq!(pool(second.api), Some(0), "the first worker still has all slots");

    // Its agent drains it: the worker reads that it may run nothing.
    let mut agent = coordinator.agent("builds", "first", &flags);
    eventually("its lease", || {
        let lease = lease(agent.api)?;
        (lease["connected"] == true && lease["pool"]["size"].as_u64()? > 0).then_some(())
    });
    agent.process.signal(Signal::TERM);
    assert!(agent.process.wait().success(), "{}", agent.process.log());
    assert!(read().contains("poolSize: 0"), "{}", read());
    eventually("all slots at the second worker", || (pool(second.api) == Some(3)).then_some(()));
    let (is_well, said) = leave(&coordinator, &[]);
    assert!(is_well, "{said}");
}

#[test]
fn leave_refuses_in_another_pid_namespace_than_the_one_of_the_child() {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]);
        command.arg("--kill-child");
        command
    };
    if !unshare().arg("true").status().is_ok_and(|status| status.success()) {
        let why = "this machine forbids PID namespaces";
        return toolbox::leave_out("leave in another PID namespace", why, Missing::Forbidden);
    }
    let coordinator = Coordinator::start(&[("c.yaml", &manifests(""))]);
    let folder = coordinator.folder();
    // The namespace outlives the agent. Ids there are no ids here.
    let mut agent = coordinator.agent_command("builds", "first", free_address());
    // With a cgroup the command would see from here whether the worker runs.
    agent.arg("--child-no-cgroup").arg("--").arg("sh").arg(worker(folder));
    let script = "trap '' TERM; \"$@\"; sleep 3600; true";
    let mut inner = unshare();
    inner.args(["sh", "-c", script, "sh"]).arg(agent.get_program()).args(agent.get_args());
    let namespace = Process::start(&mut inner, &folder.join("first.log"));
    eventually("three jobs that run", || folder.join("pid").exists().then_some(()));
    let of_agent = eventually("the agent", || child_named("leasehold-agent", namespace.id()));
    kill(of_agent);
    is_lost(&coordinator);
    let second = coordinator.agent("builds", "second", &[]);
    eventually("the second worker", || pool(second.api));
    let (is_well, said) = leave(&coordinator, &[]);
    assert!(!is_well && said.contains("another PID namespace"), "{said}");
    assert_eq!(pool(second.api), Some(0), "the first worker still has all slots");
    // A person confirms that the container, and so the worker, has ended.
    drop(namespace);
    let (is_well, said) = leave(&coordinator, &["--nothing-runs"]);
    assert!(is_well, "{said}");
    eventually("all slots at the second worker", || (pool(second.api) == Some(3)).then_some(()));
}

/// A process below `ancestor` that runs this program.
fn child_named(program: &str, ancestor: u32) -> Option<Pid> {
    let path = format!("/proc/{ancestor}/task/{ancestor}/children");
    let children = std::fs::read_to_string(path).ok()?;
    let children = children.split_whitespace().filter_map(|id| id.parse::<u32>().ok());
    children.into_iter().find_map(|id| {
        let name = std::fs::read_link(format!("/proc/{id}/exe")).ok()?;
        if name.file_name().is_some_and(|name| name == program) {
            Pid::from_raw(id.try_into().ok()?)
        } else {
            child_named(program, id)
        }
    })
}
