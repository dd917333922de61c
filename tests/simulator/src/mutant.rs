//! Deliberate faults of the cores, and the properties that each of them breaks.

use leasehold_types::mutation;
use leasehold_types::mutation::Mutation;

use crate::system::faults::{Fault, FaultBias, Sequence};

/// One deliberate fault of a core, or the runs in which the simulator looks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutant {
    mutation: Mutation,
    in_force: bool,
}

impl Mutant {
    /// The faults that are known to break a property that the simulator checks.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::known().filter(|mutant| !mutant.breaks().is_empty())
    }

    fn known() -> impl Iterator<Item = Self> {
        Mutation::ALL.iter().map(|mutation| Self { mutation: *mutation, in_force: true })
    }

    /// The one of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::known().find(|mutant| mutant.name() == name)
    }

    /// The faults that the simulator looks for in runs with a bias of their own.
    pub fn with_bias() -> impl Iterator<Item = Self> {
        Self::all().filter(|mutant| !mutant.bias().faults.is_empty())
    }

    /// The runs in which it is looked for, without the fault itself.
    #[must_use]
    pub fn without_fault(self) -> Self {
        Self { in_force: false, ..self }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> String {
        format!("{:?}", self.mutation)
    }

    /// The properties that it may break, one of which the observer must name.
    #[must_use]
    pub fn breaks(self) -> &'static [&'static str] {
        match self.mutation {
            Mutation::FreeOnSend | Mutation::FreeSilentSlots | Mutation::BeatFreesLater => {
                &["S1", "S2"]
            }
            Mutation::SumsDrift => &["S1"],
            Mutation::ActOnHalfManifest => &["S8", "L2", "L4", "L6"],
            Mutation::PlanStale => &["L2", "L4"],
            Mutation::ActOnHalfReport => &["S2", "S3", "S8", "S10", "L6"],
            Mutation::GrowOverBudget => &["S1"],
            Mutation::GrantBeforeRelease => &["S3"],
            Mutation::FreeWithoutMargin | Mutation::CountFromReceive => &["S3", "S4"],
            Mutation::FreeUnconfirmed => &["S3", "S7", "S8"],
            Mutation::SkipHold => &["S2", "S3", "S8"],
            Mutation::KnownBeforeEnd => &["S2", "S3", "S7", "S8", "S13"],
            Mutation::StaleClock => &["S3", "S4"],
            Mutation::HearUnread => &["L4"],
            Mutation::GrantAfterTerm => &["S3", "S4", "S7", "S8"],
            Mutation::PassedOverForgotten => &["L2"],
            Mutation::TokenWithoutEpoch => &["S5"],
            Mutation::AdoptAtHello => &["S2", "S3", "S8"],
            Mutation::NewIncarnationFrees => &["S3", "S9", "S10"],
            Mutation::TwinTakesName => &["S17"],
            Mutation::AccountOfName => &["S1", "S2", "S3", "S4", "S8", "S9", "S17"],
            Mutation::EntryOfFormerLate => &["S1", "S2", "S3", "S8", "S17"],
            Mutation::NoMemoryFrees => &["S2", "S3", "S4", "S10", "S13"],
            Mutation::SkipConfirm => &["S2", "S3", "S4", "S5", "S7", "S8"],
            Mutation::AnyReleaseFrees => &["S3", "S10"],
            Mutation::LoadOverCapacity | Mutation::AdoptWithoutLoad => &["S13"],
            Mutation::HealWithoutOutstanding => &["L4"],
            Mutation::CutBeforeRelease => &["S14"],
            Mutation::NodeLoadPerClass => &["S14"],
            Mutation::OrderOfAnotherTerm
            | Mutation::RegisteredOfAnotherAccount
            | Mutation::RegisteredWithoutLeadership
            | Mutation::UnregisterWithoutEpoch
            | Mutation::GrantUnregisteredSet
            | Mutation::GrantUnderForeignEntry
            | Mutation::UnreadableOverwritten
            | Mutation::UnreadableEntryIsNothing => &["S1", "S2", "S3", "S8", "S13", "S14"],
            Mutation::ObeyLowerEpoch => &["S6"],
            Mutation::ObeyLowerNumber => &["S6", "S10", "S11"],
            Mutation::UseUnwritten => &["S11"],
            Mutation::YoungJournalSpeaks => &["S1", "S2", "S3", "S8", "S10"],
            Mutation::KeepAfterExpiry => &["S2", "S3", "S4"],
            Mutation::ListenOldLink => &["S10"],
            Mutation::AdmitWhileDraining | Mutation::AdmitWhileFailing => &["S12"],
            Mutation::DrainAsksForShares => &["S21"],
            Mutation::FailureUnwritten | Mutation::RecoveredPool => &["S1", "S2", "S11", "S16"],
            Mutation::GoodbyeForgetsUnreported | Mutation::AnyEntryLeft => &["S1", "S2", "S3"],
            Mutation::GoodbyeFreesApplied => &["S2", "S3", "S10"],
            Mutation::TakesAfterGoodbye => &["S2", "S3", "S5", "S10"],
            Mutation::GoodbyeAnsweredEarly | Mutation::LeavesUnanswered => &["S22"],
            Mutation::ConfirmAnewPerLink => &["L9"],
            Mutation::HelloDeposes => &["L5"],
            Mutation::BusyLeaderDeposed => &["L1", "L4", "L8"],
            Mutation::CreditsIgnored => &["L8"],
            Mutation::TellUnwritten => &["S1", "S2", "S16"],
            Mutation::KeepRevoked => &["L6"],
            Mutation::UnplannedPoolIsEmpty => &["L6"],
            Mutation::FormerModeHolds => &["S2"],
            Mutation::EpochRepeated => &["S6"],
            Mutation::MovedSetStays => &["L2"],
            Mutation::OtherCellServed | Mutation::OtherCellObeyed => &["S20"],
            Mutation::GenerationsPassedOver | Mutation::OrderPassedOver => &["L3"],
            Mutation::RemovedIsGone => &["S1", "S2", "S3"],
            Mutation::UnreportedTakesSlots => &["L6"],
            // Worlds find them too rarely or never: scenarios of the cores detect these.
            Mutation::RefusedIsSilent
            | Mutation::SilentWithoutLeader
            | Mutation::LowerTermTold
            | Mutation::FailureUntold
            | Mutation::RaisedAlike => &[],
            Mutation::LapsesNotRepeated | Mutation::LapseFreesAtOnce => &["S3", "S4"],
            Mutation::LapseUnheeded | Mutation::LapseUnwritten => &["S3", "S4"],
            Mutation::ShownUnwritten => &["S2", "S3", "S9"],
            Mutation::CountFromNewest | Mutation::ShorterTtlAtOnce => &["S2", "S3", "S4"],
            Mutation::PoolUnregistered => &["S1", "S2", "S8"],
            Mutation::JobBeforeOwed => &["S1", "S2", "S11"],
            Mutation::UnsureSizeKept | Mutation::ObeyedSizeUntold | Mutation::UnnamedUncounted => {
                &["S1", "S2"]
            }
            Mutation::UnknownForgotten | Mutation::UnknownJobsTold => &["S1", "S2"],
            Mutation::SizeShownUnwritten | Mutation::ResumedPool => &["S1", "S2", "S11"],
            Mutation::FreshAgain
            | Mutation::EntrySaysFresh
            | Mutation::RaisedJournalSpeaks
            | Mutation::RenewalUnwritten => &["S1", "S2", "S3", "S4", "S8", "S9", "S10", "S13"],
            Mutation::NumbersBeginAnew | Mutation::StaleTokenTaken => {
                &["S5", "S6", "S10", "S11", "L1", "L2", "L3", "L9"]
            }
            Mutation::OlderIncarnationAdmitted => &["S9"],
            Mutation::LeftStaysComplete => &["S2", "S3", "S9"],
            Mutation::BootForgivesAll => &["S2", "S3", "S4", "S9", "S13"],
            Mutation::LateReportHeld => &["S3", "S13", "S14", "S15", "L6"],
            Mutation::HeldBackForgotten => &["L1", "L2"],
            Mutation::RaiseByOne => &["S2", "S3", "S8", "S9", "S10"],
            Mutation::OrphansEndAtOnce => &["S3", "S4", "S9"],
            Mutation::GapInBeatsTaken => &["S10", "L1", "L2", "L3"],
            Mutation::UnstoppableFreed | Mutation::TimelessFreed => &["S3", "S4"],
            Mutation::WaitForSlowest => &["L5"],
            Mutation::OwedForgotten | Mutation::RenewedBeforeOwed => {
                &["S3", "S4", "S10", "S11", "S16", "L1", "L2"]
            }
            Mutation::ReleaseUnwritten | Mutation::EpochUnwritten | Mutation::JobUnwritten => {
                &["S11"]
            }
            Mutation::GapUnnoticed => &["S2", "S3", "S4", "S10", "S15", "L1", "L2", "L3"],
        }
    }

    /// What its runs have more of than others, because in those it hardly ever shows.
    pub(crate) fn bias(self) -> FaultBias {
        let bias = |faults, sequence| FaultBias { faults, sequence: Some(sequence) };
        match self.mutation {
            Mutation::TwinTakesName | Mutation::AccountOfName => {
                FaultBias { faults: &[Fault::TwinPod], sequence: None }
            }
            Mutation::EntryOfFormerLate => FaultBias {
                faults: &[Fault::TwinPod, Fault::TakeOver, Fault::CutStore],
                sequence: None,
            },
            // A twin must be refused for one number while its other half has just begun under the
            // next one, which that leader has not heard of.
            Mutation::RaiseByOne => bias(&[Fault::TwinPod], Sequence::LateTwins),
            // A twin with a lower number must be admitted between a goodbye and a return.
            Mutation::LeftStaysComplete => bias(&[Fault::DrainPod], Sequence::TakenNames),
            // A grant must be on its way to an agent that says goodbye, and come late.
            Mutation::TakesAfterGoodbye => FaultBias {
                faults: &[Fault::DrainPod, Fault::NewPod, Fault::CutPod],
                sequence: None,
            },
            // A host must boot whose journal does not list a twin's leases on another one.
            Mutation::BootForgivesAll => {
                FaultBias { faults: &[Fault::TwinPod, Fault::Boot], sequence: None }
            }
            // A job must begin under an id of before while the disk is full, and its agent die.
            Mutation::JobBeforeOwed => {
                bias(&[Fault::FailJournal, Fault::CrashAgent], Sequence::UnconfirmedEnds)
            }
            // Two classes must have room for one node that is cut.
            Mutation::NodeLoadPerClass => {
                FaultBias { faults: &[Fault::Edit, Fault::NewPod], sequence: None }
            }
            // A report must take longer than its leases last, on a link that its agent has not yet
            // given up.
            Mutation::LateReportHeld => {
                bias(&[Fault::BreakLink, Fault::BreakAll], Sequence::LateReports)
            }
            // A replica must lose and take a term within one turn, and remove a worker in it that
            // comes back.
            Mutation::OrderOfAnotherTerm => {
                bias(&[Fault::CutPodWhole, Fault::DrainPod, Fault::NewPod], Sequence::RetakenTerms)
            }
            // A worker must be declared gone before its first entry is known to be written, and
            // come back under the same number: a higher one is not covered by that entry.
            Mutation::RegisteredOfAnotherAccount => {
                bias(&[Fault::NewPod, Fault::CrashReplica], Sequence::LateEntries)
            }
            // Slots of a worker that counts for itself must fall after its report and be another's
            // before it is granted to anew.
            Mutation::UnsureSizeKept => {
                bias(&[Fault::TakeOver, Fault::NewPod], Sequence::CapSwings)
            }
            _ => FaultBias::default(),
        }
    }

    /// Turns it on for this thread; `None` turns every fault off.
    pub(crate) fn put_in_force(mutant: Option<Self>) {
        mutation::set(mutant.filter(|mutant| mutant.in_force).map(|mutant| mutant.mutation));
    }
}
