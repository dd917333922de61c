//! The SDK for Go: the tool that builds it, and its example worker, which is built once.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use tests::toolbox::{self, Missing};

static WORKER: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let mut build = command("the SDK for Go")?;
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("go-worker");
    build.args(["build", "-o"]).arg(&program).arg("./examples/worker");
    let built = build.output().expect("go starts");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "go build ./examples/worker: {said}");
    Some(program)
});

/// The example worker, or `None` without Go.
pub(crate) fn worker() -> Option<&'static Path> {
    WORKER.as_deref()
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
