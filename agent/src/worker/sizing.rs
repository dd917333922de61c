//! How a polled worker is kept to a size: the vocabulary, and an upper bound of the
//! jobs that it may come to run.
//!
//! Invariant: while the answer to an order is not known, the larger of the sizes before and after
//! it counts.

/// What a worker shows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Observation {
    /// It works.
    Working {
        /// Jobs that run.
        running: u32,
        /// The most jobs that it may come to run at once without another order.
        limit: u32,
    },
    /// It must get a size before it is known how many jobs it may come to run.
    Unsized,
    /// Its process has ended, and its jobs with it.
    Ended,
}

/// What the worker is to keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Jobs at once.
    pub(crate) size: u32,
    /// It must start no further job, for good; the size is 0.
    pub(crate) draining: bool,
}

/// What is to be done for the worker to keep to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adjustment {
    /// Nothing.
    Nothing,
    /// Poll it again soon.
    PollSoon,
    /// It must get this size.
    Order {
        /// The size, by the worker's own way of counting.
        size: u32,
        /// It may then run more jobs than before.
        grows: bool,
    },
}

/// What is known of a worker's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SizeBound {
    /// Unknown where no agent has set a size yet, as far as the journal says.
    most: Option<u32>,
    /// The size that it surely keeps to.
    kept: Option<u32>,
}

impl SizeBound {
    /// The largest size that a previous agent has set, if there was one.
    pub(crate) fn inherited(most: Option<u32>) -> Self {
        Self { most, kept: None }
    }

    /// What a count of its jobs shows.
    pub(crate) fn observation(&self, running: u32) -> Observation {
        match self.most {
            None => Observation::Unsized,
            Some(most) => Observation::Working { running, limit: most },
        }
    }

    /// The next adjustment: 0 at first, so that the size is known.
    pub(crate) fn adjustment(&self, target: Target) -> Adjustment {
        let Some(most) = self.most else { return Adjustment::Order { size: 0, grows: false } };
        match self.kept == Some(target.size) {
            true => Adjustment::Nothing,
            false => Adjustment::Order { size: target.size, grows: target.size > most },
        }
    }

    /// It shows itself that it keeps to this size.
    pub(crate) fn observed(&mut self, size: u32) {
        *self = Self { most: Some(size), kept: Some(size) };
    }

    /// It shows this size, which an order that may be on its way can still change.
    pub(crate) fn observed_once(&mut self, size: u32) {
        *self = Self { most: self.most.max(Some(size)), kept: Some(size) };
    }

    /// It may have lost its size: its process may be another.
    pub(crate) fn forget(&mut self) {
        self.kept = None;
    }

    /// An order goes out.
    pub(crate) fn sending(&mut self, size: u32) {
        self.kept = None;
        if let Some(most) = &mut self.most {
            *most = size.max(*most);
        }
    }

    /// It keeps to it.
    pub(crate) fn confirmed(&mut self, size: u32) {
        *self = Self { most: Some(size), kept: Some(size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_size_is_set_to_0_and_an_unanswered_one_counts_at_its_most() {
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
