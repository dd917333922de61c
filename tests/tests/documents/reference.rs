//! The pages of `docs/reference` are what the code says now.

use std::process::Command;

use tests::toolbox;

#[test]
fn the_reference_is_what_the_code_says() {
    let agent = toolbox::binary("leasehold-agent");
    let programs = agent.parent().expect("a folder");
    let mut check = Command::new(toolbox::root().join("tests/tools/reference"));
    let output = check.arg("--check").arg(programs).output().expect("Python starts");
    let (said, why) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{why}");
}
