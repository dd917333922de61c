//! Pipelines laid over the workers of classes: which worker serves which part of which node, and
//! what becomes of that. One task owns the state, so there is no race between kinds.

mod desire;
mod drain;
mod explain;
mod field;
mod heal;
mod judge;
mod phases;
mod plot;
mod routes;
mod scale;
mod state;
mod views;

use leasehold_types::Moment;

use super::Core;
pub(super) use routes::{Again, RouteRoom};
pub(super) use state::Pipelines;

impl Core {
    /// Plans whatever of pipelines has changed, until nothing follows.
    pub(super) fn plan_pipelines(&mut self, now: Moment) {
        self.judge(now);
        loop {
            // Before a share that its worker has given back counts as lost.
            if self.pipelines.look {
                self.relocate(now);
            }
            self.observe(now);
            if self.next_turn(now) {
                continue;
            }
            if std::mem::take(&mut self.pipelines.look) {
                self.look_at_waiting(now);
                continue;
            }
            if !self.pipelines.has_changed() {
                return;
            }
        }
    }
}
