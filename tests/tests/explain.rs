//! What `leasehold explain` says in each situation of the table in `docs/CLI.md`: the sentences are
//! read from there.

use std::process::Command;

use tests::answers::shows;
use tests::command_line::{CommandLine, MANIFESTS, ask_for_job, documented, start_job};
use tests::process::{Agent, Coordinator, Process, eventually, free_address};
use tests::session::join;
use tests::toolbox;

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
    says(
        "worker worker-0",
        &[
            "builds/worker-0 is silent: its slots count until it reports or is",
            "meanwhile its jobs may go on, ",
        ],
    );
    let next = "if nothing of it runs any more: leasehold gone worker-0 --cluster builds";
    says("cluster builds", &["lost: worker-0; 3 slots may be in use there", next]);
    leasehold.until(&format!("explain stream {stream}"), &[next]);

    says("worker worker-1", &["builds/worker-1 has its share: 3 slots"]);
    leasehold.line("drain worker-1");
    says(
        "worker worker-1",
        &[
            "builds/worker-1 drains: it takes no job and gives its streams back",
            "Next: leasehold undrain worker-1 --cluster builds, if it is to work on",
        ],
    );
    says("cluster builds", &["draining: worker-1; 3 slots may be in use there"]);
}

#[test]
fn a_worker_that_fails_is_told_by_every_view() {
    let coordinator = Coordinator::start(&[("builds.yaml", MANIFESTS)]);
    let leasehold = CommandLine(&coordinator);
    let check =
        ["--worker-check-exec", "echo it is gone >&2; exit 4", "--worker-check-failures", "1"];
    let often = ["--worker-check-interval", "100ms", "--worker-check-start-period", "0s"];
    let _agent = coordinator.agent("builds", "worker-1", &[&check[..], &often].concat());
    let words = [
        "builds/worker-1 fails: it gets no job, and its streams go to other workers",
        "Next: see what worker-1 does: once it works again it gets jobs and streams",
    ];
    documented(&words);
    let why = "its agent says: --worker-check-exec exited with 4: it is gone";
    leasehold.until("explain worker worker-1", &[&words[..], &[why]].concat());
    leasehold.until("explain cluster builds", &["failing: worker-1; 0 slots may be in use there"]);
    let _green = coordinator.agent("green", "green-0", &[&check[..], &often].concat());
    let summary = "green/green-0 fails: it gets no share, and its shares go to other workers";
    leasehold.until("explain worker green-0", &[summary, why]);
    let line = "builds: 1 worker fails; `leasehold explain cluster builds` names them";
    leasehold.until("status", &[line]);
    leasehold.until("workers builds", &["failing"]);
    let gauge = "leasehold_workers_failing{cluster=\"builds\"} 1";
    eventually("the metric", || shows(coordinator.http, gauge));
}

#[test]
fn a_cluster_on_hold_says_for_whom_it_waits() {
    let manifest = MANIFESTS.replace("ttl: 2s", "ttl: 20s");
    let mut coordinator = Coordinator::start(&[("builds.yaml", &manifest)]);
    let mut agent = coordinator.agent("builds", "worker-0", &[]);
    CommandLine(&coordinator).until("explain worker worker-0", &["has its share: 3 slots"]);
    let standby = coordinator.standby();
    agent.process.kill();
    let words = ["Next: see on its host whether the agent of worker-0 runs: if it does, its log"];
    documented(&words);
    CommandLine(&coordinator).until("explain worker worker-0", &words);
    coordinator.process.kill();
    let words =
        ["builds is on hold: it waits at most ", " for builds/worker-0, which has not reported"];
    documented(&words);
    let line = format!("explain cluster builds --coordinator {}", standby.grpc);
    let next =
        "Next: start the agent of worker-0 again, on its host and with the same --state-dir (if";
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

    let _second = other_agent(&coordinator, &["--take-over"]);
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

/// An agent of worker-2 with a state folder of its own, as on another host.
fn other_agent(coordinator: &Coordinator, more: &[&str]) -> Agent {
    let api = free_address();
    let mut command = Command::new(toolbox::binary("leasehold-agent"));
    command.args(["run", "--coordinator", &coordinator.grpc.to_string(), "--cluster", "builds"]);
    command.args(["--worker", "worker-2", "--listen", &api.to_string()]).args(more);
    command.arg("--state-dir").arg(coordinator.folder().join("state-second"));
    let log = coordinator.folder().join("second.log");
    Agent { process: Process::start(&mut command, &log), api }
}

#[test]
fn an_agent_whose_name_another_one_has_is_told_by_every_view() {
    let coordinator = Coordinator::start(&[("builds.yaml", MANIFESTS)]);
    let leasehold = CommandLine(&coordinator);
    let _first = coordinator.agent("builds", "worker-2", &[]);
    leasehold.until("explain worker worker-2", &["has its share: 3 slots"]);

    let mut second = other_agent(&coordinator, &[]);
    let folder = coordinator.folder().join("state-second");
    let wants = "another agent wants its name, and is refused: the one at";
    let next = "Next: give the other agent's worker a name of its own: worker-2 has an agent";
    documented(&[wants, next]);
    let folder = format!("state folder {}", folder.display());
    leasehold.until("explain worker worker-2", &[wants, &folder, next]);
    leasehold.until("explain cluster builds", &["whose name another agent wants: worker-2"]);
    let line = "builds: another agent wants 1 name that a worker has, and is refused";
    leasehold.until("status", &[line]);
    let events = leasehold.line("events --kind name-refused -o json");
    let told = events.matches("CHANGE_KIND_NAME_REFUSED").count();
    assert!(told == 1 && events.contains(&folder), "it is told once, and where it runs: {events}");
    let log = coordinator.process.log();
    assert_eq!(log.matches("another agent wants the worker's name").count(), 1, "{log}");

    second.process.kill();
    eventually("no view of it", || {
        let explained = leasehold.line("explain worker worker-2");
        (!explained.contains("another agent")).then_some(())
    });
}

#[test]
fn a_pipeline_whose_change_finds_no_room_is_told_by_every_view() {
    let coordinator = Coordinator::start(&[("all.yaml", MANIFESTS)]);
    let leasehold = CommandLine(&coordinator);
    let agent = coordinator.agent("green", "green-0", &[]);
    leasehold.until("pipelines", &["third        5  ready"]);
    let next = "Next: start the agent of green-0 with --worker-address HOST:PORT";
    let unaddressed = "green/green-0 names no address (--worker-address): ";
    documented(&[unaddressed, next]);
    leasehold.until("explain pipeline third", &[unaddressed, next]);
    let status = leasehold.line("status");
    assert!(status.contains("1 pipeline with workers that name no address"), "{status}");

    let edited = MANIFESTS.replace("documentsPerSecond: 5", "documentsPerSecond: 20");
    let file = coordinator.folder().join("edited.yaml");
    std::fs::write(&file, &edited).expect("a file");
    let plan = leasehold.run(&format!("plan -f {}", file.display()));
    let said = String::from_utf8_lossy(&plan.stdout);
    assert_eq!(plan.status.code(), Some(2), "{said}");
    assert!(said.contains("The change of 1 pipeline would not come into force"), "{said}");

    let manifest = coordinator.folder().join("manifests/all.yaml");
    std::fs::write(&manifest, &edited).expect("an edit");
    let waits = "what is desired now (20 documents per second) is not in force: it waits for";
    leasehold.until("pipelines", &["third        5  ready", waits]);
    leasehold.until("status", &[&format!("third is ready, but {waits}")]);
    let explained = format!("third is Ready: {waits}");
    documented(&[&explained]);
    leasehold.until("explain pipeline third", &[&explained, "add a worker to class green"]);

    let invalid = MANIFESTS.replace("documentsPerSecond: 5", "documentsPerSecond: many");
    std::fs::write(&manifest, invalid).expect("an edit");
    leasehold.until("pipelines", &["1 problem with manifests", "`leasehold status` lists them"]);
    leasehold.until("explain pipeline third", &["a manifest is invalid, and its last good state"]);
    drop(agent);
}

#[test]
fn a_worker_of_an_older_generation_says_who_comes_first() {
    let coordinator = Coordinator::start(&[("all.yaml", MANIFESTS)]);
    let leasehold = CommandLine(&coordinator);
    let newer = ["worker-1", "worker-2"];
    let _newer = newer.map(|worker| coordinator.agent("builds", worker, &["--generation", "1"]));
    for worker in newer {
        leasehold.until(&format!("explain worker {worker}"), &["has its share: 3 slots"]);
    }
    let older = coordinator.agent("builds", "worker-0", &[]);
    let summary = "builds/worker-0 has 0 slots: workers of newer generations come first (up to 1, \
                   it is of 0)";
    let next = "Next: if worker-0 is to have an equal share, start its agent with --generation 1";
    documented(&[summary, next]);
    leasehold.until("explain worker worker-0", &[summary, next]);
    let reason = "workers of newer generations come first, up to 1: it is of 0";
    leasehold.until("plan builds", &[reason]);
    // One more slot than the newer ones take is not an equal share either.
    leasehold.until("plan builds --max-jobs 7", &[reason]);

    let told = "workers of newer generations get slots before this one";
    eventually("the agent's log", || older.process.log().contains(told).then_some(()));
    let (status, refused) = ask_for_job(&older, "a");
    assert_eq!(status, 409, "{refused}");
    assert!(refused.contains("start this worker's agent with --generation 1"), "{refused}");

    let fair = MANIFESTS.replace("lease: {ttl: 2s}", "lease: {ttl: 2s}, rollout: {order: Fair}");
    let edited = coordinator.folder().join("edited.yaml");
    std::fs::write(&edited, &fair).expect("a manifest");
    let plan = leasehold.line(&format!("plan -f {}", edited.display()));
    assert!(plan.contains("shared out") && !plan.contains("come first"), "{plan}");
    std::fs::write(coordinator.folder().join("manifests/all.yaml"), &fair).expect("a manifest");
    leasehold.until("explain worker worker-0", &["has its share: 2 slots"]);
    // The agent gets the grant after the coordinator has made it.
    eventually("a job", || (ask_for_job(&older, "a").0 == 200).then_some(()));
    std::fs::write(coordinator.folder().join("manifests/all.yaml"), MANIFESTS).expect("a manifest");
    leasehold.until("explain worker worker-0", &["workers of newer generations come first"]);
}

#[test]
fn a_drain_beyond_its_deadline_says_what_is_left() {
    let manifest = MANIFESTS.replace("lease: {ttl: 2s}", "lease: {ttl: 2s}, drain: {deadline: 1s}");
    let coordinator = Coordinator::start(&[("builds.yaml", &manifest)]);
    let leasehold = CommandLine(&coordinator);
    // The agent has a longer deadline of its own, so that it stays.
    let agent = coordinator.agent("builds", "worker-1", &["--drain-deadline", "1h"]);
    start_job(&agent, "long");
    leasehold.line("drain worker-1");
    let summary =
        "builds/worker-1 drains for longer than its deadline of 1s: 1 job and 0 streams are left";
    let next = "Next: end the jobs of worker-1 and have it let its streams go, or stop it and";
    let fact = "draining beyond the deadline: worker-1";
    documented(&[summary, next, fact]);
    leasehold.until("explain worker worker-1", &[summary, next]);
    leasehold.until("explain cluster builds", &[fact, next]);
}

#[test]
fn an_agent_of_an_older_version_is_named_with_what_to_do() {
    const OWN: &str = env!("CARGO_PKG_VERSION");
    // It sends no beats, so that its leases must last for the whole test.
    let manifest = MANIFESTS.replace("ttl: 2s", "ttl: 5m");
    let coordinator = Coordinator::start(&[("builds.yaml", &manifest)]);
    let leasehold = CommandLine(&coordinator);
    leasehold.until("status", &["leads term"]);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let old = runtime.block_on(join(coordinator.grpc, "builds", "worker-3", "0.0.9"));
    let fact = "the agent of worker-3 has version 0.0.9, older than this coordinator's ";
    let next = "Next: update the agent of worker-3 to version ";
    let named = "with an older agent: worker-3";
    documented(&[fact, next, named]);
    let said = leasehold.until("explain worker worker-3", &[fact, next]);
    assert!(said.contains(&format!("{fact}{OWN}")), "{said}");
    assert!(said.contains(&format!("{next}{OWN}")), "{said}");
    leasehold.until("explain cluster builds", &[named]);
    leasehold.until("version", &["agent        0.0.9  1 agent", "Some agents are older"]);
    drop(old);

    let _present = coordinator.agent("builds", "worker-4", &[]);
    let said = leasehold.until("explain worker worker-4", &["builds/worker-4 has its share"]);
    assert!(!said.contains("version"), "{said}");
}
