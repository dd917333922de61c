//! The pool size of a polled worker: shared types, and an upper bound of the jobs that it may run.
//!
//! Invariant: until the result of an order is known, the larger of the sizes before and after it
//! counts.

/// The result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Observation {
    /// The worker runs.
    Working {
        /// Jobs that run.
        running: u32,
        /// The most jobs that it may run at once without another order.
        limit: u32,
    },
    /// It needs an order first: the number of jobs that it may run is unknown.
    Unsized,
    /// Its process has ended, and its jobs with it.
    Ended,
}

/// The pool size that the worker must reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Concurrent jobs.
    pub(crate) size: u32,
    /// It must never start another job; the size is 0.
    pub(crate) draining: bool,
}

/// What the worker needs to reach its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adjustment {
    /// Nothing.
    Nothing,
    /// Poll it again soon.
    PollSoon,
    /// Send it this size.
    Order {
        /// The size, as this kind of worker counts it.
        size: u32,
        /// It may then run more jobs than before.
        grows: bool,
    },
}

/// An upper bound of a worker's pool size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SizeBound {
    /// None if no agent has set a size yet, according to the journal.
    most: Option<u32>,
    /// The confirmed size; none while an order is in flight.
    kept: Option<u32>,
}

impl SizeBound {
    /// The largest size that a previous agent has set, if there was one.
    pub(crate) fn inherited(most: Option<u32>) -> Self {
        Self { most, kept: None }
    }

    /// The observation for a count of its jobs.
    pub(crate) fn observation(&self, running: u32) -> Observation {
        match self.most {
            None => Observation::Unsized,
            Some(most) => Observation::Working { running, limit: most },
        }
    }

    /// The next adjustment. An unknown size is set to 0 first.
    pub(crate) fn adjustment(&self, target: Target) -> Adjustment {
        let Some(most) = self.most else { return Adjustment::Order { size: 0, grows: false } };
        if self.kept == Some(target.size) {
            Adjustment::Nothing
        } else {
            Adjustment::Order { size: target.size, grows: target.size > most }
        }
    }

    /// The worker shows this size.
    pub(crate) fn observed(&mut self, size: u32) {
        *self = Self { most: Some(size), kept: Some(size) };
    }

    /// The worker shows this size, but an order in flight may still change it.
    pub(crate) fn observed_once(&mut self, size: u32) {
        *self = Self { most: self.most.max(Some(size)), kept: Some(size) };
    }

    /// The worker may have restarted and lost its size.
    pub(crate) fn forget(&mut self) {
        self.kept = None;
    }

    /// An order is about to be sent.
    pub(crate) fn sending(&mut self, size: u32) {
        self.kept = None;
        if let Some(most) = &mut self.most {
            *most = size.max(*most);
        }
    }

    /// The worker has accepted the order.
    pub(crate) fn confirmed(&mut self, size: u32) {
        *self = Self { most: Some(size), kept: Some(size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_an_unknown_size_to_0_and_counts_the_larger_size_until_an_order_is_confirmed() {
        let target = |size| Target { size, draining: false };
        let mut bound = SizeBound::inherited(None);
        assert_eq!(bound.observation(3), Observation::Unsized);
        assert_eq!(bound.adjustment(target(5)), Adjustment::Order { size: 0, grows: false });
        bound.sending(0);
        assert_eq!(bound.observation(3), Observation::Unsized);
        bound.confirmed(0);
        assert_eq!(bound.observation(3), Observation::Working { running: 3, limit: 0 });
        assert_eq!(bound.adjustment(target(5)), Adjustment::Order { size: 5, grows: true });
        bound.sending(5);
        assert_eq!(bound.observation(1), Observation::Working { running: 1, limit: 5 });
        assert_eq!(bound.adjustment(target(2)), Adjustment::Order { size: 2, grows: false });
        bound.sending(2);
        assert_eq!(bound.observation(1), Observation::Working { running: 1, limit: 5 });
        bound.confirmed(2);
        assert_eq!(
            (bound.observation(1), bound.adjustment(target(2))),
            (Observation::Working { running: 1, limit: 2 }, Adjustment::Nothing)
        );
        bound.forget();
        assert_eq!(bound.adjustment(target(2)), Adjustment::Order { size: 2, grows: false });
    }
}
