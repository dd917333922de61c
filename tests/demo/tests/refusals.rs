//! What the demo refuses before anything is started.

use std::process::Command;

#[test]
fn a_mistyped_flag_and_a_missing_folder_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = |flags: &[&str]| {
        let mut demo = Command::new(env!("CARGO_BIN_EXE_demo"));
        let output = demo.args(flags).arg("--work").arg(folder.path()).output().expect("it starts");
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    let why = refused(&["--shrt"]);
    assert!(why.contains("--shrt") && why.contains("--short"), "{why}");
    let missing = folder.path().join("missing");
    let missing = missing.to_str().expect("UTF-8");
    let why = refused(&["--deploy", missing]);
    assert!(why.contains(missing), "{why}");
    let json = format!("{missing}/measured.json");
    let why = refused(&["--json", &json]);
    assert!(why.contains(&json) && why.contains("name another file"), "{why}");
    let left = std::fs::read_dir(folder.path()).expect("the folder").count();
    assert_eq!(left, 0, "nothing is begun");
}
