//! State folders: on a file system whose locks prove nothing, both programs refuse them; put back
//! from a copy, they repeat no token.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::Signal;
use serde_json::Value;
use tests::answers::{lease, metric};
use tests::process::{Agent, Coordinator, Replica, eventually, free_address};
use tests::toolbox::{self, Missing};

const MANIFESTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 4, maxJobsPerWorker: 2, lease: {ttl: 2s}}
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {name: feeds}
spec: {cluster: builds, mode: Pinned, streams: [{name: a}, {name: b}]}
";

/// Mounts a FUSE file system with an empty root, which it serves itself, and runs a command.
const FUSE: &str = r#"
import os, struct, subprocess, sys, threading

def answer(device, code, unique):
    if code in (2, 36, 42):  # forget, interrupt, batch_forget: no reply
        return
    error, body = 0, b""
    if code == 26:  # init
        body = struct.pack("<4I2H2I2H32x", 7, 31, 0, 0, 8, 8, 4096, 1, 0, 0)
    elif code == 3:  # getattr
        body = struct.pack("<Q2I6Q10I", 1, 0, 0, 1, *[0] * 5, *[0] * 3, 0o40755, 2, *[0] * 5)
    elif code == 17:  # statfs
        body = struct.pack("<5Q4I24x", 1, 1, 1, 1, 1, 4096, 255, 4096, 0)
    else:
        error = -2 if code == 1 else -38  # lookup: ENOENT; all others: ENOSYS
    os.write(device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)

def serve(device):
    while True:
        try:
            request = os.read(device, 1 << 17)
        except OSError:
            return
        _, code, unique = struct.unpack_from("<IIQ", request)
        answer(device, code, unique)

folder, command = sys.argv[1], sys.argv[2:]
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
mount = ["mount", "-i", "-t", "fuse", "-o", options, "test", folder]
subprocess.run(mount, pass_fds=[device], check=True)
threading.Thread(target=serve, args=[device], daemon=True).start()
print("mounted", flush=True)
code = subprocess.run(command).returncode
subprocess.run(["umount", "-l", folder])
sys.exit(code)
"#;

/// Runs a command while `folder` is on FUSE; none if this machine forbids that.
fn on_fuse(folder: &Path, command: &Command) -> Option<Output> {
    let state = folder.join("state");
    std::fs::create_dir_all(&state).expect("a folder");
    let mut outer = Command::new("unshare");
    outer.args(["--user", "--map-root-user", "--mount", "python3", "-c", FUSE]).arg(&state);
    outer.arg(command.get_program()).args(command.get_args());
    let output = outer.output().expect("unshare starts");
    if String::from_utf8_lossy(&output.stdout).starts_with("mounted\n") {
        Some(output)
    } else {
        let why = String::from_utf8_lossy(&output.stderr);
        let why = why.trim().lines().last().unwrap_or("no mount").to_owned();
        toolbox::leave_out("state folders on FUSE", &why, Missing::Forbidden);
        None
    }
}

fn agent(folder: &Path) -> Command {
    let mut command = Command::new(toolbox::binary("leasehold-agent"));
    command.args(["run", "--coordinator", "127.0.0.1:1", "--cluster", "builds", "--worker", "w"]);
    command.args(["--listen", &free_address().to_string()]);
    command.arg("--state-dir").arg(folder.join("state"));
    command
}

fn coordinator(folder: &Path) -> Command {
    let mut command = Command::new(toolbox::binary("leasehold-coordinator"));
    let manifests = folder.join("manifests");
    std::fs::create_dir_all(&manifests).expect("a folder");
    command.arg("run").arg("--manifests").arg(manifests);
    command.arg("--state-dir").arg(folder.join("state"));
    let (grpc, http) = (free_address().to_string(), free_address().to_string());
    command.args(["--listen", &grpc, "--http-listen", &http]);
    command
}

#[test]
fn a_state_folder_on_fuse_is_refused_unless_its_locks_are_trusted() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    for mut command in [agent(folder), coordinator(folder)] {
        let Some(output) = on_fuse(folder, &command) else { return };
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{command:?}: {said}");
        let state = folder.join("state").display().to_string();
        assert!(said.contains(&format!("--state-dir {state} is on FUSE")), "{said}");
        assert!(said.contains("--trust-state-dir-locks"), "it says what to do: {said}");

        // With the flag the folder is used; this file system has no files.
        let output = on_fuse(folder, command.arg("--trust-state-dir-locks")).expect("as before");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{command:?}: {said}");
        assert!(said.contains("not implemented") && !said.contains("FUSE"), "{said}");
    }
}

/// The leases of an agent: the size of its pool, and the tokens of its pool and streams.
fn leases(agent: &Agent) -> Option<(u64, Vec<String>)> {
    let lease = lease(agent.api).filter(|lease| lease["connected"] == true)?;
    let tokens = lease["streams"].as_array()?.iter().map(|stream| &stream["token"]);
    let tokens = tokens.chain([&lease["pool"]["token"]]).map(Value::to_string).collect();
    Some((lease["pool"]["size"].as_u64()?, tokens))
}

/// The term that a replica leads, if it does.
fn epoch(http: std::net::SocketAddr) -> Option<u64> {
    metric(http, "leasehold_epoch").map(|epoch| epoch as u64).filter(|epoch| *epoch > 0)
}

/// Copies a folder of files and folders.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a new folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).expect("a copy");
        }
    }
}

/// All coordinators are stopped, and their folder is put back from a backup of one term ago. The
/// next leader's number is one that another leader had, whose leases two workers hold.
#[test]
fn a_state_folder_put_back_from_a_backup_repeats_no_token_and_hangs_no_agent() {
    let mut first = Coordinator::start(&[("builds.yaml", MANIFESTS)]);
    let (folder, addresses) = (first.folder().to_owned(), [first.grpc, first.http]);
    let (state, backup) = (folder.join("state"), folder.join("backup"));
    let workers = ["one", "two"].map(|worker| first.agent("builds", worker, &[]));
    let holds =
        |agent: &Agent| leases(agent).filter(|(size, tokens)| (*size, tokens.len()) == (2, 2));
    let all = || Some([holds(&workers[0])?, holds(&workers[1])?]);
    eventually("two slots and a stream each", all);
    let begun = eventually("the first term", || epoch(first.http));
    let stop = |replica: &mut tests::process::Process| {
        replica.signal(Signal::TERM);
        assert!(replica.wait().success());
    };
    stop(&mut first.process);
    copy(&state, &backup);
    let start = |name| Replica::start_at(&folder, name, addresses, &[]);

    let mut second = start("second");
    let before = eventually("leases of the second term", || {
        all().filter(|_| epoch(second.http) == Some(begun + 1))
    });
    stop(&mut second.process);
    fs::remove_dir_all(&state).expect("it is there");
    fs::rename(&backup, &state).expect("it is put back");

    let third = start("third");
    let after =
        eventually("leases above those", || all().filter(|_| epoch(third.http) > Some(begun + 1)));
    let log = third.process.log();
    assert!(log.contains("an agent has obeyed another leader of this epoch"), "{log}");
    let streams = |leases: &[(u64, Vec<String>)]| -> Vec<String> {
        let tokens = leases.iter().flat_map(|(_, tokens)| tokens);
        tokens.cloned().collect()
    };
    let (before, after) = (streams(&before), streams(&after));
    for token in &after {
        let granted: Option<u64> =
            token.trim_matches('"').split('.').next().and_then(|epoch| epoch.parse().ok());
        let is_new = granted > Some(begun + 1);
        assert!(before.contains(token) || is_new, "{before:?} {after:?}\n{log}");
    }
}
