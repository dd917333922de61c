//! What is known of a Travis worker's pool, and what to tell it next.
//!
//! Invariant: the bound is never below the jobs that the worker may come to run, whatever came of
//! the orders that it was sent.

use crate::worker::counted::{Need, Sight, Target};

/// Looks that may not show yet what became of an order whose answer was lost.
const DISTRUST: u8 = 3;
/// Looks at a worker that runs nothing, though nobody here told it to, until it is taken for one
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

/// How a worker is brought to zero without its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zero {
    /// By toggling its pause.
    TogglePause,
    /// It has been paused before. That keeps its process for good, and another toggle ends it.
    Plain,
}

/// Whether the worker's pause was toggled: once is for the life of its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pause {
    /// It was not.
    #[default]
    Never,
    /// The order went out, and nothing shows yet that it was heard.
    Asked,
    /// It was.
    Toggled,
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
    /// The last size that it was told.
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
    pub(super) fn see(&mut self, figures: Figures) -> Sight {
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
        if figures.expected == 0 && self.pause == Pause::Asked {
            self.pause = Pause::Toggled;
        }
        let empty = figures.size == 0 && figures.expected == 0;
        self.empty_looks = if empty { self.empty_looks.saturating_add(1) } else { 0 };
        self.ran |= !empty;
        self.seen = figures;
        Sight::Working { running: self.running, limit: self.bound }
    }

    /// What to tell it next.
    pub(super) fn need(&self, target: Target) -> Need {
        let Figures { size, expected, .. } = self.seen;
        // What drains runs beside the new size, and leaves that much less for it.
        let wanted = target.size.saturating_sub(self.seen.draining());
        match wanted.cmp(&expected) {
            std::cmp::Ordering::Equal if size == expected && self.distrust == 0 => Need::Nothing,
            std::cmp::Ordering::Equal => Need::Look,
            _ if self.distrust > 0 => Need::Look,
            std::cmp::Ordering::Greater if target.draining || !self.may_grow() => Need::Look,
            std::cmp::Ordering::Greater => Need::Order { size: wanted, grows: true },
            std::cmp::Ordering::Less => Need::Order { size: wanted, grows: false },
        }
    }

    /// Whether the worker may be given processors: one that shuts down would take them.
    fn may_grow(&self) -> bool {
        let by_order = self.told == Some(0) || !self.ran;
        self.seen.expected > 0 || by_order || self.empty_looks >= EMPTY_LOOKS
    }

    /// How to bring it to zero.
    pub(super) fn zero(&self) -> Zero {
        match self.pause {
            Pause::Never | Pause::Asked => Zero::TogglePause,
            Pause::Toggled => Zero::Plain,
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

    /// An order goes out.
    pub(super) fn sending(&mut self, size: u32) {
        self.bound = self.bound.max(size.saturating_add(self.seen.draining()));
        if size == 0 && self.pause == Pause::Never {
            self.pause = Pause::Asked;
        }
    }

    /// It was answered.
    pub(super) fn answered(&mut self, size: u32) {
        self.told = Some(size);
        self.ran |= size > 0;
        if size == 0 {
            self.pause = Pause::Toggled;
        }
    }

    /// Nobody knows whether it was heard.
    pub(super) fn lost(&mut self, size: u32) {
        self.told = Some(size);
        self.ran |= size > 0;
        self.distrust = DISTRUST;
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

    fn told(pool: &mut Pool, size: u32) {
        pool.sending(size);
        pool.answered(size);
    }

    #[test]
    fn what_drains_runs_and_leaves_less_to_grow_by() {
        let mut pool = Pool::default();
        assert_eq!(pool.see(figures(3, 3, 3)), Sight::Working { running: 3, limit: 3 });
        assert_eq!(pool.need(target(1)), Need::Order { size: 1, grows: false });
        told(&mut pool, 1);
        assert_eq!(pool.see(figures(3, 1, 1)), Sight::Working { running: 3, limit: 3 });
        // Told 3 now, it would run 5.
        assert_eq!(pool.need(target(3)), Need::Look);
        assert_eq!(pool.need(target(4)), Need::Order { size: 2, grows: true });
        assert_eq!(pool.need(target(2)), Need::Order { size: 0, grows: false });
        assert_eq!(pool.see(figures(2, 1, 0)), Sight::Working { running: 1, limit: 2 });
    }

    #[test]
    fn the_pause_is_toggled_once_in_the_life_of_a_process() {
        let mut pool = Pool::default();
        pool.see(figures(2, 2, 2));
        assert_eq!(pool.zero(), Zero::TogglePause);
        told(&mut pool, 0);
        pool.see(figures(2, 0, 0));
        assert_eq!(pool.need(target(0)), Need::Look);
        assert_eq!(pool.need(target(3)), Need::Order { size: 1, grows: true });
        told(&mut pool, 1);
        pool.see(figures(1, 1, 1));
        assert_eq!(
            (pool.need(target(0)), pool.zero()),
            (Need::Order { size: 0, grows: false }, Zero::Plain)
        );
    }

    #[test]
    fn a_lost_answer_counts_as_heard_and_as_unheard() {
        let mut pool = Pool::default();
        pool.see(figures(1, 1, 1));
        pool.sending(4);
        pool.lost(4);
        for _ in 0..DISTRUST {
            assert_eq!(pool.need(target(4)), Need::Look);
            assert_eq!(pool.see(figures(1, 1, 0)), Sight::Working { running: 1, limit: 4 });
        }
        assert_eq!(pool.see(figures(1, 1, 0)), Sight::Working { running: 0, limit: 1 });
        assert_eq!(pool.need(target(4)), Need::Order { size: 4, grows: true });
        // A pause whose answer was lost is toggled again only if it surely was not heard.
        pool.sending(0);
        pool.lost(0);
        pool.see(figures(1, 1, 0));
        assert_eq!(pool.need(target(0)), Need::Look);
        pool.see(figures(1, 0, 0));
        assert_eq!((pool.zero(), pool.need(target(0))), (Zero::Plain, Need::Look));
    }

    #[test]
    fn a_worker_that_shuts_down_by_itself_is_given_no_processors() {
        let mut pool = Pool::default();
        pool.see(figures(2, 2, 2));
        pool.see(figures(2, 0, 0));
        assert_eq!(pool.need(target(4)), Need::Look);
        for _ in 0..EMPTY_LOOKS {
            assert_eq!(pool.need(target(4)), Need::Look);
            pool.see(figures(0, 0, 0));
        }
        assert_eq!(pool.need(target(4)), Need::Order { size: 4, grows: true });
    }

    #[test]
    fn the_orders_of_an_agent_before_may_still_be_on_their_way() {
        let mut pool = Pool::inherited(5);
        assert_eq!(pool.see(figures(2, 2, 0)), Sight::Working { running: 0, limit: 5 });
        for _ in 1..DISTRUST {
            pool.see(figures(2, 2, 0));
        }
        assert_eq!(pool.see(figures(2, 2, 0)), Sight::Working { running: 0, limit: 2 });
    }
}
