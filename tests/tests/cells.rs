//! Coordinators that do not belong together: each state folder is a cell, an agent obeys one, and
//! everybody says so.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tests::answers::{json, lease, metric};
use tests::command_line::{CommandLine, MANIFESTS};
use tests::process::{Agent, Coordinator, Process, Replica, eventually, free_address, throughout};
use tests::toolbox;

/// How long a coordinator waits for the hello of a session.
const HELLO_WITHIN: Duration = Duration::from_secs(5);

/// Two coordinators with a state folder each, and agents that dial both in different orders: each
/// would grant the whole budget, and every stream, to agents of its own.
#[test]
fn two_state_folders_are_two_cells_and_everybody_says_so() {
    let [first, mut second] = [(); 2].map(|()| Coordinator::start(&[("cars.yaml", MANIFESTS)]));
    let cells = [first.http, second.http].map(cell);
    assert_ne!(cells[0], cells[1]);
    let [at_first, at_second] = [&first, &second].map(|one| one.grpc.to_string());
    let near = first.agent("builds", "w-0", &["--coordinator", &at_second]);
    let mut far = second.agent("builds", "w-1", &["--coordinator", &at_first]);
    let held = [&near, &far].map(|agent| eventually("all streams", || all_streams(agent)));
    assert!(held[0].is_disjoint(&held[1]), "a token was given out twice: {held:?}");

    for (agent, other) in [(&near, &at_second), (&far, &at_first)] {
        eventually("an agent that names the other coordinator", || {
            let log = agent.process.log();
            let told = |line: &&str| line.contains("ERROR") && line.contains("another cell");
            log.lines().find(told).filter(|line| line.contains(other.as_str())).map(|_| ())
        });
    }
    let status = CommandLine(&first).until("status", &["w-0", &at_second, "\"Two cells\""]);
    assert!(status.contains(&format!("Cell {}, store ", cells[0])), "{status}");
    assert!(status.contains(first.folder().join("state").to_str().expect("UTF-8")), "{status}");

    // Who only looks at a cell leaves no session behind, to be refused for want of a hello.
    throughout(HELLO_WITHIN + Duration::from_secs(1), || {
        let refused = metric(first.http, "leasehold_refusals_total{reason=\"invalid\"}");
        assert_eq!(refused, Some(0.0));
    });

    // Without its own coordinator an agent obeys none, and its leases end by time.
    second.process.kill();
    eventually("a refusal", || far.process.log().contains("reason=OtherCell").then_some(()));
    assert_eq!(CommandLine(&first).line("workers -o name"), "builds/w-0\n");
    far.process.kill();

    // A person moves it once it holds nothing.
    let of_first = |more: &[&str]| {
        let mut command = Command::new(toolbox::binary("leasehold-agent"));
        command.args(["run", "--cluster", "builds", "--worker", "w-1", "--coordinator", &at_first]);
        command.arg("--state-dir").arg(second.folder().join("state-w-1")).args(more);
        command
    };
    let refused =
        of_first(&["--cell", &cells[0]]).stdin(Stdio::null()).output().expect("it starts");
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{why}");
    assert!(
        why.contains(&format!("belongs to cell {}", cells[1])) && why.contains("2 streams"),
        "{why}"
    );
    let addresses = [second.grpc, second.http];
    let again = Replica::start_at(second.folder(), "again", addresses, &["--cell", &cells[1]]);
    assert_eq!(cell(again.http), cells[1]);
    let mut leave = Command::new(toolbox::binary("leasehold-agent"));
    leave.args(["leave", "--nothing-runs", "--cluster", "builds", "--worker", "w-1"]);
    leave.args(["--coordinator", &at_second, "--state-dir"]);
    let left = leave.arg(second.folder().join("state-w-1")).output().expect("it starts");
    assert!(left.status.success(), "{}", String::from_utf8_lossy(&left.stderr));
    let api = free_address();
    let mut moved = of_first(&["--cell", &cells[0], "--listen", &api.to_string()]);
    let moved = Process::start(&mut moved, &second.folder().join("moved.log"));
    eventually("both workers in the first cell", || {
        (lease(api)?["connected"] == true).then_some(())
    });
    CommandLine(&first).until("workers -o name", &["builds/w-0", "builds/w-1"]);
    drop(moved);
}

/// The state folder is lost: what starts on an empty one is another cell, which its agents refuse
/// until a person says that it continues theirs.
#[test]
fn a_lost_state_folder_is_replaced_under_the_name_of_its_cell() {
    let mut first = Coordinator::start(&[("cars.yaml", MANIFESTS)]);
    let lost = cell(first.http);
    let addresses = [free_address(), free_address()];
    let agent = first.agent("builds", "w-0", &["--coordinator", &addresses[0].to_string()]);
    eventually("all streams", || all_streams(&agent));
    first.process.kill();
    std::fs::remove_dir_all(first.folder().join("state")).expect("it is lost");

    let mut second = Replica::start_at(first.folder(), "second", addresses, &[]);
    eventually("a refusal that names the cell", || {
        let log = agent.process.log();
        (log.contains("reason=OtherCell") && log.contains(&lost)).then_some(())
    });
    let other = cell(second.http);
    assert_ne!(other, lost);
    second.process.kill();
    let mut wrong = Replica::start_at(first.folder(), "wrong", addresses, &["--cell", &lost]);
    assert!(!wrong.process.wait().success());
    let log = wrong.process.log();
    assert!(log.contains(&format!("the folder of cell {other}")), "{log}");

    std::fs::remove_dir_all(first.folder().join("state")).expect("it is removed");
    let third = Replica::start_at(first.folder(), "third", addresses, &["--cell", &lost]);
    assert_eq!(cell(third.http), lost);
    eventually("its agent", || {
        (json(agent.api, "/v1/lease?peek=true")?["connected"] == true).then_some(())
    });
}

/// Two replicas on one state folder that would lead different fleets, and two that have one name: a
/// failover would show both too late.
#[test]
fn replicas_with_other_manifests_or_a_name_twice_are_named_before_a_failover() {
    let leader = Coordinator::start(&[("cars.yaml", MANIFESTS)]);
    CommandLine(&leader).until("status", &["leads term"]);
    let other = tempfile::tempdir().expect("a folder");
    let text = MANIFESTS.replace("maxJobs: 6", "maxJobs: 80");
    std::fs::create_dir(other.path().join("manifests")).expect("a folder");
    std::fs::write(other.path().join("manifests/cars.yaml"), text).expect("a manifest");
    let state = leader.folder().join("state");
    std::os::unix::fs::symlink(state, other.path().join("state")).expect("a link");
    let start = |folder: &Path| {
        let addresses = [free_address(), free_address()];
        Replica::start_at(folder, "standby", addresses, &["--identity", "standby"])
    };
    let replicas = [start(other.path()), start(leader.folder())];
    let [standby, twin] = replicas.each_ref().map(|replica| replica.grpc.to_string());
    let differs = format!("The replica at {standby} has other manifests in force");
    let named = format!("The replica at {standby} has the name of the replica at {twin}");
    let both = format!("status --coordinator {},{twin}", leader.grpc);
    CommandLine(&leader).until(&both, &[&differs, &named]);
    let log = leader.process.log();
    let warnings = log.lines().filter(|line| line.contains("WARN") && line.contains(&standby));
    assert_eq!(warnings.count(), 1, "{log}");
}

/// The cell that a coordinator names.
fn cell(http: SocketAddr) -> String {
    eventually("a cell", || {
        let status = json(http, "/api/v1/status")?;
        status["cell"].as_str().filter(|cell| !cell.is_empty()).map(str::to_owned)
    })
}

/// The tokens of an agent's streams, once it has both.
fn all_streams(agent: &Agent) -> Option<BTreeSet<String>> {
    let lease = lease(agent.api)?;
    let held = lease["streams"].as_array()?.iter();
    let tokens: BTreeSet<_> =
        held.filter_map(|stream| stream["token"].as_str().map(str::to_owned)).collect();
    (tokens.len() == 2).then_some(tokens)
}
