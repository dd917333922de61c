//! Changes of leader: one that hangs is replaced and does no harm when it wakes, and where the
//! folder of epochs is lost, one command brings the agents back.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use leasehold_agent::leader_watch::{Connect, Connection, LeaderWatch, Successor, WelcomedLink};
use leasehold_types::{Epoch, LinkNumber, WorkerKey};
use rustix::process::Signal;
use serde_json::Value;
use tests::answers::{lease, metric, shows};
use tests::command_line::CommandLine;
use tests::process::{
    Agent, Coordinator, HANG, Process, Replica, eventually, free_address, get, throughout,
};
use tests::slow_disk::SlowDisk;
use tests::toolbox;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::transport::Endpoint;

/// The epoch in the documented command.
const NAMED_EPOCH: &str = "1764230400482913";

const MANIFESTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 4, maxJobsPerWorker: 2, lease: {ttl: 10s}}
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {name: cars}
spec:
  cluster: builds
  streams: [{name: 'cars:new'}, {name: 'cars:updated'}, {name: 'cars:sold'}, {name: 'cars:old'}]
";

/// A leader, a standby and two agents that know both.
struct Fleet {
    first: Coordinator,
    /// The epoch of the first leader.
    begun: u64,
    second: Replica,
    agents: [Agent; 2],
}

impl Fleet {
    fn start() -> Self {
        let first = Coordinator::start(&[("cars.yaml", MANIFESTS)]);
        let begun = first_epoch(first.http);
        let second = first.standby();
        let addresses = second.grpc.to_string();
        let agents = ["w-0", "w-1"]
            .map(|worker| first.agent("builds", worker, &["--coordinator", &addresses]));
        Self { first, begun, second, agents }
    }
}

#[test]
fn a_paused_leader_is_replaced_and_cannot_grant_after_it_resumes() {
    let Fleet { first, begun, second, agents } = Fleet::start();
    let before = eventually("all streams owned", || {
        let leases = agents.each_ref().map(|agent| lease(agent.api));
        // The first agent may have had all of them before the second came.
        let balanced = leases.iter().flatten().filter(|lease| streams(lease).len() == 2);
        (balanced.count() == 2)
            .then(|| leases.map(|lease| tokens(&lease.expect("an owner answers"))))
    });

    first.process.signal(Signal::STOP);
    eventually("a second leader", || leads(second.http, begun + 1));
    let after = eventually("agents at the second leader", || {
        Some([served(&agents[0], begun + 1)?, served(&agents[1], begun + 1)?])
    });
    assert_eq!(after.each_ref().map(tokens), before, "streams, pools and their tokens");

    first.process.signal(Signal::CONT);
    eventually("the first to notice that it no longer leads", || {
        shows(first.http, "leasehold_leader 0")
    });
    for (agent, after) in agents.iter().zip(&after) {
        let now = lease(agent.api).expect("the agent answers");
        assert_eq!(now["version"], after["version"], "{after} became {now}");
        assert_eq!(now["connected"], true, "{now}");
    }
    assert!(leads(second.http, begun + 1).is_some(), "the second still leads");
}

/// Its agents would ping the leader that hangs for seconds more. The standby says who leads now.
#[test]
fn agents_leave_a_leader_that_hangs_as_soon_as_there_is_another() {
    let Fleet { first, begun, second, agents } = Fleet::start();
    eventually("both agents to follow who leads", || {
        shows(second.http, "leasehold_leader_watches 2")
    });
    assert!(shows(first.http, "leasehold_leader_watches 0").is_some(), "a leader has sessions");

    first.process.signal(Signal::STOP);
    eventually("agents at the second leader", || {
        Some([served(&agents[0], begun + 1)?, served(&agents[1], begun + 1)?])
    });
    let told = format!("another replica leads now leader=\"{}\"", second.grpc);
    for agent in &agents {
        let log = agent.process.log();
        assert!(log.contains(&told) && !log.contains("keep-alive timed out"), "{log}");
    }
    assert!(shows(second.http, "leasehold_leader_watches 0").is_some(), "they have sessions now");
}

/// An agent may reach a standby so late that its leader already has a successor.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_leaves_its_leader_if_the_first_answer_names_the_successor() {
    let first = Coordinator::start(&[("cars.yaml", MANIFESTS)]);
    let begun = first_epoch(first.http);
    let second = first.standby();
    eventually("the standby", || get(second.http, "/readyz").filter(|(status, _)| *status == 200));
    first.process.signal(Signal::STOP);
    eventually("a second leader", || leads(second.http, begun + 1));
    let addresses = [free_address(), free_address()];
    let third = Replica::start_at(first.folder(), "third", addresses, &[]);

    let worker = WorkerKey {
        cluster: "builds".parse().expect("a cluster's name"),
        worker: "w-0".parse().expect("a worker's name"),
    };
    let coordinators = vec![third.grpc.to_string()];
    let (watch, mut successors) = LeaderWatch::start(worker, coordinators, PlainText);
    let link = |number, leader: SocketAddr, epoch| WelcomedLink {
        number: LinkNumber(number),
        address: leader.to_string(),
        epoch: Epoch(epoch),
        cell: None,
    };
    watch.set_welcomed(link(1, first.grpc, begun));
    assert_eq!(next(&mut successors).await, (1, second.grpc.to_string(), begun + 1));

    // On a link to the second leader, only a later one is a successor.
    watch.set_welcomed(link(2, second.grpc, begun + 1));
    eventually("the agent to follow", || shows(third.http, "leasehold_leader_watches 1"));
    second.process.signal(Signal::STOP);
    assert_eq!(next(&mut successors).await, (2, third.grpc.to_string(), begun + 2));
}

/// The order is answered once the next leader knows, too, that the worker is gone, however slow the
/// leader's disk is.
#[test]
fn a_worker_that_was_declared_gone_is_gone_under_the_next_leader() {
    let first = Coordinator::start(&[("cars.yaml", MANIFESTS)]);
    let begun = first_epoch(first.http);
    let setting = first.folder().join("slow-ms");
    std::fs::write(&setting, "0  ").expect("a setting");
    let slow_disk = SlowDisk::build(first.folder()).expect("a C compiler");
    let [grpc, http] = [free_address(), free_address()];
    let mut command = Replica::command(first.folder(), [grpc, http]);
    slow_disk.attach(&mut command, &setting);
    let mut slow = Process::start(&mut command, &first.folder().join("slow.log"));
    eventually("the slow replica", || get(http, "/readyz").filter(|(status, _)| *status == 200));
    first.process.signal(Signal::KILL);
    eventually("the slow leader", || leads(http, begun + 1));
    let addresses = ["--coordinator", &grpc.to_string()];
    let mut agent = first.agent("builds", "w-0", &addresses);
    eventually("service", || served(&agent, begun + 1));
    agent.process.kill();

    let third = first.standby();
    eventually("the standby", || get(third.http, "/readyz").filter(|(status, _)| *status == 200));
    std::fs::write(&setting, "150").expect("a setting");
    let leasehold = CommandLine(&first);
    let answer = leasehold.try_line(&format!("gone w-0 --yes --coordinator {grpc}"));
    slow.kill();
    let answer = answer.expect("the order is taken");
    assert!(answer.contains("w-0 is gone: 2 slots"), "{answer}");
    eventually("the third leader", || leads(third.http, begun + 2));
    let workers = leasehold.line(&format!("workers --coordinator {}", third.grpc));
    assert_eq!(workers, "No workers.\n");
}

/// A leader that hangs hears no goodbye. The agent stays beside its worker, so it says goodbye to
/// the next leader, which gives the worker's slots to another one.
#[test]
fn a_drained_sidecar_tells_the_next_leader_that_its_worker_has_left() {
    let manifest = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 2, maxJobsPerWorker: 2, lease: {ttl: 10s}}
";
    let first = Coordinator::start(&[("builds.yaml", manifest)]);
    let begun = first_epoch(first.http);
    let second = first.standby();
    let addresses = ["--sidecar", "--coordinator", &second.grpc.to_string()];
    let leaver = first.agent("builds", "w-0", &addresses);
    let size = |agent: &Agent| lease(agent.api).and_then(|lease| lease["pool"]["size"].as_u64());
    eventually("all slots at the first", || (size(&leaver)? == 2).then_some(()));
    let other = first.agent("builds", "w-1", &addresses);
    eventually("service for the second", || served(&other, begun));

    first.process.signal(Signal::STOP);
    leaver.drain();
    eventually("the next leader", || leads(second.http, begun + 1));
    eventually("the slots at the other worker", || (size(&other)? == 2).then_some(()));
    // The one that hangs is asked first.
    let both = format!("workers --coordinator {},{}", first.grpc, second.grpc);
    let workers = CommandLine(&first).line(&both);
    assert!(workers.contains("w-1") && !workers.contains("w-0"), "{workers}");
}

/// A copy of the state folder is put back, and the leader counts from there. What an agent says
/// ends no term: a person raises the number.
#[test]
fn agents_reconnect_after_a_copy_of_the_state_folder_with_the_documented_command() {
    let mut first = Coordinator::start(&[("cars.yaml", MANIFESTS)]);
    let begun = first_epoch(first.http);
    let addresses = [free_address(), free_address()];
    let agent = first.agent("builds", "w-0", &["--coordinator", &addresses[0].to_string()]);
    eventually("a leader's service", || served(&agent, begun));
    first.process.kill();
    let [state, copy] = ["state", "copy"].map(|name| first.folder().join(name));
    let copied = Command::new("cp").arg("-r").args([&state, &copy]).status().expect("cp starts");
    assert!(copied.success());
    for (name, epoch) in [("second", begun + 1), ("third", begun + 2)] {
        let mut next = Replica::start_at(first.folder(), name, addresses, &[]);
        eventually("the next leader's service", || served(&agent, epoch));
        next.process.kill();
    }
    std::fs::remove_dir_all(&state).expect("it is removed");
    std::fs::rename(&copy, &state).expect("the copy is put back");

    let last = Replica::start_at(first.folder(), "last", addresses, &[]);
    eventually("a leader that names the agent", || {
        let log = last.process.log();
        let named = |line: &&str| line.contains("reports a later epoch") && line.contains("w-0");
        log.lines().find(named).map(|_| ())
    });
    leads(last.http, begun + 1).expect("a word of an agent ends no term");
    let operations = std::fs::read_to_string(toolbox::root().join("docs/OPERATIONS.md"));
    let operations = operations.expect("a document");
    let mut code = operations.split('`').filter(|code| code.starts_with("touch STATE/"));
    let command = code.next().expect("the command");
    assert!(command.contains(NAMED_EPOCH), "{command}");
    let command = command.replace("STATE", state.to_str().expect("UTF-8"));
    let command = command.replace(NAMED_EPOCH, &(begun + 2).to_string());
    let status = Command::new("sh").args(["-c", &command]).status().expect("sh starts");
    assert!(status.success(), "{command}");
    eventually("service in the term above it", || served(&agent, begun + 3));
    leads(last.http, begun + 3).expect("the term above it");
}

#[test]
fn coordinators_notice_a_deleted_state_folder_and_never_repeat_a_token() {
    // Leases that last longer than the test looks.
    let manifests = MANIFESTS.replace("ttl: 10s", "ttl: 5m");
    let first = Coordinator::start(&[("cars.yaml", &manifests)]);
    let begun = first_epoch(first.http);
    let second = first.standby();
    let addresses = second.grpc.to_string();
    let agent = first.agent("builds", "w-0", &["--coordinator", &addresses]);
    let before = eventually("all streams", || {
        let held = streams(&lease(agent.api)?);
        (held.len() == 4).then_some(held)
    });
    // In one step: the leader writes to the folder, and what it adds while the content is deleted
    // would keep the folder.
    let deleted = first.folder().join("deleted");
    std::fs::rename(first.folder().join("state"), &deleted).expect("it is moved away");
    std::fs::remove_dir_all(&deleted).expect("it is deleted");
    for (process, http) in [(&first.process, first.http), (&second.process, second.http)] {
        let (status, why) = eventually("a replica that says so", || {
            get(http, "/readyz").filter(|(status, _)| *status != 200)
        });
        assert_eq!(status, 503);
        assert!(why.contains("was deleted") && why.contains("restart every coordinator"), "{why}");
        let log = process.log();
        let errors = log.lines().filter(|line| line.contains("ERROR") && line.contains("deleted"));
        assert_eq!(errors.count(), 1, "{log}");
        assert_eq!(get(http, "/livez").expect("it answers").0, 200);
    }
    let grants = |http| {
        let (_, metrics) = get(http, "/metrics").expect("it answers");
        let lines = metrics.lines().filter(|line| line.starts_with("leasehold_grants_total"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let granted = grants(first.http);
    // What a leader would grant this one at once.
    let other = first.agent("builds", "w-1", &["--coordinator", &addresses]);
    // Over this whole span no replica leads and nothing is granted.
    throughout(Duration::from_secs(4), || {
        for http in [first.http, second.http] {
            let (_, metrics) = get(http, "/metrics").expect("it answers");
            assert!(metrics.contains("leasehold_leader 0"), "no replica leads");
        }
        let connected = lease(other.api).is_some_and(|lease| lease["connected"] == true);
        assert!(!connected, "{}", other.process.log());
    });
    assert_eq!(grants(first.http), granted);
    assert_eq!(streams(&lease(agent.api).expect("it answers")), before, "its leases last");

    // What heals it: every coordinator is started again. The next term is above the one that was
    // led, by what the last leader left behind, and so is every token.
    let folder = first.folder().to_owned();
    let ports = [[first.grpc, first.http], [second.grpc, second.http]];
    for process in [&first.process, &second.process] {
        process.signal(Signal::TERM);
    }
    let (mut first, mut second) = (first, second);
    first.process.wait();
    second.process.wait();
    let name = |ports: [SocketAddr; 2]| ports[0].port().to_string();
    let again = ports.map(|ports| Replica::start_at(&folder, &name(ports), ports, &[]));
    eventually("a leader of the next epoch", || {
        again.iter().find_map(|replica| leads(replica.http, begun + 1))
    });
    let after = eventually("the agents at the new leader", || {
        Some([served(&agent, begun + 1)?, served(&other, begun + 1)?])
    });
    for held in after.iter().flat_map(streams) {
        assert!(
            before.contains(&held) || held.1.starts_with(&format!("{}.", begun + 1)),
            "{held:?}"
        );
    }
    for replica in &again {
        assert_eq!(get(replica.http, "/readyz").expect("it answers").0, 200);
    }
}

/// Connects without TLS and without a token.
struct PlainText;

impl Connect for PlainText {
    async fn connect(&self, address: &str) -> anyhow::Result<Connection> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
        Ok(Connection { channel, authorization: None })
    }
}

/// The next successor: the number of the link that it is over, its address and its epoch.
async fn next(successors: &mut mpsc::Receiver<Successor>) -> (u64, String, u64) {
    let successor = timeout(HANG, successors.recv()).await.expect("a successor in time");
    let Successor { over, leader, epoch } = successor.expect("the agent follows");
    (over.0, leader, epoch.0)
}

/// Waits until the replica leads the first epoch of its state folder; returns that.
fn first_epoch(http: SocketAddr) -> u64 {
    eventually("the first leader", || {
        let epoch = metric(http, "leasehold_epoch")? as u64;
        leads(http, epoch).map(|()| epoch)
    })
}

/// Whether the replica leads this epoch.
fn leads(http: SocketAddr, epoch: u64) -> Option<()> {
    let (_, metrics) = get(http, "/metrics")?;
    let wanted = ["leasehold_leader 1".to_owned(), format!("leasehold_epoch {epoch}")];
    wanted.iter().all(|line| metrics.lines().any(|sample| sample == line)).then_some(())
}

/// The lease of an agent that the leader of this epoch serves.
fn served(agent: &Agent, epoch: u64) -> Option<Value> {
    shows(agent.api, &format!("leasehold_agent_epoch {epoch}"))?;
    lease(agent.api).filter(|lease| lease["connected"] == true)
}

/// What it holds, with the tokens: its streams, and its pool.
fn tokens(lease: &Value) -> Vec<(String, String)> {
    let token = lease["pool"]["token"].as_str().unwrap_or_default().to_owned();
    let mut all = streams(lease);
    all.push(("the pool".to_owned(), token));
    all
}

/// Streams that are held, with their tokens.
fn streams(lease: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let held = lease["streams"].as_array().into_iter().flatten();
    let held = held.filter(|stream| stream["state"] == "held");
    held.map(|stream| (text(&stream["stream"]), text(&stream["token"]))).collect()
}
