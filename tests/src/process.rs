//! Real binaries on loopback for tests: each writes its log into a file of its own, and is killed
//! when its guard goes.

use std::fmt::Display;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold_demo::clock::{self, POLL};
use leasehold_demo::ports::free_ports;
use leasehold_types::Moment;

use crate::{http, toolbox};

/// A hang shows as a failure after this time. No test asserts how long something took.
pub const HANG: Duration = Duration::from_secs(180);

/// Whether this process was interrupted.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Notes that this process was interrupted. Ctrl-C ends its children, too, so their failures from
/// now on are not reported.
pub fn give_up() {
    GIVEN_UP.store(true, Ordering::Relaxed);
}

/// Whether this process was interrupted.
#[must_use]
pub fn is_given_up() -> bool {
    GIVEN_UP.load(Ordering::Relaxed)
}

/// A child process with its log.
#[derive(Debug)]
pub struct Process {
    child: Child,
    path: PathBuf,
    /// The log, which can be read even after its folder was removed.
    log: File,
}

impl Process {
    /// Starts `command` with both outputs going to the file `log`.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let [output, twin] = [(); 2].map(|()| {
            File::options().append(true).create(true).open(log).expect("the log is created")
        });
        output.set_len(0).expect("an empty log");
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(twin)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let file = File::open(log).expect("the log is opened");
        Self { child, path: log.to_owned(), log: file }
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has written so far.
    #[must_use]
    pub fn log(&self) -> String {
        let length = self.log.metadata().map_or(0, |log| log.len());
        let mut text = vec![0; usize::try_from(length).expect("it fits into memory")];
        let read = self.log.read_at(&mut text, 0).unwrap_or(0);
        String::from_utf8_lossy(&text[..read]).into_owned()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it has ended.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let id = i32::try_from(self.id()).ok().and_then(rustix::process::Pid::from_raw);
        let id = id.expect("a process id");
        rustix::process::kill_process(id, signal).expect("the process takes signals");
    }

    /// Whether a signal has stopped all of its threads, which stop one by one.
    ///
    /// # Panics
    /// If it has ended.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.id()));
        threads.expect("the process has not ended").all(|thread| {
            let stat =
                thread.and_then(|thread| std::fs::read_to_string(thread.path().join("stat")));
            stat.is_ok_and(|stat| stat.contains(") T "))
        })
    }

    /// How it has ended; none while it runs.
    ///
    /// # Panics
    /// If the system call fails.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the child's state")
    }

    /// Kills it, where it has not ended.
    pub fn kill(&mut self) {
        // Both fail only where the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// After [`HANG`].
    pub fn wait(&mut self) -> ExitStatus {
        within(HANG, || self.ended())
            .unwrap_or_else(|| panic!("process {} does not end:\n{}", self.id(), self.log()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() && !is_given_up() {
            eprintln!("--- {}\n{}", self.path.display(), self.log());
        }
    }
}

/// A coordinator with folders of its own.
#[derive(Debug)]
pub struct Coordinator {
    /// The process.
    pub process: Process,
    /// Where it serves gRPC.
    pub grpc: SocketAddr,
    /// Where it serves HTTP.
    pub http: SocketAddr,
    folder: tempfile::TempDir,
}

impl Coordinator {
    /// Starts one on these manifests: file name and text.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(manifests: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let wanted = folder.path().join("manifests");
        std::fs::create_dir(&wanted).expect("a folder for the manifests");
        for (name, text) in manifests {
            std::fs::write(wanted.join(name), text).expect("a manifest");
        }
        let replica = Replica::start(folder.path(), "coordinator");
        let Replica { process, grpc, http } = replica;
        Self { process, grpc, http, folder }
    }

    /// Starts a second replica on the same folders.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn standby(&self) -> Replica {
        Replica::start(self.folder(), "standby")
    }

    /// A folder that lives as long as the coordinator.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts an agent that dials this coordinator, with `more` at the end of its command line.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn agent(&self, cluster: &str, worker: &str, more: &[&str]) -> Agent {
        let api = free_address();
        let mut command = self.agent_command(cluster, worker, api);
        command.args(more);
        let log = self.folder().join(format!("{worker}.log"));
        Agent { process: Process::start(&mut command, &log), api }
    }

    /// The command that [`Self::agent`] runs, for more than arguments to be added.
    #[must_use]
    pub fn agent_command(&self, cluster: &str, worker: &str, api: SocketAddr) -> Command {
        let mut command = Command::new(toolbox::binary("leasehold-agent"));
        command.args(["run", "--coordinator", &self.grpc.to_string()]);
        command.args(["--cluster", cluster, "--worker", worker, "--listen", &api.to_string()]);
        command.arg("--state-dir").arg(self.folder().join(format!("state-{worker}")));
        command
    }
}

/// One of several coordinators on the same folders.
#[derive(Debug)]
pub struct Replica {
    /// The process.
    pub process: Process,
    /// Where it serves gRPC.
    pub grpc: SocketAddr,
    /// Where it serves HTTP.
    pub http: SocketAddr,
}

impl Replica {
    fn start(folder: &Path, name: &str) -> Self {
        Self::start_at(folder, name, [free_address(), free_address()], &[])
    }

    /// Starts one at these addresses, for gRPC and HTTP, on `folder`'s manifests and state, with
    /// more flags.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start_at(
        folder: &Path,
        name: &str,
        [grpc, http]: [SocketAddr; 2],
        flags: &[&str],
    ) -> Self {
        let mut command = Self::command(folder, [grpc, http]);
        let process = Process::start(command.args(flags), &folder.join(format!("{name}.log")));
        Self { process, grpc, http }
    }

    /// The command that starts one at these addresses, for gRPC and HTTP, on `folder`'s manifests
    /// and state.
    #[must_use]
    pub fn command(folder: &Path, [grpc, http]: [SocketAddr; 2]) -> Command {
        let mut command = Command::new(toolbox::binary("leasehold-coordinator"));
        command.arg("run").arg("--manifests").arg(folder.join("manifests"));
        command.arg("--state-dir").arg(folder.join("state"));
        command.args(["--listen", &grpc.to_string(), "--http-listen", &http.to_string()]);
        // Tests of other things remove manifests, too; a flag sets another time.
        command.env("LEASEHOLD_CONFIRM_REMOVALS", "0s");
        command
    }
}

/// An agent.
#[derive(Debug)]
pub struct Agent {
    /// The process.
    pub process: Process,
    /// Where it serves its worker.
    pub api: SocketAddr,
}

impl Agent {
    /// Begins a drain of its worker.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn drain(&self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let call = http::call(self.api, "POST", "/v1/drain", "");
        let answer = runtime.expect("a runtime").block_on(call);
        let (status, body) = answer.expect("the agent answers");
        assert_eq!(status, 200, "{body}");
    }
}

/// One HTTP GET: the status and the body, or `None` if there is no answer.
#[must_use]
pub fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(HANG)).ok()?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

/// Writes a file of `folder`'s manifests, which is never seen half written. Returns when it was put
/// in place.
///
/// # Panics
/// If it cannot be written.
pub fn put_manifest(folder: &Path, name: &str, text: &str) -> Moment {
    let hidden = folder.join("manifests").join(format!(".{name}"));
    std::fs::write(&hidden, text).expect("the manifest is written");
    let put = Moment(clock::now_ns());
    std::fs::rename(&hidden, folder.join("manifests").join(name)).expect("and put in place");
    put
}

/// The most memory that a process has had in use.
pub const PEAK_MEMORY: &str = "VmHWM";
/// The memory that a process has in use now.
pub const PRESENT_MEMORY: &str = "VmRSS";
/// Of that, what no file stands behind.
pub const OWN_MEMORY: &str = "RssAnon";

/// The memory of a process in KiB, of the kind that a constant above names; `None` if it has ended.
#[must_use]
pub fn memory_kib(id: u32, which: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let size = status.lines().find_map(|line| line.strip_prefix(which)?.strip_prefix(':'))?;
    size.split_whitespace().next()?.parse().ok()
}

/// Ticks of the kernel's times of processes in a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// How long the threads of a process have run, those that have ended included, in seconds of one
/// core; `None` if it has ended.
#[must_use]
pub fn processor_seconds(id: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, after_name) = text.rsplit_once(") ")?;
    // User and system time are the 12th and 13th fields after the name.
    let ticks = after_name.split(' ').skip(11).take(2);
    let ticks: f64 = ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    Some(ticks / TICKS_PER_SECOND)
}

/// A free address on loopback.
///
/// # Panics
/// If the system has none left.
#[must_use]
pub fn free_address() -> SocketAddr {
    let ports = free_ports(1).expect("a free port");
    SocketAddr::from(([127, 0, 0, 1], ports[0]))
}

/// The longest interval between two polls; [`POLL`] is the shortest.
const POLL_MAX: Duration = Duration::from_secs(1);
/// A wait may take longer by one part in this many, for the sake of fewer polls.
const POLLS_PER_WAIT: u32 = 8;

/// Polls once: the answer, `None` after `most`, or the time until the next poll. A poll that starts
/// a program, such as kubectl, leaves two thirds of the time to what it waits for, and what takes
/// long is polled less often.
fn poll<T>(
    begun: Instant,
    most: Duration,
    ask: &mut impl FnMut() -> Option<T>,
) -> ControlFlow<Option<T>, Duration> {
    let asked = Instant::now();
    match ask() {
        Some(answer) => ControlFlow::Break(Some(answer)),
        None if begun.elapsed() >= most => ControlFlow::Break(None),
        None => {
            let pause = (2 * asked.elapsed()).max(begun.elapsed() / POLLS_PER_WAIT);
            ControlFlow::Continue(pause.clamp(POLL, POLL_MAX))
        }
    }
}

/// Polls `ask` until it returns a value; `None` after `most`.
pub fn within<T>(most: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let begun = Instant::now();
    loop {
        match poll(begun, most, &mut ask) {
            ControlFlow::Break(answer) => return answer,
            ControlFlow::Continue(pause) => std::thread::sleep(pause),
        }
    }
}

/// [`within`] for a task, which can be cancelled between two polls.
pub async fn soon_within<T>(most: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let begun = Instant::now();
    loop {
        match poll(begun, most, &mut ask) {
            ControlFlow::Break(answer) => return answer,
            ControlFlow::Continue(pause) => tokio::time::sleep(pause).await,
        }
    }
}

/// Polls `ask` until it returns a value.
///
/// # Panics
/// After [`HANG`], with `what`.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    until_ok(what, || ask().ok_or("no answer"))
}

/// Polls `ask` until it succeeds.
///
/// # Panics
/// After [`HANG`], with `what` and the last error.
pub fn until_ok<T, E: Display>(what: &str, mut ask: impl FnMut() -> Result<T, E>) -> T {
    let mut last = None;
    let answer = within(HANG, || ask().map_err(|error| last = Some(error)).ok());
    answer.unwrap_or_else(|| timed_out(what, last))
}

/// [`eventually`] for a task, which can be cancelled between two polls.
///
/// # Panics
/// After [`HANG`], with `what`.
pub async fn soon<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    soon_ok(what, || ask().ok_or("no answer")).await
}

/// [`until_ok`] for a task, which can be cancelled between two polls.
///
/// # Panics
/// After [`HANG`], with `what` and the last error.
pub async fn soon_ok<T, E: Display>(what: &str, mut ask: impl FnMut() -> Result<T, E>) -> T {
    let mut last = None;
    let answer = soon_within(HANG, || ask().map_err(|error| last = Some(error)).ok()).await;
    answer.unwrap_or_else(|| timed_out(what, last))
}

fn timed_out(what: &str, last: Option<impl Display>) -> ! {
    panic!("timed out waiting for {what}: {}", last.expect("every poll has failed"))
}

/// Checks at every poll, for all of `span`, what must hold throughout.
pub fn throughout(span: Duration, mut check: impl FnMut()) {
    let begun = Instant::now();
    while begun.elapsed() < span {
        check();
        std::thread::sleep(POLL);
    }
}
