//! The deliberate faults of the ledger: each predicate switches off the one rule beside it, in a
//! build for the simulator's own tests alone. See [`leasehold_types::mutation`].

use leasehold_types::mutation::{self, Mutation};

pub(super) fn frees_unconfirmed() -> bool {
    mutation::on(Mutation::FreeUnconfirmed)
}

pub(super) fn leaves_epoch_out_of_tokens() -> bool {
    mutation::on(Mutation::TokenWithoutEpoch)
}

pub(super) fn begins_numbers_anew() -> bool {
    mutation::on(Mutation::NumbersBeginAnew)
}

pub(super) fn frees_on_send() -> bool {
    mutation::on(Mutation::FreeOnSend)
}

pub(super) fn keeps_unsure_size() -> bool {
    mutation::on(Mutation::UnsureSizeKept)
}

pub(super) fn ignores_capacity() -> bool {
    mutation::on(Mutation::LoadOverCapacity)
}

pub(super) fn beat_frees_later_grants() -> bool {
    mutation::on(Mutation::BeatFreesLater)
}

pub(super) fn frees_silent_slots() -> bool {
    mutation::on(Mutation::FreeSilentSlots)
}

pub(super) fn forgets_unknown_jobs() -> bool {
    mutation::on(Mutation::UnknownForgotten)
}

pub(super) fn grants_under_foreign_entry() -> bool {
    mutation::on(Mutation::GrantUnderForeignEntry)
}

pub(super) fn lets_sums_drift() -> bool {
    mutation::on(Mutation::SumsDrift)
}

pub(super) fn grants_before_release() -> bool {
    mutation::on(Mutation::GrantBeforeRelease)
}

pub(super) fn counts_known_agent_as_fresh() -> bool {
    mutation::on(Mutation::FreshAgain)
}

pub(super) fn new_incarnation_frees() -> bool {
    mutation::on(Mutation::NewIncarnationFrees)
}

pub(super) fn frees_leases_of_unstoppable_workers() -> bool {
    mutation::on(Mutation::UnstoppableFreed)
}

pub(super) fn adopts_without_load() -> bool {
    mutation::on(Mutation::AdoptWithoutLoad)
}

pub(super) fn holds_ended_lease_of_late_report() -> bool {
    mutation::on(Mutation::LateReportHeld)
}

pub(super) fn any_release_frees() -> bool {
    mutation::on(Mutation::AnyReleaseFrees)
}

pub(super) fn goodbye_frees_applied() -> bool {
    mutation::on(Mutation::GoodbyeFreesApplied)
}

pub(super) fn keeps_end_of_lapse() -> bool {
    mutation::on(Mutation::LapsesNotRepeated)
}

pub(super) fn frees_timeless() -> bool {
    mutation::on(Mutation::TimelessFreed)
}

pub(super) fn frees_without_margin() -> bool {
    mutation::on(Mutation::FreeWithoutMargin)
}

pub(super) fn counts_stream_as_known_before_end() -> bool {
    mutation::on(Mutation::KnownBeforeEnd)
}

pub(super) fn no_memory_frees() -> bool {
    mutation::on(Mutation::NoMemoryFrees)
}

pub(super) fn skips_hold() -> bool {
    mutation::on(Mutation::SkipHold)
}
