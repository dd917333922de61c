//! What is going to happen, in the order of real time; what was scheduled first goes first.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

use leasehold_agent_core::Target;
use leasehold_coordinator_core::desired::Desired;
use leasehold_types::message::CoordinatorMessage;
use leasehold_types::{JobId, LinkNumber, Moment, StreamKey, Token, WorkerKey};

use crate::system::clock::Real;
use crate::system::network::{Cut, Data, LinkId};
use crate::system::store::{Answer, Request};

/// One thing that happens. `run` names one life of a process: what was meant for an earlier one
/// is lost.
#[derive(Clone, Debug)]
pub(crate) enum Happening {
    /// An agent's dial reaches its end.
    Dial { pod: usize, run: u64, number: LinkNumber, target: Target },
    /// The agent learns that its link is open.
    Opened { link: LinkId },
    /// An agent asks the other end of its link for a sign of life, or finds that it had none.
    Ping { link: LinkId, missed: bool },
    /// Data reaches a replica.
    ToReplica { link: LinkId, data: Data },
    /// Data reaches a pod.
    ToPod { link: LinkId, data: Data },
    /// A direction works again.
    Heal(Cut),
    /// A direction is cut for so long.
    Cut(Cut, Real),
    /// The desired state reaches a replica.
    Desired { replica: usize, version: u64, desired: Arc<Desired> },
    /// The platform's word reaches a replica.
    Gone { replica: usize, keys: Vec<WorkerKey> },
    /// Somebody's order reaches a replica.
    OrderDrain { replica: usize, key: WorkerKey },
    /// A replica's writer takes its message.
    Write { replica: usize, run: u64, link: LinkId, message: Box<CoordinatorMessage> },
    /// A replica's core wanted to be woken.
    CoreWake { replica: usize, run: u64, at: Moment },
    /// A replica's driver begins its turn, or goes on with it.
    Turn { replica: usize, run: u64 },
    /// A replica's process starts.
    BootReplica { replica: usize },
    /// A leader's clock.
    Renew { replica: usize, run: u64 },
    /// A replica looks at the store.
    Poll { replica: usize, run: u64 },
    /// Clusters may run more jobs, and another replica takes over while a pod's agent is stopped.
    Widen { pod: usize },
    /// Somebody says of a worker that it is gone, if it holds nothing.
    DeclareGone { replica: usize, pod: usize },
    /// A replica dies, and comes back soon.
    CrashReplica { replica: usize },
    /// A replica takes the next term even if another one leads.
    TakeOver { replica: usize, run: u64 },
    /// A leader's request was not answered in time.
    Retry { replica: usize, run: u64, number: u64 },
    /// A request reaches the store.
    Store { replica: usize, run: u64, request: Request },
    /// The store's answer reaches a replica.
    Answer { replica: usize, run: u64, answer: Answer },
    /// An agent wanted to be woken.
    AgentWake { pod: usize, run: u64, at: Moment },
    /// An agent's process starts.
    BootAgent { pod: usize, run: u64 },
    /// A worker asks for its lease; when it asked, where that was earlier.
    Tick { pod: usize, start: u64, number: u64, asked: Option<Moment> },
    /// A job ends.
    JobEnd { pod: usize, start: u64, job: JobId },
    /// A worker has let a stream go.
    LetGo { pod: usize, start: u64, stream: StreamKey, token: Token },
    /// A worker tells its agent what has changed.
    Tell { pod: usize, start: u64 },
    /// A worker's process starts.
    BootWorker { pod: usize, start: u64 },
    /// A pod's agent goes to another replica, with its memory or without.
    Lure { pod: usize, replica: usize, forget: bool },
    /// A pod is asked to leave.
    DrainPod { pod: usize },
    /// An agent crashes once more.
    CrashAgain { pod: usize },
    /// An agent that has left is started again.
    ComeBack { pod: usize },
    /// The worker's container of a pod that was drained starts again.
    RestartWorker { pod: usize },
    /// A pod ends whose agent has left.
    EndLeft { pod: usize },
    /// A pod ends.
    EndPod { pod: usize },
    /// A journal can be written again.
    MendJournal { pod: usize },
    /// The platform looks which pods are gone.
    List,
    /// Faults end.
    Calm,
    /// Has it converged?
    Look,
    /// Is a pod served while another's agent is stopped?
    Hindered { pod: usize },
    /// Something goes wrong.
    Fault,
}

impl Happening {
    /// Whether it goes wrong: it does not once faults have ended.
    pub(crate) fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::Fault
                | Self::Cut(..)
                | Self::Lure { .. }
                | Self::CrashAgain { .. }
                | Self::CrashReplica { .. }
                | Self::TakeOver { .. }
                | Self::DeclareGone { .. }
                | Self::Widen { .. }
        )
    }
}

#[derive(Debug)]
pub(crate) struct Entry {
    t: Real,
    seq: u64,
    what: Happening,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.seq == other.seq
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.t, other.seq).cmp(&(self.t, self.seq))
    }
}

/// All that is scheduled.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Entry>,
    seq: u64,
}

impl Queue {
    /// Schedules something.
    pub(crate) fn push(&mut self, t: Real, what: Happening) {
        self.seq += 1;
        self.heap.push(Entry { t, seq: self.seq, what });
    }

    /// The next thing, and when.
    pub(crate) fn pop(&mut self) -> Option<(Real, Happening)> {
        self.heap.pop().map(|entry| (entry.t, entry.what))
    }
}
