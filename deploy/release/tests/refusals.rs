//! What a release refuses before anything is built.

use std::process::Command;

#[test]
fn a_release_is_refused_for_a_bad_registry_and_a_folder_of_something_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let notes = folder.path().join("notes.txt");
    std::fs::write(&notes, "mine").expect("written");
    let refused = |flags: &[&str]| {
        let mut release = Command::new(env!("CARGO_BIN_EXE_release"));
        release.arg("all").args(flags).arg("--allow-dirty").arg("--output").arg(folder.path());
        let output = release.output().expect("it starts");
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    let why = refused(&["--images", "https://mirror.example/leasehold:1"]);
    assert!(why.contains("expected a registry and a folder without a tag"), "{why}");
    let why = refused(&["--architecture", "arm63"]);
    assert!(why.contains("arm64"), "{why}");
    let why = refused(&[]);
    assert!(why.contains("not of a release, notes.txt"), "{why}");
    assert_eq!(std::fs::read(&notes).expect("still there"), b"mine");
}
