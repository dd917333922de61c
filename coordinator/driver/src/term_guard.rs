//! Decides whether a grant may still be written. The driver sets the guard from the election's
//! events; every session checks it after it has serialised a message. A closed guard stays closed
//! for an epoch's grants until the same epoch is renewed.

use leasehold_types::{Epoch, Moment};
use tokio::sync::watch;

/// The term under which grants are written, shared by the sessions of one cell.
#[derive(Debug, Default)]
pub struct TermGuard(watch::Sender<Option<Term>>);

/// A term of leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The epoch of the term.
    pub epoch: Epoch,
    /// When the term ends unless it is renewed.
    pub until: Moment,
}

impl TermGuard {
    /// Sets the term, or clears it.
    pub fn set(&self, term: Option<Term>) {
        self.0.send_replace(term);
    }

    /// The present term, if this replica leads.
    #[must_use]
    pub fn term(&self) -> Option<Term> {
        *self.0.borrow()
    }

    /// Notifies of every change from now on.
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
    fn a_gate_is_open_only_for_its_own_epoch_and_before_the_end_of_the_term() {
        let term_guard = TermGuard::default();
        assert!(!term_guard.is_open(Epoch(7), Moment(0)));
        term_guard.set(Some(Term { epoch: Epoch(7), until: Moment(100) }));
        assert!(term_guard.is_open(Epoch(7), Moment(99)));
        assert!(!term_guard.is_open(Epoch(7), Moment(100)));
        assert!(!term_guard.is_open(Epoch(6), Moment(99)));
        assert!(!term_guard.is_open(Epoch(8), Moment(99)));
        term_guard.set(None);
        assert!(!term_guard.is_open(Epoch(7), Moment(99)));
    }
}
