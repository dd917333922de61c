//! What the core wants done, and the notices that it gives to watchers.

use std::time::Duration;

use leasehold_types::message::CoordinatorMessage;
use leasehold_types::{
    ClusterName, Epoch, Moment, NodeName, PipelineName, StreamKey, Token, WorkerKey,
};

use crate::event::ConnId;
use crate::exposure::{Exposure, Life};
use crate::view::{BindingPhase, PipelinePhase};

/// Something for the driver to carry out, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Give the connection a message. A grant may be written only under `epoch` and before the
    /// leadership's end. The core gives no other message until [`crate::event::Event::Sent`].
    Send {
        /// The connection.
        conn: ConnId,
        /// The message.
        message: CoordinatorMessage,
    },
    /// End the connection after the messages given so far.
    Close(ConnId),
    /// Have the platform do something for the term `epoch`. A platform that has lost that term
    /// ignores it, also where it has taken a later one: what the order rested on is over.
    Order {
        /// The term that gave the order.
        epoch: Epoch,
        /// What is to be done.
        order: Order,
    },
    /// Send a notice to all watchers.
    Notice(Notice),
}

/// What a leader's core asks of its platform; carried out in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Write down what these workers may hold, then answer with
    /// [`crate::event::Event::Registered`].
    Register(Vec<(WorkerKey, Life, Exposure)>),
    /// Strike these workers from what is written down: they hold nothing. A registration of them
    /// that was asked for before is not to be answered any more.
    Unregister(Vec<WorkerKey>),
    /// Renew leadership at once: something waits for a renewal sent from now on.
    Confirm,
    /// Give leadership up. Where an agent remembers a higher epoch, it is named: the next term
    /// must be above it.
    StepDown {
        /// The epoch to stay above.
        above: Option<Epoch>,
    },
    /// An agent remembers this epoch, which is above the leader's: ask the store whether the term
    /// stands, then answer with [`crate::event::Event::TermStands`],
    /// [`crate::event::Event::Renewed`] or [`crate::event::Event::Deposed`].
    AskTerm {
        /// The highest epoch that an agent remembers.
        seen: Epoch,
    },
}

impl Order {
    /// The epoch that the next term must be above, if this order names one.
    #[must_use]
    pub fn above(&self) -> Option<Epoch> {
        match self {
            Self::StepDown { above } => *above,
            Self::Register(_) | Self::Unregister(_) | Self::Confirm | Self::AskTerm { .. } => None,
        }
    }
}

/// A change that people and metrics care about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// This replica leads.
    Elected(Epoch),
    /// This replica no longer leads.
    Deposed(Epoch),
    /// All that could be outstanding in this cluster is known: it plans from now on.
    HoldEnded(ClusterName),
    /// A worker's agent has reported.
    Joined(WorkerKey),
    /// A worker's agent is no longer connected.
    Disconnected(WorkerKey),
    /// A worker has been silent for longer than its leases last.
    Lost(WorkerKey),
    /// A worker has been lost for as long as its cluster's manifest allows: it counts as gone, and
    /// all that it had is about to be freed.
    GivenUp {
        /// The worker.
        worker: WorkerKey,
        /// `spec.lost.after`.
        after: Duration,
    },
    /// A worker has begun to drain.
    DrainStarted(WorkerKey),
    /// A worker holds nothing any longer and has left, or the platform says so.
    Gone(WorkerKey),
    /// A pool lease was granted.
    PoolGranted {
        /// To this worker.
        worker: WorkerKey,
        /// So many slots.
        size: u32,
        /// Under this token.
        token: Token,
    },
    /// A stream lease was granted.
    StreamGranted {
        /// To this worker.
        worker: WorkerKey,
        /// The stream.
        stream: StreamKey,
        /// Under this token.
        token: Token,
    },
    /// A stream was asked back.
    StreamRevoked {
        /// From this worker.
        worker: WorkerKey,
        /// The stream.
        stream: StreamKey,
        /// Under this token.
        token: Token,
    },
    /// A stream lease has ended.
    StreamFreed {
        /// At this worker.
        worker: WorkerKey,
        /// The stream.
        stream: StreamKey,
        /// Under this token.
        token: Token,
        /// How that is known.
        how: Freed,
    },
    /// A pipeline is in another state, or in the same one (`from` and `to` are equal) for another
    /// reason: what it waits for, or that a change of it waits.
    Pipeline {
        /// The pipeline.
        pipeline: PipelineName,
        /// The state that it was in; none for a new one.
        from: Option<PipelinePhase>,
        /// The state that it is in; none where it is no longer desired.
        to: Option<PipelinePhase>,
        /// Why, for people; empty where there is nothing to say.
        why: String,
    },
    /// A binding is in another state. All that its pipeline's states rest on comes before it.
    Binding {
        /// The pipeline.
        pipeline: PipelineName,
        /// The node.
        node: NodeName,
        /// The state that it was in; none for a new one.
        from: Option<BindingPhase>,
        /// The state that it is in; none where it is no longer desired.
        to: Option<BindingPhase>,
    },
    /// The shares of a binding, or the facts about their workers, have changed: watchers read the
    /// binding again.
    Endpoints {
        /// The pipeline.
        pipeline: PipelineName,
        /// The node.
        node: NodeName,
    },
    /// A worker's agent remembers a later term than the leader's, although the leader's stands: the
    /// store has lost its history, or the agent says what is not so.
    EpochAhead {
        /// The worker.
        worker: WorkerKey,
        /// What its agent remembers.
        seen: Epoch,
    },
    /// A worker broke the protocol's rules and was disconnected.
    Offence {
        /// The worker.
        worker: WorkerKey,
        /// The rule.
        rule: &'static str,
    },
}

/// How it is known that a lease has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// The agent gave it back, or its report no longer lists it.
    Released,
    /// Its time is over, and leadership was confirmed after that.
    Expired,
    /// The platform says that the worker is gone.
    Gone,
}

/// When to wake the core, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wakeup {
    /// At this moment, or soon after.
    pub at: Moment,
    /// For this.
    pub reason: WakeReason,
}

/// Why the core wants to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WakeReason {
    /// Leadership ends.
    TermEnd,
    /// The quarantine of a cluster ends.
    HoldEnd,
    /// A worker's silence counts from here as a loss.
    Silence,
    /// A handover's deadline passes, or a lease's time is over.
    LeaseEnd,
    /// Joins and drains have been gathered for long enough, or streams that were moved may move
    /// again.
    Settle,
    /// An agent's connection has waited for long enough.
    Session,
}
