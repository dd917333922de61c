//! The guard: a process of the agent's own executable that kills what the agent has not ended by
//! the end of its lease, should the agent be killed, be stopped or hang.
//!
//! Invariant: it knows of a program before that runs, and ends it no later than the newest end
//! that it was told. It knows nothing of leases: only groups and moments.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use leasehold_types::Moment;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::group::Group;

/// What the executable is called in this part.
pub(crate) const NAME: &str = "leasehold-guard";
/// It looks at the clock at least this often while anything has an end: a timer does not count the
/// time that a suspended host slept.
const LOOK: Duration = Duration::from_secs(1);
/// The same once its agent is gone.
const LOOK_ALONE: Duration = Duration::from_millis(200);

/// All that is to be guarded, in place of what was said before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Table {
    /// Counts the tables; the answer names it.
    pub(crate) number: u64,
    /// Without their agent the groups run on until their end: its successor will find them.
    pub(crate) outlive: bool,
    pub(crate) groups: Vec<Guarded>,
}

/// A group and its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Guarded {
    pub(crate) group: Group,
    /// In nanoseconds of the clock of leases; none for one that does not end by time.
    pub(crate) end: Option<u64>,
}

enum Said {
    Table(Table),
    /// Nobody is left to say anything.
    Gone,
}

/// The guard itself: obeys the tables on its standard input.
pub(crate) fn main() -> ExitCode {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from);
    let twin = socket.and_then(|socket| socket.try_clone().map(|twin| (socket, twin)));
    let Ok((socket, answers)) = twin else { return ExitCode::FAILURE };
    let (sender, said) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(socket).lines() {
            let table = line.ok().and_then(|line| serde_json::from_str(&line).ok());
            let Some(table) = table else { break };
            if sender.send(Said::Table(table)).is_err() {
                return;
            }
        }
        let _ = sender.send(Said::Gone);
    });
    watch(&said, answers);
    ExitCode::SUCCESS
}

fn watch(said: &Receiver<Said>, mut answers: UnixStream) {
    let mut table = Table::default();
    let mut alone = false;
    loop {
        match said.recv_timeout(pause(&table, alone, clock::now())) {
            Ok(Said::Table(newer)) => {
                table = newer;
                let _ = writeln!(answers, "{}", table.number);
            }
            Ok(Said::Gone) => alone = true,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK_ALONE),
        }
        let now = clock::now();
        for guarded in &table.groups {
            if guarded.is_over(now) || (alone && !table.outlive) {
                guarded.group.signal(Signal::KILL);
            }
        }
        // A group that has ended is over for good.
        table.groups.retain(|it| !(alone || it.is_over(now)) || it.group.exists());
        if alone && table.groups.is_empty() {
            return;
        }
    }
}

fn pause(table: &Table, alone: bool, now: Moment) -> Duration {
    let ends = table.groups.iter().filter_map(|guarded| guarded.end);
    let next = ends.map(|end| Moment(end).since(now)).min();
    let most = if alone { LOOK_ALONE } else { LOOK };
    // What is over and has not ended is killed again; but not at every turn.
    next.map_or(most, |next| next.clamp(Duration::from_millis(20), most))
}

impl Guarded {
    fn is_over(&self, now: Moment) -> bool {
        self.end.is_some_and(|end| Moment(end) <= now)
    }
}
