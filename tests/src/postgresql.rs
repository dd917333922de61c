//! A real PostgreSQL, of Debian's package: a server for one test, which listens on a Unix socket in
//! a folder of its own.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Signal, geteuid};

use crate::process::{HANG, Process, until_ok, within};
use crate::toolbox::{self, Missing};

/// Where Debian's packages have the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// Debian's Python, whose packages one of another origin does not have.
const DEBIANS_PYTHON: &str = "/usr/bin/python3";
/// Whom the package makes for the server, which refuses to run as root.
const SERVER_USER: &str = "postgres";
/// The database's own user.
const DATABASE_USER: &str = "leasehold";

/// A running server. It ends when it is dropped.
#[derive(Debug)]
pub struct Postgresql {
    process: Process,
    python: PathBuf,
    // The last field: the server writes there until it has ended.
    folder: tempfile::TempDir,
}

impl Postgresql {
    /// Starts one, or notes that `what` is left out because it is not installed.
    ///
    /// # Panics
    /// If it cannot be started, or if it is not installed and `CI=true`.
    #[must_use]
    pub fn start(what: &str) -> Option<Self> {
        let (Some(programs), Some(python)) = (programs(), python()) else {
            let why = "`make tools TOOLS=postgresql` installs it and Python's driver for it";
            toolbox::leave_out(what, why, Missing::Installable);
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let owner = ServerUser::find();
        owner.own(folder.path());
        let data = folder.path().join("data");
        let mut initdb = owner.command(&programs.join("initdb"));
        initdb.arg("--pgdata").arg(&data).args(["--auth", "trust", "--no-locale"]);
        initdb.args(["--encoding", "UTF8", "--no-sync"]);
        let output = initdb.args(["--username", DATABASE_USER]).output().expect("initdb starts");
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "initdb: {why}");
        let mut server = owner.command(&programs.join("postgres"));
        server.arg("-D").arg(&data).args(["-c", "listen_addresses="]).arg("-k").arg(folder.path());
        let process = Process::start(&mut server, &folder.path().join("postgresql.log"));
        let started = Self { process, python, folder };
        until_ok("PostgreSQL to take connections", || started.connect());
        Some(started)
    }

    /// How clients connect to it: a connection string of libpq.
    #[must_use]
    pub fn connection(&self) -> String {
        format!("host={} user={DATABASE_USER} dbname=postgres", self.folder.path().display())
    }

    /// The same for a program of which libpq's variables say how it connects.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, String); 3] {
        let host = self.folder.path().display().to_string();
        [("PGHOST", host), ("PGUSER", DATABASE_USER.into()), ("PGDATABASE", "postgres".into())]
    }

    /// A Python that has a driver for it.
    #[must_use]
    pub fn python(&self) -> &Path {
        &self.python
    }

    fn connect(&self) -> Result<(), String> {
        let mut python = Command::new(&self.python);
        python.args(["-c", "import psycopg2, sys; psycopg2.connect(sys.argv[1])"]);
        let output = python.arg(self.connection()).output().expect("Python starts");
        let why = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(()) } else { Err(why.into_owned()) }
    }
}

impl Drop for Postgresql {
    fn drop(&mut self) {
        // It ends its processes itself, and frees the memory that they share.
        if self.process.ended().is_none() {
            self.process.signal(Signal::INT);
            let _ = within(HANG, || self.process.ended());
        }
    }
}

/// Who runs the server: another user than root.
enum ServerUser {
    /// The user of this process.
    Own,
    /// The package's user, with the id of its group.
    OfPackage { user: u32, group: u32 },
}

impl ServerUser {
    fn find() -> Self {
        if !geteuid().is_root() {
            return Self::Own;
        }
        Self::OfPackage { user: id_of("-u"), group: id_of("-g") }
    }

    /// Gives it a folder.
    fn own(&self, folder: &Path) {
        if let Self::OfPackage { user, group } = self {
            chown(folder, Some(*user), Some(*group)).expect("root gives its folders away");
        }
    }

    /// A command that it runs.
    fn command(&self, program: &Path) -> Command {
        match self {
            Self::Own => Command::new(program),
            Self::OfPackage { user, group } => {
                // Unlike `su` and `runuser` it becomes the program, and so has its process id.
                let mut command = Command::new("setpriv");
                command.args(["--reuid", &user.to_string(), "--regid", &group.to_string()]);
                command.arg("--clear-groups").arg(program).current_dir("/");
                command
            }
        }
    }
}

/// An id of the package's user: `-u` for its own, `-g` for its group's.
fn id_of(which: &str) -> u32 {
    let output = Command::new("id").args([which, SERVER_USER]).output().expect("id starts");
    let id = String::from_utf8_lossy(&output.stdout).trim().parse();
    id.expect("Debian's package makes the user postgres")
}

/// The folder with the programs of the newest version that is installed.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir(VERSIONS).ok()?.filter_map(|entry| {
        let number: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        Path::new(VERSIONS).join(format!("{number}/bin/initdb")).is_file().then_some(number)
    });
    versions.max().map(|number| Path::new(VERSIONS).join(format!("{number}/bin")))
}

/// The first Python that has the driver.
fn python() -> Option<PathBuf> {
    ["python3", DEBIANS_PYTHON].into_iter().map(PathBuf::from).find(|python| {
        let output = Command::new(python).args(["-c", "import psycopg2"]).output();
        output.is_ok_and(|output| output.status.success())
    })
}
