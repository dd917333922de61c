//! How streams or keys are shared out after one more has joined those that own them.

use serde::Deserialize;

/// What each join changes.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Shares {
    /// Streams or keys that went from one owner to another.
    pub(super) moved: usize,
    /// Those of the owner that has most.
    pub(super) most: usize,
}
