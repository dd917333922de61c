//! The running child: its process group, as long as any process of it runs.
//!
//! Invariant: the child has exited only when its group is empty. COMMAND may be a wrapper that does
//! not exec: the worker is then a process that it started, and outlives the wrapper.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::process_group::ProcessGroup;
use crate::reaper::Exit;

/// The exit code of an adopted child: the real one is unknown.
const UNKNOWN_EXIT: Exit = Exit(1);
/// How long the other processes of a group may take to exit after the first one, before the log
/// says that they run: one signal ends them all, but not at the same moment.
const SETTLE: Duration = Duration::from_millis(100);

/// What happened to the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildEvent {
    /// Its first process has exited, and others of its group still run.
    LeaderExited(Exit),
    /// No process of its group runs. The exit is that of the first process.
    Exited(Exit),
}

/// The running child.
#[derive(Debug)]
pub(crate) struct RunningChild {
    group: ProcessGroup,
    leader: oneshot::Receiver<Exit>,
    /// How its first process ended, once it has.
    leader_exit: Option<Exit>,
    /// The exit of the first process was returned as an event.
    reported: bool,
    since: Instant,
}

impl RunningChild {
    /// A child that this agent has started; `leader` resolves when its first process has exited.
    pub(crate) fn started(group: ProcessGroup, leader: oneshot::Receiver<Exit>) -> Self {
        Self { group, leader, leader_exit: None, reported: false, since: Instant::now() }
    }

    /// A child that an earlier agent has started.
    pub(crate) fn adopted(group: ProcessGroup) -> Self {
        let (sender, leader) = oneshot::channel();
        let awaited = group.clone();
        tokio::spawn(async move {
            // The kernel reports exits only to the parent process.
            awaited.leader_ended().await;
            let _ = sender.send(UNKNOWN_EXIT);
        });
        Self::started(group, leader)
    }

    /// The same if only other processes of its group run.
    pub(crate) fn adopted_without_leader(group: ProcessGroup) -> Self {
        let (_, leader) = oneshot::channel();
        Self { leader_exit: Some(UNKNOWN_EXIT), reported: true, ..Self::started(group, leader) }
    }

    /// Waits for the next event. If it is dropped before, no event is lost.
    pub(crate) async fn next(&mut self) -> ChildEvent {
        let exit = match self.leader_exit {
            Some(exit) => exit,
            None => {
                let exit = (&mut self.leader).await.expect("the reaper reports every exit");
                *self.leader_exit.insert(exit)
            }
        };
        if !self.reported {
            let settled = tokio::time::timeout(SETTLE, self.group.ended()).await;
            self.reported = true;
            if settled.is_err() {
                return ChildEvent::LeaderExited(exit);
            }
        }
        self.group.ended().await;
        ChildEvent::Exited(exit)
    }

    /// Whether its first process has exited.
    pub(crate) fn has_lost_leader(&self) -> bool {
        self.leader_exit.is_some()
    }

    /// The id of its process group.
    pub(crate) fn group_id(&self) -> i32 {
        self.group.id
    }

    /// How long it has run.
    pub(crate) fn ran(&self) -> Duration {
        self.since.elapsed()
    }
}
