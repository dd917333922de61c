//! Pipelines: which worker serves which part of which node, and the states of pipelines and
//! bindings. One task owns all of them, so no two race.

mod class_rooms;
mod class_views;
mod explain;
mod healing;
mod phases;
mod placement;
mod recovery;
mod routes;
mod share_moves;
mod spec_changes;
mod state;
mod views;
mod what_if;

use std::collections::BTreeSet;

use leasehold_types::{ClusterName, Moment};

use super::{Leader, Timer};
pub(super) use routes::{RouteBudget, SnapshotShare};
pub(super) use state::Pipelines;
pub use what_if::PipelinesWhatIf;

impl Leader {
    /// Plans the pipelines that have changed, until nothing more follows.
    pub(super) fn plan_pipelines(&mut self, now: Moment) {
        let held = self.ledger.held_clusters(self.replica.heard);
        self.plan_pipelines_beside(held, now);
    }

    /// The same, while nothing may be planned in these clusters.
    fn plan_pipelines_beside(&mut self, held: BTreeSet<ClusterName>, now: Moment) {
        self.recover_known(held, now);
        let mut healed = false;
        loop {
            // Moves shares first: a share that its draining worker has given back would count as
            // lost.
            if self.pipelines.recheck_waiting {
                self.move_shares_of_draining(now);
            }
            self.observe(now);
            // The next pass heals what breaks later and what exceeds `HEALED_MAX`.
            if !healed && self.heal(now) {
                healed = true;
                continue;
            }
            if std::mem::take(&mut self.pipelines.recheck_waiting) {
                self.place_waiting(now);
                continue;
            }
            if !self.pipelines.has_changed() {
                break;
            }
        }
        if healed && self.pipelines.broken.iter().any(|name| !self.pipelines.is_held(name)) {
            self.timers.set(now, Timer::Heal);
        }
    }
}
