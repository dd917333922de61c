//! The agent's end of the line to its guard: keeps one running, and tells it the newest table.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{oneshot, watch};

use crate::gate::EXECUTABLE;
use crate::group::Group;
use crate::guard::{self, Guarded, Table};
use crate::init::{Exit, Reaper};

/// How long a guard may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A guard that runs.
#[derive(Debug)]
pub(crate) struct Warden {
    /// The guard's own process.
    pub(crate) group: Group,
    exit: oneshot::Receiver<Exit>,
    tables: watch::Sender<Table>,
    answered: watch::Receiver<u64>,
}

impl Warden {
    /// Starts a guard. Where its groups are to `outlive` the agent, a successor must find them.
    pub(crate) fn start(reaper: &Reaper, outlive: bool) -> anyhow::Result<Self> {
        let (ours, theirs) = UnixStream::pair().context("no socket pair")?;
        ours.set_nonblocking(true).context("a socket pair")?;
        let socket = tokio::net::UnixStream::from_std(ours).context("a socket pair")?;
        let mut command = Command::new(EXECUTABLE);
        // In a group of its own, so that Ctrl-C reaches the agent alone.
        command.arg0(guard::NAME).stdin(Stdio::from(OwnedFd::from(theirs))).process_group(0);
        let process = reaper.spawn(&mut command).context("no guard can be started")?;
        let group = Group::of(process.pid).context("the guard has ended at once")?;
        let (tables, newest) = watch::channel(Table { outlive, ..Table::default() });
        let (answers, answered) = watch::channel(0);
        tokio::spawn(converse(socket, newest, answers));
        Ok(Self { group, exit: process.exit, tables, answered })
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.exit.is_terminated() || !self.exit.is_empty()
    }

    /// Waits until it has ended, which it does not while its agent lives.
    pub(crate) async fn ended(&mut self) {
        let _ = (&mut self.exit).await;
    }

    /// Tells it what to guard from now on.
    pub(crate) fn tell(&self, groups: Vec<Guarded>) {
        self.tables.send_if_modified(|table| {
            let changed = table.groups != groups;
            if changed {
                table.number += 1;
                table.groups = groups;
            }
            changed
        });
    }

    /// Waits until it has taken up what it was told last.
    pub(crate) async fn has_taken_up(&mut self) -> anyhow::Result<()> {
        let number = self.tables.borrow().number;
        let taken_up = self.answered.wait_for(|answered| *answered >= number);
        match tokio::time::timeout(TIMEOUT, taken_up).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => bail!("the guard has ended"),
            Err(_) => bail!("the guard has not answered within {TIMEOUT:?}"),
        }
    }
}

/// Sends the newest table, and hears which was taken up; a slow guard skips those between.
async fn converse(
    socket: tokio::net::UnixStream,
    mut newest: watch::Receiver<Table>,
    answers: watch::Sender<u64>,
) {
    let (read, mut write) = socket.into_split();
    let mut lines = BufReader::new(read).lines();
    while newest.changed().await.is_ok() {
        let table = newest.borrow_and_update().clone();
        let mut line = serde_json::to_vec(&table).expect("a table has only plain fields");
        line.push(b'\n');
        if write.write_all(&line).await.is_err() {
            return;
        }
        let Ok(Some(answer)) = lines.next_line().await else { return };
        answers.send_replace(answer.parse().unwrap_or(0));
    }
}
