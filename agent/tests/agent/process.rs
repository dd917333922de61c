//! Helpers: the agent's process, and HTTP requests to it.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::ioctl_fionread;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::watch;

use super::coordinator::{Coordinator, PATIENCE};

pub const AGENT: &str = env!("CARGO_BIN_EXE_leasehold-agent");

/// The last lines of an agent's log that a failed test shows.
const SHOWN_LINES_MAX: usize = 60;

/// A running agent; it is killed at the end of its test.
pub struct Agent {
    pub address: SocketAddr,
    pub log: Log,
    pub pid: Pid,
    process: tokio::process::Child,
    /// Its stderr, which the log follows.
    stderr: OwnedFd,
    /// Its child processes that outlived it.
    orphans: Vec<Pid>,
}

/// What a process has written to stderr, line by line.
#[derive(Clone)]
pub struct Log(Arc<watch::Sender<Vec<String>>>);

impl Log {
    pub fn follow(stderr: impl AsyncRead + Unpin + Send + 'static) -> Self {
        let log = Self(Arc::new(watch::Sender::new(Vec::new())));
        let told = log.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                told.0.send_modify(|lines| lines.push(line));
            }
        });
        log
    }

    /// Waits for a line that contains this text, and returns the first one.
    pub async fn line(&self, text: &str) -> String {
        let mut lines = self.0.subscribe();
        let found = lines.wait_for(|lines| lines.iter().any(|line| line.contains(text)));
        match tokio::time::timeout(PATIENCE, found).await {
            Ok(Ok(lines)) => lines.iter().find(|line| line.contains(text)).unwrap().clone(),
            _ => panic!("never logged: {text}\n{}", self.text()),
        }
    }

    pub fn count(&self, text: &str) -> usize {
        self.0.borrow().iter().filter(|line| line.contains(text)).count()
    }

    pub fn text(&self) -> String {
        self.0.borrow().join("\n")
    }
}

impl Agent {
    /// Starts an agent of worker `w1` in cluster `ci`, and waits until its API listens.
    pub async fn start(coordinator: &Coordinator, more: &[&str]) -> Self {
        Self::start_at(coordinator, "127.0.0.1:0", more).await
    }

    /// The same, with its API at this address.
    pub async fn start_at(coordinator: &Coordinator, listen: &str, more: &[&str]) -> Self {
        let coordinator = coordinator.address.to_string();
        let mut args = vec!["run", "--coordinator", &coordinator, "--cluster", "ci"];
        args.extend(["--worker", "w1", "--listen", listen, "--log-format", "json"]);
        args.extend(more);
        Self::run(Command::new(AGENT).args(args)).await
    }

    pub async fn run(command: &mut Command) -> Self {
        command.env("LEASEHOLD_LOG", "debug,h2=info,hyper=info,tower=info,hyper_util=info");
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut command =
            tokio::process::Command::from(std::mem::replace(command, Command::new("")));
        let mut process = command.kill_on_drop(true).spawn().unwrap();
        let output = process.stderr.take().unwrap();
        let stderr = output.as_fd().try_clone_to_owned().unwrap();
        let log = Log::follow(output);
        let line = log.line("the worker API listens").await;
        let line: Value = serde_json::from_str(&line).unwrap();
        let address = line["fields"]["address"].as_str().unwrap().parse().unwrap();
        let pid = Pid::from_raw(process.id().unwrap().cast_signed()).unwrap();
        Self { address, log, pid, process, stderr, orphans: Vec::new() }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    /// Its children.
    pub fn children(&self) -> Vec<Pid> {
        let path = format!("/proc/{0}/task/{0}/children", self.pid.as_raw_pid());
        let pids = read(path.as_ref());
        pids.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    }

    /// Waits until it exits, and returns its exit code.
    pub async fn code(&mut self) -> Option<i32> {
        self.status().await.code()
    }

    pub async fn status(&mut self) -> ExitStatus {
        let ended = tokio::time::timeout(PATIENCE, self.process.wait()).await;
        let Ok(status) = ended else { panic!("the agent does not exit\n{}", self.log.text()) };
        // Its last lines may still be in the pipe. COMMAND may keep the pipe open, so the end of
        // the pipe cannot be awaited.
        until("its log is read", || ioctl_fionread(&self.stderr).unwrap() == 0).await;
        status.unwrap()
    }

    pub async fn kill(&mut self) {
        self.orphans = self.children();
        self.process.kill().await.unwrap();
    }

    /// Begins jobs until the journal on a full disk has no space; returns how many began.
    pub async fn fill_journal(&self) -> u32 {
        let mut begun = 0;
        while self.ask("PUT", &format!("/v1/jobs/{begun}"), "").await.0 == 200 {
            begun += 1;
        }
        begun
    }

    /// A gRPC connection to its worker API.
    pub async fn channel(&self) -> tonic::transport::Channel {
        let url = format!("http://{}", self.address);
        tonic::transport::Endpoint::from_shared(url).unwrap().connect().await.unwrap()
    }

    /// Sends a request; returns its status and JSON body.
    pub async fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (status, text) = self.text(method, path, body).await;
        let value = serde_json::from_str(&text);
        (status, value.unwrap_or_else(|_| panic!("not JSON: {status} {text:?}")))
    }

    pub async fn text(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let socket = tokio::net::TcpStream::connect(self.address).await.unwrap();
        let host = format!("Host: {}\r\n", self.address);
        exchange(socket, method, path, &host, body).await
    }

    /// Repeats the request until the answer fulfils the condition.
    pub async fn ask_until(&self, path: &str, good: impl Fn(&Value) -> bool) -> Value {
        let asking = async {
            let mut version = String::new();
            let mark = if path.contains('?') { '&' } else { '?' };
            loop {
                let asked = format!("{path}{mark}{version}");
                let (status, answer) = self.ask("GET", &asked, "").await;
                assert_eq!(status, 200, "{answer}");
                if good(&answer) {
                    return answer;
                }
                version = format!("after_version={}&wait_ms=500", answer["version"]);
            }
        };
        match tokio::time::timeout(PATIENCE, asking).await {
            Ok(answer) => answer,
            Err(_) => {
                panic!("the answer of {path} never fulfilled the condition\n{}", self.log.text())
            }
        }
    }

    /// Waits until the pool has this size.
    pub async fn pool(&self, size: u32) {
        self.ask_until("/v1/lease", |lease| lease["pool"]["size"] == size).await;
    }

    pub async fn metric(&self, name: &str) -> String {
        let (status, text) = self.text("GET", "/metrics", "").await;
        assert_eq!(status, 200);
        let name = format!("{name} ");
        let line = text.lines().find(|line| line.starts_with(&name));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}"))[name.len()..].to_owned()
    }

    /// Waits until a metric has such a value.
    pub async fn metric_until(&self, name: &str, good: impl Fn(u64) -> bool) {
        until_async(name, async || good(self.metric(name).await.parse().unwrap())).await;
    }
}

impl Drop for Agent {
    /// Kills the workers of a failed test, and what holds the agent's drain: in a pod it ends with
    /// its container. A failed test shows what its agents have logged last.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log.0.borrow();
            let last = log.iter().skip(log.len().saturating_sub(SHOWN_LINES_MAX));
            let last: Vec<_> = last.map(String::as_str).collect();
            eprintln!("--- the agent at {}\n{}", self.address, last.join("\n"));
        }
        let children = self.children();
        let all = children.into_iter().chain(self.orphans.drain(..)).chain(holders(self.address));
        for pid in all {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The processes that a drain of this agent has started to hold it.
fn holders(agent: SocketAddr) -> impl Iterator<Item = Pid> {
    let command = format!("leasehold-agent\0drain\0--hold\0--addr\0http://{agent}/\0");
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes.filter_map(move |process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let found = std::fs::read(process.path().join("cmdline")).ok()?;
        (found == command.as_bytes()).then(|| Pid::from_raw(pid))?
    })
}

/// One HTTP/1.1 exchange over any socket.
pub async fn exchange(
    mut socket: impl AsyncRead + AsyncWrite + Unpin,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> (u16, String) {
    let head = format!(
        "{method} {path} HTTP/1.1\r\n{headers}Connection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut answer = Vec::new();
    let request = async {
        socket.write_all(head.as_bytes()).await?;
        // The server may answer and close the connection before it has read everything.
        let _ = socket.write_all(body.as_bytes()).await;
        socket.read_to_end(&mut answer).await
    };
    let ended = tokio::time::timeout(PATIENCE, request).await.expect("no answer in time");
    if answer.is_empty() {
        ended.unwrap();
    }
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// Runs an agent that is expected to exit by itself; returns its exit code and stderr.
pub async fn fail(args: &[&str]) -> (Option<i32>, String) {
    let mut command = tokio::process::Command::new(AGENT);
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let ended = tokio::time::timeout(PATIENCE, command.output()).await.expect("the agent exits");
    let output = ended.unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// The interval between two polls.
const POLL: Duration = Duration::from_millis(20);

/// Waits until a condition holds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    until_async(what, async || holds()).await;
}

/// The same, where to look is a task.
async fn until_async(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let poll = async {
        while !holds().await {
            tokio::time::sleep(POLL).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, poll).await.is_ok(), "timeout: {what}");
}

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The process ids in a file; empty if it does not exist.
pub fn pids(path: &Path) -> Vec<Pid> {
    read(path).split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?)).collect()
}

/// Whether a process runs. A zombie does not.
pub fn runs(pid: Pid) -> bool {
    let stat = read(Path::new(&format!("/proc/{}/stat", pid.as_raw_pid())));
    !(stat.is_empty() || stat.contains(") Z "))
}

/// A memory file system of 32 KiB: it is unmounted at the end.
pub struct SmallDisk(pub PathBuf);

impl SmallDisk {
    /// None if mounting is not permitted; then the test of `what` is recorded as skipped.
    pub fn mount(dir: &Path, what: &str) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=36k", "tmpfs"]).arg(dir);
        if mount.status().is_ok_and(|status| status.success()) {
            return Some(Self(dir.into()));
        }
        left_out(what, "a memory file system cannot be mounted here (it needs root)");
        None
    }

    /// Mounts it again, as `ro` or `rw`.
    pub fn remount(&self, how: &str) {
        let mut mount = Command::new("mount");
        mount.args(["-o", &format!("remount,{how}")]).arg(&self.0);
        assert!(mount.status().unwrap().success(), "{how}");
    }

    /// Fills it to the last byte; returns the file that does.
    pub fn fill(&self) -> PathBuf {
        let ballast = self.0.join("ballast");
        let filled = std::fs::write(&ballast, vec![b'x'; 64 * 1024]);
        assert!(filled.is_err(), "the disk is not full");
        ballast
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A command that runs its arguments as process 1 of a new process namespace; `None`, and recorded
/// as left out, if this machine forbids it.
pub fn process_namespace() -> Option<Command> {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        command
    };
    if unshare().arg("true").status().is_ok_and(|status| status.success()) {
        return Some(unshare());
    }
    left_out("the agent as process 1", "a process namespace cannot be made here (it needs root)");
    None
}

/// Records a test that cannot run on this machine, for the summary of `make test`.
pub fn left_out(what: &str, why: &str) {
    eprintln!("left out: {what}: {why}");
    let notes = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.cache"));
    std::fs::create_dir_all(notes).unwrap();
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.create(true).append(true).open(notes.join("left-out")).unwrap();
    std::io::Write::write_all(&mut file, format!("forbidden\t{what}\t{why}\n").as_bytes()).unwrap();
}
