//! The adapter `process` under a real coordinator: whatever happens to agents and coordinators, no
//! stream has two programs at once, and its tokens only grow.

use std::path::{Path, PathBuf};

use leasehold_demo::records::token_order;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use tests::answers::lease;
use tests::process::{Agent, Coordinator, eventually};

const STREAMS: [&str; 4] = ["a", "b", "c", "d"];

const MANIFESTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: feeds}
spec: {maxJobs: 0, maxJobsPerWorker: 1, lease: {ttl: 6s}}
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {name: topics}
spec:
  cluster: feeds
  streams: [{name: a}, {name: b}, {name: c}, {name: d}]
";

/// Holds its stream's lock as long as anything of it runs, and writes its token at each turn.
const PROGRAM: &str = "\
exec 9>> $1.lock
flock -n 9 || echo \"$1 $LEASEHOLD_TOKEN\" >> doubles
echo $$ >> pids
[ \"$1\" = b ] && trap '' TERM
[ \"$1\" = c ] && [ -e crash ] && exit 1
while :; do echo $LEASEHOLD_TOKEN >> $1.tokens; sleep 0.05; done
";

/// What ends every program that a failed test has left.
struct Programs<'a>(&'a Path);

impl Drop for Programs<'_> {
    fn drop(&mut self) {
        let pids = read(&self.0.join("pids"));
        for pid in pids.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn start(coordinator: &Coordinator, worker: &str) -> Agent {
    let script = format!("cd {}\n{PROGRAM}", coordinator.folder().display());
    let more = ["--adapter", "process", "--process-grace", "500ms", "--process-kill"];
    let command = ["--", "sh", "-c", &script, "program", "{stream}"];
    coordinator.agent("feeds", worker, &[&more[..], &command].concat())
}

fn held(agent: &Agent) -> Vec<Value> {
    let lease = lease(agent.api).unwrap_or_default();
    let streams = lease["streams"].as_array().cloned().unwrap_or_default();
    streams.into_iter().filter(|stream| stream["state"] == "held").collect()
}

/// Waits until every stream is held by these agents, and its program has written under the token
/// that is held.
fn settled(coordinator: &Coordinator, agents: &[&Agent]) {
    eventually("a program at work for each stream, by its owner's token", || {
        let all: Vec<Value> = agents.iter().flat_map(|agent| held(agent)).collect();
        let written = |stream: &Value| {
            let name = stream["stream"].as_str().unwrap_or_default();
            let tokens = read(&tokens_of(coordinator, name));
            tokens.lines().next_back().is_some_and(|token| stream["token"] == token)
        };
        (all.len() == STREAMS.len() && all.iter().all(written)).then_some(())
    });
}

fn tokens_of(coordinator: &Coordinator, stream: &str) -> PathBuf {
    coordinator.folder().join(format!("{stream}.tokens"))
}

#[test]
fn no_stream_has_two_programs_during_moves_kills_and_coordinator_outages() {
    let coordinator = Coordinator::start(&[("feeds.yaml", MANIFESTS)]);
    let _programs = Programs(coordinator.folder());
    let mut one = start(&coordinator, "w-1");
    settled(&coordinator, &[&one]);
    // A second worker takes some of them over.
    let mut two = start(&coordinator, "w-2");
    eventually("a share for the second", || (held(&two).len() == 2).then_some(()));
    settled(&coordinator, &[&one, &two]);

    // A killed agent comes back within its leases, and later than them.
    for late in [false, true] {
        let before: Vec<Value> = held(&one);
        one.process.kill();
        if late {
            let all = || held(&two).len() == STREAMS.len();
            eventually("the second takes everything over", || all().then_some(()));
            settled(&coordinator, &[&two]);
        }
        one = start(&coordinator, "w-1");
        eventually("a share for the first", || (held(&one).len() == 2).then_some(()));
        settled(&coordinator, &[&one, &two]);
        let tokens = |streams: &[Value]| -> Vec<Value> {
            streams.iter().map(|stream| stream["token"].clone()).collect()
        };
        if !late {
            assert_eq!(tokens(&held(&one)), tokens(&before), "a stream moved");
        }
    }

    // A program that crashes keeps its stream.
    std::fs::write(coordinator.folder().join("crash"), "").expect("a file");
    let pids = read(&coordinator.folder().join("pids"));
    for pid in pids.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
        let _ = kill_process(pid, Signal::KILL);
    }
    std::fs::remove_file(coordinator.folder().join("crash")).expect("it is there");
    settled(&coordinator, &[&one, &two]);

    // Without a coordinator every lease ends, and every program before it.
    coordinator.process.signal(Signal::STOP);
    eventually("the end of all leases", || {
        (held(&one).is_empty() && held(&two).is_empty()).then_some(())
    });
    for stream in STREAMS {
        let lock = coordinator.folder().join(format!("{stream}.lock"));
        let free = std::process::Command::new("flock").arg("-n").arg(lock).arg("true").status();
        assert!(free.expect("flock starts").success(), "{stream}: a program without a lease");
    }
    coordinator.process.signal(Signal::CONT);
    settled(&coordinator, &[&one, &two]);

    one.process.signal(Signal::TERM);
    assert!(one.process.wait().success());
    settled(&coordinator, &[&two]);
    two.process.signal(Signal::TERM);
    assert!(two.process.wait().success());

    assert_eq!(read(&coordinator.folder().join("doubles")), "", "two programs at once");
    for stream in STREAMS {
        let tokens = read(&tokens_of(&coordinator, stream));
        let number = |token| token_order(token).expect("EPOCH.SEQ");
        let tokens: Vec<_> = tokens.lines().map(number).collect();
        assert!(tokens.is_sorted(), "{stream}: an older token was written after a newer one");
    }
}
