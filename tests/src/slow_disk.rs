//! A library before a process that makes its writes to one file system slow.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::toolbox;

/// The name under which a process gets the file that says how slow its file system is.
const SETTING_VARIABLE: &str = "SLOW_DISK";

/// The library.
#[derive(Debug)]
pub struct SlowDisk {
    library: PathBuf,
}

impl SlowDisk {
    /// Builds the library into a folder, or `None` if it cannot be built here.
    #[must_use]
    pub fn build(folder: &Path) -> Option<Self> {
        let library = folder.join("slow_disk.so");
        let source = toolbox::root().join("tests/tools/slow_disk.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source);
        let is_built = compiler.output().is_ok_and(|output| output.status.success());
        is_built.then_some(Self { library })
    }

    /// Each write and each sync of this process to the file system of `setting` takes longer by the
    /// milliseconds that this file says.
    pub fn attach(&self, command: &mut Command, setting: &Path) {
        command.env("LD_PRELOAD", &self.library).env(SETTING_VARIABLE, setting);
    }
}
