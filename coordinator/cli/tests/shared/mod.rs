//! The real program, and the manifests that tests feed it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The program.
pub(crate) fn leasehold() -> Command {
    Command::new(env!("CARGO_BIN_EXE_leasehold"))
}

/// Runs the program with a text on stdin.
#[allow(dead_code, reason = "not every test uses it")]
pub(crate) fn run(args: &[&str], input: &[u8]) -> Output {
    let mut child = leasehold()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    // A program that rejects its arguments does not read stdin.
    let writer = std::thread::spawn(move || stdin.write_all(&input).is_ok());
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("it was fed");
    output
}

/// Its stdout; it must succeed.
#[allow(dead_code, reason = "not every test uses it")]
pub(crate) fn output(args: &[&str], input: &[u8]) -> Vec<u8> {
    let output = run(args, input);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
    output.stdout
}

/// Its stderr.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The folder of manifests.
#[allow(dead_code, reason = "not every test uses them")]
pub(crate) fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}
