//! What the holder wants done, and its notices for the log.

use leasehold_types::message::{AgentMessage, RefusalReason};
use leasehold_types::{Epoch, Incarnation, JobId, LinkNumber, Moment, StreamKey, Token};

/// Something for the driver to carry out, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Open this link; every other one is over. The first attempt goes out at once, later ones
    /// after a back-off with jitter that grows with `attempt`.
    Dial {
        /// The link's number.
        link: LinkNumber,
        /// Which coordinator to dial.
        target: Target,
        /// How many attempts have failed in a row.
        attempt: u32,
    },
    /// End this link, after the messages given so far.
    Hangup(LinkNumber),
    /// Send a message on this link.
    Send(LinkNumber, AgentMessage),
    /// [`crate::Holder::lease`] reads differently now, and has a new version.
    LeaseChanged,
    /// The lease's time was extended; it reads the same otherwise.
    LeaseRenewed,
    /// The drain is over and the agent has said so, as far as it could: leave with these jobs
    /// still running.
    DrainEnded {
        /// Jobs that outlived the deadline.
        jobs_left: u32,
        /// Whether a coordinator knows that the agent leaves.
        reported: bool,
    },
    /// The drain's deadline has passed, and the agent stays until nothing is left: a caller that
    /// waits for the drain waits no longer.
    DrainOverdue {
        /// Jobs that still run.
        jobs_left: u32,
    },
    /// The drain is over without an end of the agent: its worker was restarted.
    Resumed,
    /// A newer agent speaks for this worker: stop, for good.
    Superseded,
    /// Write to the log.
    Notice(Notice),
}

/// Which coordinator to dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The next of the addresses that the agent was started with.
    Next,
    /// The leader's address, from a replica that does not lead.
    Leader(String),
}

/// A change that is worth a line in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The coordinator welcomed the agent.
    Welcomed(Epoch),
    /// The coordinator refused the agent.
    Refused(RefusalReason, String),
    /// The link has ended, and why.
    Unlinked(String),
    /// A pool lease came.
    PoolGranted(Token, u32),
    /// The pool lease has ended without renewal; this size is left.
    PoolExpired(u32),
    /// A stream lease came.
    StreamGranted(StreamKey, Token),
    /// A stream was revoked.
    StreamRevoked(StreamKey, Token),
    /// A stream that was revoked is to be kept.
    StreamKept(StreamKey, Token),
    /// A stream lease was released.
    StreamReleased(StreamKey, Token),
    /// A stream lease has ended without renewal.
    StreamExpired(StreamKey, Token),
    /// A job began.
    JobBegan(JobId),
    /// A job ended.
    JobEnded(JobId),
    /// The drain began.
    DrainStarted,
    /// The drain is over, because the worker was restarted.
    DrainOver,
    /// The journal could not be written; what was to be written is not in force.
    JournalFailed(String),
    /// The coordinator broke the protocol's rules.
    Offence(&'static str),
    /// Another agent had this incarnation or a higher one; this one was raised above it.
    IncarnationRaised(Incarnation),
}

/// When to wake the holder, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wakeup {
    /// At this moment, or soon after.
    pub at: Moment,
    /// For this.
    pub reason: WakeReason,
}

/// Why the holder wants to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WakeReason {
    /// A beat is due.
    Beat,
    /// The link is silent for too long.
    LinkDead,
    /// A lease ends.
    LeaseEnd,
    /// The drain's deadline passes.
    DrainDeadline,
}
