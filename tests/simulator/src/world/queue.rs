//! The scheduled events, in the order of real time. Of two at one time, the one scheduled first
//! comes first.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

use leasehold_agent_core::Target;
use leasehold_coordinator_core::desired::Desired;
use leasehold_types::message::CoordinatorMessage;
use leasehold_types::{JobId, LinkNumber, Moment, StreamKey, Token, WorkerKey};

use crate::system::clock::Real;
use crate::system::network::{Cut, Frame, LinkId};
use crate::system::store::{Answer, Request};

/// An event of the simulation. `run` names one life of a process: an event for an earlier life is
/// dropped.
#[derive(Clone, Debug)]
pub(crate) enum SimEvent {
    /// An agent's dial ends.
    Dial { pod: usize, run: u64, number: LinkNumber, target: Target },
    /// The agent learns that its link is open.
    Opened { link: LinkId },
    /// An agent pings the other end of its link, or finds that no answer came.
    Ping { link: LinkId, missed: bool },
    /// Data reaches a replica.
    ToReplica { link: LinkId, data: Frame },
    /// Data reaches a pod.
    ToPod { link: LinkId, data: Frame },
    /// A direction works again.
    Heal(Cut),
    /// A direction is cut for this long.
    Cut(Cut, Real),
    /// The desired state reaches a replica.
    Desired { replica: usize, version: u64, desired: Arc<Desired> },
    /// A replica learns from the platform that these workers are gone.
    Gone { replica: usize, keys: Vec<WorkerKey> },
    /// A replica learns from the platform that it no longer has this worker.
    Removed { replica: usize, key: WorkerKey },
    /// An order to drain a worker reaches a replica.
    OrderDrain { replica: usize, key: WorkerKey },
    /// The taking back of that order reaches a replica.
    Undrain { replica: usize, key: WorkerKey },
    /// A replica's writer takes its message.
    Write { replica: usize, run: u64, link: LinkId, message: Box<CoordinatorMessage> },
    /// A replica's core wanted to be woken.
    CoreWake { replica: usize, run: u64, at: Moment },
    /// A replica's driver begins its turn, or continues with it.
    Turn { replica: usize, run: u64 },
    /// A replica's process starts.
    BootReplica { replica: usize },
    /// A leader's renewal is due.
    Renew { replica: usize, run: u64 },
    /// A replica reads the store.
    Poll { replica: usize, run: u64 },
    /// Clusters may run more jobs, and another replica takes over while a pod's agent is stopped.
    RaiseCaps { pod: usize },
    /// A worker is declared gone, if it holds nothing.
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
    /// A worker reads its lease; `asked` is when it asked, if that was earlier.
    Tick { pod: usize, start: u64, number: u64, asked: Option<Moment> },
    /// A job ends.
    JobEnd { pod: usize, start: u64, job: JobId },
    /// A worker has let a stream go.
    StopUse { pod: usize, start: u64, stream: StreamKey, token: Token },
    /// A worker reports to its agent how many jobs it runs.
    ReportCount { pod: usize, start: u64 },
    /// A worker's process starts.
    BootWorker { pod: usize, start: u64 },
    /// A pod's agent dials another replica, with its journal or without.
    Redirect { pod: usize, replica: usize, forget: bool },
    /// A pod is asked to leave.
    DrainPod { pod: usize },
    /// An agent crashes once more.
    CrashAgain { pod: usize },
    /// An agent that has left is started again.
    ComeBack { pod: usize },
    /// The worker's container of a pod that was drained starts again.
    RestartWorker { pod: usize },
    /// A pod ends because its agent has left.
    EndLeft { pod: usize },
    /// A pod ends.
    EndPod { pod: usize },
    /// A journal can be written again.
    RepairJournal { pod: usize },
    /// The platform lists which pods are gone.
    ListPods,
    /// Faults end.
    EndFaults,
    /// The simulator checks whether the system has converged.
    CheckConvergence,
    /// The observer checks whether a pod is served while another's agent is stopped.
    CheckNotDelayed { pod: usize },
    /// The next worker fails its check.
    FailWorker,
    /// An agent of another cell says hello.
    MeetStray,
    /// An agent checks its worker.
    CheckWorker { pod: usize },
    /// The next fault is injected.
    Fault,
    /// The stores are copied.
    BackUpStores,
    /// All replicas die, and start again on stores that were put back from the copy.
    RestoreStores,
}

impl SimEvent {
    /// Whether it is a fault, which does not happen once faults have ended.
    pub(crate) fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::Fault
                | Self::FailWorker
                | Self::MeetStray
                | Self::Cut(..)
                | Self::Redirect { .. }
                | Self::CrashAgain { .. }
                | Self::CrashReplica { .. }
                | Self::TakeOver { .. }
                | Self::DeclareGone { .. }
                | Self::RaiseCaps { .. }
                | Self::BackUpStores
                | Self::RestoreStores
        )
    }
}

#[derive(Debug)]
pub(crate) struct Entry {
    t: Real,
    seq: u64,
    what: SimEvent,
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

/// The scheduled events.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Entry>,
    seq: u64,
}

impl Queue {
    /// Schedules an event at `t`.
    pub(crate) fn push(&mut self, t: Real, what: SimEvent) {
        self.seq += 1;
        self.heap.push(Entry { t, seq: self.seq, what });
    }

    /// The next event and its time.
    pub(crate) fn pop(&mut self) -> Option<(Real, SimEvent)> {
        self.heap.pop().map(|entry| (entry.t, entry.what))
    }

    /// Requests that are on their way to the stores never get there.
    pub(crate) fn drop_store_requests(&mut self) {
        self.heap.retain(|entry| !matches!(entry.what, SimEvent::Store { .. }));
    }

    /// Whether a pod is to leave or to end later.
    pub(crate) fn ends_a_pod(&self) -> bool {
        let ends =
            |what: &SimEvent| matches!(what, SimEvent::DrainPod { .. } | SimEvent::EndPod { .. });
        self.heap.iter().any(|entry| ends(&entry.what))
    }
}
