//! The program itself: exit codes and one-line errors.

use std::fs;
use std::net::TcpListener;
use std::process::{Command, Output};

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
        assert!(text.contains("in use"), "{text}");
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
fn check_prints_every_problem_and_its_place() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().to_str().expect("a path");
    let manifest = |jobs: &str| {
        format!(
            "apiVersion: leasehold.dev/v1alpha1\nkind: WorkerCluster\nmetadata: {{name: crawl}}\n\
             spec:\n  maxJobs: {jobs}\n  maxJobsPerWorker: 3\n"
        )
    };
    fs::write(folder.path().join("a.yaml"), manifest("8")).expect("a file");
    let output = coordinator(&["check", "--manifests", path]);
    assert_eq!((code(&output), output.stdout.as_slice()), (0, b"".as_slice()));
    fs::write(folder.path().join("a.yaml"), manifest("-1")).expect("a file");
    let output = coordinator(&["check", "--manifests", path]);
    assert_eq!(code(&output), 1);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.starts_with("a.yaml:5:"), "{text}");
    assert!(text.contains("maxJobs"), "{text}");
}
