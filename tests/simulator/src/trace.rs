//! What a run leaves behind: a hash of all its steps, and, where asked for, their text.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::system::clock::Real;

/// Lines that are kept of a traced run.
const LINES_MAX: usize = 400_000;

/// The record of one run; it outlives a panic in it.
#[derive(Clone, Debug)]
pub(crate) struct Trace(Rc<RefCell<Inner>>);

#[derive(Debug)]
struct Inner {
    hash: u64,
    steps: u64,
    lines: Option<VecDeque<String>>,
}

impl Trace {
    /// An empty record, with text or without.
    #[must_use]
    pub(crate) fn new(text: bool) -> Self {
        let lines = text.then(VecDeque::new);
        Self(Rc::new(RefCell::new(Inner { hash: 0xcbf2_9ce4_8422_2325, steps: 0, lines })))
    }

    /// Adds bytes to the hash (FNV-1a).
    pub(crate) fn hash(&self, bytes: &[u8]) {
        let mut inner = self.0.borrow_mut();
        for byte in bytes {
            inner.hash = (inner.hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// Begins the next step.
    pub(crate) fn step(&self, t: Real) {
        self.hash(&t.to_le_bytes());
        self.0.borrow_mut().steps += 1;
    }

    /// Adds a line of text, if text is kept.
    pub(crate) fn say(&self, t: Real, text: impl FnOnce() -> String) {
        let mut inner = self.0.borrow_mut();
        if inner.lines.is_none() {
            return;
        }
        let line = format!("{:>10.4} {}", t as f64 / 1e9, text());
        let lines = inner.lines.as_mut().expect("looked at above");
        if lines.len() == LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// The hash of all steps.
    #[must_use]
    pub(crate) fn digest(&self) -> u64 {
        self.0.borrow().hash
    }

    /// How many steps there were.
    #[must_use]
    pub(crate) fn steps(&self) -> u64 {
        self.0.borrow().steps
    }

    /// The text, oldest first.
    #[must_use]
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.borrow().lines.iter().flatten().cloned().collect()
    }
}
