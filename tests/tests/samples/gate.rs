//! A gate before the programs that jobs run: it counts those that run at once, and holds them
//! while it is closed.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tests::process::eventually;
use tests::toolbox;

/// The gate. Programs that wait at it go on when its folder is removed.
#[derive(Debug)]
pub(crate) struct Gate {
    folder: PathBuf,
}

impl Gate {
    /// A closed one, in a folder of its own within this one.
    pub(crate) fn closed(within: &Path) -> Self {
        let gate = Self { folder: within.join("gate") };
        for part in ["running", "bin"] {
            std::fs::create_dir_all(gate.folder.join(part)).expect("a folder of the gate");
        }
        std::fs::write(gate.folder.join("closed"), "").expect("a closed gate");
        gate
    }

    /// Lets all pass, from now on.
    pub(crate) fn open(&self) {
        std::fs::remove_file(self.folder.join("closed")).expect("a closed gate");
    }

    /// A shell script that passes the gate and runs a command of the shell.
    pub(crate) fn script(&self, command: &str) -> String {
        let gate = self.folder.display();
        format!(
            "#!/bin/sh\n\
             : >{gate}/running/$$\n\
             ls {gate}/running | wc -l >>{gate}/counts\n\
             while [ -e {gate}/closed ]; do sleep 0.05; done\n\
             {command}\n\
             code=$?\n\
             rm {gate}/running/$$\n\
             exit $code\n"
        )
    }

    /// A `PATH` by which a program passes the gate before it runs.
    pub(crate) fn put_before(&self, program: &str) -> OsString {
        let real = toolbox::on_path(program).expect("the program is installed");
        let (bin, script) = (self.folder.join("bin"), format!("{} \"$@\"", real.display()));
        let file = bin.join(program);
        std::fs::write(&file, self.script(&script)).expect("a script");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&file, executable).expect("a script that runs");
        let rest = std::env::var_os("PATH").expect("a PATH");
        let all = std::iter::once(bin).chain(std::env::split_paths(&rest));
        std::env::join_paths(all).expect("a PATH")
    }

    /// Waits until this many run, which is how many wait while the gate is closed.
    pub(crate) fn eventually_running(&self, count: usize) {
        eventually(&format!("{count} programs at the gate"), || {
            let running = std::fs::read_dir(self.folder.join("running")).expect("its folder");
            (running.count() == count).then_some(())
        });
    }

    /// The most that have run at once.
    pub(crate) fn most(&self) -> usize {
        let counts = std::fs::read_to_string(self.folder.join("counts")).expect("counts");
        let counts = counts.lines().map(|count| count.trim().parse::<usize>().expect("a number"));
        counts.max().expect("one has run")
    }
}
