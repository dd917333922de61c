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

use leasehold_types::Moment;

use super::{Leader, Timer};
pub(super) use routes::{RouteBudget, SnapshotShare};
pub(super) use state::Pipelines;

impl Leader {
    /// Plans the pipelines that have changed, until nothing more follows.
    pub(super) fn plan_pipelines(&mut self, now: Moment) {
        self.recover_known(now);
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
        if healed && self.pipelines.broken.iter().any(|name| !self.is_held(name)) {
            self.timers.insert((now, Timer::Heal));
        }
    }
}
