//! Runs under one of the deliberate faults.

use leasehold_types::mutation::{self, Mutation};

/// The result of `run` under a fault; `None` where this build has no faults.
pub fn with_fault<T>(fault: Mutation, run: impl FnOnce() -> T) -> Option<T> {
    mutation::BUILT_IN.then(|| {
        mutation::set(Some(fault));
        let result = run();
        mutation::set(None);
        result
    })
}
