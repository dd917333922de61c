//! The effects of the core: messages to send, orders to the platform, and notices to watchers.

use std::sync::Arc;
use std::time::Duration;

use leasehold_types::message::{CoordinatorMessage, WorkerFailure};
use leasehold_types::{
    ClusterName, Epoch, Moment, NodeName, PipelineName, StreamKey, Token, WorkerKey,
};

use crate::event::ConnId;
use crate::exposure::{AccountId, Exposure};
use crate::view::{BindingPhase, PipelinePhase};

/// An effect, for the driver to carry out in the order given.
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
    /// ignores the order, even if it has taken a later term.
    Order {
        /// The term that gave the order.
        epoch: Epoch,
        /// What is to be done.
        order: Order,
    },
    /// Send a notice to all watchers.
    Notice(Notice),
}

/// An order of a leader's core to its platform; orders are carried out in the order given.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Write down what these workers may hold, then answer with
    /// [`crate::event::Event::Registered`].
    Register(Vec<(WorkerKey, AccountId, Exposure)>),
    /// Remove the entries of these workers, which hold nothing, then answer with
    /// [`crate::event::Event::Unregistered`]. An earlier registration of them is no longer
    /// answered, nor is this if a later one comes first.
    Unregister(Vec<WorkerKey>),
    /// Renew leadership at once: something waits for a renewal sent from now on.
    Confirm,
    /// Give leadership up. The order names the highest epoch that an agent remembers, if any: the
    /// next term must be above it.
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
    /// The hold of this cluster has ended: it plans from now on.
    HoldEnded(ClusterName),
    /// A worker's agent has reported.
    Joined(WorkerKey),
    /// A worker's agent is no longer connected.
    Disconnected(WorkerKey),
    /// A worker has been silent for longer than its leases last.
    Lost(WorkerKey),
    /// A worker has been lost for as long as its cluster's manifest allows. It counts as gone, and
    /// all its leases are about to be freed.
    GivenUp {
        /// The worker.
        worker: WorkerKey,
        /// `spec.lost.after`.
        after: Duration,
    },
    /// A worker has begun to drain.
    DrainStarted(WorkerKey),
    /// A worker fails its check: it gets no job, and its streams go to other workers.
    Failing {
        /// The worker.
        worker: WorkerKey,
        /// What the check found.
        failure: WorkerFailure,
    },
    /// A worker passes its check again.
    Recovered(WorkerKey),
    /// Another agent wants a worker's name, and is refused for as long as its agent has it.
    NameRefused {
        /// The worker.
        worker: WorkerKey,
        /// Where a person finds the other agent; none if it is not known.
        peer: Option<Arc<str>>,
    },
    /// A worker that holds nothing has left, or the platform has declared the worker gone.
    Gone(WorkerKey),
    /// A pool lease was granted.
    PoolGranted {
        /// To this worker.
        worker: WorkerKey,
        /// The number of slots of the lease before; 0 if there was none.
        before: u32,
        /// The number of slots.
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
    /// A stream was revoked.
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
    /// The state of a pipeline has changed, or only its reason (then `from` and `to` are equal):
    /// the workers that it or its change waits for.
    Pipeline {
        /// The pipeline.
        pipeline: PipelineName,
        /// The state that it was in; none for a new one.
        from: Option<PipelinePhase>,
        /// The state that it is in; none where it is no longer desired.
        to: Option<PipelinePhase>,
        /// The reason, as text; may be empty.
        why: String,
    },
    /// The state of a binding has changed. The notice precedes the changes of its pipeline's state
    /// that follow from it.
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
    /// store has lost its history, or the agent is wrong.
    EpochAhead {
        /// The worker.
        worker: WorkerKey,
        /// What its agent remembers.
        seen: Epoch,
    },
    /// A worker's agent has obeyed another leader of this term's number: the store was put back
    /// from a copy. The term is given up for one with a number far above.
    EpochRepeated {
        /// The worker.
        worker: WorkerKey,
        /// The number.
        epoch: Epoch,
    },
    /// A worker broke the protocol's rules and was disconnected.
    ProtocolViolation {
        /// The worker.
        worker: WorkerKey,
        /// The rule.
        rule: &'static str,
    },
}

/// Why a lease has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// The agent gave it back, or its report no longer lists it.
    Released,
    /// Its time is over, and leadership was confirmed after that.
    Expired,
    /// The platform has declared the worker gone.
    Gone,
}

impl Freed {
    /// Its name in logs and metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Gone => "gone",
        }
    }
}

/// When to wake the core, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wakeup {
    /// The moment; a little later is fine.
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
    /// A silent worker counts as lost from here on.
    Silence,
    /// A handover's deadline passes, or a lease's time is over.
    LeaseEnd,
    /// Joins and drains have been gathered for long enough, or streams that were moved may move
    /// again.
    Settle,
    /// An agent's connection has waited for long enough.
    Session,
}
