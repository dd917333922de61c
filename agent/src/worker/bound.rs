//! The most jobs that a worker may come to run which does what it is told and does not say how
//! much that is.
//!
//! Invariant: while the answer to an order is not known, the larger of the sizes before and after
//! it counts.

use super::counted::{Need, Sight, Target};

/// What is known of a worker's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bound {
    /// Unknown where nobody has told it anything yet, as far as this agent remembers.
    most: Option<u32>,
    /// The size that it surely keeps to.
    told: Option<u32>,
}

impl Bound {
    /// What an agent before this one has told it at the most, if there was one.
    pub(crate) fn inherited(most: Option<u32>) -> Self {
        Self { most, told: None }
    }

    /// What a count of its jobs shows.
    pub(crate) fn sight(&self, running: u32) -> Sight {
        match self.most {
            None => Sight::Unsized,
            Some(most) => Sight::Working { running, limit: most },
        }
    }

    /// What to tell it next: 0 at first, so that it is known.
    pub(crate) fn need(&self, target: Target) -> Need {
        let Some(most) = self.most else { return Need::Order { size: 0, grows: false } };
        match self.told == Some(target.size) {
            true => Need::Nothing,
            false => Need::Order { size: target.size, grows: target.size > most },
        }
    }

    /// It shows itself that it keeps to this size.
    pub(crate) fn shows(&mut self, size: u32) {
        *self = Self { most: Some(size), told: Some(size) };
    }

    /// It shows this size, which an order that may be on its way can still change.
    pub(crate) fn shows_for_now(&mut self, size: u32) {
        *self = Self { most: self.most.max(Some(size)), told: Some(size) };
    }

    /// It may not know any more what it was told: its process may be another.
    pub(crate) fn forget(&mut self) {
        self.told = None;
    }

    /// An order goes out.
    pub(crate) fn sending(&mut self, size: u32) {
        self.told = None;
        if let Some(most) = &mut self.most {
            *most = size.max(*most);
        }
    }

    /// It keeps to it.
    pub(crate) fn kept(&mut self, size: u32) {
        *self = Self { most: Some(size), told: Some(size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_size_is_set_to_0_and_an_unanswered_one_counts_at_its_most() {
        let target = |size| Target { size, draining: false };
        let mut bound = Bound::inherited(None);
        assert_eq!(bound.sight(3), Sight::Unsized);
        assert_eq!(bound.need(target(5)), Need::Order { size: 0, grows: false });
        bound.sending(0);
        assert_eq!(bound.sight(3), Sight::Unsized);
        bound.kept(0);
        assert_eq!(bound.sight(3), Sight::Working { running: 3, limit: 0 });
        assert_eq!(bound.need(target(5)), Need::Order { size: 5, grows: true });
        bound.sending(5);
        assert_eq!(bound.sight(1), Sight::Working { running: 1, limit: 5 });
        assert_eq!(bound.need(target(2)), Need::Order { size: 2, grows: false });
        bound.sending(2);
        assert_eq!(bound.sight(1), Sight::Working { running: 1, limit: 5 });
        bound.kept(2);
        assert_eq!(
            (bound.sight(1), bound.need(target(2))),
            (Sight::Working { running: 1, limit: 2 }, Need::Nothing)
        );
        bound.forget();
        assert_eq!(bound.need(target(2)), Need::Order { size: 2, grows: false });
    }
}
