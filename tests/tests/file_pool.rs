//! The adapter `file` with pool sizes under a real coordinator: workers that only read their size
//! never run more jobs together than the cluster may.

use std::path::Path;

use tests::answers::{lease, metric};
use tests::process::{Agent, Coordinator, Process, eventually};

/// A worker that reads its pool size, says which version it has taken up, and keeps its count. What
/// it writes of a job lies within the job.
const WORKER: &str = r#"
import os, random, re, sys, threading, time
folder, name = sys.argv[1], sys.argv[2]
lock, running, size = threading.Lock(), 0, 0

def put(suffix, number):
    path = os.path.join(folder, name + suffix)
    with open(path + ".new", "w") as file:
        file.write(str(number))
    os.rename(path + ".new", path)

def note(word):
    line = os.open(os.path.join(folder, "journal"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(line, (word + "\n").encode())
    os.close(line)

def job():
    global running
    note("+")
    time.sleep(random.uniform(0.05, 0.4))
    note("-")
    with lock:
        running -= 1
        put(".count", running)

put(".count", 0)
while True:
    try:
        text = open(os.path.join(folder, name + ".yml")).read()
    except FileNotFoundError:
        text = "poolSize: 0\nversion: 0\n"
    size = int(re.search(r"poolSize: (\d+)", text).group(1))
    put(".seen", int(re.search(r"(?m)^version: (\d+)", text).group(1)))
    with lock:
        if running < size:
            running += 1
            put(".count", running)
            threading.Thread(target=job, daemon=True).start()
    time.sleep(0.01)
"#;

fn manifest(max: u32) -> String {
    format!(
        "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\nmetadata: {{name: builds}}\n\
         spec: {{maxJobs: {max}, maxJobsPerWorker: 3}}\n"
    )
}

/// A worker and its agent.
struct Pair {
    agent: Agent,
    _worker: Process,
}

fn start(coordinator: &Coordinator, name: &str) -> Pair {
    let folder = coordinator.folder();
    let path = |suffix: &str| folder.join(format!("{name}{suffix}")).display().to_string();
    let script = folder.join("worker.py");
    std::fs::write(&script, WORKER).expect("the worker");
    let mut command = std::process::Command::new("python3");
    command.arg(script).arg(folder).arg(name);
    let worker = Process::start(&mut command, &folder.join(format!("{name}.worker.log")));
    let taken_up = format!(
        "while [ \"$(cat {})\" -lt \"$LEASEHOLD_FILE_VERSION\" ]; do sleep 0.02; done",
        path(".seen")
    );
    let (file, count) = (path(".yml"), path(".count"));
    let more = ["--adapter", "file", "--file-path", &file, "--file-pool", "--file-count", &count];
    let more = [&more[..], &["--file-command", &taken_up]].concat();
    Pair { agent: coordinator.agent("builds", name, &more), _worker: worker }
}

fn size(pair: &Pair) -> Option<u64> {
    lease(pair.agent.api)?["pool"]["size"].as_u64()
}

/// The most jobs at once in a part of the journal that begins with this many.
fn most(lines: &[&str], mut running: i64) -> (i64, i64) {
    let mut most = running;
    for line in lines {
        running += if *line == "+" { 1 } else { -1 };
        most = most.max(running);
    }
    (most, running)
}

fn journal(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("journal")).unwrap_or_default()
}

#[test]
fn workers_that_read_a_file_stay_within_the_budget_while_sizes_change() {
    let coordinator = Coordinator::start(&[("builds.yaml", &manifest(5))]);
    let folder = coordinator.folder();
    let mut pairs = vec![start(&coordinator, "w-0"), start(&coordinator, "w-1")];
    let sizes = |pairs: &[Pair]| pairs.iter().filter_map(size).collect::<Vec<_>>();
    eventually("the whole budget", || (sizes(&pairs).iter().sum::<u64>() == 5).then_some(()));
    let lines = |more: usize| {
        let wanted = journal(folder).lines().count() + more;
        eventually("jobs", || (journal(folder).lines().count() >= wanted).then_some(()));
    };
    lines(40);
    // A third worker: the others shrink for it.
    pairs.push(start(&coordinator, "w-2"));
    eventually("a share for the third", || {
        let sizes = sizes(&pairs);
        (sizes.len() == 3 && sizes[2] > 0 && sizes.iter().sum::<u64>() == 5).then_some(())
    });
    lines(40);
    let text = journal(folder);
    let (highest, _) = most(&text.lines().collect::<Vec<_>>(), 0);
    assert!(highest <= 5, "{highest} jobs at once under a cap of 5");
    assert!(highest > 2, "the workers were idle: {highest} at once");

    // A smaller budget: nothing is killed, and the sum falls.
    std::fs::write(folder.join("manifests/builds.yaml"), manifest(2)).expect("the manifest");
    eventually("smaller pools", || (sizes(&pairs).iter().sum::<u64>() <= 2).then_some(()));
    eventually("the jobs above it to end", || {
        (metric(coordinator.http, "leasehold_slots_committed")? <= 2.0).then_some(())
    });
    let before = journal(folder).lines().count();
    lines(30);
    let text = journal(folder);
    let all: Vec<&str> = text.lines().collect();
    let (whole, running) = most(&all[..before], 0);
    assert!(whole <= 5, "{whole} jobs at once");
    let (after, _) = most(&all[before..], running);
    assert!(after <= 2, "{after} jobs at once under a cap of 2");
}
