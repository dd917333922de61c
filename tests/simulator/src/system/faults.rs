//! The faults that the simulator injects, how often each comes, and the sequences of faults that
//! chance alone hardly ever produces.

/// A fault, or an ordinary event that is injected like one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A link breaks.
    BreakLink,
    /// All links break at once: every agent dials again.
    BreakAll,
    /// A direction between a pod and a replica is cut for a while.
    CutPod,
    /// All that a pod sends or all that it receives is cut for a while.
    CutPodWhole,
    /// A replica and the store lose each other for a while.
    CutStore,
    /// A replica and all pods lose each other for a while.
    CutReplica,
    /// An agent's process dies and comes back, its journal kept.
    CrashAgent,
    /// The same, its journal lost.
    LoseJournal,
    /// An agent's process dies right after one of its next writes.
    CrashAtWrite,
    /// A journal cannot be written for a while.
    FailJournal,
    /// A pod is asked to leave while its journal cannot be written.
    DrainUnwritten,
    /// An agent claims to remember an epoch that never existed.
    ClaimEpoch,
    /// A worker's process dies and comes back.
    CrashWorker,
    /// A host boots, orderly or after a loss of power: agent and worker die and come back.
    Boot,
    /// A pod dies whole.
    KillPod,
    /// A pod is asked to leave.
    DrainPod,
    /// A worker is drained through the admin API.
    OrderDrain,
    /// A pod appears, leaves and comes back at once.
    ComeAndGo,
    /// A pod appears.
    NewPod,
    /// A pod appears under the name of one that lives, which its successor cannot reach.
    TwinPod,
    /// All pods get successors of the next generation.
    Rollout,
    /// An agent's process is stopped for a while.
    PauseAgent,
    /// A replica's process is stopped for a while.
    PauseReplica,
    /// A replica's process dies and comes back.
    CrashReplica,
    /// A replica takes leadership while the leader lives.
    TakeOver,
    /// A replica takes over while the leader is cut off from the store, and agents switch
    /// between the two.
    SplitBrain,
    /// The desired state changes.
    Edit,
    /// A worker gives a stream back without being asked.
    StopUse,
    /// The entry of a worker becomes unreadable.
    CorruptEntry,
}

/// All faults, in the order of a profile's weights.
pub(crate) const FAULTS: [(Fault, u32); 29] = [
    (Fault::BreakLink, 8),
    (Fault::BreakAll, 2),
    (Fault::CutPod, 5),
    (Fault::CutPodWhole, 4),
    (Fault::CutStore, 4),
    (Fault::CutReplica, 2),
    (Fault::CrashAgent, 5),
    (Fault::LoseJournal, 3),
    (Fault::CrashAtWrite, 5),
    (Fault::FailJournal, 2),
    (Fault::DrainUnwritten, 2),
    (Fault::ClaimEpoch, 1),
    (Fault::CrashWorker, 4),
    (Fault::Boot, 3),
    (Fault::KillPod, 3),
    (Fault::DrainPod, 4),
    (Fault::OrderDrain, 1),
    (Fault::ComeAndGo, 3),
    (Fault::NewPod, 6),
    (Fault::TwinPod, 1),
    (Fault::Rollout, 1),
    (Fault::PauseAgent, 4),
    (Fault::PauseReplica, 3),
    (Fault::CrashReplica, 2),
    (Fault::TakeOver, 6),
    (Fault::SplitBrain, 4),
    (Fault::Edit, 6),
    (Fault::StopUse, 3),
    (Fault::CorruptEntry, 3),
];

/// A fault in the bias comes this many times as often.
pub(crate) const BIAS_FACTOR: u32 = 8;

/// A sequence of faults that chance hardly ever produces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sequence {
    /// The names of agents that have left are taken by others.
    TakenNames,
    /// The clocks of twins are behind, and those whose names they take were just started again.
    LateTwins,
    /// Many reports are on their way for longer than leases last.
    LateReports,
    /// A leader that is about to remove a worker loses its term and takes the next one meanwhile.
    RetakenTerms,
    /// Workers count for themselves, and their clusters' caps fall and rise around failovers.
    CapSwings,
    /// Workers give a job the id of one whose end they were refused.
    UnconfirmedEnds,
    /// Workers are declared gone while their first entry is written, and come back while it is
    /// removed.
    LateEntries,
}

/// The faults that a run has more of than chance gives it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FaultBias {
    /// These come often, and always.
    pub faults: &'static [Fault],
    /// This sequence of faults comes, too.
    pub sequence: Option<Sequence>,
}
