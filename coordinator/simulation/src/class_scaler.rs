//! The scaling of a class that is built in: from what the coordinator says of the class to the
//! number of its workers. On Kubernetes its operator decides so.

use std::time::Duration;

use leasehold_coordinator_core::view::ClassView;
use leasehold_types::Moment;

use crate::stabilization::StabilizationWindow;

/// How often it looks at the class, beside a change of the pipelines' loads.
pub(crate) const LOOKS_EVERY: Duration = Duration::from_secs(15);
/// How long after a machine is lost its node is not ready, and another worker is added for it.
pub(crate) const NOT_READY_AFTER: Duration = Duration::from_secs(50);

/// The scaling of one class.
#[derive(Debug)]
pub(crate) struct ClassScaler(StabilizationWindow);

impl ClassScaler {
    /// Removes workers once fewer have been enough for this long.
    pub(crate) fn new(stabilization: Duration) -> Self {
        Self(StabilizationWindow::new(stabilization))
    }

    /// The workers that the class is to have, where it has `present`. `away` of these are lost and
    /// count no more, but are not replaced yet.
    pub(crate) fn workers(
        &mut self,
        view: &ClassView,
        away: u32,
        present: u32,
        now: Moment,
    ) -> u32 {
        let (asked, there) = (asked(view), present.saturating_sub(away));
        let highest = self.0.highest(asked, there, now);
        // The window holds back a scale-in, and makes no scale-out.
        let held = asked.max(highest.min(there));
        held.clamp(view.workers_min, view.workers_max).saturating_add(away).min(view.workers_max)
    }
}

/// The workers that an autoscaler is told to have: those that the load and its packing need, or the
/// present ones and those that a pipeline waits for, up to the most.
pub(crate) fn asked(view: &ClassView) -> u32 {
    let for_waiting = if view.short > 0 { view.workers.saturating_add(view.short) } else { 0 };
    view.workers_wanted.max(for_waiting).min(view.workers_max)
}

#[cfg(test)]
mod tests {
    use leasehold_types::{ClusterName, Load};

    use super::*;

    /// A class of two to six workers.
    fn view(wanted: u32, workers: u32, short: u32) -> ClassView {
        let capacity = Load::per_second(10).unwrap();
        ClassView {
            name: ClusterName::new("blue").unwrap(),
            capacity,
            request: capacity,
            placed: Load::ZERO,
            workers,
            workers_needed: wanted,
            workers_wanted: wanted,
            workers_min: 2,
            workers_max: 6,
            waiting: usize::from(short > 0),
            short,
        }
    }

    fn at(seconds: u64) -> Moment {
        Moment(1_000) + Duration::from_secs(seconds)
    }

    #[test]
    fn workers_are_added_at_once_and_removed_once_fewer_have_been_enough_for_long() {
        let mut scaler = ClassScaler::new(Duration::from_secs(60));
        assert_eq!(scaler.workers(&view(4, 3, 0), 0, 3, at(0)), 4);
        assert_eq!(scaler.workers(&view(2, 4, 0), 0, 4, at(15)), 4);
        assert_eq!(scaler.workers(&view(2, 4, 0), 0, 4, at(45)), 4);
        assert_eq!(scaler.workers(&view(2, 4, 0), 0, 4, at(60)), 2);
    }

    #[test]
    fn a_pipeline_that_waits_asks_for_more_than_the_load_up_to_the_most() {
        let mut scaler = ClassScaler::new(Duration::ZERO);
        assert_eq!(scaler.workers(&view(3, 3, 2), 0, 3, at(0)), 5);
        assert_eq!(scaler.workers(&view(3, 5, 9), 0, 5, at(1)), 6);
        assert_eq!(
            (asked(&view(3, 3, 0)), asked(&view(3, 3, 2)), asked(&view(3, 5, 9))),
            (3, 5, 6)
        );
    }

    #[test]
    fn a_worker_is_added_for_one_that_is_lost_and_not_replaced() {
        let mut scaler = ClassScaler::new(Duration::from_secs(60));
        assert_eq!(scaler.workers(&view(3, 2, 0), 1, 3, at(0)), 4);
        assert_eq!(scaler.workers(&view(6, 2, 0), 1, 4, at(1)), 6, "no more than the most");
    }
}
