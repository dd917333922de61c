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

use super::{Leader, Timer};
pub(super) use routes::{Again, RouteRoom};
pub(super) use state::Pipelines;

impl Leader {
    /// Plans whatever of pipelines has changed, until nothing follows.
    pub(super) fn plan_pipelines(&mut self, now: Moment) {
        self.judge(now);
        let mut healed = false;
        loop {
            // Before a share that its worker has given back counts as lost.
            if self.pipelines.look {
                self.relocate(now);
            }
            self.observe(now);
            // What breaks after that, and what was more than one look heals, is healed by the next.
            if !healed && self.heal(now) {
                healed = true;
                continue;
            }
            if std::mem::take(&mut self.pipelines.look) {
                self.look_at_waiting(now);
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
