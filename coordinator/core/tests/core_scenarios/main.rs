//! Scenarios of the coordinator's core, `testdata/core/*.txt`: what the platform and the agents
//! send it, and its effects. `tests/scenario` explains the files; to regenerate the outcomes:
//! `LEASEHOLD_REGENERATE=1 cargo test -p leasehold-coordinator-core --test core_scenarios`.
//!
//! The legend of [`scenario`] explains the commands, and [`shown`] the lines of the outcomes.

mod scenario;
mod shown;

use leasehold_types::mutation::Mutation;
use scenario::CoreScenario;

#[test]
fn scenarios() {
    leasehold_scenario::check_outcomes::<CoreScenario>();
}

#[test]
fn the_legend_explains_what_scenarios_use() {
    leasehold_scenario::check_legend::<CoreScenario>();
}

/// No run of the simulator detects some of these.
#[test]
fn faults_change_their_scenarios() {
    leasehold_scenario::check_faults::<CoreScenario>(&[
        (Mutation::OtherCellServed, "other_cell"),
        (Mutation::RemovedIsGone, "removed"),
        (Mutation::FormerModeHolds, "modes"),
        (Mutation::MovedSetStays, "moved_set"),
        (Mutation::EpochRepeated, "epoch_repeated"),
        (Mutation::RaisedAlike, "epoch_repeated"),
        (Mutation::RefusedIsSilent, "refused_is_heard"),
        (Mutation::SilentWithoutLeader, "no_leader"),
        (Mutation::UnplannedPoolIsEmpty, "failover_pools"),
        (Mutation::UnreportedTakesSlots, "failover_pools"),
    ]);
}
