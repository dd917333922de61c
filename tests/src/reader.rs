//! A reader who types what a document says, as it stands, on a machine of their own: a network and
//! a private `/tmp`, so that the ports and folders are the document's, too.

use std::path::Path;
use std::process::Command;

use crate::process::Process;
use crate::readme::Step;
use crate::toolbox::{self, Missing, Tool};
use crate::tracked_files::tracked;

/// What other terminals than the first one show.
const KEPT: &str = "kept.log";
/// The tracked files, for tar.
const LISTED: &str = "tracked.list";
/// How long a program may take until it answers, in tenths of a second.
const ANSWER_TENTHS_MAX: u32 = 600;

/// A reader, and what they are to do.
#[derive(Debug)]
pub struct Reader {
    machine: Command,
    folder: tempfile::TempDir,
    script: String,
}

impl Reader {
    /// A reader in a clone, `/tmp/clone`, with the built programs and tools in their places. What
    /// takes minutes to build is not built again: `make` and `cargo` only look whether they could.
    /// None where a tool is missing or the kernel forbids it, which is noted.
    ///
    /// # Panics
    /// If there is no temporary folder.
    #[must_use]
    pub fn new(what: &str) -> Option<Self> {
        toolbox::tool(Tool::Grpcurl)?;
        let machine = own_machine(what)?;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let script = prelude(folder.path());
        Some(Self { machine, folder, script })
    }

    /// Gives the clone the tracked files of the checkout, with their times, and the programs in the
    /// place of a build that is not optimised.
    ///
    /// # Panics
    /// If the list of files cannot be written.
    pub fn fill_clone(&mut self) {
        let names: Vec<String> =
            tracked().iter().map(|path| path.to_string_lossy().into_owned()).collect();
        std::fs::write(self.folder.path().join(LISTED), names.join("\0")).expect("the list");
        self.unseen(&format!(
            "tar -C /tmp/checkout --null --verbatim-files-from -T /tmp/{LISTED} -cf - \
               | tar --no-same-owner -xf -\n\
             mkdir -p target/debug\n\
             mount --bind target/release target/debug"
        ));
    }

    /// Does a step, after saying so.
    pub fn take(&mut self, step: &Step) {
        match step {
            Step::Save { file, text } => {
                self.script +=
                    &format!("echo '$ save {file}'\ncat > {file} <<'SAVED'\n{text}SAVED\n");
            }
            Step::Type(command) => self.take_command(command),
        }
    }

    fn take_command(&mut self, command: &str) {
        if command.starts_with("cargo build ") {
            assert_built(command);
        }
        self.script += &format!("cat <<'TYPED'\n\\$ {command}\nTYPED\n");
        let Some(answers) = kept_at(command) else {
            return self.unseen(command);
        };
        self.script += &format!(
            "{command} >> /tmp/{KEPT} 2>&1 &\n\
             for try in $(seq {ANSWER_TENTHS_MAX}); do\n  \
               if curl -sS --fail-with-body {answers} 2> /dev/null; then echo; break; fi\n  \
               kill -0 $! || exit 1\n  \
               [ $try -lt {ANSWER_TENTHS_MAX} ]\n  \
               sleep 0.1\n\
             done\n"
        );
    }

    /// Does what no document says.
    pub fn unseen(&mut self, command: &str) {
        self.script += command;
        self.script += "\n";
    }

    /// Does all of it. The folder is what was `/tmp`; the text is what the terminals showed.
    ///
    /// # Panics
    /// If a command fails, or hangs.
    #[must_use]
    pub fn run(mut self) -> (tempfile::TempDir, String) {
        let file = self.folder.path().join("script");
        std::fs::write(&file, &self.script).expect("the script");
        self.machine.arg("bash").arg(&file);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("LEASEHOLD_") || name.starts_with("MAKE") {
                self.machine.env_remove(&*name);
            }
        }
        let mut shell = Process::start(&mut self.machine, &self.folder.path().join("reader.log"));
        let status = shell.wait();
        let kept = std::fs::read_to_string(self.folder.path().join(KEPT)).unwrap_or_default();
        assert!(status.success(), "{status}\n--- other terminals\n{kept}");
        let shown = format!("{}\n--- other terminals\n{kept}", shell.log());
        (self.folder, shown)
    }
}

/// Where a program answers that runs until it is asked to end: it has a terminal of its own.
fn kept_at(command: &str) -> Option<String> {
    let after = |flag: &str| command.split(flag).nth(1)?.split_whitespace().next();
    let address = match command {
        _ if command.starts_with("leasehold-coordinator run") => {
            after("--http-listen ").unwrap_or("127.0.0.1:7401")
        }
        _ if command.ends_with("-- sleep infinity") => {
            after("--listen ").unwrap_or("127.0.0.1:7411")
        }
        _ => return None,
    };
    Some(format!("http://{address}/readyz"))
}

/// What a build line builds is there: these tests' own builds, which go by the same names.
fn assert_built(command: &str) {
    let words: Vec<&str> = command.split_whitespace().collect();
    let packages = words.windows(2).filter(|pair| pair[0] == "-p").map(|pair| pair[1]);
    // The package of the command line is named otherwise than its program.
    let programs = packages.map(|name| if name == "leasehold-cli" { "leasehold" } else { name });
    let built: Vec<_> = programs.map(toolbox::binary).collect();
    assert!(!built.is_empty(), "{command}: builds no package by its name");
}

/// What makes the machine, where `folder` is `/tmp`.
fn prelude(folder: &Path) -> String {
    let programs = toolbox::binary("leasehold-agent");
    let programs = programs.parent().expect("a folder").display();
    let (root, folder) = (toolbox::root().display(), folder.display());
    format!(
        "set -euo pipefail
ip link set lo up
mkdir -p {folder}/clone/target/release {folder}/clone/.cache/bin {folder}/checkout
# The checkout may itself be below /tmp.
mount --bind {root} {folder}/checkout
mount --bind {programs} {folder}/clone/target/release
mount --bind {root}/.cache/bin {folder}/clone/.cache/bin
make() {{ command make -C /tmp/checkout --dry-run \"$@\" > /dev/null; }}
cargo() {{ :; }}
mount --rbind {folder} /tmp
echo fail-with-body > /tmp/.curlrc
export CURL_HOME=/tmp
cd /tmp/clone
"
    )
}

/// A command that runs another one where no port is taken and `/tmp` can be its own, and ends all
/// that this one leaves. None where that is not allowed, which is noted.
fn own_machine(what: &str) -> Option<Command> {
    let user: &[&str] =
        if rustix::process::geteuid().is_root() { &[] } else { &["--user", "--map-root-user"] };
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(user).args(["--net", "--mount", "--pid", "--fork", "--kill-child=KILL"]);
        // An agent looks there after its children.
        command.arg("--mount-proc");
        command
    };
    let tried = "ip link set lo up && mount --rbind /tmp /tmp";
    match unshare().args(["sh", "-c", tried]).output() {
        Ok(tried) if tried.status.success() => Some(unshare()),
        Ok(tried) => {
            let said = String::from_utf8_lossy(&tried.stderr);
            let why = format!("no namespaces of its own: {}", said.trim().replace('\n', "; "));
            toolbox::leave_out(what, &why, Missing::Forbidden);
            None
        }
        Err(error) => {
            let why = format!("unshare of util-linux: {error}");
            toolbox::leave_out(what, &why, Missing::Installable);
            None
        }
    }
}
