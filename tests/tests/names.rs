//! Two agents under one name: the living one that has it keeps it, even if another starts
//! where, and whichever coordinator leads.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tests::process::{Agent, Coordinator, Process, eventually, free_address, get};
use tests::toolbox;

/// The interval between two polls.
const POLL: Duration = Duration::from_millis(50);

const MANIFESTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 4, maxJobsPerWorker: 2, lease: {ttl: 3s}}
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {name: cars}
spec:
  cluster: builds
  streams: [{name: 'cars:new'}, {name: 'cars:sold'}]
";

#[test]
fn a_second_agent_with_the_same_name_is_refused_while_the_first_is_alive() {
    let mut coordinator = Coordinator::start(&[("builds.yaml", MANIFESTS)]);
    let standby = coordinator.standby();
    let (folder, both) =
        (coordinator.folder().to_owned(), format!("{},{}", coordinator.grpc, standby.grpc));
    let mut first = start(&folder, &both, "first", &[]);
    let before = eventually("both streams", || streams(&first, 2));

    let started = folder.join("started");
    let script = format!("touch {}; exec sleep 600", started.display());
    let mut second = start(&folder, &both, "second", &["--", "sh", "-c", &script]);
    let refused = |agent: &Agent| {
        let (status, why) = get(agent.api, "/readyz")?;
        (status == 503 && why.contains("another agent, which is alive")).then_some(why)
    };
    let why = eventually("the second's refusal", || refused(&second));
    assert!(why.contains("builds/w: incarnation") && why.contains(" at 127.0.0.1:"), "{why}");
    assert!(why.contains("--take-over") && why.contains("--state-dir"), "{why}");
    // For longer than the first agent's leases last, nothing changes.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        assert_eq!(streams(&first, 2).as_ref(), Some(&before), "the first keeps what it has");
        std::thread::sleep(POLL);
    }
    let said = second.process.log().matches("NameTaken").count();
    assert_eq!(said, 1, "it is said once:\n{}", second.process.log());
    assert!(!started.exists(), "COMMAND is not started");

    // A restart with the state folder is the same agent.
    first.process.kill();
    first = start(&folder, &both, "first", &[]);
    assert_eq!(eventually("both streams again", || streams(&first, 2)), before);

    // Another leader knows by the register whose the name is, whichever of the two dials first.
    coordinator.process.kill();
    eventually("a successor", || {
        let (_, metrics) = get(standby.http, "/metrics")?;
        metrics.contains("leasehold_leader 1").then_some(())
    });
    assert_eq!(eventually("the streams at the successor", || streams(&first, 2)), before);
    let by_successor = || {
        let (_, metrics) = get(standby.http, "/metrics")?;
        let refusals = "leasehold_refusals_total{reason=\"name_taken\"";
        metrics.lines().any(|line| line.starts_with(refusals)).then_some(())
    };
    eventually("a refusal by the successor", by_successor);
    assert!(refused(&second).is_some());
    assert_eq!(streams(&first, 2), Some(before));

    // Once the first one is silent and its leases are over, the second one has the name.
    first.process.kill();
    eventually("the streams at the second", || streams(&second, 2));
    eventually("COMMAND", || started.exists().then_some(()));
    assert_eq!(get(second.api, "/readyz").expect("it answers").0, 200);
    // Now the first one has to wait until --take-over.
    first = start(&folder, &both, "first", &[]);
    eventually("the first's refusal", || refused(&first));
    first.process.signal(Signal::TERM);
    assert!(first.process.wait().success(), "one that never had the name ends at once");
    first = start(&folder, &both, "first", &["--take-over"]);
    let status = second.process.wait();
    assert!(!status.success(), "it stops, for good: {status}");
    eventually("the streams at the first", || streams(&first, 2));
}

#[test]
fn a_drain_reports_what_it_waits_for() {
    let coordinator = Coordinator::start(&[("builds.yaml", MANIFESTS)]);
    let (folder, address) = (coordinator.folder(), coordinator.grpc.to_string());
    let mut first = start(folder, &address, "first", &[]);
    eventually("both streams", || streams(&first, 2));
    first.process.kill();
    // An agent with another folder knows nothing of the jobs that the first one let begin.
    let mut second = start(folder, &address, "second", &[]);
    let readiness = || {
        let (status, text) = get(second.api, "/readyz")?;
        let waits = text.contains("since the jobs of an earlier agent are unknown");
        (status == 200 && waits).then_some(text)
    };
    let text = eventually("what keeps the second one from work", readiness);
    assert!(text.starts_with("ok\n"), "{text}");
    second.process.signal(Signal::TERM);
    eventually("a line on the drain", || {
        let log = second.process.log();
        let line = log.lines().find(|line| line.contains("draining: "))?;
        assert!(line.contains("are unknown"), "{line}");
        Some(())
    });
    let (_, text) = get(second.api, "/readyz").expect("it answers");
    assert!(text.contains("draining: ") && text.contains("are unknown"), "{text}");
    second.process.signal(Signal::TERM);
    second.process.wait();
}

/// An agent of the one worker, with a state folder and a log of its own.
fn start(folder: &Path, coordinators: &str, name: &str, more: &[&str]) -> Agent {
    let api = free_address();
    let mut command = Command::new(toolbox::binary("leasehold-agent"));
    command.args(["run", "--coordinator", coordinators, "--cluster", "builds", "--worker", "w"]);
    command.args(["--listen", &api.to_string(), "--state-dir"]).arg(folder.join(name)).args(more);
    Agent { process: Process::start(&mut command, &folder.join(format!("{name}.log"))), api }
}

fn lease(api: SocketAddr) -> Option<Value> {
    serde_json::from_str(&get(api, "/v1/lease")?.1).ok()
}

/// The tokens of its streams, where it holds this many and is connected.
fn streams(agent: &Agent, count: usize) -> Option<Vec<String>> {
    let lease = lease(agent.api).filter(|lease| lease["connected"] == true)?;
    let held = lease["streams"].as_array()?.iter().filter(|stream| stream["state"] == "held");
    let tokens: Vec<String> = held.map(|stream| stream["token"].to_string()).collect();
    (tokens.len() == count).then_some(tokens)
}
