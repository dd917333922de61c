//! What each deliberate fault of the cores needs to break a property: a scope, and faults of the
//! world. Looked for with just these, each is found within half a minute.

use leasehold_types::mutation::Mutation;

use crate::explore::{Found, Limits, Progress, explore};
use crate::fault::Fault;
use crate::scope::Scope;

/// Where a deliberate fault of the cores shows.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The fault of a core.
    pub mutation: Mutation,
    /// The scope that it shows in.
    pub scope: &'static str,
    /// What must happen for it to show.
    pub faults: &'static [Fault],
    /// The property that is broken.
    pub property: &'static str,
}

impl Case {
    /// The one of this mutation.
    #[must_use]
    pub fn of(mutation: Mutation) -> Option<&'static Self> {
        CASES.iter().find(|case| case.mutation == mutation)
    }

    /// A shortest path on which it breaks a property.
    pub fn find_violation(
        &self,
        limits: Limits,
        progress: &mut dyn FnMut(Progress),
    ) -> Option<Found> {
        let scope = Scope::named(self.scope)?.with_only(self.faults);
        explore(&scope, Some(self.mutation), limits, progress).found
    }
}

const fn case(
    mutation: Mutation,
    property: &'static str,
    scope: &'static str,
    faults: &'static [Fault],
) -> Case {
    Case { mutation, scope, faults, property }
}

/// Every deliberate fault that shows in a scope.
pub const CASES: &[Case] = &[
    case(Mutation::FreeOnSend, "S2", "pool", &[]),
    case(Mutation::GrowOverBudget, "S1", "pool", &[Fault::Drain]),
    case(Mutation::FreeSilentSlots, "S2", "pool", &[Fault::CrashAgent]),
    case(Mutation::BeatFreesLater, "S2", "pool", &[Fault::SlowUp]),
    case(Mutation::JobUnwritten, "S2", "pool", &[Fault::FullDisk, Fault::CrashAgent]),
    case(Mutation::AdmitWhileDraining, "S12", "pool", &[Fault::Drain]),
    case(Mutation::TellUnwritten, "S16", "pool", &[Fault::FullDisk, Fault::Drain]),
    case(Mutation::AdoptAtHello, "S2", "pool", &[Fault::CrashReplica]),
    case(Mutation::GrantBeforeRelease, "S3", "expiring", &[Fault::Drain]),
    case(Mutation::FreeWithoutMargin, "S4", "expiring", &[]),
    case(Mutation::SkipHold, "S8", "expiring", &[Fault::TakeOver]),
    case(Mutation::NewIncarnationFrees, "S10", "expiring", &[Fault::LoseJournal]),
    case(Mutation::UseUnwritten, "S11", "expiring", &[]),
    case(Mutation::ReleaseUnwritten, "S11", "expiring", &[Fault::Drain]),
    case(Mutation::EpochUnwritten, "S11", "expiring", &[]),
    case(Mutation::CountFromReceive, "S5", "expiring", &[Fault::SlowDown]),
    case(Mutation::KeepAfterExpiry, "S3", "expiring", &[Fault::Pause]),
    case(Mutation::CountFromNewest, "S4", "expiring", &[Fault::SlowUp, Fault::SlowDown]),
    case(Mutation::StaleClock, "S4", "expiring", &[Fault::LongTurn, Fault::CrashAgent]),
    case(Mutation::RenewalUnwritten, "S10", "expiring", &[Fault::FullDisk, Fault::CrashAgent]),
    case(Mutation::FreeUnconfirmed, "S3", "expiring", &[Fault::TakeOver, Fault::Break]),
    case(Mutation::ObeyLowerEpoch, "S6", "expiring", &[Fault::TakeOver, Fault::Break]),
    case(Mutation::TokenWithoutEpoch, "S5", "expiring", &[Fault::Kill, Fault::CrashReplica]),
    case(
        Mutation::ObeyLowerNumber,
        "S11",
        "expiring",
        &[Fault::Double, Fault::SlowDown, Fault::CrashAgent],
    ),
    case(Mutation::OrphansEndAtOnce, "S4", "expiring", &[Fault::LoseJournal, Fault::SlowWorker]),
    case(
        Mutation::RegisteredWithoutLeadership,
        "S5",
        "expiring",
        &[Fault::TakeOver, Fault::SlowStore],
    ),
    case(
        Mutation::ListenOldLink,
        "S10",
        "expiring",
        &[Fault::SlowDown, Fault::Break, Fault::LongTurn],
    ),
    case(
        Mutation::YoungJournalSpeaks,
        "S10",
        "expiring",
        &[Fault::CrashReplica, Fault::LoseJournal, Fault::SlowWorker],
    ),
    case(Mutation::TimelessFreed, "S4", "pinned", &[Fault::Pause]),
    case(Mutation::CutBeforeRelease, "S14", "share", &[]),
    case(Mutation::AnyReleaseFrees, "S10", "share", &[Fault::Pause]),
    case(Mutation::AdoptWithoutLoad, "S14", "share", &[Fault::CrashReplica, Fault::SlowWorker]),
    case(Mutation::LapseFreesAtOnce, "S4", "share", &[Fault::SlowWorker]),
    case(Mutation::LapseUnheeded, "S4", "share", &[Fault::SlowWorker]),
    case(Mutation::LapsesNotRepeated, "S4", "share", &[Fault::SlowWorker, Fault::Lose]),
    case(Mutation::LapseUnwritten, "S4", "share", &[Fault::SlowWorker, Fault::CrashAgent]),
    case(Mutation::GapUnnoticed, "S4", "share", &[Fault::Lose, Fault::SlowWorker]),
    case(Mutation::LoadOverCapacity, "S13", "swap", &[Fault::SlowWorker]),
    case(Mutation::AccountOfName, "S2", "takeover", &[]),
    case(Mutation::GrantAfterTerm, "S8", "term", &[Fault::SlowStore, Fault::Break]),
];
