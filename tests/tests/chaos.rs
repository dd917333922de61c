//! A short run of `make chaos`.

use std::process::Command;

use tests::toolbox::{self, Missing};

/// How long faults go on.
const SECONDS: &str = "15";

#[test]
fn workers_journals_show_no_violation_under_faults() {
    if let Some(why) = tests::chaos::refusal() {
        return toolbox::leave_out("real processes under faults", &why, Missing::Forbidden);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_chaos"));
    let output = command.args(["--seconds", SECONDS]).output().expect("it is there");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complained}");
}
