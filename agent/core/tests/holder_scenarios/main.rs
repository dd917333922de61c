//! Scenarios of the holder, `testdata/*.txt`: what its coordinator and its worker do, and its
//! effects. `tests/scenario` explains the files; to regenerate the outcomes:
//! `LEASEHOLD_REGENERATE=1 cargo test -p leasehold-agent-core --test holder_scenarios`.
//!
//! The legend of [`scenario`] explains the commands, and [`shown`] the lines of the outcomes.

mod scenario;
mod shown;

use leasehold_types::mutation::Mutation;
use scenario::HolderScenario;

#[test]
fn scenarios() {
    leasehold_scenario::check_outcomes::<HolderScenario>();
}

#[test]
fn the_legend_explains_what_scenarios_use() {
    leasehold_scenario::check_legend::<HolderScenario>();
}

/// The simulator detects these rarely.
#[test]
fn faults_change_their_scenarios() {
    leasehold_scenario::check_faults::<HolderScenario>(&[
        (Mutation::AdmitWhileFailing, "failing"),
        (Mutation::FailureUntold, "failing"),
        (Mutation::FailureUnwritten, "failing"),
        (Mutation::RecoveredPool, "failing"),
        (Mutation::JobBeforeOwed, "job_ids"),
        (Mutation::LowerTermTold, "term_lower"),
        (Mutation::OtherCellObeyed, "cell"),
        (Mutation::LeavesUnanswered, "goodbye"),
    ]);
}
