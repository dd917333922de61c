//! The SDK for TypeScript, compiled with its example and the sample in TypeScript.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use tests::toolbox::{self, Missing};

/// It is compiled once for all tests of this process.
static COMPILED: LazyLock<Option<PathBuf>> = LazyLock::new(compile);

/// The folder of the compiled package, or `None` if its compiler is not installed.
pub(crate) fn folder() -> Option<&'static Path> {
    COMPILED.as_deref()
}

fn compile() -> Option<PathBuf> {
    let root = toolbox::root();
    if !root.join(".cache/bin/tsc").is_file() || toolbox::on_path("node").is_none() {
        let why = "`make tools TOOLS=typescript` installs its compiler";
        toolbox::leave_out("the SDK for TypeScript", why, Missing::Installable);
        return None;
    }
    // Each test program has a folder of its own: two may compile at the same time.
    let folder = concat!(env!("CARGO_TARGET_TMPDIR"), "/typescript-", env!("CARGO_CRATE_NAME"));
    let folder = PathBuf::from(folder);
    let output = Command::new(root.join("tests/tools/typescript_sdk")).arg(&folder).output();
    let output = output.expect("the script starts");
    let (said, why) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "the SDK for TypeScript does not compile:\n{said}{why}");
    Some(folder)
}
