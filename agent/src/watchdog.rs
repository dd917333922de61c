//! The watchdog: a process of the agent's own executable. It kills process groups at the end of
//! their leases if the agent was killed, is stopped or hangs.
//!
//! Invariant: the watchdog knows each program before it runs, and kills it no later than the newest
//! end that the agent sent. It knows groups and times only, no leases.

use std::io::{BufRead, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Context;
use leasehold_types::Moment;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::sync::{oneshot, watch};

use crate::clock;
use crate::launcher::EXECUTABLE;
use crate::process_group::ProcessGroup;
use crate::reaper::{Exit, Reaper};

/// The name under which the executable runs as a watchdog.
pub(crate) const NAME: &str = "leasehold-watchdog";
/// How long a watchdog may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is asked whether it works, if there is no other list.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// It reads the clock at least this often: a timer does not count the time during which the host is
/// suspended.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The same once its agent has ended.
const CHECK_INTERVAL_WITHOUT_AGENT: Duration = Duration::from_millis(200);
/// A group that has not ended is killed again after this time at the earliest.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(20);

/// All groups to watch. Each list replaces the previous one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct WatchList {
    /// The number of the list, which the acknowledgement repeats.
    number: u64,
    /// If the agent ends, the groups run until their end, because a successor adopts them.
    outlive: bool,
    groups: Vec<WatchedGroup>,
}

/// A group and its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WatchedGroup {
    pub(crate) group: ProcessGroup,
    /// In nanoseconds of the clock of leases; none if it does not end by time.
    pub(crate) end: Option<u64>,
}

/// The agent's handle to a running watchdog.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// The watchdog's own process.
    pub(crate) group: ProcessGroup,
    exit: oneshot::Receiver<Exit>,
    lists: watch::Sender<WatchList>,
    /// The newest list that it has; closed when it has not answered in time.
    acknowledged: watch::Receiver<u64>,
}

impl Watchdog {
    /// Starts a watchdog. With `outlive` its groups may outlive the agent until their end.
    pub(crate) fn start(reaper: &Reaper, outlive: bool) -> anyhow::Result<Self> {
        let pair = || "cannot create a socket pair for the watchdog";
        let (ours, theirs) = UnixStream::pair().with_context(pair)?;
        ours.set_nonblocking(true).with_context(pair)?;
        let socket = tokio::net::UnixStream::from_std(ours).with_context(pair)?;
        let mut command = Command::new(EXECUTABLE);
        // In its own group, so that Ctrl-C reaches only the agent.
        command.arg0(NAME).stdin(Stdio::from(OwnedFd::from(theirs))).process_group(0);
        let process = reaper.spawn(&mut command).context("cannot start a watchdog")?;
        let group = ProcessGroup::of(process.pid).context("the watchdog exited at once")?;
        let (lists, newest) = watch::channel(WatchList { outlive, ..WatchList::default() });
        let (acknowledge, acknowledged) = watch::channel(0);
        tokio::spawn(send_lists(socket, newest, acknowledge));
        Ok(Self { group, exit: process.exit, lists, acknowledged })
    }

    /// Whether it has exited, or has not answered in time because it is stopped or hangs.
    pub(crate) fn is_lost(&self) -> bool {
        let has_exited = self.exit.is_terminated() || !self.exit.is_empty();
        has_exited || self.acknowledged.has_changed().is_err()
    }

    /// Waits until it is lost.
    pub(crate) async fn lost(&mut self) {
        let answers = &mut self.acknowledged;
        let silence = async { while answers.changed().await.is_ok() {} };
        tokio::select! {
            _ = &mut self.exit => {}
            () = silence => {}
        }
    }

    /// Ends it without harm to its groups. Dropped without that, it takes the agent for gone.
    pub(crate) fn end(&self) {
        self.group.signal(Signal::KILL);
    }

    /// Sends a new list of groups, which replaces the previous one.
    pub(crate) fn watch(&self, groups: Vec<WatchedGroup>) {
        self.lists.send_if_modified(|list| {
            let changed = list.groups != groups;
            if changed {
                list.number += 1;
                list.groups = groups;
            }
            changed
        });
    }

    /// Waits until it has acknowledged the newest list.
    pub(crate) async fn acknowledged(&mut self) -> anyhow::Result<()> {
        let number = self.lists.borrow().number;
        let acknowledged = self.acknowledged.wait_for(|seen| *seen >= number).await;
        acknowledged.map(drop).with_context(|| {
            format!("the watchdog exited, or has not answered within {ANSWER_TIMEOUT:?}")
        })
    }
}

/// Sends the newest list and receives acknowledgements, until the watchdog does not answer. A slow
/// watchdog skips older lists.
async fn send_lists(
    socket: tokio::net::UnixStream,
    mut newest: watch::Receiver<WatchList>,
    acknowledge: watch::Sender<u64>,
) {
    let (read, mut write) = socket.into_split();
    let mut lines = tokio::io::BufReader::new(read).lines();
    loop {
        let line = match tokio::time::timeout(PING_INTERVAL, newest.changed()).await {
            Ok(Err(_)) => return,
            Ok(Ok(())) => {
                let list = newest.borrow_and_update().clone();
                serde_json::to_vec(&list).expect("a list has only plain fields")
            }
            // An empty line is a ping: its answer is the number of the list before.
            Err(_) => Vec::new(),
        };
        let exchange = async {
            write.write_all(&[line, vec![b'\n']].concat()).await.ok()?;
            lines.next_line().await.ok()?
        };
        match tokio::time::timeout(ANSWER_TIMEOUT, exchange).await {
            Ok(Some(answer)) => acknowledge.send_replace(answer.parse().unwrap_or(0)),
            Ok(None) | Err(_) => break,
        };
    }
    drop(acknowledge);
    // It takes the end of the socket for that of the agent: while it is not replaced and ended, a
    // watchdog that was slow or stopped must kill nothing.
    while newest.changed().await.is_ok() {}
}

enum Message {
    List(WatchList),
    Ping,
    /// The agent has ended.
    AgentGone,
}

/// The watchdog's process: reads the lists from its standard input.
pub(crate) fn main() -> ExitCode {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from);
    let ends = socket.and_then(|socket| socket.try_clone().map(|answers| (socket, answers)));
    let Ok((socket, answers)) = ends else { return ExitCode::FAILURE };
    let (sender, messages) = channel();
    std::thread::spawn(move || {
        for line in std::io::BufReader::new(socket).lines() {
            let message = match line {
                Ok(line) if line.is_empty() => Some(Message::Ping),
                Ok(line) => serde_json::from_str(&line).ok().map(Message::List),
                Err(_) => None,
            };
            let Some(message) = message else { break };
            if sender.send(message).is_err() {
                return;
            }
        }
        let _ = sender.send(Message::AgentGone);
    });
    run(&messages, answers);
    ExitCode::SUCCESS
}

fn run(messages: &Receiver<Message>, mut answers: UnixStream) {
    let mut list = WatchList::default();
    let mut agent_gone = false;
    loop {
        match messages.recv_timeout(pause(&list, agent_gone, clock::now())) {
            Ok(Message::List(newer)) => {
                list = newer;
                let _ = writeln!(answers, "{}", list.number);
            }
            Ok(Message::Ping) => {
                let _ = writeln!(answers, "{}", list.number);
            }
            Ok(Message::AgentGone) => agent_gone = true,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(CHECK_INTERVAL_WITHOUT_AGENT),
        }
        let now = clock::now();
        for watched in &list.groups {
            if watched.is_due(now) || (agent_gone && !list.outlive) {
                watched.group.signal(Signal::KILL);
            }
        }
        // A group that has ended needs no watching.
        list.groups
            .retain(|watched| !(agent_gone || watched.is_due(now)) || watched.group.exists());
        if agent_gone && list.groups.is_empty() {
            return;
        }
    }
}

fn pause(list: &WatchList, agent_gone: bool, now: Moment) -> Duration {
    let ends = list.groups.iter().filter_map(|watched| watched.end);
    let next = ends.map(|end| Moment(end).since(now)).min();
    let longest = if agent_gone { CHECK_INTERVAL_WITHOUT_AGENT } else { CHECK_INTERVAL };
    next.map_or(longest, |next| next.clamp(CHECK_INTERVAL_MIN, longest))
}

impl WatchedGroup {
    fn is_due(&self, now: Moment) -> bool {
        self.end.is_some_and(|end| Moment(end) <= now)
    }
}
