//! The state of a Travis worker's pool, and the next order for it.
//!
//! Invariant: the bound is never below the jobs that the worker may come to run, whatever came of
//! the orders that it was sent.

use crate::worker::sizing::{Adjustment, Observation, Target};

/// Looks that may not show yet what became of an order whose answer was lost.
const STALE_POLLS: u8 = 3;
/// Polls of a worker that runs nothing without an order of this agent, until it counts as one
/// that stays and not for one that is about to end.
const EMPTY_POLLS: u32 = 3;

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
    ZeroWhilePaused,
    /// None takes a job any more, and the process ends after the last one. One that was paused
    /// would ignore its stop signal, so it needs the other toggle.
    Exit {
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
enum ExitOrder {
    /// It was not.
    #[default]
    None,
    /// The order went out.
    Sent,
    /// It arrived.
    Accepted,
    /// The process before this one was: it is started again wherever it runs, and stays at 0.
    Previous,
}

/// The pool of one process of the worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    figures: Figures,
    running: u32,
    /// The most jobs that it may come to run without another order.
    bound: u32,
    stale_polls: u8,
    pause: Pause,
    exit_order: ExitOrder,
    /// The last size that it was set to.
    last_size: Option<u32>,
    /// It was seen with processors.
    ran: bool,
    empty_polls: u32,
}

impl Figures {
    fn draining(self) -> u32 {
        self.size.saturating_sub(self.expected)
    }
}

impl Pool {
    /// A pool that may run so many jobs by the orders of another agent, which may be on their way.
    pub(super) fn inherited(bound: u32) -> Self {
        Self { bound, stale_polls: STALE_POLLS, ..Self::default() }
    }

    /// Takes an answer; returns what it shows.
    pub(super) fn observe(&mut self, figures: Figures) -> Observation {
        let running = figures.processing.saturating_add(figures.draining());
        let limit = figures.size.max(figures.expected).max(running);
        self.running = match self.stale_polls {
            0 => running,
            _ => running.max(self.running),
        };
        self.bound = match self.stale_polls {
            0 => limit,
            _ => limit.max(self.bound),
        };
        self.stale_polls = self.stale_polls.saturating_sub(1);
        self.pause = match self.pause {
            Pause::Asked if figures.expected == 0 => Pause::Toggled,
            // It would show by now.
            Pause::Asked if self.stale_polls == 0 => Pause::Never,
            pause => pause,
        };
        let empty = figures.size == 0 && figures.expected == 0;
        self.empty_polls = if empty { self.empty_polls.saturating_add(1) } else { 0 };
        self.ran |= !empty;
        self.figures = figures;
        Observation::Working { running: self.running, limit: self.bound }
    }

    /// The next adjustment.
    pub(super) fn adjustment(&self, target: Target) -> Adjustment {
        let Figures { size, expected, .. } = self.figures;
        // What drains runs beside the new size, and leaves that much less for it.
        let wanted = target.size.saturating_sub(self.figures.draining());
        let stays = target.draining
            && self.pause != Pause::Never
            && matches!(self.exit_order, ExitOrder::None | ExitOrder::Sent);
        match wanted.cmp(&expected) {
            std::cmp::Ordering::Equal if self.stale_polls > 0 => Adjustment::PollSoon,
            std::cmp::Ordering::Equal if stays => Adjustment::Order { size: 0, grows: false },
            std::cmp::Ordering::Equal if size == expected => Adjustment::Nothing,
            std::cmp::Ordering::Equal => Adjustment::PollSoon,
            _ if self.stale_polls > 0 => Adjustment::PollSoon,
            std::cmp::Ordering::Greater if target.draining || !self.may_grow() => {
                Adjustment::PollSoon
            }
            std::cmp::Ordering::Greater => Adjustment::Order { size: wanted, grows: true },
            std::cmp::Ordering::Less => Adjustment::Order { size: wanted, grows: false },
        }
    }

    /// Whether the worker may be given processors: one that shuts down would take them.
    fn may_grow(&self) -> bool {
        let by_order = self.last_size == Some(0) || !self.ran;
        self.figures.expected > 0 || by_order || self.empty_polls >= EMPTY_POLLS
    }

    /// The order for this size; in a drain it is 0, for good.
    pub(super) fn order(&self, size: u32, draining: bool) -> PoolOrder {
        match (self.pause, draining && self.exit_order != ExitOrder::Previous) {
            _ if size > 0 => PoolOrder::Size(size),
            (pause, true) => PoolOrder::Exit { toggle: pause != Pause::Never },
            (Pause::Never, false) => PoolOrder::Pause,
            (Pause::Asked | Pause::Toggled, false) => PoolOrder::ZeroWhilePaused,
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
    pub(super) fn for_next_process(&self) -> Self {
        let exit_order = match self.exit_order {
            ExitOrder::None => ExitOrder::None,
            ExitOrder::Sent | ExitOrder::Accepted | ExitOrder::Previous => ExitOrder::Previous,
        };
        Self { exit_order, ..Self::default() }
    }

    /// An order goes out.
    pub(super) fn sending(&mut self, order: PoolOrder) {
        match order {
            PoolOrder::Size(size) => {
                self.bound = self.bound.max(size.saturating_add(self.figures.draining()));
            }
            PoolOrder::Pause => self.pause = Pause::Asked,
            PoolOrder::ZeroWhilePaused => {}
            PoolOrder::Exit { .. } => self.exit_order = ExitOrder::Sent,
        }
    }

    /// It surely did not arrive: things stand as they did before.
    pub(super) fn not_sent(&mut self, before: &Self) {
        (self.pause, self.exit_order) = (before.pause, before.exit_order);
    }

    /// It was answered.
    pub(super) fn answered(&mut self, order: PoolOrder) {
        self.note_order(order);
        match order {
            PoolOrder::Size(_) | PoolOrder::ZeroWhilePaused => {}
            PoolOrder::Pause => self.pause = Pause::Toggled,
            PoolOrder::Exit { .. } => self.exit_order = ExitOrder::Accepted,
        }
    }

    /// It is unknown whether it arrived.
    pub(super) fn answer_lost(&mut self, order: PoolOrder) {
        self.note_order(order);
        self.stale_polls = STALE_POLLS;
    }

    fn note_order(&mut self, order: PoolOrder) {
        let size = match order {
            PoolOrder::Size(size) => size,
            PoolOrder::Pause | PoolOrder::ZeroWhilePaused | PoolOrder::Exit { .. } => 0,
        };
        self.last_size = Some(size);
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

    fn obeyed(pool: &mut Pool, order: PoolOrder) {
        pool.sending(order);
        pool.answered(order);
    }

    #[test]
    fn what_drains_runs_and_leaves_less_to_grow_by() {
        let mut pool = Pool::default();
        assert_eq!(pool.observe(figures(3, 3, 3)), Observation::Working { running: 3, limit: 3 });
        assert_eq!(pool.adjustment(target(1)), Adjustment::Order { size: 1, grows: false });
        obeyed(&mut pool, PoolOrder::Size(1));
        assert_eq!(pool.observe(figures(3, 1, 1)), Observation::Working { running: 3, limit: 3 });
        // OrderResult 3 now, it would run 5.
        assert_eq!(pool.adjustment(target(3)), Adjustment::PollSoon);
        assert_eq!(pool.adjustment(target(4)), Adjustment::Order { size: 2, grows: true });
        assert_eq!(pool.adjustment(target(2)), Adjustment::Order { size: 0, grows: false });
        assert_eq!(pool.observe(figures(2, 1, 0)), Observation::Working { running: 1, limit: 2 });
    }

    #[test]
    fn the_pause_is_toggled_once_in_the_life_of_a_process() {
        let mut pool = Pool::default();
        pool.observe(figures(2, 2, 2));
        assert_eq!(pool.order(0, false), PoolOrder::Pause);
        obeyed(&mut pool, PoolOrder::Pause);
        pool.observe(figures(2, 0, 0));
        assert_eq!(pool.adjustment(target(0)), Adjustment::PollSoon);
        assert_eq!(pool.adjustment(target(3)), Adjustment::Order { size: 1, grows: true });
        obeyed(&mut pool, PoolOrder::Size(1));
        pool.observe(figures(1, 1, 1));
        assert_eq!(pool.adjustment(target(0)), Adjustment::Order { size: 0, grows: false });
        assert_eq!(pool.order(0, false), PoolOrder::ZeroWhilePaused);
    }

    #[test]
    fn in_a_drain_the_process_ends_once_and_one_that_follows_stays_at_0() {
        let drain = Target { size: 0, draining: true };
        let exit = |toggle| PoolOrder::Exit { toggle };
        let mut pool = Pool::default();
        assert_eq!(
            (pool.adjustment(drain), pool.order(0, true)),
            (Adjustment::Nothing, exit(false))
        );
        pool.observe(figures(2, 2, 2));
        obeyed(&mut pool, PoolOrder::Pause);
        pool.observe(figures(1, 0, 0));
        assert_eq!(pool.adjustment(drain), Adjustment::Order { size: 0, grows: false });
        assert_eq!(pool.order(0, true), exit(true));
        obeyed(&mut pool, exit(true));
        pool.observe(figures(1, 0, 0));
        assert_eq!(pool.adjustment(drain), Adjustment::PollSoon);
        let mut next = pool.for_next_process();
        assert_eq!(next.adjustment(drain), Adjustment::Nothing);
        next.observe(figures(1, 1, 1));
        assert_eq!(next.adjustment(drain), Adjustment::Order { size: 0, grows: false });
        assert_eq!(next.order(0, true), PoolOrder::Pause);
        obeyed(&mut next, PoolOrder::Pause);
        next.observe(figures(0, 0, 0));
        assert_eq!(next.adjustment(drain), Adjustment::Nothing);
    }

    #[test]
    fn a_lost_answer_counts_as_heard_and_as_unheard() {
        let mut pool = Pool::default();
        pool.observe(figures(1, 1, 1));
        pool.sending(PoolOrder::Size(4));
        pool.answer_lost(PoolOrder::Size(4));
        for _ in 0..STALE_POLLS {
            assert_eq!(pool.adjustment(target(4)), Adjustment::PollSoon);
            assert_eq!(
                pool.observe(figures(1, 1, 0)),
                Observation::Working { running: 1, limit: 4 }
            );
        }
        assert_eq!(pool.observe(figures(1, 1, 0)), Observation::Working { running: 0, limit: 1 });
        assert_eq!(pool.adjustment(target(4)), Adjustment::Order { size: 4, grows: true });
        // A pause whose answer was lost is toggled again only if it surely did not arrive.
        for (shown, order) in [(0, PoolOrder::ZeroWhilePaused), (1, PoolOrder::Pause)] {
            let mut pool = pool.clone();
            pool.sending(PoolOrder::Pause);
            pool.answer_lost(PoolOrder::Pause);
            for _ in 0..STALE_POLLS {
                assert_eq!(pool.adjustment(target(0)), Adjustment::PollSoon);
                pool.observe(figures(1, shown, 0));
            }
            assert_eq!(pool.order(0, false), order);
        }
    }

    #[test]
    fn a_worker_that_shuts_down_by_itself_is_given_no_processors() {
        let mut pool = Pool::default();
        pool.observe(figures(2, 2, 2));
        pool.observe(figures(2, 0, 0));
        assert_eq!(pool.adjustment(target(4)), Adjustment::PollSoon);
        for _ in 0..EMPTY_POLLS {
            assert_eq!(pool.adjustment(target(4)), Adjustment::PollSoon);
            pool.observe(figures(0, 0, 0));
        }
        assert_eq!(pool.adjustment(target(4)), Adjustment::Order { size: 4, grows: true });
    }

    #[test]
    fn the_orders_of_an_agent_before_may_still_be_on_their_way() {
        let mut pool = Pool::inherited(5);
        assert_eq!(pool.observe(figures(2, 2, 0)), Observation::Working { running: 0, limit: 5 });
        for _ in 1..STALE_POLLS {
            pool.observe(figures(2, 2, 0));
        }
        assert_eq!(pool.observe(figures(2, 2, 0)), Observation::Working { running: 0, limit: 2 });
    }
}
