//! The tool that builds programs in Go: the SDK's, and those of the samples.

use std::path::PathBuf;
use std::process::Command;

use tests::toolbox::{self, Missing};

/// Builds a package, by its path in a folder of the checkout; returns the program, or `None`
/// without Go. `what` needs the program.
pub(crate) fn build(what: &str, folder: &str, package: &str) -> Option<PathBuf> {
    let mut build = command(what)?;
    let name = format!("go-{}", folder.replace('/', "-"));
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    build.current_dir(toolbox::root().join(folder));
    let built = build.args(["build", "-o"]).arg(&program).arg(package).output();
    let built = built.expect("go starts");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "go build {package} in {folder}: {said}");
    Some(program)
}

/// The program `go` in the folder of the SDK, or `None` if it is not installed, which is then noted
/// for the end of `make test`.
pub(crate) fn command(what: &str) -> Option<Command> {
    if toolbox::on_path("go").is_none() {
        toolbox::leave_out(what, "no go", Missing::Installable);
        return None;
    }
    let mut go = Command::new("go");
    go.current_dir(toolbox::root().join("agent/sdk/go"));
    // It fetches no compiler, needs none for C, and looks at nothing outside the folder.
    let settings = [("GOTOOLCHAIN", "local"), ("CGO_ENABLED", "0"), ("GOWORK", "off")];
    go.envs(settings).env("GOFLAGS", "-buildvcs=false");
    Some(go)
}
