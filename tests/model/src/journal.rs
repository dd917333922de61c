//! A journal in memory: what one call of a holder appends is taken from here after the call.
//!
//! Invariant: between two calls there is nothing in it.

use std::cell::{Cell, RefCell};

use leasehold_agent_core::{Journal, JournalError, Record};

thread_local! {
    static APPENDED: RefCell<Vec<Record>> = const { RefCell::new(Vec::new()) };
    static FULL: Cell<bool> = const { Cell::new(false) };
}

/// The journal of whichever holder is called at present.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tape;

impl Journal for Tape {
    fn append(&mut self, record: &Record) -> Result<(), JournalError> {
        if FULL.get() {
            return Err(JournalError("no space left on device".into()));
        }
        APPENDED.with_borrow_mut(|all| all.push(record.clone()));
        Ok(())
    }
}

/// Runs a call of a holder whose disk is full or not; what it appended.
pub(crate) fn record<R>(full: bool, call: impl FnOnce() -> R) -> (R, Vec<Record>) {
    FULL.set(full);
    let result = call();
    (result, APPENDED.take())
}
