//! The steps that a world can take.

/// A step: of a node, of the network, of time, or a fault. Numbers are of pods, replicas and links
/// (places in the state).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A replica's process starts.
    BootReplica(u8),
    /// An agent's process starts.
    BootPod(u8),
    /// A replica reads the manifests.
    Read(u8),
    /// A replica takes a vacant leadership.
    Elect(u8),
    /// An agent opens a link to a replica.
    Dial(u8, u8),
    /// The first that is on its way on a link comes to the agent.
    ToPod(u8),
    /// The same to the replica.
    ToReplica(u8),
    /// The first that is on its way on a link arrives at a replica in a long turn, and waits.
    Arrive(u8),
    /// A replica's long turn ends.
    EndTurn(u8),
    /// The store carries a request out, and answers it.
    Terms(u8, Part),
    /// The same for the register.
    Register(u8, Part),
    /// A replica renews its term before it ends.
    Renew(u8),
    /// A replica learns that a pod is gone.
    Gone(u8, u8),
    /// A replica is woken.
    WakeReplica(u8),
    /// An agent is woken.
    WakePod(u8),
    /// A worker introduces itself to a new agent.
    Introduce(u8),
    /// A worker asks for a job.
    BeginJob(u8),
    /// A worker releases what it was asked for.
    StopUse(u8),
    /// Time advances to the next moment at which something is due.
    Advance,
    /// A stopped agent continues.
    ResumePod(u8),
    /// A stopped replica continues.
    ResumeReplica(u8),
    /// A worker's job ends.
    EndJob(u8),
    /// What goes up a link stays on its way from now on.
    SlowUp(u8),
    /// What goes down a link stays on its way from now on.
    SlowDown(u8),
    /// It comes, in order.
    FlowUp(u8),
    /// It comes, in order.
    FlowDown(u8),
    /// The store is slow for a replica from now on.
    SlowStore(u8),
    /// A worker is slow from now on.
    SlowWorker(u8),
    /// An agent's process is stopped.
    PausePod(u8),
    /// A replica's process is stopped.
    PauseReplica(u8),
    /// A replica begins a long turn.
    LongTurn(u8),
    /// The first message up a link is lost.
    LoseUp(u8),
    /// The first message down a link is lost.
    LoseDown(u8),
    /// The first message up a link comes twice.
    DoubleUp(u8),
    /// The first message down a link comes twice.
    DoubleDown(u8),
    /// The second message up a link overtakes the first.
    SwapUp(u8),
    /// The second message down a link overtakes the first.
    SwapDown(u8),
    /// A link breaks.
    Break(u8),
    /// An agent's process dies.
    CrashPod(u8),
    /// An agent's process dies, and its journal with it.
    LosePod(u8),
    /// A replica's process dies.
    CrashReplica(u8),
    /// A replica takes leadership from one that lives.
    TakeOver(u8),
    /// A worker is to drain.
    Drain(u8),
    /// A pod dies whole.
    Kill(u8),
    /// The manifests are edited.
    Edit,
    /// A pod's journal can no longer be written.
    FullDisk(u8),
}

/// How much of a request is done in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It is carried out and answered.
    Whole,
    /// It is carried out.
    Carry,
    /// It is answered.
    Answer,
}
