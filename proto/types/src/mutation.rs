//! Deliberate faults for the simulator's own tests: each switches off one rule of the protocol,
//! and the simulator must notice. Only a build with `--cfg leasehold_mutations` has them; in every
//! other one they are off at compile time, whatever else is built with it.

macro_rules! mutations {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One rule that is switched off.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mutation {
            $($(#[$doc])* $name,)*
        }

        impl Mutation {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}

mutations! {
    /// Coordinator: a shrunk pool's slots are free when the grant is sent.
    FreeOnSend,
    /// Coordinator: the slots of draining workers do not count.
    GrowOverBudget,
    /// Coordinator: a silent worker's slots are freed by time.
    FreeSilentSlots,
    /// Coordinator: a stream is granted while another worker still has it.
    GrantBeforeRelease,
    /// Coordinator: a lease is freed after its bare time, without drift and margin.
    FreeWithoutMargin,
    /// Coordinator: leases are freed by time without a confirmed leadership.
    FreeUnconfirmed,
    /// Coordinator: a new leader does not wait for workers that have not reported.
    SkipHold,
    /// Coordinator: a stream whose owner is gone is granted at once, although a predecessor may
    /// still have granted it.
    KnownBeforeEnd,
    /// Coordinator: streams that a plan passed over are not planned again when more is known.
    PassedOverForgotten,
    /// Coordinator: tokens do not grow across terms.
    TokenWithoutEpoch,
    /// Coordinator: an agent is taken as reported at its hello.
    AdoptAtHello,
    /// Coordinator: a newer incarnation frees what the older one held.
    NewIncarnationFrees,
    /// Coordinator: a report without memory frees its predecessors' leases.
    NoMemoryFrees,
    /// Coordinator: an agent without an epoch is granted to before leadership is confirmed, be it
    /// by a renewal after its hello or by one after an entry for its incarnation.
    SkipConfirm,
    /// Coordinator: a release frees whatever token the stream has.
    AnyReleaseFrees,
    /// Coordinator: an agent gets the name of one of another identity that is alive.
    TwinTakesName,
    /// Coordinator: what a name's former agent may hold counts as held by its next agent.
    AccountOfName,
    /// Coordinator: the entry of a name is replaced before that of its former agent is written.
    EntryOfFormerLate,
    /// Coordinator: a snapshot does not repeat what lapses.
    LapsesNotRepeated,
    /// Coordinator: a reported size is kept although its slots may belong to another worker.
    UnsureSizeKept,
    /// Coordinator: before an agent that comes back, nothing was outstanding.
    FreshAgain,
    /// Coordinator: an entry says that before its agent nothing was outstanding, whatever was.
    EntrySaysFresh,
    /// Coordinator: grant numbers start again for a worker that was gone.
    NumbersBeginAnew,
    /// Coordinator and agent: unknown slots are forgotten at the next beat, and a size that the
    /// worker keeps without a lease is not reported. Either alone would keep the slots.
    UnknownForgotten,
    /// Coordinator: a beat is taken after one that was lost.
    GapInBeatsTaken,
    /// Coordinator: leases of a worker that cannot be stopped are freed by time.
    UnstoppableFreed,
    /// Coordinator: pinned leases are freed by time.
    TimelessFreed,
    /// Coordinator: what an earlier incarnation holds is free once a newer one reports.
    OrphansEndAtOnce,
    /// Coordinator: a shorter lease time counts for leases that were granted before.
    ShorterTtlAtOnce,
    /// Coordinator: a pool is granted that is larger than what is stored.
    PoolUnregistered,
    /// Coordinator: a stream lease that is no longer renewed is free at once.
    LapseFreesAtOnce,
    /// Coordinator: an older incarnation replaces a newer one.
    OlderIncarnationAdmitted,
    /// Coordinator: no agent is sent anything while one connection is blocked.
    WaitForSlowest,
    /// Coordinator: a beat frees grants that it does not know of yet.
    BeatFreesLater,
    /// Coordinator: a worker counts as reported when a part of its report is adopted.
    ActOnHalfReport,
    /// Coordinator: of a manifest the sets that are read so far take effect.
    ActOnHalfManifest,
    /// Coordinator: a plan is taken over as if nothing had changed since it was begun.
    PlanStale,
    /// Coordinator: the sum of a cluster's committed slots falls by one too many each time.
    SumsDrift,
    /// Coordinator: shares are granted to a worker beyond its capacity.
    LoadOverCapacity,
    /// Coordinator: a node's new shares are granted while older ones are still in use.
    CutBeforeRelease,
    /// Coordinator: what broken pipelines still hold is ignored when they are healed.
    HealWithoutOutstanding,
    /// Coordinator: of a node's shares only those of its present class count.
    NodeLoadPerClass,
    /// Coordinator: a share that an agent reports takes nothing of its worker's capacity.
    AdoptWithoutLoad,
    /// Coordinator: the leases of a late report count as held, although they have ended.
    LateReportHeld,
    /// Coordinator: claims that ended while their cluster was held are not checked again.
    HeldBackForgotten,
    /// Coordinator: grants go out after the leadership's end.
    GrantAfterTerm,
    /// Coordinator: a message counts from the start of the turn that takes it.
    StaleClock,
    /// Coordinator: a worker is silent although messages of it may wait to be taken.
    HearUnread,
    /// Coordinator: a registration is confirmed before leadership is.
    RegisteredWithoutLeadership,
    /// Coordinator: a registration that was answered counts for a later life of its worker.
    RegisteredOfAnotherAccount,
    /// Coordinator: an order of an ended term is carried out in a later one.
    OrderOfAnotherTerm,
    /// Coordinator: a strike ends an entry of any leader, also of a later one.
    UnregisterWithoutEpoch,
    /// Coordinator: a stream is granted whose set is not in the worker's entry.
    GrantUnregisteredSet,
    /// Coordinator: grants rely on an entry that this leader has not adopted.
    GrantUnderForeignEntry,
    /// Coordinator: an entry that cannot be read means that the worker holds nothing.
    UnreadableEntryIsNothing,
    /// Coordinator: an entry that cannot be read is replaced though a later leader may have
    /// written it.
    UnreadableOverwritten,
    /// Agent: a lease counts from when the grant came, not from when the beat was sent.
    CountFromReceive,
    /// Agent: a lower epoch is obeyed.
    ObeyLowerEpoch,
    /// Agent: a lower or repeated number is obeyed.
    ObeyLowerNumber,
    /// Agent: a grant is used without having been stored.
    UseUnwritten,
    /// Agent: a record that could not be written is not written later.
    OwedForgotten,
    /// Agent: a release is sent without having been stored.
    ReleaseUnwritten,
    /// Agent: a change is applied although the one before it is missing.
    GapUnnoticed,
    /// Agent: a lease counts from the newest beat, not from the one that the grant echoes.
    CountFromNewest,
    /// Agent: renewals cover a stream that they leave out.
    LapseUnheeded,
    /// Agent: the end of a stream's renewals is not stored.
    LapseUnwritten,
    /// Agent: that the worker has seen streams is not stored.
    ShownUnwritten,
    /// Agent: the size that a worker keeps is not reported.
    ObeyedSizeUntold,
    /// Agent: jobs without an id do not count.
    UnnamedUncounted,
    /// Agent: unknown jobs are reported as none.
    UnknownJobsTold,
    /// Agent: an epoch is obeyed without having been stored.
    EpochUnwritten,
    /// Agent: a stream is taken again that was given back under a newer token.
    StaleTokenTaken,
    /// Agent: to exceed another's number it takes the next one, which a third may take too.
    RaiseByOne,
    /// Agent: after its goodbye it reports that no other agent can hold anything under its name.
    LeftStaysComplete,
    /// Agent: it takes what is granted after it has reported that it leaves.
    TakesAfterGoodbye,
    /// Agent: it stops reporting that it leaves before a coordinator has stored it.
    LeavesUnanswered,
    /// Agent: after a boot of its host it reports that no other agent can hold anything under its
    /// name.
    BootForgivesAll,
    /// Agent: a journal counts for a time in which another agent had its number.
    RaisedJournalSpeaks,
    /// Agent: a worker is shown a larger size that is not stored.
    SizeShownUnwritten,
    /// Agent: a job starts without having been stored.
    JobUnwritten,
    /// Agent: a job begins though the end of an earlier one, maybe of its id, is not written yet.
    JobBeforeOwed,
    /// Agent: a renewal is used without having been stored.
    RenewalUnwritten,
    /// Agent: a renewal is written before what ended.
    RenewedBeforeOwed,
    /// Agent: the end of a drain restores the pool that was reported as ended.
    ResumedPool,
    /// Agent: a young journal counts as a memory.
    YoungJournalSpeaks,
    /// Agent: an ended lease stays in use.
    KeepAfterExpiry,
    /// Agent: an old link is still listened to.
    ListenOldLink,
    /// Agent: jobs start while it drains.
    AdmitWhileDraining,
    /// Agent: a drain asks the worker for its shares at once.
    DrainAsksForShares,
    /// Agent: jobs start while its worker fails its check.
    AdmitWhileFailing,
    /// Agent: that its worker fails its check is not reported.
    FailureUntold,
    /// Agent: that its worker fails its check is not stored.
    FailureUnwritten,
    /// Agent: a worker that passes its check again has the pool that was reported as ended.
    RecoveredPool,
    /// Coordinator: a goodbye frees what the register says and no report lists.
    GoodbyeForgetsUnreported,
    /// Coordinator: a goodbye is answered before it is stored.
    GoodbyeAnsweredEarly,
    /// Coordinator: a goodbye that is repeated frees what another agent of the name may hold.
    AnyEntryLeft,
    /// Coordinator: a goodbye frees what the agent still has.
    GoodbyeFreesApplied,
    /// Coordinator: each connection of an agent waits anew for a confirmed leadership.
    ConfirmAnewPerLink,
    /// Coordinator: an agent that reports a higher epoch deposes the leader.
    HelloDeposes,
    /// Coordinator: an agent that has obeyed another leader of the same epoch is served.
    EpochRepeated,
    /// Coordinator: an agent of another cell is served.
    OtherCellServed,
    /// Agent: a coordinator of another cell is obeyed.
    OtherCellObeyed,
    /// Coordinator: all leaders of a number that was given out twice raise it to the same one.
    RaisedAlike,
    /// Coordinator: a leader in the middle of a turn counts as one that makes no progress.
    BusyLeaderDeposed,
    /// Coordinator: every agent that says hello is welcomed at once.
    CreditsIgnored,
    /// Agent: an end that could not be stored is reported.
    TellUnwritten,
    /// Coordinator: a pool that no plan of the term covers yet is planned to be empty.
    UnplannedPoolIsEmpty,
    /// Coordinator: what unreported workers may hold is taken from what others have.
    UnreportedTakesSlots,
    /// Coordinator: workers of all generations share a budget alike, whatever its order.
    GenerationsPassedOver,
    /// Coordinator: the newest generation comes first, whatever the budget's order.
    OrderPassedOver,
    /// Coordinator: a stream whose set has moved stays on the former cluster while no worker of the
    /// other one can take it.
    MovedSetStays,
    /// Coordinator: a lease ends by time if it did when it was granted, though its set is pinned
    /// now.
    FormerModeHolds,
    /// Coordinator: a worker that the platform has removed and that may still run counts as gone.
    RemovedIsGone,
    /// Coordinator: a hello that is refused does not end its worker's silence.
    RefusedIsSilent,
    /// Coordinator: a worker is silent from the end of the former term on, though nobody could hear
    /// it before the present one.
    SilentWithoutLeader,
    /// Agent: a revoked stream stays revoked although a snapshot lists it as held.
    KeepRevoked,
    /// Agent: what was reported to a leader and not answered is reported to one of a lower term, as
    /// the same incarnation.
    LowerTermTold,
}

#[cfg(leasehold_mutations)]
mod active {
    use std::cell::Cell;

    use super::Mutation;

    thread_local! {
        static ACTIVE: Cell<Option<Mutation>> = const { Cell::new(None) };
    }

    /// By this text it is known of a program that the faults are in it.
    #[used]
    static MARK: [u8; 37] = *b"leasehold: deliberate faults built in";

    /// Switches one fault on in this thread, or all off.
    pub fn set(mutation: Option<Mutation>) {
        ACTIVE.set(mutation);
    }

    /// Whether no fault is on in this thread.
    #[must_use]
    pub fn is_none() -> bool {
        ACTIVE.get().is_none()
    }

    /// Whether this fault is on in this thread.
    #[must_use]
    pub fn on(mutation: Mutation) -> bool {
        ACTIVE.get() == Some(mutation)
    }
}

#[cfg(leasehold_mutations)]
pub use active::{is_none, on, set};

/// Whether this build has the faults.
pub const BUILT_IN: bool = cfg!(leasehold_mutations);

/// Switches one fault on, which this build cannot, or all off.
///
/// # Panics
/// Where a fault is to be on.
#[cfg(not(leasehold_mutations))]
pub const fn set(mutation: Option<Mutation>) {
    assert!(mutation.is_none(), "this build has no deliberate faults: use tests/tools/with-faults");
}

/// Whether no fault is on: always, in this build.
#[cfg(not(leasehold_mutations))]
#[must_use]
pub const fn is_none() -> bool {
    true
}

/// Whether this fault is on: never, in this build.
#[cfg(not(leasehold_mutations))]
#[must_use]
pub const fn on(_: Mutation) -> bool {
    false
}
