//! Two agents under one name: the one that has it keeps it while it may hold anything, whichever
//! coordinator leads; and what it holds stays its own when a person gives the name to another.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tests::answers::{lease, shows};
use tests::command_line::CommandLine;
use tests::machine;
use tests::process::{Agent, Coordinator, Process, eventually, free_address, get, throughout};
use tests::toolbox::{self, Missing};

/// Each row of the table on names, by its first cell, and the test that shows it.
const ROWS: [(&str, &str); 9] = [
    (
        "the same agent: same machine, same `--state-dir`",
        "a_copy_of_the_state_folder_on_another_machine_is_another_agent",
    ),
    (
        "the same agent after a reboot of its machine",
        "a_reboot_of_its_machine_ends_what_an_agent_had",
    ),
    (
        "the same agent, its journal lost",
        "the_jobs_of_a_lost_journal_count_until_the_worker_says_how_many_run",
    ),
    (
        "an agent with another folder, or with none",
        "an_agent_without_a_state_folder_does_not_get_the_slots_of_its_predecessor",
    ),
    (
        "the same where the first one ran no job and held no stream, and its leases are over",
        "the_name_of_an_agent_that_held_nothing_is_free_when_its_leases_are_over",
    ),
    (
        "a copy of the folder on another machine",
        "a_copy_of_the_state_folder_on_another_machine_is_another_agent",
    ),
    (
        "an agent with `--take-over`",
        "an_agent_whose_name_is_taken_over_drains_and_its_slots_count_until_it_has_left",
    ),
    (
        "an agent with `--take-over`, the first one lost",
        "what_a_lost_agent_held_is_free_when_it_is_declared_gone_or_by_time",
    ),
    (
        "the first agent after it was taken over",
        "slots_of_a_host_that_is_cut_off_are_not_given_to_the_next_agent_of_its_name",
    ),
];

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
    let script = format!("touch {0}; while test -e {0}; do sleep 0.1; done", started.display());
    let second = start(&folder, &both, "second", &["--", "sh", "-c", &script]);
    let refused = |agent: &Agent| {
        let (status, why) = get(agent.api, "/readyz")?;
        (status == 503 && why.contains("another agent has the name")).then_some(why)
    };
    let why = eventually("the second's refusal", || refused(&second));
    assert!(why.contains("hold streams: incarnation") && why.contains(" at 127.0.0.1:"), "{why}");
    let process =
        format!("process {}, state folder {}", first.process.id(), folder.join("first").display());
    assert!(why.contains(" (host ") && why.contains(&process), "no {process:?}: {why}");
    assert!(why.contains("--take-over") && why.contains("--state-dir"), "{why}");
    // For longer than the first agent's leases last, nothing changes.
    throughout(Duration::from_secs(5), || {
        assert_eq!(streams(&first, 2).as_ref(), Some(&before), "the first keeps what it has");
    });
    let said = second.process.log().matches("NameTaken").count();
    assert_eq!(said, 1, "it is said once:\n{}", second.process.log());
    assert!(!started.exists(), "COMMAND is not started");

    // A restart with the state folder is the same agent.
    first.process.kill();
    first = start(&folder, &both, "first", &[]);
    assert_eq!(eventually("both streams again", || streams(&first, 2)), before);

    // Another leader knows by the register whose the name is, whichever of the two dials first.
    coordinator.process.kill();
    eventually("a successor", || shows(standby.http, "leasehold_leader 1"));
    assert_eq!(eventually("the streams at the successor", || streams(&first, 2)), before);
    let by_successor = || {
        let (_, metrics) = get(standby.http, "/metrics")?;
        let refusals = "leasehold_refusals_total{reason=\"name_taken\"";
        metrics.lines().any(|line| line.starts_with(refusals)).then_some(())
    };
    eventually("a refusal by the successor", by_successor);
    assert!(refused(&second).is_some());
    assert_eq!(streams(&first, 2), Some(before));

    // Silence does not end what the first one may run: the name stays its own until a person says
    // so.
    first.process.kill();
    let lost = "leasehold_workers{cluster=\"builds\",presence=\"lost\"} 1";
    eventually("its loss", || shows(standby.http, lost));
    assert!(refused(&second).is_some());
    let (is_well, said) = leave(&folder, &both, "first");
    assert!(is_well, "{said}");
    eventually("the streams at the second", || streams(&second, 2));
    eventually("COMMAND", || started.exists().then_some(()));
    assert_eq!(get(second.api, "/readyz").expect("it answers").0, 200);
    // Now the first one has to wait.
    first = start(&folder, &both, "first", &[]);
    eventually("the first's refusal", || refused(&first));
    first.process.signal(Signal::TERM);
    assert!(first.process.wait().success(), "one that never had the name ends at once");
}

#[test]
fn an_agent_whose_name_is_taken_over_drains_and_its_slots_count_until_it_has_left() {
    let coordinator = Coordinator::start(&[("builds.yaml", &slots("ttl: 2s"))]);
    let (folder, address) = (coordinator.folder(), coordinator.grpc.to_string());
    let mut first = start(folder, &address, "first", &["--", "sh", &worker(folder)]);
    eventually("three jobs", || (jobs(&first) == Some(3)).then_some(()));
    let second = start(folder, &address, "second", &["--take-over"]);
    eventually("a report of the second", || readiness(&second, 200, "ok"));
    // COMMAND takes no notice of SIGTERM, and its jobs run on.
    throughout(Duration::from_secs(3), || {
        assert_eq!(jobs(&first), Some(3), "{}", first.process.log());
        assert_eq!(pool(&second), Some(0), "the budget is in use:\n{}", second.process.log());
    });
    let (_, listed) = get(coordinator.http, "/metrics").expect("it answers");
    assert!(listed.contains("leasehold_slots_committed{cluster=\"builds\"} 3"), "{listed}");
    std::fs::write(folder.join("end"), "").expect("a file");
    eventually("all slots at the second", || (pool(&second) == Some(3)).then_some(()));
    first.process.wait();
}

#[test]
fn slots_of_a_host_that_is_cut_off_are_not_given_to_the_next_agent_of_its_name() {
    let coordinator = Coordinator::start(&[("builds.yaml", &slots("ttl: 1s"))]);
    let (folder, address) = (coordinator.folder(), coordinator.grpc.to_string());
    let mut first = start(folder, &address, "first", &["--", "sh", &worker(folder)]);
    eventually("three jobs", || (jobs(&first) == Some(3)).then_some(()));
    first.process.signal(Signal::STOP);
    let second = start(folder, &address, "second", &[]);
    let lost = "leasehold_workers{cluster=\"builds\",presence=\"lost\"} 1";
    eventually("the first's loss", || shows(coordinator.http, lost));
    let taken = || readiness(&second, 503, "another agent has the name builds/w");
    eventually("the second's refusal", taken);
    // A person gives it the name all the same: the slots stay with the first one.
    drop(second);
    let second = start(folder, &address, "second", &["--take-over"]);
    eventually("a report of the second", || readiness(&second, 200, "ok"));
    throughout(Duration::from_secs(2), || {
        assert_eq!(pool(&second), Some(0), "{}", second.process.log());
    });
    // The first one comes back, is known, and leaves once its jobs have ended.
    std::fs::write(folder.join("end"), "").expect("a file");
    first.process.signal(Signal::CONT);
    eventually("all slots at the second", || (pool(&second) == Some(3)).then_some(()));
    first.process.wait();
    // It does not get the name back.
    let again = start(folder, &address, "first", &[]);
    let taken = || readiness(&again, 503, "another agent has the name builds/w");
    eventually("the refusal of the first", taken);
    assert_eq!(pool(&second), Some(3), "{}", second.process.log());
}

#[test]
fn what_a_lost_agent_held_is_free_when_it_is_declared_gone_or_by_time() {
    for more in ["", ", lost: {after: 10s}"] {
        let manifest = slots("ttl: 1s").replace("{ttl: 1s}", &format!("{{ttl: 1s}}{more}"));
        let coordinator = Coordinator::start(&[("builds.yaml", &manifest)]);
        let (folder, address) = (coordinator.folder(), coordinator.grpc.to_string());
        let mut first = start(folder, &address, "first", &["--", "sh", &worker(folder)]);
        eventually("three jobs", || (jobs(&first) == Some(3)).then_some(()));
        first.process.kill();
        let second = start(folder, &address, "second", &["--take-over"]);
        eventually("a report of the second", || readiness(&second, 200, "ok"));
        assert_eq!(pool(&second), Some(0), "{}", second.process.log());
        if more.is_empty() {
            let leasehold = CommandLine(&coordinator);
            let former = eventually("the former agent", || {
                let names = leasehold.line("workers builds -o name");
                Some(names.lines().find(|name| name.contains('@'))?.to_owned())
            });
            eventually("the end of its leases", || {
                let gone = leasehold.try_line(&format!("gone {former} --yes"));
                gone.is_ok().then_some(())
            });
        }
        eventually("all slots at the second", || (pool(&second) == Some(3)).then_some(()));
        std::fs::write(folder.join("end"), "").expect("COMMAND ends");
    }
}

#[test]
fn the_jobs_of_a_lost_journal_count_until_the_worker_says_how_many_run() {
    let coordinator = Coordinator::start(&[("builds.yaml", &slots("ttl: 1s"))]);
    let (folder, address) = (coordinator.folder(), coordinator.grpc.to_string());
    let mut first = start(folder, &address, "first", &["--", "sh", &worker(folder)]);
    eventually("three jobs", || (jobs(&first) == Some(3)).then_some(()));
    first.process.kill();
    std::fs::remove_file(folder.join("first/journal.jsonl")).expect("a journal");
    let second = start(folder, &address, "first", &[]);
    eventually("its report", || readiness(&second, 200, "are unknown"));
    let committed = "leasehold_slots_committed{cluster=\"builds\"} 3";
    throughout(Duration::from_secs(2), || {
        let counted = shows(coordinator.http, committed);
        assert!(counted.is_some(), "{}", coordinator.process.log());
    });
    std::fs::write(folder.join("end"), "").expect("COMMAND ends");
    let said = r#"{"start_id":"again","running":0}"#;
    let url = format!("http://{}/v1/start", second.api);
    let told = Command::new("curl").args(["-fsS", "-X", "POST", "-d", said, &url]).status();
    assert!(told.expect("curl starts").success(), "{}", second.process.log());
    eventually("three free slots", || (pool(&second) == Some(3)).then_some(()));
    assert_eq!(jobs(&second), Some(0), "{}", second.process.log());
}

#[test]
fn every_row_of_the_table_on_names_has_a_test() {
    let text = std::fs::read_to_string(toolbox::root().join("docs/OPERATIONS.md")).expect("a file");
    let (_, text) = text.split_once("| who is started under the name |").expect("the table");
    let rows = text.lines().skip(2).take_while(|line| line.starts_with('|'));
    let first = |row: &str| row.split('|').nth(1).unwrap_or_default().trim().to_owned();
    let documented: Vec<String> = rows.map(first).collect();
    assert_eq!(documented, ROWS.map(|(row, _)| row.to_owned()));
    for (row, test) in ROWS {
        assert!(include_str!("names.rs").contains(&format!("fn {test}()")), "{row}: no {test}");
    }
}

#[test]
fn an_agent_without_a_state_folder_does_not_get_the_slots_of_its_predecessor() {
    let coordinator = Coordinator::start(&[("builds.yaml", &slots("ttl: 1s"))]);
    let (folder, address) = (coordinator.folder(), coordinator.grpc.to_string());
    let script = worker(folder);
    let mut first = start_without_folder(folder, &address, "first", &["--", "sh", &script]);
    eventually("three jobs", || (jobs(&first) == Some(3)).then_some(()));
    first.process.kill();
    let again = start_without_folder(folder, &address, "again", &[]);
    let lost = "leasehold_workers{cluster=\"builds\",presence=\"lost\"} 1";
    eventually("the first's loss", || shows(coordinator.http, lost));
    let taken = || readiness(&again, 503, "another agent has the name builds/w");
    eventually("the second's refusal", taken);
    assert_eq!(pool(&again), Some(0), "{}", again.process.log());
    std::fs::write(folder.join("end"), "").expect("COMMAND ends");
}

#[test]
fn a_copy_of_the_state_folder_on_another_machine_is_another_agent() {
    let coordinator = Coordinator::start(&[("builds.yaml", &slots("ttl: 1s"))]);
    let (folder, address) = (coordinator.folder(), coordinator.grpc.to_string());
    let Some(machine) = another_machine(folder) else { return };
    let script = worker(folder);
    let mut first = start(folder, &address, "first", &["--", "sh", &script]);
    eventually("three jobs", || (jobs(&first) == Some(3)).then_some(()));
    first.process.kill();
    let mut copy = Command::new("cp");
    let copied = copy.arg("-r").arg(folder.join("first")).arg(folder.join("copy")).status();
    assert!(copied.expect("cp starts").success());
    let copy = start_by(machine, folder, &address, "copy", &[]);
    let taken = || readiness(&copy, 503, "another agent has the name builds/w");
    eventually("the copy's refusal", taken);
    assert!(copy.process.log().contains("from another machine"), "{}", copy.process.log());
    // A restart on its own machine is the same agent, and knows its jobs.
    let first = start(folder, &address, "first", &["--", "sh", &script]);
    eventually("its jobs", || (jobs(&first) == Some(3)).then_some(()));
    std::fs::write(folder.join("end"), "").expect("COMMAND ends");
}

#[test]
fn a_reboot_of_its_machine_ends_what_an_agent_had() {
    let coordinator = Coordinator::start(&[("builds.yaml", &slots("ttl: 1s"))]);
    let (folder, address) = (coordinator.folder(), coordinator.grpc.to_string());
    let Some(rebooted) = in_another_boot(folder) else { return };
    let mut first = start(folder, &address, "first", &["--", "sh", &worker(folder)]);
    eventually("three jobs", || (jobs(&first) == Some(3)).then_some(()));
    first.process.kill();
    std::fs::write(folder.join("end"), "").expect("COMMAND ends");
    // In the same boot its journal says that they run.
    let mut again = start(folder, &address, "first", &[]);
    eventually("its jobs", || (jobs(&again) == Some(3)).then_some(()));
    again.process.kill();
    let again = start_by(rebooted, folder, &address, "first", &[]);
    let is_new = || (pool(&again) == Some(3) && jobs(&again) == Some(0)).then_some(());
    eventually("three free slots", is_new);
}

#[test]
fn the_name_of_an_agent_that_held_nothing_is_free_when_its_leases_are_over() {
    let manifest = slots("ttl: 1s").replace("maxJobs: 3", "maxJobs: 0");
    let coordinator = Coordinator::start(&[("builds.yaml", &manifest)]);
    let (folder, address) = (coordinator.folder(), coordinator.grpc.to_string());
    let mut first = start(folder, &address, "first", &[]);
    eventually("its snapshot", || readiness(&first, 200, "ok"));
    first.process.kill();
    let second = start(folder, &address, "second", &[]);
    eventually("the second in its place", || readiness(&second, 200, "ok"));
}

#[test]
fn a_drain_reports_what_it_waits_for() {
    let coordinator = Coordinator::start(&[("builds.yaml", MANIFESTS)]);
    let (folder, address) = (coordinator.folder(), coordinator.grpc.to_string());
    let mut first = start(folder, &address, "first", &[]);
    eventually("both streams", || streams(&first, 2));
    first.process.kill();
    // Without its journal it knows nothing of the jobs that it let begin before.
    std::fs::remove_file(folder.join("first/journal.jsonl")).expect("a journal");
    let mut second = start(folder, &address, "first", &[]);
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

/// Three slots a worker, of which the first takes all.
fn slots(lease: &str) -> String {
    format!(
        "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\nmetadata: {{name: builds}}\n\
         spec: {{maxJobs: 3, maxJobsPerWorker: 3, lease: {{{lease}}}}}\n"
    )
}

/// A worker that takes three slots, does not heed SIGTERM, and ends once there is a file `end`, or
/// no folder any more: it outlives its agent.
fn worker(folder: &Path) -> String {
    let path = folder.join("worker");
    let text = format!(
        "trap '' TERM\n\
         cd {}\n\
         pause() {{ test -e worker || exit; sleep 0.1; }}\n\
         for job in a b c; do\n\
         until curl -fsS -X PUT \"$LEASEHOLD_ADDR/v1/jobs/$job?wait_ms=5000\"; do pause; done\n\
         done\n\
         until test -e end; do pause; done\n",
        folder.display()
    );
    std::fs::write(&path, text).expect("the worker is written");
    path.to_str().expect("UTF-8").to_owned()
}

/// An agent of the one worker, with a state folder and a log of its own.
fn start(folder: &Path, coordinators: &str, name: &str, more: &[&str]) -> Agent {
    start_by(Command::new(toolbox::binary("leasehold-agent")), folder, coordinators, name, more)
}

/// The same with a command that runs the agent.
fn start_by(
    mut command: Command,
    folder: &Path,
    coordinators: &str,
    name: &str,
    more: &[&str],
) -> Agent {
    let api = free_address();
    command.args(["run", "--coordinator", coordinators, "--cluster", "builds", "--worker", "w"]);
    command.args(["--listen", &api.to_string(), "--state-dir"]).arg(folder.join(name)).args(more);
    Agent { process: Process::start(&mut command, &folder.join(format!("{name}.log"))), api }
}

/// The same without a state folder.
fn start_without_folder(folder: &Path, coordinators: &str, name: &str, more: &[&str]) -> Agent {
    let api = free_address();
    let mut command = Command::new(toolbox::binary("leasehold-agent"));
    command.args(["run", "--coordinator", coordinators, "--cluster", "builds", "--worker", "w"]);
    command.args(["--listen", &api.to_string()]).args(more);
    Agent { process: Process::start(&mut command, &folder.join(format!("{name}.log"))), api }
}

/// A command that runs the agent as on another machine. None where that is not allowed, which is
/// noted.
fn another_machine(folder: &Path) -> Option<Command> {
    elsewhere(|| machine::another(folder))
}

/// The same as if this machine had booted since.
fn in_another_boot(folder: &Path) -> Option<Command> {
    elsewhere(|| machine::rebooted(folder))
}

fn elsewhere(command: impl Fn() -> std::io::Result<Command>) -> Option<Command> {
    let tried = command().expect("its files").arg("true").output();
    if tried.as_ref().is_ok_and(|tried| tried.status.success()) {
        let mut command = command().expect("its files");
        command.arg(toolbox::binary("leasehold-agent"));
        return Some(command);
    }
    let why = match tried {
        Ok(tried) => String::from_utf8_lossy(&tried.stderr).trim().replace('\n', "; "),
        Err(error) => error.to_string(),
    };
    toolbox::leave_out("an agent on another machine or after a boot", &why, Missing::Forbidden);
    None
}

/// `leasehold-agent leave` with the state folder of this name.
fn leave(folder: &Path, coordinators: &str, name: &str) -> (bool, String) {
    let mut command = Command::new(toolbox::binary("leasehold-agent"));
    command.args(["leave", "--coordinator", coordinators, "--cluster", "builds", "--worker", "w"]);
    command.arg("--nothing-runs").arg("--state-dir").arg(folder.join(name));
    let output = command.output().expect("it starts");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// Whether the agent answers this when asked whether it is ready.
fn readiness(agent: &Agent, status: u16, text: &str) -> Option<()> {
    let (answered, body) = get(agent.api, "/readyz")?;
    (answered == status && body.contains(text)).then_some(())
}

/// The size of its pool.
fn pool(agent: &Agent) -> Option<u64> {
    lease(agent.api)?["pool"]["size"].as_u64()
}

/// The jobs that run under its pool.
fn jobs(agent: &Agent) -> Option<u64> {
    lease(agent.api)?["pool"]["running"].as_u64()
}

/// The tokens of its streams, where it holds this many and is connected.
fn streams(agent: &Agent, count: usize) -> Option<Vec<String>> {
    let lease = lease(agent.api).filter(|lease| lease["connected"] == true)?;
    let held = lease["streams"].as_array()?.iter().filter(|stream| stream["state"] == "held");
    let tokens: Vec<String> = held.map(|stream| stream["token"].to_string()).collect();
    (tokens.len() == count).then_some(tokens)
}
