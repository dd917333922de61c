//! What an agent with a child waits for.

use rustix::process::Signal;
use tokio::time::Instant;

use crate::child::{ChildEvent, RunningChild, WatchdogEvent};
use crate::driver::{DriverStopped, Outcome};
use crate::launcher::launched;
use crate::process_group::ProcessGroup;
use crate::signals::SignalAction;

#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    /// Start the child again.
    Restart,
    /// The grace period after SIGTERM has passed.
    Grace,
    /// The grace period after a second signal has passed: exit without the child.
    Leave(Signal),
}

pub(super) enum Event {
    Child(ChildEvent),
    Ended(Result<Outcome, DriverStopped>),
    /// The drain's deadline has passed.
    Overdue,
    /// The child fails its check and is to be restarted.
    RestartWanted,
    Signal(SignalAction),
    Due(Due),
    Watchdog(WatchdogEvent),
    /// The previous agent's launcher has become COMMAND, or exited.
    Launched,
}

/// The next event of the child, if there is one.
pub(super) async fn next_of(child: &mut Option<RunningChild>) -> ChildEvent {
    match child {
        None => std::future::pending().await,
        Some(child) => child.next().await,
    }
}

/// Waits until a launcher has become COMMAND, or exited.
pub(super) async fn until_launched(group: Option<&ProcessGroup>) {
    match group {
        None => std::future::pending().await,
        Some(group) => launched(group).await,
    }
}

/// Waits until the next timed step is due.
pub(super) async fn until_due(due: Option<(Instant, Due)>) -> Due {
    match due {
        None => std::future::pending().await,
        Some((at, due)) => {
            tokio::time::sleep_until(at).await;
            due
        }
    }
}
