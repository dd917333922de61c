//! A journal in memory: what one call of a holder appends is taken from here after the call.
//!
//! Invariant: between two calls there is nothing in it.

use std::cell::{Cell, RefCell};

use leasehold_agent_core::{Journal, JournalError, Record};

thread_local! {
    static APPENDED: RefCell<Vec<Record>> = const { RefCell::new(Vec::new()) };
    static FULL: Cell<bool> = const { Cell::new(false) };
}

/// The journal of the holder that is being called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordingJournal;

impl Journal for RecordingJournal {
    fn append(&mut self, record: &Record) -> Result<(), JournalError> {
        if FULL.get() {
            return Err(JournalError("no space left on device".into()));
        }
        APPENDED.with_borrow_mut(|all| all.push(record.clone()));
        Ok(())
    }
}

/// Runs a call of a holder, whose disk may be full, and returns what it appended.
pub(crate) fn record<R>(full: bool, call: impl FnOnce() -> R) -> (R, Vec<Record>) {
    FULL.set(full);
    let result = call();
    (result, APPENDED.take())
}
