//! The alerts on agents, each raised by what it is for: a full disk, and no session.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use tests::answers::{lease, metric};
use tests::command_line::ask_for_job;
use tests::process::{Agent, Coordinator, Process, eventually, free_address, put_manifest};
use tests::prometheus::{Prometheus, Target};
use tests::toolbox::{self, Missing};

const CANNOT_WRITE: &str = "LeaseholdAgentCannotWriteItsJournal";
const DISCONNECTED: &str = "LeaseholdAgentDisconnected";

/// Slots for more jobs than the last page of a journal has room for.
const BUILDS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 200, maxJobsPerWorker: 200}
";

/// A cluster that is defined late.
const LATE: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: late}
spec: {maxJobs: 4, maxJobsPerWorker: 2}
";

/// A command that runs its arguments where `folder` is a file system in memory of 36 KiB, which
/// ends with them; `None`, and noted, if this machine forbids it.
fn on_a_small_disk(folder: &Path) -> Option<Command> {
    let user: &[&str] =
        if rustix::process::geteuid().is_root() { &[] } else { &["--user", "--map-root-user"] };
    let unshare = || {
        let mut command = Command::new("unshare");
        let mount = "mount -t tmpfs -o size=36k tmpfs \"$0\" && exec \"$@\"";
        command.args(user).args(["--mount", "sh", "-c", mount]).arg(folder);
        command
    };
    if unshare().arg("true").status().is_ok_and(|status| status.success()) {
        return Some(unshare());
    }
    let why = "this machine forbids mounts in a namespace";
    toolbox::leave_out("the alert of an agent on a full disk", why, Missing::Forbidden);
    None
}

#[test]
fn an_agent_on_a_full_disk_raises_its_alert_until_there_is_room_again() {
    let coordinator = Coordinator::start(&[("builds.yaml", BUILDS)]);
    let state = coordinator.folder().join("state-w-0");
    std::fs::create_dir(&state).expect("a folder for the agent");
    let Some(mut command) = on_a_small_disk(&state) else { return };
    let (api, health) = (free_address(), free_address());
    let agent = coordinator.agent_command("builds", "w-0", api);
    command.arg(agent.get_program()).args(agent.get_args());
    command.args(["--health-listen", &health.to_string()]);
    let log = coordinator.folder().join("w-0.log");
    let agent = Agent { process: Process::start(&mut command, &log), api };
    let targets = [
        Target { pod: "coordinator-0", address: coordinator.http },
        Target { pod: "w-0", address: health },
    ];
    let what = "the alert of an agent on a full disk";
    let Some(prometheus) = Prometheus::start(what, &targets) else { return };
    eventually("its slots", || (lease(agent.api)?["pool"]["size"] == 200).then_some(()));
    eventually("a journal that can be written", || {
        (prometheus.value("leasehold_agent_journal_ok")? == "1").then_some(())
    });
    assert_eq!(prometheus.firing(CANNOT_WRITE), None);

    // The disk is mounted where the agent runs only.
    let disk = format!("/proc/{}/root{}", agent.process.id(), state.display());
    let filler = Path::new(&disk).join("filler");
    let filled = std::fs::write(&filler, vec![b'x'; 64 * 1024]);
    assert!(filled.is_err(), "the disk is not full");
    // The last page of the journal has room for some records.
    let mut answers = (0..200).map(|job| ask_for_job(&agent, &format!("job-{job}")));
    let refused = answers.find(|(status, _)| *status != 200).expect("a job that does not begin");
    assert!(refused.0 == 503 && refused.1.contains("\"journal\""), "{refused:?}");

    let alert = eventually("the alert of the journal", || prometheus.firing(CANNOT_WRITE));
    assert_eq!(alert["labels"]["pod"], "w-0", "{alert}");
    let summary = "The agent of leasehold-system/w-0 cannot write its journal.";
    assert_eq!(alert["annotations"]["summary"], summary);

    std::fs::remove_file(&filler).expect("there is room again");
    eventually("the end of the alert", || prometheus.firing(CANNOT_WRITE).is_none().then_some(()));
}

#[test]
fn an_agent_without_a_session_raises_its_alert_only_while_a_coordinator_leads() {
    let coordinator = Coordinator::start(&[("builds.yaml", BUILDS)]);
    let [welcomed, refused] = [free_address(), free_address()];
    let start = |cluster: &str, worker: &str, health: SocketAddr| {
        coordinator.agent(cluster, worker, &["--health-listen", &health.to_string()])
    };
    let _agents = [
        start("builds", "w-0", welcomed),
        // No manifest defines its cluster, so that no coordinator welcomes it.
        start("late", "w-1", refused),
    ];
    let is_connected = || (metric(welcomed, "leasehold_agent_connected")? == 1.0).then_some(());
    eventually("the session of the first agent", is_connected);
    let targets = [
        Target { pod: "coordinator-0", address: coordinator.http },
        Target { pod: "w-0", address: welcomed },
        Target { pod: "w-1", address: refused },
    ];
    let what = "the alert of an agent without a session";
    let Some(prometheus) = Prometheus::start(what, &targets) else { return };
    let alert = eventually("the alert of the session", || prometheus.firing(DISCONNECTED));
    assert_eq!(alert["labels"]["pod"], "w-1", "{alert}");
    let summary = "The agent of leasehold-system/w-1 is not connected to the leader.";
    assert_eq!(alert["annotations"]["summary"], summary);

    put_manifest(coordinator.folder(), "late.yaml", LATE);
    eventually("the end of the alert", || prometheus.firing(DISCONNECTED).is_none().then_some(()));

    // Without a leader no agent has a session, and no agent is at fault.
    coordinator.process.signal(Signal::KILL);
    eventually("two agents without a session", || {
        let agents = prometheus.query("leasehold_agent_connected == 0").ok()?;
        (agents.len() == 2).then_some(())
    });
    eventually("the alert of the leader", || prometheus.firing("LeaseholdHasNoLeader"));
    eventually("no alert of agents", || prometheus.firing(DISCONNECTED).is_none().then_some(()));
}
