//! The program itself: exit codes, one-line errors, and how it stops.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn coordinator(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_leasehold-coordinator"))
        .args(arguments)
        .env_remove("RUST_LOG")
        .output()
        .expect("the program")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("an exit code")
}

fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

#[test]
fn usage_errors_exit_with_2_and_help_with_0() {
    for arguments in [
        &["run", "--manifests", "m"][..],
        &["run", "--manifests", "m", "--state-dir", "s", "--nonsense"],
        &["run", "--manifests", "m", "--state-dir", "s", "--tls-cert", "c"],
        &["run", "--manifests", "m", "--state-dir", "s", "--takeover-after", "30s"],
        &["nonsense"],
        &[],
    ] {
        assert_eq!(code(&coordinator(arguments)), 2, "{arguments:?}");
    }
    for arguments in [&["--help"][..], &["run", "--help"], &["check", "--help"], &["--version"]] {
        assert_eq!(code(&coordinator(arguments)), 0, "{arguments:?}");
    }
}

#[test]
fn a_port_in_use_is_one_line_that_names_flag_and_address() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().to_str().expect("a path");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    for flags in [
        ["--listen", address.as_str(), "--http-listen", "127.0.0.1:0"],
        ["--http-listen", address.as_str(), "--listen", "127.0.0.1:0"],
    ] {
        let output =
            coordinator(&[&["run", "--manifests", path, "--state-dir", path][..], &flags].concat());
        assert_eq!(code(&output), 1);
        let text = errors(&output);
        assert!(text.contains(flags[0]) && text.contains(&address), "{text}");
        let next = format!("by another coordinator: stop that one, or set {} to", flags[0]);
        assert!(text.contains("in use") && text.contains(&next), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn a_bad_log_filter_is_an_error() {
    let output = Command::new(env!("CARGO_BIN_EXE_leasehold-coordinator"))
        .args(["run", "--manifests", ".", "--state-dir", ".", "--listen", "127.0.0.1:0"])
        .env("RUST_LOG", "leasehold=shout")
        .output()
        .expect("the program");
    assert_eq!(code(&output), 1);
    assert!(errors(&output).contains("RUST_LOG"), "{}", errors(&output));
}

#[test]
fn a_first_start_without_the_manifests_folder_is_an_error_that_names_it() {
    let folder = TempDir::new().expect("a folder");
    let (wrong, state) = (folder.path().join("manifest"), folder.path().join("state"));
    let (wrong, state) = (wrong.to_str().expect("a path"), state.to_str().expect("a path"));
    let output = coordinator(&[
        "run",
        "--manifests",
        wrong,
        "--state-dir",
        state,
        "--listen",
        "127.0.0.1:0",
    ]);
    let text = errors(&output);
    assert_eq!(code(&output), 1, "{text}");
    assert!(text.contains("--manifests") && text.contains(wrong), "{text}");
}

#[test]
fn check_prints_every_problem_with_its_place_or_the_defined_objects() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().to_str().expect("a path");
    let manifest = |jobs: &str| {
        format!(
            "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\nmetadata: {{name: crawl}}\n\
             spec:\n  maxJobs: {jobs}\n  maxJobsPerWorker: 3\n"
        )
    };
    let output = coordinator(&["check", "--manifests", path]);
    let output_text = String::from_utf8(output.stdout).expect("text");
    assert!(output_text.starts_with("no object is defined"), "{output_text}");
    fs::write(folder.path().join("a.yaml"), manifest("8")).expect("a file");
    let output = coordinator(&["check", "--manifests", path]);
    let output_text = String::from_utf8(output.stdout).expect("text");
    assert_eq!((output.status.code(), output_text.as_str()), (Some(0), "1 WorkerCluster: ok\n"));
    fs::write(folder.path().join("a.yaml"), manifest("-1")).expect("a file");
    let output = coordinator(&["check", "--manifests", path]);
    assert_eq!(code(&output), 1);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.starts_with("a.yaml:5:"), "{text}");
    assert!(text.contains("maxJobs"), "{text}");
    let output = coordinator(&["check", "--manifests", &format!("{path}/a.yaml")]);
    assert_eq!(code(&output), 1);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("a.yaml is a file: expected a folder of manifests"), "{text}");
    let output = coordinator(&["check", "--manifests", &format!("{path}/nope")]);
    assert_eq!(code(&output), 1);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("/nope: the folder cannot be read (No such file"), "{text}");
    assert!(text.ends_with("create it, or correct --manifests\n"), "{text}");
}

#[test]
fn the_folder_of_manifests_is_no_state_folder_and_nothing_is_written_there() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().to_str().expect("a path");
    let linked = folder.path().with_extension("link");
    std::os::unix::fs::symlink(folder.path(), &linked).expect("a link");
    let within = linked.join("x/st");
    let within = within.to_str().expect("a path");
    for (state_dir, why) in [
        (path, "--manifests and --state-dir are one folder"),
        (linked.to_str().expect("a path"), "--manifests and --state-dir are one folder"),
        (within, "it lies in the folder of --manifests"),
    ] {
        let output = coordinator(&[
            "run",
            "--manifests",
            path,
            "--state-dir",
            state_dir,
            "--listen",
            "127.0.0.1:0",
            "--http-listen",
            "127.0.0.1:0",
        ]);
        let log = String::from_utf8(output.stderr).expect("text");
        assert!(log.contains(why), "{log}");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }
    fs::remove_file(linked).expect("removed");
}

/// A replica in a process of its own, and its log.
struct Process {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
}

impl Process {
    fn start(folder: &Path) -> Self {
        let manifests = folder.join("manifests");
        std::fs::create_dir_all(&manifests).expect("a folder");
        let child = Command::new(env!("CARGO_BIN_EXE_leasehold-coordinator"))
            .args(["run", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"])
            .args(["--log-format", "json"])
            .env("LEASEHOLD_MANIFESTS", manifests)
            .env("LEASEHOLD_STATE_DIR", folder.join("state"))
            .env_remove("RUST_LOG")
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.expect("the program");
        let log = BufReader::new(child.stderr.take().expect("its log")).lines();
        Self { child, log }
    }

    /// Waits for the next log line with this message, and returns its fields.
    fn wait_for_log(&mut self, message: &str) -> serde_json::Value {
        loop {
            let line = self.log.next().expect("more of the log").expect("a line");
            let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
            if line["fields"]["message"] == message {
                return line["fields"].clone();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")).expect("a pid");
        kill_process(pid, signal).expect("a process");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_leader_that_is_asked_to_stop_hands_over_and_exits_with_0() {
    let folder = TempDir::new().expect("a folder");
    let mut first = Process::start(folder.path());
    let listening = first.wait_for_log("listening");
    assert!(listening["grpc"].as_str().is_some_and(|address| address.starts_with("127.0.0.1:")));
    let epoch = |leads: serde_json::Value| {
        leads["epoch"].as_str().and_then(|epoch| epoch.parse::<u64>().ok())
    };
    let begun = epoch(first.wait_for_log("this replica leads")).expect("an epoch");
    let mut second = Process::start(folder.path());
    second.wait_for_log("another replica leads");
    first.signal(Signal::TERM);
    first.wait_for_log("stopped");
    assert_eq!(first.child.wait().expect("an end").code(), Some(0));
    assert_eq!(epoch(second.wait_for_log("this replica leads")), Some(begun + 1));
    second.signal(Signal::INT);
    assert_eq!(second.child.wait().expect("an end").code(), Some(0));
}
