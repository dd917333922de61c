//! The command line against real coordinators and agents: what people type first, and what they
//! read then.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tests::command_line::{CommandLine, MANIFESTS, call, row, start_job};
use tests::process::{Coordinator, Process, Replica, eventually, free_address, get};
use tests::toolbox;

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
    for words in ["leads term", "builds", "1 stream set: all 2 streams are owned.", "1 pending"] {
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
    leasehold.until("status", &["leads term"]);
    let mut standby = coordinator.standby();
    let _agent = coordinator.agent("builds", "worker-0", &[]);
    let (leader, other) = (coordinator.grpc.to_string(), standby.grpc.to_string());
    // Nobody names the standby.
    let role = format!("stands by for {leader}");
    leasehold.until("status", &[&leader, "leads term", &other, &role]);
    let lines = [
        format!("coordinator  {OWN}  at {leader}: leads term "),
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

/// Agents report the run times of their last jobs to the next leader, too.
#[test]
fn a_plan_says_how_long_jobs_may_take_also_after_a_failover() {
    let coordinator = Coordinator::start(&[("all.yaml", MANIFESTS)]);
    let leasehold = CommandLine(&coordinator);
    let status = leasehold.until("status", &["leads term"]);
    let standby = coordinator.standby();
    let both = ["--coordinator", &format!("{},{}", coordinator.grpc, standby.grpc)];
    let mut agents = ["worker-0", "worker-1"].map(|name| coordinator.agent("builds", name, &both));
    leasehold.until("clusters", &["6        0        6          6        2          2"]);
    let both = both.join(" ");
    let plan = format!("plan builds --remove-worker worker-0 {both}");
    start_job(&agents[0], "first");
    start_job(&agents[0], "second");
    leasehold.until(&plan, &["2 jobs", "not known: no job of this cluster has ended yet"]);

    assert!(call(&agents[0], "DELETE", "/v1/jobs/first"), "the job ends");
    let past = "the last 1 job of this cluster that ended";
    // The leader learns of the end and of how long the job ran one after the other.
    let planned = eventually("a plan with one job left", || {
        let planned = leasehold.json(&plan);
        let wait = &planned["pools"][0]["wait"];
        (wait["jobs"] == 1 && wait["pastJobs"] == 1).then_some(planned)
    });
    leasehold.until(&plan, &["1 job", past]);
    assert!(planned["pools"][1].get("wait").is_none_or(Value::is_null), "it is idle: {planned}");

    coordinator.process.signal(Signal::KILL);
    let led = term(&status);
    eventually("the second term", || {
        let status = leasehold.try_line(&format!("status {both}")).ok()?;
        (term(&status) == led + 1).then_some(())
    });
    leasehold.until(&plan, &["1 job", past]);

    // The jobs of a lost worker may never end by themselves.
    agents[0].process.kill();
    let lost = "worker-0 is lost: its jobs may never end by themselves.";
    let text = leasehold.until(&plan, &["1 job", lost, "explain worker builds/worker-0"]);
    assert!(!text.contains("WAIT says"), "{text}");
    let pool = &leasehold.json(&plan)["pools"][0];
    assert_eq!((&pool["lost"], &pool["wait"]["jobs"]), (&json!(true), &json!(1)), "{pool}");
    assert!(pool["wait"].get("halfSeconds").is_none_or(Value::is_null), "{pool}");
}

#[test]
fn orders_reach_the_leader_and_are_followed_to_their_end() {
    let coordinator = Coordinator::start(&[("all.yaml", MANIFESTS)]);
    let leasehold = CommandLine(&coordinator);
    leasehold.until("status", &["leads term"]);
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
    // The next leader would not know of it.
    for order in ["drain", "undrain"] {
        let refused = leasehold.refused(&format!("{order} worker-1"));
        let why = "worker builds/worker-1 is not connected, and only its agent can take this order";
        assert!(refused.contains(why), "{refused}");
    }
    let gone = leasehold.line("gone builds/worker-1 --yes");
    assert!(gone.starts_with("builds/worker-1 is gone: 3 slots and"), "{gone}");
    let refused = leasehold.refused("gone worker-1 --yes");
    assert!(refused.contains("no cluster has a worker worker-1"), "{refused}");

    let events = leasehold.line("events --kind gone,ordered --worker worker-1");
    let behind_cluster = leasehold.line("events --kind gone,ordered --worker builds/worker-1");
    assert_eq!(behind_cluster, events);
    assert!(events.contains("gone") && events.contains("builds/worker-1"), "{events}");
}

/// Who follows events sees a change of leader, and what the next leader does.
/// Two replicas, and `events --follow` at both of them.
struct FollowedEvents {
    _events: Process,
    _standby: Replica,
    /// The addresses of both.
    both: String,
    /// The first leader's term.
    term: u64,
    log: PathBuf,
    // The last field: its folder has the files of all.
    coordinator: Coordinator,
}

impl FollowedEvents {
    /// The events have the first leader's election.
    fn start() -> Self {
        let coordinator = Coordinator::start(&[("all.yaml", MANIFESTS)]);
        let term = term(&CommandLine(&coordinator).until("status", &["leads term"]));
        let standby = coordinator.standby();
        CommandLine(&coordinator).until("status", &["stands by for"]);
        let both = format!("{},{}", coordinator.grpc, standby.grpc);
        let log = coordinator.folder().join("events.log");
        let mut events = command_at(&both, "events --follow --kind elected");
        let events = Process::start(&mut events, &log);
        let started = Self { coordinator, both, term, log, _events: events, _standby: standby };
        started.until_elected(term);
        started
    }

    /// Waits until the events have the election of a term.
    fn until_elected(&self, term: u64) {
        eventually(&format!("the election of term {term}"), || {
            let text = std::fs::read_to_string(&self.log).unwrap_or_default();
            text.contains(&format!("term {term}")).then_some(())
        });
    }
}

/// A command at these addresses.
fn command_at(addresses: &str, line: &str) -> Command {
    let mut command = Command::new(toolbox::binary("leasehold"));
    command.args(line.split(' ')).args(["--coordinator", addresses]).stdin(Stdio::null());
    command
}

#[test]
fn a_failover_is_waited_for_and_followed() {
    let events = FollowedEvents::start();
    events.coordinator.process.signal(Signal::KILL);
    let workers = command_at(&events.both, "clusters").output().expect("it starts");
    let text = String::from_utf8_lossy(&workers.stdout).into_owned();
    assert!(text.contains("builds"), "{workers:?}");
    events.until_elected(events.term + 1);
}

/// Its connections stay open, and nothing comes on them.
#[test]
fn a_leader_that_hangs_does_not_keep_its_followers() {
    let events = FollowedEvents::start();
    events.coordinator.process.signal(Signal::STOP);
    events.until_elected(events.term + 1);
}

/// The term that a status shows; 0 where nobody leads.
fn term(status: &str) -> u64 {
    let words = status.split_once("leads term ").map_or("0", |(_, rest)| rest);
    let digits: String = words.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

#[test]
fn an_order_to_drain_is_taken_back() {
    let coordinator = Coordinator::start(&[("all.yaml", MANIFESTS)]);
    let leasehold = CommandLine(&coordinator);
    let agent = coordinator.agent("builds", "worker-0", &[]);
    leasehold.until("explain worker worker-0", &["has its share: 3 slots and 2 streams"]);
    start_job(&agent, "job-0");
    leasehold.line("drain worker-0");
    leasehold.until("explain worker worker-0", &["builds/worker-0 drains"]);

    assert_eq!(leasehold.line("undrain worker-0"), "builds/worker-0 works again\n");
    assert_eq!(leasehold.line("undrain worker-0"), "builds/worker-0 does not drain\n");
    let why = "the coordinator took the drain back: the worker may take jobs and streams again";
    eventually(why, || agent.process.log().contains(why).then_some(()));
    leasehold.until("explain worker worker-0", &["has its share: 3 slots and 2 streams"]);
    start_job(&agent, "job-1");

    // A drain that was asked for at the worker itself, too, goes on.
    leasehold.line("drain worker-0");
    agent.process.signal(Signal::TERM);
    let asked = "drains on: its drain was asked for at the worker itself";
    assert!(leasehold.refused("undrain worker-0").contains(asked));
    assert!(leasehold.refused("undrain worker-7").contains("worker-7"));
}

#[test]
fn a_drain_that_is_followed_ends_if_it_is_taken_back_or_the_worker_is_gone() {
    let coordinator = Coordinator::start(&[("all.yaml", MANIFESTS)]);
    let leasehold = CommandLine(&coordinator);
    let mut agent = coordinator.agent("builds", "worker-0", &[]);
    leasehold.until("explain worker worker-0", &["has its share: 3 slots and 2 streams"]);
    start_job(&agent, "job-0");
    let follow = || {
        let mut drain = leasehold.command("drain worker-0 --wait");
        let drain = drain.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        leasehold.until("explain worker worker-0", &["builds/worker-0 drains"]);
        drain.expect("it starts")
    };
    let ended = |drain: Child| {
        let output = drain.wait_with_output().expect("it ends");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };

    let drain = follow();
    leasehold.line("undrain worker-0");
    let (code, said) = ended(drain);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the drain of builds/worker-0 was taken back"), "{said}");

    let drain = follow();
    agent.process.kill();
    leasehold.until("workers", &["lost"]);
    // A look that sees it lost.
    std::thread::sleep(Duration::from_secs(1));
    leasehold.line("gone worker-0 --yes");
    let (code, said) = ended(drain);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("builds/worker-0 has left, or was declared gone"), "{said}");
}

#[test]
fn mistakes_are_named() {
    let coordinator = Coordinator::start(&[("all.yaml", MANIFESTS)]);
    let leasehold = CommandLine(&coordinator);
    leasehold.until("clusters", &["builds"]);
    let agent = coordinator.agent("builds", "worker-0", &[]);
    leasehold.until("workers", &["worker-0"]);
    let free = free_address();
    for (line, words) in [
        (format!("status --coordinator {free}"), "start one, or name it with --coordinator"),
        (format!("status --coordinator {}", coordinator.http), "gRPC is served on port"),
        ("workers nothing".to_owned(), "cluster nothing; `leasehold clusters` lists those"),
        ("workers buids".to_owned(), "no manifest defines cluster buids; did you mean builds?"),
        ("plan buids".to_owned(), "cluster buids; did you mean builds?"),
        ("events --cluster buids".to_owned(), "cluster buids; did you mean builds?"),
        ("explain cluster buids".to_owned(), "cluster buids; did you mean builds?"),
        ("explain worker buids/w".to_owned(), "cluster buids; did you mean builds?"),
        (format!("status --coordinator {}", agent.api), "is an agent's worker API"),
        ("drain w --cluster buids".to_owned(), "cluster buids; did you mean builds?"),
        ("explain stream a --set car".to_owned(), "stream set car; did you mean cars?"),
        ("explain worker nobody".to_owned(), "`leasehold workers` lists all"),
        ("explain stream none".to_owned(), "`leasehold streams` lists them"),
        // A flag comes before the variable that names the coordinator.
        ("status --kubeconfig /nowhere/config".to_owned(), "cannot read /nowhere/config"),
    ] {
        let why = leasehold.refused(&line);
        assert!(why.contains(words), "leasehold {line}: {why}");
    }
    let events = leasehold.run("events --since 2h");
    let said = String::from_utf8_lossy(&events.stderr);
    assert!(events.status.success(), "{said}");
    assert!(said.starts_with("changes are kept for 1h: those before "), "{said}");
}

/// The exit code tells a wrong command line from what a coordinator answers, or that none does.
#[test]
fn a_wrong_command_line_is_told_by_its_exit_code_before_anything_is_asked() {
    let free = free_address();
    for (line, words) in [
        ("status --coordinator nowhere", "expected HOST:PORT, for example 127.0.0.1:7400"),
        ("explain stream cars:new --cluster builds", "--cluster is for workers"),
        ("explain worker a -o name", "this has no names"),
        ("workers --sort size", "no column \"size\"; there are cluster, worker"),
        ("pipelines --sort size", "no column \"size\"; there are pipeline, load"),
        ("explain cluster builds --set cars", "--set for streams: leave them out"),
        ("events --kind unknown", "expected one of elected, deposed"),
        ("events --since 10", "use a number with a unit"),
        ("events -o yaml", "-o table or -o json"),
        ("status -o name", "this has no names"),
        ("plan builds -o name", "this has no names"),
        ("plan -f Cargo.toml", "name a .yaml or .yml file"),
        ("plan -f src", "no .yaml or .yml file is in this folder"),
        ("simulate -f src --load a.yaml", "no .yaml or .yml file is in this folder"),
        ("simulate -f Cargo.toml --load a.yaml", "name a .yaml or .yml file"),
        ("simulate -f a.yaml", "the following required arguments were not provided"),
        ("simulate -f a.yaml --load b.yaml --seed x", "expected a seed: a whole number of 0 or"),
        ("simulate -f a.yaml --load b.yaml -o yaml", "[possible values: table, json]"),
        ("status --service-account viewer", "expected NAMESPACE/NAME, for example ci/looker"),
        ("inject -f - -f -", "is given twice"),
        ("status --coordinator a:1 --namespace ci", "--namespace a cluster whose coordinators"),
        // A line that ends with a space ends with an empty argument.
        ("explain worker ", "for '<NAME>': expected a name, for example builds"),
        ("drain ", "for '<WORKER>': expected a worker's name, for example worker-1"),
        ("workers ", "for '[CLUSTER]': expected a cluster's name, for example builds"),
        ("events --cluster ", "for '--cluster <NAME>': expected a cluster's name"),
        ("inject -f - --coordinator 0.0.0.0:7400", "injected agents cannot dial this address: "),
        ("plan builds --add-worker a,", "for '--add-worker <NAMES>': expected a worker's name"),
        ("plan builds --add-worker A", "'--add-worker <NAMES>': worker name \"A\" is not a DNS"),
        ("plan builds --remove-worker A", "'--remove-worker <NAMES>': worker name \"A\" is not"),
        ("plan builds --add-worker a,b,a", "--add-worker names a twice: name it once"),
        ("explain worker A", "NAME \"A\": worker name \"A\" is not a DNS subdomain"),
        ("workers Builds", "for '[CLUSTER]': cluster name \"Builds\" is not a DNS subdomain"),
    ] {
        let mut command = Command::new(toolbox::binary("leasehold"));
        command.args(line.split(' ')).env("LEASEHOLD_COORDINATOR", free.to_string());
        let output = command.stdin(Stdio::null()).output().expect("it starts");
        let why = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "leasehold {line}: {why}");
        assert!(why.contains(words), "leasehold {line}: {why}");
    }
    let code = Command::new(toolbox::binary("leasehold"))
        .args(["status", "--coordinator", &free.to_string()])
        .status();
    assert_eq!(code.expect("it starts").code(), Some(1), "nobody answers there");
}

/// A folder with too many files cannot be read, and without manifests no coordinator leads.
#[test]
fn a_fleet_without_a_leader_is_an_error_that_says_what_each_replica_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let manifests = folder.path().join("manifests");
    std::fs::create_dir(&manifests).expect("a folder");
    for file in 0..=20_000 {
        std::fs::write(manifests.join(file.to_string()), "").expect("a file");
    }
    let addresses = [free_address(), free_address()];
    let replica = Replica::start_at(folder.path(), "coordinator", addresses, &[]);
    eventually("it serves", || get(replica.http, "/livez"));
    let (own, free) = (replica.grpc, free_address());
    let output = Command::new(toolbox::binary("leasehold"))
        .args(["status", "--coordinator", &format!("{own},{free}")])
        .output()
        .expect("it starts");
    let why = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{why}");
    let said = format!("{own} knows no leader, with a problem of its manifests: ");
    for words in [&said, "more than 20000 files", &format!("{free}: not reachable"), "/readyz"] {
        assert!(why.contains(words), "no {words:?} in {why}");
    }
    // One file fewer is not too many.
    std::fs::remove_file(manifests.join("0")).expect("a file");
    eventually("a leader", || get(replica.http, "/readyz").filter(|(status, _)| *status == 200));
}
