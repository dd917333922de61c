//! The effects that the holder asks its driver for, and its notices for the log.

use leasehold_types::message::{AgentMessage, RefusalReason, WorkerFailure};
use leasehold_types::{CellId, Epoch, Incarnation, JobId, LinkNumber, Moment, StreamKey, Token};

/// The rule that a leader breaks whose snapshot has a number that is not above what the agent has
/// applied: grants to a worker are counted upwards, over links as well.
pub const SNAPSHOT_NOT_ABOVE: &str = "a snapshot that is not above what was applied";

/// An effect. The driver carries effects out in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Open this link and drop all others. The first attempt is made at once, later ones after a
    /// backoff with jitter that grows with `attempt`.
    Dial {
        /// The link's number.
        link: LinkNumber,
        /// Which coordinator to dial.
        target: Target,
        /// How many attempts have failed in a row.
        attempt: u32,
    },
    /// Close this link after the queued messages.
    Hangup(LinkNumber),
    /// Send a message on this link.
    Send(LinkNumber, AgentMessage),
    /// The lease has changed, and has a new version.
    LeaseChanged,
    /// The lease was renewed; otherwise it is unchanged.
    LeaseRenewed,
    /// The drain has ended, and the agent has tried to report it: leave, even if jobs still run.
    DrainEnded {
        /// Jobs that still run after the deadline.
        jobs_left: u32,
        /// Whether a coordinator has answered the report that the agent leaves. One of an earlier
        /// release does not, nor does any while jobs are left: then, whether it was sent.
        reported: bool,
    },
    /// The drain's deadline has passed, and the agent goes on until nothing is left: it stays, or
    /// ends its worker now. Callers that wait for the drain get an answer.
    DrainOverdue {
        /// Jobs that still run.
        jobs_left: u32,
    },
    /// The drain was cancelled; the agent keeps running.
    Resumed,
    /// A newer agent has taken over this worker: stop permanently.
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

/// Why a drain was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainCancelled {
    /// The coordinator took its order back.
    Undrain,
    /// The worker or the agent restarted.
    Restart,
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
    /// A pool lease was granted.
    PoolGranted(Token, u32),
    /// The pool lease has ended without renewal; this size is left.
    PoolExpired(u32),
    /// The pool lease that had ended without renewal is in force again, with this size.
    PoolRenewed(Token, u32),
    /// Workers of newer generations get slots before this worker, which might have more.
    NewerGeneration {
        /// This worker's generation.
        own: u64,
        /// The newest one.
        newer: u64,
    },
    /// A stream lease was granted.
    StreamGranted(StreamKey, Token),
    /// A stream was revoked.
    StreamRevoked(StreamKey, Token),
    /// The revocation of a stream was cancelled.
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
    /// The drain was cancelled.
    DrainOver(DrainCancelled),
    /// The worker fails its check: it gets no job, and its streams are given up.
    Failing(WorkerFailure),
    /// The worker passes its check again.
    Recovered,
    /// The journal could not be written, so the change did not take effect.
    JournalFailed(String),
    /// The coordinator violated the protocol.
    ProtocolViolation(&'static str),
    /// A coordinator of another cell welcomed the agent, which obeys nothing of it.
    OtherCell {
        /// The cell that the agent belongs to.
        own: CellId,
        /// The coordinator's.
        other: CellId,
    },
    /// Another agent had this incarnation or a higher one, so this agent took a higher one.
    IncarnationRaised(Incarnation),
}

/// When to wake the holder, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wakeup {
    /// The moment.
    pub at: Moment,
    /// The reason.
    pub reason: WakeReason,
}

/// Why the holder wants to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WakeReason {
    /// A beat is due.
    Beat,
    /// No message has arrived on the link for too long.
    LinkDead,
    /// A lease ends.
    LeaseEnd,
    /// The drain's deadline passes.
    DrainDeadline,
}
