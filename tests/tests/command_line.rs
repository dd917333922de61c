//! The command line against real coordinators and agents: what people type first, and what they
//! read then. The sentences of `docs/CLI.md` are read from there.

use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};
use tests::process::{Agent, Coordinator, Process, eventually, free_address};
use tests::toolbox;

const MANIFESTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 6, maxJobsPerWorker: 3, lease: {ttl: 2s}}
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {name: cars}
spec:
  cluster: builds
  mode: Pinned
  streams: [{name: 'cars:new'}, {name: 'cars:sold'}]
---
apiVersion: leasehold.dev/v1alpha1
kind: WorkerClass
metadata: {name: green}
spec: {capacity: 10, maxReplicas: 2}
---
apiVersion: leasehold.dev/v1alpha1
kind: Pipeline
metadata: {name: third}
spec: {documentsPerSecond: 5, workers: {only: {class: green}}}
";

/// The program, which asks this coordinator.
struct CommandLine<'a>(&'a Coordinator);

impl CommandLine<'_> {
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(toolbox::binary("leasehold"));
        command.args(line.split(' ')).env("LEASEHOLD_COORDINATOR", self.0.grpc.to_string());
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().expect("it starts")
    }

    /// What it prints, or what it complains of.
    fn try_line(&self, line: &str) -> Result<String, String> {
        let output = self.run(line);
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    fn line(&self, line: &str) -> String {
        self.try_line(line).unwrap_or_else(|why| panic!("leasehold {line}: {why}"))
    }

    fn refused(&self, line: &str) -> String {
        self.try_line(line).expect_err(line)
    }

    fn json(&self, line: &str) -> Value {
        let text = self.line(&format!("{line} -o json"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
    }

    /// Waits until a line prints all these words.
    fn until(&self, line: &str, words: &[&str]) -> String {
        eventually(&format!("`leasehold {line}` with {words:?}"), || {
            let text = self.try_line(line).ok()?;
            words.iter().all(|word| text.contains(word)).then_some(text)
        })
    }
}

/// The cells of the first row of a table whose first cells are these.
fn row<'a>(table: &'a str, first: &[&str]) -> Vec<&'a str> {
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut rows = rows.filter(|cells| cells.starts_with(first));
    rows.next().unwrap_or_else(|| panic!("no row {first:?} in:\n{table}"))
}

#[test]
fn lists_show_clusters_workers_streams_pipelines_and_classes() {
    let coordinator = Coordinator::start(&[("all.yaml", MANIFESTS)]);
    let leasehold = CommandLine(&coordinator);
    let _agents = ["worker-0", "worker-1"].map(|name| coordinator.agent("builds", name, &[]));
    leasehold.until("clusters", &["6        0        6          6        2          2"]);
    leasehold.until("sets", &["cars  builds         2      2        0"]);

    let workers = leasehold.line("workers builds");
    let worker = row(&workers, &["builds", "worker-1"]);
    assert_eq!(worker[2..9], ["connected", "no", "0", "3", "3", "3", "1"], "{workers}");
    assert_eq!(leasehold.line("workers -o name"), "builds/worker-0\nbuilds/worker-1\n");
    let reversed = leasehold.line("workers --sort worker --reverse -o name");
    assert_eq!(reversed, "builds/worker-1\nbuilds/worker-0\n");
    assert_eq!(leasehold.line("workers --presence lost"), "No workers.\n");
    assert!(leasehold.line("workers -o wide").contains("GENERATION"));
    let json = leasehold.json("workers");
    assert_eq!(json["workers"][1]["name"], json!("worker-1"), "{json}");
    assert_eq!(json["workers"][1]["presence"], json!("PRESENCE_CONNECTED"), "{json}");

    let streams = leasehold.line("streams --worker worker-0");
    assert_eq!(streams.lines().count(), 2, "{streams}");
    assert_eq!(leasehold.line("streams --unowned"), "No streams.\n");
    assert_eq!(row(&leasehold.line("pipelines"), &["third"])[1..3], ["5", "pending"]);
    assert_eq!(leasehold.line("pipelines --phase ready"), "No pipelines.\n");
    let classes = leasehold.line("classes");
    assert_eq!(row(&leasehold.line("clusters"), &["green"])[1], "-", "a class has no budget");
    assert_eq!(row(&classes, &["green"])[1..], ["10", "5", "0", "0", "0", "1", "1", "1"]);

    let status = leasehold.line("status");
    for words in ["leads term 1", "builds", "1 stream set: all 2 streams are owned.", "1 pending"] {
        assert!(status.contains(words), "no {words:?} in\n{status}");
    }
    assert_eq!(leasehold.json("status")["clusters"][0]["maxJobs"], json!(6));
    assert!(leasehold.line("version").contains(env!("CARGO_PKG_VERSION")));
    for shell in ["bash", "zsh", "fish"] {
        assert!(leasehold.line(&format!("completion {shell}")).contains("explain"), "{shell}");
    }
}

#[test]
fn every_coordinator_names_all_replicas_and_versions() {
    const OWN: &str = env!("CARGO_PKG_VERSION");
    let coordinator = Coordinator::start(&[("all.yaml", MANIFESTS)]);
    let leasehold = CommandLine(&coordinator);
    leasehold.until("status", &["leads term 1"]);
    let mut standby = coordinator.standby();
    let _agent = coordinator.agent("builds", "worker-0", &[]);
    let (leader, other) = (coordinator.grpc.to_string(), standby.grpc.to_string());
    // Nobody names the standby.
    let role = format!("stands by for {leader}");
    leasehold.until("status", &[&leader, "leads term 1", &other, &role]);
    let lines = [
        format!("coordinator  {OWN}  at {leader}: leads term 1"),
        format!("coordinator  {OWN}  at {other}: {role}"),
        format!("agent        {OWN}  1 agent"),
    ];
    let versions = leasehold
        .until(&format!("version --coordinator {other}"), &lines.each_ref().map(String::as_str));
    assert_eq!(versions.lines().count(), 4, "no skew: {versions}");
    let workers = leasehold.json("workers");
    assert_eq!(workers["workers"][0]["agentVersion"], json!(OWN), "{workers}");

    // A standby tells the same.
    let status = leasehold.json(&format!("status --coordinator {other}"));
    let replicas = status["replicas"].as_array().expect("replicas");
    let replica = |address: &str| {
        let found = replicas.iter().find(|one| one["address"] == json!(address));
        found.unwrap_or_else(|| panic!("no {address} in {status}"))
    };
    assert_eq!(replicas.len(), 2, "{status}");
    assert_eq!(replica(&leader)["known"]["leads"], json!(true), "{status}");
    assert_eq!(replica(&other)["known"]["version"], json!(OWN), "{status}");
    assert_eq!(replica(&other)["status"]["leads"], json!(false), "{status}");
    standby.process.kill();
    eventually("the standby is no longer listed", || {
        (!leasehold.line("status").contains(&other)).then_some(())
    });
}

/// What `docs/CLI.md` says that is printed.
fn documented(words: &[&str]) {
    let document = std::fs::read_to_string(toolbox::root().join("docs/CLI.md")).expect("the page");
    for words in words {
        assert!(document.contains(words), "not in docs/CLI.md: {words}");
    }
}

/// The situations of the table in docs/CLI.md, one after the other, each with its sentence there.
#[test]
fn explanations_name_the_cause_and_the_next_step() {
    let coordinator = Coordinator::start(&[("all.yaml", MANIFESTS)]);
    let leasehold = CommandLine(&coordinator);
    let says = |what: &str, words: &[&str]| {
        documented(words);
        leasehold.until(&format!("explain {what}"), words);
    };

    says(
        "cluster builds",
        &["builds has no worker", "Next: start a worker: leasehold-agent run --cluster builds"],
    );
    says("stream cars:new", &["cars/cars:new has no worker: no worker of the cluster can own"]);
    says("pipeline third", &["Next: add a worker to class green, or lower documentsPerSecond"]);

    let mut first = coordinator.agent("builds", "worker-0", &[]);
    let second = coordinator.agent("builds", "worker-1", &[]);
    says(
        "cluster builds",
        &["builds runs 0 of at most 6 jobs on 2 workers: all slots are granted or may be in use"],
    );
    says("worker worker-1", &["builds/worker-1 has its share: 3 slots and 1 stream"]);
    for at in 0..3 {
        [&first, &second].into_iter().for_each(|agent| start_job(agent, &format!("job-{at}")));
    }
    says("cluster builds", &["builds has used its budget up: 6 jobs run"]);

    // Killed: silent, then lost, and its stream is pinned to it.
    let owned = leasehold.json("streams --worker worker-0");
    let stream = owned["streams"][0]["name"].as_str().expect("a stream").to_owned();
    first.process.kill();
    says("worker worker-0", &["builds/worker-0 is silent: its slots count until it reports or is"]);
    let next = "if nothing of it runs any more: leasehold gone worker-0 --cluster builds";
    says("cluster builds", &["lost: worker-0; 3 slots may be in use there", next]);
    leasehold.until(&format!("explain stream {stream}"), &[next]);

    says("worker worker-1", &["builds/worker-1 has its share: 3 slots"]);
    leasehold.line("drain worker-1");
    says(
        "worker worker-1",
        &["builds/worker-1 drains: it takes no job and gives its streams back"],
    );
    says("cluster builds", &["draining: worker-1; 3 slots may be in use there"]);
}

#[test]
fn a_cluster_on_hold_says_for_whom_it_waits() {
    let manifest = MANIFESTS.replace("ttl: 2s", "ttl: 20s");
    let mut coordinator = Coordinator::start(&[("builds.yaml", &manifest)]);
    let mut agent = coordinator.agent("builds", "worker-0", &[]);
    CommandLine(&coordinator).until("explain worker worker-0", &["has its share: 3 slots"]);
    let standby = coordinator.standby();
    agent.process.kill();
    coordinator.process.kill();
    let words =
        ["builds is on hold: it waits at most ", " for builds/worker-0, which has not reported"];
    documented(&words);
    let line = format!("explain cluster builds --coordinator {}", standby.grpc);
    let next =
        "Next: start the agent of worker-0 again; or, if nothing of it runs any more: leasehold";
    CommandLine(&coordinator).until(&line, &[&words[..], &[next]].concat());
}

#[test]
fn explanations_name_an_invalid_manifest_and_the_agents_of_a_name() {
    let coordinator = Coordinator::start(&[("builds.yaml", MANIFESTS)]);
    let leasehold = CommandLine(&coordinator);
    let mut first = coordinator.agent("builds", "worker-2", &[]);
    leasehold.until("explain worker worker-2", &["has its share: 3 slots"]);
    (0..3).for_each(|at| start_job(&first, &format!("job-{at}")));

    let manifest = coordinator.folder().join("manifests/builds.yaml");
    std::fs::write(&manifest, MANIFESTS.replace("maxJobs: 6", "maxJobs: many")).expect("an edit");
    let invalid = "a manifest is invalid, and its last good state in force: builds.yaml:4:";
    let words = [invalid, "Next: correct builds.yaml"];
    documented(&words);
    leasehold.until("explain cluster builds", &[&words[..], &["of at most 6 jobs"]].concat());
    std::fs::write(&manifest, MANIFESTS).expect("the edit is undone");

    let api = free_address();
    let mut command = Command::new(toolbox::binary("leasehold-agent"));
    command.args(["run", "--coordinator", &coordinator.grpc.to_string(), "--cluster", "builds"]);
    command.args(["--worker", "worker-2", "--take-over", "--listen", &api.to_string()]);
    command.arg("--state-dir").arg(coordinator.folder().join("state-second"));
    let log = coordinator.folder().join("second.log");
    let _second = Agent { process: Process::start(&mut command, &log), api };
    let before = "had its name before: 3 slots and";
    documented(&[before]);
    leasehold.until("explain worker worker-2", &[before]);
    let names = leasehold.line("workers builds -o name");
    let former = names.lines().find(|name| name.contains('@')).expect("the former agent");
    let lost = "has lost its name to another agent: it drains, and its slots count until its jobs";
    documented(&[lost]);
    leasehold.until(&format!("explain worker {former}"), &[lost]);
    first.process.kill();
    documented(&["leasehold gone worker-2@"]);
    leasehold.until("explain worker worker-2", &["leasehold gone worker-2@"]);
    leasehold.until(&format!("explain worker {former}"), &["leasehold gone worker-2@"]);
}

/// One call of an agent's API: whether it succeeded.
fn call(agent: &Agent, method: &str, path: &str) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let call = tests::http::call(agent.api, method, path, "");
    runtime.expect("a runtime").block_on(call).is_ok_and(|(status, _)| status == 200)
}

fn start_job(agent: &Agent, job: &str) {
    let path = format!("/v1/jobs/{job}");
    eventually("an admitted job", || call(agent, "PUT", &path).then_some(()));
}

#[test]
fn a_plan_says_what_then_happens() {
    let coordinator = Coordinator::start(&[("all.yaml", MANIFESTS)]);
    let leasehold = CommandLine(&coordinator);
    let _first = coordinator.agent("builds", "worker-0", &[]);
    leasehold.until("sets", &["cars  builds         2      2        0"]);
    let plan = leasehold.json("plan builds --add-worker worker-1 --max-jobs 4");
    let _second = coordinator.agent("builds", "worker-1", &[]);
    let manifest = MANIFESTS.replace("maxJobs: 6", "maxJobs: 4");
    std::fs::write(coordinator.folder().join("manifests/all.yaml"), manifest).expect("a manifest");
    for pool in plan["pools"].as_array().expect("pools") {
        eventually(&format!("{pool}"), || {
            let workers = leasehold.json("workers --presence connected");
            let workers = workers["workers"].as_array()?.clone();
            let found = workers.into_iter().find(|worker| worker["name"] == pool["worker"])?;
            (found["granted"] == pool["size"]).then_some(())
        });
    }
    let moved = &plan["moves"][0];
    eventually("the stream that moves", || {
        let streams = leasehold.json("streams");
        let streams = streams["streams"].as_array()?.clone();
        let found = streams.into_iter().find(|stream| stream["name"] == moved["stream"])?;
        (found["claims"][0]["worker"] == moved["to"]).then_some(())
    });

    let breaks = leasehold.run("plan builds --remove-worker worker-0,worker-1");
    assert_eq!(breaks.status.code(), Some(2), "streams would have no worker");
}

#[test]
fn orders_reach_the_leader_and_are_followed_to_their_end() {
    let coordinator = Coordinator::start(&[("all.yaml", MANIFESTS)]);
    let leasehold = CommandLine(&coordinator);
    leasehold.until("status", &["leads term 1"]);
    let standby = coordinator.standby();
    let agent = coordinator.agent("builds", "worker-0", &[]);
    let mut lost = coordinator.agent("builds", "worker-1", &[]);
    leasehold.until("clusters", &["6        0        6          6        2          2"]);
    start_job(&agent, "long");

    // A standby is asked: it names the leader, and the order goes there.
    let at_standby = |line: &str| {
        let mut command = leasehold.command(line);
        command.env("LEASEHOLD_COORDINATOR", standby.grpc.to_string());
        command
    };
    eventually("the standby knows the leader", || {
        let output = at_standby("status").output().expect("it starts");
        String::from_utf8_lossy(&output.stdout).contains("stands by for").then_some(())
    });
    let mut drain = at_standby("drain worker-0 --wait");
    let drain = drain.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    leasehold.until("workers --draining -o name", &["builds/worker-0"]);
    assert!(call(&agent, "DELETE", "/v1/jobs/long"), "the job ends");
    let output = drain.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    assert!(text.starts_with("builds/worker-0 drains\n"), "{text}");
    assert!(text.ends_with("builds/worker-0 has drained\n"), "{text}");

    let refused = leasehold.refused("gone worker-1 --yes");
    assert!(refused.contains("worker builds/worker-1 is connected"), "{refused}");
    let asked = leasehold.refused("gone worker-1");
    assert!(asked.contains("needs a terminal: add --yes"), "{asked}");
    lost.process.kill();
    leasehold.until("workers", &["lost"]);
    let gone = leasehold.line("gone builds/worker-1 --yes");
    assert!(gone.starts_with("builds/worker-1 is gone: 3 slots and"), "{gone}");
    let refused = leasehold.refused("gone worker-1 --yes");
    assert!(refused.contains("no cluster has a worker worker-1"), "{refused}");

    let events = leasehold.line("events --kind gone,ordered --worker worker-1");
    assert!(events.contains("gone") && events.contains("builds/worker-1"), "{events}");
}

/// Who follows events sees a change of leader, and what the next leader does.
#[test]
fn a_failover_is_waited_for_and_followed() {
    let coordinator = Coordinator::start(&[("all.yaml", MANIFESTS)]);
    CommandLine(&coordinator).until("status", &["leads term 1"]);
    let standby = coordinator.standby();
    let both = format!("{},{}", coordinator.grpc, standby.grpc);
    let leasehold = |line: &str| {
        let mut command = Command::new(toolbox::binary("leasehold"));
        command.args(line.split(' ')).args(["--coordinator", &both]).stdin(Stdio::null());
        command
    };
    let log = coordinator.folder().join("events.log");
    let _events = Process::start(&mut leasehold("events --follow --kind elected"), &log);
    let said = |term: &str| {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.contains(term).then_some(())
    };
    eventually("the first term", || said("term 1"));
    coordinator.process.signal(Signal::KILL);
    let workers = leasehold("clusters").output().expect("it starts");
    let text = String::from_utf8_lossy(&workers.stdout).into_owned();
    assert!(text.contains("builds"), "{workers:?}");
    eventually("the second term", || said("term 2"));
}

#[test]
fn mistakes_are_named() {
    let coordinator = Coordinator::start(&[("all.yaml", MANIFESTS)]);
    let leasehold = CommandLine(&coordinator);
    leasehold.until("clusters", &["builds"]);
    let free = free_address();
    for (line, words) in [
        (format!("status --coordinator {free}"), "start one, or name it with --coordinator"),
        ("status --coordinator nowhere".to_owned(), "write HOST:PORT, as in 127.0.0.1:7400"),
        (format!("status --coordinator {}", coordinator.http), "gRPC is served on port"),
        ("workers nothing".to_owned(), "no manifest defines cluster"),
        ("explain worker nobody".to_owned(), "`leasehold workers` lists them"),
        ("explain stream none".to_owned(), "`leasehold streams` lists them"),
        ("explain stream cars:new --cluster builds".to_owned(), "--cluster is for workers"),
        ("workers --sort size".to_owned(), "no column \"size\"; there are cluster, worker"),
        ("events --kind unknown".to_owned(), "there are elected, deposed"),
        ("status -o name".to_owned(), "status has no names"),
    ] {
        let why = leasehold.refused(&line);
        assert!(why.contains(words), "leasehold {line}: {why}");
    }
}
