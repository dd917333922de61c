//! State folders on a file system whose locks prove nothing: both programs refuse them.

use std::path::Path;
use std::process::{Command, Output};

use tests::process::free_address;
use tests::toolbox::{self, Missing};

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
    match String::from_utf8_lossy(&output.stdout).starts_with("mounted\n") {
        true => Some(output),
        false => {
            let why = String::from_utf8_lossy(&output.stderr);
            let why = why.trim().lines().last().unwrap_or("no mount").to_owned();
            toolbox::leave_out("state folders on FUSE", &why, Missing::Forbidden);
            None
        }
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
    command.arg("run").arg("--manifests").arg(folder).arg("--state-dir").arg(folder.join("state"));
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
