//! Whether a grant may still be written. The driver sets it from the election's events; every
//! session looks at it after a message is serialised. Closed, it stays closed for that epoch's
//! grants until the same epoch is renewed.

use leasehold_types::{Epoch, Moment};
use tokio::sync::watch;

/// The leadership that grants are written under, shared by the sessions of one cell.
#[derive(Debug, Default)]
pub struct Gate(watch::Sender<Option<Term>>);

/// A leadership term, and when it ends unless it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The term.
    pub epoch: Epoch,
    /// Its end.
    pub until: Moment,
}

impl Gate {
    /// Sets the term, or clears it.
    pub fn set(&self, term: Option<Term>) {
        self.0.send_replace(term);
    }

    /// The present term, where there is one.
    #[must_use]
    pub fn term(&self) -> Option<Term> {
        *self.0.borrow()
    }

    /// Tells of every change from now on.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Option<Term>> {
        self.0.subscribe()
    }

    /// Whether a grant of `epoch` may be written at `now`.
    #[must_use]
    pub fn is_open(&self, epoch: Epoch, now: Moment) -> bool {
        self.term().is_some_and(|term| term.epoch == epoch && now < term.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_open_for_its_own_epoch_before_its_end_and_for_nothing_else() {
        let gate = Gate::default();
        assert!(!gate.is_open(Epoch(7), Moment(0)));
        gate.set(Some(Term { epoch: Epoch(7), until: Moment(100) }));
        assert!(gate.is_open(Epoch(7), Moment(99)));
        assert!(!gate.is_open(Epoch(7), Moment(100)));
        assert!(!gate.is_open(Epoch(6), Moment(99)));
        assert!(!gate.is_open(Epoch(8), Moment(99)));
        gate.set(None);
        assert!(!gate.is_open(Epoch(7), Moment(99)));
    }
}
