//! The state of a Travis worker's pool, and the next order for it.
//!
//! Invariant: the bound is never below the number of jobs that the worker may run, whatever the
//! results of the orders.

use crate::worker::sizing::{Adjustment, Observation, Target};

/// Polls that may not yet show the effect of an order whose answer was lost.
const STALE_POLLS: u8 = 3;
/// A worker that has no processors without an order counts as shutting down for this many polls.
const EMPTY_POLLS: u32 = 3;

/// The numbers of processors in an answer of the worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// All processors, including those that drain.
    pub(crate) size: u32,
    /// Processors that take jobs.
    pub(crate) expected: u32,
    /// Processors that take jobs and run one.
    pub(crate) processing: u32,
}

/// An order for the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolOrder {
    /// Set the number of processors that take jobs, which is above 0.
    Size(u32),
    /// Stop taking jobs and keep the process. This toggles the pause.
    Pause,
    /// Stop taking jobs if the pause was toggled before. The toggle keeps the process; another one
    /// would end it.
    ZeroWhilePaused,
    /// Stop taking jobs and exit after the last one. A paused worker ignores its stop signal, so it
    /// needs another toggle.
    Exit {
        /// Whether to toggle the pause.
        toggle: bool,
    },
}

/// Whether the worker's pause was toggled, which lasts for the life of its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pause {
    /// It was not.
    #[default]
    Never,
    /// The order was sent; its result is not known yet.
    Asked,
    /// It was.
    Toggled,
}

/// Whether the process was ordered to exit after its jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ExitOrder {
    /// It was not.
    #[default]
    None,
    /// The order was sent.
    Sent,
    /// The worker accepted it.
    Accepted,
    /// The previous process was; this one was started by a supervisor and stays at 0.
    Previous,
}

/// The pool of one process of the worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    figures: Figures,
    running: u32,
    /// The most jobs that it may run without another order.
    bound: u32,
    stale_polls: u8,
    pause: Pause,
    exit_order: ExitOrder,
    /// The last size that was ordered.
    last_size: Option<u32>,
    /// It has had processors.
    ran: bool,
    empty_polls: u32,
}

impl Figures {
    fn draining(self) -> u32 {
        self.size.saturating_sub(self.expected)
    }
}

impl Pool {
    /// A pool that may run this many jobs by orders of a previous agent, which may be in flight.
    pub(super) fn inherited(bound: u32) -> Self {
        Self { bound, stale_polls: STALE_POLLS, ..Self::default() }
    }

    /// Takes the answer to a poll.
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
            // The order was lost: its effect would show by now.
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
        // Draining processors run in addition to the new size, so they are subtracted.
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

    /// Whether the size may grow: a worker that is shutting down must not get processors.
    fn may_grow(&self) -> bool {
        let by_order = self.last_size == Some(0) || !self.ran;
        self.figures.expected > 0 || by_order || self.empty_polls >= EMPTY_POLLS
    }

    /// The order for this size; 0 in a drain.
    pub(super) fn order(&self, size: u32, draining: bool) -> PoolOrder {
        match (self.pause, draining && self.exit_order != ExitOrder::Previous) {
            _ if size > 0 => PoolOrder::Size(size),
            (pause, true) => PoolOrder::Exit { toggle: pause != Pause::Never },
            (Pause::Never, false) => PoolOrder::Pause,
            (Pause::Asked | Pause::Toggled, false) => PoolOrder::ZeroWhilePaused,
        }
    }

    /// Whether the pause was toggled.
    pub(super) fn pause(&self) -> Pause {
        self.pause
    }

    /// Sets whether the pause was toggled.
    pub(super) fn set_pause(&mut self, pause: Pause) {
        self.pause = pause;
    }

    /// The pool of the next process, after this one has exited.
    pub(super) fn for_next_process(&self) -> Self {
        let exit_order = match self.exit_order {
            ExitOrder::None => ExitOrder::None,
            ExitOrder::Sent | ExitOrder::Accepted | ExitOrder::Previous => ExitOrder::Previous,
        };
        Self { exit_order, ..Self::default() }
    }

    /// An order is about to be sent.
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

    /// The order was not sent: restores the state before it.
    pub(super) fn not_sent(&mut self, before: &Self) {
        (self.pause, self.exit_order) = (before.pause, before.exit_order);
    }

    /// The order was accepted.
    pub(super) fn answered(&mut self, order: PoolOrder) {
        self.note_order(order);
        match order {
            PoolOrder::Size(_) | PoolOrder::ZeroWhilePaused => {}
            PoolOrder::Pause => self.pause = Pause::Toggled,
            PoolOrder::Exit { .. } => self.exit_order = ExitOrder::Accepted,
        }
    }

    /// The answer to the order was lost.
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
    fn draining_processors_count_as_running_and_limit_growth() {
        let mut pool = Pool::default();
        assert_eq!(pool.observe(figures(3, 3, 3)), Observation::Working { running: 3, limit: 3 });
        assert_eq!(pool.adjustment(target(1)), Adjustment::Order { size: 1, grows: false });
        obeyed(&mut pool, PoolOrder::Size(1));
        assert_eq!(pool.observe(figures(3, 1, 1)), Observation::Working { running: 3, limit: 3 });
        // An order of 3 now would let it run 5.
        assert_eq!(pool.adjustment(target(3)), Adjustment::PollSoon);
        assert_eq!(pool.adjustment(target(4)), Adjustment::Order { size: 2, grows: true });
        assert_eq!(pool.adjustment(target(2)), Adjustment::Order { size: 0, grows: false });
        assert_eq!(pool.observe(figures(2, 1, 0)), Observation::Working { running: 1, limit: 2 });
    }

    #[test]
    fn the_pause_is_toggled_once_per_process() {
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
    fn a_drain_ends_the_process_once_and_keeps_the_next_process_at_0() {
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
    fn after_a_lost_answer_both_results_are_assumed() {
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
    fn a_worker_that_shuts_down_by_itself_gets_no_processors() {
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
    fn orders_of_a_previous_agent_may_be_in_flight() {
        let mut pool = Pool::inherited(5);
        assert_eq!(pool.observe(figures(2, 2, 0)), Observation::Working { running: 0, limit: 5 });
        for _ in 1..STALE_POLLS {
            pool.observe(figures(2, 2, 0));
        }
        assert_eq!(pool.observe(figures(2, 2, 0)), Observation::Working { running: 0, limit: 2 });
    }
}
