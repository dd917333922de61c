//! The state of a Travis worker's pool, and the next order for it.
//!
//! Invariant: the bound is never below the jobs that the worker may come to run, whatever came of
//! the orders that it was sent.

use crate::worker::sizing::{Adjustment, Observation, Target};

/// Looks that may not show yet what became of an order whose answer was lost.
const DISTRUST: u8 = 3;
/// Polls of a worker that runs nothing without an order of this agent, until it counts as one
/// that stays and not for one that is about to end.
const EMPTY_LOOKS: u32 = 3;

/// The sizes in an answer of the worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    /// Processors, those that drain included.
    pub(super) size: u32,
    /// Processors that take jobs.
    pub(super) expected: u32,
    /// Of those, the ones with a job.
    pub(super) processing: u32,
}

/// An order for the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolOrder {
    /// How many processors take jobs from now on, which is above 0.
    Size(u32),
    /// None takes a job any more; the process stays. This toggles its pause.
    Pause,
    /// The same for one whose pause was toggled. That keeps its process for good, and another
    /// toggle ends it.
    Rest,
    /// None takes a job any more, and the process ends after the last one. One that was paused
    /// would ignore its stop signal, so it needs the other toggle.
    Leave {
        /// Whether that toggles its pause.
        toggle: bool,
    },
}

/// Whether the worker's pause was toggled: once is for the life of its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pause {
    /// It was not.
    #[default]
    Never,
    /// The order went out, and nothing shows yet whether it arrived.
    Asked,
    /// It was.
    Toggled,
}

/// Whether the process was ordered to end after its jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Leaving {
    /// It was not.
    #[default]
    No,
    /// The order went out.
    Asked,
    /// It arrived.
    Yes,
    /// The process before this one was: it is started again wherever it runs, and stays at 0.
    Before,
}

/// The pool of one process of the worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    seen: Figures,
    running: u32,
    /// The most jobs that it may come to run without another order.
    bound: u32,
    distrust: u8,
    pause: Pause,
    leaving: Leaving,
    /// The last size that it was set to.
    told: Option<u32>,
    /// It was seen with processors.
    ran: bool,
    empty_looks: u32,
}

impl Figures {
    fn draining(self) -> u32 {
        self.size.saturating_sub(self.expected)
    }
}

impl Pool {
    /// A pool that may run so many jobs by the orders of another agent, which may be on their way.
    pub(super) fn inherited(bound: u32) -> Self {
        Self { bound, distrust: DISTRUST, ..Self::default() }
    }

    /// Takes an answer; returns what it shows.
    pub(super) fn see(&mut self, figures: Figures) -> Observation {
        let running = figures.processing.saturating_add(figures.draining());
        let limit = figures.size.max(figures.expected).max(running);
        self.running = match self.distrust {
            0 => running,
            _ => running.max(self.running),
        };
        self.bound = match self.distrust {
            0 => limit,
            _ => limit.max(self.bound),
        };
        self.distrust = self.distrust.saturating_sub(1);
        self.pause = match self.pause {
            Pause::Asked if figures.expected == 0 => Pause::Toggled,
            // It would show by now.
            Pause::Asked if self.distrust == 0 => Pause::Never,
            pause => pause,
        };
        let empty = figures.size == 0 && figures.expected == 0;
        self.empty_looks = if empty { self.empty_looks.saturating_add(1) } else { 0 };
        self.ran |= !empty;
        self.seen = figures;
        Observation::Working { running: self.running, limit: self.bound }
    }

    /// The next adjustment.
    pub(super) fn adjustment(&self, target: Target) -> Adjustment {
        let Figures { size, expected, .. } = self.seen;
        // What drains runs beside the new size, and leaves that much less for it.
        let wanted = target.size.saturating_sub(self.seen.draining());
        let stays = target.draining
            && self.pause != Pause::Never
            && matches!(self.leaving, Leaving::No | Leaving::Asked);
        match wanted.cmp(&expected) {
            std::cmp::Ordering::Equal if self.distrust > 0 => Adjustment::Look,
            std::cmp::Ordering::Equal if stays => Adjustment::Order { size: 0, grows: false },
            std::cmp::Ordering::Equal if size == expected => Adjustment::Nothing,
            std::cmp::Ordering::Equal => Adjustment::Look,
            _ if self.distrust > 0 => Adjustment::Look,
            std::cmp::Ordering::Greater if target.draining || !self.may_grow() => Adjustment::Look,
            std::cmp::Ordering::Greater => Adjustment::Order { size: wanted, grows: true },
            std::cmp::Ordering::Less => Adjustment::Order { size: wanted, grows: false },
        }
    }

    /// Whether the worker may be given processors: one that shuts down would take them.
    fn may_grow(&self) -> bool {
        let by_order = self.told == Some(0) || !self.ran;
        self.seen.expected > 0 || by_order || self.empty_looks >= EMPTY_LOOKS
    }

    /// The order for this size; in a drain it is 0, for good.
    pub(super) fn order(&self, size: u32, draining: bool) -> PoolOrder {
        match (self.pause, draining && self.leaving != Leaving::Before) {
            _ if size > 0 => PoolOrder::Size(size),
            (pause, true) => PoolOrder::Leave { toggle: pause != Pause::Never },
            (Pause::Never, false) => PoolOrder::Pause,
            (Pause::Asked | Pause::Toggled, false) => PoolOrder::Rest,
        }
    }

    /// Whether its pause was toggled.
    pub(super) fn pause(&self) -> Pause {
        self.pause
    }

    /// Takes over what is known of its pause.
    pub(super) fn set_pause(&mut self, pause: Pause) {
        self.pause = pause;
    }

    /// The process has ended; the pool of the one that comes in its place.
    pub(super) fn of_next_process(&self) -> Self {
        let leaving = match self.leaving {
            Leaving::No => Leaving::No,
            Leaving::Asked | Leaving::Yes | Leaving::Before => Leaving::Before,
        };
        Self { leaving, ..Self::default() }
    }

    /// An order goes out.
    pub(super) fn sending(&mut self, order: PoolOrder) {
        match order {
            PoolOrder::Size(size) => {
                self.bound = self.bound.max(size.saturating_add(self.seen.draining()));
            }
            PoolOrder::Pause => self.pause = Pause::Asked,
            PoolOrder::Rest => {}
            PoolOrder::Leave { .. } => self.leaving = Leaving::Asked,
        }
    }

    /// It surely did not arrive: things stand as they did before.
    pub(super) fn unsent(&mut self, before: &Self) {
        (self.pause, self.leaving) = (before.pause, before.leaving);
    }

    /// It was answered.
    pub(super) fn answered(&mut self, order: PoolOrder) {
        self.note_told(order);
        match order {
            PoolOrder::Size(_) | PoolOrder::Rest => {}
            PoolOrder::Pause => self.pause = Pause::Toggled,
            PoolOrder::Leave { .. } => self.leaving = Leaving::Yes,
        }
    }

    /// It is unknown whether it arrived.
    pub(super) fn lost(&mut self, order: PoolOrder) {
        self.note_told(order);
        self.distrust = DISTRUST;
    }

    fn note_told(&mut self, order: PoolOrder) {
        let size = match order {
            PoolOrder::Size(size) => size,
            PoolOrder::Pause | PoolOrder::Rest | PoolOrder::Leave { .. } => 0,
        };
        self.told = Some(size);
        self.ran |= size > 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(size: u32, expected: u32, processing: u32) -> Figures {
        Figures { size, expected, processing }
    }

    fn target(size: u32) -> Target {
        Target { size, draining: false }
    }

    fn told(pool: &mut Pool, order: PoolOrder) {
        pool.sending(order);
        pool.answered(order);
    }

    #[test]
    fn what_drains_runs_and_leaves_less_to_grow_by() {
        let mut pool = Pool::default();
        assert_eq!(pool.see(figures(3, 3, 3)), Observation::Working { running: 3, limit: 3 });
        assert_eq!(pool.adjustment(target(1)), Adjustment::Order { size: 1, grows: false });
        told(&mut pool, PoolOrder::Size(1));
        assert_eq!(pool.see(figures(3, 1, 1)), Observation::Working { running: 3, limit: 3 });
        // OrderResult 3 now, it would run 5.
        assert_eq!(pool.adjustment(target(3)), Adjustment::Look);
        assert_eq!(pool.adjustment(target(4)), Adjustment::Order { size: 2, grows: true });
        assert_eq!(pool.adjustment(target(2)), Adjustment::Order { size: 0, grows: false });
        assert_eq!(pool.see(figures(2, 1, 0)), Observation::Working { running: 1, limit: 2 });
    }

    #[test]
    fn the_pause_is_toggled_once_in_the_life_of_a_process() {
        let mut pool = Pool::default();
        pool.see(figures(2, 2, 2));
        assert_eq!(pool.order(0, false), PoolOrder::Pause);
        told(&mut pool, PoolOrder::Pause);
        pool.see(figures(2, 0, 0));
        assert_eq!(pool.adjustment(target(0)), Adjustment::Look);
        assert_eq!(pool.adjustment(target(3)), Adjustment::Order { size: 1, grows: true });
        told(&mut pool, PoolOrder::Size(1));
        pool.see(figures(1, 1, 1));
        assert_eq!(pool.adjustment(target(0)), Adjustment::Order { size: 0, grows: false });
        assert_eq!(pool.order(0, false), PoolOrder::Rest);
    }

    #[test]
    fn in_a_drain_the_process_ends_once_and_one_that_follows_stays_at_0() {
        let drain = Target { size: 0, draining: true };
        let leave = |toggle| PoolOrder::Leave { toggle };
        let mut pool = Pool::default();
        assert_eq!(
            (pool.adjustment(drain), pool.order(0, true)),
            (Adjustment::Nothing, leave(false))
        );
        pool.see(figures(2, 2, 2));
        told(&mut pool, PoolOrder::Pause);
        pool.see(figures(1, 0, 0));
        assert_eq!(pool.adjustment(drain), Adjustment::Order { size: 0, grows: false });
        assert_eq!(pool.order(0, true), leave(true));
        told(&mut pool, leave(true));
        pool.see(figures(1, 0, 0));
        assert_eq!(pool.adjustment(drain), Adjustment::Look);
        let mut next = pool.of_next_process();
        assert_eq!(next.adjustment(drain), Adjustment::Nothing);
        next.see(figures(1, 1, 1));
        assert_eq!(next.adjustment(drain), Adjustment::Order { size: 0, grows: false });
        assert_eq!(next.order(0, true), PoolOrder::Pause);
        told(&mut next, PoolOrder::Pause);
        next.see(figures(0, 0, 0));
        assert_eq!(next.adjustment(drain), Adjustment::Nothing);
    }

    #[test]
    fn a_lost_answer_counts_as_heard_and_as_unheard() {
        let mut pool = Pool::default();
        pool.see(figures(1, 1, 1));
        pool.sending(PoolOrder::Size(4));
        pool.lost(PoolOrder::Size(4));
        for _ in 0..DISTRUST {
            assert_eq!(pool.adjustment(target(4)), Adjustment::Look);
            assert_eq!(pool.see(figures(1, 1, 0)), Observation::Working { running: 1, limit: 4 });
        }
        assert_eq!(pool.see(figures(1, 1, 0)), Observation::Working { running: 0, limit: 1 });
        assert_eq!(pool.adjustment(target(4)), Adjustment::Order { size: 4, grows: true });
        // A pause whose answer was lost is toggled again only if it surely did not arrive.
        for (shown, order) in [(0, PoolOrder::Rest), (1, PoolOrder::Pause)] {
            let mut pool = pool.clone();
            pool.sending(PoolOrder::Pause);
            pool.lost(PoolOrder::Pause);
            for _ in 0..DISTRUST {
                assert_eq!(pool.adjustment(target(0)), Adjustment::Look);
                pool.see(figures(1, shown, 0));
            }
            assert_eq!(pool.order(0, false), order);
        }
    }

    #[test]
    fn a_worker_that_shuts_down_by_itself_is_given_no_processors() {
        let mut pool = Pool::default();
        pool.see(figures(2, 2, 2));
        pool.see(figures(2, 0, 0));
        assert_eq!(pool.adjustment(target(4)), Adjustment::Look);
        for _ in 0..EMPTY_LOOKS {
            assert_eq!(pool.adjustment(target(4)), Adjustment::Look);
            pool.see(figures(0, 0, 0));
        }
        assert_eq!(pool.adjustment(target(4)), Adjustment::Order { size: 4, grows: true });
    }

    #[test]
    fn the_orders_of_an_agent_before_may_still_be_on_their_way() {
        let mut pool = Pool::inherited(5);
        assert_eq!(pool.see(figures(2, 2, 0)), Observation::Working { running: 0, limit: 5 });
        for _ in 1..DISTRUST {
            pool.see(figures(2, 2, 0));
        }
        assert_eq!(pool.see(figures(2, 2, 0)), Observation::Working { running: 0, limit: 2 });
    }
}
